"""Transposition on GPUs through tiles in shared memory, so that loads and stores are both coalesced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorir.arith.access import along_last
from tensorir.automatic.facts import Graph, Nest, bytes_of
from tensorir.automatic.part import Config, Part
from tensorir.ir.tree import Iter, Load
from tensorir.ir.visit import uses
from tensorir.machine import machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

TILE = 32
"""Cells of a tile along each axis: a row is one warp, 128 bytes of float32."""
LEAST_CELLS = 16
"""Least cells along each axis."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a map on a GPU that reads an array along another axis than it writes, both of at least
    ``LEAST_CELLS`` cells.
    """
    if target.kind != "gpu" or anchor.kind != "map" or len(anchor.spatial) < 2 or not anchor.constant:
        return
    if found := crossing(anchor):
        yield TransposePart(graph, anchor, target, *found)


def crossing(anchor: Nest) -> tuple[Iter, Load] | None:
    """(axis, load): a load that is contiguous along ``axis``, not along the last axis; None if there is none."""
    last = anchor.spatial[-1]
    for x in anchor.loads:
        if len(x.index) < 2 or not any(uses(i, {last.var}) for i in x.index[:-1]):
            continue
        for it in anchor.spatial[:-1]:
            large = min(anchor.size([it]), anchor.size([last])) >= LEAST_CELLS
            if large and along_last(x, it.var) and sum(y.buffer is x.buffer for y in anchor.loads) == 1:
                return it, x
    return None


class TransposePart(Part):
    """One map in square tiles of two axes. Knob: ``rows`` of a tile written concurrently by its threads."""

    rule = "transpose"

    def __init__(self, graph: Graph, anchor: Nest, target: Target, axis: Iter, load: Load) -> None:
        kept = f"tiles of {TILE} x {TILE} of {load.buffer.name} are read and written in whole sectors"
        super().__init__(graph, anchor, target, reason=kept)
        self.axis, self.load = axis, load

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {"rows": [8, 4, 16]}

    def expected(self) -> Callable[[Config], float] | None:
        moved, read = self.anchor.moved, bytes_of(self.load.buffer)
        machine = machine_of(self.target)
        return lambda c: machine.moved_s(moved + read * abs(c["rows"] - 8) / 100)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        loops = self.anchor.loops
        across, last = loops[self.axis.var], loops[self.anchor.spatial[-1].var]
        others = [x for x in self.anchor.axes if x not in (across, last)]
        upper, row = s.split(across, [None, TILE])
        left, lane = s.split(last, [None, TILE])
        s.reorder(*others, upper, left, row, lane)
        (block,) = s.share_out(*others, upper, left)
        with s.because("transpose: one spare element a row, so that columns are in different banks"):
            s.stage_in(self.load.buffer.name, at=block, scope="shared", pad=1)
        turn, row = s.split(row, [None, config["rows"]])
        s.bind(row, "thread.y").bind(lane, "thread.x").unroll(turn)
