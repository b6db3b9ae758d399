"""What the parts of a matrix product take on a CPU, in cycles of a core of ``CLOCK``.

Each part has a price for a vector, a line or an element, and prices add up. All are fitted together over what
``benchmarks/tuner/judge_cpu_model.py`` measured at rest of products and of convolutions as products, on two cores of a
server with vectors of 64 bytes. ``LATENCY`` and ``STRIDED`` bound nothing there.
"""

from __future__ import annotations

import math

from tensorir.engines.model import CORES, crowding, in_balanced_tiles
from tensorir.engines.problems import Gemm

CLOCK = 4e9
"""Cycles a second of the core that prices were measured on."""
MULTIPLY, LOAD = 0.47, 0.37
"""Cycles of a multiply-add of vectors, and of a load of a vector or of an element for all lanes."""
LATENCY = 4.0
"""Cycles between dependent multiply-adds."""
NEAR = 0.42
"""Cycles more of 64 bytes of b that come from the second-level cache, or cross lines."""
L1_BYTES = 24 * 1024
"""Bytes that a panel of b may have to stay in the first-level cache while rows of a pass by."""
SUM = 3.2
"""Cycles to bring a vector of sums to block memory or from there."""
COPY, TURN, STRIDED, GATHER = 0.19, 0.67, 1.6, 0.57
"""Cycles to pack an element of b: in vectors, turned in registers, one by one, from runs shorter than vectors."""
SCATTERED = 1.2
"""Cycles to read an element of b in place from such runs."""
RAGGED = 1.3
"""Cycles to write an element lane by lane, which all vectors are where the last one is not whole."""
FAR, RUN = 7.2, 9.9
"""Cycles of 64 bytes that a core reads for the first time, and of each run of them, which no core foresees."""
PACKED = 25.0
"""Cycles of 64 bytes that one kernel packs and another one reads."""
START = 77_000.0
"""Cycles of a launch in which only one core works."""
ACROSS, FOUR, SPILLED = 1.25, 0.8, 0.25
"""Cycles to add one lane of a vector to others; the share of them that remains where four results are written next to
each other; and cycles more of a multiply-add where vectors of both operands do not fit in registers.
"""
FEW = 12
"""Rows up to which reading b in place costs less than packing it."""


def reads_in_place(p: Gemm) -> bool:
    """Whether reading b in place costs less than packing it."""
    return p.m <= FEW and not p.tb and p.n >= p.vector_lanes and not p.prepack


def is_scattered(p: Gemm) -> bool:
    """Whether what a vector of b holds may be in several places."""
    return 0 < p.run < p.n and p.run % p.vector_lanes > 0


def step_cycles(p: Gemm, rows: int, vectors: int) -> float:
    """Cycles of a step of the reduction of a register tile."""
    pitch = 0 if p.ta else p.k * p.sum_bytes
    return MULTIPLY * rows * vectors + LOAD * (rows * crowding(rows, pitch) + vectors)


def panel_cycles(p: Gemm, rows: int, tile: int, vectors: int) -> float:
    """Cycles per step of the reduction for all rows of a panel of so many vectors, in balanced tiles."""
    return in_balanced_tiles(rows, tile, lambda high: max(LATENCY, step_cycles(p, high, vectors)))


def dot_cycles(p: Gemm, rows: int, outputs: int) -> float:
    """Cycles of dot products of so many rows of both operands, which begin before those of other rows have ended."""
    sums = rows * outputs
    step = step_cycles(p, rows, outputs) + (SPILLED * sums if rows * (outputs + 1) >= p.registers else 0.0)
    return -(-p.k // p.vector_lanes) * step + ACROSS * p.vector_lanes * sums * (1.0 if outputs % 4 else FOUR)


def element_cycles(p: Gemm, depth: int, width: int, in_place: bool) -> float:
    """Cycles of an element of a panel of b in a register tile, beyond those of a load."""
    kept, pitch = L1_BYTES, p.n * p.sum_bytes
    if in_place and is_scattered(p):
        return SCATTERED
    if in_place:  # rows whose pitch divides by a large power of two fall into the same few sets of 8 lines
        kept = min(kept, 8 * 4096 // math.gcd(pitch, 4096) * width * p.sum_bytes) if pitch % 64 == 0 else 0
    return NEAR * p.sum_bytes / 64 if depth * width * p.sum_bytes > kept else 0.0


def packing_cycles(p: Gemm, vectors: int, turned: bool) -> float:
    """Cycles to pack an element of b in a panel of so many vectors; one of them may have columns beyond the last."""
    way = GATHER if is_scattered(p) else TURN if turned else STRIDED if p.tb else COPY
    return way + (RAGGED / vectors if p.n % p.vector_lanes else 0.0)


def reading_cycles(p: Gemm, rows: int, run: int) -> float:
    """Cycles in which cores read a and b for the first time, in blocks of ``rows`` rows.

    Blocks are dealt along rows of the result: with several blocks a column each core reads all of b, else all of a.
    run: columns after which b is read elsewhere; 0 for none
    """
    several = rows < p.m and p.batch == 1
    b, a = p.k * p.n * (1.0 if several else 0.5), p.k * p.m * (0.5 if several or p.batch > 1 else 1.0)
    return CORES * p.batch * (FAR * (a + b) * p.sum_bytes / 64 + (RUN * b / run if run else 0.0))


def launched(cycles: float) -> float:
    """Cycles of a launch: until others begin one core works, which ends small ones."""
    return cycles + min(cycles, CORES * START)
