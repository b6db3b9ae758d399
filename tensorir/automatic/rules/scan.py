"""Scan: rows that do not wait for each other are shared out; one long scan goes by tiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorir.automatic.facts import Graph, Nest, vector_lanes, widest_bits
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.scan_gpu import ThreadsPart, along
from tensorir.automatic.rules.stream import on_cores
from tensorir.ir.tree import Binary, Combiner, Iter, Store, Update
from tensorir.ir.visit import find, uses
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

LONG_SCAN = 1 << 13
"""Elements from which on a scan alone is worth three kernels."""
THREADS = 64
COMBINE_CYCLES = 2.4
"""Cycles of combining two vectors, the second of which waits for the first."""
WIDE_MOVES = 1.6
"""Time of moving lanes about in a vector of 64 bytes, over that in one of 32."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """A scan, by tiles where it is all that there is, else with its rows or columns shared out."""
    if anchor.kind != "scan":
        return
    before = [n.name for n in graph.producers(anchor) if n.kind == "map" and not graph.is_output(n)]
    length = anchor.size(anchor.stage.iters)
    alone = not anchor.spatial and anchor.constant and {anchor.name, *before} == set(graph.nests)
    if alone and length >= LONG_SCAN:
        yield TiledPart(graph, anchor, target, before, f"{length} elements one after another, in tiles side by side")
    reason = f"{anchor.cells} scans that do not wait for each other"
    if target.kind == "cpu":
        yield ScanLanesPart(graph, anchor, target, reason=reason)
    elif anchor.spatial:
        yield ThreadsPart(graph, anchor, target, reason=reason)


def widest(anchor: Nest, target: Target) -> int:
    """Lanes of two vectors of the widest element, which is as many as a language has."""
    return min(16, 2 * vector_lanes(target, widest_bits([anchor])))


class ScanLanesPart(Part):
    """One stage on a CPU: vectors of columns that are scanned next to each other, or of a row's own elements.

    Knobs: ``block`` columns or rows of a block, ``lanes`` of a vector.
    """

    rule = "scan"

    @functools.cached_property
    def columns(self) -> bool:
        """True when elements next to each other are of different scans."""
        return self.last is not along(self.anchor)

    @functools.cached_property
    def last(self) -> Iter:
        """The axis along which results are stored."""
        stores = [x for x in find(self.anchor.stage.body, Store) if x.buffer in self.graph.program.outputs or x.index]
        place = stores[-1].index[-1]
        return next((it for it in self.anchor.stage.iters if uses(place, {it.var})), along(self.anchor))

    def knobs(self) -> Mapping[str, Sequence[object]]:
        lanes = widest(self.anchor, self.target)
        return {"block": [512, 128, 2048] if self.columns else [16, 4, 64], "lanes": [lanes, lanes // 2]}

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def _seconds(self, c: Config) -> float:
        """Seconds of a configuration: lanes of columns are independent, those of a row are combined in steps."""
        n, block, lanes = self.anchor, int(c["block"]), int(c["lanes"])
        steps = COMBINE_CYCLES * (1.0 if self.columns else math.log2(lanes) if lanes > 1 else 1.0)
        steps *= WIDE_MOVES if not self.columns and lanes * self.bits >= 512 else 1.0
        width = n.size([self.last]) if self.columns else n.cells
        blocks = n.cells // width * math.ceil(width / block)
        return on_cores(self.target, n.size(n.stage.iters) / lanes * steps, n.moved, blocks)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        loops = self.anchor.loops
        axis, rows = loops[along(self.anchor).var], [loops[it.var] for it in self.anchor.spatial]
        lanes = config["lanes"]
        if self.columns:
            last = loops[self.last.var]
            others = [x for x in rows if x != last]
            block, group, lane = s.split(last, [None, max(1, config["block"] // lanes), lanes])
            s.reorder(*others, block, axis, group, lane)
            s.share_out(*others, block)
        else:
            if rows:
                s.reorder(*rows, axis)
                s.share_out(*rows, each=min(config["block"], self.anchor.cells))
            lane = s.split(axis, [None, lanes])[1]
        if lanes > 1:
            s.vectorize(lane)


class TiledPart(Part):
    """One long scan and what it reads: totals of tiles, the scan of these, and scans of tiles.

    Knobs: ``tile``, and on CPUs the ``lanes`` in which a tile is scanned: half as many take one step less for twice as
    many vectors, which pays where a step is several instructions.
    """

    rule = "tiled_scan"

    def knobs(self) -> Mapping[str, Sequence[object]]:
        if self.target.kind == "gpu":
            return {"tile": [256, 128, 512]}
        lanes = widest(self.anchor, self.target)
        steps = [lanes // 2, lanes] if self.chooses and lanes > 2 else [lanes, lanes // 2]
        return {"tile": [4096, 1024, 2048], "lanes": steps}

    @functools.cached_property
    def combiners(self) -> list[Combiner]:
        """The combiners of terms."""
        return [u.combiner for u in find(self.anchor.stage.body, Update)]

    @functools.cached_property
    def chooses(self) -> bool:
        """True when the larger or the smaller one is taken, with a look at what is no number."""
        return any(find(r, Binary, lambda x: x.op in ("max", "min")) for c in self.combiners for r in c.result)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        name = self.anchor.name
        s.redeclare("tiled_scan", tile=config["tile"])
        for n in self.graph.nests:
            if n != name:
                s.compute_inline(n)
        s.reverse_compute_inline(name)
        # an input may have such a name already
        total, local = (next(n for n in s.index.stages if n.startswith(f"{name}_{x}")) for x in ("total", "local"))
        if self.target.kind == "gpu":
            for stage in (total, local):
                s.share_out(f"{stage}.t", each=THREADS, within="thread.x")
            return
        lanes = widest(self.anchor, self.target)
        if all(c.commutative for c in self.combiners):
            part = s.rfactor(total, s.split(f"{total}.u", [None, 4 * lanes])[1])
            s.compute_at(part, total, f"{total}.t").bind(f"{total}.t", "block.x")
            s.register_tile(f"{total}.rf.rf", lanes=lanes)
        else:
            s.bind(f"{total}.t", "block.x").vectorize(s.split(f"{total}.u", [None, lanes])[1])
        s.bind(f"{local}.t", "block.x")
        if config["lanes"] > 1:
            s.vectorize(s.split(f"{local}.u", [None, config["lanes"]])[1])
