"""The production strategies behind the protocol of the recorded-table scorer: ask one row, tell milliseconds."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed

from tensorir.tune.pool import Pool
from tensorir.tune.strategy import STRATEGIES


class _Adapter:
    name: ClassVar[str]

    def __init__(self, space: Any, budget: int, seed: int, prior: Any = ()) -> None:
        pool = Pool(space.params, space.values, space.X)
        self.search = STRATEGIES[self.name](pool, seed=seed, budget=budget, priors=_tables(space, prior))

    def ask(self) -> int:
        return self.search.ask(1)[0]

    def tell(self, row: int, ms: float | None) -> None:
        self.search.tell(row, None if ms is None else ms * 1e-3)


def _tables(space: Any, prior: Iterable[Any]) -> list[dict[int, float | None]]:
    """Seconds by row of ``space`` of each other table of the same kernel."""
    found = []
    for table in prior:
        if table.kind != "space" or table.kernel != space.kernel or table.params != space.params:
            continue
        index = [{v: i for i, v in enumerate(values)} for values in space.values]
        rows = [_row(space, index, table, row) for row in table.X.tolist()]
        times = zip(rows, table.t.tolist(), strict=True)
        found.append({row: None if math.isnan(ms) else ms * 1e-3 for row, ms in times if row >= 0})
    return found


def _row(space: Any, index: list[dict[Any, int]], table: Any, row: list[int]) -> int:
    """The row of ``space`` with the values of another table's row; -1 when there is none."""
    indices = [index[j].get(table.values[j][i], -1) for j, i in enumerate(row)]
    return -1 if -1 in indices else int(space.index(indices))


class Bayes(_Adapter):
    name = "bayes"


class Climber(_Adapter):
    name = "climb"


class Random(_Adapter):
    name = "random"


class Evolution(_Adapter):
    name = "evolve"
