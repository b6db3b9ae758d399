"""The search loop: measure the default, then the strategies' proposals within the budget, and confirm the winners."""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tensorir.codec import CodecError, Json, encode
from tensorir.errors import TensorIRError
from tensorir.runtime.machine import NO_LOAD, ProcessorLoad
from tensorir.tune.arm import Arm, Arms
from tensorir.tune.brief import by_run
from tensorir.tune.budget import Budget
from tensorir.tune.circumstances import Limits, available_bytes, open_again
from tensorir.tune.flight import Flights, Landed, PlacesLost
from tensorir.tune.interfaces import Ahead, Bench, Log, SearchPart, Task
from tensorir.tune.log import choose, key_of, passed, usable
from tensorir.tune.outcome import MachineReport, Timed, TuneOutcome, grouped_reasons
from tensorir.tune.race import TIE_LOG_RATIO
from tensorir.tune.ratio import Span
from tensorir.tune.record import BadRecord, Record, RunIdentity, is_library, key_text
from tensorir.tune.spec import RunSpec
from tensorir.tune.store import LogError
from tensorir.tune.strategy import make
from tensorir.tune.trial import CANCELLED, FinalRound, Known, Outcome, Peer, Trial
from tensorir.tune.warm_start import tables

WAIT_S = 0.2
"""Seconds between polls for other processes' results."""
MAX_FINAL_ROUNDS = 3  # when all finalists of one are disqualified
MAX_CONTENDERS = 1000
"""Maximum trials ranked for a final round, besides those that were in one; beyond it the fastest half that number."""
MOST_SAMPLES = 200  # of a library's time in a record
MOST_NAME = 200  # characters of its name


class _Stop(Exception):  # it ends the search, nothing went wrong
    def __init__(self, reason: str, why: str = "") -> None:
        self.reason, self.why = reason, why


def search(
    spec: RunSpec, task: Task, bench: Bench, log: Log | None = None, part: SearchPart | None = None
) -> TuneOutcome:
    """Search the spaces of all templates together with the options ``spec``; returns the outcome.

    Of ``spec`` the search goes by ``strategy``, ``seed``, ``trials`` (the defaults and usable earlier records count),
    ``budget_s``, ``started``, ``patience``, ``least_gain``, ``top``, ``stop`` and ``on_trial``, which is called with
    each new record after it is in the log; the rest is the bench's.

    KeyboardInterrupt ends the search with status ``interrupted`` and what was found. An unwritable
    log ends it after the trial; ``outcome.error`` has the LogError.
    """
    run = _Search(spec, task, bench, log, part or SearchPart())
    _ended(run, run.explore)
    if run.stopped not in ("interrupted", "log", "device_lost", "workers"):
        _ended(run, run.confirm)
    return run.outcome()


def _ended(run: _Search, phase: Callable[[], None]) -> None:
    """Run phase ``phase`` and record in ``run`` why it ended."""
    try:
        phase()
    except _Stop as reason:
        run.stopped, run.why = reason.reason, reason.why
    except PlacesLost as error:
        run.stopped, run.error = "workers", error
    except KeyboardInterrupt:
        run.stopped = "interrupted"


def _key(arm: Arm, row: int) -> str:
    return key_text([arm.name, arm.space.config(row)])


