"""Gradients of conv2d: adjoint to it, and the same from every template."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.interp.reference import random_arguments
from tensorir.runtime.host import target_here
from tensorir.tune.template import suiting

pytestmark = pytest.mark.usefixtures("unoptimised")

OPERATORS = ("conv2d_backward_data", "conv2d_backward_weight")
TARGETS = {"cpu": "opencl -kind=cpu", "gpu": "cuda -arch=sm_80"}
SHAPES = (
    dict(c=8, k=16, h=9, w=11, pad=1),
    dict(n=2, c=5, k=7, h=8, w=9, pad=1, stride=2),
    dict(n=2, c=6, k=10, h=9, w=12, pad=1, stride=2, groups=2, dilation=2),
    dict(c=3, k=4, h=11, w=10, r=1, s=1, stride=2),
    dict(c=4, k=6, h=7, w=13, r=2, s=5, pad=3, stride=3, dilation=1),
    dict(c=9, k=9, h=6, w=6, groups=3, pad=4, dilation=2),
)
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def integers(shape, seed):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float64)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_references_are_adjoint(shape, layout):
    """<dy, conv(x, w)> = <dx, x> = <dw, w>, exactly on integers, and linear in each: so they are the gradients."""
    options = dict(dtype="float64", layout=layout, **{"n": 1, **shape})
    forward, data, weight = (getattr(tir.ops, op)(**options) for op in ("conv2d", *OPERATORS))
    x, w = (integers(t.shape, n) for n, t in enumerate(forward.inputs))
    y = forward.reference(x, w)
    dy = integers(y.shape, 2)
    assert [t.shape for t in data.inputs] == [dy.shape, w.shape]
    assert [t.shape for t in weight.inputs] == [x.shape, dy.shape]
    want = np.sum(dy * y)
    assert np.sum(data.reference(dy, w) * x) == want
    assert np.sum(weight.reference(x, dy) * w) == want


@pytest.mark.parametrize(
    ("op", "layout", "shape"),
    [(op, ("NCHW", "NHWC")[(m + n) % 2], shape) for m, op in enumerate(OPERATORS) for n, shape in enumerate(SHAPES)],
    ids=str,
)
def test_every_template_equals_its_declaration(op, layout, shape):
    """Each shape in one layout of either operator."""
    work = getattr(tir.ops, op)(layout=layout, **shape)
    compared = []
    for kind, target in TARGETS.items():
        for name, _ in suiting(work.templates, target_here(target)):
            if work.templates[name].started(target_here(target)):
                assert compare(work.schedule(template=name, target=target), Field(), 1) is None, name
                compared.append(name)
        assert compared and compared[-1].startswith(kind)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("op", OPERATORS)
def test_every_type_is_exact_on_the_device(op, dtype):
    for layout, shape in zip(("NCHW", "NHWC"), SHAPES[1:3], strict=True):
        work = getattr(tir.ops, op)(layout=layout, dtype=dtype, **shape)
        arrays = random_arguments(work.outputs, 1)
        got = np.asarray(work.schedule(target=TARGETS["cpu"]).build("opencl:pocl")(*arrays))
        want = work.reference(*arrays)
        assert got.dtype == want.dtype
        assert np.array_equal(got, want), (layout, shape)


@emulated
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("op", OPERATORS)
def test_text_for_gpus_is_right(op, layout):
    work = getattr(tir.ops, op)(layout=layout, **SHAPES[2])
    s = work.schedule(target=TARGETS["gpu"])
    arrays = random_arguments(s.outputs, 0)
    got = emulate(s.emitted(), arrays)
    assert not got.problems
    assert np.array_equal(got.outputs[0], work.reference(*arrays))


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(OPERATORS), st.sampled_from(SHAPES), st.sampled_from(["NCHW", "NHWC"]))
def test_any_configuration(seed, op, shape, layout):
    work = getattr(tir.ops, op)(layout=layout, **shape)
    for kind, target in TARGETS.items():
        name = work.template_for(target)
        assert name.startswith(kind)
        space = work.templates[name].space_for(target_here(target))
        config = space.config(seed % len(space.legal))
        assert compare(work.schedule(config, name, target), Field(), seed) is None, (name, config)


BAD = [
    (dict(stride=0), "conv2d.stride"),
    (dict(pad=-1), "conv2d.pad"),
    (dict(groups=3), "conv2d.groups"),
    (dict(h=2, r=5), "conv2d.extent"),
    (dict(c=0), "ops.extent"),
    (dict(layout="CHWN"), "conv2d.layout"),
]


@pytest.mark.parametrize(("options", "code"), BAD, ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_bad_parameters(op, options, code):
    with pytest.raises(tir.DeclarationError) as caught:
        getattr(tir.ops, op)(**{**dict(n=1, c=4, h=8, w=8, k=4, r=3, s=3), **options})
    assert caught.value.code == code


def test_tensors_that_do_not_fit():
    dy, w = tir.placeholder((1, 4, 6, 6), name="dy"), tir.placeholder((4, 3, 3, 3), name="w")
    x, other = tir.placeholder((1, 3, 8, 8), name="x"), tir.placeholder((5, 3, 3, 3), name="w")
    cases = (
        (lambda: tir.nn.conv2d_backward_data(dy, w, (9, 8)), "conv2d.extent"),
        (lambda: tir.nn.conv2d_backward_data(dy, other, (8, 8)), "conv2d.channels"),
        (lambda: tir.nn.conv2d_backward_data(dy, w, 8), "argument.type"),
        (lambda: tir.nn.conv2d_backward_weight(x, dy, (3, 2)), "conv2d.extent"),
        (lambda: tir.nn.conv2d_backward_weight(tir.placeholder((2, 3, 8, 8)), dy, (3, 3)), "conv2d.extent"),
        (lambda: tir.nn.conv2d_backward_weight(x, tir.placeholder((6, 6)), (3, 3)), "conv2d.rank"),
    )
    for call, code in cases:
        with pytest.raises(tir.DeclarationError) as caught:
            call()
        assert caught.value.code == code


def test_equal_to_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    options = dict(stride=2, padding=1, dilation=1, groups=2)
    shape = dict(n=2, c=6, k=8, h=9, w=10, pad=1, stride=2, groups=2, dtype="float64")
    data, weight = (getattr(tir.ops, op)(**shape) for op in OPERATORS)
    x, dy = (torch.from_numpy(integers(t.shape, n)) for n, t in enumerate(weight.inputs))
    w = torch.from_numpy(integers(data.inputs[1].shape, 3))
    want = torch.nn.grad.conv2d_input(x.shape, w, dy, **options)
    assert np.array_equal(data.reference(dy.numpy(), w.numpy()), want.numpy())
    want = torch.nn.grad.conv2d_weight(x, w.shape, dy, **options)
    assert np.array_equal(weight.reference(x.numpy(), dy.numpy()), want.numpy())


DATA = (
    dict(c=32, k=64, h=8, w=20, pad=1),
    dict(n=2, c=24, k=40, h=11, w=37, pad=1, stride=2),
    dict(c=64, k=32, h=9, w=18, pad=1, stride=2, groups=2),
    dict(c=5, k=9, h=13, w=17, pad=3, dilation=2),
    dict(c=20, k=16, h=7, w=9, r=1, s=1, stride=2),
    dict(c=8, k=16, h=14, w=21, r=5, s=2, pad=2, stride=3),
    dict(n=3, c=16, k=8, h=3, w=10, r=2, s=1, pad=2),  # padded beyond the filter: results go on behind the last rows
)


@emulated
@pytest.mark.parametrize(
    ("layout", "shape", "dtype"),
    [*((("NCHW", "NHWC")[n % 2], s, "float16") for n, s in enumerate(DATA)), ("NHWC", DATA[0], "float16"),
     ("NCHW", DATA[1], "int8"), ("NHWC", dict(DATA[2], precision="tf32"), "float32"),
     ("NHWC", DATA[0], "float8_e4m3")],
    ids=str,
)  # fmt: skip
def test_tensor_cores_are_exact_for_images(shape, dtype, layout):
    exact_on_tensor_cores("conv2d_backward_data", dtype=dtype, layout=layout, **shape)


WEIGHT = (
    dict(c=32, k=64, h=8, w=20, pad=1),
    dict(n=8, c=24, k=40, h=16, w=16, pad=1),
    dict(n=3, c=48, k=64, h=15, w=17, pad=1, stride=2, groups=2),
    dict(n=4, c=64, k=64, h=14, w=15, pad=2, dilation=2, groups=4),
    dict(c=5, k=9, h=7, w=9, r=1, s=1),
    dict(c=20, k=12, h=13, w=21, r=4, s=2, pad=3, stride=3),
)


@emulated
@pytest.mark.parametrize(
    ("layout", "shape", "dtype"),
    [*((("NCHW", "NHWC")[n % 2], s, "float16") for n, s in enumerate(WEIGHT)), ("NHWC", WEIGHT[1], "bfloat16"),
     ("NCHW", WEIGHT[2], "int8"), ("NCHW", dict(WEIGHT[1], precision="3xtf32"), "float32")],
    ids=str,
)  # fmt: skip
def test_tensor_cores_are_exact_for_filters(shape, dtype, layout):
    exact_on_tensor_cores("conv2d_backward_weight", dtype=dtype, layout=layout, **shape)


@emulated
@settings(max_examples=4, deadline=None)
@given(
    st.integers(0, 10**6), st.sampled_from(OPERATORS), st.sampled_from(WEIGHT[:4]), st.sampled_from(["NCHW", "NHWC"])
)
def test_any_configuration_on_tensor_cores(seed, op, shape, layout):
    work = getattr(tir.ops, op)(layout=layout, dtype="float16", **shape)
    template = work.templates.get("gpu_tensor")
    if template is None:  # images have fewer channels than filters here: groups of 12
        return
    space = template.space_for(tir.Target.parse(TARGETS["gpu"]))
    config = space.config(seed % len(space.legal))
    s = work.schedule(config, "gpu_tensor", TARGETS["gpu"])
    arrays = random_arguments(s.outputs, 1)
    got = emulate(s.emitted(), arrays)
    assert not got.problems, config
    assert np.array_equal(got.outputs[0], work.reference(*arrays)), config


@pytest.mark.parametrize(("op", "groups", "first"), [
    ("conv2d_backward_data", 48, "cpu_tile_registers"), ("conv2d_backward_weight", 48, "cpu_stream"),
    ("conv2d_backward_weight", 12, "cpu_tile_registers"),
])  # fmt: skip
def test_gradients_in_groups_begin_with_rules_where_these_have_tiles(op, groups, first):
    work = getattr(tir.ops, op)(n=1, c=48, k=48, h=9, w=9, groups=groups, pad=1, layout="NHWC")
    assert work.template_for("c -registers=32 -vector_bytes=64 -units=2") == first


def test_types_that_cannot_be_turned_take_another_template():
    work = tir.ops.conv2d_backward_weight(c=32, k=32, layout="NHWC", dtype="int8")
    assert work.template_for(TARGETS["gpu"]) == "gpu_tile_mma"


def exact_on_tensor_cores(op, **options):
    work = getattr(tir.ops, op)(**options)
    target = "cuda -arch=sm_89" if options["dtype"].startswith("float8") else TARGETS["gpu"]
    s = work.schedule(template="gpu_tensor", target=target)
    if options["dtype"] == "float16":
        assert compare(s, Field(), 1) is None
    arrays = random_arguments(s.outputs, 1)
    got = emulate(s.emitted(), arrays)
    assert not got.problems
    assert np.array_equal(got.outputs[0], work.reference(*arrays))
    shared = [t for t in got.traffic if t.what == "shared read"]
    assert all(t.units == t.ideal for t in shared if t.lanes == 32 * t.requests), shared
    assert len({t.line for t in shared if t.width < 16}) <= 1, shared  # results, by what divides their rows


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("op", OPERATORS)
def test_the_default_spills_nothing(op, stride, layout):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    work = getattr(tir.ops, op)(n=16, c=128, k=128, pad=1, stride=stride, layout=layout, dtype="float16")
    assert compile_cubin(work.schedule(target=TARGETS["gpu"]).emitted().text, "sm_80").spills == 0


def test_strides_of_dilated_taps_take_another_template():
    work = tir.ops.conv2d_backward_data(c=32, k=32, stride=2, dilation=2, dtype="float16")
    assert work.template_for(TARGETS["gpu"]) == "gpu_tile_mma"
