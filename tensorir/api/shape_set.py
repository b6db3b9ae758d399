"""``tune_shapes``: tunes several shapes under one budget, transferring winners, and selects a few kernels for all."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from tensorir.api.channel import Shared
from tensorir.api.identity import distance, folder_of
from tensorir.api.measurer import Measurer
from tensorir.api.neighbours import START_SHAPES
from tensorir.api.places import device_names
from tensorir.api.shape_outcome import Portfolio, SetOutcome, ShapeResult
from tensorir.api.tuning import Session, refuse_options
from tensorir.api.work import Work
from tensorir.errors import DeclarationError, DeviceError, TensorIRError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_list, need_number, wrong
from tensorir.tune.dispatch import aligned
from tensorir.tune.interfaces import GRACE_S, SearchPart, Table, Task
from tensorir.tune.log import LogReader, LogWriter, RankedRecord, Record, choose, key_of
from tensorir.tune.outcome import TuneOutcome, grouped_reasons
from tensorir.tune.portfolio import REGRET
from tensorir.tune.process import WorkerError
from tensorir.tune.spec import RunSpec
from tensorir.tune.store import LogError
from tensorir.tune.strategy import Given, Kept, make
from tensorir.tune.trial import FinalRound
from tensorir.tune.warm_start import tables

if TYPE_CHECKING:
    from tensorir.runtime.device import Device


Clock = Callable[[], float]
SLICE_TRIALS = 4  # trials of a shape between two looks at who is next
SHARED_WINNERS = 2  # winners of near shapes that a slice begins with,
NEAREST_SHAPES = 5  # from so many shapes: those of farther ones are measured at the end, if there is time
CROSSING_SHARE = 0.15  # of the budget, at most, measures winners on the other shapes
FINAL_SHARE = 0.25  # of the budget, at most, is for the final rounds
SHAPE_FINALISTS = 3  # of each shape, besides its default and its member of the set
COST_TRIALS = 15  # trials whose cost predicts the next one's
TREND_TRIALS = 8  # trials whose gains are taken for a trend
HOPED_LOG_GAIN = 0.5  # of log time: the median configuration of a space is e**0.9 to e**1.2 slower than its best
UNKNOWN_LOG_GAIN = 1.0  # the same while nothing valid is known of a shape
_END_REASONS = ("interrupted", "log", "device_lost", "workers", "stop")


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
    second (``tensorir.api.shape_set``), each beginning with what won on the nearest other shapes. The last parts of the
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
    """Run ``tune_shapes`` with a RunSpec."""
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
    """(shapes, weights), validated; weights of 1 for None.

    Raises DeclarationError ``shapes.set`` for no shape, one twice or several operators, else ``argument.value`` or
    ``argument.type``.
    """
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
    """State and phases of a run over several shapes."""

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
        self.crossing_s = CROSSING_SHARE * (spec.budget_s or 0.0)
        self.stopped = "budget"

    def run(self) -> SetOutcome:
        """Measure all phases and return the SetOutcome; Ctrl-C ends it with results so far."""
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
        """Open a shape's session when it is first needed. After the first, waits until the budget's end at most, then
        raises _Ended, unless nothing is known yet.

        If the device or the workers have disappeared since the first session, the run ends without an error.
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
        """A shape with results, None if there is none."""
        return next((s for s in self.shapes if s.records), None)

    def _refused(self, shape: ShapeSearch, error: DeclarationError) -> None:
        """Drop a shape without legal configurations under the user's conditions; raise ``error`` if it is the only
        shape or the error is another one.
        """
        if error.code != "space.empty" or len(self.shapes) == 1:
            raise error
        shape.refused = error.problems[0].message
        self.shapes = [s for s in self.shapes if s is not shape]

    def _why(self) -> str:
        """Reason for the end of exploring, as ``SetOutcome.stopped``: "exhausted", "trials", "patience", "gain", else
        "budget".
        """
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
        if outcome is not None and outcome.stopped in _END_REASONS:
            raise _Ended(outcome.stopped)

    def _time(self, until: float | None) -> float:
        return math.inf if until is None else until - self.clock()

    # --- exploring

    def _estimate(self) -> None:
        """Estimate the trials that each template of each shape may get, from what the defaults cost."""
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
        """Seconds reserved for final rounds."""
        if self.spec.budget_s is None:
            return 0.0
        return min(FINAL_SHARE * self.spec.budget_s, sum(map(self._round_s, self.shapes)))

    def _round_s(self, shape: ShapeSearch) -> float:
        return (min(SHAPE_FINALISTS, len(shape.records)) + 3) * shape.cost_s

    def _cross_s(self) -> float:
        return min(self.crossing_s, (len(self.shapes) - 1) * sum(s.cost_s for s in self.shapes))

    def _explore_until(self) -> float | None:
        return None if self.end is None else self.end - self._final_s() - self._cross_s()

    def _next(self) -> ShapeSearch | None:
        """The shape with the greatest expected gain, among those with trials and time left; None if there are none."""
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
        number = min(SLICE_TRIALS * self.width, shape.left(self.limit), max(1, int(self._affordable(shape, until))))
        known = len(shape.records)
        shape.near = [r for other in self._others(shape)[:START_SHAPES] for r in other.records]
        near = [r for _, r in self._elsewhere(shape, NEAREST_SHAPES)]
        self._note(shape.these(until, near[: min(SHARED_WINNERS, number)], self.limit))
        number -= len(shape.records) - known
        if number > 0 and 1.25 * shape.cost_s < self._time(until):
            self._note(shape.slice(until, number))
        if len(shape.records) == known and not shape.content:
            shape.stuck = True  # nothing was measured: it must not be chosen for ever

    def _affordable(self, shape: ShapeSearch, until: float | None) -> float:
        return min(1e9, self._time(until) / max(1.25 * shape.cost_s, 1e-6))

    def _elsewhere(self, shape: ShapeSearch, most: int | None = None) -> Iterator[tuple[float, Record]]:
        """Yield (distance, record) of other shapes' winners that are new and legal for this one, nearest first."""
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
        """Other shapes, nearest first."""
        others = [o for o in self.shapes if o is not shape]
        return sorted(others, key=lambda o: (distance(shape.title, o.title), o.title))

    # --- winners on other shapes

    def _cross(self) -> None:
        """Measure winners on other shapes, round-robin, the most promising first."""
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
        """{configuration: number of shapes on which it is within the regret of the best}."""
        found: Counter[str] = Counter()
        for shape in self.shapes:
            ok = [r for r in shape.records if r.status == "ok"]
            best = min((r.steady_s for r in ok), default=math.inf)
            found.update(key_of(r) for r in ok if r.steady_s <= best * (1 + self.regret))
        return found

    # --- the end

    def _confirm(self) -> None:
        """Run each shape's final round, including its portfolio kernel; largest potential loss first."""
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


