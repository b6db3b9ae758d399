"""The measuring process (``__main__``): makes, checks, compiles, runs and times candidates on request.

It may crash or hang at any time. Requests and replies are JSON; the supervisor kills this process when a phase exceeds
its time limit, and starts another one, so all state kept here can be recomputed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorir.api.bench import REFERENCE_FILE, REFERENCE_PHASE, TURN_PHASE, ReferenceKernel, Runner
from tensorir.api.candidate import Candidate, Progress, Refused, prepare, quiet, raised
from tensorir.api.final_round import final, peer_of, peers_here, rough
from tensorir.api.floats import Floats
from tensorir.api.identity import describe, fingerprint
from tensorir.api.origin import rebuild
from tensorir.api.outputs import Data, compare_floats, each
from tensorir.api.questions import (
    Build,
    Checked,
    Checks,
    DeviceDescription,
    Digest,
    Digests,
    Examine,
    Final,
    FirstPeer,
    Guarded,
    Hello,
    Measure,
    Question,
    Ready,
    Request,
    Setup,
    Standard,
    Unusable,
    Wanted,
)
from tensorir.api.unproven import answer
from tensorir.codec import decode, encode
from tensorir.errors import CheckError, Problem, TensorIRError
from tensorir.runtime.cache import default_cache
from tensorir.runtime.device import Device, open_device
from tensorir.runtime.estimate import Rounds
from tensorir.runtime.machine import NO_LOAD, Section
from tensorir.runtime.turns import DeviceTurns
from tensorir.tune.process import bound_memory, serve
from tensorir.tune.record import MAX_DRIFT
from tensorir.tune.trial import Outcome, Reply

if TYPE_CHECKING:
    from tensorir.api.schedule import Schedule
    from tensorir.api.workload import Workload


COMPILE_BYTES = 8 << 30  # bytes for compiling and checking, and
MAX_ARRAY_COPIES = 20  # of inputs, outputs and intermediate arrays: more than that is a candidate out of control
MOST_BYTES = 1 << 30  # of what the reference keeps on the device,
FINISH_S = 1e-3  # that waiting for one launch may add
BASELINE_ROUNDS, BASELINE_S = 10, 0.7  # of a first look at a library, at most


class State:
    """Cached objects of one setup in this process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._work: Workload | None = None
        self._device: Device | None = None
        self._data: Data | None = None
        self._kernel: tuple[str, ReferenceKernel | None] | None = None  # the reference, by its name
        self.spoilt = False  # by what a template left running
        self._turns: DeviceTurns | None = None
        self.load = NO_LOAD  # what else the machine did during the timings of the present answer
        self.drift = 1.0  # how much slower the machine was in the last trial than when the reference was timed first

    @property
    def device(self) -> Device:
        """The opened device of the setup; opened on first use, on a CPU with a limit on this process's memory."""
        if self._device is None:
            self._device = open_device(self.setup.device)
            if self._device.target.kind == "cpu":
                bound_memory(COMPILE_BYTES + MAX_ARRAY_COPIES * 8 * self.setup.elements)
        return self._device

    @property
    def turns(self) -> DeviceTurns:
        """Turns of timing on this device, shared with other processes."""
        if self._turns is None:
            self._turns = DeviceTurns(self.device.place, self.setup.title, self.setup.wait)
        return self._turns

    def waited(self) -> list[dict[str, object]]:
        """``{"pid", "workload", "seconds"}`` of each other process waited for since the last call."""
        return [] if self._turns is None else self._turns.waited()

    @contextlib.contextmanager
    def timing(self, progress: Progress) -> Iterator[None]:
        """Context manager: exclusive use of the device among tunings; other load is recorded in ``load``."""
        with self.turns.turn(lambda: progress("{} {pid} {workload}".format(TURN_PHASE, **self.turns.holder()))):
            progress("time")
            section = Section()
            try:
                with section:
                    yield
            finally:
                self.load += section.load

    def works(self) -> bool:
        """True if this process can still measure: no stray threads, device usable."""
        return not self.spoilt and (self._device is None or self._device.works())

    @property
    def work(self) -> Workload | None:
        """The recreated Workload; None if only its sources are known."""
        if self._work is None and self.setup.origin is not None:
            self._work = rebuild(self.setup.origin)
        return self._work

    def data(self, progress: Progress) -> Data:
        """Inputs and expected outputs, cached."""
        if self._data is None:
            given = self.setup
            made = Data(
                given.arguments, given.exact, given.outputs, given.folder, self._reference, continuous=given.continuous
            )
            progress("reference")
            made.fresh()
            self._data = made
        return self._data

    def _reference(self, *arrays: Any) -> Any:
        if self.work is None:
            raise CheckError(Problem("workload.reference", "the expected outputs of this workload are gone"))
        return self.work.reference(*arrays)

    def reference_kernel(self, reference: Standard | None, progress: Progress) -> ReferenceKernel | None:
        """The run's reference kernel, ready to be timed with a candidate; None where there is none or it fails."""
        if reference is None:
            return None
        if self._kernel is None or self._kernel[0] != reference.name:
            progress(REFERENCE_PHASE)
            self._kernel = (reference.name, None)  # should it fail it is not tried again
            with contextlib.suppress(Refused, TensorIRError, OSError, ValueError):
                self._kernel = (reference.name, self._made_kernel(reference))
        return self._kernel[1]

    def _made_kernel(self, reference: Standard) -> ReferenceKernel | None:
        """The reference kernel; None if too large, changed, or of another speed than recorded."""
        wanted, seconds = reference.wanted, reference.seconds
        if self.setup.origin is None:
            made = json.loads(Path(self.setup.folder, REFERENCE_FILE).read_bytes())
            wanted = replace(wanted, ready=decode(Ready, made))
        candidate = self.candidate(wanted, quiet, check=False)
        if candidate.source.sha256 != wanted.sha256 or 8 * self.setup.elements > MOST_BYTES:
            return None  # the template has been changed since, or candidates may need the room
        runner = Runner(self.device, candidate, self.data(quiet), cache=True)
        runner.bound = runner.program.bind(*runner.inputs)
        took = min(runner.once() for _ in range(3))
        if not seconds / MAX_DRIFT < took < seconds * MAX_DRIFT + FINISH_S:
            return None
        return ReferenceKernel(runner.bound, seconds)

    def rest(self) -> None:
        """Free device memory held between trials."""
        self._kernel = None

    def candidate(self, wanted: Wanted, progress: Progress, check: bool = True) -> Candidate:
        """Candidate of one configuration: its source received with the request, or made here; raises Refused if that
        fails.
        """
        if wanted.ready is not None:
            return Candidate(wanted.ready.source, wanted.ready.known, None, wanted.ready.max_error)
        assert self.work is not None
        device = self.device
        try:
            with undisturbed():
                return prepare(self.work, wanted.template, wanted.config, device.target, progress, check)
        except LeftRunning as left:
            self.spoilt = True
            detail = {"code": "template.left-running", "message": str(left), "phase": "schedule"}
            raise Refused(Outcome("illegal_schedule", detail)) from None
        except Exception:
            raise
        except BaseException as error:  # nobody interrupts this process but what runs in it
            raise Refused(raised(error)) from None

    def scheduled(self, candidate: Candidate, wanted: Wanted, progress: Progress) -> Schedule | None:
        """Schedule of a candidate, made again if another process made its source; None without a workload here. Raises
        Refused if the source differs now.
        """
        if candidate.schedule is not None or self.work is None:
            return candidate.schedule
        progress("schedule")
        again = self.candidate(replace(wanted, ready=None), quiet, check=False)
        if again.source.sha256 != candidate.source.sha256:
            detail = {"message": "the template made another source than in the builder", "phase": "schedule"}
            raise candidate.ended(Outcome("nondeterministic", detail))
        return again.schedule


