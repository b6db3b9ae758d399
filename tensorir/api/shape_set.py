"""Tuning several shapes under one budget: who is next, what they learn from each other, and which kernels to keep."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from tensorir.api.channel import Shared
from tensorir.api.identity import distance
from tensorir.api.neighbours import FEW
from tensorir.api.places import device_names
from tensorir.api.shape_outcome import Portfolio, SetOutcome, ShapeResult
from tensorir.api.shape_search import FINALISTS, Clock, ShapeSearch
from tensorir.api.tuning import refuse_options
from tensorir.api.work import Work
from tensorir.errors import DeclarationError, DeviceError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_list, need_number, wrong
from tensorir.tune.dispatch import aligned
from tensorir.tune.gains import expected_gain
from tensorir.tune.interfaces import GRACE_S
from tensorir.tune.log import Record, key_of
from tensorir.tune.outcome import TuneOutcome
from tensorir.tune.portfolio import REGRET
from tensorir.tune.process import WorkerError
from tensorir.tune.spec import RunSpec
from tensorir.tune.store import LogError

if TYPE_CHECKING:
    from tensorir.runtime.device import Device

SLICE = 4  # trials of a shape between two looks at who is next
SHARED = 2  # winners of near shapes that a slice begins with,
NEAR = 5  # from so many shapes: those of farther ones are measured at the end, if there is time
CROSS = 0.15  # of the budget, at most, measures winners on the other shapes
FINAL = 0.25  # of the budget, at most, is for the final rounds
_END = ("interrupted", "log", "device_lost", "workers", "stop")


@answers()
def tune_shapes(
    works: Sequence[Work],
    device: str | Device | Sequence[str | Device] | None = None,
    trials: int | None = None,
    budget: str | float | None = "10m",
    seed: int = 0,
    log: str = "tuning_logs",
    on_trial: Callable[[Record], object] | None = None,
    executor: object = None,
    *,
    weights: Sequence[float] | None = None,
    regret: float = REGRET,
    **options: object,
) -> SetOutcome:
    """Tune shapes of one operator under one budget, and find the smallest set of kernels that is fast on all of them.

    works:   workloads of one name; others as for ``Workload.tune``
    device:  a name, or several of one kind that measure at the same time
    trials:  configurations in total of each shape
    budget:  wall time for all of them, final rounds included
    weights: how often each shape runs (1 each); what is minimised is the sum of weight times seconds
    regret:  how much slower than its best a shape may run with its member of the set, 0.05 for 5 %

    All defaults are measured first. Then slices of a few trials go to the shape with the greatest expected gain a
    second (``tensorir.tune.gains``), each beginning with what won on the nearest other shapes. The last parts of the
    budget measure the winners on the other shapes, and the finalists of each shape, interleaved. Every trial is in the
    log of its shape, so the same call continues, and ``w.load()`` finds each shape's best.
    """
    from tensorir.show.live import Several, watched

    given = {"trials": trials, "budget": budget, "seed": seed, "log": log, "on_trial": on_trial}
    made = RunSpec.of(**given, executor=executor, **options)
    works, numbers = understood(works, weights, regret)
    cell = Several(works, numbers, made)
    return watched(cell, made, lambda heard: tune_set(works, numbers, device, heard, regret))


def tune_set(
    works: Sequence[Work], weights: Sequence[float] | None, device: str | Device | Sequence[str | Device] | None,
    spec: RunSpec, regret: float = REGRET, clock: Clock = time.monotonic,
) -> SetOutcome:  # fmt: skip
    """``tune_shapes`` as a RunSpec asks for it."""
    works, numbers = understood(works, weights, regret)
    width = max(1, len(device_names(device)))
    spec = replace(spec, started=clock() if spec.started is None else spec.started)
    with ExitStack() as stack:
        for work in works:  # what can be said without a device is said before anything is measured
            refuse_options(work, spec)
        own = [replace(spec, seed=(spec.seed + 1000 * n) % 2**63) for n in range(len(works))]  # where each looks
        shapes = [ShapeSearch(w, x, device, o, clock) for w, x, o in zip(works, numbers, own, strict=True)]
        for shape in shapes:
            stack.callback(shape.close)
        return _SetRun(shapes, spec, regret, clock, width).run()


def understood(
    works: Sequence[Work], weights: Sequence[float] | None, regret: float
) -> tuple[Sequence[Work], list[float]]:
    """The shapes and their weights; DeclarationError ``shapes.set``, ``argument.value`` or ``argument.type``."""
    works = cast("tuple[Work, ...]", need_list("works", works, "workloads"))
    for n, work in enumerate(works):
        if not isinstance(work, Work):
            raise wrong(f"works[{n}]", work, "a Workload")
    names = dict.fromkeys(w.name for w in works)
    if len(names) != 1 or len({w.title for w in works}) < len(works):
        words = f"several operators: {', '.join(names)}" if len(names) > 1 else "no shape" if not works else "one twice"
        raise refuse(DeclarationError, "shapes.set", f"a set of shapes is of one operator, each once; here is {words}")
    aligned([w.parameters for w in works])
    given = [1.0] * len(works) if weights is None else need_list("weights", weights, "numbers")
    if len(given) != len(works):
        message = f"there are {len(given)} weights for {len(works)} shapes"
        raise refuse(DeclarationError, "argument.value", message)
    need_number("regret", regret, 0)
    return works, [need_number(f"weights[{n}]", w, 0) for n, w in enumerate(given)]


class _Ended(Exception):  # the run is over, nothing went wrong
    def __init__(self, reason: str) -> None:
        self.reason = reason


class _SetRun:
    """The phases of a run over all shapes."""

    def __init__(self, shapes: list[ShapeSearch], spec: RunSpec, regret: float, clock: Clock, width: int = 1) -> None:
        self.width = width  # devices that measure at the same time
        self._shared: Shared | None = None  # what asks them
        self.every = self.shapes = shapes
        self.spec, self.regret, self.clock = spec, regret, clock
        assert spec.started is not None
        self.start = spec.started
        self.end = None if spec.budget_s is None else self.start + spec.budget_s
        crossing = 0 if spec.trials is None else min(spec.trials // 4, len(shapes) - 1)
        self.limit = None if spec.trials is None else spec.trials - crossing
        self.crossing_s = CROSS * (spec.budget_s or 0.0)
        self.stopped = "budget"

    def run(self) -> SetOutcome:
        """Measure, and sum up; Ctrl-C ends it with what was found."""
        try:
            self._measure()
        except _Ended as ended:
            self.stopped = ended.reason
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        results = self._results()
        return SetOutcome(results, self.stopped, self.clock() - self.start, Portfolio.of(results, self.regret))

    def _results(self) -> tuple[ShapeResult, ...]:
        return tuple(
            ShapeResult(s.work, s.weight, s.summary(self.stopped), tuple(s.choices()), s.refused) for s in self.every
        )

    def _measure(self) -> None:
        heaviest = sorted(self.shapes, key=lambda s: -s.weight * s.work.flops)  # there may not be time for all
        for shape in heaviest:
            if self._time(self.end) <= 0 and shape is not heaviest[0]:
                raise _Ended("budget")
            try:
                self._open(shape)
            except DeclarationError as error:
                self._refused(shape, error)
            else:
                self._note(shape.default(self.end, 0.0 if self._any() else GRACE_S))
            self._shared = self._shared or shape.shareable
        self._estimate()
        for _ in range(2):  # what crossing leaves over is for exploring again
            while (chosen := self._next()) is not None:
                self._slice(chosen)
            self.stopped = self._why()
            self._cross()
            self.limit, self.crossing_s = self.spec.trials, 0.0
        self._confirm()

    def _open(self, shape: ShapeSearch) -> None:
        """Open a shape when its turn comes: a large set takes seconds, and the budget is for trials.

        It is not waited for beyond the budget's end, unless nothing is known yet: something is always measured.

        Where the device or the workers went away since the first one, that is the end of the run and not an error.
        """
        try:
            shape.open(self._shared, self._time(self.end) if self.end and self._any() else None)
        except TimeoutError:
            raise _Ended("budget") from None
        except (DeviceError, WorkerError, LogError) as error:
            before = self._any()
            if before is None:
                raise
            if isinstance(error, DeviceError) and self._time(self.end) <= 0:
                raise _Ended("budget") from None  # that is why it did not answer
            before.error = before.error or error
            why = {DeviceError: "device_lost", WorkerError: "workers", LogError: "log"}
            raise _Ended(next(stop for kind, stop in why.items() if isinstance(error, kind))) from None

    def _any(self) -> ShapeSearch | None:
        """A shape of which something is known."""
        return next((s for s in self.shapes if s.records), None)

    def _refused(self, shape: ShapeSearch, error: DeclarationError) -> None:
        """Drop a shape of which no configuration is legal, or fits what the user asked for."""
        if error.code != "space.empty" or len(self.shapes) == 1:
            raise error
        shape.refused = error.problems[0].message
        self.shapes = [s for s in self.shapes if s is not shape]

    def _why(self) -> str:
        """Why exploring ended."""
        if all(s.exhausted for s in self.shapes):
            return "exhausted"
        if not any(s.left(self.limit) for s in self.shapes):
            return "trials"
        patience = self.spec.patience
        if patience is not None and all(s.since_best >= patience or not s.left(self.limit) for s in self.shapes):
            return "patience"
        if all(s.content or s.exhausted for s in self.shapes):
            return "gain"
        return "budget"

    def _note(self, outcome: TuneOutcome | None) -> None:
        if outcome is not None and outcome.stopped in _END:
            raise _Ended(outcome.stopped)

    def _time(self, until: float | None) -> float:
        return math.inf if until is None else until - self.clock()

    # --- exploring

    def _estimate(self) -> None:
        """How many trials each template of each shape may get, from what the defaults cost."""
        templates = sum(len(s.session.spaces) for s in self.shapes)
        if self.limit is not None:
            for shape in self.shapes:
                shape.expected = max(1, self.limit // len(shape.session.spaces))
        elif self.end is not None:
            each = (
                self.width
                * self._time(self._explore_until())
                / max(statistics.mean(s.cost_s for s in self.shapes), 1e-3)
            )
            for shape in self.shapes:
                shape.expected = max(1, int(each / templates))

    def _final_s(self) -> float:
        """Seconds for the final rounds: as if every finalist were built and measured afresh."""
        if self.spec.budget_s is None:
            return 0.0
        return min(FINAL * self.spec.budget_s, sum(map(self._round_s, self.shapes)))

    def _round_s(self, shape: ShapeSearch) -> float:
        return (min(FINALISTS, len(shape.records)) + 3) * shape.cost_s

    def _cross_s(self) -> float:
        return min(self.crossing_s, (len(self.shapes) - 1) * sum(s.cost_s for s in self.shapes))

    def _explore_until(self) -> float | None:
        return None if self.end is None else self.end - self._final_s() - self._cross_s()

    def _next(self) -> ShapeSearch | None:
        """The shape with the greatest expected gain, among those with trials and time left."""
        patience = self.spec.patience
        left = self._time(self._explore_until())
        open_ = [
            s
            for s in self.shapes
            if s.left(self.limit)
            and not s.content
            and 1.25 * s.cost_s < left
            and (patience is None or s.since_best < patience)
        ]
        typical = max((s.curve[-1] for s in self.shapes if s.curve and math.isfinite(s.curve[-1])), default=1.0)

        def gain(shape: ShapeSearch) -> float:
            return expected_gain(shape.weight, shape.curve or [math.inf], shape.cost_s, typical)

        return max(open_, key=gain, default=None)

    def _slice(self, shape: ShapeSearch) -> None:
        until = self._explore_until()
        number = min(SLICE * self.width, shape.left(self.limit), max(1, int(self._affordable(shape, until))))
        known = len(shape.records)
        shape.near = [r for other in self._others(shape)[:FEW] for r in other.records]
        near = [r for _, r in self._elsewhere(shape, NEAR)]
        self._note(shape.these(until, near[: min(SHARED, number)], self.limit))
        number -= len(shape.records) - known
        if number > 0 and 1.25 * shape.cost_s < self._time(until):
            self._note(shape.slice(until, number))
        if len(shape.records) == known and not shape.content:
            shape.stuck = True  # nothing was measured: it must not be chosen for ever

    def _affordable(self, shape: ShapeSearch, until: float | None) -> float:
        return min(1e9, self._time(until) / max(1.25 * shape.cost_s, 1e-6))

    def _elsewhere(self, shape: ShapeSearch, most: int | None = None) -> Iterator[tuple[float, Record]]:
        """What is best on (at most so many) other shapes and new, but legal, on this one: the nearest first, with its
        distance.
        """
        seen: set[str] = set()
        for other in self._others(shape)[:most]:
            best = other.best
            if best is None or key_of(best) in seen:
                continue
            seen.add(key_of(best))
            template, config = best.template, best.config
            if not shape.knows(template, config) and shape.legal(template, config):
                yield distance(shape.title, other.title), best

    def _others(self, shape: ShapeSearch) -> list[ShapeSearch]:
        """The other shapes, the nearest first."""
        others = [o for o in self.shapes if o is not shape]
        return sorted(others, key=lambda o: (distance(shape.title, o.title), o.title))

    # --- winners on other shapes

    def _cross(self) -> None:
        """Winners on the other shapes, round-robin; first what is near and already won, or nearly so, elsewhere."""
        until = None if self.end is None else self.end - self._final_s()
        going = True
        while going:
            going = False
            popular = self._popular()
            for shape in sorted(self.shapes, key=lambda s: -s.weight * (s.curve[-1] if s.curve else 0.0)):
                found = sorted(self._elsewhere(shape), key=lambda f: (f[0] / max(1, popular[key_of(f[1])]), f[1].id))
                if not found or not shape.left(self.spec.trials) or self._affordable(shape, until) < 1:
                    continue
                known = len(shape.records)
                self._note(shape.these(until, [r for _, r in found[: self.width]], self.spec.trials))
                going = going or len(shape.records) > known

    def _popular(self) -> Counter[str]:
        """On how many shapes each configuration is within the regret of the best."""
        found: Counter[str] = Counter()
        for shape in self.shapes:
            ok = [r for r in shape.records if r.status == "ok"]
            best = min((r.steady_s for r in ok), default=math.inf)
            found.update(key_of(r) for r in ok if r.steady_s <= best * (1 + self.regret))
        return found

    # --- the end

    def _confirm(self) -> None:
        """Each shape's finalists, interleaved, its member of the set among them; those with most to lose first."""
        found = Portfolio.of(self._results(), self.regret)
        members = {} if found is None else found.records
        waiting = sorted(self.shapes, key=lambda s: -s.weight * (s.curve[-1] if s.curve else 0.0))
        for n, shape in enumerate(waiting):
            left = self._time(self.end)
            if left < 1.0:
                raise _Ended("budget")
            share = max(left / (len(waiting) - n), self._round_s(shape) + 1.0)  # nothing comes of a part of a round
            until = None if self.end is None else min(self.end, self.clock() + share)
            record = members.get(shape.title)
            self._note(shape.confirm(until, [] if record is None else [record.id]))