class _Search:
    """State of one search.

    stopped: reason code of its end; why: explanation; error: the exception, if any
    """

    def __init__(self, spec: RunSpec, task: Task, bench: Bench, log: Log | None, part: SearchPart) -> None:
        self.spec, self.task, self.bench, self.part = spec, task, bench, part
        finalists = None if bench.final is None else spec.top
        self.budget = Budget(part.clock, spec.started, spec.budget_s, part.grace_s, finalists, bench.cold_s)
        self.findings = Findings(task.identity, log, spec.limits)
        self.earlier = list(task.reuse)
        priors = tables(self.earlier, task.identity, task.spaces, spec.limits) if task.priors is None else task.priors
        self.arms = Arms.opened(task, priors, part.make or make, spec.strategy, spec.seed, spec.trials)
        self.confirmation = Confirmation(self.findings, self.arms, spec.top, part.also, task.flops)
        self.since_best = 0
        self.elsewhere: dict[str, tuple[Arm, int]] = {}  # what others are measuring, by key
        self.stopped, self.why = "exhausted", ""
        self.error: TensorIRError | None = None

    def explore(self) -> None:
        """Measure until a stop condition."""
        self._take_over()
        if self.bench.flights is not None:
            self._explore_together(self.bench.flights)
        else:
            self._explore_alone(self.bench.ahead)

    def confirm(self) -> None:
        """Run the final rounds."""
        self.budget.enter("final")
        self.confirmation.measure(self.bench, self.budget.remaining)
        if self.findings.error is not None:
            self.stopped = "log"

    def _take_over(self) -> None:
        """Pass earlier records to the strategies."""
        found = self.findings
        known = self.task.known
        if known is None:
            known = usable(self.earlier, found.identity, self.spec.limits, self.task.own)
        taken: dict[str, dict[int, Record]] = {name: {} for name in self.arms}
        for record, row in self.arms.rows(known):
            if taken[record.template].setdefault(row, record) is record:
                found.records.append(record)
        for name, records in taken.items():
            self.arms[name].take_over(records)
        self.budget.reused = found.reused = len(found.records)
        accepts = by_run(found.identity.accepts)
        finals = [r for r in self.earlier if r.kind == "final" and accepts(r)]
        found.finals = [r for r, _ in self.arms.rows(finals)]

    # --- what is next

    def _wanted(self) -> Iterator[tuple[Arm, int, str]]:
        """Yield (template, row, record kind) to measure: the first template's default, promising templates' defaults,
        then strategies' proposals; raises _Stop.
        """
        arms = [*self.arms.values()]
        for number, arm in enumerate([*arms[:1], *sorted(arms[1:], key=lambda arm: arm.promised_s)]):
            if self.part.defaults and arm.default not in arm.known:
                yield arm, arm.default, self._kind() if number else "default"
        while (next_arm := self.arms.promising()) is not None or self._others_alone():
            if next_arm is None:
                continue
            self._check_limits()
            found = next_arm.next_row()
            if found is not None:
                yield next_arm, found, self._kind()
        raise _Stop("exhausted")

    def _kind(self) -> str:
        """Record kind: "default" until a trial has passed, then "trial"."""
        return "default" if self.part.defaults and not self._passed() else "trial"

    def _passed(self) -> bool:
        """True if any trial, earlier ones included, gave right results."""
        found = self.findings
        return bool(self.budget.passed) or any(r.status == "ok" for r in found.records[: found.reused])

    def _next(self, wanted: Iterator[tuple[Arm, int, str]]) -> tuple[Arm, int, str]:
        """The next (template, row, record kind) to measure, marked as being measured and claimed; raises _Stop."""
        while True:
            arm, row, kind = next(wanted)
            if self.findings.records or self.arms.under_way:
                self._check_limits()  # something is always measured, however small the limits
            arm.under_way.add(row)
            if self._ours(arm, row):
                return arm, row, kind
            arm.under_way.discard(row)

    # --- other processes on the same log

    def _ours(self, arm: Arm, row: int) -> bool:
        """Claim a row for this process; False if another process has measured or claimed it."""
        others = self.part.others
        if others is None:
            return True
        mine = [_key(a, r) for a in self.arms.values() for r in a.under_way]
        claimed = others.claim(mine, _key(arm, row))
        self._hear()
        if row not in arm.known and not claimed:
            self.elsewhere[_key(arm, row)] = arm, row
        return claimed and row not in arm.known

    def _hear(self) -> None:
        """Take over results and withdrawn claims of other processes."""
        others, found = self.part.others, self.findings
        if others is None:
            return
        claimed = others.claimed() if self.elsewhere else set()
        for record in others.measured():
            row = self.arms.row(record) if found.identity.accepts(record) else None
            if row is None:
                continue
            if record.kind == "final":
                found.finals.append(record)
            elif usable([record], found.identity, self.spec.limits) and row not in self.arms[record.template].known:
                self.arms[record.template].learn(row, record)
                found.records.insert(found.reused, record)
                found.reused += 1
                self.budget.reused = found.reused
        for key, (arm, row) in list(self.elsewhere.items()):
            if row in arm.known or key not in claimed:
                del self.elsewhere[key]
                if row not in arm.known:
                    arm.forget(row)
                    arm.exhausted = False

    def _others_alone(self) -> bool:
        """Wait for other processes while they measure everything left; True if they withdrew a claim."""
        while self.elsewhere:
            self._check_limits()
            self._hear()
            if any(not arm.exhausted for arm in self.arms.values()):
                return True
            if self.findings.records:
                break
            time.sleep(WAIT_S)
        return False

    def _check_limits(self) -> None:
        self._check_wishes()
        if self.budget.spent():
            raise _Stop("budget", self.budget.words())

    def _check_wishes(self) -> None:
        spec, found = self.spec, self.findings
        if spec.stop is not None and spec.stop():
            raise _Stop("stop")
        if spec.trials is not None and found.reused + found.counts.total() + self.arms.under_way >= spec.trials:
            raise _Stop("trials")
        if spec.patience is not None and self.since_best >= spec.patience:
            raise _Stop("patience")
        if spec.least_gain is not None and self.arms.hopeless(spec.least_gain):
            raise _Stop("gain")

    # --- one at a time, or built ahead

    def _explore_alone(self, ahead: Ahead | None) -> None:
        """Measure until a stop condition: singly until one is right, then in batches built in parallel."""
        wanted, over = self._wanted(), None
        while over is None:
            batch: list[tuple[Arm, int, str]] = []
            try:
                while len(batch) < (ahead.width if ahead is not None and self._passed() else 1):
                    batch.append(self._next(wanted))
            except _Stop as reason:
                over = reason
            try:
                self._measured(batch, ahead)
            finally:
                self.arms.forget()
        raise over

    def _measured(self, batch: Sequence[tuple[Arm, int, str]], ahead: Ahead | None) -> None:
        """Build a batch in parallel, then measure one after the other; raises _Stop."""
        clock = self.budget.clock
        self.budget.enter("trials")
        begin, results = clock(), list[Outcome | None]([None] * len(batch))
        trials = [Trial(arm.name, arm.space.config(row), kind) for arm, row, kind in batch]
        if ahead is not None and len(batch) > 1:
            with self._loading():
                results = list(ahead.build(trials, self.budget.left()))
        share = (clock() - begin) / max(1, len(batch))
        known = [n for n, result in enumerate(results) if result is not None]  # these have ended: first into the log
        for n in sorted(range(len(batch)), key=lambda n: n not in known):
            self.budget.enter("trials")
            (arm, row, _), result, began = batch[n], results[n], clock()
            if result is None:
                if len(batch) > 1:
                    self._go_on(arm, row)
                result = self.bench.measure(trials[n], self.budget.left())
            self.budget.enter("between")
            self._finish(arm, row, result, share + clock() - began)

    @contextlib.contextmanager
    def _loading(self) -> Iterator[None]:
        """Context manager that imports the strategies' models in a thread, while nothing is timed."""
        loads = [load for arm in self.arms.values() if (load := getattr(arm.strategy, "load", None)) is not None]
        thread = threading.Thread(target=lambda: [load() for load in loads], daemon=True)
        thread.start()
        yield
        thread.join()

    def _go_on(self, arm: Arm, row: int) -> None:
        """Raise _Stop if a configuration that is already built need not be measured any more."""
        arm.under_way.discard(row)
        try:
            if self.findings.records:
                self._check_wishes()
        finally:
            arm.under_way.add(row)
        left = self.budget.left()
        if left is not None and left <= 0:
            raise _Stop("budget")

    # --- several at a time

    def _explore_together(self, flights: Flights) -> None:
        """Measure on several workers concurrently until a stop condition, the default first and alone; started trials
        are awaited.

        They are awaited until the budget's end at most.
        """
        wanted, over = self._wanted(), None
        try:
            while over is None or flights.under_way:
                while over is None and (not flights.under_way or (self.findings.records and flights.room())):
                    over = self._launch(flights, wanted)
                left = self.budget.left()
                self.budget.enter("trials")
                landed = flights.collect(1.0 if left is None else min(1.0, max(0.0, left)))
                self.budget.enter("between")
                over = self._take(landed) or over
                if left is not None and left <= 0:
                    over = _Stop("budget") if over is None or flights.under_way else over
                    break
        finally:
            flights.abandon()
            self.arms.forget()
        raise over

    def _launch(self, flights: Flights, wanted: Iterator[tuple[Arm, int, str]]) -> _Stop | None:
        """Start the next trial; returns None, or the _Stop that says why there is none."""
        try:
            arm, row, kind = self._next(wanted)
        except _Stop as reason:
            return reason
        best_s = self.arms.best_s
        trial = Trial(arm.name, arm.space.config(row), kind, best_s if math.isfinite(best_s) else None)
        flights.start((arm.name, row), trial, self.budget.left())
        return None

    def _take(self, landed: Sequence[Landed]) -> _Stop | None:
        """Log finished trials and pass them to strategies; returns the first _Stop among them, None if there is
        none.
        """
        over = None
        for one in landed:
            name, row = one.name
            arm = self.arms[name]
            try:
                self._finish(arm, row, one.reply.outcome, one.seconds)
            except _Stop as reason:
                arm.forget(row)
                over = over or reason
                if reason.reason == "log":
                    raise
        return over

    # --- results

    def _finish(self, arm: Arm, row: int, outcome: Outcome, cost_s: float) -> None:
        """Handle a result: log first, then strategy, then callback."""
        if outcome.status == CANCELLED.status:
            arm.forget(row)
            raise _Stop("budget" if self.budget.spent(cost_s) else "cancelled")
        record = self.findings.trial(arm.name, arm.space.config(row), outcome)
        self.budget.paid(cost_s, record.status == "ok")
        before = self.arms.best_s
        arm.learn(row, record)
        self.since_best = 0 if arm.best_s < before else self.since_best + 1
        if self.spec.on_trial is not None:
            self.spec.on_trial(record)
        if self.findings.error is not None:
            raise _Stop("log")
        if record.status == "device_lost":
            raise _Stop("device_lost")

    def outcome(self) -> TuneOutcome:
        """The TuneOutcome of the search."""
        self.budget.enter("end")
        found, spaces = self.findings, [arm.space for arm in self.arms.values()]
        best, ties = self.confirmation.ranked()
        status = "ok" if best is not None else "no_valid_config" if found.records else "not_tried"
        status = "interrupted" if self.stopped == "interrupted" else status
        return TuneOutcome(
            status=status,
            stopped=self.stopped,
            why=self.why or (self._unfinished() if status == "not_tried" else ""),
            identity=found.identity,
            trials=found.counts.total(),
            reused=found.reused,
            counts=dict(found.counts.most_common()),
            search=self._counters(),
            space={
                "configs": sum(int(s.size) for s in spaces),
                "legal": sum(len(np.asarray(s.legal)) for s in spaces),
            },
            default=self.confirmation.timed_default(best),
            baseline=self.confirmation.baseline,
            best=best,
            ties=ties,
            finalists=self.confirmation.confirmed(),
            records=tuple(found.records),
            reasons=grouped_reasons(found.records if best else [*found.records, *found.finals]),
            log_path=found.log_path,
            elapsed_s=self.budget.elapsed_s,
            seconds=self.budget.seconds,
            unspent_s=self.budget.unspent_s,
            error=self.error or found.error,
            machine=_machine(found.new, self.confirmation.load),
        )

    def _unfinished(self) -> str:
        """Explanation if the budget ended before the first trial did; "" if the search stopped for another reason."""
        if self.stopped not in ("budget", "cancelled"):
            return ""
        return f"the {self.spec.budget_s or 0.0:.3g} s of the budget ended before the first trial did"

    def _counters(self) -> Json:
        counts = Counter({"initial": 0, "model": 0, "local": 0})
        surrogate: Any = None
        for arm in self.arms.values():
            counts.update(getattr(arm.strategy, "counts", {}))
            surrogate = getattr(arm.strategy, "surrogate", surrogate)
        return {"name": self.spec.strategy, "surrogate": surrogate if surrogate is None else str(surrogate), **counts}


