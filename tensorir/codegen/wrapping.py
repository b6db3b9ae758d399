"""Prints signed integer arithmetic that wraps around, where plain C would be undefined on overflow.

Compilers assume no overflow: they turn ``a + 1 > a`` into true, the sign of a sum of two positive numbers into 0, and
drop carries of ``a`` plus the least number. If only a value's bits matter (it is added, stored or shifted left), plain
text is emitted. If it is compared, divided, selected, masked, shifted right or converted, or the least number is added,
it is computed with unsigned numbers; also if stored in an array whose elements the same kernel uses in these ways
(``looked_at``), as compilers track values through arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tensorir.codegen.dialect import Dialect
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.lanes import lanes_of
from tensorir.ir.node import Node
from tensorir.ir.tree import Binary, Buffer, Const, Expr, Load, Stmt, Store, Unary
from tensorir.ir.visit import find

_SHIFT, _SUM, _PRODUCT, _UNARY = 9, 10, 11, 12


class Printer(Protocol):
    """Interface of a printer of expressions: ``printer(e, outer)`` is the C text of ``e``, in parentheses if it binds
    less tightly than the precedence ``outer`` of the enclosing operator.
    """

    d: Dialect

    def __call__(self, e: Expr, outer: int = 0) -> str: ...

    def vector_type(self, dtype: str, lanes: int) -> str: ...

    def wraps(self, e: Expr) -> bool:
        """True if ``e`` may overflow and is printed as a C operator."""
        ...


def may_overflow(e: Expr, anywhere: bool = False) -> bool:
    """True if ``e`` is signed 32- or 64-bit ``+``, ``-`` or ``*`` on data, not indices (narrower types compute in int
    and are cast).

    anywhere: left shifts and vector arithmetic count as well
    """
    kind = DTYPES[e.dtype]
    if kind.kind != "i" or kind.bits < 32 or e.dtype == "index" or (lanes_of(e) > 1 and not anywhere):
        return False
    if isinstance(e, Binary) and e.op == "<<":
        return anywhere
    return (isinstance(e, Binary) and e.op in ("+", "-", "*")) or (isinstance(e, Unary) and e.op == "-")


def adds_the_least(e: Expr) -> bool:
    """True if a constant operand of ``e`` is the least number of its type, such as INT_MIN."""
    sides = (e.a, e.b) if isinstance(e, Binary) else ()
    return any(isinstance(x, Const) and x.value == DTYPES[x.dtype].low for x in sides)


def wrapped(printer: Printer, e: Expr) -> str:
    """C text of ``e``, which may overflow, computed unsigned and cast back: its value wraps around modulo 2**bits."""
    return f"({printer.vector_type(e.dtype, lanes_of(e))})({_modular(printer, e, 0)})"


def _modular(printer: Printer, e: Expr, outer: int) -> str:
    """C text of ``e`` computed in the unsigned type of the same width.

    outer: precedence of the enclosing operator
    """
    if isinstance(e, Unary) and printer.wraps(e):
        inner = _modular(printer, e.a, _UNARY)
        return f"-({inner})" if inner.startswith("-") else f"-{inner}"
    if isinstance(e, Binary) and printer.wraps(e):
        p = {"*": _PRODUCT, "<<": _SHIFT}.get(e.op, _SUM)
        # few people know what holds tighter than a shift
        left, after = (_UNARY, _UNARY) if e.op == "<<" else (p, p + 1)
        modular = printer.wraps(e.b) or lanes_of(e) > 1
        # as the left side is, which is enough; vectors are of one type
        right = _modular(printer, e.b, after) if modular else printer(e.b, after)
        text = f"{_modular(printer, e.a, left)} {e.op} {right}"
        return f"({text})" if p < outer else text
    return f"({printer.vector_type(f'u{e.dtype}', lanes_of(e))}){printer(e, _UNARY)}"


def looked_at(body: Stmt) -> frozenset[Buffer]:
    """Arrays of ``body`` whose loaded values are compared, divided, converted or otherwise need to be exact. The values
    of all other arrays are only added, multiplied and stored, so that their low bits are enough.
    """
    if not any(isinstance(e, Expr) and may_overflow(e) for e in find(body, (Binary, Unary))):
        return frozenset()
    found: set[Buffer] = set()
    while True:
        more = set(_looked_at(body, found)) - found
        if not more:
            return frozenset(found)
        found |= more


def _looked_at(n: Node, known: set[Buffer]) -> Iterator[Buffer]:
    """Yield arrays loaded under ``n`` whose exact values matter.

    known: arrays found so far: values stored to them matter as their loads do
    """
    for child in n.children():
        if isinstance(child, Expr):
            only_bits = isinstance(n, Store) and child is n.value and n.buffer not in known
            yield from _loads(child, not only_bits)
        else:
            yield from _looked_at(child, known)


def _loads(e: Expr, whole: bool) -> Iterator[Buffer]:
    """Yield arrays loaded by ``e`` whose exact values matter. ``whole``: True if the exact value of ``e`` itself
    matters
    """
    if isinstance(e, Load) and whole:
        yield e.buffer
    keeps_bits = isinstance(e, Binary | Unary) and e.op in ("+", "-", "*", "<<")
    for child in e.children():
        yield from _loads(child, whole or not keeps_bits)
