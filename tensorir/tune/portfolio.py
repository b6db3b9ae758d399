"""Portfolio selection: the smallest set of configurations with one fast enough for every shape (set cover)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_number

REGRET = 0.05
MAX_SEARCH_NODES = 5_000  # of the search tree, after which the best set so far is taken
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Cover:
    """Selected ``rows`` of the time matrix, ascending; ``exact``: provably the smallest number."""

    rows: tuple[int, ...]
    exact: bool


def within(times: npt.ArrayLike, regret: float = REGRET) -> npt.NDArray[np.bool_]:
    """Mask of the configurations fast enough for each shape: at most ``1 + regret`` times the shape's best.

    times: seconds, a row a configuration and a column a shape; nan, inf or at most 0 where it is illegal, wrong or not
           measured

    Raises DeclarationError ``argument.value`` for a column without a time, or a negative ``regret``.
    """
    matrix = _matrix(times)
    need_number("regret", regret, 0)
    with np.errstate(invalid="ignore"):
        return np.asarray(matrix <= matrix.min(axis=0) * (1 + regret) * (1 + _ROUNDING)) & np.isfinite(matrix)


def cover(
    times: npt.ArrayLike, regret: float = REGRET, weights: Sequence[float] | None = None, nodes: int = MAX_SEARCH_NODES
) -> Cover:
    """The smallest set of rows such that every column has one within ``regret`` of its best.

    Of sets of that size, one whose total weighted time (each shape by its fastest member) no exchange of a single
    member lessens. A minimum set cover: branch and bound, starting from the greedy cover (Chvatal, "A greedy heuristic
    for the set-covering problem", Mathematics of Operations Research 4, 1979), branching on the shape that the fewest
    rows suit (the order of Knuth's "Dancing links", arXiv cs/0011047), bounded by how many shapes one row can add.
    After ``nodes`` nodes the best so far is taken, and ``exact`` is False.

    weights: of shapes, 1 each by default. Raises DeclarationError ``argument.value`` for a column without a time.
    """
    matrix = _matrix(times)
    fits = within(matrix, regret)
    masks = [sum(1 << int(j) for j in np.flatnonzero(row)) for row in fits]
    search = _Search(_undominated(masks), (1 << matrix.shape[1]) - 1, nodes)
    rows = [masks.index(m) for m in search.run()]
    return Cover(tuple(sorted(_faster(rows, matrix, fits, weights))), search.nodes > 0)


def _matrix(times: npt.ArrayLike) -> npt.NDArray[np.float64]:
    matrix = np.array(times, dtype=np.float64, ndmin=2)
    matrix[~(matrix > 0)] = np.inf
    missing = np.flatnonzero(~np.isfinite(matrix).any(axis=0)) if matrix.size else np.arange(1)
    if len(missing):
        raise refuse(DeclarationError, "argument.value", f"no configuration has a time for shape {int(missing[0])}")
    return matrix


def _undominated(masks: Sequence[int]) -> list[int]:
    """Distinct bit masks without those contained in another."""
    distinct = sorted(set(masks) - {0}, key=int.bit_count, reverse=True)
    kept: list[int] = []
    for mask in distinct:
        if not any(mask & ~other == 0 for other in kept):
            kept.append(mask)
    return kept


class _Search:
    """Branch and bound over bit masks of covered shapes."""

    def __init__(self, masks: list[int], everything: int, nodes: int) -> None:
        self.masks, self.everything, self.nodes = masks, everything, nodes
        self.suiting = {j: [m for m in masks if m >> j & 1] for j in _bits(everything)}
        self.best = self._greedy()

    def _greedy(self) -> list[int]:
        left, chosen = self.everything, []
        while left:
            chosen.append(max(self.masks, key=lambda m: (m & left).bit_count()))
            left &= ~chosen[-1]
        return chosen

    def run(self) -> list[int]:
        self._branch(self.everything, [])
        return self.best

    def _branch(self, left: int, chosen: list[int]) -> None:
        if not left:
            if len(chosen) < len(self.best):
                self.best = list(chosen)
            return
        if self.nodes <= 0:
            return
        self.nodes -= 1
        most = max((m & left).bit_count() for m in self.masks)
        if len(chosen) + -(-left.bit_count() // most) >= len(self.best):
            return
        options = min((self.suiting[j] for j in _bits(left)), key=len)
        for mask in sorted(options, key=lambda m: -(m & left).bit_count()):
            self._branch(left & ~mask, [*chosen, mask])


def _bits(mask: int) -> list[int]:
    return [j for j in range(mask.bit_length()) if mask >> j & 1]


def _faster(rows: list[int], matrix: Any, fits: Any, weights: Sequence[float] | None) -> list[int]:
    """Rows of a cover improved by exchanging single members while the weighted total time decreases and all shapes stay
    covered.
    """
    weight = np.ones(matrix.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)

    def total(some: list[int]) -> float:
        return float(matrix[some].min(axis=0) @ weight)

    now = total(rows)
    improved = True
    while improved:
        improved = False
        for place in range(len(rows)):
            others = rows[:place] + rows[place + 1 :]
            needed = ~fits[others].any(axis=0)
            for new in np.flatnonzero(fits[:, needed].all(axis=1)):
                found = total([*others, int(new)])
                if found < now * (1 - _ROUNDING):
                    rows, now, improved = [*others, int(new)], found, True
                    break
    return rows
