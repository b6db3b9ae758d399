"""``Linear``: ``sum(coefficient * atom) + constant`` in exact integers; intervals, ranges and memos of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tensorir.ir.build import binary, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.node import ALL_NAMES
from tensorir.ir.tree import Binary, Expr, Var
from tensorir.ir.visit import uses


class Linear:
    """The linear form ``sum(c * atom) + constant``: ``terms`` is {atom: c}, all integers. Treat as immutable."""

    __slots__ = ("_said", "constant", "terms")

    def __init__(self, terms: dict[Expr, int], constant: int) -> None:
        self.terms, self.constant = terms, constant
        self._said: Expr | None = None

    def plus(self, o: Linear, scale: int = 1) -> Linear:
        """``self + scale * o``."""
        if not o.terms:
            return Linear(self.terms, self.constant + scale * o.constant)
        out = Linear(dict(self.terms), self.constant)
        out.add(o, scale)
        return out

    def add(self, o: Linear, scale: int) -> None:
        """Add ``scale * o`` in place; only for a form that no one else holds."""
        for atom, c in o.terms.items():
            self.put(atom, scale * c)
        self.constant += scale * o.constant

    def put(self, atom: Expr, c: int) -> None:
        """Add ``c * atom`` in place; only for a form that no one else holds."""
        if total := self.terms.get(atom, 0) + c:
            self.terms[atom] = total
        else:
            self.terms.pop(atom, None)

    def rests(self) -> bool:
        """True if one of the form's atoms is a remainder (``%``)."""
        return any(type(atom) is Binary and atom.op == "%" for atom in self.terms)

    def times(self, k: int) -> Linear:
        return Linear({a: c * k for a, c in self.terms.items()} if k else {}, self.constant * k)

    def without(self, var: Var) -> Linear:
        """Copy of this form without its term in ``var``."""
        return Linear({t: c for t, c in self.terms.items() if t is not var}, self.constant)

    def along(self, var: Var) -> tuple[int, Linear] | None:
        """(coefficient of ``var``, rest); None if ``var`` also occurs inside atoms."""
        rest = self.without(var)
        return None if any(uses(t, {var}) for t in rest.terms) else (self.terms.get(var, 0), rest)

    def same(self, o: Linear) -> bool:
        """True if both forms have equal terms and constants."""
        return self.constant == o.constant and self.terms == o.terms

    def expr(self) -> Expr:
        """The form as an expression, built once."""
        if self._said is None:
            self._said = self._say()
        return self._said

    def _say(self) -> Expr:
        out: Expr | None = None
        later = []
        for atom, c in self.terms.items():
            if c < 0 and out is None:
                later.append((atom, c))
                continue
            term = atom if abs(c) == 1 else _joined("*", atom, const(abs(c), atom.dtype))
            out = term if out is None else _joined("+" if c > 0 else "-", out, term)
        if out is None:
            out = const(self.constant)
            rest = 0
        else:
            rest = self.constant
        for atom, c in later:
            out = binary("-", out, atom if c == -1 else binary("*", atom, -c))
        return binary("+" if rest > 0 else "-", out, abs(rest)) if rest else out


def _joined(op: str, a: Expr, b: Expr) -> Expr:
    """Expression ``a op b``, not folded if both are indices."""
    return Binary(op, a, b, "index") if a.dtype == b.dtype == "index" else binary(op, a, b)


Interval = tuple[float, float]
"""Inclusive bounds; infinite where nothing is known."""
UNKNOWN: Interval = (-math.inf, math.inf)


