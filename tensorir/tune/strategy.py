"""Creates search strategies by name; wrappers for searches run in time slices.

A strategy proposes rows of a pool (``ask``), which are measured elsewhere, and receives their seconds (``tell``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import shown
from tensorir.errors.spelling import nearest
from tensorir.tune.baseline import Climber, Evolution, GridSearch, PoolSearch, RandomSearch, Replay
from tensorir.tune.bayes import Bayes
from tensorir.tune.gp import absent
from tensorir.tune.interfaces import Strategy
from tensorir.tune.pool import HasRows, Pool

__all__ = [
    "STRATEGIES",
    "Bayes",
    "Climber",
    "Evolution",
    "GridSearch",
    "Pool",
    "PoolSearch",
    "RandomSearch",
    "Replay",
    "Strategy",
    "make",
]

STRATEGIES: dict[str, type[PoolSearch]] = {
    "bayes": Bayes,
    "random": RandomSearch,
    "climb": Climber,
    "evolve": Evolution,
    "grid": GridSearch,
    "replay": Replay,
}


def make(
    name: str,
    space: Pool | HasRows,
    seed: int = 0,
    budget: int | None = None,
    priors: Sequence[Mapping[int, float | None]] = (),
) -> PoolSearch:
    """The strategy called ``name`` on ``space``; without scikit-optimize, "bayes" is the climber and a warning.

    Whether scikit-optimize can be imported shows when "bayes" first asks its model: importing it takes seconds.

    priors: seconds (None: failed) by row, as measured on other devices or for other shapes, one mapping for each
    """
    if not isinstance(name, str) or name not in STRATEGIES:
        near = nearest(str(name), STRATEGIES)
        hint = near[0] if near else f"one of {', '.join(STRATEGIES)}"
        raise refuse(DeclarationError, "tune.unknown-strategy", f"there is no search strategy {shown(name)}", hint=hint)
    if name == "bayes" and (reason := absent()):
        warnings.warn(
            f"scikit-optimize cannot be imported ({reason}); searching with 'climb' instead of 'bayes'", stacklevel=2
        )
        name = "climb"
    return STRATEGIES[name](space, seed=seed, budget=budget, priors=priors)


class Kept:
    """A strategy kept between time slices of a search and created at the first ``ask``.

    begin: function that creates the strategy; called once the number of trials is known
    """

    def __init__(self, begin: Callable[[], Strategy]) -> None:
        self._begin = begin
        self._inner: Strategy | None = None
        self._told: dict[int, float | None] = {}

    @property
    def begun(self) -> bool:
        """True once the strategy exists."""
        return self._inner is not None

    def ask(self, n: int = 1) -> list[int]:
        """Propose up to ``n`` unmeasured rows."""
        if self._inner is None:
            self._inner = self._begin()
            for row, seconds in self._told.items():
                self._inner.tell(row, seconds)
        return self._inner.ask(n)

    def tell(self, row: int, seconds: float | None) -> None:
        """Record the time of a row, None if it failed."""
        if row in self._told and self._told[row] == seconds:
            return
        self._told[row] = seconds
        if self._inner is not None:
            self._inner.tell(row, seconds)

    def take_over(self, times: Mapping[int, float | None]) -> None:
        """Record each row's time, {row: seconds, None if failed}."""
        for row, seconds in times.items():
            self.tell(row, seconds)

    def __getattr__(self, name: str) -> Any:
        """Attribute ``name`` of the strategy, such as ``counts``; raises AttributeError before it exists."""
        return getattr(self.__dict__.get("_inner"), name)


class Given:
    """A strategy that proposes a fixed list of rows."""

    def __init__(self, rows: list[int]) -> None:
        self._rows = rows

    def ask(self, n: int = 1) -> list[int]:
        """The next ``n`` rows of the list, fewer at its end."""
        out, self._rows = self._rows[:n], self._rows[n:]
        return out

    def tell(self, row: int, seconds: float | None) -> None:
        """Remove ``row``, which has a result, from the list."""
        self._rows = [r for r in self._rows if r != row]
