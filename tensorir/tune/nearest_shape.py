"""``NearestShape``: the best configuration known for the nearest other shape, as messages name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorir.errors.shown import Shown


@dataclass(frozen=True, repr=False)
class NearestShape(Shown):
    """The best known configuration of another shape of the same operator, for messages.

    workload: that shape, as the log calls it
    distance: sum over the parameters of |log((x + 1) / (y + 1))|; words and switches that differ count 10 each
    time_s:   seconds that it takes there
    """

    workload: str
    distance: float
    template: str
    config: dict[str, Any]
    time_s: float

    def __str__(self) -> str:
        return f"{self.workload} (distance {self.distance:.2f})"
