"""Templates as the arms of a bandit: each with its space, strategy and results; chooses which one to measure next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorir.tune.brief import told
from tensorir.tune.interfaces import Make, SpaceLike, Strategy, Table, Task
from tensorir.tune.record import MAX_MEASURED, Record

HOPED_LOG_GAIN = 0.7  # in log time: the median configuration of a space is e**0.9 to e**1.2 slower than its best
MIN_SHARE = 0.15  # of an equal share of the trials goes to every template


@dataclass
class Arm:
    """One template in a search, with its space, strategy and measurements; a row is the index of a configuration.

    known:     rows with a result;  under_way: rows being measured
    best_s:    least seconds of a valid result, inf before one
    exhausted: true once the strategy proposes no unmeasured row
    """

    name: str
    space: SpaceLike
    strategy: Strategy
    known: set[int] = field(default_factory=set)
    under_way: set[int] = field(default_factory=set)
    best_s: float = math.inf
    exhausted: bool = False

    @property
    def tried(self) -> int:
        """Number of rows measured or being measured."""
        return len(self.known) + len(self.under_way)

    @property
    def default(self) -> int:
        """Row number of the default configuration."""
        return int(self.space.index(self.space.default))

    @property
    def promised_s(self) -> float:
        """Seconds predicted by the space's model for the default; inf without a model."""
        expected = getattr(self.space, "expected_s", None)
        return math.inf if expected is None else float(expected(self.space.default))

    def row(self, config: Mapping[str, object]) -> int:
        """Row number of ``config`` in the space, -1 if illegal. A space that lists only a sample of its configurations
        appends a legal one that is missing, so that earlier runs' rows are found.
        """
        return int(getattr(self.space, "admit", self.space.index)(config))

    def rows(self, configs: Sequence[Mapping[str, object]]) -> list[int]:
        """Row number of each configuration, -1 for illegal ones."""
        if not hasattr(self.space, "rows"):
            return [self.row(config) for config in configs]
        found = zip(self.space.rows(configs), configs, strict=True)
        return [row if row >= 0 else self.row(config) for row, config in found]

    def learn(self, row: int, record: Record) -> None:
        """Pass the seconds of ``record`` to the strategy as the result of ``row``: None for a failure."""
        self.known.add(row)
        self.under_way.discard(row)
        seconds = believed_time(record)
        self.strategy.tell(row, seconds)
        if record.status == "ok" and seconds is not None:
            self.best_s = min(self.best_s, seconds)

    def take_over(self, records: Mapping[int, Record]) -> None:
        """Pass earlier runs' results, {row: record}, to the strategy, which may use a subsample; all rows count as
        known.
        """
        times = {row: believed_time(record) for row, record in records.items()}
        ok = [r.steady_s for r in records.values() if r.status == "ok"]
        self.best_s = min(self.best_s, *ok) if ok else self.best_s
        self.known |= records.keys()
        begin = getattr(self.strategy, "take_over", None)
        if begin is not None:
            begin(times)
        else:
            for row, seconds in times.items():
                self.strategy.tell(row, seconds)

    def forget(self, row: int) -> None:
        """Unmark ``row`` as being measured, because its measurement was abandoned; the strategy may propose it
        again.
        """
        self.under_way.discard(row)
        forget = getattr(self.strategy, "forget", None)
        if forget is not None:
            forget(row)

    def next_row(self) -> int | None:
        """An unmeasured row proposed by the strategy; None, and ``exhausted`` is set, if it has none, or only repeats
        itself.
        """
        for _ in range(100):  # a strategy that repeats itself must not hang the run
            rows = self.strategy.ask(1)
            if not rows:
                break
            if rows[0] not in self.known and rows[0] not in self.under_way:
                return rows[0]
        self.exhausted = True
        return None


