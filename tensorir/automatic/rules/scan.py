"""Scheduling of scans (prefix sums): independent scans are distributed; one long scan is tiled in three kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.levels import MOST_LANES, levels_of
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules import scan_blocks
from tensorir.automatic.rules.narrow import expected_s
from tensorir.automatic.rules.scan_gpu import ThreadsPart, along
from tensorir.ir.tree import Binary, Combiner, Iter, Store, Update
from tensorir.ir.visit import find, uses
from tensorir.machine import CPU
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

LONG_SCAN = 1 << 13
"""Least elements of a single scan for which three kernels pay."""
PRICES = CPU.prices.stream


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for a scan: of threads by blocks of them and, if there are several, by one each, the one of less
    modelled time first; of cores in tiles, if it is single, the whole definition and at least ``LONG_SCAN`` elements
    long, and by lanes.
    """
    if anchor.kind != "scan":
        return
    reason = f"{anchor.cells} scans that do not wait for each other"
    if levels_of(target).threaded:
        threads = [ThreadsPart(graph, anchor, target, reason=reason)] if anchor.spatial else []
        yield from sorted((*scan_blocks.offers(graph, anchor, target), *threads), key=expected_s)
        return
    before = [n.name for n in graph.producers(anchor) if n.kind == "map" and not graph.is_output(n)]
    length = anchor.size(anchor.stage.iters)
    alone = not anchor.spatial and anchor.constant and {anchor.name, *before} == set(graph.nests)
    if alone and length >= LONG_SCAN:
        yield TiledPart(graph, anchor, target, before, f"{length} elements one after another, in tiles side by side")
    yield ScanLanesPart(graph, anchor, target, reason=reason)


class ScanLanesPart(Part):
    """Scan by cores: vector lanes are independent columns, or consecutive elements of one row.

    Knobs: ``block``, columns or rows per block; ``lanes`` per vector.
    """

    rule = "scan"

    @functools.cached_property
    def columns(self) -> bool:
        """True if adjacent elements belong to different scans."""
        return self.last is not along(self.anchor)

    @functools.cached_property
    def last(self) -> Iter:
        """The axis along which results are contiguous."""
        stores = [x for x in find(self.anchor.stage.body, Store) if x.buffer in self.graph.program.outputs or x.index]
        place = stores[-1].index[-1]
        return next((it for it in self.anchor.stage.iters if uses(place, {it.var})), along(self.anchor))

    def knobs(self) -> Mapping[str, Sequence[object]]:
        lanes = self.levels.lanes(self.bits, MOST_LANES, 1)[:2]
        return {"block": [512, 128, 2048] if self.columns else [16, 4, 64], "lanes": lanes}

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def _seconds(self, c: Config) -> float:
        """Modelled seconds: one combination per vector of columns, log2(lanes) steps per vector of a row."""
        n, block, lanes = self.anchor, int(c["block"]), int(c["lanes"])
        steps = CPU.prices.sum * (1.0 if self.columns else math.log2(lanes) if lanes > 1 else 1.0)
        steps *= PRICES.wide_moves if not self.columns and lanes * self.bits >= 512 else 1.0
        width = n.size([self.last]) if self.columns else n.cells
        blocks = n.cells // width * math.ceil(width / block)
        return self.levels.seconds(n.size(n.stage.iters) / lanes * steps, n.moved, blocks)

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
    """One long scan by cores in three steps: totals of tiles, exclusive scan of the totals, scan of each tile.

    Knobs: ``tile`` elements; ``lanes``: half as many save one step per vector but double the vectors, which pays if a
    step is several instructions.
    """

    rule = "tiled_scan"

    def knobs(self) -> Mapping[str, Sequence[object]]:
        steps = self.levels.lanes(self.bits, MOST_LANES, 1, order=(2, 1) if self.chooses else (1, 2))
        return {"tile": [4096, 1024, 2048], "lanes": steps}

    @functools.cached_property
    def combiners(self) -> list[Combiner]:
        """Combiners of the scan."""
        return [u.combiner for u in find(self.anchor.stage.body, Update)]

    @functools.cached_property
    def chooses(self) -> bool:
        """True if the combiner is a minimum or maximum, which costs several instructions to propagate NaN."""
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
        lanes = self.levels.lanes(self.bits, MOST_LANES, 1)[0]
        self.levels.reduce(s, total, [f"{total}.u"], {"lanes": lanes, "vectors": self.levels.accumulators[0]})
        for stage in (total, local):
            s.bind(f"{stage}.t", "block.x")
        if config["lanes"] > 1:
            s.vectorize(s.split(f"{local}.u", [None, config["lanes"]])[1])
