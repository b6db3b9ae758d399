"""What measurements elsewhere say about a pool: earlier logs of other devices and shapes, as a hedged prior."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tensorir.tune.gp import Hyperparameters, one_thread
from tensorir.tune.model import Results, Trend, measured, response, standard
from tensorir.tune.pool import Floats, Ints, Pool

LEAST_ROWS = 8
"""Fewer times than that say nothing about a space."""
MOST_ROWS = 150
"""Times of a table that are taken: more of them make one surer than devices are alike."""
FASTEST = 10
"""Of these, so many are the fastest; the others are any."""
SHORTLIST = 0.004
"""The share of the pool, by expectation, among which a start looks for rows that differ."""
TRIED = 8
"""Measured rows after which an expectation must agree with them to be kept."""
AGREEMENT = 0.2
"""Correlation of expected and measured below which a prior misleads."""
SAME_SPREAD = 4.0
"""So many results is it worth, a priori, that times spread here as they do elsewhere."""
AT_ONCE = 20_000
"""Rows of a pool that are evaluated together; those of a larger pool only when they are asked for."""


class Expectation:
    """What one table of times makes one expect of any row: small is fast, in units that tables share.

    The mean of a Gaussian process that is fitted to ``MOST_ROWS`` of the times, as squashed logarithms
    (``model.response``), centred and scaled. Of a row that was measured there it tells the mean as well: by what that
    row was off what is around it, it need not be off here.

    table: seconds (None: failed) by row, as measured on another device or for another shape
    """

    def __init__(self, pool: Pool, table: Results) -> None:
        table = some_of(table)
        y = standard(response(list(table.values())))
        self._pool, self._points = pool, pool.points(list(table))
        self._kernel, noise = Hyperparameters(self._points.shape[1]).fit(self._points, y)
        covariance = self._kernel(self._points) + noise * np.eye(len(y))
        self._weights = np.linalg.solve(covariance, y)
        self._all = self._at(np.arange(len(pool))) if len(pool) <= AT_ONCE else None

    def __call__(self, rows: npt.ArrayLike) -> Floats:
        some = np.asarray(rows, dtype=np.int64)
        if self._all is None or len(self._all) < len(self._pool):  # the pool is large, or has got rows since
            return self._at(some)
        found: Floats = self._all[some]
        return found

    def _at(self, rows: Ints) -> Floats:
        out = np.empty(len(rows))
        for low in range(0, len(rows), AT_ONCE):
            part = rows[low : low + AT_ONCE]
            out[low : low + AT_ONCE] = self._kernel(self._pool.points(part), self._points) @ self._weights
        return out


def some_of(table: Results) -> Results:
    """``MOST_ROWS`` of a table: the fastest few and some of the others, the same ones every time."""
    if len(table) <= MOST_ROWS:
        return table
    ranked = sorted(table, key=lambda row: (table[row] is None, table[row] or 0.0, row))
    others = np.random.default_rng(0).choice(ranked[FASTEST:], MOST_ROWS - FASTEST, replace=False)
    return {row: table[row] for row in [*ranked[:FASTEST], *map(int, others)]}


class Priors:
    """What several tables of times make one expect of the rows of a pool."""

    def __init__(self, pool: Pool, tables: Sequence[Results]) -> None:
        self.pool = pool
        self._usable = [t for t in tables if sum(s is not None for s in t.values()) >= LEAST_ROWS]

    @cached_property
    def expected(self) -> list[Expectation]:
        """Made when first asked for: it takes scikit-optimize, and some time."""
        with one_thread():
            return [Expectation(self.pool, table) for table in self._usable]

    def __len__(self) -> int:
        return len(self._usable)

    def start(self, turn: int, seen: Ints, allowed: Ints) -> int:
        """A row to start with: what each table takes for the best, round-robin, then one of the best that differs.

        turn:    how many such rows were proposed
        seen:    rows proposed so far, these and others
        allowed: rows that may be proposed, at least one
        """
        each = np.stack([expected(allowed) for expected in self.expected])
        table = turn % (len(self) + 1)
        if table < len(self):
            return int(allowed[np.argmin(each[table])])
        mean = each.mean(axis=0)
        count = min(len(allowed), max(10, round(SHORTLIST * len(allowed))))
        short = allowed[np.argpartition(mean, count - 1)[:count]]
        here, there = self.pool.points(short), self.pool.points(seen)
        nearest = ((here[:, None, :] - there[None]) ** 2).sum(axis=2).min(axis=1)
        return int(short[np.argmax(nearest)])

    def trend(self, results: Results) -> Trend | None:
        """What to expect of any row in the units of ``response(results)``; None when no table agrees with them.

        The mean of the tables, each weighted with the square of its correlation with the results, on the scale that
        the results have.
        """
        timed = measured(results)
        if not len(self) or len(timed) < 2:
            return None
        rows = np.fromiter(timed, dtype=np.int64)
        y = response(list(timed.values()))
        weights = np.ones(len(self))
        if len(rows) >= TRIED:
            agreement = np.array([_agreement(expected(rows), y) for expected in self.expected])
            weights = np.where(agreement >= AGREEMENT, agreement**2, 0.0)
        if not weights.any():
            return None

        def base(some: npt.ArrayLike) -> Floats:
            return np.asarray(np.average([e(some) for e in self.expected], axis=0, weights=weights))

        there = base(rows)
        slope = _slope(there, y)
        offset = float(y.mean()) - slope * float(there.mean())
        return lambda some: slope * base(some) + offset


def _slope(expected: Floats, y: Floats) -> float:
    """By how much to scale an expectation so that it has the spread of the results, from nothing to twice that."""
    spread, scale = float(expected.std()) or 1.0, float(y.std()) or 1.0
    together = float((expected - expected.mean()) @ (y - y.mean())) / (spread * scale)
    found = (together + SAME_SPREAD) / (len(y) + SAME_SPREAD)
    return min(2.0, max(0.0, found)) * scale / spread


def _agreement(expected: Floats, y: Floats) -> float:
    if expected.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.corrcoef(expected, y)[0, 1])
