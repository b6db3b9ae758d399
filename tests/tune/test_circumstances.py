"""A failure keeps the limits under which it happened, and what may have been due to them is measured again."""

import errno
import os

import pytest
from records import ME, made
from searching import search

from tensorir.api.candidate import failure
from tensorir.errors import CompileError, Problem
from tensorir.tune.circumstances import Limits, environment, open_again
from tensorir.tune.log import LogReader, LogWriter, choose, usable
from tensorir.tune.space import Space

SPACE = Space(x=range(4), default={"x": 0})


def failed(status, limits=None, **detail):
    return ME.record("trial", "default", {"tile": 4}, {"status": status, "detail": detail or None, "limits": limits})


FAST = {"compile_s": 0.001, "run_s": 0.001, "memory_bytes": 1 << 30}


@pytest.mark.parametrize(
    ("record", "now", "again"),
    [
        (failed("compile_timeout", FAST), Limits(), True),
        (failed("compile_timeout", FAST), Limits(compile_s=0.001), False),
        (failed("compile_timeout", {"compile_s": 60.0}), Limits(run_s=100.0), False),
        (failed("compile_timeout"), Limits(), False),
        (failed("run_timeout", FAST), Limits(), True),
        (failed("run_timeout", FAST), Limits(run_s=0.0005), False),
        (failed("resource_limit", FAST, limit="host memory"), Limits(memory_bytes=2 << 30), True),
        (failed("resource_limit", FAST, limit="host memory"), Limits(memory_bytes=1 << 30), False),
        (failed("resource_limit", FAST, limit="host memory"), Limits(memory_bytes=None), False),
        (failed("resource_limit", FAST, limit="smem"), Limits(), False),
        (failed("resource_limit", FAST, limit="memory"), Limits(), True),
        (failed("crashed", FAST, signal="SIGKILL"), Limits(), True),
        (failed("crashed", FAST, signal="SIGSEGV"), Limits(), False),
        (failed("crashed", FAST, phase="executor"), Limits(), True),
        (failed("wrong_result", FAST), Limits(compile_s=600.0), False),
        (failed("internal_error"), Limits(), True),
        (failed("compile_timeout", {"compile_s": "long"}), Limits(), False),
    ],
)
def test_what_may_be_due_to_limits_is_open_again(record, now, again):
    assert open_again(record, now) is again
    assert usable([record], ME, now) == ([] if again else [record])
    assert usable([record], ME, now, own={record.id}) == [record]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM, errno.EMFILE])
def test_a_compiler_without_room_says_nothing_about_the_configuration(number):
    words = os.strerror(number)
    text = f"error: unable to open output file 'a.o': '{words}'"
    for error in (
        CompileError(Problem("compile.failed", text)),
        CompileError(Problem("compile.failed", "x"), log=text),
    ):
        outcome = failure(error, "compile")
        assert outcome.status == "internal_error" and outcome.told["environment"] == words
    assert not environment("error: use of undeclared identifier 'i'")
    assert failure(CompileError(Problem("compile.failed", "undeclared")), "compile").status == "compile_error"


def run(log, **options):
    """A search whose configurations need 5 s to compile."""
    calls = []

    def measure(template, config, kind, left):
        calls.append(config["x"])
        if options.get("compile_timeout", 60.0) < 5.0:
            return {"status": "compile_timeout", "detail": {"phase": "compile"}}
        return {"status": "ok", "time_s": 1e-3, "samples": [1e-3], "check": {"ok": True}, "source_sha256": "ab" * 32}

    reuse = list(LogReader(log).records())
    with LogWriter(log, ME.workload) as writer:
        outcome = search("grid", {"default": SPACE}, measure, log=writer, identity=ME, reuse=reuse, trials=3, **options)
    return outcome, calls


def test_a_search_with_short_limits_does_not_poison_the_next(tmp_path):
    short, calls = run(tmp_path, compile_timeout=0.001)
    assert short.status == "no_valid_config" and len(calls) == 3
    assert {r.limits["compile_s"] for r in short.records} == {0.001}
    again, calls = run(tmp_path, compile_timeout=0.001)
    assert calls == [] and again.reused == 3, "the same limits: what failed under them is known"
    longer, calls = run(tmp_path)
    assert longer.status == "ok" and len(calls) == 3 and longer.reused == 0
    assert run(tmp_path, compile_timeout=0.001)[0].status == "ok", "a success counts whatever the limits are"


def test_a_final_round_with_short_limits_does_not_take_a_choice_away():
    trial = made(4)
    late = ME.record("final", "default", {"tile": 4}, {"status": "run_timeout", "of": trial.id, "limits": FAST})
    hung = ME.record(
        "final", "default", {"tile": 4}, {"status": "run_timeout", "of": trial.id, "limits": {"run_s": 10.0}}
    )
    assert choose([trial, late]) and not choose([trial, hung])
