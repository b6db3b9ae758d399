"""benchmarks/tuner/honest.py: what it reads from the commands' output, and what it makes of it. Nothing is measured."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tensorir.tune.progress import Progress, line
from tensorir.tune.record import RunIdentity

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tuner" / "honest.py"


@pytest.fixture(scope="module")
def honest():
    spec = importlib.util.spec_from_file_location("honest_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def printed(busy=0.0, flops=1e9, **peer):
    state = Progress(flops=flops, budget_s=60)
    state.hear({"name": "numpy im2col", "time_s": 2e-3, "low_s": 1.9e-3, "high_s": 2.1e-3, "spread": 1.2, **peer})
    load = {"seconds": 1.0, "others": busy, "stolen": 0.0, "cores": 2}
    me = RunIdentity("matmul", "d1g357", {"name": "cpu", "driver": "1"}, {})
    state.add(me.record("trial", "t", {}, {"status": "ok", "time_s": 1e-3, "samples": [1e-3] * 6, "load": load}))
    return line(state, 1)


def test_live_lines_are_read_as_they_are_printed(honest):
    texts = [printed(), printed(busy=1.5), printed(low_s=1e-4, spread=50.0), printed(flops=None), "baseline numpy 2 ms"]
    found = honest.said("\n".join(["space 1,000 configurations", *texts]))
    assert [(r["of"], r["ratio"], r["steady"]) for r in found] == [
        ("numpy im2col", 2.0, True),
        ("numpy im2col", 2.0, False),
        ("numpy im2col", None, False),
        ("numpy im2col", 2.0, True),
    ]
    assert {r["time_s"] for r in found} == {1e-3}


def test_only_what_was_printed_unmarked_is_contradicted(honest):
    def row(ratio, steady=True, **more):
        return {"of": "numpy", "ratio": ratio, "steady": steady, **more}

    rows = [row(2.0), row(3.1), row(1.3), row(9.0, steady=False), row(None, steady=False), row(1.0, time_s=2e-3)]
    run = {"ratios": [*rows, {**row(50.0), "of": "torch"}], "true": {"numpy": 2.0}, "time_s": 1e-3}
    assert [r["ratio"] for r in honest.contradicted(run)] == [3.1, 1.3], "a live best that was half as fast is no lie"
    assert honest.contradicted({"ratios": rows, "time_s": 1e-3}) == [], "not timed at rest yet"
    other = {"machine_is": "busy", "status": "ok", "agree": {"best": True, "live": False}, **run}
    made = honest.report([other, {**other, "machine_is": "rest", "agree": {"best": True}}])
    assert (made["busy"]["agree"], made["rest"]["agree"], made["busy"]["disagree_in"]) == (0, 1, {"live": 1})
    assert made["rest"]["marked_share"] == round(2 / 7, 3) and len(made["busy"]["contradicted"]) == 2


def test_times_agree_where_their_intervals_overlap(honest):
    me = RunIdentity("matmul", "d1g357", {"name": "cpu", "driver": "1"}, {})

    def trial(name, low, time, high, kind="trial", **more):
        result = {"status": "ok", "time_s": time, "low_s": low, "high_s": high, "samples": [time], **more}
        return replace(me.record(kind, "t", {}, result), id=name)

    records = [trial("d", 2.0, 2.1, 2.2), trial("b", 0.9, 1.0, 1.1), trial("c", 0.7, 0.8, 0.85)]
    records.append(trial("f", 2.15, 2.3, 2.4, kind="final", of="d"))

    def agreement(low, high, default=2.3):
        best = {"trial": "b", "time_s": 1.0, "low_s": low, "high_s": high}
        return honest.agreement(records, {"best": best, "default": {"time_s": default}})

    assert agreement(0.8, 1.0) == {"best": True, "live": True, "default": True, "no slower": True}
    assert agreement(1.15, 1.2, 0.9) == {"best": False, "live": False, "default": True, "no slower": False}
