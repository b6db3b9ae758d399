"""conv2d by warpgroups: implicit GEMM whose operands are copied in tiles of the image and of the filter."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from emulating import emulated_rightly, small_integers
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.ops import conv2d

HOPPER = "cuda -arch=sm_90a -units=3"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
TILES = dict(groups=2, wide=16, bk=64, depth=3, resident=1)


def work(c=64, k=64, **given):
    return conv2d(
        **{**dict(n=1, h=11, w=18, r=3, s=3, pad=1, dtype="bfloat16", layout="NHWC"), **given, "c": c, "k": k}
    )


CASES = {
    "1x1": dict(r=1, s=1, pad=0),
    "3x3": dict(h=12),
    "many images, few pixels": dict(n=3, h=7, w=7),
    "wide filter, channels of no whole tile": dict(r=5, s=3, pad=2, c=72, k=72),
    "epilogue": dict(bias=True, act="relu", residual=True),
    "halves": dict(dtype="float16", dilation=2, pad=2),
    "bytes": dict(dtype="int8", c=48, k=80),
    "taller than wide": dict(r=3, s=1, pad=0, c=128),
    "3x3, stride 2": dict(stride=2, h=23, w=37),
    "1x1, stride 2": dict(r=1, s=1, pad=0, stride=2, h=14, w=14, c=128),
    "7x7, stride 2": dict(r=7, s=7, pad=3, stride=2, h=19, w=30, c=8),
    "stride 3, dilated": dict(stride=3, dilation=2, pad=2, h=26, w=31, c=72),
    "stride beyond the filter": dict(r=2, s=2, pad=1, stride=5, h=33, w=44, dtype="float16"),
    "bytes, stride 2": dict(dtype="int8", c=48, k=80, stride=2, h=20),
    "the longest step": dict(stride=8, h=50, w=130, n=2),
    "groups": dict(groups=2, c=128, k=128, n=2, bias=True, residual=True),
    "groups, stride 2": dict(groups=3, c=192, k=288, stride=2, h=20, dtype="float16"),
    "groups of pixels alone": dict(groups=2, c=256, k=64, r=1, s=1, pad=0, dtype="int8"),
    "tf32": dict(dtype="float32", precision="tf32", c=40, n=2, h=7, w=9),
    "tf32, stride 2": dict(dtype="float32", precision="tf32", c=64, n=2, h=17, w=9, stride=2, bias=True),
    "8-bit floats": dict(dtype="float8_e4m3", c=160, k=80, bias=True, residual=True),
    "8-bit floats, stride 2": dict(dtype="float8_e5m2", c=48, stride=2, h=20),
}


@emulated
@pytest.mark.parametrize("case", CASES)
def test_default_multiplies(case):
    w = work(**CASES[case])
    s = w.schedule(target=HOPPER)
    assert "tir_wgmma_m64" in s.source(), "the default template"
    assert emulated_rightly(w, s)


@emulated
@settings(max_examples=8, deadline=None)
@drawn(
    st.integers(1, 3), st.integers(3, 20), st.integers(3, 40), st.integers(1, 10), st.integers(1, 12),
    st.sampled_from([8, 16, 32, 64]), st.integers(1, 3), st.integers(2, 4), st.booleans(), st.integers(0, 3),
)  # fmt: skip
def test_any_shape(n, h, w, c, k, wide, groups, depth, resident, seed):
    made = work(n=n, h=h, w=w, c=8 * c, k=8 * k)
    config = dict(groups=groups, wide=wide, bk=64, depth=depth, resident=int(resident))
    assert emulated_rightly(made, made.schedule(config, "gpu_hopper", HOPPER), seed)


@emulated
@settings(max_examples=10, deadline=None)
@drawn(
    st.sampled_from([2, 2, 3, 4]), st.integers(1, 4), st.integers(1, 4), st.integers(0, 4), st.integers(1, 3),
    st.integers(10, 40), st.integers(10, 60), st.integers(1, 10), st.sampled_from([8, 16, 32, 64]), st.integers(1, 3),
    st.sampled_from([1, 1, 2, 3]), st.integers(0, 3),
)  # fmt: skip
def test_any_stride(stride, r, s, pad, dilation, h, w, c, wide, groups, parts, seed):
    channels = dict(c=8 * c) if parts == 1 else dict(c=64 * parts, k=64 * parts, groups=parts)
    made = work(r=r, s=s, stride=stride, pad=pad, dilation=dilation, h=h, w=w, **channels)
    config = dict(groups=groups, wide=wide, bk=64, depth=2, resident=1)
    assert emulated_rightly(made, made.schedule(config, "gpu_hopper", HOPPER), seed)


def test_a_stride_is_a_step_of_the_copies():
    """One copy a tile: the tap's own rows and columns are its corner."""
    source = work(stride=2, h=23, w=37).schedule(TILES, "gpu_hopper", HOPPER).emitted()
    (x,) = [m for m in source.kernels[0].maps if m.array == "x"]
    assert (x.box, x.steps, x.swizzle) == ((1, 16, 32, 64), (1, 2, 2, 1), 128)
    assert source.text.count("tir_tma_load(") == 3, "its definition, the image's, the filter's"
    assert {m.steps for m in source.kernels[0].maps if m is not x} == {()}


