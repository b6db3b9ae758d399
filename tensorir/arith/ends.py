"""Derives loop ends from conditions: ``8*i + j < n`` ends i at ``(n + 7) // 8``; constant, dim or loaded ends.

If a condition guards the whole body, the loop runs to the end instead of testing it in each iteration. Constant and dim
ends become extents (``lower/end_loops.py``); loaded ends are read once by the emitted text (``codegen/cfamily.py``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tensorir.arith.access import even
from tensorir.arith.affine import Arith, Interval, Linear, same
from tensorir.ir.build import as_int, binary, cast, const
from tensorir.ir.dims import dims_in
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Cast, Const, Expr, Load, Var
from tensorir.ir.visit import find, has


@dataclass(frozen=True, eq=False)
class End:
    """The condition ``var < at``, implied by other conditions.

    exact: those of the conditions that it is equivalent to
    """

    at: Expr
    exact: tuple[Expr, ...] = ()


# --- one condition


def constant_end(cond: Expr, var: Var, arith: Arith) -> int | None:
    """n if ``cond`` is equivalent to ``var < n``, else None."""
    form = arith.at_most_zero(cond)
    if form is None or set(form.terms) != {var} or form.terms[var] < 0:
        return None
    return -form.constant // form.terms[var] + 1


def dim_end(cond: Expr, var: Var, arith: Arith, around: Collection[Var] = ()) -> End | None:
    """The end of ``var``, an expression of dims and of variables ``around`` its loop, that ``cond`` implies if it has
    the form ``step * var + others - dims < 0``, with others at their least; None for other conditions.
    """
    form = arith.at_most_zero(cond)
    step = 0 if form is None else form.terms.get(var, 0)
    if form is None or step <= 0:
        return None
    rest = form.without(var)
    known = (t for t in rest.terms if not has(t, Load) and all(v.bounds or v in around for v in find(t, Var)))
    fixed = {t: rest.terms[t] for t in known}
    moving = Linear({t: k for t, k in rest.terms.items() if t not in fixed}, 0)
    low = arith.range_of(moving)[0]
    if not any(map(dims_in, fixed)) or math.isinf(low):
        return None
    room = Linear({t: -k for t, k in fixed.items()}, step - rest.constant - int(low))
    at = room.expr() if step == 1 else arith.linear(binary("//", binary("max", room.expr(), 0), step)).expr()
    return End(at, () if moving.terms else (cond,))


def of_data(cond: Expr, var: Var | None = None) -> bool:
    """True if ``cond`` bounds an index expression by loaded values, as ``k < P[i + 1] - P[i]`` does.

    var: variable that must occur in the expression and not in the bound; None: any
    """
    if not isinstance(cond, Binary) or cond.op != "<" or not has(cond.b, Load) or has(cond.a, Load):
        return False
    axis = _axis(cond)
    if axis.dtype != "index" or isinstance(axis, Const):
        return False
    return var is None or (any(v is var for v in find(axis, Var)) and not any(v is var for v in find(cond.b, Var)))


def data_end(cond: Binary, var: Var, arith: Arith) -> Expr | None:
    """The end of ``var``, ``(data - others + step - 1) // step``, that ``cond``, ``step * var + others < data``,
    implies.

    Negative if no iteration runs. None if ``cond`` has another form, or the computation might overflow the index type.
    """
    axis = _axis(cond)
    step, rest = even(axis, var, arith) or (0, None)
    if step <= 0 or rest is None:
        return None
    data = _limited(cond.b, arith.range(axis), moved=bool(step > 1 or rest.terms or rest.constant))
    if data is None:
        return None
    left = binary("-", cast(data, "index"), rest.expr())  # C's quotient of what is negative ends a loop as well
    return binary("//", binary("+", left, step - 1), step)


def _axis(cond: Binary) -> Expr:
    """The left side of ``cond``, which is compared with loaded values, without integer conversions."""
    axis = cond.a
    while isinstance(axis, Cast) and all(DTYPES[x.dtype].kind in "iu" for x in (axis, axis.a)):
        axis = axis.a
    return axis


def _limited(data: Expr, axis: Interval, moved: bool) -> Expr | None:
    """``data`` clamped just beyond the range ``axis``, so that index arithmetic with it cannot overflow; None if it
    might overflow anyway.

    moved: True if something is added to it or it is divided
    """
    kind, (low, high) = DTYPES[data.dtype], axis
    narrow = kind.bits < 32 or (kind.kind == "i" and kind.bits == 32)
    if kind.kind == "u" and low < 0:
        return None  # the declaration compares without a sign
    if narrow and not moved:
        return data
    if math.isinf(low) or math.isinf(high):
        return None
    above, below = int(high) + 1 < kind.high, int(low) > kind.low
    data = binary("min", data, const(int(high) + 1, data.dtype)) if above else data
    return binary("max", data, const(int(low), data.dtype)) if below else data


# --- several


def first(ends: Sequence[End], arith: Arith) -> End | None:
    """The least of ``ends``; the first one if none is provably least, None if there are none."""
    for e in ends:
        if all(_at_most(e.at, other.at, arith) for other in ends):
            return e
    return ends[0] if ends else None


def last(ends: Iterable[End | None], arith: Arith) -> End | None:
    """The greatest of ``ends``, with the exact conditions of all equal ones; None if none is provably greatest or one
    is None.
    """
    known: list[End] = []
    for e in ends:
        if e is None:
            return None
        known.append(e)
    for e in known:
        if all(same(e.at, other.at) or _at_most(other.at, e.at, arith) for other in known):
            return End(e.at, tuple(c for other in known if same(e.at, other.at) for c in other.exact))
    return None


def _at_most(a: Expr, b: Expr, arith: Arith) -> bool:
    """True if ``a <= b`` is provable; quotients by one number compare dividends."""
    (x, c), (y, d) = _quotient(a, arith), _quotient(b, arith)
    return arith.proves(binary("<=", a, b)) or (c == d and arith.proves(binary("<=", x, y)))


def _quotient(e: Expr, arith: Arith) -> tuple[Expr, int]:
    """(x + c * d, c) for an expression ``x // c + d`` with constants c and d; (``e``, 1) for others."""
    form = arith.linear(e)
    atom = next(iter(form.terms), None)
    if form.terms == {atom: 1} and isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const):
        return binary("+", atom.a, form.constant * as_int(atom.b)), as_int(atom.b)
    return e, 1
