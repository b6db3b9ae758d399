"""HIP: CUDA C++ under other headers. Its text runs in the emulator; nothing here has an AMD device."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.ops import conv2d, matmul

WORKLOADS = {
    "matmul": lambda: matmul(m=70, n=45, k=33),
    "matmul in halves": lambda: matmul(m=64, n=40, k=24, dtype="float16", tb=True, bias=True, act="relu"),
    "conv2d": lambda: conv2d(n=1, c=8, h=14, w=14, k=16, r=3, s=3, pad=1),
}


def test_text(golden):
    golden(matmul(m=64, n=64, k=32).schedule(target="hip").source(), "codegen/matmul.hip")


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", WORKLOADS)
def test_text_computes(name):
    work = WORKLOADS[name]()
    source = work.schedule(target="hip -arch=gfx1100").emitted()
    assert source.text.count("#include <hip/") >= 1
    assert "cuda" not in source.text
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, p.shape).astype(p.dtype) for p in source.inputs]
    got = emulate(source, arrays)
    assert not got.problems
    assert np.array_equal(got.outputs[0], work.reference(*arrays).astype(got.outputs[0].dtype))


@pytest.mark.skipif(shutil.which("hipcc") is None, reason="needs hipcc")
@pytest.mark.parametrize("name", WORKLOADS)
def test_text_compiles(name, tmp_path):
    (tmp_path / "k.hip").write_text(WORKLOADS[name]().schedule(target="hip").source())
    subprocess.run(["hipcc", "--offload-arch=gfx90a", "-c", "k.hip", "-o", "k.o"], cwd=tmp_path, check=True)


def test_targets():
    assert tir.target.Target.parse("hip").warp == 64
    assert tir.target.Target.parse("hip -arch=gfx1100").warp == 32
    for text in ("hip:0", "hip -kind=cpu", "hip -arch=sm_80"):
        with pytest.raises(tir.DeclarationError) as e:
            tir.target.Target.parse(text)
        assert e.value.problems[0].code == "target.unknown"
    s = matmul(m=64, n=64, k=32).schedule(target="hip")
    with pytest.raises(tir.DeviceError) as e:
        s.build()
    assert e.value.problems[0].code == "device.not-found"
    with pytest.raises(tir.ScheduleError):
        tir.Schedule(s.outputs, target="hip").bind("c.i", "warp.x")
