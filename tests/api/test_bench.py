"""What the supervisor makes of a worker's answers, and what a worker measures."""

import os
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace

import numpy as np
import pytest
import zoo
from searching import outcome

from tensorir.api import final_round, worker
from tensorir.api.asker import Asker
from tensorir.api.bench import NOISE_SLOTS, ReferenceKernel, Runner
from tensorir.api.candidate import Candidate, Refused, failure, quiet
from tensorir.api.floats import Floats
from tensorir.api.measurer import Measurer
from tensorir.api.outputs import compare, compare_floats
from tensorir.api.questions import (
    Build,
    Digests,
    Examine,
    FirstPeer,
    Hello,
    Measure,
    Output,
    Request,
    Setup,
    Standard,
    Wanted,
)
from tensorir.api.waits import Waits
from tensorir.api.worker_state import State
from tensorir.codec import encode
from tensorir.errors import CheckError, CompileError, DeviceError, LaunchError, LoweringError, Problem
from tensorir.tune.arm import believed_time
from tensorir.tune.outcome import MachineReport
from tensorir.tune.record import ESTIMATOR, RunIdentity
from tensorir.tune.spec import RunSpec
from tensorir.tune.trial import FinalRound, Known, Outcome, Reply, Trial


@pytest.mark.parametrize(
    ("error", "code", "status", "limit"),
    [
        (CompileError, "compile.shared-memory", "resource_limit", "smem"),
        (CompileError, "compile.threads", "resource_limit", "threads"),
        (CompileError, "compile.opencl", "compile_error", None),
        (LaunchError, "launch.memory", "resource_limit", "memory"),
        (LaunchError, "launch.failed", "launch_error", None),
        (LoweringError, "codegen.not-lowered", "illegal_schedule", None),
        (DeviceError, "device.broken", "device_error", None),
        (CheckError, "check.level", "internal_error", None),
    ],
)
def test_errors_have_their_status(error, code, status, limit):
    found = failure(error(Problem(code, "words")), "run")
    assert found.status == status and found.told.get("limit") == limit and found.told["code"] == code
    assert failure(LaunchError(Problem("launch.failed", "CL_DEVICE_NOT_AVAILABLE")), "run").status == "device_lost"


class Scripted:
    """Answers in order; remembers what was asked."""

    starts = 1

    def __init__(self, *answers):
        self.answers, self.asked, self.closed = list(answers), [], 0

    def request(self, message, timeout, limits, cancel_after):
        self.asked.append(message)
        return self.answers.pop(0)

    def close(self):
        self.closed += 1


class Asked:
    """Answers in order, as an Asker does; remembers the questions and the limits that came with them."""

    def __init__(self, *answers):
        self.answers, self.asked, self.limits = list(answers), [], []

    def request(self, request, *_):
        self.asked.append(request.asked())
        self.limits.append(request.limits)
        answer = self.answers.pop(0)
        return answer if isinstance(answer, Reply) else outcome(answer, Reply)


def round_of(*results):
    """The answer of a final round."""
    return Reply("ok", answer=encode(FinalRound(tuple(map(outcome, results)))))


def measurer(*answers):
    m = Measurer(zoo.product(12), None, RunSpec())
    m.work.origin = object()
    m.channel.asker = Asked(*answers)
    return m


def measure(m, n=None, kind="trial"):
    return m.measure(Trial("tile", {} if n is None else {"ti": n}, kind), None)


def request(do, question=None, **more):
    """A request without what only the process needs."""
    return Request(do, encode(question or Hello()), Setup("key", None, (), ()), **more)


def record(n):
    return recorded({"ti": n}, source_sha256="0" * 64)


def recorded(config, template="tile", status="ok", time_s=1e-3, started="2026-01-01T00:00:00Z", **more):
    """The record of a trial, as a log has it."""
    result = {"status": status, "time_s": time_s, "samples": [time_s], "started": started, **more}
    device = {"name": "cpu", "driver": "1"}
    return RunIdentity("product n=24", "d1g357", device, {}).record("trial", template, config, result)


OK = {"status": "ok", "time_s": 1.0, "samples": [1.0] * 3}


