"""Evaluates reduction terms at zero operands: padding of packed operands must contribute the identity."""

from __future__ import annotations

from collections.abc import Collection

from tensorir.ir.dtypes import DTYPES, is_float, keeps_zero
from tensorir.ir.tree import Binary, Buffer, Cast, Const, Expr, Load, Select, Var
from tensorir.ir.visit import find


def zeroed(term: Expr, axes: Collection[Var], packed: Collection[Buffer]) -> set[Buffer]:
    """Packed operands of ``term`` that are 0 beyond the end of any of ``axes``: those indexed by all of them."""
    return {x.buffer for x in find(term, Load) if x.buffer in packed and set(axes) <= set(find(x, Var))}


def made_up(term: Expr, identity: Const, axes: Collection[Var], packed: Collection[Buffer]) -> bool:
    """True if the packed operands' zeros make ``term`` the identity beyond the end of ``axes``, so it needs no
    condition.
    """
    return bool(at_zero(term, zeroed(term, axes, packed)) == identity.value)


def at_zero(e: Expr, zeros: set[Buffer]) -> object:
    """Value of ``e`` in exact arithmetic if loads from ``zeros`` give 0; None if unknown: it depends on other loads or
    on variables, has other operations than +, -, *, casts and selects, or wraps around.
    """
    if isinstance(e, Load):
        return 0 if e.buffer in zeros else None
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Cast):
        value = at_zero(e.a, zeros)
        return _within(value, e.dtype) if keeps_zero(e.a.dtype, e.dtype) else None
    if isinstance(e, Select):
        a, b = at_zero(e.a, zeros), at_zero(e.b, zeros)
        return a if a == b else None
    if isinstance(e, Binary) and e.op in ("+", "-", "*"):
        a, b = at_zero(e.a, zeros), at_zero(e.b, zeros)
        if e.op == "*" and (a == 0 or b == 0):
            return 0
        if isinstance(a, int | float) and isinstance(b, int | float):
            return _within(a + b if e.op == "+" else a - b if e.op == "-" else a * b, e.dtype)
    return None


def _within(value: object, dtype: str) -> object:
    """``value`` if in range of ``dtype``; None if it would wrap around."""
    if not isinstance(value, int | float) or is_float(dtype) or dtype in ("bool", "index"):
        return value
    values, signed = 1 << DTYPES[dtype].bits, not dtype.startswith("u")
    low = -(values // 2) if signed else 0
    return value if low <= value < low + values else None
