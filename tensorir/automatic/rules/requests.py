"""Coalescing model of a GPU warp whose threads compute adjacent cells of a row: vector loads, and memory sectors
requested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensorir.arith.access import Group
from tensorir.automatic.facts import Nest, bytes_of
from tensorir.automatic.rules.window_reads import Reads, reduced
from tensorir.ir.dims import dims_in, most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Buffer, Load, Select
from tensorir.ir.visit import find, has, uses

SECTOR, VECTOR = 32, 16
"""Bytes of a memory sector; maximum bytes of one thread's load."""
HELD_REGISTERS = 64
"""Registers per thread for loaded values."""
WINDOW = 32
"""Maximum terms of a window reduced in unrolled loops."""


@dataclass(frozen=True)
class Run:
    """Contiguous reads of an array by adjacent cells: each cell reads ``step`` new elements.

    row: elements of an array row, 0 for one dimension;  first: offset of the first cell's reads
    rows: number of rows that a cell reads
    """

    nest: Nest
    buffer: Buffer
    step: int
    row: int
    first: int
    rows: int

    def together(self, lanes: int) -> int:
        """Elements per aligned vector load of a thread with ``lanes`` cells: up to ``VECTOR`` bytes; 1 for scalars."""
        whole = math.gcd(lanes * self.step, self.row, self.first)
        return next((n for n in (16, 8, 4, 2) if whole % n == 0 and n * _bytes(self.buffer) <= VECTOR), 1)

    def held(self, lanes: int) -> bool:
        """True if a thread can hold all loaded elements in registers, with unrolled loops."""
        few = self.nest.size(self.nest.reduced) <= WINDOW
        return few and lanes * self.step * self.rows * _bytes(self.buffer) <= 4 * HELD_REGISTERS


class Requests:
    """Memory requests of a stage whose adjacent cells along the last axis are in one thread."""

    def __init__(self, nest: Nest) -> None:
        self.nest, self.var, self.groups = nest, nest.spatial[-1].var, Reads(nest).groups
        self.arrays = [g.load.buffer for g in self.groups]

    def runs(self) -> Iterator[Run]:
        """Yield contiguous runs read from arrays of constant shape that are loaded once; no arrays indexed by data or
        clamps, and none at all if a condition depends on the lanes.
        """
        asked = any(uses(x.cond, {self.var}) for x in find(self.nest.stage.body, Select))
        for g, b in zip(self.groups, self.arrays, strict=True):
            step, places = g.step(self.var) or 0, g.load.index
            said = any(has(i, Load) or any(x.op in ("min", "max") for x in find(i, Binary)) for i in places)
            if asked or said or dims_in(*b.shape) or self.arrays.count(b) > 1:
                continue
            *rows, covered = g.box(reduced(self.nest))
            if covered == step == g.slopes(self.var)[-1] and step > 0 and self._along(g):
                row = most(b.shape[-1]) if len(places) > 1 else 0
                yield Run(self.nest, b, step, row, min(g.constants[-1]), math.prod(rows))

    def _along(self, g: Group) -> bool:
        """True if the index in a row depends only on the lane axis and reduction axes."""
        terms: set[object] = {it.var for it in self.nest.reduced}
        return set(g.forms[-1].terms) <= {self.var, *terms}

    def more(self, lanes: int, vectors: Mapping[Buffer, int]) -> float:
        """Modelled bytes of sectors beyond coalesced requests; ``vectors``: elements of arrays read at once."""
        found = 0.0
        for g, b in zip(self.groups, self.arrays, strict=True):
            apart, size = abs(g.step(self.var) or 0) * lanes, _bytes(b)
            over = max(1.0, min(apart, SECTOR / size) / vectors.get(b, 1)) if apart else 1.0
            found += bytes_of(b) / self.arrays.count(b) * (over - 1)
        return found


def _bytes(b: Buffer) -> float:
    return DTYPES[b.dtype].bits / 8
