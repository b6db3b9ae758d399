"""Division of integers by constants, without an integer division: vectors have none."""

from __future__ import annotations

from tensorir.ir.build import as_int, cast, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Call, Const, Expr
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
        whole = cast(_quotient(e.a, c, bits, bits), e.dtype)
    else:
        negative = Binary(">>", e.a, const(bits - 1, e.dtype), e.dtype)  # all bits, or none
        size = Binary("^", e.a, negative, e.dtype)
        whole = Binary("^", cast(_quotient(size, c, bits - 1, bits), e.dtype), negative, e.dtype)
    return whole if e.op == "//" else Binary("-", e.a, Binary("*", whole, e.b, e.dtype), e.dtype)


def may_trap(e: Expr) -> bool:
    """True if a division of integers in ``e`` may be by zero: one by no positive constant."""
    found = find(e, Binary, lambda x: x.op in ("//", "%") and x.dtype != "index" and DTYPES[x.dtype].kind in "iu")
    return any(without_division(x) is None for x in found)


def _quotient(a: Expr, c: int, bits: int, width: int) -> Expr:
    """``a // c`` for 0 <= a < 2**bits, in integers of ``width`` bits or of the next wider type: the high part of a
    product with ``2**n / c``, rounded up, for the smallest n that is exact.

    Granlund and Montgomery, Division by invariant integers using multiplication, 1994, theorem 4.2.
    """
    n = next(n for n in range(width, 2 * width + 1) if -(1 << n) % c <= 1 << n - bits)
    factor, dtype = -(-(1 << n) // c), f"uint{width if width == 16 else 2 * width}"
    carry = factor >> width  # the factor's first bit, which does not fit

    def of(op: str, x: Expr, y: Expr | int) -> Expr:
        return Binary(op, x, y if isinstance(y, Expr) else const(y, dtype), dtype)

    a, factor = cast(a, dtype), factor - (carry << width)
    if width == 16:  # vectors have the high half of a product
        high: Expr = Call("mulhi", (a, const(factor, dtype)), dtype)
    elif not carry:
        return of(">>", of("*", a, factor), n)
    else:
        high = of(">>", of("*", a, factor), width)
    if not carry:
        return of(">>", high, n - width)
    return of(">>", of("+", of(">>", of("-", a, high), 1), high), n - width - 1)
