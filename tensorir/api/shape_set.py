"""Tuning several shapes under one budget: who is next, what they learn from each other, and which kernels to keep."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorir.api.asker import Asker
from tensorir.api.identity import distance, folder_of
from tensorir.api.measurer import Measurer
from tensorir.api.near import FEW
from tensorir.api.options import Options
from tensorir.api.places import device_names
from tensorir.api.shape_outcome import Portfolio, SetOutcome, ShapeResult
from tensorir.api.tuning import Session
from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.errors.needs import need_list, need_number, wrong
from tensorir.tune.dispatch import aligned
from tensorir.tune.gains import expected_gain
from tensorir.tune.log import Choice, LogReader, LogWriter, Record, choose, key_of
from tensorir.tune.outcome import TuneOutcome, grouped_reasons
from tensorir.tune.portfolio import REGRET
from tensorir.tune.slices import Given, Kept

if TYPE_CHECKING:
    from tensorir.api.workload import Workload
    from tensorir.runtime.device import Device

Clock = Callable[[], float]
SLICE = 4  # trials of a shape between two looks at who is next
SHARED = 2  # winners of near shapes that a slice begins with,
NEAR = 5  # from so many shapes: those of farther ones are measured at the end, if there is time
CROSS = 0.15  # of the budget, at most, measures winners on the other shapes
FINAL = 0.25  # of the budget, at most, is for the final rounds
FINALISTS = 3  # of each shape, besides its default and its member of the set
RECENT = 15  # trials whose cost predicts the next one's
_END = ("interrupted", "log", "device_lost", "workers", "stop")


def tune_shapes(
    works: Sequence[Workload],
    device: str | Device | None = None,
    trials: int | None = None,
    budget: str | float | None = "10m",
    seed: int = 0,
    log: str = "tuning_logs",
    on_trial: Callable[[Any], object] | None = None,
    executor: Any = None,
    *,
    weights: Sequence[float] | None = None,
    regret: float = REGRET,
    **options: Any,
) -> SetOutcome:
    """Tune shapes of one operator under one budget, and find the smallest set of kernels that is fast on all of them.

    works:   workloads of one name; others as for ``Workload.tune``
    trials:  configurations in total of each shape
    budget:  wall time for all of them, final rounds included
    weights: how often each shape runs (1 each); what is minimised is the sum of weight times seconds
    regret:  how much slower than its best a shape may run with its member of the set, 0.05 for 5 %

    All defaults are measured first. Then slices of a few trials go to the shape with the greatest expected gain a
    second (``tensorir.tune.gains``), each beginning with what won on the nearest other shapes. The last parts of the
    budget measure the winners on the other shapes, and the finalists of each shape in turn. Every trial is in the log
    of its shape, so the same call continues, and ``w.load()`` finds each shape's best.
    """
    made = Options.of(trials, budget, seed, log, on_trial, executor, options)
    return tune_set(works, weights, device, made, regret)


def tune_set(
    works: Sequence[Workload], weights: Sequence[float] | None, device: str | Device | None, options: Options,
    regret: float = REGRET, clock: Clock = time.monotonic,
) -> SetOutcome:  # fmt: skip
    """``tune_shapes`` with its options made."""
    works, numbers = understood(works, weights, regret)
    if len(device_names(device)) > 1:
        message = "a set of shapes is tuned on one device, or through an executor"
        raise refuse(DeclarationError, "tune.devices", message, hint="executor=…, with a worker for each device")
    options = replace(options, started=clock() if options.started is None else options.started)
    asker = Asker() if options.executor is None else None
    with ExitStack() as stack:
        if asker is not None:
            stack.callback(asker.close)
        own = [replace(options, seed=(options.seed + 1000 * n) % 2**63) for n in range(len(works))]  # where each looks
        shapes = [_Shape(w, x, device, o, asker, clock) for w, x, o in zip(works, numbers, own, strict=True)]
        for shape in shapes:
            stack.callback(shape.close)
        return _SetRun(shapes, options, regret, clock).run()


def understood(
    works: Sequence[Workload], weights: Sequence[float] | None, regret: float
) -> tuple[Sequence[Workload], list[float]]:
    """The shapes and their weights; DeclarationError ``shapes.set``, ``argument.value`` or ``argument.type``."""
    from tensorir.api.workload import Workload

    works = need_list("works", works, "workloads")
    for n, work in enumerate(works):
        if not isinstance(work, Workload):
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


class _Shape:
    """One shape: its session, the strategies that stay between slices, and what is known."""

    def __init__(
        self, work: Workload, weight: float, device: str | Device | None, options: Options, asker: Asker | None,
        clock: Clock,
    ) -> None:  # fmt: skip
        self.work, self.weight, self.title, self.clock = work, weight, work.title, clock
        self.options = replace(options, on_trial=self._seen, patience=None)
        self._given, self._device, self._asker = options, device, asker
        self._session: Session | None = None
        self._measurer: Measurer | None = None
        self._log: LogWriter | None = None
        self._kept: dict[str, Kept] = {}
        self._priors: dict[str, Sequence[Any]] = {}
        self.near: list[Record] = []  # trials of the nearest other shapes, for a strategy to begin with
        self.records: list[Record] = []  # usable trials, earlier ones first
        self.curve: list[float] = []
        self.costs: list[float] = []
        self.counts: Counter[str] = Counter()
        self.outcome: TuneOutcome | None = None  # of the final round
        self.error: TensorIRError | None = None
        self.expected = 0  # trials that there may be time for
        self.exhausted = self.stuck = self.content = False
        self._last = 0.0

    def close(self) -> None:
        """The log and what the measurer saved."""
        if self._log is not None:
            self._log.close()
        if self._measurer is not None:
            self._measurer.__exit__()

    def open(self) -> None:
        """Open the session and the log, and take over what is known."""
        self._measurer = Measurer(self.work, self._device, self._given, self._asker)
        self._session = Session(self.work, self._measurer, self._given)
        if self._given.on_start is not None:
            self._given.on_start(self._session.about, self._session.spaces, len(self._session.reused))
        self._log = LogWriter(self._given.log, self._session.identity.workload)
        for record in self._session.reused:
            if self.legal(record["template"], record["config"]):
                self._learn(record)

    @property
    def session(self) -> Session:
        """Open from the run's first moments on."""
        assert self._session is not None
        return self._session

    def _learn(self, record: Record) -> None:
        self.records.append(record)
        best = self.curve[-1] if self.curve else math.inf
        self.curve.append(min(best, record["time_s"]) if record["status"] == "ok" else best)

    def _seen(self, record: Record) -> None:
        now = self.clock()
        self.costs.append(now - self._last)
        self._last = now
        self.counts[record["status"]] += 1
        self._learn(record)
        if self._given.on_trial is not None:
            self._given.on_trial(record)

    # --- what is known

    @property
    def best(self) -> Record | None:
        """The fastest trial so far."""
        ok = [r for r in self.records if r["status"] == "ok"]
        return min(ok, key=lambda r: (r["time_s"], r["id"]), default=None)

    @property
    def cost_s(self) -> float:
        """Seconds that the next trial may take."""
        return statistics.median(self.costs[-RECENT:]) if self.costs else 0.0

    @property
    def since_best(self) -> int:
        """Trials after the one that found the best."""
        return len(self.curve) - 1 - self.curve.index(self.curve[-1]) if self.curve else 0

    def knows(self, template: str, config: Mapping[str, Any]) -> bool:
        """Whether this configuration was measured here."""
        return any(r["template"] == template and r["config"] == config for r in self.records)

    def legal(self, template: str, config: Mapping[str, Any]) -> bool:
        """Whether this shape can have this configuration."""
        return self.session.legal(template, config)

    def left(self, limit: int | None) -> int:
        """Trials that may still be made."""
        if self.exhausted or self.stuck:
            return 0
        return 10**9 if limit is None else max(0, limit - len(self.records))

    # --- measuring

    def default(self, until: float | None) -> TuneOutcome:
        """Measure the default, unless something is known already."""
        return self._search(until, trials=1)

    def slice(self, until: float | None, trials: int) -> TuneOutcome:
        """Some trials of the strategy's choice."""
        outcome = self._search(until, trials=len(self.records) + trials)
        self.exhausted = outcome.stopped == "exhausted"
        self.content = outcome.stopped == "gain"
        return outcome

    def these(self, until: float | None, wanted: Sequence[Record], limit: int | None) -> TuneOutcome | None:
        """Measure configurations that were found elsewhere."""
        wanted = wanted[: self.left(limit)]
        if not wanted:
            return None
        templates = dict.fromkeys(r["template"] for r in wanted)
        spaces = {n: self.session.spaces[n] for n in templates}
        rows = {n: [spaces[n].index(r["config"]) for r in wanted if r["template"] == n] for n in templates}
        known = sum(r["template"] in spaces for r in self.records)

        def make(_: str, space: Any, **__: Any) -> Given:
            name = next(n for n, s in spaces.items() if s is space)
            return Given([*rows[name]])

        return self._search(until, trials=known + len(wanted), spaces=spaces, make=make, defaults=False)

    def confirm(self, until: float | None, also: Sequence[str]) -> TuneOutcome:
        """The final round."""
        top = min(self._given.top, FINALISTS)
        final = partial(self.session.measurer.final, searched_s=sum(self.costs))
        self.outcome = self._search(until, trials=1, final=final, also=also, top=top)
        return self.outcome

    def _search(self, until: float | None, **changed: Any) -> TuneOutcome:
        session = self.session
        now = self._last = self.clock()
        options = replace(self.options, started=now, budget_s=None if until is None else until - now)
        given: dict[str, Any] = {"final": None, "make": self._strategy, "clock": self.clock, **changed}
        reuse = [*session.earlier, *self.records, *self.near]
        outcome = session.search(options, reuse=reuse, log=self._log, **given)
        self.error = self.error or outcome.error
        return outcome

    def _strategy(self, name: str, space: Any, seed: int, budget: int | None, priors: Sequence[Any] = ()) -> Kept:
        from tensorir.tune.strategy import make

        template = next(n for n, s in self.session.spaces.items() if s is space)
        self._priors[template] = priors  # as they are when the strategy is first asked
        if template not in self._kept:
            self._kept[template] = Kept(
                lambda: make(name, space, seed=seed, budget=self.expected or None, priors=self._priors[template])
            )
        return self._kept[template]

    # --- the end

    def choices(self) -> list[Choice]:
        """What may be loaded, the fastest first, of the configurations that were searched."""
        if self._session is None:
            return []
        mine = {r["id"]: r for r in self.records}  # not all of them are in a log that could not be written
        written = LogReader(folder_of(self.work, self._given.log)).records(workload=self.title)
        for record in written:
            if self.session.identity.accepts(record) and (not self._given.fresh or record.get("of") in mine):
                mine.setdefault(record["id"], record)
        return choose(r for r in mine.values() if self.legal(r["template"], r["config"]))

    def summary(self, stopped: str) -> TuneOutcome | None:
        """The outcome with the trials of all slices; None where nothing was measured."""
        if not self.records:
            return None
        found = self.outcome or self._search(None, trials=1)  # that measures nothing any more
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
            error=self.error,
        )