TIMED_QUESTIONS = (Measure, FirstPeer, Final)
"""Questions for which something is timed."""
MAX_KEPT_SETUPS = (
    16  # setups whose inputs and expected outputs stay in memory; others are made again, from the saved outputs
)
_states: dict[str, State] = {}


def handler(message: Mapping[str, object], progress: Progress) -> dict[str, object]:
    """Answer one request; message and reply are JSON data."""
    return encode(answered(decode(Request, message), progress))


def answered(request: Request, progress: Progress) -> Reply:
    """Return the Reply to a request."""
    clock = _Clock(progress)
    clock("setup")
    state = _state_of(request.setup)
    if request.expect is not None and (reason := _unfit(state, request.expect)):
        return Reply("unfit", {"message": reason})
    question = request.asked()
    state.load = NO_LOAD
    try:
        reply = _ANSWERS[type(question)](state, question, clock)
    except Refused as refused:
        reply = Reply.just(refused.outcome)
    except Exception as error:
        if state.works():
            raise
        reply = Reply("launch_error", {"message": str(error)[:1000], "phase": "run"})
    return _completed(reply, request, question, state, clock)


def _completed(reply: Reply, request: Request, question: Question, state: State, clock: _Clock) -> Reply:
    """``reply`` with fields common to all replies added: the device, seconds per phase, waits for other processes, and
    ``last`` if this process cannot continue.
    """
    if state.spoilt or (not reply.ok and not state.works()):
        reply = replace(reply, last=True)
    if request.expect is not None:
        reply = replace(reply, device=describe(state.device))
    if isinstance(question, Measure) or (isinstance(question, Build) and reply.ok):
        reply = reply.telling(seconds=clock.spent())
    if isinstance(question, TIMED_QUESTIONS) and (waited := state.waited()):
        reply = reply.telling(waited=waited)
    return reply


