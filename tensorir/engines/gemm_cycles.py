"""What the parts of a matrix product take on a CPU, in cycles of a core."""

from __future__ import annotations

from tensorir.engines.model import crowding, in_balanced_tiles
from tensorir.engines.problems import Gemm

LATENCY = 5.5
"""Cycles between dependent multiply-adds, with what a compiler's order adds."""
CACHE_WAY = 16 * 1024
"""A pitch of a multiple of this many bytes leads to the same few sets of the second-level cache."""
STREAM = 16.0
"""Bytes a cycle that come from far away."""
L3_PART = 8 << 20
"""Bytes that one block after another can read again from the last cache."""
SUMS_PASS, TILE_START = 1.0, 12.0
"""Cycles to bring a vector of sums from block memory and back, and those in which a register tile starts and ends."""
LOOP = 2.0
"""Cycles of a step of a loop, which others may be written out next to."""
FAR_BYTES = 1 << 20
"""Of an operand that does not stay in the second-level cache."""
FAR_LINE, FAR_RUN = 8.0, 1024.0
"""Cycles of a cache line from beyond there; and of one where runs of lines end, times the bytes of a run."""
ACROSS = 18.0
"""Cycles to add up the lanes of a vector."""

FEW = 12
"""Rows up to which reading b in place costs less than packing it."""


def reads_in_place(p: Gemm) -> bool:
    """Whether reading b in place costs less than packing it."""
    return p.m <= FEW and not p.tb and p.n >= p.vector_lanes and not p.prepack


def panel_cycles(shape: Gemm, rows: int, tile: int, vectors: int) -> float:
    """Cycles per step of the reduction for all rows of a panel of so many vectors, in balanced tiles.

    A core multiplies and adds 64 bytes a cycle, each sum ready after four cycles and a bit, and loads two operands a
    cycle; vectors cost more than elements to bring near.
    """
    rate = 64 / shape.vector_bytes
    pitch = 0 if shape.ta else shape.k * shape.sum_bytes

    def step(high: int) -> float:
        busy = max(high * vectors / rate, (high + vectors) / 2, LATENCY) * crowding(high, pitch)
        return float(busy + 0.03 * high + 0.08 * vectors)

    return in_balanced_tiles(rows, tile, step)
