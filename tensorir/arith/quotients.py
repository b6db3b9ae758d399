"""Division of integers by constants, without an integer division: vectors have none."""

from __future__ import annotations

from tensorir.ir.build import as_int, cast, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Const, Expr
from tensorir.ir.visit import find


def without_division(e: Binary) -> Expr | None:
    """``a // c`` or ``a % c`` for a positive constant c: ``a >> 2, a & 3 <- a // 4, a % 4``, else by a multiplication.

    Negative ``a`` are rounded down: ``a // c == ~(~a // c)``. None for floats, other divisors, and integers of 64 bits
    unless c is a power of two.
    """
    kind = DTYPES[e.dtype].kind if e.dtype != "index" else ""
    if kind not in ("i", "u") or not isinstance(e.b, Const) or (c := as_int(e.b)) <= 0:
        return None
    if c & (c - 1) == 0:
        by = const(c.bit_length() - 1 if e.op == "//" else c - 1, e.dtype)
        return Binary(">>" if e.op == "//" else "&", e.a, by, e.dtype)
    bits = DTYPES[e.dtype].bits
    if bits > 32:
        return None
    if kind == "u":
        whole = cast(_quotient(e.a, c, bits), e.dtype)
    else:
        negative = Binary(">>", e.a, const(bits - 1, e.dtype), e.dtype)  # all bits, or none
        size = Binary("^", e.a, negative, e.dtype)
        whole = Binary("^", cast(_quotient(size, c, bits - 1), e.dtype), negative, e.dtype)
    return whole if e.op == "//" else Binary("-", e.a, Binary("*", whole, e.b, e.dtype), e.dtype)


def may_trap(e: Expr) -> bool:
    """True if a division of integers in ``e`` may be by zero: one by no positive constant."""
    found = find(e, Binary, lambda x: x.op in ("//", "%") and x.dtype != "index" and DTYPES[x.dtype].kind in "iu")
    return any(without_division(x) is None for x in found)


def _quotient(a: Expr, c: int, bits: int) -> Expr:
    """``a // c`` for 0 <= a < 2**bits, bits <= 32, as uint64: the high part of a product with ``2**n / c``, rounded up.

    Granlund and Montgomery, Division by invariant integers using multiplication, 1994, theorem 4.2.
    """
    more = (c - 1).bit_length()
    factor, wide = (1 << bits + more) // c + 1, cast(a, "uint64")

    def of(op: str, x: Expr, y: Expr | int) -> Expr:
        return Binary(op, x, y if isinstance(y, Expr) else const(y, "uint64"), "uint64")

    if bits < 32:
        return of(">>", of("*", wide, factor), bits + more)
    high = of(">>", of("*", wide, factor - (1 << bits)), bits)  # the factor's first bit would not fit
    return of(">>", of("+", high, wide), more)
