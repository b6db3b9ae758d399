"""Scheduling of scatters: fills are parallel; terms run in order, in private copies if the scatter is the whole
definition.

On CPUs a term is added to all its columns at once if these are contiguous; cells that other axes separate are
distributed over cores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorir.automatic.facts import Graph, Nest, bytes_of, vector_lanes
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import Config, Part
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Iter, Update
from tensorir.ir.visit import find, uses
from tensorir.machine import machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

TERMS = 16
"""Least terms per cell of a private copy, to amortize its fill and reduction."""
THREADS = 256
RUN = 1024
"""Least bytes of a row per block: less would share cache lines and prefetches with other blocks."""
PARTS = 32
"""Private copies per block of threads, one each."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for a scatter: private copies if it and its fill are the whole definition, with many terms per cell;
    on CPUs whole columns, if the last index of the update is a spatial axis.
    """
    if anchor.kind != "scatter":
        return
    if anchor.constant:
        yield from _alone(graph, anchor, target)
    place = find(anchor.stage.body, Update)[0].index
    columns = next((it for it in anchor.spatial if place and place[-1] is it.var), None)
    if columns and not levels_of(target).threaded:
        yield ColumnsPart(graph, anchor, target, columns)


def _alone(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part with private copies, if the scatter and its fill are the whole definition and terms are many."""
    fill = f"{anchor.name}.init"
    cells, terms = graph.nests[fill].cells if fill in graph.nests else 0, anchor.size(anchor.stage.iters)
    combines = find(anchor.stage.body, Update)[0].combiner.name != "set"
    if cells and combines and set(graph.nests) == {anchor.name, fill} and terms >= 2 * TERMS * cells:
        why = f"{terms} terms for {cells} cells, which each part of them has copies of"
        yield PrivatePart(graph, anchor, target, [fill], why)


class PrivatePart(Part):
    """Scatter into private copies of all cells, one per contiguous part of the terms, combined in order. Knob:
    ``parts``.
    """

    rule = "private_scatter"

    @property
    def cells(self) -> int:
        """Number of cells of the result."""
        return self.graph.nests[f"{self.anchor.name}.init"].cells

    def knobs(self) -> Mapping[str, Sequence[object]]:
        most = self.anchor.size(self.anchor.stage.iters) // (TERMS * self.cells)
        wanted = (256, 128, 64, 512, 1024, 32, 16, 8, 4, 2) if self.levels.threaded else (8, 4, 2, 16, 32)
        return {"parts": [n for n in wanted if n <= most] or [2]}

    def expected(self) -> Callable[[Config], float] | None:
        copy, machine = bytes_of(self.anchor.writes[0]), self.levels.machine
        at_once = machine.cores * (PARTS if self.levels.threaded else 1)
        terms = machine.prices.stream.term / machine.clock * self.anchor.size(self.anchor.stage.iters)
        return lambda c: terms / min(c["parts"], at_once) + machine.moved_s(3.0 * c["parts"] * copy)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        name = self.anchor.name
        s.redeclare("private_scatter", parts=config["parts"])
        block = f"{name}_part.part"
        self.levels.share_out(s, [block], min(PARTS, config["parts"]) if self.levels.threaded else None)
        self._shared_out(s, f"{name}_part.init")
        joined = name if f"{name}_joined" not in s.index.stages else f"{name}_joined"
        self._shared_out(s, joined, f"{joined}.part")
        if joined != name:
            self._shared_out(s, name)

    def _shared_out(self, s: BaseSchedule, stage: str, part: str = "") -> None:
        """Distribute the cells of a stage to lanes; ``part``: its reduction loop over copies."""
        loops = [str(x) for x in s.loops(stage) if str(x) != part]
        if not loops:  # one cell, which is a number
            return
        if self.levels.threaded:
            if part:
                s.reorder(*loops, part)
            self.levels.share_out(s, loops, THREADS)
            return
        *rows, last = loops
        block, lane = s.split(last, [None, 16])
        s.reorder(*rows, block, *([part] if part else []), lane)
        s.share_out(*rows, block)
        s.vectorize(lane)


class ColumnsPart(Part):
    """Scatter on a CPU whose terms each update a contiguous run of columns.

    Knobs: ``block``, columns per block; ``lanes`` per vector if all columns of a term go to one row.
    """

    rule = "scatter"

    def __init__(self, graph: Graph, anchor: Nest, target: Target, columns: Iter) -> None:
        self.columns, self.others = columns, [it for it in anchor.spatial if it is not columns]
        place = find(anchor.stage.body, Update)[0].index
        self.in_row = not any(uses(i, {columns.var}) for i in place[:-1])
        self.width = anchor.size([columns])
        super().__init__(graph, anchor, target, reason=f"terms in order, each to {self.width} columns")

    @functools.cached_property
    def bits(self) -> int:
        """Bits of the widest element type read or written along the columns."""
        made = self.anchor.writes
        read = [x.buffer for x in self.anchor.loads if any(uses(i, {self.columns.var}) for i in x.index)]
        return max(8, *(DTYPES[b.dtype].bits for b in (*made, *read)))

    def knobs(self) -> Mapping[str, Sequence[object]]:
        most = min(16, 2 * vector_lanes(self.target, self.bits))
        lanes = [n for n in (most, most // 2) if 1 < n <= self.width] if self.in_row else []
        step = lanes[0] if lanes else 1
        blocks = {-(-self.width // parts // step) * step for parts in (2, 4, 8)}
        narrow = [n for n in sorted(blocks, reverse=True) if n * self.bits >= 8 * RUN]
        return {"block": [self.width, *(n for n in narrow if n < self.width)], "lanes": lanes or [1]}

    def start(self) -> Config | None:
        return self.fastest()

    def expected(self) -> Callable[[Config], float] | None:
        rows, terms = self.anchor.size(self.others), self.anchor.size(self.anchor.stage.iters)
        cycles = machine_of(self.target).prices.stream.term * terms

        def seconds(c: Config) -> float:
            blocks = rows * -(-self.width // int(c["block"]))
            return self.levels.seconds(cycles / int(c["lanes"]), self.anchor.moved, blocks)

        return seconds

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        loops = self.anchor.loops
        outer, column = [loops[it.var] for it in self.others], loops[self.columns.var]
        terms = [x for x in self.anchor.axes if x not in (*outer, column)]
        if config["block"] < self.width:
            block, column = s.split(column, [None, config["block"]])
            outer.append(block)
        inner = s.split(column, [None, config["lanes"]]) if config["lanes"] > 1 else [column]
        s.reorder(*outer, *terms, *inner)
        if outer:
            s.share_out(*outer)
        if config["lanes"] > 1:
            s.vectorize(inner[-1])