def low_bits(form: Linear, range_of: Callable[[Linear], Interval]) -> tuple[Linear, Linear, int] | None:
    """(high, low, size) with ``form == size * high + low``, size a power of two and low within 0 … size - 1; None if
    only 1 is such a size.
    """
    for size in sorted({c & -c for c in form.terms.values()} - {1}):
        low = Linear({t: c for t, c in form.terms.items() if c % size}, form.constant % size)
        first, last = range_of(low)
        if first >= 0 and last < size:
            rest = {t: c // size for t, c in form.terms.items() if not c % size}
            return Linear(rest, form.constant // size), low, size
    return None


def within_bits(op: str, a: Interval, b: Interval, dtype: str) -> Interval:
    """Inclusive bounds of ``a op b`` of ``dtype``, for an operator of ``& | ^ << >>`` and bounds of its operands."""
    if op in ("<<", ">>"):
        return _shifted(op, a, b, dtype)
    low, high = _signed(a, b)
    if op == "&" and max(a[0], b[0]) >= 0:  # no more than an operand that is not negative
        return 0, min(x[1] for x in (a, b) if x[0] >= 0)
    if op == "|" and min(a[0], b[0]) >= 0:
        return max(a[0], b[0]), high
    if op == "|" and min(a[1], b[1]) < 0:  # no less than an operand that is negative
        return max(x[0] for x in (a, b) if x[1] < 0), -1
    return (0, high) if min(a[0], b[0]) >= 0 else (low, high)


def _signed(a: Interval, b: Interval) -> Interval:
    """(lowest, highest) value of signed integers with as many bits as the bounds of both operands need."""
    ends = (*a, *b)
    if any(map(math.isinf, ends)):
        return -math.inf, math.inf
    bits = max(int(e if e >= 0 else -1 - e).bit_length() for e in ends)
    return -(1 << bits), (1 << bits) - 1


def _shifted(op: str, a: Interval, b: Interval, dtype: str) -> Interval:
    """Bounds of a shift ``a op b``; counts beyond the width give 0, or -1 for negative right shifts."""
    kind = DTYPES[dtype]
    index = dtype == "index"
    own, bits = ((-math.inf, math.inf), 63) if index else ((float(kind.low), float(kind.high)), kind.bits)
    low, high = max(a[0], own[0]), min(a[1], own[1])
    if math.isinf(low) or math.isinf(high):
        return own
    least, most = max(b[0], 0.0), min(b[1], bits - 1.0)
    beyond = b[0] < 0 or b[1] > bits - 1
    ends = [] if least > most else [_one(op, int(x), int(n)) for x in (low, high) for n in (least, most)]
    if beyond:
        ends += [0, -1] if op == ">>" and low < 0 else [0]
    if min(ends) < own[0] or max(ends) > own[1]:
        return own  # bits are lost
    return float(min(ends)), float(max(ends))


def _one(op: str, x: int, n: int) -> int:
    return x << n if op == "<<" else x >> n


class Ranges(dict[Var, Interval]):
    """{variable: inclusive bounds}, a dict that remembers which changed after they may have been asked for; it changes
    by assignment of items alone.

    missed:  variables that had no bounds when they were asked for
    changes: name bits of the changed variables, in order
    """

    def __init__(self, ranges: Mapping[Var, Interval]) -> None:
        super().__init__(ranges)
        self.missed: set[Var] = set()
        self.changes: list[int] = []

    def __missing__(self, v: Var) -> Interval:
        self.missed.add(v)
        return UNKNOWN

    def __setitem__(self, v: Var, interval: Interval) -> None:
        if self.get(v, None if v in self.missed else interval) != interval:
            self.changes.append(v.holds & ALL_NAMES)
        super().__setitem__(v, interval)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("what was found about variables is kept until ranges[v] = (low, high)")

    setdefault = update = pop = popitem = clear = __delitem__ = __ior__ = _refuse


class FormMemo:
    """Linear forms, bounds of atoms and quotients of remainders that an Arith has found.

    without: copy without what was found about expressions that hold some bits
    """

    __slots__ = ("bounds", "forms", "quotients")

    def __init__(self) -> None:
        self.forms: dict[Expr, Linear] = {}
        self.bounds: dict[Expr, Interval] = {}
        self.quotients: dict[tuple[Expr, Expr], bool] = {}

    def without(self, bits: int) -> FormMemo:
        new = FormMemo()
        new.forms = {e: form for e, form in self.forms.items() if not e.holds & bits}
        new.bounds = {e: found for e, found in self.bounds.items() if not e.holds & bits}
        new.quotients = {
            key: found for key, found in self.quotients.items() if not (key[0].holds | key[1].holds) & bits
        }
        return new
