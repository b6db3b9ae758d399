"""The measuring process: started by ``tensorir.api.measurer``, it makes, checks, compiles, runs and times candidates.

Anything may happen here. What is asked and answered is JSON; the supervisor kills this process when a phase
takes too long and starts another one, so nothing here is remembered that cannot be made again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorir.api.bench import BESIDE, REFERENCE, WAIT, Beside, Runner
from tensorir.api.candidate import Candidate, Progress, Refused, prepare, quiet, raised
from tensorir.api.expected import Data, Output, compare_floats, each
from tensorir.api.final_round import about, final, peers_here, rough
from tensorir.api.floats import Floats
from tensorir.api.identity import describe, fingerprint
from tensorir.api.undisturbed import LeftRunning, undisturbed
from tensorir.api.unproven import answer
from tensorir.codec import decode, encode
from tensorir.codegen.source import Source
from tensorir.errors import CheckError, Problem, TensorIRError
from tensorir.runtime.cache import default_cache
from tensorir.runtime.device import Device, open_device
from tensorir.runtime.estimate import Rounds
from tensorir.runtime.machine import REST, Section
from tensorir.runtime.turns import Turns
from tensorir.tune.child import Json
from tensorir.tune.inputs import Argument
from tensorir.tune.process import LAST, bound_memory, serve
from tensorir.tune.record import MOST_DRIFT, drift_of, steady_s

if TYPE_CHECKING:
    from tensorir.api.schedule import Schedule
    from tensorir.api.workload import Workload

MEMORY = 8 << 30  # bytes for compiling and checking, and
COPIES = 20  # of inputs, outputs and what lies between: more than that is a candidate out of control
MOST_BYTES = 1 << 30  # of what the reference keeps on the device,
FINISH_S = 1e-3  # that waiting for one launch may add
BASELINE_ROUNDS, BASELINE_S = 10, 0.7  # of a first look at a library, at most


class State:
    """What one setup stands for in this process, made on first use."""

    def __init__(self, setup: Json) -> None:
        self.setup = setup
        self._work: Workload | None = None
        self._device: Device | None = None
        self._data: Data | None = None
        self._beside: tuple[str, Beside | None] | None = None  # what others are timed beside, by its name
        self.spoilt = False  # by what a template left running
        self._turns: Turns | None = None
        self.load = REST  # what else the machine did during the timings of the present answer
        self.drift = 1.0  # how much slower the machine was in the last trial than when the reference was timed first

    @property
    def device(self) -> Device:
        """The opened device."""
        if self._device is None:
            self._device = open_device(self.setup["device"])
            if self._device.target.kind == "cpu":
                sizes = [self.setup["arguments"], self.setup["outputs"]]
                bound_memory(MEMORY + COPIES * 8 * sum(math.prod(a["shape"]) for some in sizes for a in some))
        return self._device

    @property
    def turns(self) -> Turns:
        """Whose turn it is on this device."""
        if self._turns is None:
            title, wait = self.setup.get("title", ""), self.setup.get("wait", True)
            self._turns = Turns(self.device.place, str(title), bool(wait))
        return self._turns

    def waited(self) -> list[Json]:
        """Who else had a turn since this was last asked (``Turns.waited``)."""
        return [] if self._turns is None else self._turns.waited()

    @contextlib.contextmanager
    def timing(self, progress: Progress) -> Iterator[None]:
        """Have the device for oneself, among tunings; what other programs do meanwhile is added to ``load``."""
        with self.turns.turn(lambda: progress("{} {pid} {workload}".format(WAIT, **self.turns.holder()))):
            progress("time")
            section = Section()
            try:
                with section:
                    yield
            finally:
                self.load += section.load

    def works(self) -> bool:
        """Whether this process can still measure: nothing else runs in it, and its device can be used."""
        return not self.spoilt and (self._device is None or self._device.works())

    @property
    def work(self) -> Workload | None:
        """The workload made again; None when only its sources are known here."""
        if self._work is None and self.setup["origin"] is not None:
            from tensorir.api.origin import rebuild
            from tensorir.api.workload import Origin

            self._work = rebuild(decode(Origin, self.setup["origin"]))
        return self._work

    def data(self, progress: Progress) -> Data:
        """Inputs and expected outputs."""
        if self._data is None:
            arguments = [decode(Argument, a) for a in self.setup["arguments"]]
            outputs = [decode(Output, o) for o in self.setup["outputs"]]
            exact, folder = self.setup["exact"], self.setup["folder"]
            continuous = self.setup["continuous"]
            made = Data(arguments, exact, outputs, folder, self._reference, continuous=continuous)
            progress("reference")
            made.fresh()
            self._data = made
        return self._data

    def _reference(self, *arrays: Any) -> Any:
        if self.work is None:
            raise CheckError(Problem("workload.reference", "the expected outputs of this workload are gone"))
        return self.work.reference(*arrays)

    def beside(self, wanted: Json | None, progress: Progress) -> Beside | None:
        """The run's reference kernel, ready to be timed with a candidate; None where there is none or it fails."""
        if wanted is None:
            return None
        name = f"{wanted['sha256']} {wanted['seconds']}"
        if self._beside is None or self._beside[0] != name:
            progress(BESIDE)
            self._beside = (name, None)  # should it fail it is not tried again
            with contextlib.suppress(Refused, TensorIRError, OSError, ValueError):
                self._beside = (name, self._made_beside(wanted))
        return self._beside[1]

    def _made_beside(self, wanted: Json) -> Beside | None:
        """None where it would take much memory, or is not what took these seconds."""
        made = json.loads(Path(self.setup["folder"], REFERENCE).read_bytes()) if self.setup["origin"] is None else {}
        candidate = self.candidate({**wanted, **made}, quiet, check=False)
        if candidate.source.sha256 != wanted["sha256"] or self._bytes() > MOST_BYTES:
            return None  # the template has been changed since, or candidates may need the room
        runner = Runner(self.device, candidate, self.data(quiet), cache=True)
        runner.bound = runner.program.bind(*runner.inputs)
        seconds = min(runner.once() for _ in range(3))
        if not wanted["seconds"] / MOST_DRIFT < seconds < wanted["seconds"] * MOST_DRIFT + FINISH_S:
            return None
        return Beside(runner.bound, wanted["seconds"])

    def _bytes(self) -> int:
        """Of the inputs and outputs, at most."""
        return sum(8 * math.prod(a["shape"]) for key in ("arguments", "outputs") for a in self.setup[key])

    def rest(self) -> None:
        """Free what it keeps on the device between trials."""
        self._beside = None

    def candidate(self, message: Json, progress: Progress, check: bool = True) -> Candidate:
        """The source of one configuration, made here or sent along."""
        if message.get("source") is not None:
            return Candidate(decode(Source, message["source"]), dict(message["known"]), None, message.get("max_error"))
        assert self.work is not None
        device = self.device
        try:
            with undisturbed():
                return prepare(self.work, message["template"], message["config"], device.target, progress, check)
        except LeftRunning as left:
            self.spoilt = True
            detail = {"code": "template.left-running", "message": str(left), "phase": "schedule"}
            raise Refused({"status": "illegal_schedule", "detail": detail}) from None
        except Exception:
            raise
        except BaseException as error:  # nobody interrupts this process but what runs in it
            raise Refused(raised(error)) from None

    def scheduled(self, candidate: Candidate, message: Json, progress: Progress) -> Schedule | None:
        """The schedule of a candidate, made again where another process made its source; None where it cannot be."""
        if candidate.schedule is not None or self.work is None:
            return candidate.schedule
        progress("schedule")
        again = self.candidate({**message, "source": None}, quiet, check=False)
        if again.source.sha256 != candidate.source.sha256:
            detail = {"message": "the template made another source than in the builder", "phase": "schedule"}
            raise Refused(candidate.known | {"status": "nondeterministic", "detail": detail})
        return again.schedule


