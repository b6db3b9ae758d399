"""Products and sums of which an operand is a known number, as they are written by hand: with equal bits."""

from __future__ import annotations

import math
from fractions import Fraction

from tensorir.ir.build import const
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.identities import identity
from tensorir.ir.tree import Binary, Broadcast, Const, Expr, Unary


def value_of(e: Expr) -> object:
    """The number that ``e`` is in all lanes, else None."""
    e = e.value if isinstance(e, Broadcast) else e
    return e.value if isinstance(e, Const) else None


def product(n: Binary) -> Expr:
    """``n``, a product, without a factor of 1, and of integers 0 where a factor is: 0 times infinity is NaN."""
    for a, b, left in ((n.a, n.b, True), (n.b, n.a, False)):
        value = value_of(a)
        if gives := identity("*", value, n.dtype, left):
            return b if gives == "x" else a
        if value == -1:
            return Unary("-", b, n.dtype)
    return n


def sum_of(n: Binary) -> Expr:
    """``n``, a sum or a difference, without a term of 0, and with the sign of a negative term in front of it.

    Of floats -0 + 0 is 0, and 0 - 0 is not -0: a term of 0 goes where the other one cannot be -0.
    """
    for a, b, left in ((n.a, n.b, True), (n.b, n.a, False)):
        value = value_of(a)
        if identity(n.op, value, n.dtype, left) or (value == 0 and not (left and n.op == "-") and _no_negative_zero(b)):
            return b
    if value_of(n.a) == 0 and n.op == "-" and not is_float(n.dtype):
        return _minus(n.b)
    opposite = _opposite(n.b)
    if opposite is not None:
        return Binary("-" if n.op == "+" else "+", n.a, opposite, n.dtype)
    return n


def _no_negative_zero(e: Expr) -> bool:
    """True for a float that is proved not to be -0: a sum is only where both terms are."""
    value = value_of(e)
    if isinstance(value, int | float | Fraction):
        return value != 0 or math.copysign(1, value) > 0
    if isinstance(e, Binary) and e.op == "+":
        return _no_negative_zero(e.a) or _no_negative_zero(e.b)
    return isinstance(e, Binary) and e.op == "-" and _no_negative_zero(e.a)


def _minus(e: Expr) -> Expr:
    if isinstance(e, Binary) and e.op == "*":
        for a, b, first in ((e.a, e.b, True), (e.b, e.a, False)):
            value = value_of(a)
            if isinstance(value, int | float | Fraction) and _has(e.dtype, -value):
                c = _like(a, -value)
                return Binary("*", *((c, b) if first else (b, c)), e.dtype)
    return _opposite(e) or Unary("-", e, e.dtype)


def _has(dtype: str, value: int | float | Fraction) -> bool:
    """True when the type has this number: the lowest integer has no opposite, unsigned ones have none at all."""
    kind = DTYPES[dtype]
    return kind.kind == "f" or kind.low <= value <= kind.high


def _like(e: Expr, value: int | float | Fraction) -> Expr:
    """A number in as many lanes as ``e``."""
    c = const(value, e.dtype)
    return Broadcast(c, e.lanes, e.dtype) if isinstance(e, Broadcast) else c


def _opposite(e: Expr) -> Expr | None:
    """``-e`` where that is simpler than ``e``."""
    if isinstance(e, Unary) and e.op == "-":
        return e.a
    if isinstance(e, Binary) and e.op == "*":
        for a, b, first in ((e.a, e.b, True), (e.b, e.a, False)):
            value = value_of(a)
            if isinstance(value, int | float | Fraction) and value < 0 and _has(e.dtype, -value):
                c = _like(a, -value)
                return Binary("*", *((c, b) if first else (b, c)), e.dtype)
    return None