def _answer(answer: Any, **more: Any) -> Reply:
    """Return a Reply with this answer."""
    return Reply("ok", answer=encode(answer), **more)


def _state_of(setup: Setup) -> State:
    """State for a setup; the most recently used ones are kept."""
    key = setup.key
    state = _states[key] = _states.pop(key) if key in _states else State(setup)  # last: used last
    while len(_states) > MAX_KEPT_SETUPS:
        del _states[next(iter(_states))]
    for other in _states.values():
        if other is not state:
            other.rest()
    return state


def _unfit(state: State, expected: Mapping[str, object]) -> str:
    """Reason why measurements here are not comparable with other workers'; "" if they are."""
    try:
        found = fingerprint(describe(state.device), state.work)
    except (TensorIRError, ImportError) as error:
        return str(error).splitlines()[0]
    other = [f"{key} is {found.get(key)!s:.80}, not {value!s:.80}" for key, value in expected.items()
             if found.get(key) != value]  # fmt: skip
    return "; ".join(other)


class _Clock:
    """Progress callback that forwards phases and times them."""

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
            name = TURN_PHASE if phase.startswith(f"{TURN_PHASE} ") else phase  # whoever has it
            found[name] = round(found.get(name, 0.0) + end - began, 4)
        return found


def _hello(state: State, question: Hello, progress: Progress) -> Reply:
    """Reply with the device's description, or its problems."""
    try:
        about = describe(state.device)
        default_cache()  # now: trials do not use it, what is handed out in the end does
    except TensorIRError as error:
        return Reply("device", answer=encode(Unusable(error.problems)))
    return _answer(DeviceDescription(about, () if state.work is None else tuple(state.work.baselines)))


def _measure(state: State, question: Measure, progress: Progress) -> Reply:
    """Measure one configuration, cheapest checks first; returns the reply with its outcome."""
    began, best_s = time.perf_counter(), question.best_s
    kernel = state.reference_kernel(
        question.reference, progress
    )  # first: whose template it is may remember what it made
    candidate = state.candidate(question.wanted, progress, check=False)
    data = state.data(progress)
    progress("compile")
    runner = Runner(state.device, candidate, data, cache=False)
    pace = state.drift
    runner.probe(best_s, pace, progress)
    runner.verify(progress)
    runner.bind()
    if best_s is not None:
        with state.timing(progress):
            runner.refuse_slow(best_s, pace, progress, kernel)
    candidate.check(progress)
    state.load = NO_LOAD
    with state.timing(progress):
        outcome = runner.time(progress, best_s, kernel)
    state.drift = outcome.drift or 1.0
    if best_s is None or outcome.steady_s < best_s:  # what may be handed out when the run ends early
        runner.schedule = state.scheduled(candidate, question.wanted, progress)
        runner.at_awkward_shape(state.device, progress)
        left = math.inf if question.seconds is None else began + question.seconds - time.perf_counter()
        runner.try_floats(left, progress)
    return Reply.just(replace(outcome, check=candidate.known.check, load=state.load.rounded()))


def _build(state: State, question: Build, progress: Progress) -> Reply:
    """Reply with a configuration's source after scheduling, checking and compiling it, ready to be measured
    elsewhere.
    """
    candidate = state.candidate(question.wanted, progress, check=False)
    candidate.check(progress)
    data = state.data(progress)
    progress("compile")
    Runner(state.device, candidate, data, cache=False).warm(progress)
    return _answer(Ready(candidate.source, candidate.known, candidate.max_error))