def _machine(new: Sequence[Record], last: ProcessorLoad) -> MachineReport:
    """Load report over a run's trials and its last final round."""
    paces = [r.drift or 1.0 for r in new if r.time_s is not None]
    trials = ProcessorLoad.sum(r.load for r in new if r.kind == "trial")
    return MachineReport(trials + last, last, (min(paces, default=1.0), max(paces, default=1.0)))


class Confirmation:
    """The final rounds of a search and their results.

    pairs:    (trial, final record) of each finalist of the last round
    baseline: the fastest library of that round
    load:     machine load over all rounds
    """

    def __init__(self, findings: Findings, arms: Arms, top: int, also: Collection[str], flops: float | None) -> None:
        self._findings, self._arms, self._top, self._also, self._flops = findings, arms, top, also, flops
        self.pairs: list[tuple[Record, Record]] = []
        self.baseline: dict[str, Any] | None = None
        self.load: ProcessorLoad = NO_LOAD

    def measure(self, bench: Bench, remaining: Callable[[], float | None]) -> None:
        """Re-measure the finalists interleaved; where none of them passes, the next best in another round, of
        ``MAX_FINAL_ROUNDS`` at most. Sets ``pairs``, ``baseline`` and ``load``; no effect without finalists or time.

        remaining: tells the seconds that are left, None for no limit
        """
        if bench.final is None:
            return
        for _ in range(MAX_FINAL_ROUNDS):
            left, finalists = remaining(), self.finalists()
            if not finalists or (left is not None and left <= 0):
                return
            self._take(finalists, bench.final(finalists, left))
            if any(final.status == "ok" for _, final in self.pairs) or not self.pairs:
                return

    def _take(self, finalists: list[Record], found: FinalRound) -> None:
        self.pairs, name = [], os.urandom(8).hex()
        self.baseline = {**encode(found.baseline), "round": name} if found.baseline else self.baseline
        self.load += found.load or NO_LOAD
        library = _library(found.baseline)
        for trial, outcome in zip(finalists, found.results, strict=True):
            if outcome.status != CANCELLED.status:  # then there was no time left for it: nothing was learnt
                self.pairs.append((trial, self._findings.final(trial, outcome, **library, round=name)))
                library = {}

    def finalists(self) -> list[Record]:
        """Trials for the final round: the fastest, one per source, up to ``top``; those in ``also``; and the default.

        The default stands for its source; it is left out if it failed. [] if no trial is usable.
        """
        default = self.default()
        if default is not None and (default.status != "ok" or self._findings.failed_again(default)):
            default = None
        chosen: dict[str, Record] = {}
        sources: set[str] = set()
        for record in (c.record for c in choose([*self._contenders(), *self._findings.finals])):
            source = record.source_sha256 or key_of(record)
            asked = record.id in self._also
            if asked or (source not in sources and len(chosen) < self._top):
                sources.add(source)
                taken = default if default and not asked and source == default.source_sha256 else record
                chosen[taken.id] = taken
        if chosen and default is not None:
            chosen.setdefault(default.id, default)
        return [*chosen.values()]

    def _contenders(self) -> list[Record]:
        """Trials that may rank among the fastest."""
        records = self._findings.records
        if len(records) <= MAX_CONTENDERS:
            return records
        known = {*map(key_of, self._findings.finals)}
        fastest = {
            id(r) for r in heapq.nsmallest(MAX_CONTENDERS // 2, filter(passed, records), key=lambda r: r.steady_s)
        }
        return [r for r in records if id(r) in fastest or r.id in self._also or key_of(r) in known]

    def default(self) -> Record | None:
        """Trial record of the first template's default configuration; None if it was not measured."""
        return next((r for r in self._findings.records if self._arms.is_default(r)), None)

    # --- what is believed in the end

    def confirmed(self) -> tuple[Timed, ...]:
        """Finalists whose results were right, as Timed."""
        return tuple(Timed.of(t, f, self._flops) for t, f in self.pairs if f.status == "ok")

    def ranked(self) -> tuple[Timed | None, tuple[Timed, ...]]:
        """(best, finalists tied with it); best is None if nothing is valid, configurations outside the final round keep
        their trial's time.
        """
        race = {t.id: f.race or {} for t, f in self.pairs}
        lost = {trial for trial, standing in race.items() if standing.get("standing") == "slower"}
        ranked = sorted(
            (t for t in self.confirmed() if t.checked), key=lambda t: (t.trial in lost, t.time_s or math.inf, t.trial)
        )
        # a race that was cut short calls nobody slower, but who is far slower in it is no tie either
        near = {
            trial
            for trial, standing in race.items()
            if standing and standing.get("low", 1.0) <= math.exp(TIE_LOG_RATIO)
        }
        ties = tuple(t for t in ranked[1:] if t.trial not in lost and t.trial in near)
        if ranked:
            return ranked[0], ties
        choices = choose([*self._contenders(), *self._findings.finals])
        return (Timed.of(choices[0].record, None, self._flops) if choices else None), ties

    def timed_default(self, best: Timed | None) -> Timed | None:
        """The default's time on the scale of the best's; None if the default was not measured.

        If one of the two missed the final round: the default's time * (best's time / time of the best's trial).
        """
        record = self.default()
        if record is None:
            return None
        default = Timed.of(record, next((f for t, f in self.pairs if t.id == record.id), None), self._flops)
        if best is None or best.time_s is None or default.time_s is None or default.confirmed == best.confirmed:
            return default
        factor = best.time_s / best.record.steady_s
        times = [None if t is None else t * factor for t in (default.time_s, default.low_s, default.high_s)]
        rate = None if default.gflops is None else default.gflops / factor
        return replace(default, time_s=times[0], low_s=times[1], high_s=times[2], gflops=rate)


def _library(found: Peer | None) -> Json:
    """``{"baseline": timing fields}`` for a final record; {} without a valid timing."""
    if found is None:
        return {}
    taken = Span.of_library(encode(found))
    ends = taken.low_s, taken.high_s, taken.spread
    kept = encode(Peer(found.name[:MOST_NAME], taken.time_s, *ends, taken.slots[:MOST_SAMPLES]))
    return {"baseline": kept} if is_library(kept) else {}


class Findings:
    """The records of a search.

    records: usable trials, the first ``reused`` from earlier runs; finals: records of final rounds
    new:     records of this run; counts: {status: number} of this run's trials
    error:   LogError if the log could not be written, after which no more is measured; else None
    """

    def __init__(self, identity: RunIdentity, log: Log | None, limits: Limits) -> None:
        self.identity, self._log, self._limits = identity, log, limits
        self.records: list[Record] = []
        self.finals: list[Record] = []
        self.new: list[Record] = []
        self.counts: Counter[str] = Counter()
        self.reused = 0
        self.error: TensorIRError | None = None

    @property
    def log_path(self) -> str | None:
        """Path of the log segment, None without a log."""
        return None if self._log is None else str(self._log.path)

    def trial(self, template: str, config: Mapping[str, object], outcome: Outcome) -> Record:
        """Make, log and keep the record of a trial."""
        record = self._sealed("trial", template, config, outcome)
        self._append(record)
        self.counts[record.status] += 1
        self.records.append(record)
        self.new.append(record)
        return record

    def final(self, trial: Record, outcome: Outcome, **more: object) -> Record:
        """Make, log and keep a final-round record for ``trial``; more: extra fields"""
        inherited = {f.name: getattr(trial, f.name) for f in fields(Known) if getattr(outcome, f.name) is None}
        made = self._sealed("final", trial.template, trial.config, outcome, of=trial.id, **inherited, **more)
        self.finals.append(made)
        self.new.append(made)
        self._append(made)
        return made

    def failed_again(self, record: Record) -> bool:
        """True if a final round measured the trial again and it failed, other than by a cause that may not recur."""
        failed = (r for r in self.finals if r.status != "ok" and not open_again(r, self._limits))
        return any(r.of == record.id for r in failed)

    def _sealed(
        self, kind: str, template: str, config: Mapping[str, object], outcome: Outcome, **more: object
    ) -> Record:
        identity = self.identity
        if outcome.device is not None:  # which of several of the same kind
            identity = replace(identity, device=outcome.device)
        if outcome.status != "ok":
            more["limits"] = encode(replace(self._limits, memory_bytes=available_bytes()))
        try:
            return identity.record(kind, template, config, {**encode(outcome), **more})
        except (BadRecord, CodecError) as error:  # a bug of the measuring side, not a reason to lose the run
            detail = {"message": f"the measurement is not a record: {error}", "status": outcome.status[:100]}
            return identity.record(kind, template, config, {"status": "internal_error", "detail": detail})

    def _append(self, record: Record) -> None:
        if self._log is not None and self.error is None:
            try:
                self._log.append(record)
            except LogError as error:
                self.error = error
