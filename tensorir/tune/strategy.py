"""Search strategies: ask for rows of a pool, measure elsewhere, tell the seconds. Here by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import shown
from tensorir.errors.spelling import nearest
from tensorir.tune.baseline import Climber, GridSearch, PoolSearch, RandomSearch, Replay
from tensorir.tune.bayes import Bayes
from tensorir.tune.gp import absent
from tensorir.tune.interfaces import Strategy
from tensorir.tune.pool import HasRows, Pool

# Search by evolution: children of the fastest rows, by crossing and mutating their knobs.


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
