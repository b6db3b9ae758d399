"""Strategies for a search that runs in slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensorir.tune.interfaces import Strategy


class Kept:
    """A strategy that outlives a slice: the next one tells it only what is new.

    begin: makes the strategy when it is first asked, when it is known how many trials there may be
    """

    def __init__(self, begin: Callable[[], Strategy]) -> None:
        self._begin = begin
        self._inner: Strategy | None = None
        self._told: dict[int, float | None] = {}

    @property
    def begun(self) -> bool:
        """Whether it has been asked."""
        return self._inner is not None

    def ask(self, n: int = 1) -> list[int]:
        """Up to ``n`` rows not measured yet."""
        if self._inner is None:
            self._inner = self._begin()
            for row, seconds in self._told.items():
                self._inner.tell(row, seconds)
        return self._inner.ask(n)

    def tell(self, row: int, seconds: float | None) -> None:
        """The time of a row, None when it failed."""
        if row in self._told and self._told[row] == seconds:
            return
        self._told[row] = seconds
        if self._inner is not None:
            self._inner.tell(row, seconds)

    def take_over(self, times: Mapping[int, float | None]) -> None:
        """``tell`` of each."""
        for row, seconds in times.items():
            self.tell(row, seconds)

    def __getattr__(self, name: str) -> Any:
        """``counts``, ``surrogate`` and ``forget``, as far as there are any."""
        return getattr(self.__dict__.get("_inner"), name)


class Given:
    """Certain rows and no others."""

    def __init__(self, rows: list[int]) -> None:
        self._rows = rows

    def ask(self, n: int = 1) -> list[int]:
        """The next of them."""
        out, self._rows = self._rows[:n], self._rows[n:]
        return out

    def tell(self, row: int, seconds: float | None) -> None:
        """A row that is known need not be asked for."""
        self._rows = [r for r in self._rows if r != row]
