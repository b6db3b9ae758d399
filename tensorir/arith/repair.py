"""Derives the correction of partial results when a running maximum ``m`` changes: exp(old - new) for online softmax.

Let ``m`` be the running maximum of x. A sum of terms B(k) exp(x(k) - m) is multiplied by exp(old - new) when m changes
(online softmax: Milakov and Gimelshein, arXiv 1805.02867; FlashAttention: Dao et al., arXiv 2205.14135; rolling update
in general: Neptune, arXiv 2510.08726). The same holds for a maximum or minimum of these terms, as positive factors keep
order; for terms x(k) - m + y(k), old - new is added. The correction is derived from the expression by the rules below,
and other expressions are refused. The rules are deliberately narrow: the prime field of exact checks models neither
overflow, nor underflow to 0, nor order under addition. So the form of the terms must guarantee that a factor is finite
and nonzero at all running values, and that y keeps its significand bits next to a difference larger than the last one.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction

from tensorir.arith.affine import same, structure
from tensorir.errors.shown import Shown
from tensorir.ir.build import binary, call, cast, unary
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.text import show
from tensorir.ir.tree import Binary, Call, Cast, Const, Expr, Select, Unary, Var
from tensorir.ir.visit import find, substitute, uses

EXTREMES = ("max", "min")
"""Reductions that keep one of their terms: what keeps the order of numbers may be done to it afterwards."""
POWERS = ("exp", "exp2")
"""Functions of which a difference of arguments makes a quotient of values."""


class NoRepairError(Exception):
    """No rule derives a repair; the message says what is missing."""


@dataclass(frozen=True, repr=False, eq=False)
class Repair(Shown):
    """A factor or summand that converts partial results from an old ``m`` to a new one.

    old, new: variables in ``value``
    op:       "*" or "+"
    start:    the value while ``m`` is still -inf: terms are exp(-inf) = 0 then, and x - m is -inf
    """

    value: Expr
    old: Var
    new: Var
    op: str = "*"
    start: int = 0

    def of(self, old: Expr, new: Expr) -> Expr:
        """The repair expression with ``old`` and ``new`` substituted."""
        return substitute(self.value, {self.old: old, self.new: new})


def repair_of(body: Expr, m: Var, axes: Collection[Var], combiner: str, term: Expr | None = None) -> Repair:
    """Return the repair of partial results of ``combiner`` over terms ``body``, which read ``m``.

    axes: what the repair must be free of
    term: what ``m`` is the maximum of, in the same axes; None if it is something else

    Terms that have a repair are 0 where ``term`` is minus infinity. Raises NoRepairError.
    """
    if combiner not in ("sum", *EXTREMES):
        raise NoRepairError(f"it is a reduction by {combiner}, and sums, maxima and minima alone have a repair")
    old, new = Var(f"{m.name}_old", m.dtype), Var(f"{m.name}_new", m.dtype)
    rules = _Rules(body, m, frozenset(axes), term, old, new)
    adds = combiner in EXTREMES and not any(uses(e, {m}) for e in find(body, Call, lambda e: e.fn in POWERS))
    value = rules.summand(body) if adds else rules.factor(body)
    if value is None:
        raise NoRepairError(f"{show(body)} does not read {m.name}")
    return Repair(value, old, new, "+") if adds else Repair(value, old, new, start=int(combiner in EXTREMES))


@dataclass(frozen=True, eq=False)
class _Form:
    """An exponent as linear form ``x * term + m * m + rest``, rest free of both and of the axes.

    x, m:   the coefficients
    moved:  the exponent at (term = old m, m = new m), without the rest; None is 0
    lowest: true if a select may make it minus infinity
    """

    x: Fraction = Fraction(0)
    m: Fraction = Fraction(0)
    moved: Expr | None = None
    lowest: bool = False


@dataclass(frozen=True, eq=False)
class _Rules:
    """Derivation rules for the repair of terms when ``m`` changes."""

    body: Expr
    m: Var
    axes: frozenset[Var]
    term: Expr | None
    old: Var
    new: Var
    large: list[Expr] = field(default_factory=list)
    """Parts of an exponent that may overflow, though their difference does not."""

    def factor(self, e: Expr) -> Expr | None:
        """Factor by which ``e`` changes when ``m`` takes a new value; None if it does not read ``m``. Raises
        NoRepairError for terms of other forms.
        """
        if not uses(e, {self.m}):
            return None
        if isinstance(e, Call) and e.fn in POWERS:
            return call(e.fn, self._exponent(e))
        if isinstance(e, Cast) and (_widens(e) or (is_float(e.dtype) and _is_power(e.a))):
            return self.factor(e.a)  # not rounded with it: the sum is of more digits
        if (isinstance(e, Unary) and e.op == "-") or (
            isinstance(e, Binary) and e.op == "/" and not uses(e.b, {self.m})
        ):
            return self.factor(e.a)
        if isinstance(e, Binary) and e.op == "*":
            a, b = self.factor(e.a), self.factor(e.b)
            return a if b is None else b if a is None else binary("*", a, b)
        if (isinstance(e, Binary) and e.op in ("+", "-")) or (isinstance(e, Select) and not uses(e.cond, {self.m})):
            parts = [self.factor(x) for x in (e.a, e.b) if _number(x) != 0]
            if len({None if p is None else structure(p) for p in parts}) == 1:
                return parts[0]
            raise NoRepairError(f"parts of {show(e)} change with {self.m.name} by different factors")
        raise NoRepairError(
            f"{show(self.body)} reads {self.m.name} outside of a difference in {' or '.join(POWERS)}: where terms "
            "are 0, infinite or undefined at a running value, what has been added up is lost"
        )

    def summand(self, e: Expr) -> Expr | None:
        """Summand by which ``e`` changes when ``m`` takes a new value; None if it does not read ``m``. Raises
        NoRepairError for terms of other forms.
        """
        if not uses(e, {self.m}):
            return None
        if isinstance(e, Cast) and _widens(e):
            return None if (a := self.summand(e.a)) is None else cast(a, e.dtype)
        if isinstance(e, Binary) and (e.op == "+" or (e.op == "-" and not uses(e.b, {self.m}))):
            a, b = self.summand(e.a), self.summand(e.b)
            if a is None or b is None:
                return b if a is None else a
        if isinstance(e, Select) and not uses(e.cond, {self.m}):
            parts = [self.summand(x) for x in (e.a, e.b) if not math.isinf(_value(x) or 0)]
            if len({None if p is None else structure(p) for p in parts}) == 1:
                return parts[0]
        return self._difference(e, e)

    def _exponent(self, power: Call) -> Expr:
        """Exponent of the factor by which ``power`` changes; provably <= 0 at all running values. Raises
        NoRepairError.
        """
        return self._difference(power, power.args[0])

    def _difference(self, power: Expr, e: Expr) -> Expr:
        """``c * (old m - new m)`` for an exponent ``e`` = c * (term - m), c > 0; raises for other forms."""
        if self.term is None:
            raise self._far(power, f"{self.m.name} is not known to be the maximum of what it is taken from")
        form, name = self._form(power, e), self.m.name
        if form.moved is None or form.x <= 0 or form.x != -form.m:
            raise self._far(
                power,
                f"{show(self.term)} has coefficient {_told(form.x)} and {name} {_told(form.m)}, where the first has to "
                "be above 0 and the other its negative",
            )
        if self.large:
            raise self._far(power, f"{show(self.large[0])} may overflow, where a multiple of the difference does not")
        return form.moved

    def _form(self, power: Expr, e: Expr) -> _Form:
        """_Form of a subexpression of an exponent."""
        form = self._form_of(power, e)
        # what has term and m with one sign is as large as their sum, else as the larger, unless it is far below 0
        size = abs(form.x + form.m) if form.x * form.m > 0 else max(abs(form.x), abs(form.m))
        if form.x != -form.m and size > 1:
            self.large.append(e)
        return form

    def _form_of(self, power: Expr, e: Expr) -> _Form:
        one = Fraction(1)
        if self.term is not None and same(e, self.term):
            return _Form(one, moved=self.old)
        if e is self.m:
            return _Form(m=one, moved=self.new)
        if not uses(e, {self.m, *self.axes}):
            return _Form()
        if isinstance(e, Cast) and _widens(e):
            a = self._form(power, e.a)
            return _Form(a.x, a.m, None if a.moved is None else cast(a.moved, e.dtype), a.lowest)
        if isinstance(e, Unary) and e.op == "-":
            return self._joined(power, e, _Form(), self._form(power, e.a))
        if isinstance(e, Binary) and e.op in ("+", "-"):
            return self._joined(power, e, self._form(power, e.a), self._form(power, e.b))
        if isinstance(e, Binary) and e.op in ("*", "/") and (by := _number(e.b)):
            return self._times(power, e, e.a, by if e.op == "*" else 1 / by)
        if isinstance(e, Binary) and e.op == "*" and (by := _number(e.a)):
            return self._times(power, e, e.b, by)
        if isinstance(e, Select) and not uses(e.cond, {self.m}):
            kept = [x for x in (e.a, e.b) if not _lowest(x)]
            if len({structure(x) for x in kept}) == 1:
                a = self._form(power, kept[0])
                return _Form(a.x, a.m, a.moved, a.lowest or len(kept) == 1)
        if uses(e, {self.m}):
            raise self._far(power, f"{show(e)} is no sum of multiples of {self.m.name} and what it is the maximum of")
        raise self._far(power, f"{self.m.name} is not known to be the maximum of {show(e)}")

    def _joined(self, power: Expr, e: Unary | Binary, a: _Form, b: _Form) -> _Form:
        """_Form of ``a + b`` or ``a - b``."""
        sign = 1 if e.op == "+" else -1
        if sign < 0 and b.lowest:
            raise self._far(power, f"{show(e)} may be infinite")
        moved = a.moved
        if b.moved is not None:
            alone = b.moved if sign > 0 else unary("-", b.moved)
            moved = alone if moved is None else binary(e.op, moved, b.moved)
        return _Form(a.x + sign * b.x, a.m + sign * b.m, moved, a.lowest or b.lowest)

    def _times(self, power: Expr, e: Binary, part: Expr, by: Fraction) -> _Form:
        """_Form of ``part`` times a constant."""
        a = self._form(power, part)
        if by < 0 and a.lowest:
            raise self._far(power, f"{show(e)} may be infinite")
        moved = None
        if a.moved is not None:
            moved = binary(e.op, a.moved, e.b) if part is e.a else binary(e.op, e.a, a.moved)
        return _Form(a.x * by, a.m * by, moved, a.lowest)

    def _far(self, power: Expr, why: str) -> NoRepairError:
        return NoRepairError(
            f"{show(power)} may be too large or small for its type while {self.m.name} is not yet final: {why}"
        )


def _widens(e: Cast) -> bool:
    """True for a cast of a float to one of at least 32 bits that is as wide: it is exact."""
    bits = DTYPES[e.dtype].bits
    return is_float(e.dtype) and is_float(e.a.dtype) and bits >= max(32, DTYPES[e.a.dtype].bits)


def _is_power(e: Expr) -> bool:
    """True if ``e`` is a power, or a select of one and 0: in [0, 1] at all running values, so representable in narrow
    types.
    """
    if isinstance(e, Cast):
        return _is_power(e.a)
    if isinstance(e, Select):
        return all(_is_power(x) or _number(x) == 0 for x in (e.a, e.b))
    return isinstance(e, Call) and e.fn in POWERS


def _value(e: Expr) -> float | None:
    """Value of a constant, through casts and signs, infinities included; None for other expressions."""
    if isinstance(e, Cast):
        return _value(e.a)
    if isinstance(e, Unary) and e.op == "-":
        return None if (value := _value(e.a)) is None else -value
    return e.value if isinstance(e, Const) else None


def _number(e: Expr) -> Fraction | None:
    """Value of a finite constant, through casts and signs; None for other expressions."""
    value = _value(e)
    return None if value is None or not math.isfinite(value) else Fraction(value)


def _lowest(e: Expr) -> bool:
    return _value(e) == -math.inf


def _told(c: Fraction) -> str:
    return f"{float(c):g}"
