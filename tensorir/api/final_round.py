"""The final round in a worker: finalists are rebuilt, rechecked, and timed interleaved with each other and
libraries.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tensorir.api.bench import Runner, timed, told_pace
from tensorir.api.candidate import Progress, Refused
from tensorir.api.floats import Floats
from tensorir.api.outputs import SEED, Data, compare, each
from tensorir.api.questions import Final, Wanted
from tensorir.api.worker_state import State
from tensorir.runtime.estimate import Estimate, Rounds, settle
from tensorir.runtime.timing import slots
from tensorir.runtime.turns import HELD_S
from tensorir.tune.race import Race, reconciled
from tensorir.tune.trial import CANCELLED, FinalRound, Outcome, Peer, Standing

RACE_ROUNDS = 30
LEAST_ROUNDS = 9  # before the race begins, if there is time for them at all
ROUNDS_PER_LOOK = 3  # rounds between two looks at the clock
WARM_CALLS, LOOK_S = 5, 0.2  # calls, or seconds, of a library before it is timed
DRAW_S = 5e-8  # a random number


def peers_here(state: State, data: Data, progress: Progress) -> dict[str, Callable[..., Any]]:
    """{name: function of the inputs} of the installed libraries whose results are right; {} without a workload.

    torch is tried first; if its results are right, no other library is tried.
    """
    if state.work is None:
        return {}
    inputs, expected = data.fresh()
    offered = state.work.baselines
    found: dict[str, Callable[..., Any]] = {}
    for name in sorted(offered, key=lambda n: n != "torch"):
        progress("baseline")
        call = offered[name]
        try:
            got = call(*inputs)
        except Exception:  # a peer that is missing or broken is no peer
            continue
        if not compare(data.outputs, each(got), expected, False).where:
            found[name] = call
        if found and name == "torch":
            break
    return found


def final(state: State, question: Final, progress: Progress) -> FinalRound:
    """Finalists' outcomes and the fastest library's time: finalists are rebuilt, rechecked, and timed interleaved with
    libraries.
    """
    began = time.perf_counter()
    end = None if question.seconds is None else began + question.seconds
    data = state.data(progress)
    peers = peers_here(state, data, progress) if question.peers else {}
    if not question.all_peers:
        peers = _fastest(peers, data.fresh()[0], progress)
    results = [CANCELLED for _ in question.finalists]
    runners: dict[int, Runner] = {}
    for n in _order(len(results)):
        if end is not None and runners and time.perf_counter() > began + 0.6 * (end - began):
            break
        try:
            runners[n] = _finalist(state, question.finalists[n], data, progress, n)
        except Refused as refused:
            results[n] = _out(state, n, refused)
    _elsewhere(runners, results, state, began, end, progress)
    arrays = _on_floats(runners, results, state, data, question.floats, end, progress)
    ours, theirs = _in_turn(state, question, runners, [partial(p, *arrays) for p in peers.values()], end, progress)
    standings = _raced(state, [r.bound for r in runners.values()], ours, end, question.race_s, progress)
    load = state.load.rounded()
    for (n, runner), timed_ in zip(runners.items(), _as_outcomes(ours, standings), strict=True):
        try:
            runner.compare_over()
            results[n] = replace(timed_, load=load).knowing(runner.candidate.known)
        except Refused as refused:
            results[n] = _out(state, n, refused)
    against = tuple(peer_of(name, found) for name, found in zip(peers, theirs, strict=True))
    best = min(against, key=lambda p: p.time_s, default=None)
    return FinalRound(tuple(results), best, load, against)


def peer_of(name: str, found: Estimate) -> Peer:
    """A Peer with a library's estimated time."""
    return Peer(name, found.seconds, found.low_s, found.high_s, found.spread, found.samples)


def _on_floats(
    runners: dict[int, Runner], results: list[Outcome], state: State, data: Data, seed: int, end: float | None,
    progress: Progress,
) -> list[Any]:  # fmt: skip
    """Verify finalists on new random floats, on which they are then timed (power draw and clock of a GPU depend on the
    data); returns the inputs.

    No comparison where the reference is too slow or right results may differ (``is_continuous``); integers are kept
    where drawing floats is too slow.
    """
    left = math.inf if end is None else end - time.perf_counter()
    numbers = sum(math.prod(a.shape) for a in state.setup.arguments)
    if 4 * numbers * DRAW_S > left:
        return data.fresh()[0]
    progress("reference")
    if state.work is None:  # the process that knows the reference has left one set of floats here, if any
        if (kept := data.floats(left)) is None:
            return data.fresh()[0]
        floats, seed = kept.as_floats(), SEED
    elif not data.continuous or 4 * data.reference_s > left:
        floats = Floats(state.work.random_inputs(seed), None, float)
    else:
        floats = Floats.of(state.work, seed)
    for n in list(runners):
        progress(f"run {n}")
        try:
            runners[n].on_floats(floats, f"normal floats {seed}")
        except Refused as refused:
            results[n] = _out(state, n, refused)
            del runners[n]
    return list(floats.arrays)


def _out(state: State, n: int, refused: Refused) -> Outcome:
    """Outcome of finalist ``n`` that failed; raises Refused if the device no longer works, so that others are retried
    in a new process.
    """
    if not state.works():
        raise Refused(refused.outcome.telling(phase=f"run {n}"))
    return refused.outcome