TIMED = ("measure", "baseline", "final")
"""Requests for which something is timed."""
KEPT = 16  # setups whose inputs and expected outputs stay in memory; others are made again, from the saved outputs
_states: dict[str, State] = {}


def handler(message: Json, progress: Progress) -> Json:
    """Answer one request."""
    clock = _Clock(progress)
    clock("setup")
    setup = message["setup"]
    state = _state_of(setup)
    if "expect" in message and (reason := _unfit(state, message["expect"])):
        return {"status": "unfit", "detail": {"message": reason}}
    answer: Callable[[State, Json, Progress], Json] = _ANSWERS[message["do"]]
    state.load = REST
    try:
        result = answer(state, message, clock)
    except Refused as refused:
        result = refused.result
    except Exception as error:
        if state.works():
            raise
        result = {"status": "launch_error", "detail": {"message": str(error)[:1000], "phase": "run"}}
    if state.spoilt or (result.get("status") != "ok" and not state.works()):
        result[LAST] = True
    if "expect" in message:
        result["device"] = describe(state.device)
    if message["do"] == "build" and "built" in result:
        result["built"]["seconds"] = clock.spent()
    if message["do"] == "measure":
        result["detail"] = {**result.get("detail", {}), "seconds": clock.spent()}
    if message["do"] in TIMED and (waited := state.waited()):
        result["detail"] = {**result.get("detail", {}), "waited": waited}
    return result


