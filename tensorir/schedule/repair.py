"""What turns terms that read an old value of ``m`` into those that read a new one: the repair of an online update.

A sum of terms B(k, m) needs one factor where B(k, new) / B(k, old) is free of k: all that has been added up is
multiplied by it (online softmax: Milakov and Gimelshein, arXiv 1805.02867; FlashAttention: Dao et al., arXiv
2205.14135; rolling update in general: Neptune, arXiv 2510.08726). It is derived from the expression, by the rules
below; what they do not cover is refused. A maximum of such terms would take a difference, but the field in which
checks are exact has no order that adding keeps, so nothing could prove the result: it is refused as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from tensorir.arith.affine import same, structure
from tensorir.errors.shown import Shown
from tensorir.ir.build import binary, call, cast, const
from tensorir.ir.dtypes import is_float
from tensorir.ir.text import show
from tensorir.ir.tree import Binary, Call, Cast, Const, Expr, Select, Unary, Var
from tensorir.ir.visit import find, substitute, uses

POWERS = ("exp", "exp2")
"""Functions of which a difference of arguments makes a quotient of values."""


class NoRepairError(Exception):
    """No rule finds the repair; the message says what is missing."""


@dataclass(frozen=True, repr=False)
class Repair(Shown):
    """A factor that takes a partial sum from old values to new ones.

    old, new: what ``factor`` reads of the two
    vanishes: whether terms are known to be 0 where the old value is the identity of a maximum, minus infinity
    """

    factor: Expr
    old: Var
    new: Var
    vanishes: bool = False

    def of(self, old: Expr, new: Expr) -> Expr:
        """The repair of given values."""
        return substitute(self.factor, {self.old: old, self.new: new})


def repair_of(body: Expr, m: Var, axes: Collection[Var], combiner: str, term: Expr | None = None) -> Repair:
    """Return the repair of partial results of ``combiner`` over terms ``body``, which read ``m``.

    axes: what the repair must be free of
    term: what ``m`` is the maximum of, in the same axes; None if it is something else

    Raises NoRepairError.
    """
    if combiner != "sum":
        raise NoRepairError(f"it is a reduction by {combiner}, and sums alone take a factor")
    old, new = Var(f"{m.name}_old", m.dtype), Var(f"{m.name}_new", m.dtype)
    factor = _Rules(m, frozenset(axes)).quotient(body, old, new)
    vanishes = term is not None and _vanishes(body, term)
    if not vanishes and factor is not None and (powers := find(body, Call, lambda c: c.fn in POWERS)):
        raise NoRepairError(
            f"{show(powers[0])} may be too large or small for its type while {m.name} is not yet final: {m.name} "
            "is not known to be the maximum of what it is taken from"
        )
    return Repair(const(1, body.dtype) if factor is None else factor, old, new, vanishes)


@dataclass(frozen=True)
class _Rules:
    """Quotients and differences of an expression at two values of ``m``; None stands for 1 and for 0."""

    m: Var
    axes: frozenset[Var]

    def quotient(self, e: Expr, old: Expr, new: Expr) -> Expr | None:
        """``e`` at ``new`` over ``e`` at ``old``."""
        if not uses(e, {self.m}):
            return None
        if isinstance(e, Cast) and is_float(e.dtype) and is_float(e.a.dtype):
            return self.quotient(e.a, old, new)  # not rounded with it: the sum is of more digits
        if isinstance(e, Unary) and e.op == "-":
            return self.quotient(e.a, old, new)
        if isinstance(e, Call) and e.fn in POWERS:
            by = self.difference(e.args[0], old, new)
            return None if by is None else call(e.fn, by)
        if isinstance(e, Binary) and e.op == "*":
            return _joined("*", self.quotient(e.a, old, new), self.quotient(e.b, old, new))
        if isinstance(e, Binary) and e.op == "/":
            return _joined("*", self.quotient(e.a, old, new), self.quotient(e.b, new, old))
        if not uses(e, set(self.axes)):
            return binary("/", substitute(e, {self.m: new}), substitute(e, {self.m: old}))
        if (isinstance(e, Binary) and e.op in ("+", "-")) or (isinstance(e, Select) and not uses(e.cond, {self.m})):
            return self._alike(e, [self.quotient(x, old, new) for x in (e.a, e.b) if not _is(x, 0)], "factor")
        raise self._none(e, "factor")

    def difference(self, e: Expr, old: Expr, new: Expr) -> Expr | None:
        """``e`` at ``new`` less ``e`` at ``old``."""
        if not uses(e, {self.m}):
            return None
        if e is self.m:
            return binary("-", new, old)
        if isinstance(e, Cast) and is_float(e.dtype):
            by = self.difference(e.a, old, new)
            return None if by is None else cast(by, e.dtype)
        if isinstance(e, Unary) and e.op == "-":
            return self.difference(e.a, new, old)
        if isinstance(e, Binary) and e.op in ("+", "-"):
            second = (old, new) if e.op == "+" else (new, old)
            return _joined("+", self.difference(e.a, old, new), self.difference(e.b, *second))
        if isinstance(e, Binary) and e.op in ("*", "/") and self._scales(e.b):
            return binary(e.op, self.difference(e.a, old, new), e.b)
        if isinstance(e, Binary) and e.op == "*" and self._scales(e.a):
            return binary("*", e.a, self.difference(e.b, old, new))
        if isinstance(e, Select) and not uses(e.cond, {self.m}):
            finite = [x for x in (e.a, e.b) if not (_is(x, math.inf) or _is(x, -math.inf))]
            return self._alike(e, [self.difference(x, old, new) for x in finite], "difference")
        if uses(e, set(self.axes)):
            raise self._none(e, "difference")
        return binary("-", substitute(e, {self.m: new}), substitute(e, {self.m: old}))

    def _scales(self, e: Expr) -> bool:
        return not uses(e, {self.m, *self.axes})

    def _alike(self, e: Expr, parts: list[Expr | None], what: str) -> Expr | None:
        told = {None if p is None else structure(p) for p in parts}
        if len(told) != 1:
            raise self._none(e, what)
        return parts[0]

    def _none(self, e: Expr, what: str) -> NoRepairError:
        axes = ", ".join(v.name for v in self.axes if uses(e, {v}))
        return NoRepairError(f"how {show(e)} changes with {self.m.name} is no {what} free of {axes}")


def _joined(op: str, a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return b if a is None else a
    return binary(op, a, b)


def _is(e: Expr, value: float) -> bool:
    while isinstance(e, Cast):
        e = e.a
    if isinstance(e, Unary) and e.op == "-":
        return _is(e.a, -value)
    return isinstance(e, Const) and e.value == value


def _vanishes(e: Expr, term: Expr) -> bool:
    """Whether ``e`` is 0 where ``term`` is minus infinity and ``m`` any number (its other factors are finite)."""
    if isinstance(e, Call) and e.fn in POWERS:
        return _falls(e.args[0], term)
    if isinstance(e, Binary) and e.op == "*":
        return _vanishes(e.a, term) or _vanishes(e.b, term)
    if isinstance(e, Binary) and e.op in ("+", "-"):
        return _vanishes(e.a, term) and _vanishes(e.b, term)
    if isinstance(e, Select):
        return _vanishes(e.a, term) and _vanishes(e.b, term)
    if isinstance(e, Cast | Unary) or (isinstance(e, Binary) and e.op == "/"):
        return _vanishes(e.a, term)
    return _is(e, 0)


def _falls(e: Expr, term: Expr) -> bool:
    """Whether ``e`` is minus infinity where ``term`` is."""
    if same(e, term) or _is(e, -math.inf):
        return True
    if isinstance(e, Binary) and e.op == "+":
        return _falls(e.a, term) or _falls(e.b, term)
    if isinstance(e, Binary) and (e.op == "-" or (e.op in ("*", "/") and isinstance(e.b, Const) and e.b.value > 0)):
        return _falls(e.a, term)
    if isinstance(e, Binary) and e.op == "*" and isinstance(e.a, Const) and e.a.value > 0:
        return _falls(e.b, term)
    if isinstance(e, Select):
        return _falls(e.a, term) and _falls(e.b, term)
    return isinstance(e, Cast) and _falls(e.a, term)
