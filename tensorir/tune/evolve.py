"""Search by evolution: children of the fastest rows, by crossing and mutating their knobs."""

from __future__ import annotations

import numpy as np

from tensorir.tune.baseline import PoolSearch


class Evolution(PoolSearch):
    """Some random rows, then for each step a child of two of the fastest.

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
        """The better of two ranks drawn at random."""
        return int(self._rng.integers(n, size=2).min())