def _state_of(setup: Json) -> State:
    """The state of this setup; of the many that a cluster or a set of shapes sends, the latest are kept."""
    key = str(setup["key"])
    state = _states[key] = _states.pop(key) if key in _states else State(setup)  # last: used last
    while len(_states) > KEPT:
        del _states[next(iter(_states))]
    for other in _states.values():
        if other is not state:
            other.rest()
    return state


def _unfit(state: State, expected: Json) -> str:
    """Why what is measured here cannot be compared with what other workers measure; empty when it can."""
    try:
        found = fingerprint(describe(state.device), state.work)
    except (TensorIRError, ImportError) as error:
        return str(error).splitlines()[0]
    other = [f"{key} is {found.get(key)!s:.80}, not {value!s:.80}" for key, value in expected.items()
             if found.get(key) != value]  # fmt: skip
    return "; ".join(other)


class _Clock:
    """Passes phases on and remembers how long each took."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._marks: list[tuple[str, float]] = []

    def __call__(self, phase: str) -> None:
        self._marks.append((phase, time.perf_counter()))
        self._progress(phase)

    def spent(self) -> dict[str, float]:
        """Seconds by phase."""
        found: dict[str, float] = {}
        ends = [at for _, at in self._marks[1:]] + [time.perf_counter()]
        for (phase, began), end in zip(self._marks, ends, strict=True):
            name = WAIT if phase.startswith(f"{WAIT} ") else phase  # whoever has it
            found[name] = round(found.get(name, 0.0) + end - began, 4)
        return found


def _hello(state: State, message: Json, progress: Progress) -> Json:
    """Which device this is; one that cannot be opened, or a cache that others may write, is the caller's problem."""
    try:
        about = describe(state.device)
        default_cache()  # now: trials do not use it, what is handed out in the end does
    except TensorIRError as error:
        return {"status": "device", "problems": [encode(p) for p in error.problems]}
    names = [] if state.work is None else list(state.work.baselines)
    return {"status": "ok", "device": about, "baselines": names}


def _measure(state: State, message: Json, progress: Progress) -> Json:
    """Everything about one configuration, cheap refusals first: the interpreter costs more than the device."""
    began = time.perf_counter()
    beside = state.beside(message.get("reference"), progress)  # first: whose template it is may remember what it made
    candidate = state.candidate(message, progress, check=False)
    data = state.data(progress)
    progress("compile")
    runner = Runner(state.device, candidate, data, cache=False)
    best_s, pace = message["best_s"], state.drift
    runner.probe(best_s, pace, progress)
    runner.verify(progress)
    runner.bind()
    if best_s is not None:
        with state.timing(progress):
            runner.refuse_slow(best_s, pace, progress, beside)
    candidate.check(progress)
    state.load = REST
    with state.timing(progress):
        result = runner.time(progress, best_s, beside)
    result |= {"load": fields} if (fields := state.load.fields()) else {}
    state.drift = drift_of(result)
    if best_s is None or steady_s(result) < best_s:  # what may be handed out when the run ends early
        runner.schedule = state.scheduled(candidate, message, progress)
        runner.at_awkward_shape(state.device, progress)
        seconds = message.get("seconds")
        runner.try_floats(math.inf if seconds is None else began + seconds - time.perf_counter(), progress)
    return result


def _build(state: State, message: Json, progress: Progress) -> Json:
    """What can be done for one configuration while others are built: what is left is to run and time it."""
    candidate = state.candidate(message, progress, check=False)
    candidate.check(progress)
    data = state.data(progress)
    progress("compile")
    Runner(state.device, candidate, data, cache=False).warm(progress)
    made = {"source": encode(candidate.source), "known": candidate.known, "max_error": candidate.max_error}
    return {"status": "ok", "built": made}