def test_finalist_that_crashes_leaves_the_others():
    died = {"status": "crashed", "detail": {"phase": "run 1"}}
    m = measurer(died, round_of(OK, OK))
    found = m.final([record(0), record(1), record(2)], 60.0)
    assert [r.status for r in found.results] == ["ok", "crashed", "ok"]
    assert [w.config["ti"] for w in m.channel.asker.asked[1].finalists] == [0, 2]


@pytest.mark.parametrize(
    ("answer", "statuses"),
    [
        ({"status": "cancelled", "detail": {"phase": "run 0"}}, ["cancelled", "cancelled"]),
        ({"status": "crashed", "detail": {"phase": "time"}}, ["cancelled", "cancelled"]),
    ],
)
def test_final_round_that_cannot_be_finished(answer, statuses):
    assert [r.status for r in measurer(answer).final([record(0), record(1)], 60.0).results] == statuses
    assert [r.status for r in measurer().final([record(0)], 0.5).results] == ["cancelled"]


def test_compilation_of_a_finalist_that_hangs_is_called_so():
    hung = {"status": "run_timeout", "detail": {"phase": "compile 0"}}
    (result,) = measurer(hung).final([record(0)], 60.0).results
    assert result.status == "compile_timeout"


def test_lost_device_gets_one_more_try():
    class Process(Scripted):
        def kill(self):
            pass

    lost = {"status": "device_lost", "detail": {}}
    asker = Asker()
    asker._worker = process = Process(lost, OK, lost, lost)
    assert asker.request(request("final"), {}, None).ok and process.closed == 1
    assert asker.request(request("final"), {}, None).status == "device_lost" and len(process.asked) == 4


def test_a_process_whose_device_went_with_a_candidate_is_not_asked_again(monkeypatch):
    """CUDA: a kernel that faults leaves a context in which everything fails."""

    class Process(Scripted):
        def kill(self):
            pass

    asker = Asker()
    asker._worker = process = Process({"status": "launch_error", "detail": {}, "last": True}, OK)
    assert asker.request(request("measure"), {}, None) == Reply("launch_error", {}) and process.closed == 1
    assert asker.request(request("measure"), {}, None).ok and process.closed == 1

    def measured(status, works):
        def refuse(*_):
            raise Refused(Outcome(status))

        monkeypatch.setattr(worker, "_state_of", lambda _: SimpleNamespace(works=lambda: works, spoilt=False))
        monkeypatch.setitem(worker._ANSWERS, Build, refuse)
        return worker.handler(encode(request("build", Build(Wanted("tile", {})))), lambda _: None)

    assert measured("launch_error", works=False) == {"status": "launch_error", "last": True}
    assert measured("launch_error", works=True) == {"status": "launch_error"}
    assert measured("wrong_result", works=False) == {"status": "wrong_result", "last": True}


def test_best_time_is_passed_on():
    m = measurer(OK, OK)
    m.known([recorded({}, time_s=5.0), recorded({}, status="crashed")], Trial("tile", {}))
    for _ in range(2):
        measure(m)
    assert [a.best_s for a in m.channel.asker.asked] == [5.0, 1.0]


def test_others_are_timed_beside_the_default():
    tile = {"template": "tile", "config": {"ti": 1}}
    ok = {**OK, "source_sha256": "ab"}
    m = measurer({**ok, "time_s": 2e-3}, {**ok, "time_s": 1.5e-3, "drift": 2.0}, {"status": "crashed", "detail": {}})
    m.known([], Trial(**tile))
    measure(m, 1, "default")
    for n in (2, 3):
        measure(m, n)
    first, second, third = m.channel.asker.asked
    assert first.reference is None and first.best_s is None
    assert second.reference == third.reference == Standard(Wanted(**tile, sha256="ab"), 2e-3)
    assert second.best_s == 2e-3 and third.best_s == 1.5e-3, "by a machine as fast as it was for the default"
    long = measurer({**ok, "time_s": 0.2}, ok)
    long.known([], Trial(**tile))
    measure(long, 1, "default")
    measure(long, 2)
    assert long.channel.asker.asked[1].reference is None, "what takes so long is not repeated beside others"


