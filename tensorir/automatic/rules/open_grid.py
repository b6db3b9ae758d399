"""Streaming over several symbolic extents: each gets a grid axis, whose blocks end at the extent given at launch.

A single fused loop would have the product of the maximum extents: more blocks than a grid allows, most of them idle at
launches with small arrays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.stream import VectorPart
from tensorir.engines.blocks import extent_of
from tensorir.ir.dims import dims_in
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

MOST_IN_VAIN = 1 << 20
"""Maximum blocks for the largest extents in one fused loop: idle ones cost a small launch about a millisecond."""
CELLS = 1 << 10
"""Least cells per block."""


def open_axes(anchor: Nest) -> int:
    """Number of spatial axes with symbolic extents, if at their maximum there are too many cells for one fused loop;
    else 0.
    """
    found = sum(bool(dims_in(it.extent)) for it in anchor.spatial)
    return found if found > 1 and anchor.cells > MOST_IN_VAIN * CELLS else 0


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a map or reduction with several symbolic extents, too many cells for one fused loop."""
    if anchor.kind in ("map", "reduce") and (count := open_axes(anchor)):
        reason = f"{anchor.cells} cells at most, {count} of their axes end at dims"
        yield OpenPart(graph, anchor, target, reason=reason)


class OpenPart(VectorPart):
    """Streaming part with one grid axis per symbolic extent, vectorized along the last axis; knobs as in
    ``VectorPart``.
    """

    @property
    def name(self) -> str:
        return "stream_open"

    @functools.cached_property
    def flat(self) -> bool:
        """True if all cells form one fused axis: never for this part."""
        return False

    def _share_out(self, s: BaseSchedule, rows: list[str], last: str, c: Config) -> tuple[str, str]:
        step = c["lanes"] * c["vectors"]
        tile, lane = s.split(last, [None, step])
        block, tile = s.split(tile, [None, self.levels.steps(c["block"], self.length, step)])
        bind_apart(s, [*rows, block], tile, self.target)
        self.levels.bind(s, tile)
        return tile, lane


def bind_apart(s: BaseSchedule, loops: Sequence[str], inner: str, target: Target) -> None:
    """Bind up to three nested loops, the longest ones, to grid axes.

    A block iterates over other loops, and over iterations beyond a grid axis' limit.
    """
    longest = sorted(loops, key=lambda x: -extent_of(s, x))[:3]
    outer, rest = dict[str, str](), [x for x in loops if x not in longest]
    for axis, loop, most in zip(_axes(), longest, target.max_grid, strict=False):
        if (count := extent_of(s, loop)) > most > 0:
            loop, left = s.split(loop, [None, math.ceil(count / most)])
            rest.append(left)
        outer[loop] = axis
    s.reorder(*outer, *rest, inner)
    for loop, axis in outer.items():
        s.bind(loop, axis)


def _axes() -> Iterator[str]:
    return iter(("block.x", "block.y", "block.z"))