def _digests(state: State, message: Json, progress: Progress) -> Json:
    """The SHA-256 of each source that the templates make, None where they make none."""
    found: list[str | None] = []
    for wanted in message["wanted"]:
        try:
            found.append(state.candidate(wanted, progress, check=False).source.sha256)
        except Refused:
            found.append(None)
    return {"status": "ok", "digests": found}


def _check(state: State, message: Json, progress: Progress) -> Json:
    """Every check that there is, each with its outcome; stops at the first that fails."""
    checks: list[Json] = []
    try:
        candidate = state.candidate(message, progress)
        shapes = (candidate.known.get("check") or {}).get("shapes", [])
        detail = f"on {len(shapes)} shapes" if shapes else "edited text: on the device only"
        checks.append({"name": "interpreter", "ok": True, "detail": detail})
        data = state.data(progress)
        progress("compile")
        runner = Runner(state.device, candidate, data, cache=True)
        checks.append({"name": "compile", "ok": True, "detail": f"{runner.program.compile_s:.2f} s"})
        runner.verify(progress)
        how = "equal to the last bit" if data.exact else f"largest error {runner.known['check']['max_err']:.2g}"
        checks.append({"name": "device", "ok": True, "detail": f"integers: {how}; nothing else written"})
        runner.bind()
        runner.compare_again()
        checks.append({"name": "repeatable", "ok": True, "detail": "the same bits again"})
        checks.append(_on_random_floats(state, runner, progress))
    except Refused as refused:
        detail = refused.result.get("detail", {})
        name = {"schedule": "schedule", "emit": "schedule", "check": "interpreter", "compile": "compile"}
        label = name.get(str(detail.get("phase")), "device")
        words = f"{refused.result['status']}: {detail.get('where') or detail.get('message') or ''}"
        checks.append({"name": label, "ok": False, "detail": words})
    return {"status": "ok", "ok": all(c["ok"] for c in checks), "checks": checks}


def _on_random_floats(state: State, runner: Runner, progress: Progress) -> Json:
    """Every digit in use, within what rounding explains."""
    if state.work is None:
        return {"name": "random", "ok": True, "detail": "left out: the reference is not here"}
    if not state.data(progress).continuous:
        return {"name": "random", "ok": True, "detail": "left out: results jump where sums are rounded"}
    progress("reference")
    floats = Floats.of(state.work, 3)
    progress("run")
    got = runner.program(*floats.arrays)
    found = compare_floats(runner.source, each(got), floats, runner.max_error)
    detail = found.where or f"normal floats: largest error {found.max_err:.2g}"
    return {"name": "random", "ok": not found.where, "detail": detail}


def _guarded(state: State, message: Json, progress: Progress) -> Json:
    """A text that nobody has run before, between canaries; see ``api.unproven``."""
    return answer(state.device, decode(Source, message["source"]), Path(message["folder"]), progress)


def _baseline(state: State, message: Json, progress: Progress) -> Json:
    """The fastest peer, timed briefly in turn with the reference: for progress lines only."""
    beside = state.beside(message.get("reference"), progress)
    data = state.data(progress)
    found = peers_here(state, data, progress)
    inputs, _ = data.fresh()
    calls = {name: partial(call, *inputs) for name, call in found.items()}
    if not calls:
        return {"status": "ok", "name": None}
    times = {}
    with state.timing(progress):
        for name, call in calls.items():
            progress("baseline")
            times[name] = rough(call)
        name = min(times, key=lambda n: times[n])
        others = [] if beside is None else [(beside.bound, beside.seconds)]
        rounds, began = Rounds([(calls[name], times[name]), *others], [0]), time.perf_counter()
        while len(rounds.samples[0]) < BASELINE_ROUNDS and time.perf_counter() < began + BASELINE_S:
            rounds.run()
    anchor, unit = (None, None) if beside is None else (1, beside.seconds)
    return {"status": "ok", "name": name, **about(rounds.estimates(anchor, unit)[0]), "load": state.load.fields()}


_ANSWERS: dict[str, Callable[[State, Json, Progress], Json]] = {
    "hello": _hello,
    "measure": _measure,
    "build": _build,
    "digests": _digests,
    "check": _check,
    "guarded": _guarded,
    "baseline": _baseline,
    "final": final,
}


if __name__ == "__main__":
    # trees are made of small nodes, hardly any in cycles: looking for those every 700 nodes takes a tenth of lowering
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    serve(handler)