def test_drifts_of_one_log_are_on_one_level(monkeypatch):
    """What others were timed beside stays so: in a run that uses no earlier times, and when there is a new default."""
    new = {"template": "tile", "config": {"ti": 2}}
    ok = {**OK, "source_sha256": "ab"}
    stale = set()

    def digests(m, records):
        return [None if r.started in stale else r.source_sha256 for r in records]

    monkeypatch.setattr(Measurer, "digests", digests)
    at = "2026-01-01T00:00:0{}Z".format
    log = [
        recorded({"ti": 1}, time_s=2e-3, started=at(1), source_sha256="ab" * 32),
        recorded({"ti": 2}, time_s=2e-3, started=at(2), source_sha256="ab" * 32, drift=2.0),
        recorded({"ti": 3}, time_s=0.5, started=at(0), source_sha256="ab" * 32),
    ]

    def first(records, default, levels):
        m = measurer({**ok, "time_s": 2e-3, "drift": 1.5}, ok)
        m.known(records, Trial(**default), levels)
        for n in (2, 9):
            measure(m, n, "default")
        asked = [a.reference for a in m.channel.asker.asked]
        assert asked[0] is None or asked[0] == asked[1], "as it was, also after the default's own trial"
        return asked[1] and (asked[1].wanted.config, asked[1].seconds)

    assert first(log, new, log) == ({"ti": 2}, 2e-3), "the default, at the level of the others of its run"
    assert first([], new, log) == ({"ti": 2}, 2e-3), "fresh: its earlier time does not count, but is the level"
    assert first(log[:1], new, log[:1]) == ({"ti": 1}, 2e-3), "a new default is timed beside the old one"
    assert first([], new, log[2:]) == ({"ti": 2}, 2e-3), "one that takes too long is beside nothing"
    stale.add(at(2))
    assert first(log, new, log) == ({"ti": 1}, 2e-3), "this version makes another kernel of that configuration"


def test_a_default_that_fails_beside_others_is_left_out_and_nobody_else_pays():
    tile = {"template": "tile", "config": {"ti": 1}}
    ok = {**OK, "time_s": 1e-3, "source_sha256": "ab"}
    died = {"status": "crashed", "detail": {"phase": "beside"}}
    m = measurer(ok, died, ok, ok)
    m.known([], Trial(**tile))
    assert [measure(m, n).status for n in (1, 2, 3)] == ["ok"] * 3
    assert [a.reference is not None for a in m.channel.asker.asked] == [False, True, False, False]


def test_the_limit_for_whole_runs_follows_the_best_time_and_what_others_took():
    def ran(time_s, **seconds):
        return {**OK, "time_s": time_s, "detail": {"seconds": seconds}}

    failed = {"status": "wrong_result", "detail": {"seconds": {"whole": 9.0}}}
    m = measurer(ran(0.05, run=4.0), failed, ran(0.01, run=2.0, whole=0.02), ran(0.02, whole=0.3), OK)
    for n in range(5):
        measure(m, n)
    limits = m.channel.asker.limits
    assert limits[:3] == [{}, {}, {}], "not before a candidate was seen to get through, its first launch apart"
    assert limits[3]["whole"] == pytest.approx(2.0 + 100 * 0.01 + 10 * 0.02)
    assert limits[4]["whole"] == pytest.approx(2.0 + 100 * 0.01 + 10 * 0.3)
    assert m.experience.limits(5.0, m.spec.timeout)["whole"] == m.spec.timeout, "never more than was asked for"
    asker = Asker()
    seen = []
    asker._worker = SimpleNamespace(starts=1, request=lambda *_, limits, **__: seen.append(limits) or OK)
    asker.request(request("measure", limits={"whole": 3.0}), {"run": 10.0, "whole": 10.0}, None)
    assert seen == [{"run": 10.0, "whole": 3.0}]


