"""Instructions of warpgroups that are in flight."""

from __future__ import annotations

import threading

import numpy as np

from tensorir.interp.memory import Cells

Touched = tuple[Cells, np.ndarray]
_Product = tuple[list[Touched], list[Touched]]


class Later(threading.local):
    """The asynchronous work in flight, of each role: products, and tiles that leave."""

    def __init__(self) -> None:
        self.of = {"products": Products(), "stores": Products()}


class Products:
    """What they have yet to give, and what they still read, until they are waited for."""

    def __init__(self) -> None:
        self.now: list[_Product] = []
        self.groups: list[list[_Product]] = []

    def begin(self, made: list[Touched], read: list[Touched]) -> None:
        """Add one more; it accumulates onto what earlier ones leave in the same registers."""
        for cells, at in made:
            cells.under_way(at)
        for cells, at in read:
            cells.read_later(at, 1)
        self.now.append((made, read))

    def commit(self) -> None:
        """Those begun since the last time are a group."""
        self.groups.append(self.now)
        self.now = []

    def wait(self, pending: int) -> None:
        """All groups but the ``pending`` youngest have ended."""
        while len(self.groups) > pending:
            for made, read in self.groups.pop(0):
                for cells, at in made:
                    cells.arrive(at)
                for cells, at in read:
                    cells.read_later(at, -1)
        for made, _ in (p for group in (*self.groups, self.now) for p in group):
            for cells, at in made:
                cells.under_way(at)
