"""Text that crashes or does not end is told by the emulator, and takes nothing else with it."""

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tensorir as tir
from tensorir.check import emulate as emulating
from tensorir.check.emulate import EndedError, emulate, run_isolated
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
        ("((void (*)())8)();", "emulate.crashed", "SIGSEGV, memory that belongs to nobody"),
        ("memcpy((void *)8, (void *)A, 4000000);", "memory.out-of-bounds", "of A, which has"),
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
        if "()" not in extra:  # that is nowhere
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
    monkeypatch.setattr(emulating, "MEMORY_BYTES", 64 << 20)
    assert "SIGILL" in s.check(level="emulate").problems[0].message


@pytest.mark.parametrize("call", ["tir_mma_m16n8k16_f16", "tir_ldmatrix_x4"])
@pytest.mark.parametrize("lanes", ["< 31", "> 0"])
def test_a_lane_that_leaves_out_an_instruction_of_its_warp(call, lanes):
    """The others are in this one when it comes to the next: what it brings there is no address and no register."""
    s = tir.ops.matmul(m=64, n=64, k=64, dtype="float16").schedule(template="gpu_tile_mma", target="cuda -arch=sm_80")
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


def test_what_a_text_prints_is_no_report(capfd):
    shown, _ = with_line(doubled(), 'if (threadIdx.x == 5) puts("done\\nended|SIGFPE"), fflush(0);')
    declared = 'extern "C" int puts(const char *), fflush(void *);\n'
    shown = shown.with_source(shown.source().replace('extern "C" __global__', declared + 'extern "C" __global__'))
    assert shown.check(level="emulate")
    assert "done" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("extra", "words"),
    [("__builtin_exit(0);", "exit status 0"), ("extern int nobody(); nobody();", "undefined symbol")],
)
def test_what_ends_with_no_signal_is_told(extra, words):
    problem = with_line(doubled(), extra)[0].check(level="emulate").problems[0]
    assert problem.code == "emulate.crashed" and words in problem.message


def test_nothing_stays_open(monkeypatch):
    """Nor do the arrays need files in memory."""
    good, (bad, _) = doubled(), with_line(doubled(), "*(volatile float *)0 = 1;")
    before = None
    for remove in (lambda: None, lambda: monkeypatch.delattr(os, "memfd_create", raising=False)):
        remove()
        assert good.check(level="emulate") and not bad.check(level="emulate")
        before = before or sorted(os.listdir("/proc/self/fd"))
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_threads_run_side_by_side():
    schedules = [doubled(), with_line(doubled(), "*(volatile float *)0 = 1;")[0]] * 4
    with ThreadPoolExecutor(4) as pool:
        assert [bool(v) for v in pool.map(lambda s: s.check(level="emulate"), schedules)] == [True, False] * 4


def says(script, seconds=10.0):
    return run_isolated(["sh", "-c", script], seconds)


def test_what_a_program_says():
    assert says("seq 100000; echo done") == [str(n) for n in range(1, 100_001)]
    with pytest.raises(EndedError) as ended:
        says("echo 'ended|SIGFPE|@12|3|4'")
    assert ended.value.args == ("SIGFPE", "@12", "3", "4")
    for script, words in (("kill -9 $$", "SIGKILL"), ("echo half; exit 3", "exit status 3"), ("", "exit status 0")):
        with pytest.raises(EndedError, match=words):
            says(script)
    with pytest.raises(EndedError, match="SIGXCPU"):
        says("exec sleep 100", 0.01)  # it does not move


def test_a_program_that_is_still_held_open(tmp_path):
    """As it was written; by a child of another thread that has begun meanwhile."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho done\n")
    program.chmod(0o700)
    with program.open("ab") as held:
        closing = threading.Timer(0.05, held.close)
        closing.start()
        assert run_isolated([str(program)], 10) == []
        closing.join()