class TestShownToBeSlower:
    KERNEL = ReferenceKernel(None, 1e-3)

    def shown(self, own, others=(1e-3,) * NOISE_SLOTS, best_s=1e-3):
        return self.KERNEL.shows_slower(best_s, own, others)

    def test_quiet_machine(self):
        assert self.shown([1.5e-3] * NOISE_SLOTS) and not self.shown([1e-3] * NOISE_SLOTS)
        assert not self.shown([1.5e-3] * (NOISE_SLOTS - 1)), "a few samples say nothing of the noise"

    def test_slow_machine(self):
        assert not self.shown([1.5e-3] * NOISE_SLOTS, [1.6e-3] * NOISE_SLOTS), "the reference is as much slower"
        assert not self.shown([1.5e-3] * NOISE_SLOTS, [1e-3] * (NOISE_SLOTS - 1) + [1.6e-3]), "or was for a moment"

    def test_restless_candidate(self):
        assert not self.shown([1.5e-3] * (NOISE_SLOTS - 1) + [2.5e-3]), "what slowed one may have slowed all"
        assert self.shown([2.5e-3] * (NOISE_SLOTS - 1) + [3e-3])


class Launches(Runner):
    """Launches of known length; nothing runs."""

    def __init__(self, *seconds):
        self.candidate = Candidate(None)
        self.left, self.took, self._whole = list(seconds), seconds[0], "whole"

    def once(self):
        return self.left.pop(0)


def test_the_pace_is_that_of_runs_as_long_as_the_candidates():
    calls = []
    beside = ReferenceKernel(lambda: calls.append(1) or time.sleep(2e-4), 1e-4)
    assert beside.pace(1e-3) >= 2 and len(calls) == 10
    calls.clear()
    assert beside.pace(1e-5) >= 2 and len(calls) == 1


def test_what_launches_show_to_be_slow_is_not_timed(monkeypatch):
    def outcome(seconds, best_s, pace=1.0, paces=(1.0,) * 12, alone=False):
        left, seen = list(paces), []
        monkeypatch.setattr(ReferenceKernel, "pace", lambda *_: seen.append(1) or left.pop(0))
        try:
            Launches(*seconds).refuse_slow(best_s, pace, str, None if alone else ReferenceKernel(None, 1e-3))
        except Refused as refused:
            return refused.outcome, len(seen)
        return None, len(seen)

    def far(result):
        return result.told["at_least_s"], result.told["best_s"], result.status

    assert far(outcome([0.06] * 4, 0.01, alone=True)[0]) == (pytest.approx(0.048), 0.01, "skipped_slow")
    assert outcome([0.06] * 4, 0.01, pace=1.5, alone=True)[0] is None, "not by the pace of the last trial"
    assert outcome([0.03] * 4, 0.01, alone=True)[0] is None, "nobody knows the pace of the machine"
    assert outcome([0.002] * 4, 1e-4, alone=True)[0] is None, "that is too short to tell"
    found, turns = outcome([0.03] * 16, 0.01)
    assert far(found) == (pytest.approx(0.024), 0.01, "skipped_slow") and turns == NOISE_SLOTS and found.drift is None
    assert outcome([0.019] * 16, 0.01) == (None, 1)
    assert outcome([0.03] * 6 + [0.019], 0.01) == (None, 3), "once as fast is enough for hope"
    assert outcome([0.06] * 6, 0.01)[1] == 2 and outcome([0.6, 0.6], 0.01)[1] == 1
    assert outcome([2e-4] * 4, 1e-5) == (None, 0), "too short beside waiting for it"
    found, turns = outcome([0.03] * 16, 0.01, paces=[1.0, 1.2, 1.0, 1.0, 1.0])
    assert found.drift == pytest.approx(1.2) and believed_time(found) == pytest.approx(0.02)
    assert outcome([0.03] * 16, 0.01, paces=[1.0, 1.0, 1.6]) == (None, 3), "the machine may be as much slower"


@pytest.fixture
def side():
    """A workload's measurer and the state of its worker, in this process."""
    m = Measurer(zoo.product(12), None, RunSpec())
    m.channel.reference_here()
    with m:
        yield m, State(m.channel.setup)


