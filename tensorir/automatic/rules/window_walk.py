"""Loop structure of register tiles on a CPU: blocks, tiles in a block, rows and vectors, and cuts at padding
borders.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from tensorir.automatic.facts import Nest
from tensorir.automatic.rules.window_reads import END_TILES, PICKED_LANES, borders, decisions
from tensorir.ir.dims import most
from tensorir.ir.tree import Var
from tensorir.ir.visit import uses
from tensorir.machine import CPU
from tensorir.schedule.schedule import BaseSchedule

BODIES = 12
"""Maximum copies of the tile's code made by cuts at borders."""
TILES_WITH_ENDS = 4
"""Least tiles per block for which the block's first and last tile are cut off."""
TIMES_MORE_BLOCKS = 8
"""Factor by which blocks of one tile each, with statically known borders, may exceed the wanted number."""
PRICES = CPU.prices.window
Spans = list[tuple[int, int]]


class Share(NamedTuple):
    """Division of an axis into ``blocks`` (1: not distributed) of ``each`` tiles."""

    blocks: int
    each: int


@dataclass
class Walk:
    """Loops over the cells of a register-tiled stage: ``blocks`` outside, ``inside`` a block; the innermost is over
    tiles.

    nests: reading stages and the writing one;  sizes: axis -> cells of a tile;  lane: index of the lane axis
    lanes, vectors: factors of the tile along it;  wanted: number of blocks;  first: axes to distribute first
    """

    nests: Sequence[Nest]
    sizes: Mapping[int, int]
    lane: int
    lanes: int
    vectors: int
    wanted: int
    first: Collection[int] = ()
    blocks: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    rows: dict[int, str] = field(default_factory=dict)
    cuts: list[tuple[str, list[int], bool]] = field(default_factory=list)

    @property
    def tile(self) -> str:
        """Name of the loop over register tiles."""
        return (self.inside or self.blocks)[-1]

    def walk(self, s: BaseSchedule, own: Sequence[str], order: Sequence[int]) -> None:
        """Split and reorder the loops ``own`` of the writing stage, unroll rows, vectorize lanes.

        order: axes of the tile's rows, outer ones first
        """
        for axis, (loop, share) in enumerate(zip(own, self.shares, strict=True)):
            if share.blocks > 1 < share.each:
                self._shared_out(s, axis, loop, share.each)
            else:
                apart = share.blocks > 1 or not self.blocks
                self._tiled(s, axis, loop, self._extent(axis), self.blocks if apart else self.inside)
        rows = [self.rows[axis] for axis in order if axis in self.rows]
        vectors = [self.rows[self.lane]]
        if self.vectors > 1:
            vectors = list(s.split(self.rows[self.lane], [self.vectors, self.lanes]))
        s.reorder(*self.blocks, *self.inside, *rows, *vectors)
        for loop in (*rows, *vectors[:-1]):
            s.unroll(loop)
        s.vectorize(vectors[-1])

    @cached_property
    def shares(self) -> list[Share]:
        """Division of each axis into blocks, outer axes first until there are ``wanted`` blocks."""
        shares, made = dict[int, Share](), 1
        for axis in sorted(range(len(self.nests[0].spatial)), key=lambda axis: axis not in self.first):
            count, need = self._count(axis), max(1, round(self.wanted / made))
            few = need * (TIMES_MORE_BLOCKS if axis in self.bordered and axis != self.lane else 1.5)
            if need == 1 and shares:
                shares[axis] = Share(1, count)
            elif count <= few or count < 4:
                shares[axis] = Share(count, 1)
            else:
                each = parted(count, need)
                shares[axis] = Share(-(-count // each), each)
            made *= shares[axis].blocks
        return [shares[axis] for axis in sorted(shares)]

    def cells(self, nest: Nest) -> dict[Var, int]:
        """Axis variable of ``nest`` -> cells of a block along it."""
        whole = [most(it.extent) for it in nest.spatial]
        sizes = [min(n, x.each * self.sizes.get(a, 1)) if x.blocks > 1 else n
                 for a, (n, x) in enumerate(zip(whole, self.shares, strict=True))]  # fmt: skip
        return {it.var: n for it, n in zip(nest.spatial, sizes, strict=True)}

    @property
    def bordered(self) -> frozenset[int]:
        """Indices of the axes with border conditions."""
        return _bordered(tuple(self.nests))

    @property
    def at_borders(self) -> float:
        """Slowdown factor of all tiles by the conditions of border tiles."""
        longer, at_lanes = 1.0, (PRICES.lanes if self.lanes <= PICKED_LANES else PRICES.lanes_alone) / self.vectors
        for axis in self.bordered:
            share = self.shares[axis]
            tiles = share.each if share.blocks > 1 < share.each else self._count(axis)  # of others, all blocks ask
            longer *= 1.0 + min(2, tiles) / tiles * (at_lanes if axis == self.lane else PRICES.rows)
        return longer

    def finish(self, s: BaseSchedule) -> None:
        """Cut loops at borders, within ``BODIES`` copies, and bind block loops to the grid."""
        bodies, grid = 1, self.blocks[-2:]
        for loop, points, _ in sorted(self.cuts, key=lambda c: (not c[2], c[0] in self.blocks)):
            alone = loop not in self.blocks or loop in grid or len(self.blocks) == 3
            if points and alone and bodies * (len(points) + 1) <= BODIES:
                bodies *= len(points) + 1
                s.partition(loop, points)
        for loop, axis in zip(reversed(grid), ("block.x", "block.y"), strict=False):
            s.bind(loop, axis)
        if rest := self.blocks[:-2]:
            s.share_out(*rest, to="block.z")

    # -- one axis

    def _extent(self, axis: int) -> int:
        return most(self.nests[0].spatial[axis].extent)

    def _count(self, axis: int) -> int:
        return -(-self._extent(axis) // self.sizes.get(axis, 1))

    def _tiled(self, s: BaseSchedule, axis: int, loop: str, extent: int, level: list[str]) -> None:
        """Split ``loop`` into tiles of ``axis``: the loop over tiles is appended to ``level``, the one within goes to
        ``rows``.

        Tiles of size 1 are not split, except along the lane axis. With the axis's whole ``extent``, cuts at borders are
        recorded.
        """
        size, tiles = self.sizes.get(axis, 1), loop
        if axis == self.lane:
            tiles, self.rows[axis] = s.split(loop, [None, size], tail="shift")
        elif size > 1:
            tiles, self.rows[axis] = s.split(loop, [None, size], tail="balanced")
        level.append(tiles)
        if extent == self._extent(axis):
            spans = shifted(extent, size) if axis == self.lane else balanced(extent, size)
            self._cut(tiles, axis, self._borders(axis, spans), len(spans))

    def _shared_out(self, s: BaseSchedule, axis: int, loop: str, each: int) -> None:
        """Split an axis into blocks of ``each`` tiles."""
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
        within = axis == self.lane or each >= TILES_WITH_ENDS
        if within and first < last:
            self._cut(self.inside[-1], axis, (first, last), each)
        if not within or axis == self.lane:
            self._cut(block, -1, self._borders(axis, spans), len(spans))

    def _borders(self, axis: int, spans: Spans) -> tuple[int, int] | None:
        return borders([(n, n.spatial[axis]) for n in self.nests], spans)

    def _cut(self, loop: str, axis: int, inner: tuple[int, int] | None, count: int) -> None:
        """Record where to cut a loop. Along lanes each border tile is cut off separately, with its loads known
        statically.
        """
        if inner is None:
            return
        first, last = inner
        points = [first, last]
        if axis == self.lane or first == last == count:
            points = [*range(1, min(first, END_TILES) + 1), *range(max(last, count - END_TILES), count)]
        self.cuts.append((loop, sorted({p for p in points if 0 < p < count}), axis == self.lane))


@lru_cache(maxsize=8)  # every configuration of a part asks for the same
def _bordered(nests: tuple[Nest, ...]) -> frozenset[int]:
    asked = [(n, d) for n in nests for d in decisions(n)]
    return frozenset(
        axis
        for axis in range(len(nests[0].spatial))
        if any(uses(c, {n.spatial[axis].var}) for n, d in asked for c in d)
    )


def parted(count: int, parts: int) -> int:
    """Size of about ``parts`` equal parts of ``count``; a divisor of ``count`` if one is close."""
    wanted = count / parts
    near = [n for n in range(math.ceil(wanted * 2 / 3), int(wanted * 3 / 2) + 1) if count % n == 0]
    return min(near, key=lambda n: abs(n - wanted)) if near else math.ceil(wanted)


def balanced(extent: int, size: int) -> Spans:
    """[(start, end)] of the fewest tiles of at most ``size``; sizes differ by at most one."""
    count = -(-extent // size)
    least, more = divmod(extent, count)
    starts = [t * least + min(t, more) for t in range(count + 1)]
    return list(itertools.pairwise(starts))


def shifted(extent: int, size: int) -> Spans:
    """[(start, end)] of tiles of ``size``; the last one is shifted back to end at the extent, overlapping others."""
    starts = [min(t * size, max(0, extent - size)) for t in range(-(-extent // size))]
    return [(x, min(extent, x + size)) for x in starts]
