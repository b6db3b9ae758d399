"""Lanes that differ by constants known at compile time: elements in another order, conditions as masks.

X[7 - lane]         ->   the vector X[0:8], its lanes reversed
X[8*i + (lane ^ 1)] ->   the vector X[8*i : 8*i + 8], neighbours swapped
lane & 2 == 0       ->   the mask 1, 1, 0, 0, 1, 1, 0, 0
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorir.arith.affine import Arith, Linear
from tensorir.arith.point import NotExactError, evaluate
from tensorir.ir.tree import Expr, Load, Ramp, Shuffle, Var
from tensorir.ir.visit import find, uses


def steps_of(form: Linear, var: Var, lanes: int) -> tuple[Linear, tuple[int, ...]] | None:
    """(rest, k) with ``form == rest + k[lane]``, the rest free of ``var``; None if what depends on the lane depends on
    other values too.
    """
    own = {t: c for t, c in form.terms.items() if uses(t, {var})}
    if any(set(find(t, Var)) != {var} or t.holds & Load.BIT for t in own):
        return None
    moving = Linear(own, 0).expr()
    try:
        steps = tuple(int(evaluate(moving, {var: k})) for k in range(lanes))
    except NotExactError:
        return None
    return Linear({t: c for t, c in form.terms.items() if t not in own}, form.constant), steps


@dataclass(frozen=True)
class Permuted:
    """Lane k accesses element ``picks[k]`` of the vector ``at`` in memory."""

    at: Ramp
    picks: tuple[int, ...]

    def loaded(self, vector: Expr) -> Shuffle:
        """What lanes read, for the vector in memory."""
        return Shuffle(vector, vector, self.picks, vector.dtype)

    def stored(self, value: Expr) -> Shuffle:
        """The vector in memory, for what lanes write."""
        lanes = tuple(self.picks.index(k) for k in range(len(self.picks)))
        return Shuffle(value, value, lanes, value.dtype)


def permuted(i: Expr, var: Var, lanes: int, arith: Arith) -> Permuted | None:
    """The vector of the elements that lanes access at index ``i``; None unless they are consecutive, each once, and not
    in order.
    """
    found = steps_of(arith.linear(i), var, lanes)
    if found is None:
        return None
    rest, steps = found
    picks = tuple(k - min(steps) for k in steps)
    if sorted(picks) != list(range(lanes)) or picks == tuple(range(lanes)):
        return None
    return Permuted(Ramp(rest.plus(Linear({}, min(steps))).expr(), lanes, "index"), picks)
