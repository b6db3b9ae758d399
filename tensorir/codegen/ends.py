"""Loops that end where data say: ``for k < 64: if (k < P[i + 1] - P[i])`` runs to the smaller of the two."""

from __future__ import annotations

from math import isinf

from tensorir.arith.affine import Arith, Interval
from tensorir.arith.conditions import conjunction, conjuncts
from tensorir.expr.segments import ends_by_data
from tensorir.ir.build import binary, cast, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Cast, Expr, If, Let, Load, Loop, Stmt, Var
from tensorir.ir.visit import find, uses, writes


def _limited(data: Expr, axis: Interval, moved: bool) -> Expr | None:
    """The number that data give, or one beyond the same end of an ``axis``: data may be any number of their type, which
    an index may not hold, or whose sum with another one, where it is ``moved``, may not fit. None where that may be.
    """
    kind, (low, high) = DTYPES[data.dtype], axis
    narrow = kind.bits < 32 or (kind.kind == "i" and kind.bits == 32)
    if kind.kind == "u" and low < 0:
        return None  # the declaration compares without a sign
    if narrow and not moved:
        return data
    if isinf(low) or isinf(high):
        return None
    above, below = int(high) + 1 < kind.high, int(low) > kind.low
    data = binary("min", data, const(int(high) + 1, data.dtype)) if above else data
    return binary("max", data, const(int(low), data.dtype)) if below else data


def ended(s: Loop, arith: Arith) -> Stmt | None:
    """Return ``s`` up to where the condition around its whole body ends it, which data say; None where none does.

    What is the same in all iterations holds before the data are read: it may be what keeps them in range.
    """
    if not isinstance(s.body, If):
        return None
    conds = conjuncts(s.body.cond)
    cond = next((c for c in conds if ends_by_data(c, s.var)), None)
    if not isinstance(cond, Binary) or set(writes(s.body.then)) & {x.buffer for x in find(cond.b, Load)}:
        return None
    axis = cond.a
    while isinstance(axis, Cast):
        axis = axis.a
    step, rest = arith.linear(axis).along(s.var) or (0, None)
    if step <= 0 or rest is None:
        return None
    moved = bool(step > 1 or rest.terms or rest.constant)
    told = _limited(cond.b, arith.range(axis), moved)
    if told is None:
        return None
    left = binary("-", cast(told, "index"), rest.expr())  # C's quotient of what is negative ends a loop as well
    count = binary("//", binary("+", left, step - 1), step)
    end = Var(f"{s.var.name}_end", "index")
    kept = [c for c in conds if c is not cond]
    before = [c for c in kept if not uses(c, {s.var})]
    inside = [c for c in kept if uses(c, {s.var})]
    body = If(conjunction(inside), s.body.then) if inside else s.body.then
    loop = Let(end, binary("min", count, s.extent), s.replace(extent=end, body=body))
    return If(conjunction(before), loop) if before else loop
