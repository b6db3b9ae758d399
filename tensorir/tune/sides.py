"""What the search asks of whoever measures, builds and logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tensorir.tune.arm import StrategyLike
from tensorir.tune.record import Record
from tensorir.tune.trial import FinalRound, Outcome, Trial

Measure = Callable[[Trial, float | None], Outcome]
"""``measure(trial, remaining_s)`` returns what became of it.

After ``remaining_s`` seconds (None: no limit) it must have returned, ``CANCELLED`` when it was not done: such a trial
is neither logged nor counted.
"""


class Log(Protocol):
    """``tensorir.tune.log.LogWriter``."""

    @property
    def path(self) -> Any: ...
    def append(self, record: Record) -> None: ...


class Ahead(Protocol):
    """What builds several configurations at once, before each of them is measured alone."""

    @property
    def width(self) -> int: ...
    def build(self, wanted: Sequence[Trial], remaining_s: float | None) -> Sequence[Outcome | None]:
        """For each trial its outcome, where that is known now, or None: measure it."""
        ...


Final = Callable[[Sequence[Record], float | None], FinalRound]
Make = Callable[..., StrategyLike]
