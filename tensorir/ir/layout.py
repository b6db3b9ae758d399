"""Buffer layouts as bijective index maps: strides, sizes, swizzles, register fragments.

Bijective: the pieces of each dimension form a chain of divisors from 1 up, the last one unbounded, so that every index
has its own storage element (``chain``). Extents that blocks do not divide are rounded up. A storage dimension may be
xored with pieces stored unchanged in others, which is bijective on bits and avoids bank conflicts (swizzles, as in Zhou
et al., "Linear layouts", ASPLOS 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorir.ir.build import as_expr, as_int, binary
from tensorir.ir.dims import most
from tensorir.ir.tree import Buffer, Const, Expr, Layout

LANES_OF_WARP = 32
COLLECTIVES = (LANES_OF_WARP, 128)
"""Lanes that may hold a fragment: those of a warp, or of a warpgroup."""

Piece = tuple[int, int, int]
Fold = tuple[int, int, int, int]


def permuted(order: Sequence[int], pad: int = 0) -> Layout:
    """Layout that stores the dimensions in ``order``, outermost first."""
    return Layout(tuple(f"d{d}" for d in range(len(order))), tuple((d, 1, 0) for d in order), pad)


def chain(pieces: Sequence[Piece]) -> bool:
    """True if pieces of one dimension partition its index exactly."""
    step = 1
    for n, (_, divisor, extent) in enumerate(sorted(pieces, key=lambda p: (p[1], p[2] or float("inf")))):
        if divisor != step or (extent == 0) != (n == len(pieces) - 1):
            return False
        step *= extent
    return bool(pieces)


@dataclass(frozen=True)
class Cell:
    """One storage dimension: its index piece, pieces xored onto it, and its stride."""

    piece: Piece
    folds: tuple[Fold, ...]
    stride: Any


def cells(b: Buffer) -> tuple[tuple[Cell, ...], int | Expr]:
    """(storage dimensions, number of stored elements) of a buffer, outermost first; per thread for a fragment. Ints, or
    expressions of dims.
    """
    dims: list[Any] = [as_int(n) if isinstance(n, Const) else n for n in b.shape]
    layout = b.layout or permuted(range(len(dims)))
    folds = layout.folds or ((),) * len(layout.pieces)
    out: list[Cell] = []
    size: Any = 1
    for n, (piece, onto) in enumerate(reversed(list(zip(layout.pieces, folds, strict=True))[layout.lanes :])):
        out.append(Cell(piece, onto, size))
        d, divisor, extent = piece
        length = extent or (dims[d] if divisor == 1 else (dims[d] + divisor - 1) // divisor)
        if onto:  # what is xored stays below a power of two
            length = (
                1
                << (
                    max(
                        (length if isinstance(length, int) else most(length)) - 1,
                        *((e - 1) * scale for _, _, e, scale in onto),
                    )
                ).bit_length()
            )
        size *= length + (layout.pad if n == 0 else 0)
    return tuple(reversed(out)), size


def lane_place(layout: Layout, dims: Sequence[int], index: Sequence[int]) -> tuple[int, int]:
    """(lane, register) that hold element ``index`` of a fragment; the first lane if several do."""
    out = [0, 0]
    for n, (d, divisor, extent) in enumerate(layout.pieces):
        size = extent or -(-dims[d] // divisor)
        kept = n >= layout.lanes
        out[kept] = out[kept] * size + (index[d] // divisor % size if d >= 0 else 0)
    return out[0], out[1]


def lane_places(layout: Layout, dims: Sequence[int]) -> list[tuple[int, int]]:
    """(lane, register) of each element, in row-major order; each dimension adds its share to both numbers."""
    shares = [[[0, 0] for _ in range(n)] for n in dims]
    weight = [1, 1]
    for n, (d, divisor, extent) in reversed(list(enumerate(layout.pieces))):
        size, kept = extent or -(-dims[d] // divisor), n >= layout.lanes
        for i, share in enumerate(shares[d] if d >= 0 else ()):
            share[kept] += i // divisor % size * weight[kept]
        weight[kept] *= size
    places = [(0, 0)]
    for of_dim in shares:
        places = [(lane + x, register + y) for lane, register in places for x, y in of_dim]
    return places


@dataclass(frozen=True)
class SwizzledRows:
    """Swizzled layout of 128-byte rows: their 16-byte chunks are permuted by the row number (PTX ISA, swizzling modes;
    CUTLASS's ``Swizzle<3, 4, 3>``).

    row:    elements per such row;  rows, columns: buffer dimensions that index rows, and elements in a row
    eight:  stride in elements over eight rows;  panel: stride between groups of columns that fill a row, or 0
    """

    row: int
    rows: int
    columns: int
    eight: int
    panel: int


def swizzled_rows(b: Buffer, size: int) -> SwizzledRows | None:
    """SwizzledRows of a buffer's last two dimensions (``size`` bytes per element); None if not swizzled so.

    Raises ``dim.constant`` for extents that depend on dims.
    """
    dims = [as_int(n) for n in b.shape]
    rows, columns, piece = len(dims) - 2, len(dims) - 1, 16 // size
    if rows < 0 or b.layout is None or b.layout.pad:
        return None
    found = {(c.piece[0], c.piece[1]): c for c in cells(b)[0]}
    inner, outer = found.get((columns, 1)), found.get((columns, piece))
    swizzled = outer is not None and outer.folds == ((rows, 1, 8, 1),) and outer.stride == piece
    if inner is None or outer is None or not swizzled or inner.piece[2] != piece or inner.folds or inner.stride != 1:
        return None
    if (outer.piece[2] or -(-dims[columns] // piece)) != 8 or any(c.folds for c in found.values() if c is not outer):
        return None
    first, panel = found.get((rows, 1)), found.get((columns, 8 * piece))
    if first is None or first.stride != 8 * piece or first.piece[2] not in (0, 8):
        return None
    eighth = found.get((rows, 8)) if first.piece[2] == 8 else None
    return SwizzledRows(8 * piece, rows, columns, eighth.stride if eighth else 64 * piece, panel.stride if panel else 0)


def recoverable(layout: Layout) -> bool:
    """True if folds use only pieces stored unchanged elsewhere, so that the map stays bijective."""
    plain = [p for p, onto in zip(layout.pieces, layout.folds, strict=True) if not onto]
    return all(any(_covers(p, f) for p in plain) for onto in layout.folds for f in onto)


def _covers(p: Piece, fold: Fold) -> bool:
    d, divisor, extent, _ = fold
    return p[0] == d and divisor % p[1] == 0 and (p[2] == 0 or p[1] * p[2] % (divisor * extent) == 0)


def whole_blocks(shape: Sequence[Expr], layout: Layout | None) -> tuple[Expr, ...]:
    """``shape`` rounded up to multiples of the layout's blocks."""
    blocks = [1] * len(shape)
    for d, divisor, _ in layout.pieces[layout.lanes :] if layout is not None else ():
        blocks[d] = max(blocks[d], divisor)
    return tuple(map(_whole, shape, blocks))


def _whole(e: Expr, n: int) -> Expr:
    if not isinstance(e, Const):
        return binary("*", binary("//", binary("+", e, n - 1), n), n) if n > 1 else e
    return e if as_int(e) % n == 0 else as_expr(-(-as_int(e) // n) * n)


def scattered(layout: Layout, tile: Sequence[int]) -> int | None:
    """First dimension along which a tile is not equally spaced in memory (for the last dimension: not contiguous); None
    if there is no such dimension.
    """
    for (d, *_), onto in zip(layout.pieces, layout.folds, strict=False):
        if onto and any(tile[n] > 1 for n in (d, *(f[0] for f in onto))):
            return d
    for d, extent in enumerate(tile):
        if extent > 1 and sum(p[0] == d for p in layout.pieces) > 1:
            return d
    last = layout.pieces[-1][0]
    return last if tile[-1] > 1 and last != len(tile) - 1 else None


def written(layout: Layout) -> str:
    """The layout as users write it: ``k, j -> j/16, k, j%16``."""
    folds = layout.folds or ((),) * len(layout.pieces)
    right = ", ".join(
        " ^ ".join([_piece(layout.names, p), *(_piece(layout.names, f[:3], f[3]) for f in onto)])
        for p, onto in zip(layout.pieces, folds, strict=True)
    )
    if layout.lanes:
        parts = right.split(", ")
        right = f"{', '.join(parts[: layout.lanes])} | {', '.join(parts[layout.lanes :])}".rstrip()
    return f"{', '.join(layout.names)} -> {right}{f' pad {layout.pad}' if layout.pad else ''}"


def _piece(names: Sequence[str], piece: Piece, scale: int = 1) -> str:
    d, divisor, extent = piece
    if d < 0:
        return f"*{extent}"
    cut = (f"/{divisor}" if divisor > 1 else "") + (f"%{extent}" if extent else "")
    return names[d] + cut + (f"*{scale}" if scale > 1 else "")