def _raced(
    state: State, calls: list[Any], found: list[Estimate], end: float | None, patience: float, progress: Progress
) -> list[Standing]:
    """Race the finalists until decided, or ``patience`` or time runs out; [] without a round."""
    if len(calls) < 2:
        return []
    timers = slots(calls, min(e.seconds for e in found))
    race = Race(len(timers))
    stop = min(time.perf_counter() + patience, end or math.inf)
    longest = sum(e.seconds for e in found)

    def going() -> bool:
        return not race.decided and time.perf_counter() + longest < stop

    while going():
        with state.timing(progress):
            began = time.perf_counter()
            while going() and time.perf_counter() < began + HELD_S:
                started = time.perf_counter()
                race.add({n: timers[n]() for n in race.order()})
                longest = 1.2 * (time.perf_counter() - started)
    return race.standings() if race.rounds else []


def _as_outcomes(found: list[Estimate], standings: list[Standing]) -> list[Outcome]:
    """Outcome of each finalist: its estimate, rescaled by the race's ratios if they raced."""
    if not standings:
        return [timed(e, told_pace(e.pace)) for e in found]
    seconds = reconciled([e.seconds for e in found], standings)
    scaled = [e.scaled(s / e.seconds) for e, s in zip(found, seconds, strict=True)]
    return [replace(timed(e, told_pace(e.pace)), race=s) for e, s in zip(scaled, standings, strict=True)]


def _elsewhere(
    runners: dict[int, Runner],
    results: list[Outcome],
    state: State,
    began: float,
    end: float | None,
    progress: Progress,
) -> None:
    """Verify each finalist at a small shape with remainders while time remains; a wrong one is removed from ``runners``
    and gets its Outcome in ``results``.
    """
    for n in list(runners):
        if end is not None and time.perf_counter() > began + 0.6 * (end - began):
            return

        def named(phase: str, n: int = n) -> None:
            progress(f"{phase} {n}")

        try:
            runners[n].at_awkward_shape(state.device, named)
        except Refused as refused:
            results[n] = _out(state, n, refused)
            del runners[n]


def _order(count: int) -> list[int]:
    """Finalist numbers in order of checking: fastest, default (the last), others."""
    return list(dict.fromkeys([0, count - 1, *range(count)])) if count else []


def _fastest(
    peers: dict[str, Callable[..., Any]], inputs: list[Any], progress: Progress
) -> dict[str, Callable[..., Any]]:
    """Libraries within a third of the fastest one, by short measurements."""
    times = {}
    for name, call in peers.items():
        progress("baseline")
        times[name] = rough(partial(call, *inputs))
    best = min(times.values(), default=0.0)
    return {name: call for name, call in peers.items() if times[name] <= 1.33 * best}


def rough(call: Callable[[], object]) -> float:
    """Approximate seconds of one call (minimum of a few after warm-up), to size measurements."""
    settle()
    call()
    times = list[float]()
    while len(times) < WARM_CALLS and sum(times) < LOOK_S:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def _finalist(state: State, wanted: Wanted, data: Data, progress: Progress, n: int) -> Runner:
    def named(phase: str) -> None:
        progress(f"{phase} {n}")

    candidate = state.candidate(wanted, named, check=False)  # its trial did that, on the same source
    if wanted.sha256 and candidate.source.sha256 != wanted.sha256:
        detail = {"message": "the template made another source than in the trial", "phase": "final"}
        raise Refused(Outcome("nondeterministic", detail))  # said of the trial's source
    named("compile")
    runner = Runner(state.device, candidate, data, cache=True)
    runner.verify(named)
    runner.bind()
    return runner


def _in_turn(
    state: State, question: Final, runners: dict[int, Runner], peers: list[Callable[[], Any]], end: float | None,
    progress: Progress,
) -> tuple[list[Estimate], list[Estimate]]:  # fmt: skip
    """(estimates of the finalists, estimates of the libraries) from interleaved rounds with the reference.

    Without a reference, all are paired with the first finalist, and times are those of the present pace.
    """
    if not runners:
        return [], []
    reference = question.reference
    with state.timing(progress):
        ours = [(r.bound, min(r.once(), r.once())) for r in runners.values()]
    digests = [r.source.sha256 for r in runners.values()]
    sha256 = "" if reference is None else reference.wanted.sha256
    kernel = None if sha256 in digests else state.reference_kernel(reference, progress)
    anchor, unit, others = 0, None, []
    if reference is not None and sha256 in digests:
        anchor, unit = digests.index(sha256), reference.seconds
    elif kernel is not None:
        anchor, unit, others = len(ours), kernel.seconds, [(kernel.bound, kernel.seconds)]
    with state.timing(progress):
        calls = [*ours, *others, *((p, rough(p)) for p in peers)]
    rounds = Rounds(calls, range(len(calls) - len(peers), len(calls)))
    half = end if end is None or len(runners) < 2 else (time.perf_counter() + end) / 2
    longest = 0.0
    for _ in range(RACE_ROUNDS // ROUNDS_PER_LOOK):
        started = time.perf_counter()
        with state.timing(progress):
            for _ in range(ROUNDS_PER_LOOK):
                rounds.run()
        longest = max(longest, time.perf_counter() - started)
        stop = end if len(rounds.samples[0]) < LEAST_ROUNDS else half
        if stop is not None and time.perf_counter() + 1.2 * longest > stop:
            break
    found = rounds.estimates(anchor, unit)
    return found[: len(ours)], found[len(calls) - len(peers) :]
