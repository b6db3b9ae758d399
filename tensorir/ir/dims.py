"""Launch-time extents: dims (Vars with ``bounds``) and expressions of them.

Loops over a dim have its upper bound as their constant extent. Axes and buffers keep the expression, so iterations
beyond it are guarded like those of an overshooting split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from tensorir.ir.build import as_expr, as_int, no_constant
from tensorir.ir.node import DIMS, Node
from tensorir.ir.structure import same
from tensorir.ir.tree import Binary, Buffer, Const, Expr, Var
from tensorir.ir.visit import find, substitute

LARGEST_DIM = 2**31 - 1
"""The largest extent of a dim: kernels take it as a signed integer of 32 bits."""


def dims_in(*given: object) -> list[Var]:
    """Return the dims in expressions or trees, each once, in order of declaration."""
    found = {v for e in given if has_dims(e) for v in find(e, Var) if v.bounds is not None}
    return sorted(found, key=lambda v: v.order)


def has_dims(e: object) -> TypeGuard[Node]:
    """True if ``e`` is an expression or a tree with dims in it, read off ``holds``."""
    return isinstance(e, Node) and bool(e.holds & DIMS)


def span(e: Expr) -> tuple[int, int]:
    """Return bounds (least, largest) of an extent over all values of its dims, by interval arithmetic.

    Raises DeclarationError (``build.no_constant``) for other variables and operations, and for ``//`` and ``%`` by an
    extent that may be less than 1.
    """
    if isinstance(e, Const):
        return int(e.value), int(e.value)
    if isinstance(e, Var) and e.bounds is not None:
        return e.bounds
    if isinstance(e, Binary) and e.op in _ENDS:
        (a, b), (c, d) = span(e.a), span(e.b)
        if e.op in ("//", "%") and c < 1:
            raise no_constant(e)
        if e.op == "%":
            return (a, b) if a >= 0 and b < c else (0, d - 1)
        found = [_ENDS[e.op](x, y) for x in (a, b) for y in (c, d)]
        return min(found), max(found)
    raise no_constant(e)


_ENDS: dict[str, Callable[[int, int], int]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "//": lambda x, y: x // y,
    "%": lambda x, y: x % y, "min": min, "max": max,
}  # fmt: skip


def most(e: Expr) -> int:
    """Return the upper bound of an extent (``span``), for allocation and constant loops."""
    return as_int(e) if isinstance(e, Const) else span(e)[1]


def most_of(b: Buffer) -> tuple[int, ...]:
    """Return a buffer's shape at the largest dims."""
    return tuple([most(e) for e in b.shape])


def at(e: object, values: Mapping[Var, int]) -> int:
    """Return the extent at given dims, as int; raises ``dim.constant`` if one is missing."""
    return as_int(substitute(as_expr(e), {v: as_expr(n) for v, n in values.items()}))


def same_extent(a: object, b: object) -> bool:
    """True if two extents are equal numbers or structurally equal expressions."""
    return same(as_expr(a), as_expr(b))


def same_shape(a: Sequence[object], b: Sequence[object]) -> bool:
    """True when two shapes have equal extents, dims included."""
    return len(a) == len(b) and all(map(same_extent, a, b))


def plain(shape: tuple[Expr, ...]) -> tuple[int | Expr, ...]:
    """A shape with its constants as ints."""
    return tuple([as_int(e) if isinstance(e, Const) else e for e in shape])
