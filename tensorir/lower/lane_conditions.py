"""Conditions of lanes: masks of vectors, accumulations of 0 where lanes are off, and ends inside a vector."""

from __future__ import annotations

import math
from collections.abc import Callable

from tensorir.arith.access import comparison, even
from tensorir.arith.affine import Arith, Linear, same
from tensorir.arith.conditions import conjunction, conjuncts, negate, weakest
from tensorir.arith.quotients import may_trap
from tensorir.arith.reads import conditional
from tensorir.ir.build import COMPARE, binary, cast, const, select
from tensorir.ir.dims import dims_in, span
from tensorir.ir.dtypes import is_float
from tensorir.ir.shared import once
from tensorir.ir.tree import Binary, Broadcast, Cast, Expr, If, Load, Pack, Scope, Stmt, Store, Unary, Var
from tensorir.ir.visit import Rewriter, substitute, uses
from tensorir.lower.lane_orders import steps_of

FAR_LANE = 1 << 30
"""What a lane is compared with, at most: beyond the number of any lane."""


def is_monotonic(c: Expr, var: Var, arith: Arith) -> bool:
    """True for a comparison of integers whose sides differ by an affine function of ``var`` (no ``%``, no loads)."""
    if not isinstance(c, Binary) or c.op not in ("<", "<=") or is_float(c.a.dtype):
        return False
    return comparison(c, var, arith) is not None


