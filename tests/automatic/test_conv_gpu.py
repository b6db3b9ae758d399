"""Convolutions and their gradients on tensor cores, by tiles of images and of filters, of any declaration."""

import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.automatic.facts import Graph
from tensorir.automatic.rules.conv_view import conv_view
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.interp.reference import evaluate, random_arguments

AMPERE = "cuda -arch=sm_80"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def given(name, *shape, dtype="float16"):
    return tir.placeholder(shape, dtype, name=name)


def wide(x):
    return tir.cast(x, "float32")


def windows(image, taps, stride=1, name="sums", narrow=True):
    """A convolution, channels last, in names of its own and in another order of terms, without a padded image."""
    a, b, c = (tir.reduce_axis(n, name=v) for n, v in zip(taps.shape[1:], ("p", "q", "ch"), strict=True))
    n, h, w, _ = image.shape
    size = n, (h - taps.shape[1]) // stride + 1, (w - taps.shape[2]) // stride + 1, taps.shape[0]

    def cell(m, i, j, f):
        return tir.sum(wide(taps[f, a, b, c]) * wide(image[m, i * stride + a, j * stride + b, c]), axis=(c, a, b))

    y = tir.compute(size, cell, name=name)
    return tir.nn.convert(y, "float16", name="narrow") if narrow else y


IMAGE, TAPS = given("image", 2, 9, 20, 32), given("taps", 32, 3, 3, 32)
GRADIENT = given("gradient", 1, 32, 5, 6)


def followed():
    """Sums that others than one map read."""
    y = windows(IMAGE, TAPS, narrow=False)
    return tir.compute(y.shape, lambda n, i, j, k: y[n, i, j, k] + y[n, i, j, 0], name="twice")


def spread():
    """The gradient of an image, whose results have a spare row and column."""
    dx = tir.nn.conv2d_backward_data(GRADIENT, given("w", 32, 16, 3, 3), (10, 12), stride=2, pad=1,
                                     accumulate="float32", name="d")  # fmt: skip
    return tir.nn.convert(tir.nn.relu(dx, name="positive"), "float16", name="end")


def filters(name="dw", **how):
    x = given("x", 2, 32, 7, 9)
    y = tir.nn.conv2d(x, given("w", 32, 32, 3, 3), **how)
    dw = tir.nn.conv2d_backward_weight(x, given("dy", *y.shape), (3, 3), accumulate="float32", name=name, **how)
    return tir.nn.convert(dw, "float16", name="end")


DECLARED = {
    "names of its own": lambda: windows(IMAGE, TAPS),
    "strided": lambda: windows(IMAGE, TAPS, 2),
    "read by others": followed,
    "an image that is made": lambda: tir.nn.convert(
        tir.nn.conv2d(tir.nn.softmax(IMAGE, 3), TAPS, pad=1, layout="NHWC", accumulate="float32"), "float16", name="o"
    ),
    "an image's gradient": spread,
    "a filter's gradient": lambda: filters("other", pad=1),
    "a filter's gradient, strided": lambda: filters(stride=2),
}


@pytest.mark.parametrize("case", DECLARED)
def test_convolutions_are_found(case):
    out = DECLARED[case]()
    made = tir.auto(out, AMPERE)
    s = tir.Schedule(out, AMPERE)
    made["gpu_tensor"].function(s, made["gpu_tensor"].space_for(s.target).default)
    assert any(step.primitive == "tensorize" for step in s.trace)
    assert compare(s, Field(), 1) is None


@emulated
@pytest.mark.parametrize("case", ["read by others", "an image's gradient", "a filter's gradient, strided"])
def test_their_text_is_right(case):
    out = DECLARED[case]()
    made = tir.auto(out, AMPERE)["gpu_tensor"]
    s = tir.Schedule(out, AMPERE)
    made.function(s, made.space_for(s.target).default)
    arrays = random_arguments(s.outputs, 0)
    got = emulate(s.emitted(), arrays)
    assert not got.problems and np.array_equal(got.outputs[0], evaluate(s.outputs, arrays)[0])


def seen(out, name):
    graph = Graph(tir.Schedule(out, AMPERE).program)
    total = graph.nests[name]
    return conv_view(graph, total, total)


@pytest.mark.parametrize(
    ("layout", "groups", "stride", "pad"), [("NCHW", 1, 1, 1), ("NHWC", 2, 2, 1), ("NCHW", 4, 3, 0)]
)
def test_parameters_are_those_of_the_declaration(layout, groups, stride, pad):
    how = dict(stride=stride, pad=pad, groups=groups, layout=layout)
    order = "nchw" if layout == "NCHW" else "nhwc"
    sizes = dict(n=2, c=8, h=11, w=13)
    x = given("x", *(sizes[v] for v in order))
    w = given("w", *((16, 8 // groups, 3, 2) if layout == "NCHW" else (16, 3, 2, 8 // groups)))
    y = tir.nn.conv2d(x, w, **how)
    dy = given("dy", *y.shape)
    p, q = y.shape[2:] if layout == "NCHW" else y.shape[1:3]
    named = {
        "y": y, "dx": tir.nn.conv2d_backward_data(dy, w, (11, 13), **how),
        "dw": tir.nn.conv2d_backward_weight(x, dy, (3, 2), **how),
    }  # fmt: skip
    for name, out in named.items():
        found = seen(out, name).shape
        own = {
            v: getattr(found, v) for v in ("n", "c", "h", "w", "k", "r", "s", "p", "q", "stride", "groups", "layout")
        }
        assert own == dict(**sizes, k=16, r=3, s=2, p=p, q=q, stride=stride, groups=groups, layout=layout), name
        assert name != "dx" or stride == 1 or found.pad == pad


def test_what_is_no_such_convolution():
    uneven = tir.nn.conv2d(IMAGE, TAPS, stride=(1, 2), layout="NHWC")
    product = tir.nn.matmul(given("a", 64, 64), given("b", 64, 64), name="c")
    assert seen(uneven, "y") is None and seen(product, "c") is None
    shifted = tir.nn.conv2d_backward_data(GRADIENT, given("w", 32, 16, 3, 3), (10, 12), stride=2, pad=(0, 1, 1, 0))
    assert seen(shifted, "dx") is None
