"""Text that crashes or does not end is told by the emulator, and takes nothing else with it."""

import os
import re
import signal
import time

import numpy as np
import pytest

import tensorir as tir
from tensorir.check import emulate as emulating
from tensorir.check.apart import EndedError, apart
from tensorir.check.emulate import emulate
from tensorir.codegen.source import KernelLaunch, Param, Source

SPIN = "for (volatile int z = 0; z == 0;);"


def doubled():
    A = tir.placeholder((64,), name="A")
    s = tir.Schedule(tir.compute((64,), lambda i: A[i] * 2, name="B"), target="cuda")
    outer, inner = s["B"].split("i", [None, 32])
    s.bind(outer, "block.x")
    s.bind(inner, "thread.x")
    return s


def with_line(s, extra):
    text = s.source()
    store = next(line for line in text.splitlines() if "B[" in line and "=" in line)
    return s.with_source(text.replace(store, f"  {extra}\n{store}")), text[: text.index(store)].count("\n") + 1


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (
            "volatile int q = 1000 / (int)(threadIdx.x - threadIdx.x);",
            "emulate.crashed",
            "SIGFPE, a whole number divided",
        ),
        ("memcpy((void *)8, (void *)B, 4000000);", "emulate.crashed", "SIGSEGV, memory that belongs to nobody"),
        ("if (threadIdx.x == 5) __builtin_trap();", "emulate.crashed", "SIGILL, a trap"),
        ("*(volatile float *)0 = 1;", "memory.out-of-bounds", "belongs to no array"),
        ("B[1000000000] = 1;", "memory.out-of-bounds", "belongs to no array"),
        (SPIN, "emulate.time", "not at its end after 1 s of processor time"),
    ],
)
def test_what_ends_is_told(monkeypatch, extra, code, words):
    monkeypatch.setattr("tensorir.check.verdict._emulated_s", lambda outputs: 1.0)
    bad, line = with_line(doubled(), extra)
    problem = bad.check(level="emulate").problems[0]
    assert problem.code == code and words in problem.message
    if code != "memory.out-of-bounds":
        assert re.search(r"thread \d+ of block 0", problem.message)
        if "memcpy" not in extra:  # that is in another library
            assert f"line {line} of the text" in problem.message
    assert doubled().check(level="emulate"), "and this process can go on"


def test_the_limit_is_the_callers():
    bad, _ = with_line(doubled(), SPIN)
    assert "not at its end after 1 s" in bad.check(level="emulate", limit_s=1).problems[0].message


def test_the_limit_grows_with_the_definition():
    from tensorir.check.verdict import _emulated_s

    assert _emulated_s(doubled().outputs) == 60 + 5e-6 * 64
    assert _emulated_s(tir.ops.matmul(m=64, n=64, k=64).outputs) == 60 + 5e-6 * 64 * 64 * 65


def test_memory_beyond_the_limit_is_refused_to_the_text(monkeypatch):
    s, _ = with_line(doubled(), "char *volatile p = (char *)malloc(1 << 30); if (!p) __builtin_trap(); free(p);")
    assert s.check(level="emulate")
    monkeypatch.setattr(emulating, "BYTES", 64 << 20)
    assert "SIGILL" in s.check(level="emulate").problems[0].message


@pytest.mark.parametrize("call", ["tir_mma_m16n8k16_f16", "tir_ldmatrix_x4"])
@pytest.mark.parametrize("lanes", ["< 31", "> 0"])
def test_a_lane_that_leaves_out_an_instruction_of_its_warp(call, lanes):
    """The others are in this one when it comes to the next: what it brings there is no address and no register."""
    s = tir.ops.matmul(m=64, n=64, k=64, dtype="float16").schedule(template="gpu_tensor", target="cuda -arch=sm_80")
    text, found = re.subn(rf"^(\s+){call}\(", rf"\1if (threadIdx.x % 32 {lanes}) {call}(", s.source(), flags=re.M)
    assert found
    codes = {p.code for p in s.with_source(text).check(level="emulate").problems}
    assert "warp.divergent" in codes and "emulate.crashed" not in codes


@pytest.mark.parametrize(
    "body",
    [
        "if (lane < 31) x = __shfl_sync(~0u, x, 3); else __syncwarp();",
        "if (lane < 31) __syncwarp(); else x = __shfl_sync(~0u, x, 3);",
    ],
)
def test_lanes_at_different_instructions(body):
    text = f"""extern "C" __global__ void __launch_bounds__(32)
k(const float *__restrict__ A, float *__restrict__ B)
{{
  const int lane = threadIdx.x;
  float x = A[lane];
  {body}
  B[lane] = x;
}}
"""
    params = (Param("A", "float32", (32,), "input"), Param("B", "float32", (32,), "output"))
    source = Source("k", "cuda", text, params, (KernelLaunch("k", ("A", "B"), (1, 1, 1), (32, 1, 1)),))
    run = emulate(source, [np.arange(32, dtype=np.float32)])
    assert "different instructions of a warp" in str(run.problems)


def test_what_a_fork_says():
    parent = os.getpid()
    assert apart(lambda pipe: [os.getpid() != parent, "ä" * 100_000], 10, 1 << 30) == [True, "ä" * 100_000]
    assert apart(lambda pipe: os.write(pipe, b"7") and os.kill(os.getpid(), signal.SIGKILL), 10, 1 << 30) == 7
    with pytest.raises(EndedError, match="SIGKILL"):
        apart(lambda pipe: os.kill(os.getpid(), signal.SIGKILL), 10, 1 << 30)
    with pytest.raises(EndedError, match="ZeroDivisionError"):
        apart(lambda pipe: 1 // 0, 10, 1 << 30)
    with pytest.raises(EndedError, match="SIGXCPU"):
        apart(lambda pipe: time.sleep(100), 0.01, 1 << 30)  # it does not move
