"""The measuring process (``__main__``): makes, checks, compiles, runs and times candidates on request.

It may crash or hang at any time. Requests and replies are JSON; the supervisor kills this process when a phase exceeds
its time limit, and starts another one, so all state kept here can be recomputed.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tensorir.api.bench import TURN_PHASE, Runner
from tensorir.api.candidate import Progress, Refused
from tensorir.api.final_round import final, peer_of, peers_here, rough
from tensorir.api.floats import Floats
from tensorir.api.identity import describe, fingerprint
from tensorir.api.outputs import compare_floats, each
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
    Unusable,
)
from tensorir.api.unproven import answer
from tensorir.api.worker_state import State
from tensorir.codec import decode, encode
from tensorir.errors import TensorIRError
from tensorir.runtime.cache import default_cache
from tensorir.runtime.estimate import Rounds
from tensorir.runtime.machine import NO_LOAD
from tensorir.tune.process import serve
from tensorir.tune.trial import Outcome, Reply

BASELINE_ROUNDS, BASELINE_S = 10, 0.7  # of a first look at a library, at most
TIMED_QUESTIONS = (Measure, FirstPeer, Final)
"""Questions for which something is timed."""
MAX_KEPT_SETUPS = 16
"""Setups whose inputs and expected outputs stay in memory; others are made again, from the saved outputs."""
_states: dict[str, State] = {}


def handler(message: Mapping[str, object], progress: Progress) -> dict[str, object]:
    """Answer one request; message and reply are JSON data."""
    return encode(answered(decode(Request, message), progress))


def answered(request: Request, progress: Progress) -> Reply:
    """Reply to a request: "unfit" if the device is not as ``expect`` says, a refused configuration's outcome, or the
    answer. Other exceptions are raised, unless the device stopped working ("launch_error").
    """
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


def _answer(answer: Any) -> Reply:
    """Return a Reply with this answer."""
    return Reply("ok", answer=encode(answer))


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


if __name__ == "__main__":
    # trees are made of small nodes, hardly any in cycles: looking for those every 700 nodes takes a tenth of lowering
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    serve(handler)