def _digests(state: State, question: Digest, progress: Progress) -> Reply:
    """Reply with each source's SHA-256, None where the template fails."""
    found: list[str | None] = []
    for wanted in question.wanted:
        try:
            found.append(state.candidate(wanted, progress, check=False).source.sha256)
        except Refused:
            found.append(None)
    return _answer(Digests(tuple(found)))


def _examine(state: State, question: Examine, progress: Progress) -> Reply:
    """Reply with the results of all checks up to the first failure."""
    checks: list[Checked] = []
    try:
        candidate = state.candidate(question.wanted, progress)
        shapes = () if candidate.known.check is None else candidate.known.check.shapes
        detail = f"on {len(shapes)} shapes" if shapes else "edited text: on the device only"
        checks.append(Checked("interpreter", True, detail))
        data = state.data(progress)
        progress("compile")
        runner = Runner(state.device, candidate, data, cache=True)
        checks.append(Checked("compile", True, f"{runner.program.compile_s:.2f} s"))
        runner.verify(progress)
        assert candidate.known.check is not None
        how = (
            "equal to the last bit" if data.exact else f"largest error {float(candidate.known.check.max_err or 0):.2g}"
        )
        checks.append(Checked("device", True, f"integers: {how}; nothing else written"))
        runner.bind()
        runner.compare_again()
        checks.append(Checked("repeatable", True, "the same bits again"))
        checks.append(_on_random_floats(state, runner, progress))
    except Refused as refused:
        checks.append(_failed_check(refused.outcome))
    return _answer(Checks(tuple(checks)))


def _failed_check(outcome: Outcome) -> Checked:
    """The failed check that an outcome describes."""
    names = {"schedule": "schedule", "emit": "schedule", "check": "interpreter", "compile": "compile"}
    why = outcome.told.get("where") or outcome.told.get("message") or ""
    return Checked(names.get(outcome.phase, "device"), False, f"{outcome.status}: {why}")


def _on_random_floats(state: State, runner: Runner, progress: Progress) -> Checked:
    """Check on full-precision random floats, within rounding."""
    if state.work is None:
        return Checked("random", True, "left out: the reference is not here")
    if not state.data(progress).continuous:
        return Checked("random", True, "left out: results jump where sums are rounded")
    progress("reference")
    floats = Floats.of(state.work, 3)
    progress("run")
    got = runner.program(*floats.arrays)
    found = compare_floats(runner.source, each(got), floats, runner.max_error)
    detail = found.where or f"normal floats: largest error {found.max_err:.2g}"
    return Checked("random", not found.where, detail)


def _guarded(state: State, question: Guarded, progress: Progress) -> Reply:
    """Run an untrusted source on arrays from the question's folder; results are written there. Reply "refused" if it
    fails.
    """
    return answer(state.device, question.source, Path(question.folder), progress)


def _first_peer(state: State, question: FirstPeer, progress: Progress) -> Reply:
    """Reply with the fastest library's time, briefly measured, for progress lines."""
    kernel = state.reference_kernel(question.reference, progress)
    data = state.data(progress)
    found = peers_here(state, data, progress)
    inputs, _ = data.fresh()
    calls = {name: partial(call, *inputs) for name, call in found.items()}
    if not calls:
        return Reply("ok")
    times = {}
    with state.timing(progress):
        for name, call in calls.items():
            progress("baseline")
            times[name] = rough(call)
        name = min(times, key=lambda n: times[n])
        others = [] if kernel is None else [(kernel.bound, kernel.seconds)]
        rounds, began = Rounds([(calls[name], times[name]), *others], [0]), time.perf_counter()
        while len(rounds.samples[0]) < BASELINE_ROUNDS and time.perf_counter() < began + BASELINE_S:
            rounds.run()
    anchor, unit = (None, None) if kernel is None else (1, kernel.seconds)
    return _answer(replace(peer_of(name, rounds.estimates(anchor, unit)[0]), load=state.load.rounded()))


def _final(state: State, question: Final, progress: Progress) -> Reply:
    """Reply with the final round's outcomes: finalists timed interleaved, and libraries' times."""
    return _answer(final(state, question, progress))


_ANSWERS: dict[type[Question], Callable[[State, Any, Progress], Reply]] = {
    Hello: _hello,
    Measure: _measure,
    Build: _build,
    Digest: _digests,
    Examine: _examine,
    Guarded: _guarded,
    FirstPeer: _first_peer,
    Final: _final,
}


