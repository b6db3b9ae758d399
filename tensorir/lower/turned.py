"""Vectors whose first lane is the last one in memory."""

from __future__ import annotations

from tensorir.arith.affine import Arith, Linear
from tensorir.ir.lanes import lanes_of
from tensorir.ir.tree import Expr, Ramp, Shuffle, Var


def backwards(i: Expr, var: Var, lanes: int, arith: Arith) -> Ramp | None:
    """The elements of all lanes of ``var`` in the order of memory, where each is right before that of the lane before
    it.
    """
    found = arith.linear(i).along(var)
    if found is None or found[0] != -1:
        return None
    return Ramp(found[1].plus(Linear({}, 1 - lanes)).expr(), lanes, "index")


def turned(e: Expr) -> Shuffle:
    """A vector, its last lane first."""
    return Shuffle(e, e, tuple(reversed(range(lanes_of(e)))), e.dtype)
