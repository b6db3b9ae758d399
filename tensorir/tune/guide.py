"""What a space's own model of seconds (``Space.expecting``) is worth to a search: judged by what has been measured."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensorir.tune.model import Results, Trend, measured
from tensorir.tune.pool import Floats, Ints, Pool

AGREES = 0.5
"""Concordance of modelled with measured times from which a model is believed: three of four pairs in order."""
CREDIT = 1.0
"""A model starts with so much weight of concordant pairs, which is one pair whose times are e times apart."""
SLOPE_CREDIT = 0.25
"""Of the regression of measured on modelled logarithms, the weight of a slope of 1: the variance of the error of a
model that is right (a deviation of 0.15) over that of slopes (0.3)."""
JUDGED = 300
"""Measured rows that a model is judged by, at most: their pairs are looked at after each measurement."""


class Guide:
    """A model's order of a pool, and whether what was measured agrees with it.

    agrees: whether it is believed; a model is, until measurements contradict it
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._log: Floats = np.zeros(0)
        self.agrees = True

    @property
    def log_s(self) -> Floats:
        """The logarithm of each row's modelled seconds, over the least; no time at all counts as the slowest one."""
        if len(self._log) < len(self._pool):
            slow = np.log(self._pool.slowness)
            self._log = np.minimum(slow, slow[np.isfinite(slow)].max())
        return self._log

    @property
    def blind(self) -> bool:
        """Whether the model expects the same of every row."""
        return len(self._pool) == 0 or float(np.ptp(self.log_s)) < SAME

    def distinct(self, seen: npt.NDArray[np.bool_], rng: np.random.Generator) -> int | None:
        """An unseen row of the fastest modelled time that no seen row has; None when there is none.

        Rows of one modelled time differ in knobs to which the model is blind: one of them stands for all.
        """
        known = np.unique(np.round(self.log_s[seen] / SAME))
        keys = np.round(self.log_s / SAME)
        fresh = np.flatnonzero(~seen & ~np.isin(keys, known))
        if not len(fresh):
            return None
        alike = fresh[keys[fresh] <= keys[fresh].min()]
        return int(rng.choice(alike))

    def judge(self, results: Results) -> None:
        """Take account of all results so far."""
        rows, y = _of(results)
        if len(rows) > JUDGED:
            some = np.linspace(0, len(rows) - 1, JUDGED).astype(np.int64)
            rows, y = rows[some], y[some]
        self.agrees = concordance(self.log_s[rows], y) >= AGREES

    def trend(self, results: Results) -> Trend:
        """The modelled times on the scale of the measured ones, as logarithms of seconds."""
        rows, y = _of(results)
        x = self.log_s[rows]
        across = x - x.mean()
        slope = (float(across @ (y - y.mean())) + SLOPE_CREDIT) / (float(across @ across) + SLOPE_CREDIT)
        slope = min(2.0, max(0.0, slope))
        offset = float(y.mean() - slope * x.mean())
        return lambda some: slope * self.log_s[np.asarray(some, dtype=np.int64)] + offset


SAME = 1e-9
"""Modelled times whose logarithms are closer are one time."""


def _of(results: Results) -> tuple[Ints, Floats]:
    timed = measured(results)
    return np.fromiter(timed, dtype=np.int64), np.log(np.array(list(timed.values()), dtype=np.float64))


def concordance(modelled: Floats, y: Floats) -> float:
    """Kendall's rank correlation of logarithms of times, each pair weighted by how far apart the model has the two.

    What the model takes for equal says nothing about it, and no pair counts more than one that is e times apart. 1 for
    a model that has not been contradicted, -1 at the least.
    """
    apart = modelled[:, None] - modelled[None]
    weight = np.minimum(np.abs(apart), 1.0)
    right = float((weight * np.sign(apart) * np.sign(y[:, None] - y[None])).sum()) / 2
    return (right + CREDIT) / (float(weight.sum()) / 2 + CREDIT)
