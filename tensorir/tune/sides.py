"""What the search asks of whoever measures, builds and logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tensorir.tune.arm import Config, StrategyLike
from tensorir.tune.record import Record

Result = Mapping[str, Any]
Measure = Callable[[str, Config, str, float | None], Result]
"""``measure(template, config, kind, remaining_s)`` returns the measurement's own fields of a record.

kind: "default" or "trial"; where the default fails, what is measured next stands in for it. After ``remaining_s``
seconds (None: no limit) it must have returned, with ``{"status": "cancelled"}`` when it was not done: such a trial is
neither logged nor counted.
"""


class Log(Protocol):
    """``tensorir.tune.log.LogWriter``."""

    @property
    def path(self) -> Any: ...
    def append(self, record: Record) -> None: ...


@dataclass(frozen=True)
class FinalRound:
    """What the final round measured.

    results:  one per finalist, in order: the fields of a record that are the measurement's own, from
              interleaved runs; a finalist that turned out wrong or crashed has that status. ``race`` is its
              Standing (``tensorir.tune.paired``): whoever was not found slower than another ties with the best
    baseline: ``{"name", "time_s", "low_s", "high_s", "spread"}`` of the peer measured in the same round, or None
    load:     what else the machine did meanwhile (``runtime.machine.Load.fields``)
    """

    results: Sequence[Result]
    baseline: dict[str, Any] | None = None
    load: Mapping[str, Any] | None = None


class Ahead(Protocol):
    """What builds several configurations at once, before each of them is measured alone."""

    @property
    def width(self) -> int: ...
    def build(self, wanted: Sequence[Config], remaining_s: float | None) -> Sequence[Result | None]:
        """For each ``{"template": …, "config": …}`` its result, where that is known now, or None: measure it."""
        ...


Final = Callable[[Sequence[Record], float | None], FinalRound]
Make = Callable[..., StrategyLike]
