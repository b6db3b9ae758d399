"""What a term is where operands are zero."""

from __future__ import annotations

from tensorir.ir.tree import Binary, Buffer, Cast, Const, Expr, Load, Select


def at_zero(e: Expr, zeros: set[Buffer]) -> object:
    """The value of a term where reads of ``zeros`` are 0, in exact arithmetic; None where it depends on others."""
    if isinstance(e, Load):
        return 0 if e.buffer in zeros else None
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Cast):
        return at_zero(e.a, zeros)
    if isinstance(e, Select):
        a, b = at_zero(e.a, zeros), at_zero(e.b, zeros)
        return a if a == b else None
    if isinstance(e, Binary) and e.op in ("+", "-", "*"):
        a, b = at_zero(e.a, zeros), at_zero(e.b, zeros)
        if e.op == "*" and (a == 0 or b == 0):
            return 0
        if isinstance(a, int | float) and isinstance(b, int | float):
            return a + b if e.op == "+" else a - b if e.op == "-" else a * b
    return None