# What a user's function may do to the measuring process: what is put back, so that others do not pay for it.

IDLE_PROCESSES = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""In their command lines: helpers of multiprocessing that outlive what it was used for, and sleep until the end."""
IDLE_THREADS = ("tqdm.",)
"""Modules whose threads look every few seconds whether there is something to do."""


class LeftRunning(Exception):  # an outcome of a measurement, not a failure of the program
    """A user's function left threads or processes running, which would disturb later timings.

    Sleeping helpers of libraries are tolerated.
    """


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Context manager around a user's template: restores working directory, environment, limits and timers; raises
    LeftRunning.

    A forked copy of this process (``os.fork``) that returns from the template is ended here, as both would answer the
    supervisor.
    """
    owner, before, threads, children = os.getpid(), _state(), set(threading.enumerate()), _children()
    try:
        yield
    finally:
        if os.getpid() != owner:
            os._exit(1)
        _put_back(before)
        mine = [f"thread {t.name}" for t in threading.enumerate() if t not in threads and not _idle_thread(t)]
        left = sorted(_children() - children)
        mine += [f"process {pid}" for pid in left if _runs(pid) and not _idle_process(pid)]
        if mine:
            raise LeftRunning(f"{', '.join(mine[:3])}{' and others' if len(mine) > 3 else ''} still running")


def _state() -> dict[str, Any]:
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "umask": mask,
        "folder": _folder(),
        "environment": dict(os.environ),
        "limits": _limits(),
        "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "streams": (sys.stdout, sys.stderr),
        "watchers": (sys.gettrace(), sys.getprofile()),
        "depth": sys.getrecursionlimit(),
        "errors": np.geterr(),
        "timers": {t: signal.getitimer(t) for t in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)},
    }


def _put_back(before: dict[str, Any]) -> None:
    trace, profile = before["watchers"]
    sys.settrace(trace)
    sys.setprofile(profile)
    sys.setrecursionlimit(before["depth"])
    sys.stdout, sys.stderr = before["streams"]
    np.seterr(**before["errors"])
    os.umask(before["umask"])
    for timer, values in before["timers"].items():
        signal.setitimer(timer, *values)
    if dict(os.environ) != before["environment"]:
        os.environ.clear()
        os.environ.update(before["environment"])
    if before["folder"] is not None and _folder() != before["folder"]:
        with contextlib.suppress(OSError):
            os.chdir(before["folder"])
    if before["cores"] is not None and os.sched_getaffinity(0) != before["cores"]:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before["cores"])
    for limit, values in _limits().items():
        if values != before["limits"][limit]:
            _set_limit(limit, before["limits"][limit])


def _folder() -> str | None:
    with contextlib.suppress(OSError):  # it was removed
        return os.getcwd()
    return None


def _limits() -> dict[int, tuple[int, int]]:
    try:
        import resource  # here, because some systems lack it
    except ImportError:
        return {}
    names = ("FSIZE", "NOFILE", "CPU", "AS", "DATA", "STACK", "NPROC")
    found = [getattr(resource, f"RLIMIT_{name}", None) for name in names]
    return {limit: resource.getrlimit(limit) for limit in found if limit is not None}


def _set_limit(limit: int, values: tuple[int, int]) -> None:
    import resource

    with contextlib.suppress(OSError, ValueError):  # what was lowered for good
        resource.setrlimit(limit, values)


def _children() -> set[int]:
    """Process ids of unreaped child processes; empty if the system cannot tell."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):  # a thread that has just ended
            found.update(int(pid) for pid in path.read_text(encoding="ascii").split())
    return found


def _idle_thread(thread: threading.Thread) -> bool:
    return thread.daemon and type(thread).__module__.startswith(IDLE_THREADS)


def _idle_process(pid: int) -> bool:
    """True if a child is a known helper and sleeps."""
    with contextlib.suppress(OSError, IndexError):
        if any(name in Path(f"/proc/{pid}/cmdline").read_bytes() for name in IDLE_PROCESSES):
            return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"S"
    return False


def _runs(pid: int) -> bool:
    """True if a child has not exited; does not reap it."""
    with contextlib.suppress(OSError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False


if __name__ == "__main__":
    # trees are made of small nodes, hardly any in cycles: looking for those every 700 nodes takes a tenth of lowering
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    serve(handler)
