"""Values of expressions where conditions of masks fail, for the proof that an iteration without a term does nothing.

``tir.where(seen, score, -inf)`` is minus infinity where ``seen`` fails, so exp of it, less a finite number, is 0, and 0
times a value is 0. Elements that are masked out count as finite numbers: a kernel that skips them does not read
them, so that an infinity or a NaN there is not multiplied by 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from fractions import Fraction
from typing import Self

from tensorir.arith.affine import same, structure
from tensorir.arith.conditions import contrary
from tensorir.ir.build import binary, call, cast, const, select, unary
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.shared import once
from tensorir.ir.tree import Binary, Buffer, Call, Cast, Const, Expr, Load, Select, Stmt, Store, Unary, Update
from tensorir.ir.visit import Rewriter, find

Known = dict[float, Expr]
"""Values that an expression is known to have, each with the condition that holds wherever it may have another one."""

NEVER_HOLDS, ALWAYS_HOLDS = const(False, "bool"), const(True, "bool")
_FINITE = frozenset({"abs", "ceil", "cos", "erf", "exp", "exp2", "floor", "mulhi", "power", "round", "sin", "tanh"})
"""Functions of what is finite that are finite, where nothing overflows."""
_POWERS: dict[str, Callable[[float], float]] = {"exp": math.exp, "exp2": lambda x: 2.0**x}
_LARGEST_FLOATS = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "bfloat16": 3.3895e38,
    "float16": 65504,
}
"""The largest finite float of each type, rounded down; of 8 bits 448 and more."""
SMALL_WHOLE = 16
"""Whole numbers up to this one are in all types of floats, those of 8 bits too."""
_ABSORBING = {"min": -math.inf, "max": math.inf, "and": 0, "or": 1}


class Masked:
    """Values of expressions under masks; ``unbounded`` says which buffers may hold an infinity that no input had."""

    def __init__(self, unbounded: Callable[[Buffer], bool]) -> None:
        self.unbounded = unbounded

    @once
    def known(self, e: Expr) -> Known:
        """The values of ``e``."""
        if isinstance(e, Const):
            return {v: NEVER_HOLDS} if _holds(e.dtype, v := _number(e.value)) else {}
        if isinstance(e, Cast):
            return {v: c for v, c in self.known(e.a).items() if _holds(e.dtype, v)}
        if isinstance(e, Unary) and e.op == "-" and is_float(e.dtype):
            return {-v: c for v, c in self.known(e.a).items()}
        if isinstance(e, Call) and e.fn in _POWERS:
            return {_POWERS[e.fn](v): c for v, c in self.known(e.args[0]).items() if v in (0, -math.inf)}
        if isinstance(e, Select):
            return self._chosen(e)
        return _first_of(self._combined(e)) if isinstance(e, Binary) and e.op not in ("//", "%") else {}

    def _chosen(self, e: Select) -> Known:
        a, b, other = self.known(e.a), self.known(e.b), contrary(e.cond)
        out: Known = {}
        for v in dict.fromkeys((*a, *b)):
            if v in a and v in b:
                out[v] = binary("or", binary("and", e.cond, a[v]), binary("and", other, b[v]))
            else:
                out[v] = binary("or", other, a[v]) if v in a else binary("or", e.cond, b[v])
        return out

    def _combined(self, e: Binary) -> Iterator[tuple[float, Expr]]:
        a, b = self.known(e.a), self.known(e.b)
        for v, c in a.items():
            if (made := _absorbed(e.op, v, left=True)) is not None and not self.may_be_infinite(e.b):
                yield made, c
        for w, d in b.items():
            if (made := _absorbed(e.op, w, left=False)) is not None and not self.may_be_infinite(e.a):
                yield made, d
        for v, c in a.items():
            for w, d in b.items():
                made = _folded(e.op, v, w)
                if made is not None and _holds(e.dtype, made):
                    yield made, binary("or", c, d)

    @once
    def may_be_infinite(self, e: Expr) -> bool:
        """True when ``e`` may be infinite where no input is and nothing overflows."""
        if isinstance(e, Const):
            return is_float(e.dtype) and abs(_number(e.value)) > _LARGEST_FLOATS.get(e.dtype, 448)
        if isinstance(e, Load):
            return self.unbounded(e.buffer)
        if isinstance(e, Call) and e.fn in _POWERS:
            return False
        if (isinstance(e, Call) and e.fn not in _FINITE) or _divides(e):
            return True  # log(0), 1 / 0, sqrt(-1): no infinity of the inputs, but one of the program's own
        if isinstance(e, Select):
            left_out = _excluded(e)
            return any(self.may_be_infinite(x) for x in (e.a, e.b) if x is not left_out)
        return any(self.may_be_infinite(x) for x in e.children() if isinstance(x, Expr))


def _divides(e: Expr) -> bool:
    """True when ``e`` divides floats by what may be 0."""
    if not isinstance(e, Binary) or e.op not in ("/", "%") or not is_float(e.dtype):
        return False
    return not isinstance(e.b, Const) or e.b.value == 0


def settled(e: Expr, held: dict[Hashable, bool] | None = None) -> Expr:
    """``e`` with choices made that are known, x - x as 0 and the powers of 0 as 1."""
    return _Settle(held or {})(e)  # type: ignore[no-any-return]


class _Settle(Rewriter):
    def __init__(self, held: dict[Hashable, bool]) -> None:
        self.held = held

    def on_Select(self, n: Select) -> Expr:
        cond, key = self(n.cond), structure(n.cond)
        if key in self.held:
            return self(n.a if self.held[key] else n.b)  # type: ignore[no-any-return]
        a, b = self._where(n, key, True)(n.a), self._where(n, key, False)(n.b)
        return a if same(a, b) else select(cond, a, b)

    def _where(self, n: Select, key: Hashable, value: bool) -> Self:
        def learn(inside: Self) -> None:
            inside.held = {**self.held, key: value}

        return self.on_side(n.cond, not value, learn)

    def on_Binary(self, n: Binary) -> Expr:
        a, b = self(n.a), self(n.b)
        if n.op == "-" and is_float(n.dtype) and same(a, b):
            return const(0, n.dtype)
        if n.op in ("*", "/") and is_float(n.dtype) and isinstance(a, Const) and a.value == 0 and isinstance(b, Const):
            return a
        if n.op == "*" and is_float(n.dtype) and isinstance(b, Const) and b.value == 0 and isinstance(a, Const):
            return b
        return binary(n.op, a, b)

    def on_Unary(self, n: Unary) -> Expr:
        a = self(n.a)
        return const(0, n.dtype) if n.op == "-" and isinstance(a, Const) and a.value == 0 else unary(n.op, a)

    def on_Cast(self, n: Cast) -> Expr:
        a = self(n.a)
        return const(a.value, n.dtype) if isinstance(a, Const) and a.value in (0, 1) else cast(a, n.dtype)

    def on_Call(self, n: Call) -> Expr:
        args = [self(a) for a in n.args]
        zero = n.fn in _POWERS and isinstance(args[0], Const) and args[0].value == 0
        return const(1, n.dtype) if zero else call(n.fn, *args)


def unbounded_in(body: Stmt) -> Callable[[Buffer], bool]:
    """Which buffers may hold an infinity that no input had: results of maxima and minima, and what chooses one."""
    found: dict[Buffer, bool] = {}
    makers: dict[Buffer, list[Expr]] = {}
    for s in find(body, (Store, Update)):
        if isinstance(s, Store):
            makers.setdefault(s.buffer, []).append(s.value)
        elif isinstance(s, Update):
            for b, v, i in zip(s.buffers, s.values, s.combiner.identity, strict=True):
                makers.setdefault(b, []).extend((v, i))

    def unbounded(b: Buffer) -> bool:
        if b not in found:
            found[b] = False  # what is made of itself adds nothing
            found[b] = any(map(Masked(unbounded).may_be_infinite, makers.get(b, ())))
        return found[b]

    return unbounded


def _excluded(e: Select) -> Expr | None:
    """The side of ``where(x == c, a, x)``, c infinite, that is never c, so that it is no infinity of the program's."""
    cond = e.cond
    if isinstance(cond, Binary) and cond.op in ("==", "!="):
        for x, c in ((cond.a, cond.b), (cond.b, cond.a)):
            side = e.b if cond.op == "==" else e.a
            if isinstance(c, Const) and isinstance(c.value, float) and math.isinf(c.value) and same(x, side):
                return side
    return None


