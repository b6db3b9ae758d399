"""Image that overlapping windows read (``Image``), whose part a block stages once: padded, and widened if narrow.

Converting an element of a narrow float costs more than the multiply-add, and windows read each element many times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tensorir.arith.access import Group
from tensorir.arith.point import evaluate
from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.rules.window_reads import Reads, decisions, reduced, slides
from tensorir.engines.problems import accumulator
from tensorir.ir.dims import most
from tensorir.ir.dtypes import is_float
from tensorir.ir.tree import Load, Var
from tensorir.ir.visit import find
from tensorir.schedule.schedule import BaseSchedule

NEIGHBOURS = 8
"""Adjacent cells examined for common reads: windows with stride or dilation overlap only some cells apart."""
MOST_CUTS = 4
"""Maximum pieces of an image row that its padding conditions make."""


@dataclass(frozen=True)
class Image:
    """Loads of an array that is staged in dtype ``wide``; ``made``: the map that produces it only for them, or None."""

    group: Group
    wide: str | None
    made: Nest | None

    def stage(self, s: BaseSchedule) -> str:
        """Make a stage that holds the image in ``wide``, or as it is if that is None; return its name."""
        name = self.made.name if self.made else s.stage_in(self.group.load.buffer.name, "root", "global").name
        if self.wide is None:
            return name
        own = [str(x).removeprefix(f"{name}.") for x in s.loops(name)]
        axes = ", ".join(own)
        s.reindex(name, f"{axes} -> {', '.join(f'{x} = {x}' for x in own)}", writes=axes, dtype=self.wide)
        return name

    def keep(self, s: BaseSchedule, name: str, block: str, lanes: int) -> None:
        """Compute the block's part of the image at loop ``block`` in shared scope, vectorized, and cut where conditions
        along a row change; few elements of each place in a row are one loop with the row.
        """
        s.set_scope(name, "shared").compute_at(name, block)
        stage = s.index.stages[name]
        loops = [x for x in s.index.above(stage) if x.var.name.startswith(f"{name}.")]
        asked = [self._changes(axis) for axis in range(len(loops))]
        row = max((n for n, points in enumerate(asked) if points), default=None)
        last, size = loops[-1], most(loops[-1].extent)
        if row is not None and stage.binds[row] is loops[row].var and len(asked[row]) < MOST_CUTS:
            cut, points = loops[row].var.name, [x for x in asked[row] if x < most(loops[row].extent)]
            if row == len(loops) - 2 and size < lanes and size == self._extent(row + 1):
                s.partition(s.fuse(cut, last.var.name), [x * size for x in points])
                return
            s.partition(cut, points)
        if row != len(loops) - 1 and size >= lanes:
            s.vectorize(s.split(last.var.name, [None, lanes], tail="shift")[1])

    def _extent(self, axis: int) -> int:
        return most(self.group.load.buffer.shape[axis])

    def _changes(self, axis: int) -> list[int]:
        """Indices along an axis where a condition of the map ``made`` changes its value."""
        if self.made is None:
            return []
        it = self.made.spatial[axis]
        asked = [c for d in decisions(self.made) for c in d if {*find(c, (Var, Load))} == {it.var}]
        known = [tuple(bool(evaluate(c, {it.var: x})) for c in asked) for x in range(self._extent(axis))]
        return [x for x in range(1, len(known)) if known[x] != known[x - 1]]

    def elements(self, nest: Nest, cells: Mapping[Var, int]) -> int:
        """Number of image elements read by ``cells`` cells along each axis."""
        return math.prod(self.group.box({**reduced(nest), **cells}))


def image_of(graph: Graph, reads: Reads, narrow: bool = True) -> Image | None:
    """The single array read by overlapping windows and widened elementwise, to be staged; None if there is none or it
    has other readers.

    narrow: False to accept arrays that need no widening
    """
    nest = reads.nest
    found = [g for g in reads.groups if _overlaps(nest, g) and (widened(nest, g.load) or not narrow)]
    if len(found) != 1 or not nest.constant:
        return None
    (group,), buffer = found, found[0].load.buffer
    makers = graph.writers.get(buffer, [])
    alone = [n for n in graph.nests.values() if buffer in n.reads] == [nest]
    if not alone or any(m.kind != "map" or len(m.writes) > 1 or m.calls or graph.is_output(m) for m in makers):
        return None
    return Image(group, widened(nest, group.load), makers[0] if makers else None)


def _overlaps(nest: Nest, g: Group) -> bool:
    """True if windows move over the array, and those of some neighbouring cells have elements in common."""
    cells, terms = ([it for it in axes if most(it.extent) > 1] for axes in (nest.spatial, nest.reduced))
    return slides([g], cells, terms) and any(g.shared(reduced(nest), it.var, NEIGHBOURS) for it in cells)


def widened(nest: Nest, load: Load) -> str | None:
    """dtype to which a sum converts every load of an array of narrow floats; None if it does not."""
    kind = load.buffer.dtype
    wide = accumulator(kind) if is_float(kind) else None
    return wide if wide is not None and nest.converts(load.buffer, wide) else None
