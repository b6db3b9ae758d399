"""Text of the user's own runs in another process until it has passed: this one survives whatever it does."""

import os
import subprocess
import sys

import numpy as np
import pytest

import tensorir as tir
from tensorir.api import unproven
from tensorir.intrin import intrin
from tensorir.intrin.intrin import Intrin, meaning, register
from tensorir.runtime.device import devices
from tensorir.tune.process import Worker

pytestmark = [
    pytest.mark.usefixtures("unoptimised"),
    pytest.mark.skipif(
        not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
    ),
]
X = np.arange(64, dtype=np.float32)
NULL = "*(volatile __global float *)0 = 1.0f;"
SPIN = "for (volatile int z = 0; z == 0;);"


@pytest.fixture(autouse=True)
def nothing_has_passed(monkeypatch, tmp_path):
    """A cache of its own: what a test runs has passed nowhere."""
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(unproven, "_passed", set())


@pytest.fixture
def requests(monkeypatch):
    """What the other process is asked."""
    asked, real = [], Worker.request

    def request(self, message, *more, **options):
        asked.append(message)
        return real(self, message, *more, **options)

    monkeypatch.setattr(Worker, "request", request)
    return asked


def doubled(factor=2):
    A = tir.placeholder((64,), name="A")
    s = tir.Schedule(tir.compute((64,), lambda i: A[i] * factor, name="B"))
    outer, inner = s["B"].split("i", [None, 32])
    s.bind(outer, "block.x")
    s.bind(inner, "thread.x")
    return s


def with_line(extra):
    s = doubled()
    text = s.source()
    store = next(line for line in text.splitlines() if "B[" in line and "=" in line)
    return s.with_source(text.replace(store, f"  {extra}\n{store}"))


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (NULL, "launch.crashed", "SIGSEGV, memory that belongs to nobody"),
        ("B[1ul << 30] = 1.0f;", "launch.crashed", "the process in which the text ran"),  # 4 GB away
        ("__builtin_trap();", "launch.crashed", "SIGILL"),
        ("volatile float big[5000000000ul]; big[get_global_id(0) * 9999999] = B[0];", "launch.crashed", "SIG"),  # 20 GB
        ("__local volatile float big[1ul << 32]; big[get_global_id(0) * 99999] = 1.0f;", "launch.crashed", "SIG"),
        (SPIN, "launch.time-limit", "the text ran for 1 s"),
        ("B[64] = 1.0f;", "launch.out-of-bounds", "byte 256"),
        ("((__global float *)A)[3] = 1.0f;", "launch.input-written", "element (3,)"),
        ("no such thing;", "compile.opencl", "undeclared"),
    ],
)
def test_what_is_wrong_is_told(extra, code, words):
    bad = with_line(extra)
    verdict = bad.check(level="device", limit_s=1)
    assert not verdict and verdict.problems[0].code == code and words in verdict.problems[0].message
    with pytest.raises(tir.TensorIRError) as caught:
        bad.build(limit_s=1)(X)
    assert caught.value.code == code and words in str(caught.value) and len(str(caught.value).splitlines()) <= 12


def test_what_has_passed_runs_here(requests):
    good = with_line("volatile int q = 7;")
    assert good.check(level="device") and len(requests) == 1
    assert good.check(level="device", seed=1) and np.array_equal(good.build()(X), 2 * X)
    assert len(requests) == 1, "it has passed"
    again = with_line("volatile int q = 8;").build()
    assert len(requests) == 2 and np.array_equal(again(X), 2 * X)


def test_another_process_need_not_try_again(requests, tmp_path, monkeypatch):
    with_line("volatile int q = 7;").build()
    monkeypatch.setattr(unproven, "_passed", set())
    with_line("volatile int q = 7;").build()
    assert len(requests) == 1, "the cache says so"
    with_line("volatile int q = 8;").build()
    assert len(requests) == 2


def test_emitted_text_has_nothing_to_prove(requests):
    s = doubled()
    assert s.check(level="device") and np.array_equal(s.build()(X), 2 * X)
    assert np.array_equal(s.with_source(s.source()).build()(X), 2 * X)
    assert not requests


def test_a_wrong_result_is_not_harmful():
    wrong = doubled()
    wrong = wrong.with_source(wrong.source().replace("2.0f", "3.0f"))
    assert wrong.check(level="device").problems[0].code == "check.wrong-result"
    assert np.array_equal(wrong.build()(X), 3 * X)


def test_instructions_of_the_users_own(requests, monkeypatch):
    monkeypatch.setattr(intrin, "OWN", set())
    a = tir.placeholder((4,), name="a")
    c = tir.compute((4,), lambda n: a[n] * 2, name="c")
    text = "for (int n = 0; n < 4; n++) ({c})[n] = ({a})[n] * 2.0f;"
    for name, emit in (("test.good", text), ("test.null", text + NULL)):
        register(Intrin(name, meaning(c), {"opencl": emit}, "none"))
    monkeypatch.setitem(intrin.INTRINSICS, "test.good", intrin.INTRINSICS["test.good"])
    monkeypatch.setitem(intrin.INTRINSICS, "test.null", intrin.INTRINSICS["test.null"])
    for name in ("test.good", "test.null"):
        s = tir.Schedule(doubled().outputs)
        s.split("B.i", [None, 4])
        s.tensorize("B.i.1", name)
        if name == "test.good":
            assert np.array_equal(s.build()(X), 2 * X) and len(requests) == 1
        else:
            with pytest.raises(tir.TensorIRError) as caught:
                s.build()
            assert caught.value.code == "launch.crashed"


def test_a_crash_where_others_have_been_is_tried_alone(requests, monkeypatch):
    assert with_line("volatile int q = 7;").check(level="device")
    (worker,) = [w for pid, w in unproven._workers.items() if pid == os.getpid()]
    before = worker.starts
    assert with_line(NULL).check(level="device").problems[0].code == "launch.crashed"
    assert len(requests) == 3 and worker.starts == before + 1
    assert with_line("volatile int q = 9;").check(level="device"), "the next one is well"


@pytest.mark.parametrize("status", ["internal_error", "resource_limit"])
def test_a_process_that_fails_by_itself(monkeypatch, status):
    reply = {"status": status, "detail": {"phase": "run", "message": "no room", "limit": "host memory"}}
    monkeypatch.setattr(Worker, "request", lambda self, *more, **options: dict(reply))
    verdict = with_line("volatile int q = 7;").check(level="device")
    problem = verdict.problems[0]
    assert (problem.code, "no room" in problem.message) == (
        ("check.not-run", True) if status == "internal_error" else ("launch.crashed", False)
    )


def test_a_fork_has_a_process_of_its_own(tmp_path):
    code = """
import os
import tensorir as tir
from tensorir.api import unproven
def check(line):
    A = tir.placeholder((64,), name="A")
    s = tir.Schedule(tir.compute((64,), lambda i: A[i] * 2, name="B"))
    return s.with_source(s.source().replace("{", "{ " + line, 1)).check(level="device")
mine = unproven._workers[os.getpid()] = unproven.Worker(unproven.WORKER_MODULE)
mine.start()
if os.fork() == 0:
    told = check("*(volatile __global float *)0 = 1.0f;").problems[0].code
    unproven._workers[os.getpid()].close()
    os._exit(0 if told == "launch.crashed" else 1)
assert os.wait()[1] == 0
assert check("volatile int q = 7;") and mine.starts == 1
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TENSORIR_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stderr