class _Ended(Exception):  # the run is over, nothing went wrong
    def __init__(self, reason: str) -> None:
        self.reason = reason


class _SetRun:
    """The phases of a run over all shapes."""

    def __init__(self, shapes: list[_Shape], options: Options, regret: float, clock: Clock) -> None:
        self.shapes, self.options, self.regret, self.clock = shapes, options, regret, clock
        assert options.started is not None
        self.start = options.started
        self.end = None if options.budget_s is None else self.start + options.budget_s
        crossing = 0 if options.trials is None else min(options.trials // 4, len(shapes) - 1)
        self.limit = None if options.trials is None else options.trials - crossing
        self.crossing_s = CROSS * (options.budget_s or 0.0)
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
        return tuple(ShapeResult(s.work, s.weight, s.summary(self.stopped), tuple(s.choices())) for s in self.shapes)

    def _measure(self) -> None:
        for shape in self.shapes:
            shape.open()  # what is wrong with any of them is said before anything is measured
        heaviest = sorted(self.shapes, key=lambda s: -s.weight * s.work.flops)  # there may not be time for all
        for shape in heaviest:
            if self._time(self.end) <= 0 and shape is not heaviest[0]:
                raise _Ended("budget")
            self._note(shape.default(self.end))
        self._estimate()
        for _ in range(2):  # what crossing leaves over is for exploring again
            while (chosen := self._next()) is not None:
                self._slice(chosen)
            self.stopped = self._why()
            self._cross()
            self.limit, self.crossing_s = self.options.trials, 0.0
        self._confirm()

    def _why(self) -> str:
        """Why exploring ended."""
        if all(s.exhausted for s in self.shapes):
            return "exhausted"
        if not any(s.left(self.limit) for s in self.shapes):
            return "trials"
        patience = self.options.patience
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
            each = self._time(self._explore_until()) / max(statistics.mean(s.cost_s for s in self.shapes), 1e-3)
            for shape in self.shapes:
                shape.expected = max(1, int(each / templates))

    def _final_s(self) -> float:
        """Seconds for the final rounds: as if every finalist were built and measured afresh."""
        if self.options.budget_s is None:
            return 0.0
        return min(FINAL * self.options.budget_s, sum(map(self._round_s, self.shapes)))

    def _round_s(self, shape: _Shape) -> float:
        return (min(FINALISTS, len(shape.records)) + 3) * shape.cost_s

    def _cross_s(self) -> float:
        return min(self.crossing_s, (len(self.shapes) - 1) * sum(s.cost_s for s in self.shapes))

    def _explore_until(self) -> float | None:
        return None if self.end is None else self.end - self._final_s() - self._cross_s()

    def _next(self) -> _Shape | None:
        """The shape with the greatest expected gain, among those with trials and time left."""
        patience = self.options.patience
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

        def gain(shape: _Shape) -> float:
            return expected_gain(shape.weight, shape.curve or [math.inf], shape.cost_s, typical)

        return max(open_, key=gain, default=None)

    def _slice(self, shape: _Shape) -> None:
        until = self._explore_until()
        number = min(SLICE, shape.left(self.limit), max(1, int(self._affordable(shape, until))))
        known = len(shape.records)
        shape.near = [r for other in self._others(shape)[:FEW] for r in other.records]
        near = [r for _, r in self._elsewhere(shape, NEAR)]
        self._note(shape.these(until, near[: min(SHARED, number)], self.limit))
        number -= len(shape.records) - known
        if number > 0 and 1.25 * shape.cost_s < self._time(until):
            self._note(shape.slice(until, number))
        if len(shape.records) == known and not shape.content:
            shape.stuck = True  # nothing was measured: it must not be chosen for ever

    def _affordable(self, shape: _Shape, until: float | None) -> float:
        return min(1e9, self._time(until) / max(1.25 * shape.cost_s, 1e-6))

    def _elsewhere(self, shape: _Shape, most: int | None = None) -> Iterator[tuple[float, Record]]:
        """What is best on (at most so many) other shapes and new, but legal, on this one: the nearest first, with its
        distance.
        """
        seen: set[str] = set()
        for other in self._others(shape)[:most]:
            best = other.best
            if best is None or key_of(best) in seen:
                continue
            seen.add(key_of(best))
            template, config = best["template"], best["config"]
            if not shape.knows(template, config) and shape.legal(template, config):
                yield distance(shape.title, other.title), best

    def _others(self, shape: _Shape) -> list[_Shape]:
        """The other shapes, the nearest first."""
        others = [o for o in self.shapes if o is not shape]
        return sorted(others, key=lambda o: (distance(shape.title, o.title), o.title))

    # --- winners on other shapes

    def _cross(self) -> None:
        """Winners on the other shapes, in turns; first what is near and already won, or nearly, in several places."""
        until = None if self.end is None else self.end - self._final_s()
        going = True
        while going:
            going = False
            popular = self._popular()
            for shape in sorted(self.shapes, key=lambda s: -s.weight * (s.curve[-1] if s.curve else 0.0)):
                found = sorted(self._elsewhere(shape), key=lambda f: (f[0] / max(1, popular[key_of(f[1])]), f[1]["id"]))
                if not found or not shape.left(self.options.trials) or self._affordable(shape, until) < 1:
                    continue
                known = len(shape.records)
                self._note(shape.these(until, [found[0][1]], self.options.trials))
                going = going or len(shape.records) > known

    def _popular(self) -> Counter[str]:
        """On how many shapes each configuration is within the regret of the best."""
        found: Counter[str] = Counter()
        for shape in self.shapes:
            ok = [r for r in shape.records if r["status"] == "ok"]
            best = min((r["time_s"] for r in ok), default=math.inf)
            found.update(key_of(r) for r in ok if r["time_s"] <= best * (1 + self.regret))
        return found

    # --- the end

    def _confirm(self) -> None:
        """Each shape's finalists in turn, its member of the set among them; those with most to lose first."""
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
            self._note(shape.confirm(until, [] if record is None else [record["id"]]))
