"""Scatter: cells are filled side by side; terms go in order, in private copies where a scatter is all that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorir.automatic.facts import Graph, Nest, bytes_of
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.stream import BYTES_S, fused
from tensorir.ir.tree import Update
from tensorir.ir.visit import find
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target

TERMS = 16
"""Terms of each cell of a private copy, at least: it is filled and combined again."""
THREADS = 256
PARTS = 32
"""Parts of a block of a GPU, each of a thread."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """A scatter in private copies, where it and what fills its cells are all that there is."""
    if anchor.kind != "scatter" or not anchor.constant:
        return
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
        terms = 1e-9 * self.anchor.size(self.anchor.stage.iters)
        return lambda c: terms / min(c["parts"], at_once) + 3 * c["parts"] * copy / BYTES_S[self.target.kind]

    def schedule(self, s: Schedule, config: Config) -> None:
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

    def _shared_out(self, s: Schedule, stage: str, part: str = "") -> None:
        """Cells in vectors of a CPU or threads of a GPU, ``part`` the axis of copies that each cell combines."""
        loops = [str(x) for x in s.loops(stage) if str(x) != part]
        if self.target.kind == "gpu":
            if part:
                s.reorder(*loops, part)
            block, thread = s.split(fused(s, loops), [None, THREADS])
            s.bind(block, "block.x").bind(thread, "thread.x")
            return
        *rows, last = loops
        block, lane = s.split(last, [None, 16])
        s.reorder(*rows, block, *([part] if part else []), lane)
        s.bind(fused(s, [*rows, block]), "block.x").vectorize(lane)