Made = TypeVar("Made")


def in_time(make: Callable[[], Made], seconds: float, late: Callable[[], object]) -> Made:
    """The result of ``make``, or what it raises; TimeoutError after so many seconds.

    Large spaces and references are made by Python and NumPy, which nothing can stop: ``make`` continues in a thread
    that nobody waits for, not even the end of the process, and ``late`` is called there in the end.
    """
    answer: Future[Made] = Future()

    def run() -> None:
        try:
            made, error = make(), None
        except BaseException as raised:  # the caller's to handle
            made, error = None, raised
        if not answer.set_running_or_notify_cancel():
            late()
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(cast("Made", made))

    threading.Thread(target=run, name="tensorir-opening", daemon=True).start()
    try:
        wait([answer], timeout=max(0.0, seconds))
    finally:
        given_up = answer.cancel()
    if given_up:
        raise TimeoutError
    return answer.result()


class ShapeSearch:
    """One shape's tuning state: session, strategies kept between slices, records."""

    def __init__(
        self, work: Work, weight: float, device: str | Device | Sequence[str | Device] | None,
        spec: RunSpec, clock: Clock,
    ) -> None:  # fmt: skip
        self.work, self.weight, self.title, self.clock = work, weight, work.title, clock
        self.spec = replace(spec, on_trial=self._seen, patience=None)
        self._given, self._device = spec, device
        self._session: Session | None = None
        self._measurer: Measurer | None = None
        self._log: LogWriter | None = None
        self._kept: dict[str, Kept] = {}
        self._priors: dict[str, Sequence[Any]] = {}
        self.near: list[Record] = []  # trials of the nearest other shapes, for a strategy to begin with
        self.records: list[Record] = []  # usable trials, earlier ones first
        self._own: frozenset[str] = frozenset()  # ids of this run's trials
        self.curve: list[float] = []
        self.costs: list[float] = []
        self.counts: Counter[str] = Counter()
        self.outcome: TuneOutcome | None = None  # of the final round
        self.error: TensorIRError | None = None
        self.refused = ""  # why it cannot be tuned
        self.expected = 0  # trials that there may be time for
        self.exhausted = self.stuck = self.content = False
        self._last = 0.0

    def close(self) -> None:
        """Close the log and delete the measurer's files."""
        if self._log is not None:
            self._log.close()
        if self._measurer is not None:
            self._measurer.__exit__()

    @property
    def shareable(self) -> Shared | None:
        """Measuring processes to share with other shapes, None before opening."""
        return None if self._measurer is None else self._measurer.shareable

    def open(self, shared: Shared | None = None, left_s: float | None = None) -> None:
        """Open the session and the log, and read the shape's earlier records.

        shared: ``shareable`` of an earlier one
        left_s: seconds after which TimeoutError is raised and the shape stays closed; None: however long it takes
        """
        self._measurer = Measurer(self.work, self._device, self._given, shared)
        session = partial(Session, self.work, self._measurer, self._given)
        self._session = session() if left_s is None else in_time(session, left_s, self._measurer.abandon)
        if self._given.on_start is not None:
            self._given.on_start(self._session.about, self._session.spaces, len(self._session.reused))
        self._log = LogWriter(self._given.log, self._session.identity.workload)
        for record in self._session.reused:
            if self.legal(record.template, record.config):
                self._learn(record)

    @property
    def session(self) -> Session:
        """The Session; ``open`` must have been called."""
        assert self._session is not None
        return self._session

    def _learn(self, record: Record) -> None:
        self.records.append(record)
        best = self.curve[-1] if self.curve else math.inf
        self.curve.append(min(best, record.steady_s))

    def _seen(self, record: Record) -> None:
        now = self.clock()
        self.costs.append(now - self._last)
        self._last = now
        self.counts[record.status] += 1
        self._own |= {record.id}
        self._learn(record)
        if self._given.on_trial is not None:
            self._given.on_trial(record)

    # --- what is known

    @property
    def best(self) -> Record | None:
        """Record of the fastest trial so far; None before a valid one."""
        ok = [r for r in self.records if r.status == "ok"]
        return min(ok, key=lambda r: (r.steady_s, r.id), default=None)

    @property
    def cost_s(self) -> float:
        """Expected seconds of the next trial: the median of recent ones; 0 before one."""
        return statistics.median(self.costs[-COST_TRIALS:]) if self.costs else 0.0

    @property
    def since_best(self) -> int:
        """Number of trials made after the one that found the best time; 0 before the first."""
        return len(self.curve) - 1 - self.curve.index(self.curve[-1]) if self.curve else 0

    def knows(self, template: str, config: Mapping[str, object]) -> bool:
        """True if this configuration was measured for this shape."""
        return any(r.template == template and r.config == config for r in self.records)

    def legal(self, template: str, config: Mapping[str, object]) -> bool:
        """True if this configuration is legal for this shape."""
        return self.session.legal(template, config)

    def left(self, limit: int | None) -> int:
        """Number of trials still allowed under ``limit``; 0 once exhausted or stuck, 10**9 without a limit."""
        if self.exhausted or self.stuck:
            return 0
        return 10**9 if limit is None else max(0, limit - len(self.records))

    # --- measuring

    def default(self, until: float | None, grace_s: float) -> TuneOutcome:
        """Measure the default configuration until time ``until``, unless a result is known already; it may take
        ``grace_s`` seconds longer. Returns the outcome.
        """
        return self._search(until, 1, part=replace(self._part, grace_s=grace_s))

    def slice(self, until: float | None, trials: int) -> TuneOutcome:
        """Measure up to ``trials`` proposals of the strategies until time ``until``."""
        outcome = self._search(until, len(self.records) + trials, replace(self._task(), priors=self._tables()))
        self.exhausted = outcome.stopped == "exhausted"
        self.content = outcome.stopped == "gain"
        return outcome

    def these(self, until: float | None, wanted: Sequence[Record], limit: int | None) -> TuneOutcome | None:
        """Outcome of measuring the configurations of ``wanted``, records of other shapes, until time ``until``; None if
        there are none or no trial is left under ``limit``. The first are taken if ``limit`` allows fewer.
        """
        wanted = wanted[: self.left(limit)]
        if not wanted:
            return None
        templates = dict.fromkeys(r.template for r in wanted)
        spaces = {n: self.session.spaces[n] for n in templates}
        rows = {n: [spaces[n].index(r.config) for r in wanted if r.template == n] for n in templates}
        known = sum(r.template in spaces for r in self.records)

        def make(_: str, space: Any, **__: Any) -> Given:
            name = next(n for n, s in spaces.items() if s is space)
            return Given([*rows[name]])

        part = SearchPart(make=make, defaults=False, grace_s=0.0, clock=self.clock)
        return self._search(until, known + len(wanted), replace(self._task(), spaces=spaces), part)

    def confirm(self, until: float | None, also: Sequence[str]) -> TuneOutcome:
        """Run the shape's final round and return its outcome.

        also: ids of trials that take part whatever their times
        """
        final = partial(self.session.measurer.final, searched_s=sum(self.costs))
        part = replace(self._part, also=frozenset(also))
        self.outcome = self._search(until, 1, part=part, final=final, top=min(self._given.top, SHAPE_FINALISTS))
        return self.outcome

    @property
    def _part(self) -> SearchPart:
        """SearchPart for a slice, keeping earlier strategies."""
        return SearchPart(make=self._strategy, grace_s=0.0, clock=self.clock)

    def _task(self) -> Task:
        """Task for a slice; warm-start tables only for strategies not yet begun."""
        return replace(
            self.session.task, reuse=[*self.session.earlier, *self.records], priors={}, own=self._own, known=None
        )

    def _search(
        self, until: float | None, trials: int, task: Task | None = None, part: SearchPart | None = None,
        final: Callable[..., FinalRound] | None = None, top: int | None = None,
    ) -> TuneOutcome:  # fmt: skip
        now = self._last = self.clock()
        spec = replace(self.spec, started=now, budget_s=None if until is None else until - now, trials=trials)
        spec = spec if top is None else replace(spec, top=top)
        bench = replace(self.session.bench, final=final)
        outcome = self.session.search(spec, self._log, task or self._task(), bench, part or self._part)
        self.error = self.error or outcome.error
        return outcome

    def _tables(self) -> Mapping[str, Sequence[Table]]:
        """Warm-start tables for strategies not yet begun."""
        waiting = {n: s for n, s in self.session.spaces.items() if n not in self._kept or not self._kept[n].begun}
        return (
            tables([*self.session.earlier, *self.near], self.session.identity, waiting, self.spec.limits)
            if waiting
            else {}
        )

    def _strategy(self, name: str, space: Any, seed: int, budget: int | None, priors: Sequence[Any] = ()) -> Kept:
        template = next(n for n, s in self.session.spaces.items() if s is space)
        self._priors[template] = priors  # as they are when the strategy is first asked
        if template not in self._kept:
            self._kept[template] = Kept(
                lambda: make(name, space, seed=seed, budget=self.expected or None, priors=self._priors[template])
            )
        return self._kept[template]

    # --- the end

    def choices(self) -> list[RankedRecord]:
        """Loadable configurations within the searched spaces, fastest first; [] before ``open``."""
        if self._session is None:
            return []
        mine = {r.id: r for r in self.records}  # not all of them are in a log that could not be written
        written = LogReader(folder_of(self.work, self._given.log)).brief()
        for record in written.records(np.flatnonzero(written.rows_of(self.session.identity.accepts))):
            if not self._given.fresh or record.of in mine:
                mine.setdefault(record.id, record)
        return choose(r for r in mine.values() if self.legal(r.template, r.config))

    def summary(self, stopped: str) -> TuneOutcome | None:
        """Outcome over all trials of the shape, earlier ones and failures included; None if there are none.

        stopped: reason for the end; "exhausted" replaces it if no configuration is left, "interrupted" is the status
        """
        if not self.records:
            return None
        found = self.outcome or self._search(None, 1)  # that measures nothing any more
        new = self.counts.total()
        return replace(
            found,
            status="interrupted" if stopped == "interrupted" else found.status,
            trials=new,
            reused=len(self.records) - new,
            counts=dict(self.counts.most_common()),
            records=tuple(self.records),
            reasons=grouped_reasons(self.records),
            stopped="exhausted" if self.exhausted else stopped,
            elapsed_s=sum(self.costs),
            seconds={},
            error=self.error,
        )


def expected_gain(weight: float, curve: Sequence[float], cost_s: float, typical_s: float = 0.0) -> float:
    """Expected saving: weighted seconds of running time per second of tuning.

    weight:    how often the shape runs
    curve:     best seconds after each trial so far, inf while nothing was valid; at least one
    cost_s:    seconds per trial
    typical_s: assumed kernel time while nothing is known

    Mean of the recent trend (log gain per trial over ``TREND_TRIALS``) and an optimistic term of 1/n of the spread, as
    the best of n exchangeable draws improves with the next one. After the task scheduler of Ansor (arXiv 2006.06762,
    section 6).
    """
    best = curve[-1]
    if not math.isfinite(best):
        return weight * typical_s * UNKNOWN_LOG_GAIN / len(curve) / max(cost_s, 1e-9)
    some = [t for t in curve[-TREND_TRIALS - 1 :] if math.isfinite(t)]
    trend = math.log(some[0] / best) / (len(some) - 1) if len(some) > 1 else 0.0
    return weight * best * 0.5 * (trend + HOPED_LOG_GAIN / len(curve)) / max(cost_s, 1e-9)