def test_what_takes_the_worker_along_says_nothing_of_records(side, monkeypatch):
    """Neither does a budget that ends: they stay what they are, and where the worker ended there is a warning."""
    m, _ = side
    records = [recorded({"n": n}, source_sha256=f"{n:064}") for n in range(120)]
    monkeypatch.setattr(m.work, "origin", object())
    replies = iter(["ok", "crashed", "ok"])

    def ask(question, remaining):
        return Reply(next(replies), {}, answer=encode(Digests((None,) * len(question.wanted))))

    monkeypatch.setattr(m.channel, "ask", ask)
    with pytest.warns(UserWarning, match="whether 50 records of the log are stale is not known"):
        found = m.digests(records)
    assert found == [None] * 50 + [f"{n:064}" for n in range(50, 100)] + [None] * 20
    monkeypatch.setattr(m.channel, "ask", lambda question, remaining: Reply("cancelled"))
    assert m.digests(records[:3]) == [f"{n:064}" for n in range(3)]


def referred(m, alone, config):
    """What trials are sent of the reference, after its own trial."""
    m.known([], Trial("tile", config))
    m._learn("tile", config, alone, False)
    return m.reference.chosen


def test_a_peer_may_return_lists(side):
    """Nested lists are one result, as any array; a tuple of them is several."""
    m, state = side
    state._work = m.work
    right = {
        "lists": lambda a, b: (a @ b).tolist(),
        "tuple": lambda a, b: ((a @ b).tolist(),),
        "of one": lambda a, b: [a @ b],
    }
    wrong = {"twice": lambda a, b: [a @ b, a @ b], "less": lambda a, b: (a @ b)[1:], "other": lambda a, b: [b @ a]}
    m.work.baselines = {**right, **wrong}
    assert final_round.peers_here(state, state.data(str), str).keys() == right.keys()
    assert worker._first_peer(state, FirstPeer(), str).answer["name"] in right


def test_the_worker_times_in_turn_and_says_how_the_machine_changed(side):
    m, state = side
    config = m.work.templates["tile"].space.default
    wanted = m._made("tile", config)
    alone = worker._measure(state, Measure(wanted), str)
    assert alone.ok and alone.drift is None and alone.estimator == ESTIMATOR
    assert alone.time_s == statistics.median(alone.samples) and alone.low_s <= alone.time_s <= alone.high_s
    item = referred(m, alone, config)
    assert item.wanted.ready is None, "its source is sent once"

    def beside(seconds, **changed):
        standard = Standard(replace(item.wanted, **changed), seconds)
        return worker._measure(state, Measure(wanted, reference=standard), str)

    found = beside(alone.time_s / 10)  # of a machine that was so much faster
    assert 2 < found.drift == state.drift
    assert found.time_s < 0.5 * alone.time_s, "at the pace of then"
    for impossible in (1e-12, 80.0):
        assert beside(impossible).drift is None, "these are not the seconds of this kernel"
    assert beside(alone.time_s / 10, sha256="0" * 64).drift is None, "the template has been changed since"
    kept = Path(m.channel.folder, "reference.json")
    for damaged in (kept.read_text().replace("C[", "C[1 + "), "no JSON"):
        kept.write_text(damaged)
        state.rest()
        assert beside(alone.time_s / 10).drift is None
    kept.unlink()
    state.rest()
    assert beside(alone.time_s / 10).ok


