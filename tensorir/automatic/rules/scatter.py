"""Scatter: cells are filled side by side; terms go in order, in private copies where a scatter is all that there is.

On CPUs each term goes to all its columns at once where these are next to each other, so that lines are read and written
whole; cells that other axes keep apart are shared out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorir.automatic.facts import Graph, Nest, bytes_of, vector_lanes
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.stream import BYTES_S, on_cores
from tensorir.engines.model import CYCLES_S
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Iter, Update
from tensorir.ir.visit import find, uses
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

TERMS = 16
"""Terms of each cell of a private copy, at least: it is filled and combined again."""
THREADS = 256
RUN = 1024
"""Bytes of a row that a block has at least: less would share lines, and what is fetched ahead, with others."""
TERM_S = 1e-9
"""Seconds of a term, or of those in a vector."""
PARTS = 32
"""Parts of a block of a GPU, each of a thread."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """A scatter in private copies, where it and what fills its cells are all that there is; or with whole columns."""
    if anchor.kind != "scatter":
        return
    if anchor.constant:
        yield from _alone(graph, anchor, target)
    place = find(anchor.stage.body, Update)[0].index
    columns = next((it for it in anchor.spatial if place and place[-1] is it.var), None)
    if target.kind == "cpu" and columns:
        yield ColumnsPart(graph, anchor, target, columns)


def _alone(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """A scatter in private copies, where it and what fills its cells are all that there is."""
    fill = f"{anchor.name}.init"
    cells, terms = graph.nests[fill].cells if fill in graph.nests else 0, anchor.size(anchor.stage.iters)
    combines = find(anchor.stage.body, Update)[0].combiner.name != "set"
    if cells and combines and set(graph.nests) == {anchor.name, fill} and terms >= 2 * TERMS * cells:
        why = f"{terms} terms for {cells} cells, which each part of them has copies of"
        yield PrivatePart(graph, anchor, target, [fill], why)


class PrivatePart(Part):
    """One scatter, in copies of its cells for parts of its terms, combined in order. Knob: ``parts``."""

    rule = "private_scatter"

    @property
    def cells(self) -> int:
        """Cells of the result."""
        return self.graph.nests[f"{self.anchor.name}.init"].cells

    def knobs(self) -> Mapping[str, Sequence[object]]:
        most = self.anchor.size(self.anchor.stage.iters) // (TERMS * self.cells)
        wanted = (8, 4, 2, 16, 32) if self.target.kind == "cpu" else (256, 128, 64, 512, 1024, 32, 16, 8, 4, 2)
        return {"parts": [n for n in wanted if n <= most] or [2]}

    def expected(self) -> Callable[[Config], float] | None:
        copy = bytes_of(self.anchor.writes[0])
        at_once = 8 if self.target.kind == "cpu" else 256
        terms = TERM_S * self.anchor.size(self.anchor.stage.iters)
        return lambda c: terms / min(c["parts"], at_once) + 3 * c["parts"] * copy / BYTES_S[self.target.kind]

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        name = self.anchor.name
        s.redeclare("private_scatter", parts=config["parts"])
        block = f"{name}_part.part"
        if self.target.kind == "gpu":
            block, thread = s.split(block, [None, min(PARTS, config["parts"])])
            s.bind(thread, "thread.x")
        s.bind(block, "block.x")
        self._shared_out(s, f"{name}_part.init")
        joined = name if f"{name}_joined" not in s.index.stages else f"{name}_joined"
        self._shared_out(s, joined, f"{joined}.part")
        if joined != name:
            self._shared_out(s, name)

    def _shared_out(self, s: BaseSchedule, stage: str, part: str = "") -> None:
        """Cells in vectors of a CPU or threads of a GPU, ``part`` the axis of copies that each cell combines."""
        loops = [str(x) for x in s.loops(stage) if str(x) != part]
        if not loops:  # one cell, which is a number
            return
        if self.target.kind == "gpu":
            if part:
                s.reorder(*loops, part)
            s.share_out(*loops, each=THREADS, within="thread.x")
            return
        *rows, last = loops
        block, lane = s.split(last, [None, 16])
        s.reorder(*rows, block, *([part] if part else []), lane)
        s.share_out(*rows, block)
        s.vectorize(lane)


class ColumnsPart(Part):
    """A scatter on a CPU, each of its terms to a run of columns, which are the cells of one axis.

    Knobs: ``block`` columns of a block, ``lanes`` of a vector where all columns of a term go to one row.
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
        """Bits of the widest element that is read or written along columns."""
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

        def seconds(c: Config) -> float:
            blocks = rows * -(-self.width // int(c["block"]))
            return on_cores(self.target, TERM_S * CYCLES_S * terms / int(c["lanes"]), self.anchor.moved, blocks)

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
