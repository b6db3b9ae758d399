"""Evaluates an expression at given axis values, exactly or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Call, Cast, Const, Expr, Select, Unary, Var

Number = int | Fraction


class NotExactError(Exception):
    """Raised if a value may be rounded, or comes from memory."""


def evaluate(e: Expr, env: Mapping[Var, int]) -> Number:
    """Exact value of ``e`` at axis values ``env``: an int (0 or 1 for conditions), or a Fraction for floats.

    Integers wrap around; one divided by 0 is 0. Raises NotExactError for loads, variables without a value, infinities,
    NaN, rounded results and functions that round.
    """
    match e:
        case Const():
            return _of_type(_exact(e.value), e.dtype)
        case Var() if e in env:
            return env[e]
        case Cast():
            x = evaluate(e.a, env)
            return int(x != 0) if e.dtype == "bool" else _of_type(x if _float(e.dtype) else math.trunc(x), e.dtype)
        case Select():
            return evaluate(e.a if evaluate(e.cond, env) else e.b, env)
        case Unary():
            return _of_type(_UNARY[e.op](evaluate(e.a, env)), e.dtype)
        case Binary():
            return _of_type(_binary(e, evaluate(e.a, env), evaluate(e.b, env)), e.dtype)
        case Call() if e.fn in _CALLS:
            return _of_type(_CALLS[e.fn](*(evaluate(a, env) for a in e.args)), e.dtype)
        case Call(fn="mulhi"):
            a, b = (int(evaluate(x, env)) for x in e.args)
            return a * b >> DTYPES[e.dtype].bits
    raise NotExactError


def _float(dtype: str) -> bool:
    return DTYPES[dtype].kind == "f"


def _exact(value: Any) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotExactError
        return Fraction(value)
    return value if isinstance(value, Fraction) else int(value)


def _of_type(x: Number, dtype: str) -> Number:
    """``x`` as a value of ``dtype``: integers wrap around; raises NotExactError if a float needs rounding."""
    kind = DTYPES[dtype]
    if kind.kind == "f":
        q = Fraction(x)
        size = abs(q.numerator)
        digits = size.bit_length() - ((size & -size).bit_length() - 1 if size else 0)
        small = q.denominator & (q.denominator - 1) == 0 and q.denominator.bit_length() < 16
        if digits > kind.digits or not small or size.bit_length() > 16 + kind.digits:
            raise NotExactError
        return q
    if kind.kind == "b" or dtype == "index":
        return int(x)
    return (int(x) - kind.low) % (1 << kind.bits) + kind.low


def _binary(e: Binary, a: Number, b: Number) -> Number:
    if e.op in ("<<", ">>"):
        return _shifted(e.op, int(a), int(b), DTYPES[e.dtype].bits)
    if e.op in ("/", "//", "%") and b == 0:
        if _float(e.dtype):
            raise NotExactError
        return 0
    return _OPS[e.op](a, b)  # type: ignore[no-any-return]


def _shifted(op: str, a: int, b: int, bits: int) -> int:
    """``a << b`` or ``a >> b`` as NumPy has it for integers of ``bits`` bits; for other counts 0, or -1 for negative
    right shifts.
    """
    if 0 <= b < bits:
        return a << b if op == "<<" else a >> b
    return -1 if op == ">>" and a < 0 else 0


_UNARY: dict[str, Any] = {"-": lambda a: -a, "not": lambda a: int(not a), "~": lambda a: ~a}
_CALLS: dict[str, Any] = {"abs": abs, "floor": math.floor, "ceil": math.ceil, "round": round}
_OPS: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: Fraction(a) / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "min": min, "max": max,
    "<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b), "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b), "and": lambda a, b: int(bool(a and b)), "or": lambda a, b: int(bool(a or b)),
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}  # fmt: skip
