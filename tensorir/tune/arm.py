"""One template in the search: its space, its strategy, and what is known about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tensorir.tune.pool import HasRows
from tensorir.tune.record import MOST, Record, drift_of, steady_s

Config = dict[str, Any]


class SpaceLike(HasRows, Protocol):
    """What the loop needs to know of a space; ``tensorir.tune.space.Space`` is one."""

    @property
    def size(self) -> int: ...
    @property
    def default(self) -> Config: ...
    def config(self, row: int) -> Config: ...
    def index(self, config: Mapping[str, Any]) -> int: ...


class StrategyLike(Protocol):
    """``tensorir.tune.strategy.Strategy``; ``counts`` and ``surrogate`` are reported where there are any."""

    def ask(self, n: int = 1) -> list[int]: ...
    def tell(self, row: int, seconds: float | None) -> None: ...


@dataclass
class Arm:
    """One template: its space, its strategy and what is known about it.

    under_way: rows that are being measured
    best_s:    the least seconds of a valid result
    """

    name: str
    space: SpaceLike
    strategy: StrategyLike
    known: set[int] = field(default_factory=set)
    under_way: set[int] = field(default_factory=set)
    best_s: float = math.inf
    exhausted: bool = False

    @property
    def tried(self) -> int:
        """How many rows were measured or are about to be."""
        return len(self.known) + len(self.under_way)

    def row(self, config: Mapping[str, Any]) -> int:
        """The row of a configuration, -1 when it is not legal. A space that lists a sample lists this one as well:
        a search of such a space finds rows that its next run does not know of.
        """
        return int(getattr(self.space, "admit", self.space.index)(config))

    def learn(self, row: int, record: Record) -> None:
        """Tell the strategy what a record says about a row."""
        self.known.add(row)
        self.under_way.discard(row)
        seconds = believed_time(record)
        self.strategy.tell(row, seconds)
        if record["status"] == "ok" and seconds is not None:
            self.best_s = min(self.best_s, seconds)

    def forget(self, row: int) -> None:
        """A row that was asked for has not been measured after all."""
        self.under_way.discard(row)
        forget = getattr(self.strategy, "forget", None)
        if forget is not None:
            forget(row)

    def next_row(self) -> int | None:
        """A row not measured yet; None when there is none."""
        for _ in range(100):  # a strategy that repeats itself must not hang the run
            rows = self.strategy.ask(1)
            if not rows:
                break
            if rows[0] not in self.known and rows[0] not in self.under_way:
                return rows[0]
        self.exhausted = True
        return None


def believed_time(record: Record) -> float | None:
    """The seconds to tell the strategy: a slow configuration that was cut short counts with its lower bound."""
    if record["status"] == "skipped_slow":
        detail = record.get("detail")
        bound = detail.get("at_least_s") if isinstance(detail, dict) else None
        return float(bound) / drift_of(record) if isinstance(bound, (int, float)) and 0 < bound <= MOST else None
    return None if record["time_s"] is None else steady_s(record)
