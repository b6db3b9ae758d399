"""Search strategies: ask for rows of a pool, measure elsewhere, tell the seconds. Here by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

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
