"""The gradient of conv2d's filter by warpgroups: a product with the pixels under one tap after the other."""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from emulating import any_configuration_is_right, emulated_rightly, small_integers
from hypothesis import assume, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field

HOPPER = "cuda -arch=sm_90a -units=3"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
WGMMA = "gpu_tile_wgmma"
BY_WARPS = ("gpu_tensor", "gpu_tile_mma")
"""Products of ``mma.sync``: those of which the model expects more come first."""
TILES = dict(groups=1, pingpong=0, rows=1, bn=128, depth=2, cluster=1, raster=1, resident=1, splits=1)


def work(**given):
    shape = dict(n=2, c=64, h=9, w=7, k=64, r=3, s=3, pad=1, layout="NHWC", dtype="bfloat16")
    return tir.ops.conv2d_backward_weight(**{**shape, **given})


def space(made, target=HOPPER):
    return made.templates[WGMMA].space_for(tir.Target.parse(target))


def scheduled(made, **config):
    s = tir.Schedule(made.outputs, HOPPER)
    return made.templates[WGMMA].function(s, {**space(made).default, **TILES, **config})


CASES = {
    "3x3": ({}, {}),
    "two warpgroups, taps across tiles": (dict(k=136, r=3, s=2), dict(groups=2, bn=192)),
    "two products of each": (dict(k=200, c=128), dict(groups=2, rows=2)),
    "channels that fill no row of 128 bytes": (dict(c=72, k=72), dict(bn=64)),
    "few channels": (dict(c=32, k=8, h=20), {}),
    "1x1": (dict(r=1, s=1, pad=0, c=136), {}),
    "1x1, stride 2": (dict(r=1, s=1, pad=0, stride=2, h=12), dict(bn=64)),
    "stride 2, halves": (dict(stride=2, h=19, w=22, dtype="float16"), {}),
    "dilated, a wide border": (dict(dilation=2, pad=3, r=2, s=3), dict(bn=192)),
    "parts": (dict(n=5, h=13, w=11, c=128), dict(splits=2)),
    "parts of channels made up": (dict(n=7, h=10, w=10, c=40, k=40), dict(splits=2, bn=64)),
    "groups": (dict(groups=2, c=128, k=256), dict(groups=2)),
    "groups in parts": (dict(groups=2, c=128, k=128, n=9, s=1), dict(splits=2, bn=64)),
    "a cluster": (dict(k=256, n=3), dict(groups=2, cluster=2)),
    "turns": (dict(k=192, c=128), dict(groups=2, bn=64, pingpong=1)),
}


@emulated
@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_gradient(name):
    shape, config = CASES[name]
    made = work(**shape)
    s = scheduled(made, **config)
    one_by_one = shape.get("r") == 1 and "stride" not in shape
    assert ("tir_tma_im2col" in s.source()) != one_by_one, "pixels of 1x1 filters are rows of a matrix"
    assert re.search(r"tir_wgmma_m64n\d+k16_b?f16_tn\(", s.source())
    assert emulated_rightly(made, s, seed=len(name), eager=len(name) % 3 == 0)


@emulated
@settings(max_examples=5, deadline=None)
@drawn(
    st.integers(1, 4), st.integers(1, 12), st.integers(1, 16), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4),
    st.integers(0, 3), st.integers(1, 3), st.integers(4, 18), st.integers(1, 18), st.data(),
)  # fmt: skip
def test_any_shape(n, h, w, r, s, stride, pad, dilation, c, k, data):
    h, w = (max(x, (taps - 1) * dilation + 1 - 2 * pad) for x, taps in ((h, r), (w, s)))
    made = work(n=n, h=h, w=w, r=r, s=s, stride=stride, pad=pad, dilation=dilation, c=8 * c, k=8 * k)
    assume(WGMMA in made.templates)  # not where all that is read lies before the image
    assert any_configuration_is_right(data, made, WGMMA, HOPPER)


@pytest.mark.parametrize(
    ("shape", "config"),
    [(dict(c=40, k=8, h=5, w=4, r=2, dilation=2), {}),
     (dict(c=40, k=8, n=10, h=6, w=6, r=1, s=2), dict(splits=2, bn=64))],
)  # fmt: skip
def test_schedules_are_proved(shape, config):
    assert compare(scheduled(work(**shape), **config), Field(), 1) is None


def test_copies_and_maps():
    """Of a step of 64 pixels: a copy of 64 filters' gradients, and one of 64 channels under each of three taps."""
    source = scheduled(work(n=5, h=14, w=9, r=3, s=2, stride=2, k=72), bn=192).emitted()
    (kernel,) = source.kernels
    x, dy, dw = ({m.array: m for m in kernel.maps}[name] for name in ("x", "dy", "out"))
    assert (x.shape, x.box, x.steps, x.swizzle) == ((5, 14, 9, 64), (64, 64), (1, 2, 2, 1), 128)
    assert (dy.shape, dy.box, dy.lower) == ((5 * 7 * 5, 72), (64, 64), ())
    assert (dw.shape, dw.box) == ((72, 3, 2, 64), (64, 1, 1, 64))
    assert source.text.count(", 32768);") == 1, "bytes that are awaited: 64 pixels of 64 + 3 * 64 channels"
    assert {"tma.im2col.bfloat16.64x64", "tma.load.bfloat16.64x64", "tma.store.bfloat16.64x64"} <= set(
        source.instructions
    )


