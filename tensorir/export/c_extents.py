"""Arithmetic on extents (ints or texts with dims), and their translation to C."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from tensorir.codegen.source import DimRange
from tensorir.errors import TensorIRError, refuse
from tensorir.export.program import ExportError
from tensorir.ir.extents import Extent, line

MAX_BYTES = 2**62
"""Exclusive bound of bytes and numbers of elements, so that no sum of a few of them overflows."""
HELPERS = {
    "tir_quotient": "{ return a / b - (a % b < 0); }",
    "tir_remainder": "{ return a % b + (a % b < 0 ? b : 0); }",
    "tir_least": "{ return a < b ? a : b; }",
    "tir_most": "{ return a > b ? a : b; }",
}
"""Functions that expressions call: C's / and % round towards zero, and b is positive."""


def times(factors: Iterable[Extent]) -> Extent:
    """Return the product of extents, an int or text with dims."""
    given = list(factors)
    number = prod(e for e in given if isinstance(e, int))
    words = [_wrapped(e) for e in given if isinstance(e, str)]
    if not words or not number:
        return number
    return " * ".join([*words, str(number)] if number != 1 else words) if len(words) > 1 or number != 1 else words[0]


def plus(a: Extent, b: Extent) -> Extent:
    """Return the sum of two extents, an int or text with dims."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return a if b == 0 else b if a == 0 else f"{a} + {b}"


def rounded(a: Extent, unit: int) -> Extent:
    """Return ``a`` rounded up to a multiple of ``unit``."""
    return -(-a // unit) * unit if isinstance(a, int) else f"({a} + {unit - 1}) // {unit} * {unit}"


def _wrapped(e: str) -> str:
    return e if e.isidentifier() else f"({e})"


def variable(dim: str) -> str:
    """Name of the C variable for a dim."""
    return f"dim_{dim}"


class InC:
    """Translator of extents to C: ``InC(dims)(extent)`` is a C expression.

    dims: symbolic dims with their ranges, which decide if C's division may replace Python's
    """

    def __init__(self, dims: Sequence[DimRange]) -> None:
        self.ranges = {d.name: (d.low, d.high) for d in dims}

    def __call__(self, extent: Extent) -> str:
        """Return an extent as a C expression, parenthesized if necessary.

        Raises ExportError ``export.dims`` for an extent that may reach ``MAX_BYTES``; ValueError for text other than
        names of dims, ints, ``+ - * // %``, ``min`` and ``max``.
        """
        if isinstance(extent, int):
            return str(extent)
        text, low, high, atom = self._said(ast.parse(extent, mode="eval").body)
        if max(-low, high) >= MAX_BYTES:
            raise too_large(extent, high)
        return text if atom else f"({text})"

    def _said(self, e: ast.expr) -> tuple[str, int, int, bool]:
        """(C text, least value, largest value, True if the text needs no parentheses) of an expression."""
        match e:
            case ast.Constant(value=int(n)):
                return (str(n) if abs(n) < 2**31 else f"INT64_C({n})"), n, n, n >= 0
            case ast.Name(id=name):
                return variable(name), *self.ranges[name], True
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return self._said(ast.BinOp(ast.Constant(0), ast.Sub(), a))
            case ast.BinOp(left=a, op=op, right=b):
                return self._binary(type(op), self._said(a), self._said(b))
            case ast.Call(func=ast.Name(id=name), args=[a, b]):
                (x, low, high, _), (y, least, most, _) = self._said(a), self._said(b)
                ends, called = (min, "tir_least") if name == "min" else (max, "tir_most")
                return f"{called}({x}, {y})", ends(low, least), ends(high, most), True
        raise ValueError(f"{ast.unparse(e)} is no expression of extents")

    def _binary(
        self, op: type, left: tuple[str, int, int, bool], right: tuple[str, int, int, bool]
    ) -> tuple[str, int, int, bool]:
        (x, a, b, atom), (y, c, d, other) = left, right
        tight, wide = (x if atom else f"({x})"), (y if other else f"({y})")
        if op in (ast.Add, ast.Sub):
            ends = (a + c, b + d) if op is ast.Add else (a - d, b - c)
            return f"{x} {'+' if op is ast.Add else '-'} {wide}", *ends, False
        if op is ast.Mult:
            found = [m * n for m in (a, b) for n in (c, d)]
            return f"{tight} * {wide}", min(found), max(found), False
        found = [m // n for m in (a, b) for n in (c, d)]
        ends = (min(found), max(found)) if op is ast.FloorDiv else (0, d - 1)
        sign, name = ("/", "tir_quotient") if op is ast.FloorDiv else ("%", "tir_remainder")
        return (f"{name}({x}, {y})", *ends, True) if a < 0 else (f"{tight} {sign} {wide}", *ends, False)


def too_large(extent: Extent, most: int) -> TensorIRError:
    """ExportError, not raised here, for an extent that may be as large as ``most``: its bytes overflow in C."""
    message = f"{extent} may be {most}, and exported C counts bytes and elements below 2^62"
    return refuse(ExportError, "export.dims", message, hint="a smaller high= of the dims")


def helpers(text: str) -> list[str]:
    """Return C definitions of the functions in ``HELPERS`` that ``text`` calls."""
    called = [name for name in HELPERS if f"{name}(" in text]
    return [f"static inline int64_t {name}(int64_t a, int64_t b) {HELPERS[name]}" for name in called]


def open_extents(shapes: Iterable[Sequence[Extent]]) -> list[str]:
    """Return the distinct extents in ``shapes`` that depend on dims; tables refer to item k as -1 - k."""
    return list(dict.fromkeys(e for shape in shapes for e in shape if isinstance(e, str)))


def coded(extent: Extent, known: Sequence[str]) -> int:
    """Return a constant extent itself, or -1 - k for an extent that is item k of ``known``."""
    return extent if isinstance(extent, int) else -1 - known.index(extent)


def least(gathers: Sequence[Mapping[str, object]], name: str) -> Extent:
    """Return the smallest constant limit on the elements of argument ``name``, for the index check of framework
    bindings; without a constant one, the first limit that depends on dims; 0 if there is none. Limits on parts of the
    argument are ignored.

    gathers: entries of ``manifest["gathers"]``
    """
    limits = [g["limit"] for g in gathers if g["param"] == name and not g.get("part")]
    opened = (n for n in limits if isinstance(n, str))
    return min((n for n in limits if isinstance(n, int)), default=next(opened, 0))


class Teller(NamedTuple):
    """An array dimension whose extent ``a * dim + b`` determines the dim named ``dim``: dimension ``axis`` of array
    number ``array``.
    """

    dim: str
    array: int
    axis: int
    a: int
    b: int


def tellers(shapes: Iterable[Sequence[Extent]]) -> list[Teller]:
    """Return the array dimensions that determine dims; those whose extent is a dim alone come first (as in
    ``ir.extents.told``).
    """
    own, others = list[Teller](), list[Teller]()
    for n, shape in enumerate(shapes):
        for d, e in enumerate(shape):
            if (solved := line(e)) is not None:
                (own if isinstance(e, str) and e.isidentifier() else others).append(
                    Teller(solved[0], n, d, *solved[1:])
                )
    return [*own, *others]
