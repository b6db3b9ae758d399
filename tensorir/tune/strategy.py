"""Search strategies: ask for rows of a pool, measure elsewhere, tell the seconds. Here by name."""

from __future__ import annotations

import warnings
from difflib import get_close_matches

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import shown
from tensorir.tune.baseline import Climber, GridSearch, PoolSearch, RandomSearch, Strategy
from tensorir.tune.bayes import Bayes
from tensorir.tune.gp import missing
from tensorir.tune.pool import HasRows, Pool

__all__ = [
    "STRATEGIES",
    "Bayes",
    "Climber",
    "GridSearch",
    "Pool",
    "PoolSearch",
    "RandomSearch",
    "Strategy",
    "make",
]

STRATEGIES: dict[str, type[PoolSearch]] = {
    "bayes": Bayes,
    "random": RandomSearch,
    "climb": Climber,
    "grid": GridSearch,
}


def make(name: str, space: Pool | HasRows, seed: int = 0, budget: int | None = None) -> PoolSearch:
    """The strategy called ``name`` on ``space``; without scikit-optimize, "bayes" is the climber and a warning."""
    if not isinstance(name, str) or name not in STRATEGIES:
        near = get_close_matches(str(name), STRATEGIES, 1)
        hint = near[0] if near else f"one of {', '.join(STRATEGIES)}"
        raise refuse(DeclarationError, "tune.unknown-strategy", f"there is no search strategy {shown(name)}", hint=hint)
    if name == "bayes" and (reason := missing()):
        warnings.warn(
            f"scikit-optimize cannot be imported ({reason}); searching with 'climb' instead of 'bayes'", stacklevel=2
        )
        name = "climb"
    return STRATEGIES[name](space, seed=seed, budget=budget)
