"""One shape of a set that is tuned together: its session, its strategies from slice to slice, and what is known."""

from __future__ import annotations

import math
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from tensorir.api.channel import Shared
from tensorir.api.identity import folder_of
from tensorir.api.measurer import Measurer
from tensorir.api.tuning import Session
from tensorir.errors import TensorIRError
from tensorir.tune.elsewhere import tables
from tensorir.tune.interfaces import Part, Table, Task
from tensorir.tune.log import Choice, LogReader, LogWriter, Record, choose
from tensorir.tune.outcome import TuneOutcome, grouped_reasons
from tensorir.tune.slices import Given, Kept
from tensorir.tune.spec import RunSpec
from tensorir.tune.strategy import make
from tensorir.tune.trial import FinalRound

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.runtime.device import Device

Clock = Callable[[], float]
FINALISTS = 3  # of each shape, besides its default and its member of the set
RECENT = 15  # trials whose cost predicts the next one's


Made = TypeVar("Made")


def in_time(make: Callable[[], Made], seconds: float, late: Callable[[], object]) -> Made:
    """What ``make`` returns or raises; TimeoutError after so many seconds.

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
    """One shape: its session, the strategies that stay between slices, and what is known."""

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
        """The log and what the measurer saved."""
        if self._log is not None:
            self._log.close()
        if self._measurer is not None:
            self._measurer.__exit__()

    @property
    def is_open(self) -> bool:
        """Whether its turn has come."""
        return self._session is not None

    @property
    def shareable(self) -> Shared | None:
        """What other shapes can share to measure with, once it is open or was refused."""
        return None if self._measurer is None else self._measurer.shareable

    def open(self, shared: Shared | None = None, left_s: float | None = None) -> None:
        """Open the session and the log, and take over what is known.

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
        """Open before anything is asked of this shape."""
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
        """The fastest trial so far."""
        ok = [r for r in self.records if r.status == "ok"]
        return min(ok, key=lambda r: (r.steady_s, r.id), default=None)

    @property
    def cost_s(self) -> float:
        """Seconds that the next trial may take."""
        return statistics.median(self.costs[-RECENT:]) if self.costs else 0.0

    @property
    def since_best(self) -> int:
        """Trials after the one that found the best."""
        return len(self.curve) - 1 - self.curve.index(self.curve[-1]) if self.curve else 0

    def knows(self, template: str, config: Mapping[str, object]) -> bool:
        """Whether this configuration was measured here."""
        return any(r.template == template and r.config == config for r in self.records)

    def legal(self, template: str, config: Mapping[str, object]) -> bool:
        """Whether this shape can have this configuration."""
        return self.session.legal(template, config)

    def left(self, limit: int | None) -> int:
        """Trials that may still be made."""
        if self.exhausted or self.stuck:
            return 0
        return 10**9 if limit is None else max(0, limit - len(self.records))

    # --- measuring

    def default(self, until: float | None, grace_s: float) -> TuneOutcome:
        """Measure the default, unless something is known already; it may take ``grace_s`` longer."""
        return self._search(until, 1, part=replace(self._part, grace_s=grace_s))

    def slice(self, until: float | None, trials: int) -> TuneOutcome:
        """Some trials of the strategy's choice."""
        outcome = self._search(until, len(self.records) + trials, replace(self._task(), priors=self._tables()))
        self.exhausted = outcome.stopped == "exhausted"
        self.content = outcome.stopped == "gain"
        return outcome

    def these(self, until: float | None, wanted: Sequence[Record], limit: int | None) -> TuneOutcome | None:
        """Measure configurations that were found elsewhere."""
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

        part = Part(make=make, defaults=False, grace_s=0.0, clock=self.clock)
        return self._search(until, known + len(wanted), replace(self._task(), spaces=spaces), part)

    def confirm(self, until: float | None, also: Sequence[str]) -> TuneOutcome:
        """The final round."""
        final = partial(self.session.measurer.final, searched_s=sum(self.costs))
        part = replace(self._part, also=frozenset(also))
        self.outcome = self._search(until, 1, part=part, final=final, top=min(self._given.top, FINALISTS))
        return self.outcome

    @property
    def _part(self) -> Part:
        """A slice continues the strategies of the slices before, and has no time but its own."""
        return Part(make=self._strategy, grace_s=0.0, clock=self.clock)

    def _task(self) -> Task:
        """What is known of other shapes is told at the beginning of a strategy only."""
        return replace(
            self.session.task, reuse=[*self.session.earlier, *self.records], priors={}, own=self._own, known=None
        )

    def _search(
        self, until: float | None, trials: int, task: Task | None = None, part: Part | None = None,
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
        """What strategies that have not begun may start from; those that continue have taken it."""
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

    def choices(self) -> list[Choice]:
        """What may be loaded, the fastest first, of the configurations that were searched."""
        if self._session is None:
            return []
        mine = {r.id: r for r in self.records}  # not all of them are in a log that could not be written
        written = LogReader(folder_of(self.work, self._given.log)).brief()
        for record in written.records(np.flatnonzero(written.rows_of(self.session.identity.accepts))):
            if not self._given.fresh or record.of in mine:
                mine.setdefault(record.id, record)
        return choose(r for r in mine.values() if self.legal(r.template, r.config))

    def summary(self, stopped: str) -> TuneOutcome | None:
        """The outcome with the trials of all slices; None where nothing was measured."""
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
