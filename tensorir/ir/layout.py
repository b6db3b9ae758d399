"""Layouts as index maps: strides, sizes and text.

A layout is bijective: the pieces of each dimension form a chain of divisors from 1 up, the last of them open, so that
every index has a cell of its own (``chain``). An extent that its blocks do not divide is rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.ir.build import as_expr, as_int
from tensorir.ir.tree import Buffer, Expr, Layout

Piece = tuple[int, int, int]


def permuted(order: Sequence[int], pad: int = 0) -> Layout:
    """Whole dimensions in another order, outermost first."""
    return Layout(tuple(f"d{d}" for d in range(len(order))), tuple((d, 1, 0) for d in order), pad)


def chain(pieces: Sequence[Piece]) -> bool:
    """Whether the pieces of one dimension cover it exactly once."""
    step = 1
    for n, (_, divisor, extent) in enumerate(sorted(pieces, key=lambda p: (p[1], p[2] or float("inf")))):
        if divisor != step or (extent == 0) != (n == len(pieces) - 1):
            return False
        step *= extent
    return bool(pieces)


def cells(b: Buffer) -> tuple[tuple[tuple[Piece, int], ...], int]:
    """The pieces of a buffer's dimensions, outermost first, each with its stride, and the number of elements stored."""
    dims = [as_int(n) for n in b.shape]
    layout = b.layout or permuted(range(len(dims)))
    out: list[tuple[Piece, int]] = []
    size = 1
    for n, (d, divisor, extent) in enumerate(reversed(layout.pieces)):
        out.append(((d, divisor, extent), size))
        size *= (extent or -(-dims[d] // divisor)) + (layout.pad if n == 0 else 0)
    return tuple(reversed(out)), size


def whole_blocks(shape: Sequence[Expr], layout: Layout | None) -> tuple[Expr, ...]:
    """``shape`` with each extent rounded up to whole blocks of the layout."""
    blocks = [1] * len(shape)
    for d, divisor, _ in layout.pieces if layout is not None else ():
        blocks[d] = max(blocks[d], divisor)
    return tuple(
        e if as_int(e) % n == 0 else as_expr(-(-as_int(e) // n) * n) for e, n in zip(shape, blocks, strict=True)
    )


def scattered(layout: Layout, tile: Sequence[int]) -> int | None:
    """A dimension along which a tile of these extents does not lie evenly, the last one's elements side by side."""
    for d, extent in enumerate(tile):
        if extent > 1 and sum(p[0] == d for p in layout.pieces) > 1:
            return d
    last = layout.pieces[-1][0]
    return last if tile[-1] > 1 and last != len(tile) - 1 else None


def written(layout: Layout) -> str:
    """The layout as a user writes it, ``k, j -> j/16, k, j%16``."""
    right = ", ".join(_piece(layout.names[d], divisor, extent) for d, divisor, extent in layout.pieces)
    return f"{', '.join(layout.names)} -> {right}{f' pad {layout.pad}' if layout.pad else ''}"


def _piece(name: str, divisor: int, extent: int) -> str:
    return name + (f"/{divisor}" if divisor > 1 else "") + (f"%{extent}" if extent else "")
