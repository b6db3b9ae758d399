"""Addresses, strides and swizzles of shared-memory tiles for wgmma descriptors and TMA tensor maps."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tensorir.arith.affine import Arith
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.layout import SwizzledRows, cells, swizzled_rows, written
from tensorir.ir.tree import Buffer, Expr, IntrinCall, Scope
from tensorir.lower.form import fail

SWIZZLE_BYTES = 128
COPY_ALIGN = 128
"""Bytes: where a tile that is copied whole may begin in shared memory (PTX ISA, cp.async.bulk.tensor)."""
ATOM_ROWS = 8
"""Rows whose 16-byte chunks are permuted together: a swizzle atom."""


def is_described(call: IntrinCall, tile: Buffer) -> bool:
    """True if the instruction accesses shared tile ``tile`` by a descriptor or tensor map."""
    return tile.name in call.intrin.descriptors or (bool(call.intrin.maps) and tile.name not in call.intrin.maps)


def read_whole(calls: Iterable[IntrinCall]) -> set[Buffer]:
    """Shared buffers accessed by descriptor or TMA (sources and destinations); their writers need a proxy fence."""
    return {r.buffer for c in calls for t, r in zip(c.intrin.operands, c.operands, strict=True) if is_described(c, t)}


def described(
    call: IntrinCall, tile: Buffer, b: Buffer, first: tuple[Expr, ...], arith: Arith
) -> tuple[tuple[int, ...], int]:
    """(strides, swizzle bytes) of the shared-memory tile that begins at index ``first`` of ``b``.

    Swizzled tiles have two strides, in elements: from a row to the eighth after it, and from one swizzle-wide panel of
    columns to the next. Unswizzled ones (TMA only) are contiguous: ().
    Raises LoweringError ``lower.tile``.
    """
    size = DTYPES[b.dtype].bits // 8
    found = swizzled_rows(b, size)
    if found is None:
        if call.intrin.maps and _in_a_row(b, tile):
            return (), 0
        row = SWIZZLE_BYTES // size
        told = f"as {written(b.layout)}" if b.layout is not None else "row by row"
        raise fail(
            "lower.tile",
            f"{call.intrin.name} has {tile.name} in rows of {row} elements whose pieces are permuted by the row's "
            f"number, and {b.name}, of {' x '.join(map(str, b.dims))} elements, is stored {told}",
            f"layout='r, x -> x/{row}, r, x/{16 // size}%8 ^ r%8, x%{16 // size}'",
        )
    if call.intrin.maps:
        _need_as_copied(call, tile, b, found)
    rows, columns = first[found.rows], first[found.columns]
    extents = dict(zip(range(len(b.shape) - len(tile.dims), len(b.shape)), tile.dims, strict=True))
    if len(tile.dims) > 2 and not _whole_rows(b, tile):
        pixels = " x ".join(map(str, tile.dims))
        raise fail("lower.tile", f"{tile.name} of {call.intrin.name} is {pixels} elements, and "
                   f"{b.name} has others between", "stage_in at a loop that reads just these columns")  # fmt: skip
    within = extents[found.columns] <= found.row
    step = extents[found.columns] if within and found.row % extents[found.columns] == 0 else found.row
    if not arith.is_multiple(rows, ATOM_ROWS) or not arith.is_multiple(columns, step):
        raise fail(
            "lower.tile",
            f"tiles of {b.name} for {call.intrin.name} begin elsewhere than at multiples of {ATOM_ROWS} rows and "
            f"{step} columns, where the permutation of their pieces begins",
            "splits by the tile of the instruction",
        )
    atom = ATOM_ROWS * SWIZZLE_BYTES // size
    for c in cells(b)[0]:
        d, divisor, extent = c.piece
        inside = (d == found.rows and divisor == 1) or (d == found.columns and divisor < found.row)
        if not inside and (extent or -(-b.dims[d] // divisor)) > 1 and c.stride % atom:
            raise fail("lower.tile", f"{b.name} has parts {c.stride * size} bytes apart, and tiles begin at multiples "
                       f"of {atom * size}", "tiles of a multiple of 8 rows")  # fmt: skip
    return (found.eight, found.panel), SWIZZLE_BYTES


def need_aligned(call: IntrinCall, b: Buffer, first: tuple[Expr, ...], arith: Arith) -> None:
    """Raise LoweringError ``lower.tile`` if a TMA tile begins at a misaligned address.

    first: index of its first element in ``b``
    """
    size = DTYPES[b.dtype].bits // 8
    if not arith.is_multiple(first[0], COPY_ALIGN // size):
        raise fail("lower.tile", f"{call.intrin.name} wants tiles of {b.name} at multiples of {COPY_ALIGN} bytes, and "
                   f"those of {' x '.join(map(str, b.dims))} elements of {size} bytes begin elsewhere",
                   f"tiles of a multiple of {COPY_ALIGN // size} elements")  # fmt: skip


def _need_as_copied(call: IntrinCall, tile: Buffer, b: Buffer, found: SwizzledRows) -> None:
    """Raise LoweringError unless the tile's rows are full and contiguous, as a TMA copy writes them."""
    spread = math.prod(tile.dims[:-1]) > ATOM_ROWS and found.eight != ATOM_ROWS * found.row
    if tile.dims[-1] == found.row and not spread:
        return
    told = "do not" if spread else f"have {tile.dims[-1]} elements, of which {b.name} has room for {found.row}"
    raise fail("lower.tile", f"{call.intrin.name} copies rows of {SWIZZLE_BYTES} bytes that follow each other, and "
               f"those in {b.name} {told}",
               f"tiles of {found.row} columns, stored as x/{found.row}, r, …")  # fmt: skip


def _whole_rows(b: Buffer, tile: Buffer) -> bool:
    """True if the rows of a multi-dimensional tile are contiguous."""
    stride = {c.piece[0]: c.stride for c in cells(b)[0] if c.piece[1] == 1}
    lead = len(b.shape) - len(tile.dims)
    rows = range(lead, len(b.shape) - 2)
    return all(stride[d] == stride[d + 1] * b.dims[d + 1] and b.dims[d + 1] == tile.dims[d + 1 - lead] for d in rows)


def _in_a_row(b: Buffer, tile: Buffer) -> bool:
    """True if buffer ``b`` has no layout and its inner extents equal the tile's, so that the tile is contiguous."""
    dims = b.dims[len(b.dims) - len(tile.dims) :]
    return b.layout is None and b.scope is Scope.SHARED and all(
        n == m for n, m in list(zip(dims, tile.dims, strict=True))[1:]
    )  # fmt: skip
