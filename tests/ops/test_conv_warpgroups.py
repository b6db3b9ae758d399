"""conv2d by warpgroups: implicit GEMM whose operands are copied in tiles of the image and of the filter."""

from __future__ import annotations

import shutil

import pytest
from emulating import emulated_rightly
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import tensorir as tir
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


def test_schedules_are_proved():
    """With several tiles of channels, shapes are tried in which one has nothing but padding, and rows that go on."""
    s = work(h=9, w=12, k=128).schedule({**TILES, "wide": 32}, "gpu_hopper", HOPPER)
    assert "tir_stmatrix_x4(" in s.source()
    verdict = s.check()
    assert verdict, verdict


def test_what_does_not_fit_is_left_to_others():
    for given in (dict(stride=2), dict(layout="NCHW"), dict(groups=2), dict(c=12), dict(dtype="float32")):
        assert "gpu_hopper" not in work(**given).templates, given


def test_compiles():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    for given in (dict(h=56, w=56), dict(h=14, w=14, c=256, k=256)):
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