def _first_of(pairs: Iterable[tuple[float, Expr]]) -> Known:
    out: Known = {}
    for v, c in pairs:
        out.setdefault(v, c)
    return out


def _number(value: object) -> float:
    assert isinstance(value, int | float | Fraction)
    return float(value) if isinstance(value, Fraction) else value


def _holds(dtype: str, value: float) -> bool:
    """True when a type has exactly this value: floats of all types have infinities and small whole numbers."""
    if is_float(dtype):
        return math.isinf(value) or dtype == "float64" or (value == int(value) and abs(value) <= SMALL_WHOLE)
    whole = dtype != "bool" and math.isfinite(value) and value == int(value)
    return whole and DTYPES[dtype].low <= value <= DTYPES[dtype].high


def _folded(op: str, v: float, w: float) -> float | None:
    """``v op w`` of two known numbers; None where it is none, or not exact."""
    if op == "/":
        return v / w if w and not (math.isinf(v) and math.isinf(w)) else None
    done: dict[str, Callable[[], float]] = {
        "+": lambda: v + w, "-": lambda: v - w, "*": lambda: v * w, "min": lambda: min(v, w), "max": lambda: max(v, w),
    }  # fmt: skip
    made = done[op]() if op in done else math.nan
    return None if math.isnan(made) else made


def _absorbed(op: str, v: float, left: bool) -> float | None:
    """The value of ``v op x`` (``x op v`` where v is not on the left) for all finite x; None where it depends on x."""
    if op in ("+", "-") and math.isinf(v):
        return v if left or op == "+" else -v
    if op == "*" and v == 0:
        return v
    return v if _ABSORBING.get(op) == v else None
