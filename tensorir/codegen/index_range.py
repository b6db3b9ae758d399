"""True when what indices are made of fits 32 bits: arrays may be small, and the numbers on the way to a place not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from tensorir.arith.affine import Interval
from tensorir.ir.tree import Binary, Const, Expr, Let, Loop, Ramp, Role, Select, Stmt, Unary, Var
from tensorir.ir.visit import find
from tensorir.lower.form import loop_ranges

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
DATA: Interval = (0, 0)
"""The range of numbers that data give: launches check that places are in range."""

_ENDS: dict[str, Callable[[float, float], float]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "min": min, "max": max,
}  # fmt: skip


def fits_int(axes: Iterable[Loop], body: Stmt) -> bool:
    """True when the indices of a kernel, and all their parts, are integers of 32 bits, as far as loops tell."""
    return _Ranges(axes, body).fit


class _Ranges:
    """Bounds of the indices of a kernel, as wide as those of their parts make them."""

    def __init__(self, axes: Iterable[Loop], body: Stmt) -> None:
        found = loop_ranges([*axes, *find(body, Loop)])
        self.of = {v: DATA if math.isinf(ends[1]) else ends for v, ends in found.items()}
        self.of |= {v: (0, count - 1) for r in find(body, Role) for v, count in r.numbers.items()}
        self.known: dict[Expr, Interval] = {}
        self.fit = all(high < INT_MAX for _, high in self.of.values())  # a loop counts one further
        for let in find(body, Let):  # those that others are made of come first
            if let.var.dtype == "index":
                self.of[let.var] = self(let.value)
        for e in find(body, Binary) if self.fit else ():
            if e.dtype == "index":
                self(e)

    def __call__(self, e: Expr) -> Interval:
        if isinstance(e, Const):
            return int(e.value), int(e.value)
        if isinstance(e, Var):
            return self.of.get(e) or e.bounds or DATA
        if e not in self.known:
            self.known[e] = low, high = self._of(e)
            self.fit = self.fit and low >= INT_MIN and high <= INT_MAX
        return self.known[e]

    def _of(self, e: Expr) -> Interval:
        if isinstance(e, Ramp):
            low, high = self(e.base)
            return low, high + e.lanes - 1
        if isinstance(e, Unary) and e.op == "-":
            low, high = self(e.a)
            return -high, -low
        if isinstance(e, Select):
            return _hull(self(e.a), self(e.b))
        if not isinstance(e, Binary) or e.dtype != "index":
            return DATA
        a, b = self(e.a), self(e.b)
        if e.op in _ENDS:
            ends = [_ENDS[e.op](x, y) for x in a for y in b]
            return min(ends), max(ends)
        if e.op == "<<":
            return _hull(a, (a[0] * 2 ** min(b[1], 64), a[1] * 2 ** min(b[1], 64)))
        if e.op == "%" and b[0] > 0:
            return 0, b[1] - 1
        if e.op in ("|", "^"):  # bits of either
            bits = max(int(x).bit_length() for x in (*a, *b))
            return -(2**bits) if min(a[0], b[0]) < 0 else 0, 2**bits - 1
        return _hull(a, _hull(b, DATA))  # quotients, and fewer bits, are no larger


def _hull(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])