class Arms(dict[str, Arm]):
    """Templates of a search by name; the default configuration of the first is *the* default."""

    @classmethod
    def opened(
        cls, task: Task, priors: Mapping[str, Sequence[Table]], make: Make, strategy: str, seed: int, trials: int | None
    ) -> Arms:
        """Arms of all templates of ``task``, each with a new strategy by ``make``.

        trials: limit over all templates, None for no limit; each strategy is told an equal share
        """
        share = None if trials is None else -(-trials // max(1, len(task.spaces)))
        made = cls()
        for number, (name, space) in enumerate(task.spaces.items()):
            known = {"priors": priors[name]} if name in priors else {}
            made[name] = Arm(name, space, make(strategy, space, seed=seed + number, budget=share, **known))
        return made

    @property
    def best_s(self) -> float:
        """Least seconds of a valid result over all templates, inf before one."""
        return min(arm.best_s for arm in self.values())

    @property
    def under_way(self) -> int:
        """Number of rows being measured."""
        return sum(len(arm.under_way) for arm in self.values())

    def row(self, record: Record) -> int | None:
        """Row number of a record's configuration in its template's space; None if illegal."""
        arm = self.get(record.template)
        row = -1 if arm is None else arm.row(record.config)
        return row if row >= 0 else None

    def rows(self, records: Sequence[Record]) -> list[tuple[Record, int]]:
        """(record, row) pairs of records with legal configurations."""
        row_of: dict[int, int] = {}
        for name, arm in self.items():
            mine = [r for r in records if r.template == name]
            row_of.update(zip(map(id, mine), arm.rows([r.config for r in mine]), strict=True))
        return [(r, row_of[id(r)]) for r in records if row_of.get(id(r), -1) >= 0]

    def forget(self) -> None:
        """Unmark all rows marked as being measured, of all templates; strategies may propose them again."""
        for arm in self.values():
            for row in tuple(arm.under_way):
                arm.forget(row)

    def is_default(self, record: Record) -> bool:
        """True if ``record`` measured the default configuration of the first template."""
        arm = next(iter(self.values()), None)
        return arm is not None and record.template == arm.name and self.row(record) == arm.default

    def promising(self) -> Arm | None:
        """The template to try next: least best time minus an exploration bonus that shrinks with its trials; None if
        all are exhausted.

        Each one keeps a small share whatever its times, as a bad default says little about a template.
        """
        open_arms = [arm for arm in self.values() if not arm.exhausted]
        total = sum(arm.tried for arm in self.values())
        neglected = [arm for arm in open_arms if arm.tried < MIN_SHARE * total / len(self)]
        if neglected:
            return neglected[0]
        times = [arm.best_s for arm in self.values() if math.isfinite(arm.best_s)]
        unknown = 2 * max(times) if times else 1.0  # a template of which nothing has run yet is not hopeless

        def score(arm: Arm) -> float:
            best = arm.best_s if math.isfinite(arm.best_s) else unknown
            return math.log(best) - HOPED_LOG_GAIN * math.sqrt(math.log(total + 2) / (arm.tried + 1))

        return min(open_arms, key=score, default=None)

    def hopeless(self, least: float) -> bool:
        """True if the predicted gain of every strategy's next trials over the overall best time is below the share
        ``least``.

        False before a valid result, and while an unexhausted strategy predicts no gains at all.
        """
        best = self.best_s
        for arm in self.values():
            gain = getattr(arm.strategy, "expected_gain", None)
            # what improves on the template's own best need not improve on the best of another one
            if not arm.exhausted and (gain is None or gain - max(0.0, math.log(arm.best_s / best)) >= least):
                return False
        return math.isfinite(best)


def believed_time(record: Record) -> float | None:
    """Seconds of a record for the strategy: for a slow configuration cut short its lower bound; None if it failed."""
    if record.status == "skipped_slow":
        bound = told(record).get("at_least_s")
        return (
            float(bound) / (record.drift or 1.0)
            if isinstance(bound, (int, float)) and 0 < bound <= MAX_MEASURED
            else None
        )
    return None if record.time_s is None else record.steady_s
