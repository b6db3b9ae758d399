"""Model-free search strategies (random, grid, hill climbing, evolution), and ``Guide``, the trust in a space's
model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorir.tune.model import Results, Trend, measured
from tensorir.tune.pool import Floats, HasRows, Ints, Pool

TAKEN_OVER = 600
"""Maximum number of earlier runs' results that a search learns from."""


class PoolSearch:
    """Base of all strategies: tracks proposed rows (indices of configurations in the pool) and their measured times.
    Subclasses choose the next row.

    budget: number of rows that will be asked for, if known
    priors: tables {row: seconds, None if failed} from other devices or shapes
    guided: propose rows that the space's model considers hopeless last, while the model agrees with measurements
    """

    name = "search"
    guided = False

    def __init__(
        self,
        space: Pool | HasRows,
        *,
        seed: int = 0,
        budget: int | None = None,
        priors: Sequence[Mapping[int, float | None]] = (),
    ) -> None:
        self.pool = Pool.of(space)
        self.budget = budget
        self.priors = tuple(priors)
        self.results: dict[int, float | None] = {}  # in order of telling; None: failed
        self._rng = np.random.default_rng(seed)
        self._guide = Guide(self.pool) if self.guided and self.pool.expected_s is not None else None
        self._seen = np.zeros(len(self.pool), dtype=bool)
        self._left = len(self.pool)
        self._shuffled: Ints | None = None
        self._cursor = 0

    def ask(self, n: int = 1) -> list[int]:
        """Propose up to ``n`` unmeasured rows, which count as seen from now on; [] when all are."""
        out: list[int] = []
        while len(out) < n and self._left:
            row = self._next()
            self._mark(row)
            out.append(row)
        return out

    def tell(self, row: int, seconds: float | None) -> None:
        """Record the time of a row; None, or no finite positive number, if it failed. A second call replaces the first.

        Raises IndexError for a row that is not in the pool.
        """
        row = int(row)
        self._catch_up()
        if not 0 <= row < len(self.pool):
            raise IndexError(f"row {row} is not in this pool of {len(self.pool)} configurations")
        self._mark(row)
        good = seconds is not None and math.isfinite(seconds) and seconds > 0
        self.results[row] = seconds if good else None
        if self._guide is not None:
            self._guide.judge(self.results)

    def take_over(self, times: Mapping[int, float | None]) -> None:
        """Record times of earlier runs: all rows count as seen; of more than ``TAKEN_OVER`` only the fastest and evenly
        spaced others become results. Rows outside of the pool are ignored.

        A model of thousands of rows takes minutes to fit, and predicts no better than one of this selection.
        """
        self._catch_up()
        rows = np.array([row for row in times if 0 <= row < len(self.pool)], dtype=np.int64)
        for row in rows:
            self._mark(int(row))
        if len(rows) > TAKEN_OVER:
            seconds = np.array([times[int(row)] or math.inf for row in rows])
            rows = rows[np.lexsort((rows, seconds))]
            rest = rows[TAKEN_OVER // 2 :]
            rows = np.concatenate([rows[: TAKEN_OVER // 2], rest[:: -(-2 * len(rest) // TAKEN_OVER)]])
        for row in rows:
            told = times[int(row)]
            self.results[int(row)] = told if told is not None and 0 < told < math.inf else None
        if self._guide is not None and len(rows):
            self._guide.judge(self.results)

    def _catch_up(self) -> None:
        """Extend the arrays of seen rows by rows added to the pool meanwhile."""
        more = self.pool.catch_up() - len(self._seen)
        if more:
            self._seen = np.concatenate([self._seen, np.zeros(more, dtype=bool)])
            self._left += more
            self._shuffled, self._cursor = None, 0

    def _neighbours(self, row: int, pairs: int = 0) -> Ints:
        """Rows that differ from ``row`` in one knob; in a sampled space they are listed first, after ``pairs`` random
        two-knob changes (``Pool.neighbours``).
        """
        near = self.pool.neighbours(row, pairs)
        self._catch_up()
        return near

    def forget(self, row: int) -> None:
        """Mark a proposed row as unmeasured, so that it may be proposed again; no effect on a row with a result."""
        if self._seen[row] and row not in self.results:
            self._seen[row] = False
            self._left += 1
            self._cursor = 0

    @property
    def best(self) -> int | None:
        """Row with the least measured seconds; None before a successful measurement."""
        return next(iter(self._fastest(1)), None)

    def _fastest(self, n: int) -> list[int]:
        ok = [(t, r) for r, t in self.results.items() if t is not None]
        return [r for _, r in sorted(ok)[:n]]

    def _mark(self, row: int) -> None:
        if not self._seen[row]:
            self._seen[row] = True
            self._left -= 1

    def _next(self) -> int:
        """The next row to propose; called only while unseen rows exist."""
        raise NotImplementedError

    def _random_unseen(self) -> int:
        if self._shuffled is None:
            self._shuffled = self._rng.permutation(len(self.pool))
            if self._guide is not None and self._guide.agrees:
                self._shuffled = self._shuffled[np.argsort(self.pool.hopeless[self._shuffled], kind="stable")]
        while self._seen[self._shuffled[self._cursor]]:
            self._cursor += 1
        return int(self._shuffled[self._cursor])

    def _random_neighbour(self, row: int) -> int | None:
        near = self._neighbours(row)
        near = self._hopeful(near[~self._seen[near]])
        return int(self._rng.choice(near)) if len(near) else None

    def _hopeful(self, rows: Ints) -> Ints:
        """``rows`` without those that the space's model predicts to be hopelessly slow; ``rows`` unchanged without a
        model, once measurements contradict it, or if only hopeless rows are unseen.
        """
        if self._guide is None or not self._guide.agrees or not np.any(~self._seen & ~self.pool.hopeless):
            return rows
        return rows[~self.pool.hopeless[rows]]


class RandomSearch(PoolSearch):
    """Random search: rows drawn uniformly without replacement, the baseline that every strategy must beat."""

    name = "random"

    def _next(self) -> int:
        return self._random_unseen()


class GridSearch(PoolSearch):
    """Grid search: rows in the pool's order; with a smaller budget, evenly spaced ones first."""

    name = "grid"

    def __init__(self, space: Pool | HasRows, *, seed: int = 0, budget: int | None = None, **given: Any) -> None:
        super().__init__(space, seed=seed, budget=budget, **given)
        n = len(self.pool)
        first = np.linspace(0, n - 1, budget).astype(np.int64) if budget and budget < n else np.arange(0)
        self._order = np.concatenate([first, np.arange(n)])

    def _next(self) -> int:
        while self._seen[self._order[self._cursor]]:
            self._cursor += 1
        return int(self._order[self._cursor])


class Climber(PoolSearch):
    """Hill climbing: some random rows, then random changes of one knob of the best row.

    Hard to beat within 100 trials: it takes part in every comparison. When all neighbours of the best row
    are known it continues with the second best, and so on.
    """

    name = "climb"
    guided = True
    initial = 15

    def _next(self) -> int:
        if len(self.pool) - self._left < self.initial:
            return self._random_unseen()
        near = (self._random_neighbour(row) for row in self._fastest(len(self.results)))
        found = next((row for row in near if row is not None), None)
        return self._random_unseen() if found is None else found


class Replay(PoolSearch):
    """Proposes the fastest rows of all ``priors`` tables in round-robin order, and nothing else.

    For a new driver, version or device of which earlier logs know much: as many trials as there are records to check.
    """

    name = "replay"

    def __init__(self, space: Pool | HasRows, **given: Any) -> None:
        super().__init__(space, **given)
        ranked = [sorted((t, r) for r, t in table.items() if t is not None) for table in self.priors]
        in_turn = zip_longest(*([row for _, row in table] for table in ranked))
        self._order = list(dict.fromkeys(row for rank in in_turn for row in rank if row is not None))

    def ask(self, n: int = 1) -> list[int]:
        """Up to ``n`` new rows; [] once all fast rows of the priors are measured."""
        rows = [r for r in self._order if not self._seen[r]][:n]
        for row in rows:
            self._mark(row)
        return rows


class Evolution(PoolSearch):
    """Evolution strategy: some random rows, then children of two of the fastest rows.

    A child takes each knob from one of its parents and changes each with a chance of one in the number of knobs; the
    unseen row that shares most knobs with it is measured. Parents are drawn by tournament among the fastest rows of
    all time, a (mu + 1) evolution strategy (Eiben and Smith, Introduction to Evolutionary Computing, 2015, chapter 5).
    """

    name = "evolve"
    guided = True
    initial = 15
    PARENTS = 12

    def _next(self) -> int:
        parents = self._fastest(self.PARENTS)
        if len(self.pool) - self._left < self.initial or len(parents) < 2:
            return self._random_unseen()
        mother, father = (self.pool.rows[parents[self._tournament(len(parents))]] for _ in range(2))
        child = np.where(self._rng.random(len(mother)) < 0.5, mother, father)
        for knob in np.flatnonzero(self._rng.random(len(child)) < 1 / max(1, len(child))):
            child[knob] = self._rng.integers(len(self.pool.values[knob]))
        unseen = self._hopeful(np.flatnonzero(~self._seen))
        away = (self.pool.rows[unseen] != child).sum(axis=1)
        return int(self._rng.choice(unseen[away == away.min()]))

    def _tournament(self, n: int) -> int:
        """The lower (better) of two random ranks in [0, n)."""
        return int(self._rng.integers(n, size=2).min())


# What a space's own model of seconds (``Space.expecting``) is worth to a search: judged by what has been measured.

LEAST_CONCORDANCE = 0.5
"""Least ``concordance`` at which a model counts as agreeing: three of four pairs in order."""
CREDIT_PAIRS = 1.0
"""Prior weight of concordant pairs in ``concordance``: one pair of times e times apart."""
SLOPE_CREDIT = 0.25
"""Prior weight of slope 1 in the regression of measured on modelled log times: the variance of a right model's error
(deviation 0.15) over that of slopes (0.3)."""
MAX_JUDGED_ROWS = 300
"""Maximum measured rows that a model is judged by: all their pairs are compared after each measurement."""


class Guide:
    """A model's predicted times for a pool, and a running test of the model against measurements.

    agrees: true until measurements contradict the model
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._log: Floats = np.zeros(0)
        self.agrees = True

    @property
    def log_s(self) -> Floats:
        """Log of each row's predicted seconds over the least; rows without a prediction count as the slowest."""
        if len(self._log) < len(self._pool):
            slow = np.log(self._pool.slowness)
            self._log = np.minimum(slow, slow[np.isfinite(slow)].max())
        return self._log

    @property
    def blind(self) -> bool:
        """True if the model predicts the same time for every row."""
        return len(self._pool) == 0 or float(np.ptp(self.log_s)) < EQUAL_LOG_TIMES

    def distinct(self, seen: npt.NDArray[np.bool_], rng: np.random.Generator) -> int | None:
        """An unseen row of the least predicted time that no seen row shares; None if there is none.

        Rows of equal prediction differ only in knobs unknown to the model; one represents all.
        """
        known = np.unique(np.round(self.log_s[seen] / EQUAL_LOG_TIMES))
        keys = np.round(self.log_s / EQUAL_LOG_TIMES)
        fresh = np.flatnonzero(~seen & ~np.isin(keys, known))
        if not len(fresh):
            return None
        alike = fresh[keys[fresh] <= keys[fresh].min()]
        return int(rng.choice(alike))

    def judge(self, results: Results) -> None:
        """Set ``agrees``: true if the ``concordance`` of predicted and measured times is at least
        ``LEAST_CONCORDANCE``, by at most ``MAX_JUDGED_ROWS`` of the successes.
        """
        rows, y = _of(results)
        if len(rows) > MAX_JUDGED_ROWS:
            some = np.linspace(0, len(rows) - 1, MAX_JUDGED_ROWS).astype(np.int64)
            rows, y = rows[some], y[some]
        self.agrees = concordance(self.log_s[rows], y) >= LEAST_CONCORDANCE

    def trend(self, results: Results) -> Trend:
        """Function from rows to predicted log seconds, scaled to the measured times."""
        rows, y = _of(results)
        x = self.log_s[rows]
        across = x - x.mean()
        slope = (float(across @ (y - y.mean())) + SLOPE_CREDIT) / (float(across @ across) + SLOPE_CREDIT)
        slope = min(2.0, max(0.0, slope))
        offset = float(y.mean() - slope * x.mean())
        return lambda some: slope * self.log_s[np.asarray(some, dtype=np.int64)] + offset


EQUAL_LOG_TIMES = 1e-9
"""Distance of log times below which modelled times count as equal."""


def _of(results: Results) -> tuple[Ints, Floats]:
    timed = measured(results)
    return np.fromiter(timed, dtype=np.int64), np.log(np.array(list(timed.values()), dtype=np.float64))


def concordance(modelled: Floats, y: Floats) -> float:
    """Weighted Kendall rank correlation of predicted and measured log times, in [-1, 1]: pairs weigh by their predicted
    distance, up to a factor e.

    1 also without evidence against the model.
    """
    apart = modelled[:, None] - modelled[None]
    weight = np.minimum(np.abs(apart), 1.0)
    right = float((weight * np.sign(apart) * np.sign(y[:, None] - y[None])).sum()) / 2
    return (right + CREDIT_PAIRS) / (float(weight.sum()) / 2 + CREDIT_PAIRS)