OWNER = """
import sys
from tensorir.runtime.turns import DeviceTurns
with DeviceTurns("cpu", "matmul of another").turn(int):
    print("owns", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(find_spec("fcntl") is None, reason="the system has no such locks")
@pytest.mark.parametrize("wait", [True, False])
def test_a_second_tuning_says_who_measures_and_waits_for_its_timings_or_is_told_not_to(
    side, monkeypatch, tmp_path, wait
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    m, state = side
    m.channel.waits = Waits(wait)
    state.setup = replace(state.setup, wait=wait)
    monkeypatch.setattr(worker, "_state_of", lambda _: state)
    phases, other = [], subprocess.Popen([sys.executable, "-c", OWNER], stdin=PIPE, stdout=PIPE, text=True)
    assert other.stdout.readline() == "owns\n"

    def progress(phase):
        phases.append(phase)
        if phase.startswith("turn "):
            other.stdin.write("\n")
            other.stdin.flush()

    question = Measure(m._made("tile", m.work.templates["tile"].space.default))
    result = worker.answered(Request.of(question, state.setup), progress)
    other.kill()
    other.communicate()
    turn = f"turn {os.getpid()} matmul of another"
    assert result.ok and (turn in phases) == wait
    if wait:
        after = phases[phases.index(turn) + 1 :]
        assert after[0] == "time" and "compile" not in after, "only timings wait"
        assert result.told["seconds"]["turn"] > 0
    said = "waiting for it" if wait else "not waiting for it"
    with pytest.warns(UserWarning, match=f"process {os.getpid()} times matmul of another on this device too: {said}"):
        m.waits.hear(result)
    with warnings.catch_warnings(action="error"):
        m.waits.hear(result)
    (told,) = m.waits.told()
    assert told["workload"] == "matmul of another" and (told["seconds"] > 0) == wait
    outcome = MachineReport(waits=m.waits.told())
    how = "waited for" if wait else "timed next to"
    assert f"{how} process {os.getpid()} (matmul of another" in outcome.words()


def test_templates_made_here_keep_their_rounding_in_every_request(side):
    m, _ = side
    m.work.templates["tile"] = replace(m.work.templates["tile"], approximate=True)
    config = m.work.templates["tile"].space.default
    (finalist,) = m._final([m._made("tile", config, check=False)], None).finalists
    assert finalist.ready.max_error == m._made("tile", config).ready.max_error == 1e-4


def test_a_candidate_that_cannot_win_is_timed_no_longer_than_that_takes_to_see(side):
    m, state = side
    wanted = m._made("tile", m.work.templates["tile"].space.default)
    phases = []
    alone = worker._measure(state, Measure(wanted), phases.append)
    assert "whole" not in phases, "the first one has nothing to be compared with"
    item = referred(m, alone, wanted.config)
    found = worker._measure(state, Measure(wanted, 1e-9, item), phases.append)
    assert found.ok and NOISE_SLOTS <= len(found.samples) < len(alone.samples)
    after = phases[phases.index("beside") + 1 :]
    assert after[0] == "compile" and "whole" in after, "the reference is not to blame from there"


def test_what_is_slow_is_slow_for_the_pace_of_the_machine(side, monkeypatch):
    monkeypatch.setattr("tensorir.api.bench.WORTH_S", 0.0)
    m, state = side
    state.drift = 4.0
    wanted = m._made("tile", m.work.templates["tile"].space.default)
    with pytest.raises(Refused) as refused:
        worker._measure(state, Measure(wanted, 1e-12), str)
    record = refused.value.outcome
    assert record.status == "skipped_slow" and record.drift == 4.0
    assert believed_time(record) == record.detail["at_least_s"] / 4
    state.drift = 1.0
    with pytest.raises(Refused) as refused:
        worker._measure(state, Measure(wanted, 1e-12), str)
    assert refused.value.outcome.drift is None, "nothing was measured beside it"
    text = replace(wanted.ready.source, text="no kernel")
    state.drift = 4.0
    with pytest.raises(Refused) as refused:
        worker._measure(state, Measure(replace(wanted, ready=replace(wanted.ready, source=text)), 1e-12), str)
    assert refused.value.outcome.status == "compile_error" and refused.value.outcome.drift is None


def test_a_finalist_that_takes_the_device_along_is_out_alone(side, monkeypatch):
    m, state = side
    state._work = m.work
    finalists = [m._made("tile", {"ti": n, "tj": 4, "out": False}, check=False) for n in (1, 2)]
    question = m._final(finalists, 60.0, searched_s=0.1)

    def fault(runner, *_):
        raise Refused(Outcome("launch_error", {"phase": "run"}))

    monkeypatch.setattr(Runner, "at_awkward_shape", fault)
    monkeypatch.setattr(State, "works", lambda _: False)
    monkeypatch.setattr(worker, "_state_of", lambda _: state)
    reply = worker.answered(m.channel.request(question), lambda _: None)
    assert reply == Reply("launch_error", {"phase": "run 0"}, last=True)


def test_sums_in_any_order_are_the_same_sums():
    """Terms that are added atomically: on normal floats the last bits differ from run to run."""

    class Bound:
        def __init__(self, off):
            self.off = off

        def wait(self):
            return np.full(3, 0.1 + self.off, np.float32)

    r = object.__new__(Runner)
    r.source, r.max_error = SimpleNamespace(outputs=[Output("C", "float32", (3,))]), None
    r.candidate = Candidate(r.source)
    r.first = [np.full(3, 0.1, np.float32)]
    for rounded, off, same in [(True, 1e-8, True), (False, 1e-8, False), (True, 1e-2, False), (False, 0.0, True)]:
        r.rounded, r.bound = rounded, Bound(off)
        if same:
            r.compare_again()
        else:
            with pytest.raises(Refused):
                r.compare_again()


def test_a_kernel_that_takes_what_it_left_for_its_result_is_wrong(side):
    """It computes where it finds nothing, and is fast as long as inputs stay the same."""
    m, state = side
    made = state.candidate(m._made("tile", {"ti": 1, "tj": 4, "out": False}), quiet)
    given = [p.name for p in made.source.inputs]
    head, brace, body = made.source.text.partition("{\n")
    for early, status in (("", None), ("if (C[0] == R) return;", "wrong_result")):
        first = " + ".join(f"{given[0]}[{n}] * {given[1]}[{12 * n}]" for n in range(12))
        text = head + brace + early.replace("R", first) + body
        candidate = replace(made, source=replace(made.source, text=text), known=Known())
        runner = Runner(state.device, candidate, state.data(quiet), cache=False)
        runner.first, runner.rounded = runner.expected, False
        runner.bound = runner.program.bind(*runner.inputs)
        runner.bound.refill(runner.expected)
        runner.once()
        if status is None:
            runner.compare_over()
        else:
            with pytest.raises(Refused) as refused:
                runner.compare_over()
            assert refused.value.outcome.status == status
            assert "where outputs held other values before: C[" in refused.value.outcome.told["where"]


def test_a_peer_that_hangs_costs_no_finalist_its_round():
    hung = {"status": "run_timeout", "detail": {"phase": "baseline"}}
    m = measurer(hung, round_of(OK))
    assert [r.status for r in m.final([record(1)], 40.0).results] == ["ok"]
    first, second = m.channel.asker.asked
    assert m.channel.asker.limits[0]["baseline"] == pytest.approx(10.0, rel=0.01)
    short = measurer(round_of(OK))
    short.final([record(1)], 6.0)
    assert short.channel.asker.limits[0]["baseline"] == pytest.approx(3.0, rel=0.01), "importing it takes seconds"
    assert first.peers and not second.peers
    assert m_status(hung, hung) == ["cancelled"], "once"


def m_status(*replies):
    return [r.status for r in measurer(*replies).final([record(1)], None).results]


def test_who_dies_where_others_have_been_is_asked_again(monkeypatch):
    """In a process of its own: an earlier candidate may have spoilt the memory of the one that it died in."""

    class Process(Scripted):
        def kill(self):
            pass

        def request(self, message, *given, **named):
            self.starts += self.new
            return super().request(message, *given, **named)

    crashed = {"status": "crashed", "detail": {}}

    def ended(do, *replies, new=0):
        asker = Asker()
        asker._worker = process = Process(*replies)
        process.new = new
        return asker.request(request(do), {}, None).status, len(process.asked)

    assert ended("measure", crashed, OK) == ("ok", 2)
    assert ended("build", crashed, crashed) == ("crashed", 2)
    assert ended("measure", crashed, OK, new=1) == ("crashed", 1), "nobody had been there"
    assert ended("final", crashed, OK) == ("crashed", 1)
    assert ended("hello", crashed, OK, new=1) == ("ok", 2)


def test_the_final_round_times_finalists_and_peers_on_normal_floats(side):
    given = []
    m, state = side
    m.work.baselines = {"numpy": lambda a, b: time.sleep(1e-3) or given.append((a, b)) or a @ b}
    state._work = m.work
    finalists = [m._made("tile", {"ti": n, "tj": 4, "out": False}, check=False) for n in (1, 2)]
    found = final_round.final(state, m._final(finalists, 60.0, searched_s=0.1), str)
    assert [r.status for r in found.results] == ["ok", "ok"] and found.baseline.name == "numpy"
    assert all("normal floats" in r.check.shapes[-1] for r in found.results)
    whole = [bool((a == a.round()).all()) for a, _ in given[:5000]]
    assert whole[0] and not whole[-1] and whole == sorted(whole, reverse=True)


def test_floats_of_what_was_made_in_this_process(side):
    """The worker has no reference, and compares with what its owner left: each new best and the finalists."""
    m, state = side
    config = {"ti": 1, "tj": 4, "out": False}
    question = Measure(m._made("tile", config))
    shapes = worker._measure(state, question, str).check.shapes
    assert tuple(s for s in shapes if "floats" in s) == shapes[-1:] and shapes[-1].endswith("normal floats 1")
    assert worker._measure(state, replace(question, best_s=1e-12), str).check.shapes[-1:] != shapes[-1:]
    state._data = None
    shapes = worker._measure(state, replace(question, seconds=0.0), str).check.shapes
    assert not any("floats" in s for s in shapes), "no time left"
    (found,) = final_round.final(
        state, m._final([m._made("tile", config, check=False)], 60.0, searched_s=0.1), str
    ).results
    assert found.check.shapes[-1].endswith("normal floats 1")
    stored = Path(m.channel.folder, "floats_0.npy")
    right = np.load(stored)
    np.save(stored, right + np.uint32(1 << 20))
    state._data = None
    with pytest.raises(Refused) as refused:
        worker._measure(state, question, str)
    assert "on normal floats 1: " in refused.value.outcome.told["where"]


@pytest.mark.parametrize("rebuilt", [True, False])
def test_right_results_that_jump_are_not_compared_on_floats(rebuilt):
    """A sum that is added up in another order may be on the other side of a half."""
    work = zoo.quantised(8)
    with Measurer(work, None, RunSpec()) as m:
        m.channel.reference_here()
        state = State(m.channel.setup)
        state._work = work if rebuilt else None
        wanted = m._made("plain", {})
        (final,) = final_round.final(
            state, m._final([m._made("plain", {}, check=False)], 60.0, searched_s=0.1), str
        ).results
        for result in (worker._measure(state, Measure(wanted), str), final):
            assert result.ok and "floats" not in result.check.shapes[-1]
        if rebuilt:
            checks = worker._examine(state, Examine(wanted), str).answer["checks"]
            assert checks[-1]["ok"] and checks[-1]["detail"].startswith("left out")


@pytest.mark.parametrize("rebuilt", [True, False])
def test_sums_that_cancel_are_held_against_what_a_last_digit_does_to_them(rebuilt):
    """Numbers of both signs over their sum: where that is small, no order of terms gives as many digits as usual."""
    work = zoo.shares(4096, 64)
    floats = Floats.of(work, 1)
    assert compare(work.outputs, [zoo.backwards(floats.arrays[0])], floats.expected, False).where
    with Measurer(work, None, RunSpec()) as m:
        m.channel.reference_here()
        state = State(m.channel.setup)
        state._work = work if rebuilt else None
        assert "floats" in worker._measure(state, Measure(m._made("plain", {})), str).check.shapes[-1]
        data = state.data(str).floats(60.0).as_floats()
        source = work.schedule({}, "plain", "opencl").emitted()
        got = zoo.backwards(data.arrays[0])
        assert not compare_floats(source, [got], data, None).where
        assert compare_floats(source, [got * 1.5], data, None).where, "far more than rounding"


def test_outcome_shows_in_a_notebook():
    from searching import search

    from tensorir.tune.log import RunIdentity

    identity = RunIdentity("w <b>", "d", {"name": "cpu", "driver": "1"}, {})
    sha = "0" * 64
    result = {**OK, "check": {"ok": True}, "source_sha256": sha}
    space = zoo.product().templates["tile"].space
    outcome = search("grid", {"tile": space}, lambda *_: result, identity=identity, trials=3)
    text = outcome._repr_html_()
    assert "w &lt;b&gt;" in text and "<svg" in text and "3 new" in text