def aligned(c: Binary, var: Var, lanes: int, arith: Arith) -> Expr | None:
    """``lanes*x + lane < lanes*n``   ->   ``x < n``, valid for all lanes; None for other conditions."""
    found = comparison(c, var, arith)
    if found is None:
        return None
    step, rest = found
    if abs(step) != 1 or any(k % lanes for k in rest.terms.values()):
        return None
    # step * lane + rest + constant < 0 with rest a multiple of lanes
    c0 = rest.constant if c.op == "<" else rest.constant - 1
    low, high = (c0, c0 + lanes - 1) if step == 1 else (c0 - lanes + 1, c0)
    if low // lanes != high // lanes:
        return None
    moving = Linear(rest.terms, (low // lanes) * lanes)
    return binary("<", moving.expr(), const(0))


def ending(s: If, var: Var, lanes: int, arith: Arith) -> tuple[Stmt, Expr]:
    """(statement under its condition, condition that all lanes satisfy it): tested at the first and last lane, as
    comparisons are monotonic.
    """
    ends = [substitute(c, {var: const(k)}) for c in conjuncts(s.cond) for k in (0, lanes - 1)]
    inside = arith.child(assume=conjuncts(s.cond)).simplify(s.then)
    return inside, arith.simplify(conjunction(weakest(ends, arith)))


def beyond(cond: Expr, var: Var, lanes: int, arith: Arith) -> Expr | None:
    """Condition that no lane satisfies ``cond``, a monotonic comparison with a dim: vectors that an array has room for
    past its end; None for other conditions, whose end is in one vector.
    """
    if not isinstance(cond, Binary) or cond.op not in ("<", "<=") or not dims_in(cond):
        return None
    ends = [negate(substitute(cond, {var: const(k)})) for k in (0, lanes - 1)]
    if any(e is None for e in ends):
        return None
    return arith.simplify(conjunction(weakest([e for e in ends if e is not None], arith)))


class NoMask(Exception):
    """The condition cannot be expressed as a vector mask."""


def mask(cond: Expr, var: Var, lanes: int, arith: Arith, wide: Callable[[Expr], Expr]) -> Expr:
    """Vector of booleans: ``cond`` in each lane of ``var``. wide: function that broadcasts a value to all lanes"""

    @once
    def masked(cond: Expr) -> Expr:
        if not uses(cond, {var}):
            return Broadcast(cond, lanes, "bool")
        match cond:
            case Binary(op="and" | "or"):
                return Binary(cond.op, masked(cond.a), masked(cond.b), "bool")
            case Unary(op="not"):
                return Unary("not", masked(cond.a), "bool")
            case Binary() if cond.op in COMPARE and cond.a.dtype == "index":
                return _of_places(cond, var, lanes, arith)
            case Binary(op="==" | "!=") if cond.a.dtype == cond.b.dtype == "bool":
                return Binary(cond.op, masked(cond.a), masked(cond.b), "bool")
            case Binary() if cond.op in COMPARE and cond.a.dtype != "bool":
                return Binary(cond.op, wide(cond.a), wide(cond.b), "bool")
        raise NoMask

    return masked(cond)


def _of_places(cond: Binary, var: Var, lanes: int, arith: Arith) -> Expr:
    """A constant of each lane compared with a scalar common to all, as a vector; raises NoMask for other
    comparisons.
    """
    found = steps_of(arith.linear(cond.a).plus(arith.linear(cond.b), -1), var, lanes)
    if found is None or max(map(abs, found[1])) >= FAR_LANE:
        raise NoMask
    rest, steps = found
    if len({*steps}) == 1:
        same_for_all = binary(cond.op, rest.plus(Linear({}, steps[0])).expr(), 0)
        return Broadcast(arith.simplify(same_for_all), lanes, "bool")
    bound = binary("max", binary("min", rest.times(-1).expr(), const(FAR_LANE)), const(-FAR_LANE))
    places = Pack(tuple(const(k, "int32") for k in steps), "int32")
    return Binary(cond.op, places, Broadcast(cast(arith.simplify(bound), "int32"), lanes, "int32"), "bool")


def unclamped(e: Load, var: Var, lanes: int, arith: Arith) -> tuple[Expr, Load] | None:
    """``x[min(i + lane, n - 1)]`` as (condition that no lane is clamped, ``x[i + lane]``); None if no lane may be, or
    clamped places do not move with the lane.
    """
    plain = _Unclamped(var, lanes, arith)
    load = e.replace(index=tuple(map(plain, e.index)))
    return (arith.simplify(conjunction(plain.inside)), load) if plain.inside else None


class _Unclamped(Rewriter):
    """Rewriter: ``min(i, n)`` -> ``i`` where the lane moves i. inside: conditions under which no lane is clamped"""

    def __init__(self, var: Var, lanes: int, arith: Arith) -> None:
        super().__init__()
        self.var, self.lanes, self.arith, self.inside = var, lanes, arith, list[Expr]()

    def on_Binary(self, n: Binary) -> Expr:
        n = self.children(n)
        moves = even(n.a, self.var, self.arith) if n.op in ("min", "max") and not uses(n.b, {self.var}) else None
        if moves is None or moves[0] == 0:
            return n
        last = (moves[0] > 0) == (n.op == "min")  # the lane nearest to the end
        at = substitute(n.a, {self.var: const(self.lanes - 1 if last else 0)})
        self.inside.append(binary("<=", at, n.b) if n.op == "min" else binary("<=", n.b, at))
        return n.a


def speculable(e: Expr, arith: Arith) -> bool:
    """True if computing ``e`` where its value is unused is safe: all reads are in range, nothing traps."""
    for load, conditions in conditional(e, Load):
        low, high = (arith.child(assume=conditions) if conditions else arith).range(load.index[0])
        if not (low >= 0 and high < math.prod(span(n)[0] for n in load.buffer.shape)):
            return False
    return not may_trap(e)


def added_where(cond: Expr, body: Stmt, var: Var) -> Store | None:
    """``if (cond) r = r + a * b`` as ``r = r + (cond ? a : 0) * (cond ? b : 0)``, where lanes of ``var`` decide; None
    for other statements.

    All that is read has the condition: it may not be there where the condition does not hold.
    """
    if not isinstance(body, Store) or body.buffer.scope is not Scope.REGISTER or body.adds:
        return None
    value = body.value
    if not isinstance(value, Binary) or value.op != "+" or not isinstance(value.a, Load):
        return None
    if value.a.buffer is not body.buffer or not same(value.a.index[0], body.index[0]) or not uses(value.b, {var}):
        return None
    term = _zero_unless(cond, value.b)
    return None if term is None else body.replace(value=value.replace(b=term))


def _zero_unless(cond: Expr, e: Expr) -> Expr | None:
    """Product ``e`` of loads, each load replaced by ``cond ? load : 0``; None for other expressions."""
    if isinstance(e, Load):
        return select(cond, e, const(0, e.dtype))
    if isinstance(e, Cast) and e.dtype != "bool":
        a = _zero_unless(cond, e.a)
        return None if a is None else e.replace(a=a)
    if isinstance(e, Binary) and e.op == "*":
        a, b = _zero_unless(cond, e.a), _zero_unless(cond, e.b)
        return None if a is None or b is None else e.replace(a=a, b=b)
    return None