def test_tiles_of_the_space_are_within_reach_of_a_copy():
    target = tir.Target.parse(HOPPER)
    for stride, widest in ((1, 64), (2, 64), (4, 64), (5, 32), (8, 32)):
        space = work(stride=stride, h=200, w=200).templates["gpu_hopper"].space_for(target)
        assert max(c["wide"] for c in map(space.config, range(len(space.legal)))) == widest
        assert space.index(space.default) >= 0


def test_strided_shapes_begin_with_tiles_for_the_whole_device():
    """Few pixels: smaller tiles, so that no more than a few multiprocessors are idle; many: large ones."""
    device = tir.Target.parse("cuda -arch=sm_90a -units=132")
    few = work(n=16, h=14, w=14, c=512, k=512, stride=2)
    many = work(n=64, h=112, w=112, c=128, k=256, stride=2)
    for made, bk, groups in ((few, 64, 1), (many, 256, 2)):
        default = made.templates["gpu_hopper"].space_for(device).default
        assert (default["bk"], default["groups"]) == (bk, groups)
    blocks = few.schedule(target=device).emitted().kernels[0].grid[0]
    assert 100 < blocks <= 132


@emulated
@pytest.mark.parametrize("steps", [(1, 1, 1, 1), (1, 2, 1, 1), (1, 3, 2, 1)])
def test_another_step_is_found(steps):
    w = work(stride=2, h=23, w=37)
    s = w.schedule(TILES, "gpu_hopper", HOPPER)
    source = s.emitted()
    arrays = small_integers(source)
    (kernel,) = source.kernels
    box = tuple(n // before * now for n, before, now in zip((1, 16, 32, 64), (1, 2, 2, 1), steps, strict=True))
    maps = tuple(replace(m, box=box, steps=steps) if m.steps else m for m in kernel.maps)
    got = emulate(replace(source, kernels=(replace(kernel, maps=maps),)), arrays)
    assert got.problems or not np.array_equal(got.outputs[0], w.reference(*arrays).astype(got.outputs[0].dtype))


def test_strided_schedules_are_proved():
    s = work(h=17, w=20, stride=2, c=72).schedule({**TILES, "wide": 32, "depth": 2}, "gpu_hopper", HOPPER)
    assert compare(s, Field(), 1) is None


def test_schedules_are_proved():
    """With several tiles of channels, shapes are tried in which one has nothing but padding, and rows that go on."""
    s = work(h=9, w=12, k=128).schedule({**TILES, "wide": 32}, "gpu_hopper", HOPPER)
    assert "tir_stmatrix_x4(" in s.source()
    verdict = s.check()
    assert verdict, verdict


def test_what_does_not_fit_is_left_to_others():
    for given in (
        dict(stride=9),
        dict(layout="NCHW"),
        dict(groups=2),
        dict(c=128, k=96, groups=2),
        dict(c=12),
        dict(dtype="float32"),
    ):
        assert "gpu_hopper" not in work(**given).templates, given


def test_products_of_three_warpgroups_have_the_registers_that_threads_have_at_launch():
    space = work(c=64, k=256).templates["gpu_hopper"].space_for(tir.Target.parse("cuda -arch=sm_90a"))
    configs = [space.config(row) for row in range(len(space.legal))]
    assert {g: max(c["bk"] for c in configs if c["groups"] == g) for g in (2, 3)} == {2: 256, 3: 192}


def test_compiles():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    for given in (
        dict(h=56, w=56),
        dict(h=14, w=14, c=256, k=256),
        dict(h=56, w=56, c=128, k=128, stride=2),
        dict(h=28, w=28, c=128, k=128, dtype="float8_e4m3"),
    ):
        s = work(**given).schedule(target="cuda -arch=sm_90a")
        cubin = compile_cubin(s.source(), "sm_90a")
        assert cubin.spills == 0
        assert "C75" not in cubin.log


def test_other_intrinsics_of_pixels_are_unknown():
    s = tir.Schedule(work().outputs, target="cuda -arch=sm_90a")
    for name in ("wgmma.m3x16n64k16.bf16.nt", "wgmma.m16x4n64k16.bf16.nt", "wgmma.m4x16n64k16.bf16.nn"):
        with pytest.raises(tir.ScheduleError) as e:
            s.tensorize("y.p", name)
        assert e.value.problems[0].code == "tensorize.unknown"
