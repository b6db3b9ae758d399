"""How a register tile's cells are walked: blocks, tiles within a block, rows and vectors, and cuts at borders."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorir.automatic.facts import Nest
from tensorir.automatic.rules.register_counts import NEAR, borders
from tensorir.automatic.rules.stream import fused
from tensorir.ir.dims import most
from tensorir.schedule.schedule import Schedule

BODIES = 12
"""Copies of a tile's text that cuts at borders may make."""
SEVERAL = 4
"""Tiles of a block of which the first and the last may have conditions."""
Spans = list[tuple[int, int]]


@dataclass
class Walk:
    """The loops over cells: ``blocks`` outside, ``inside`` a block, the innermost of them over register tiles.

    nests: the stages that read, and the one that writes;  sizes: cells of a tile along each axis;  lane: the axis of
    lanes;  lanes, vectors: its two factors;  wanted: blocks
    """

    nests: Sequence[Nest]
    sizes: Mapping[int, int]
    lane: int
    lanes: int
    vectors: int
    wanted: int
    blocks: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    rows: dict[int, str] = field(default_factory=dict)
    cuts: list[tuple[str, list[int], bool]] = field(default_factory=list)

    @property
    def tile(self) -> str:
        """The loop whose iterations are register tiles."""
        return (self.inside or self.blocks)[-1]

    def walk(self, s: Schedule, own: Sequence[str], order: Sequence[int]) -> None:
        """Split and order the loops ``own`` of what writes the cells; ``order``: the axes of rows, outer ones first."""
        made = 1
        for axis, loop in enumerate(own):
            count = self._count(axis)
            need = -(-self.wanted // made)
            if need == 1 and self.blocks:
                self._tiled(s, axis, loop, self._extent(axis), self.inside)
            elif count <= need * 1.5 or count < 4:
                self._tiled(s, axis, loop, self._extent(axis), self.blocks)
                made *= count
            else:
                made *= self._shared_out(s, axis, loop, -(-count // need))
        rows = [self.rows[axis] for axis in order if axis in self.rows]
        vectors = [self.rows[self.lane]]
        if self.vectors > 1:
            vectors = list(s.split(self.rows[self.lane], [self.vectors, self.lanes]))
        s.reorder(*self.blocks, *self.inside, *rows, *vectors)
        for loop in (*rows, *vectors[:-1]):
            s.unroll(loop)
        s.vectorize(vectors[-1])

    def finish(self, s: Schedule) -> None:
        """Cut the loops where borders end, as far as that makes few copies, and give blocks to cores."""
        bodies, grid = 1, self.blocks[-2:]
        for loop, points, _ in sorted(self.cuts, key=lambda c: (not c[2], c[0] in self.blocks)):
            alone = loop not in self.blocks or loop in grid or len(self.blocks) == 3
            if points and alone and bodies * (len(points) + 1) <= BODIES:
                bodies *= len(points) + 1
                s.partition(loop, points)
        for loop, axis in zip(reversed(grid), ("block.x", "block.y"), strict=False):
            s.bind(loop, axis)
        if rest := self.blocks[:-2]:
            s.bind(fused(s, rest), "block.z")

    # -- one axis

    def _extent(self, axis: int) -> int:
        return most(self.nests[0].spatial[axis].extent)

    def _count(self, axis: int) -> int:
        return -(-self._extent(axis) // self.sizes.get(axis, 1))

    def _tiled(self, s: Schedule, axis: int, loop: str, extent: int, level: list[str]) -> None:
        """Tiles along an axis, on a level of loops."""
        size, tiles = self.sizes.get(axis, 1), loop
        if axis == self.lane:
            tiles, self.rows[axis] = s.split(loop, [None, size], tail="shift")
        elif size > 1:
            tiles, self.rows[axis] = s.split(loop, [None, size], tail="balanced")
        level.append(tiles)
        if extent == self._extent(axis):
            spans = shifted(extent, size) if axis == self.lane else balanced(extent, size)
            self._cut(tiles, axis, self._borders(axis, spans), len(spans))

    def _shared_out(self, s: Schedule, axis: int, loop: str, each: int) -> int:
        """Blocks of so many tiles along an axis; gives how many there are."""
        extent, size = self._extent(axis), self.sizes.get(axis, 1)
        high = each * size
        block, loop = s.split(loop, [None, high], tail="shift")
        self.blocks.append(block)
        noted = len(self.cuts)
        self._tiled(s, axis, loop, high, self.inside)
        del self.cuts[noted:]
        spans = shifted(extent, high)
        ends = [self._borders(axis, [(a + x, b + x) for a, b in shifted(high, size)])
                for x in (spans[0][0], spans[-1][0])]  # fmt: skip
        first, last = (ends[0] or (0, each))[0], (ends[1] or (0, each))[1]  # other blocks are away from the borders
        within = axis == self.lane or each >= SEVERAL
        if within and first < last:
            self._cut(self.inside[-1], axis, (first, last), each)
        if not within or axis == self.lane:
            self._cut(block, -1, self._borders(axis, spans), len(spans))
        return len(spans)

    def _borders(self, axis: int, spans: Spans) -> tuple[int, int] | None:
        return borders([(n, n.spatial[axis]) for n in self.nests], spans)

    def _cut(self, loop: str, axis: int, inner: tuple[int, int] | None, count: int) -> None:
        """Note where to cut a loop; of lanes each tile at a border apart, since what they read is known one by one."""
        if inner is None:
            return
        first, last = inner
        points = [first, last]
        if axis == self.lane or first == last == count:
            points = [*range(1, min(first, NEAR) + 1), *range(max(last, count - NEAR), count)]
        self.cuts.append((loop, sorted({p for p in points if 0 < p < count}), axis == self.lane))


def balanced(extent: int, size: int) -> Spans:
    """Where tiles begin and end whose sizes differ by one at most."""
    count = -(-extent // size)
    least, more = divmod(extent, count)
    starts = [t * least + min(t, more) for t in range(count + 1)]
    return list(itertools.pairwise(starts))


def shifted(extent: int, size: int) -> Spans:
    """Where equal tiles begin and end, the last of which is moved back."""
    starts = [min(t * size, max(0, extent - size)) for t in range(-(-extent // size))]
    return [(x, min(extent, x + size)) for x in starts]