def test_parts_meet_in_a_second_kernel():
    source = scheduled(work(n=5, h=13, w=11, c=128), splits=2).emitted()
    assert [len(k.maps) for k in source.kernels] == [2, 0]
    assert source.kernels[0].grid == (3, 1, 1), "as many as there are multiprocessors, for 2 * 9 tiles"


@emulated
@pytest.mark.parametrize(
    ("array", "change"),
    [("x", dict(lower=(0, -1))), ("x", dict(upper=(-2, 0))), ("x", dict(steps=(1, 1, 2, 1))), ("x", dict(box=(32, 64))),
     ("x", dict(swizzle=0)), ("dy", dict(swizzle=0)), ("dy", dict(box=(32, 64))), ("out", dict(swizzle=0))],
)  # fmt: skip
def test_other_maps_are_found(array, change):
    source, *_ = in_steps()
    (kernel,) = source.kernels
    maps = tuple(replace(m, **change) if m.array == array else m for m in kernel.maps)
    assert maps != kernel.maps
    assert differs(replace(source, kernels=(replace(kernel, maps=maps),)))


@emulated
@pytest.mark.parametrize(
    ("line", "before", "behind"),
    [("tir_tma_im2col(", " - 1, ", ", "), ("tir_tma_im2col(", "* 2 - 1", "- 1"),
     ("tir_tma_im2col(", "ax1_0, tile)", "tile, ax1_0)"), ("tir_tma_im2col(", "ax1_0 * 4096", "0"),
     ("tir_tma_load(", "k_0 * 64)", "k_0 * 32)"),
     ("_tn(", "8192, 1024", "1024, 8192"), ("_tn(", "k_1 * 1024", "k_1 * 512")],
)  # fmt: skip
def test_other_texts_are_found(line, before, behind):
    """The first pixel, the tap, the place of a tap's channels, the first row of dy; strides of tiles along channels."""
    source, *_ = in_steps()
    found = next(x for x in source.text.splitlines() if x.strip().startswith("tir_") and line in x)
    changed = found.replace(before, behind)
    assert changed != found, found
    assert differs(replace(source, text=source.text.replace(found, changed)))


@functools.cache
def in_steps():
    """The source of a gradient in steps of 2, inputs of small integers, and the exact result."""
    made = work(n=3, h=13, w=9, r=3, s=2, stride=2)
    source = scheduled(made).emitted()
    return source, (arrays := small_integers(source)), made.reference(*arrays)


def differs(source):
    _, arrays, want = in_steps()
    got = emulate(source, arrays)
    return got.problems or not np.array_equal(got.outputs[0], want.astype(got.outputs[0].dtype), equal_nan=False)


def test_where_it_is_the_default():
    """Not of filters most of whose tiles would be made up, nor on other targets."""
    for given, templates in (
        ({}, [WGMMA]),
        (dict(c=40), [WGMMA]),
        (dict(c=8, r=1, s=1), [WGMMA]),
        (dict(c=24), BY_WARPS),
    ):
        made = work(**given)
        assert made.template_for(HOPPER) in templates, given
        assert made.template_for("cuda -arch=sm_90") in BY_WARPS
    others = (dict(layout="NCHW"), dict(dtype="int8"), dict(c=12), dict(k=12), dict(groups=2), dict(pad=129),
              dict(groups=4, c=256, k=128), dict(dtype="float32", precision="tf32"),
              dict(r=1, s=1, stride=8, h=6))  # fmt: skip
    for given in others:
        assert WGMMA not in work(**given).templates, given


def test_as_many_parts_as_fill_a_device():
    """Few filters and many pixels, in parts of whole steps of 64; many filters need none."""
    device = "cuda -arch=sm_90a -units=132"
    few = space(work(n=64, h=56, w=56), device)
    start = few.default
    tiles = -(-576 // start["bn"])
    assert 100 <= tiles * start["splits"] <= 132
    assert few.index(start) >= 0
    assert space(work(n=16, h=7, w=7, c=2048, k=512, r=1, s=1, pad=0), device).default["splits"] == 1


def test_compiles():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin, sass_opcodes

    target = "cuda -arch=sm_90a"
    shapes = (dict(n=64, c=256, h=56, w=56, k=256), dict(n=64, c=512, h=14, w=14, k=512, stride=2, dtype="float16"))
    found = []
    for given in shapes:
        cubin = compile_cubin(work(**given).schedule(target=target).source(), "sm_90a")
        assert cubin.spills == 0
        assert "C75" not in cubin.log
        try:
            found.append(sass_opcodes(cubin))
        except tir.TensorIRError:
            return  # no disassembler is installed
    assert [sum(n for op, n in ops.items() if op.startswith("UTMALDG.4D.IM2COL")) for ops in found] == [4, 3]
    assert all(ops["HGMMA.64"] == 4 and not ops.get("LDL") and not ops.get("STL") for ops in found)
    assert found[1]["UTMASTG.4D"] == 3, "192 channels of results"
