"""A compilation ends: its time has a limit, after which none of its processes is left."""

import subprocess
import sys
import time

import numpy as np
import pytest

import tensorir as tir
from tensorir.automatic import plan
from tensorir.errors import CompileError
from tensorir.runtime import compile_limit as limits


def doubled(target):
    x = tir.placeholder((8,), name="x")
    return tir.Schedule(tir.compute((8,), lambda i: x[i] * 2.0, name="y"), target)


def test_a_compiler_and_what_it_started_are_ended(tmp_path):
    script = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]])"
    )
    mark = f"child-of-{tmp_path.name}-{time.time_ns()}"
    with limits.compile_limit(0.5), pytest.raises(CompileError, match=r"compiled for 0\.5 s") as caught:
        limits.run_limited([sys.executable, "-c", script, mark], tmp_path, "kernel", 123)
    assert caught.value.code == "compile.time-limit" and "limit_s=2" in str(caught.value)
    left = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
    assert not [x for x in left.splitlines() if mark in x and not x.startswith("Z")]


def test_limits_are_those_of_the_caller(tmp_path):
    with limits.compile_limit(1e-4), limits.compile_limit(None), pytest.raises(CompileError):
        limits.run_limited([sys.executable, "-c", "input()"], tmp_path, "kernel", 1)
    status, said = limits.run_limited([sys.executable, "-c", "import sys; sys.exit('no')"], tmp_path, "kernel", 1)
    assert (status, said) == (1, "no\n")


@pytest.mark.parametrize("target", ["opencl", "c"])
def test_builds_take_a_limit(target, monkeypatch):
    monkeypatch.setattr(limits, "LONG_TEXT", 0)
    s = doubled(target)
    with pytest.raises(CompileError) as caught:
        s.build(limit_s=1e-4)
    assert caught.value.code == "compile.time-limit"
    f = s.build()
    assert np.array_equal(f(np.arange(8, dtype="float32")), np.arange(8) * 2)


def test_a_start_that_is_too_long_gives_way(monkeypatch):
    x = tir.placeholder((40, 70), name="x")
    y = tir.compute((32, 64), lambda i, j: sum(x[i + p, j + q] * x[i + q, j + p] for p in range(5) for q in range(5)),
                    name="y")  # fmt: skip
    short = len(tir.auto_schedule(y, "c").source())
    monkeypatch.setattr(plan, "MAX_NODES", 100)
    made = tir.auto_schedule(y, "c")
    assert len(made.source()) < short and made.check()
    told = [r for r in plan.default_plan([y], made.target).refused if r.problem.code == "compile.time-limit"]
    assert told and "nodes" in str(told[0])
