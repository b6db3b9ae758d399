"""What a trial does, and what it leaves to no second time: programs compiled, phases, what a builder has made."""

from dataclasses import replace
from pathlib import Path

import pytest
import zoo

from tensorir.api import worker, worker_state
from tensorir.api.candidate import Refused
from tensorir.api.measurer import Measurer
from tensorir.api.origin import from_file
from tensorir.api.questions import Build, Measure, Ready
from tensorir.codec import decode
from tensorir.runtime.device import devices
from tensorir.runtime.opencl import OpenCLDevice
from tensorir.tune.spec import RunSpec

pytestmark = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)


@pytest.fixture
def side():
    work = from_file(str(Path(zoo.__file__)), "product", {"n": 24})
    with Measurer(work, None, RunSpec()) as measurer:
        measurer.open()
        yield measurer, worker_state.State(measurer.channel.setup)


@pytest.fixture
def compiled(monkeypatch):
    found, compile_ = [], OpenCLDevice.compile
    monkeypatch.setattr(OpenCLDevice, "compile", lambda d, s, **o: found.append(s.sha256) or compile_(d, s, **o))
    return found


def wanted(measurer, **given):
    template, space = next((n, t.space) for n, t in measurer.work.templates.items())
    return replace(measurer._made(template, space.default), **given)


def test_a_trial_compiles_its_program_and_only_the_best_one_also_that_of_a_small_shape(side, compiled):
    measurer, state = side
    best = worker._measure(state, Measure(wanted(measurer)), str)
    assert best.ok and len(compiled) == 2 and compiled[0] == best.source_sha256
    compiled.clear()
    worker._measure(state, Measure(wanted(measurer), 1.0e-9), str)
    assert compiled == [best.source_sha256]


def test_what_a_builder_has_made_and_checked_is_not_made_again(side, compiled, monkeypatch):
    measurer, state = side
    built = decode(Ready, worker._build(state, Build(wanted(measurer)), str).answer)
    assert len(built.known.check.shapes) > 3 and len(compiled) == 1
    made, prepare = [], worker_state.prepare
    monkeypatch.setattr(worker_state, "prepare", lambda *given: made.append(given) or prepare(*given))
    phases = []
    sent = wanted(measurer, ready=built)
    found = worker._measure(state, Measure(sent, 1.0e-9), phases.append)
    assert found.ok and not made and "check" not in phases
    shapes = found.check.shapes
    assert shapes[:-1] == built.known.check.shapes and shapes[-1].startswith("device ")
    assert found.trace == built.known.trace and found.source_sha256 == compiled[0]
    worker._measure(state, Measure(sent), phases.append)
    assert len(made) == 1, "the best one is checked further, for which its schedule is wanted"


def test_a_template_that_makes_another_source_than_in_the_builder_is_told(side, monkeypatch):
    measurer, state = side
    built = decode(Ready, worker._build(state, Build(wanted(measurer)), str).answer)
    prepare = worker_state.prepare
    monkeypatch.setattr(worker_state, "prepare", lambda w, t, c, *rest: prepare(w, t, {**c, "ti": 3 - c["ti"]}, *rest))
    with pytest.raises(Refused) as refused:
        worker._measure(state, Measure(wanted(measurer, ready=built)), str)
    assert refused.value.outcome.status == "nondeterministic"


def test_the_seconds_of_phases_add_up(monkeypatch):
    now = iter([10.0, 10.5, 12.0, 12.25, 20.0])
    monkeypatch.setattr(worker.time, "perf_counter", lambda: next(now))
    said = []
    clock = worker._Clock(said.append)
    for phase in ("schedule", "compile", "schedule", "time"):
        clock(phase)
    spent = clock.spent()
    assert spent == {"schedule": 0.75, "compile": 1.5, "time": 7.75} and sum(spent.values()) == 20.0 - 10.0
