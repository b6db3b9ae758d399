"""Stream: cells that have nothing in common are shared out to blocks, threads and lanes. It takes every stage."""

from __future__ import annotations

from collections.abc import Iterator

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target

THREADS = 256


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """The cells of one stage."""
    yield StreamPart(graph, anchor, target, reason=f"{anchor.cells} cells, each computed once")


class StreamPart(Part):
    """One stage, its cells shared out."""

    rule = "stream"

    def schedule(self, s: Schedule, config: Config) -> None:
        loops = [self.anchor.loops[it.var] for it in self.anchor.spatial]
        if not loops:
            return
        s.reorder(*loops, *(x for x in self.anchor.axes if x not in loops))
        cell = loops[0]
        for loop in loops[1:]:
            cell = s.fuse(cell, loop)
        if self.target.kind == "cpu":
            s.bind(cell, "block.x")
            return
        block, thread = s.split(cell, [None, THREADS])
        s.bind(block, "block.x").bind(thread, "thread.x")
