"""conv2d on tensor cores: the text of any configuration is right."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import random_arguments

AMPERE = "cuda -arch=sm_80"
ADA = "cuda -arch=sm_89"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def work(**changed):
    return tir.ops.conv2d(**{"n": 1, "c": 32, "h": 8, "w": 20, "k": 64, "r": 3, "s": 3, "pad": 1, "layout": "NHWC",
                             "dtype": "float16", **changed})  # fmt: skip


def test_is_the_default_where_it_fits():
    assert work().template_for(AMPERE) == "gpu_tensor"
    assert work().template_for("cuda -arch=sm_75") == "gpu_tile_mma"
    for fits in (dict(stride=2), dict(groups=2), dict(dilation=3), dict(layout="NCHW")):
        assert work(**fits).template_for(AMPERE) == "gpu_tensor"
    for other in (dict(groups=32), dict(k=24, groups=2), dict(dtype="float32")):
        assert "gpu_tensor" not in work(**other).templates


SHAPES = (
    {},
    dict(n=2, c=24, h=7, w=7, k=40, r=1, s=1, pad=0, bias=True, act="relu"),
    dict(c=5, h=9, w=11, k=6, r=5, s=3, pad=2, dilation=2, residual=True),
    dict(c=64, h=14, w=14, k=72),
    dict(h=13, w=37, k=24, stride=2),
    dict(c=20, h=9, w=35, k=40, r=1, s=1, pad=0, stride=2, bias=True),
    dict(c=17, h=15, w=21, k=5, r=4, s=5, pad=3, stride=3, dilation=2, act="relu"),
    dict(c=3, h=23, w=25, k=16, r=7, s=7, pad=3, stride=2),
    dict(c=72, h=5, w=19, k=96, groups=3, bias=True, residual=True),
    dict(n=2, c=40, h=9, w=18, k=64, groups=2, stride=2, dilation=3, pad=4),
    dict(c=64, h=6, w=34, k=64, groups=4, stride=2, r=1, s=1, pad=1),
)


@emulated
@pytest.mark.parametrize(
    ("changed", "dtype"),
    [
        *((c, "float16") for c in SHAPES), *((c, "bfloat16") for c in SHAPES[1::5]),
        *((c, "int8") for c in SHAPES[2::5]), (SHAPES[0], "float8_e4m3"), (SHAPES[6], "float8_e5m2"),
    ],
    ids=str,
)  # fmt: skip
def test_text_is_right(changed, dtype):
    w = work(dtype=dtype, **changed)
    target = ADA if dtype.startswith("float8") else AMPERE
    s = w.schedule(template="gpu_tensor", target=target)
    arrays = random_arguments(s.outputs, 1)  # against NumPy
    got = emulate(s.emitted(), arrays)
    assert not got.problems
    assert np.array_equal(got.outputs[0], w.reference(*arrays))


TURNED = (
    {},
    dict(h=9, w=35, c=24, k=40, stride=2, bias=True),
    dict(n=2, c=5, h=9, w=11, k=6, r=5, s=3, pad=2, dilation=2, residual=True),
    dict(c=40, h=7, w=7, k=24, r=1, s=1, pad=0, act="relu"),
    dict(c=64, h=8, w=21, k=96, groups=2, stride=2, prepack=True),
    dict(c=16, h=12, w=19, k=20, r=5, s=5, pad=2),
)


@emulated
@pytest.mark.parametrize(
    ("changed", "dtype"),
    [*((c, "float16") for c in TURNED), (TURNED[1], "bfloat16"), (TURNED[3], "int8"), (TURNED[4], "int8"),
     (TURNED[1], "float8_e5m2")],
    ids=str,
)  # fmt: skip
def test_channels_first(changed, dtype):
    """The image is turned on its way to shared memory, the filter by a kernel of its own."""
    test_text_is_right({"layout": "NCHW", **changed}, dtype)


@pytest.mark.parametrize("changed", [*SHAPES[1::4], *({"layout": "NCHW", **c} for c in TURNED[::3])], ids=str)
def test_schedules_are_proved(changed):
    verdict = work(**changed).schedule(template="gpu_tensor", target=AMPERE).check()  # against what nn.conv2d says
    assert verdict, verdict


@emulated
@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
@pytest.mark.parametrize("changed", [SHAPES[2], SHAPES[8], dict(stride=2, layout="NCHW")], ids=str)
def test_float32_by_a_named_precision(changed, precision):
    test_text_is_right({"precision": precision, **changed}, "float32")


def test_precision_is_named():
    assert "precision=3xtf32" in work(dtype="float32", precision="3xtf32").title
    assert "precision" not in work(dtype="float32").title
    with pytest.raises(tir.DeclarationError) as e:
        work(precision="tf32")
    assert e.value.code == "conv2d.precision"


def test_an_image_that_is_read_as_it_lies_is_not_copied():
    sums = dict(r=1, s=1, pad=0, h=16, w=32, c=64)
    for stride, image in ((1, "x_shared"), (2, "x_global_shared")):  # strided rows are sorted by their remainder
        s = work(**sums, stride=stride).schedule(template="gpu_tensor", target=AMPERE)
        assert s.stages()[0].name == image


@emulated
def test_channels_first_is_read_along_rows_and_written_in_vectors():
    w = work(layout="NCHW", h=16, w=32, c=64, r=1, s=1, pad=0)
    s = w.schedule(template="gpu_tensor", target=AMPERE)
    got = emulate(s.emitted(), random_arguments(s.outputs, 0))
    assert all(t.units == t.ideal for t in got.traffic), got.traffic
    assert {t.width for t in got.traffic if t.what == "shared read"} == {16}
    assert {t.width for t in got.traffic if t.what == "global write"} == {2, 16}  # the turned filter, and results


VARIED = (
    {},
    dict(h=5, w=33, k=24),
    dict(r=1, s=1, pad=0, c=96),
    dict(stride=2, w=37),
    dict(groups=2, k=128, stride=2, dilation=2),
    dict(layout="NCHW"),
    dict(layout="NCHW", stride=2, w=33),
)


@emulated
@settings(max_examples=1, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(VARIED))
@example(4, {})  # filters of 5 x 5 have no room
def test_any_configuration(seed, changed):
    w = work(**changed)
    space = w.templates["gpu_tensor"].space_for(tir.Target.parse(AMPERE))
    config = space.config(seed % len(space.legal))
    assert w.schedule(config, "gpu_tensor", AMPERE).check("emulate"), config


@emulated
@pytest.mark.parametrize("changed", [{}, dict(stride=2), dict(groups=2, dilation=2)], ids=str)
def test_accesses_cost_what_their_bytes_need(changed):
    """Sixteen pixels from anywhere in a row of the image meet no bank conflict; nothing is read element by element."""
    w = work(h=16, w=20, c=64, **changed)  # the last tile of a row sticks out
    s = w.schedule(template="gpu_tensor", target=AMPERE)
    arrays = random_arguments(s.outputs, 0)
    got = emulate(s.emitted(), arrays)
    assert not got.problems
    assert np.array_equal(got.outputs[0], w.reference(*arrays))
    shared = [t for t in got.traffic if t.what.startswith("shared")]
    assert all(t.units == t.ideal for t in shared), shared
    assert {t.width for t in shared if t.what == "shared write"} == {16, 4}  # operands; pairs of results
    assert all(t.width == 16 for t in got.traffic if t.what != "shared write")
    assert all(t.units == t.ideal for t in got.traffic if t.what == "global write")


def written(w, config):
    """Sectors of global memory that are written, over the fewest, and whether the result is exact."""
    target = tir.Target.parse(AMPERE)
    space = w.templates["gpu_tensor"].space_for(target)
    s = w.schedule({**space.default, **config}, "gpu_tensor", target)
    arrays = random_arguments(s.outputs, 0)
    got = emulate(s.emitted(), arrays)
    assert not got.problems
    assert np.array_equal(got.outputs[0], w.reference(*arrays))
    shared = [t for t in got.traffic if t.what.startswith("shared")]
    assert all(t.units == t.ideal for t in shared), (config, shared)
    mine = [t for t in got.traffic if t.what == "global write"]
    return sum(t.units for t in mine) / sum(t.ideal for t in mine)


@emulated
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_results_leave_in_whole_sectors(layout):
    """A warp's fragments hold half of a sector in each row; by way of shared memory, whole ones leave. One, two and
    eight rows of pixels, by as many channels, are how NCHW permutes what is there.
    """
    w = work(h=8, w=16, r=1, s=1, pad=0, layout=layout)
    if layout == "NHWC":
        assert written(w, dict(staged=0)) == 2
        assert written(w, dict(staged=1)) == 1
        return
    for tile in (dict(wp=1, wk=2, rp=1), dict(wp=2, wk=1, rp=1, rk=64), dict(wp=4, wk=1, rp=2, rk=16)):
        assert written(w, {**tile, "staged": 1}) == 1


@emulated
@pytest.mark.parametrize(("op", "config"), [("data", {}), ("weight", dict(parts=1))])
def test_gradients_leave_in_whole_sectors(op, config):
    shape = dict(n=1, c=32, h=8, w=16, k=32, r=1, s=1, layout="NHWC", dtype="float16")
    assert written(getattr(tir.ops, f"conv2d_backward_{op}")(**shape), {**config, "staged": 1}) == 1


def test_what_passes_through_shared_memory():
    """Results of 16 bits whose rows are vectors, where it has room."""
    target = tir.Target.parse(AMPERE)

    def staged(operator=tir.ops.conv2d, **changed):
        options = {"n": 1, "c": 32, "h": 8, "w": 20, "k": 64, "pad": 1, "layout": "NHWC", "dtype": "float16", **changed}
        return operator(**options).templates["gpu_tensor"].space_for(target)

    def choices(space):
        return space.values[space.names.index("staged")]

    for fits in ({}, dict(k=20), dict(layout="NCHW"), dict(layout="NCHW", w=18), dict(stride=2)):
        assert staged(**fits).default["staged"] == 1
    for other in (dict(dtype="int8"), dict(k=21), dict(layout="NCHW", w=21)):
        assert choices(staged(**other)) == (0,)
    data, weight = tir.ops.conv2d_backward_data, tir.ops.conv2d_backward_weight
    assert staged(data).default["staged"] == 1
    assert choices(staged(data, stride=2)) == (0,)  # every second pixel of a tile is another block's
    assert choices(staged(weight)) == (1, 0)
    assert choices(staged(weight, layout="NCHW")) == (0,)  # a row of a filter holds its taps


@pytest.mark.parametrize("changed", [{}, dict(stride=2), dict(groups=2), dict(r=1, s=1, pad=0, stride=2),
                                     dict(layout="NCHW"), dict(layout="NCHW", stride=2)], ids=str)  # fmt: skip
def test_the_default_spills_nothing(changed):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    s = work(**{"n": 16, "c": 128, "h": 56, "w": 56, "k": 128, **changed}).schedule(
        template="gpu_tensor", target=AMPERE
    )
    assert compile_cubin(s.emitted().text, "sm_80").spills == 0
