"""What a trial does, and what it leaves to no second time: programs compiled, phases, what a builder has made."""

from pathlib import Path

import pytest
import zoo

from tensorir.api import worker
from tensorir.api.candidate import Refused
from tensorir.api.measurer import Measurer
from tensorir.api.options import Options
from tensorir.api.origin import from_file
from tensorir.runtime.device import devices
from tensorir.runtime.opencl import OpenCLDevice

pytestmark = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)


@pytest.fixture
def side():
    work = from_file(str(Path(zoo.__file__)), "product", {"n": 24})
    with Measurer(work, None, Options()) as measurer:
        measurer.open()
        yield measurer, worker.State(measurer._setup)


@pytest.fixture
def compiled(monkeypatch):
    found, compile_ = [], OpenCLDevice.compile
    monkeypatch.setattr(OpenCLDevice, "compile", lambda d, s, **o: found.append(s.sha256) or compile_(d, s, **o))
    return found


def asked(measurer, do, **given):
    template, space = next((n, t.space) for n, t in measurer.work.templates.items())
    return {**measurer._message(template, space.default), "do": do, "best_s": None, **given}


def test_a_trial_compiles_its_program_and_only_the_best_one_also_that_of_a_small_shape(side, compiled):
    measurer, state = side
    best = worker._measure(state, asked(measurer, "measure"), str)
    assert best["status"] == "ok" and len(compiled) == 2 and compiled[0] == best["source_sha256"]
    compiled.clear()
    worker._measure(state, asked(measurer, "measure", best_s=best["time_s"] / 1.5), str)
    assert compiled == [best["source_sha256"]]


def test_what_a_builder_has_made_and_checked_is_not_made_again(side, compiled, monkeypatch):
    measurer, state = side
    built = worker._build(state, asked(measurer, "build"), str)["built"]
    assert len(built["known"]["check"]["shapes"]) > 3 and len(compiled) == 1
    made, prepare = [], worker.prepare
    monkeypatch.setattr(worker, "prepare", lambda *given: made.append(given) or prepare(*given))
    phases = []
    sent = {key: built[key] for key in ("source", "known", "max_error")}
    found = worker._measure(state, asked(measurer, "measure", best_s=1.0e-9, **sent), phases.append)
    assert found["status"] == "ok" and not made and "check" not in phases
    shapes = found["check"]["shapes"]
    assert shapes[:-1] == built["known"]["check"]["shapes"] and shapes[-1].startswith("device ")
    assert found["trace"] == built["known"]["trace"] and found["source_sha256"] == compiled[0]
    worker._measure(state, asked(measurer, "measure", **sent), phases.append)
    assert len(made) == 1, "the best one is checked further, for which its schedule is wanted"


def test_a_template_that_makes_another_source_than_in_the_builder_is_told(side, monkeypatch):
    measurer, state = side
    built = worker._build(state, asked(measurer, "build"), str)["built"]
    sent = {key: built[key] for key in ("source", "known", "max_error")}
    prepare = worker.prepare
    monkeypatch.setattr(worker, "prepare", lambda w, t, c, *rest: prepare(w, t, {**c, "ti": 3 - c["ti"]}, *rest))
    with pytest.raises(Refused) as refused:
        worker._measure(state, asked(measurer, "measure", **sent), str)
    assert refused.value.result["status"] == "nondeterministic"


def test_the_seconds_of_phases_add_up(monkeypatch):
    now = iter([10.0, 10.5, 12.0, 12.25, 20.0])
    monkeypatch.setattr(worker.time, "perf_counter", lambda: next(now))
    said = []
    clock = worker._Clock(said.append)
    for phase in ("schedule", "compile", "schedule", "time"):
        clock(phase)
    spent = clock.spent()
    assert spent == {"schedule": 0.75, "compile": 1.5, "time": 7.75} and sum(spent.values()) == 20.0 - 10.0
