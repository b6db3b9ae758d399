"""The search loop: measure the default, then what the strategy asks for, within the budget, and confirm the winner."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from tensorir.codec import CodecError, encode
from tensorir.errors import TensorIRError
from tensorir.runtime.machine import REST, Load
from tensorir.tune.arm import Arm, SpaceLike
from tensorir.tune.elsewhere import Table, tables
from tensorir.tune.flight import Flights, Landed, PlacesLost
from tensorir.tune.log import choose, key_of, usable
from tensorir.tune.outcome import Machine, Timed, TuneOutcome, grouped_reasons
from tensorir.tune.paired import TIE
from tensorir.tune.ratio import Span
from tensorir.tune.record import TRANSIENT, BadRecord, Identity, Record, drift_of, is_library, steady_s
from tensorir.tune.sides import Ahead, Final, Log, Make, Measure
from tensorir.tune.store import LogError
from tensorir.tune.trial import CANCELLED, Known, Outcome, Peer, Trial

FINAL_SHARE = 0.25  # of the budget is the most that is kept back for the final round
ROUNDS_S = 1.5  # of nine rounds with a library, whose threads are waited for
GRACE_S = 1.5  # that the first trial may take beyond the budget: no run outlives its own by more than two seconds
OPTIMISM = 0.7  # in log time: the median configuration of a space is e**0.9 to e**1.2 slower than its best
MIN_SHARE = 0.15  # of an equal share of the trials goes to every template
RECENT = 15  # trials whose cost predicts the next one's
ROUNDS = 3  # final rounds when all finalists of one are disqualified


class _Stop(Exception):  # it ends the search, nothing went wrong
    def __init__(self, reason: str) -> None:
        self.reason = reason


def search(
    strategy: str,
    spaces: Mapping[str, SpaceLike],
    measure: Measure,
    *,
    identity: Identity,
    trials: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    log: Log | None = None,
    reuse: Iterable[Record] = (),
    final: Final | None = None,
    top: int = 5,
    patience: int | None = None,
    least_gain: float | None = None,
    on_trial: Callable[[Record], object] | None = None,
    started: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    stop: Callable[[], bool] | None = None,
    flops: float | None = None,
    cold_s: float = 0.0,
    make: Make | None = None,
    flights: Flights | None = None,
    ahead: Ahead | None = None,
    also: Collection[str] = (),
    defaults: bool = True,
    priors: Mapping[str, list[Table]] | None = None,
    grace_s: float = GRACE_S,
) -> TuneOutcome:
    """Search the spaces of all templates together; the first template's default is *the* default.

    trials:   configurations in total: the defaults and usable earlier records count
    budget_s: wall time from ``started`` (a value of ``clock``; now when None), final round included
    reuse:    earlier records of any kind. Those that ``identity`` accepts are told to the strategy and never measured
              again; those of other devices, versions and shapes whose configurations are legal here are what a
              search may start from (``tensorir.tune.elsewhere``). The others are left alone
    final:    re-measures finalists (at most ``top``, the fastest distinct sources, and the default)
              interleaved with each other and with the baseline
    patience: stop after so many trials without a new best
    least_gain: stop when no strategy expects its next trials to improve on the best by this share; a strategy that
              expects nothing (``expected_gain`` is None or not there) goes on
    on_trial: called with each new record after it is in the log
    cold_s:   seconds until a new worker is ready: the final round may need one, as what hangs is killed
    make:     ``make(name, space, seed=…, budget=…)``, with ``priors=…`` where there are any; that of
              ``tensorir.tune.strategy`` when None
    flights:  places that measure at the same time, in place of ``measure``. In which order they answer decides what is
              asked next, so only one place gives the same trials again
    ahead:    builds the next few configurations at once; the strategy is then asked for them together
    also:     ids of trials that are measured again in the final round whatever their times
    defaults: measure the templates' defaults before what the strategies ask for
    priors:   what strategies may start from, by template; by ``reuse`` when None
    grace_s:  that the first trial may take beyond the budget where nothing is known yet

    KeyboardInterrupt ends the search with status ``interrupted`` and what was found. An unwritable
    log ends it after the trial; ``outcome.error`` has the LogError.
    """
    start = clock() if started is None else started
    run = _Run(
        measure, identity, trials, start, budget_s, log, final, top, patience, on_trial, clock, stop, flops, cold_s
    )
    run.also, run.least_gain, run.defaults, run.grace_s = frozenset(also), least_gain, defaults, grace_s
    earlier = list(reuse)
    known = tables(earlier, identity, spaces) if priors is None else priors
    run.open_arms(strategy, spaces, seed, make or _default_make(), known)
    try:
        run.take_over(earlier)
        if flights is not None:
            run.explore_together(flights)
        else:
            run.explore(ahead)
    except _Stop as reason:
        run.stopped = reason.reason
    except PlacesLost as error:
        run.stopped, run.error = "workers", error
    except KeyboardInterrupt:
        run.stopped = "interrupted"
    if run.stopped not in ("interrupted", "log", "device_lost", "workers"):
        try:
            run.confirm()
        except PlacesLost as error:
            run.stopped, run.error = "workers", error
        except KeyboardInterrupt:
            run.stopped = "interrupted"
    return run.outcome(strategy)


def _library(found: Peer | None) -> dict[str, Any]:
    """The field of a final record that holds what is known of the library of its round."""
    if found is None:
        return {}
    taken = Span.of(encode(found))
    kept = encode(Peer(found.name[:200], taken.time_s, taken.low_s, taken.high_s, taken.spread, taken.slots[:200]))
    return {"baseline": kept} if is_library(kept) else {}


def _default_make() -> Make:
    from tensorir.tune.strategy import make  # here, because it loads the surrogate models

    return make


@dataclass
class _Run:
    """State of one search."""

    measure: Measure
    identity: Identity
    limit: int | None
    start: float
    budget_s: float | None
    log: Log | None
    final: Final | None
    top: int
    patience: int | None
    on_trial: Callable[[Record], object] | None
    clock: Callable[[], float]
    stop: Callable[[], bool] | None
    flops: float | None
    cold_s: float
    also: Collection[str] = ()
    least_gain: float | None = None
    defaults: bool = True
    grace_s: float = GRACE_S
    arms: dict[str, Arm] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)  # usable trials, earlier ones first
    finals: list[Record] = field(default_factory=list)
    reused: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    costs: list[float] = field(default_factory=list)
    good_costs: list[float] = field(default_factory=list)
    since_best: int = 0
    stopped: str = "exhausted"
    error: TensorIRError | None = None
    baseline: dict[str, Any] | None = None
    last: Load = REST  # of the machine, in the final rounds
    new: list[Record] = field(default_factory=list)  # records of this run
    round: list[tuple[Record, Record]] = field(default_factory=list)  # trial and final record of this run's last round

    def open_arms(
        self, strategy: str, spaces: Mapping[str, SpaceLike], seed: int, make: Make, priors: Mapping[str, list[Table]]
    ) -> None:
        share = None if self.limit is None else -(-self.limit // max(1, len(spaces)))
        for number, (name, space) in enumerate(spaces.items()):
            known = {"priors": priors[name]} if name in priors else {}
            self.arms[name] = Arm(name, space, make(strategy, space, seed=seed + number, budget=share, **known))

    def take_over(self, earlier: Sequence[Record]) -> None:
        """Tell the strategies what is known already."""
        for record in usable(earlier, self.identity):
            row = self._row(record)
            if row is not None and row not in self.arms[record["template"]].known:
                self.arms[record["template"]].learn(row, record)
                self.records.append(record)
        self.reused = len(self.records)
        self.finals = [
            r for r in earlier if r["kind"] == "final" and self.identity.accepts(r) and self._row(r) is not None
        ]

    def _row(self, record: Record) -> int | None:
        arm = self.arms.get(record["template"])
        row = -1 if arm is None else arm.row(record["config"])
        return row if row >= 0 else None

    def explore(self, ahead: Ahead | None) -> None:
        """Measure until something says stop; one at a time until one is right, then as many as are built at once."""
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
                for arm in self.arms.values():
                    for row in tuple(arm.under_way):
                        arm.forget(row)
        raise over

    def _next(self, wanted: Iterator[tuple[Arm, int, str]]) -> tuple[Arm, int, str]:
        """The next trial, which is under way from here on; raises _Stop."""
        arm, row, kind = next(wanted)
        if self.counts or self.reused or any(a.under_way for a in self.arms.values()):
            self._check_limits()  # something is always measured, however small the limits
        arm.under_way.add(row)
        return arm, row, kind

    def _measured(self, batch: Sequence[tuple[Arm, int, str]], ahead: Ahead | None) -> None:
        """Build them all, then measure one after the other; raises _Stop."""
        begin, results = self.clock(), list[Outcome | None]([None] * len(batch))
        trials = [Trial(arm.name, arm.space.config(row), kind) for arm, row, kind in batch]
        if ahead is not None and len(batch) > 1:
            with self._loading():
                results = list(ahead.build(trials, self._left()))
        share = (self.clock() - begin) / max(1, len(batch))
        known = [n for n, result in enumerate(results) if result is not None]  # these have ended: first into the log
        for n in sorted(range(len(batch)), key=lambda n: n not in known):
            (arm, row, _), result, began = batch[n], results[n], self.clock()
            if result is None:
                if len(batch) > 1:
                    self._go_on(arm, row)
                result = self.measure(trials[n], self._left())
            self._finish(arm, row, result, share + self.clock() - began)

    @contextlib.contextmanager
    def _loading(self) -> Iterator[None]:
        """Let the strategies import their models meanwhile: at no other time is nothing being timed."""
        loads = [load for arm in self.arms.values() if (load := getattr(arm.strategy, "load", None)) is not None]
        thread = threading.Thread(target=lambda: [load() for load in loads], daemon=True)
        thread.start()
        yield
        thread.join()

    def _wanted(self) -> Iterator[tuple[Arm, int, str]]:
        """The defaults, then what the strategies ask for; raises _Stop."""
        for number, arm in enumerate(self.arms.values()):
            row = int(arm.space.index(arm.space.default))
            if self.defaults and row not in arm.known:
                yield arm, row, self._kind() if number else "default"
        while (next_arm := self._promising()) is not None:
            self._check_limits()
            found = next_arm.next_row()
            if found is not None:
                yield next_arm, found, self._kind()
        raise _Stop("exhausted")

    def _kind(self) -> str:
        """What stands in for the default until something has passed: the next ones, one after the other."""
        return "default" if self.defaults and not self._passed() else "trial"

    def _passed(self) -> bool:
        """Whether any trial so far, earlier ones included, ran and was right."""
        return bool(self.good_costs) or any(r["status"] == "ok" for r in self.records[: self.reused])

    def _go_on(self, arm: Arm, row: int) -> None:
        """Whether a trial that was built with others is still wanted; raises _Stop."""
        arm.under_way.discard(row)
        try:
            if self.counts or self.reused:
                self._check_wishes()
        finally:
            arm.under_way.add(row)
        left = self._left()
        if left is not None and left <= 0:
            raise _Stop("budget")

    def explore_together(self, flights: Flights) -> None:
        """As ``explore``, with a trial under way wherever there is room; the default alone, before all others.

        Once something says stop, what is under way is still waited for, until the budget's end.
        """
        wanted, over = self._wanted(), None
        try:
            while over is None or flights.under_way:
                while over is None and (not flights.under_way or (self.records and flights.room())):
                    over = self._launch(flights, wanted)
                left = self._left()
                landed = flights.collect(1.0 if left is None else min(1.0, max(0.0, left)))
                over = self._take(landed) or over
                if left is not None and left <= 0:
                    over = _Stop("budget") if over is None or flights.under_way else over
                    break
        finally:
            flights.abandon()
            for arm in self.arms.values():
                for row in tuple(arm.under_way):
                    arm.forget(row)
        raise over

    def _launch(self, flights: Flights, wanted: Iterator[tuple[Arm, int, str]]) -> _Stop | None:
        """Start the next trial, or say why there is none."""
        try:
            arm, row, kind = self._next(wanted)
        except _Stop as reason:
            return reason
        best = min(a.best_s for a in self.arms.values())
        trial = Trial(arm.name, arm.space.config(row), kind, best if math.isfinite(best) else None)
        flights.start((arm.name, row), trial, self._left())
        return None

    def _take(self, landed: Sequence[Landed]) -> _Stop | None:
        """Log and learn from what has finished; the first reason to stop, but nothing that has finished is left out."""
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

    def _promising(self) -> Arm | None:
        """The template to try next: the best time found, less an allowance that shrinks as it is tried.

        A small share is kept for each one whatever its times: a bad default says little about a template.
        """
        open_arms = [arm for arm in self.arms.values() if not arm.exhausted]
        total = sum(arm.tried for arm in self.arms.values())
        neglected = [arm for arm in open_arms if arm.tried < MIN_SHARE * total / len(self.arms)]
        if neglected:
            return neglected[0]
        times = [arm.best_s for arm in self.arms.values() if math.isfinite(arm.best_s)]
        unknown = 2 * max(times) if times else 1.0  # a template of which nothing has run yet is not hopeless

        def score(arm: Arm) -> float:
            best = arm.best_s if math.isfinite(arm.best_s) else unknown
            return math.log(best) - OPTIMISM * math.sqrt(math.log(total + 2) / (arm.tried + 1))

        return min(open_arms, key=score, default=None)

    def _check_limits(self) -> None:
        self._check_wishes()
        remaining = self._remaining(self._reserve())
        expected = 1.25 * statistics.median(self.costs[-RECENT:]) if self.costs else 0.0
        if remaining is not None and remaining <= expected:
            raise _Stop("budget")

    def _check_wishes(self) -> None:
        if self.stop is not None and self.stop():
            raise _Stop("stop")
        under_way = sum(len(arm.under_way) for arm in self.arms.values())
        if self.limit is not None and self.reused + self.counts.total() + under_way >= self.limit:
            raise _Stop("trials")
        if self.patience is not None and self.since_best >= self.patience:
            raise _Stop("patience")
        if self.least_gain is not None and self._hopeless(self.least_gain):
            raise _Stop("gain")

    def _hopeless(self, least: float) -> bool:
        """Whether every template's strategy expects less than that of its next trials, against the best of all."""
        best = min(arm.best_s for arm in self.arms.values())
        for arm in self.arms.values():
            gain = getattr(arm.strategy, "expected_gain", None)
            # what improves on the template's own best need not improve on the best of another one
            if not arm.exhausted and (gain is None or gain - max(0.0, math.log(arm.best_s / best)) >= least):
                return False
        return math.isfinite(best)

    def _remaining(self, reserve: float = 0.0) -> float | None:
        return None if self.budget_s is None else self.start + self.budget_s - reserve - self.clock()

    def _left(self) -> float | None:
        """Seconds for trials; something is always measured, however small the budget: what is under way when it ends
        and would be the only result may take a little longer.
        """
        if self.counts:
            return self._remaining(self._reserve())
        return self._remaining(0.0 if self.reused else -self.grace_s)

    def _reserve(self) -> float:
        """Seconds to keep for the final round: as if every finalist were built and measured afresh, and for so many
        rounds that their ratios have narrow intervals.
        """
        if self.final is None or self.budget_s is None:
            return 0.0
        if not self.good_costs:
            return 0.1 * self.budget_s
        entries = min(self.top, len(self.good_costs) + self.reused) + 2  # the default and the baseline
        afresh = self.cold_s + entries * statistics.median(self.good_costs[-RECENT:])
        return min(FINAL_SHARE * self.budget_s, afresh + ROUNDS_S)

    def _finish(self, arm: Arm, row: int, outcome: Outcome, cost: float) -> None:
        """Take a result: first the log, then the strategy, then whoever watches."""
        if outcome.status == CANCELLED.status:
            arm.forget(row)
            remaining = self._remaining(self._reserve())
            raise _Stop("budget" if remaining is not None and remaining <= cost else "cancelled")
        record = self._sealed("trial", arm.name, arm.space.config(row), outcome)
        error = self._append(record)
        self.counts[record["status"]] += 1
        self.costs.append(cost)
        if record["status"] == "ok":
            self.good_costs.append(cost)
        before = min(a.best_s for a in self.arms.values())
        self.records.append(record)
        self.new.append(record)
        arm.learn(row, record)
        self.since_best = 0 if arm.best_s < before else self.since_best + 1
        if self.on_trial is not None:
            self.on_trial(record)
        if error is not None:
            raise _Stop("log")
        if record["status"] == "device_lost":
            raise _Stop("device_lost")

    def _sealed(self, kind: str, template: str, config: Mapping[str, Any], outcome: Outcome, **more: Any) -> Record:
        """The record of an outcome; more: fields of a final record."""
        identity = self.identity
        if outcome.device is not None:  # which of several of the same kind
            identity = replace(identity, device=outcome.device)
        try:
            return identity.record(kind, template, config, {**encode(outcome), **more})
        except (BadRecord, CodecError) as error:  # a bug of the measuring side, not a reason to lose the run
            detail = {"message": f"the measurement is not a record: {error}", "status": outcome.status[:100]}
            return identity.record(kind, template, config, {"status": "internal_error", "detail": detail})

    def _append(self, record: Record) -> TensorIRError | None:
        if self.log is not None and self.error is None:
            try:
                self.log.append(record)
            except LogError as error:
                self.error = error
        return self.error

    def confirm(self) -> None:
        """Re-measure the finalists interleaved; those that fail give way to the next best."""
        if self.final is None:
            return
        for _ in range(ROUNDS):
            remaining = self._remaining()
            finalists = self._finalists()
            if not finalists or (remaining is not None and remaining <= 0):
                return
            answer = self.final(finalists, remaining)
            self.round, name = [], os.urandom(8).hex()
            self.baseline = {**encode(answer.baseline), "round": name} if answer.baseline else self.baseline
            self.last += answer.load or REST
            library = _library(answer.baseline)
            for trial, outcome in zip(finalists, answer.results, strict=True):
                if outcome.status != CANCELLED.status:  # then there was no time left for it: nothing was learnt
                    self._keep_final(trial, outcome, **library, round=name)
                    library = {}
            if any(final["status"] == "ok" for _, final in self.round) or not self.round:
                return

    def _keep_final(self, trial: Record, outcome: Outcome, **more: Any) -> None:
        inherited = {f.name: trial[f.name] for f in fields(Known) if getattr(outcome, f.name) is None}
        final = self._sealed("final", trial["template"], trial["config"], outcome, of=trial["id"], **inherited, **more)
        self.finals.append(final)
        self.new.append(final)
        self.round.append((trial, final))
        if self._append(final) is not None:
            self.stopped = "log"

    def _finalists(self) -> list[Record]:
        """The fastest configurations with different sources, and the default, which stands for those of its source."""
        default = self._default_record()
        if default is not None and (default["status"] != "ok" or self._failed_again(default)):
            default = None
        chosen: dict[str, Record] = {}
        sources: set[str] = set()
        for record in (c.record for c in choose([*self.records, *self.finals])):
            source = record["source_sha256"] or key_of(record)
            asked = record["id"] in self.also
            if asked or (source not in sources and len(chosen) < self.top):
                sources.add(source)
                taken = default if default and not asked and source == default["source_sha256"] else record
                chosen[taken["id"]] = taken
        if chosen and default is not None:
            chosen.setdefault(default["id"], default)
        return [*chosen.values()]

    def _failed_again(self, record: Record) -> bool:
        return any(r.get("of") == record["id"] and r["status"] not in {"ok", *TRANSIENT} for r in self.finals)

    def _default_record(self) -> Record | None:
        arm = next(iter(self.arms.values()), None)
        row = -1 if arm is None else int(arm.space.index(arm.space.default))
        return next(
            (r for r in self.records if arm is not None and r["template"] == arm.name and self._row(r) == row), None
        )

    def outcome(self, strategy: str) -> TuneOutcome:
        """Sum up; everything not re-measured in this run's final round has the time of its trial."""
        confirmed = [Timed.of(t, f, self.flops) for t, f in self.round if f["status"] == "ok"]
        race = {t["id"]: f.get("race") or {} for t, f in self.round}
        lost = {trial for trial, standing in race.items() if standing.get("standing") == "slower"}
        ranked = sorted(
            (t for t in confirmed if t.checked), key=lambda t: (t.trial in lost, t.time_s or math.inf, t.trial)
        )
        best = ranked[0] if ranked else None
        if best is None:
            choices = choose([*self.records, *self.finals])
            best = Timed.of(choices[0].record, None, self.flops) if choices else None
        # a race that was cut short calls nobody slower, but who is far behind in it is no tie either
        near = {trial for trial, standing in race.items() if standing and standing.get("low", 1.0) <= math.exp(TIE)}
        ties = tuple(t for t in ranked[1:] if t.trial not in lost and t.trial in near)
        default = self._default_record()
        final = next((f for t, f in self.round if default is not None and t["id"] == default["id"]), None)
        status = "interrupted" if self.stopped == "interrupted" else "no_valid_config" if best is None else "ok"
        return TuneOutcome(
            status=status,
            stopped=self.stopped,
            identity=self.identity,
            trials=self.counts.total(),
            reused=self.reused,
            counts=dict(self.counts.most_common()),
            search=self._search_counters(strategy),
            space={
                "configs": sum(int(a.space.size) for a in self.arms.values()),
                "legal": sum(len(np.asarray(a.space.legal)) for a in self.arms.values()),
            },
            default=None if default is None else self._beside(Timed.of(default, final, self.flops), best),
            baseline=self.baseline,
            best=best,
            ties=ties,
            finalists=tuple(confirmed),
            records=tuple(self.records),
            reasons=grouped_reasons(self.records if best else [*self.records, *self.finals]),
            log_path=None if self.log is None else str(self.log.path),
            elapsed_s=self.clock() - self.start,
            error=self.error,
            machine=self._machine(),
        )

    def _beside(self, default: Timed, best: Timed | None) -> Timed:
        """The default's time to compare with the best's: by the trials of both where one was not in the final round."""
        if best is None or best.time_s is None or default.time_s is None or default.confirmed == best.confirmed:
            return default
        factor = best.time_s / steady_s(best.record)
        times = [None if t is None else t * factor for t in (default.time_s, default.low_s, default.high_s)]
        rate = None if default.gflops is None else default.gflops / factor
        return replace(default, time_s=times[0], low_s=times[1], high_s=times[2], gflops=rate)

    def _machine(self) -> Machine:
        paces = [drift_of(r) for r in self.new if r["time_s"] is not None]
        trials = Load.sum(r.get("load") for r in self.new if r["kind"] == "trial")
        return Machine(trials + self.last, self.last, (min(paces, default=1.0), max(paces, default=1.0)))

    def _search_counters(self, strategy: str) -> dict[str, Any]:
        counts = Counter({"initial": 0, "model": 0, "local": 0})
        surrogate: Any = None
        for arm in self.arms.values():
            counts.update(getattr(arm.strategy, "counts", {}))
            surrogate = getattr(arm.strategy, "surrogate", surrogate)
        return {"name": strategy, "surrogate": surrogate if surrogate is None else str(surrogate), **counts}
