"""The production strategies behind the protocol of the recorded-table scorer: ask one row, tell milliseconds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed

from tensorir.tune.pool import Pool
from tensorir.tune.strategy import STRATEGIES


class _Adapter:
    name: ClassVar[str]

    def __init__(self, space: Any, budget: int, seed: int, prior: Any = ()) -> None:
        pool = Pool(space.params, space.values, space.X)
        self.search = STRATEGIES[self.name](pool, seed=seed, budget=budget)

    def ask(self) -> int:
        return self.search.ask(1)[0]

    def tell(self, row: int, ms: float | None) -> None:
        self.search.tell(row, None if ms is None else ms * 1e-3)


class Bayes(_Adapter):
    name = "bayes"


class Climber(_Adapter):
    name = "climb"


class Random(_Adapter):
    name = "random"
