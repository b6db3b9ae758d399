"""A convolution by warpgroups whose tiles are boxes of an image, every second pixel of it: a schedule by hand."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from cuda_boxes import in_boxes
from emulating import emulated_rightly, small_integers

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.intrin.cuda import MULTIPLICATIONS

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def work():
    return tir.ops.conv2d(n=1, c=64, h=23, w=37, k=64, pad=1, stride=2, dtype="bfloat16", layout="NHWC")


def boxes(made):
    return in_boxes(made, MULTIPLICATIONS["bf16"], "cuda -arch=sm_90a", groups=2, wide=16, depth=3)


def test_a_stride_is_a_step_of_the_copies():
    """One copy a tile: the tap's own rows and columns are its corner."""
    source = boxes(work()).emitted()
    (x,) = [m for m in source.kernels[0].maps if m.array == "x"]
    assert (x.box, x.steps, x.swizzle) == ((1, 16, 32, 64), (1, 2, 2, 1), 128)
    assert source.text.count("tir_tma_load(") == 3, "its definition, the image's, the filter's"
    assert {m.steps for m in source.kernels[0].maps if m is not x} == {()}


@emulated
def test_boxes_are_right():
    made = work()
    s = boxes(made)
    assert emulated_rightly(made, s) and s.check()


@emulated
@pytest.mark.parametrize("steps", [(1, 1, 1, 1), (1, 3, 2, 1)])
def test_another_step_is_found(steps):
    made = work()
    source = boxes(made).emitted()
    arrays = small_integers(source)
    (kernel,) = source.kernels
    box = tuple(n // before * now for n, before, now in zip((1, 16, 32, 64), (1, 2, 2, 1), steps, strict=True))
    maps = tuple(replace(m, box=box, steps=steps) if m.steps else m for m in kernel.maps)
    got = emulate(replace(source, kernels=(replace(kernel, maps=maps),)), arrays)
    assert got.problems or not np.array_equal(got.outputs[0], made.reference(*arrays).astype(got.outputs[0].dtype))


def test_other_intrinsics_of_pixels_are_unknown():
    s = tir.Schedule(work().outputs, target="cuda -arch=sm_90a")
    for name in ("wgmma.m3x16n64k16.bf16.nt", "wgmma.m16x4n64k16.bf16.nt", "wgmma.m4x16n64k16.bf16.nn"):
        with pytest.raises(tir.ScheduleError) as e:
            s.tensorize("y.p", name)
        assert e.value.problems[0].code == "tensorize.unknown"
