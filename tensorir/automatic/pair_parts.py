"""Parts that have both stages of a pair: one inside the loops of the other, and both in loops that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorir.automatic.facts import Graph, Nest, bytes_of, vector_lanes, widest_bits
from tensorir.automatic.pairs import Apart, Pair
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.row_chain import chain_of
from tensorir.automatic.rules.rows_cpu import AlongPart
from tensorir.errors import ScheduleError, refuse
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Axis, Expr, Iter, Stage
from tensorir.ir.visit import uses, writes
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

CELLS = 1 << 14
"""Cells, or terms, of a block of a CPU."""
BLOCKS = 16
"""Blocks below which cores wait for the last one."""
THREADS = 128
"""Threads of a block of a GPU."""
ROWS_OF_A_BLOCK = 32
"""Rows of a block, where neighbours read the same rows of the producer."""

NEAR_BYTES = {"cpu": 1 << 18, "gpu": 1 << 9}
"""Bytes of a producer's cells that a core, or a thread, keeps near."""


def _divisor(n: int, most_of_it: int) -> int:
    """The largest divisor of a number up to a limit, or the limit where that is less than half of it."""
    limit = max(1, most_of_it)
    found = next(d for d in range(limit, 0, -1) if n % d == 0)
    return found if 2 * found > limit else limit


class PairPart(Part):
    """Both stages of a pair in one nest."""

    def __init__(self, graph: Graph, pair: Pair, target: Target) -> None:
        reason = f"{pair.first} and {pair.second} in one kernel"
        super().__init__(graph, graph.nests[pair.second], target, pair.names, reason)
        self.pair, self.first = pair, graph.nests[pair.first]
        self.cpu = target.kind == "cpu"

    def _lanes(self, *nests: Nest) -> int:
        """Lanes of a vector of the widest element that stages read or make."""
        return min(16, vector_lanes(self.target, widest_bits(nests)))

    def _reduced(self, s: BaseSchedule, n: Nest, at: str | None = None) -> bool:
        """Combine the terms of a stage that reduces rows in lanes of a CPU, as the rule for rows does, ``at`` a loop of
        what reads it or where it is; its loops of cells are made anew. False for other stages.
        """
        graph = Apart(s.program)
        chain = chain_of(graph, graph.nests[n.name]) if self.cpu and n.constant else None
        if chain is None or not chain.rows or not AlongPart.suits(chain):
            return False
        part = AlongPart(graph, self.target, chain)
        part.reduced(s, chain.anchor, part.start() or {}, at)
        return True

    def _rows(self, rows: int) -> int:
        """Rows of a block, of so many in all, which they divide where they are not to be threads."""
        if not self.cpu:
            return min(THREADS, rows)
        terms = max(n.size(n.stage.iters) for n in (self.first, self.anchor)) // max(1, rows)
        return _divisor(rows, min(CELLS // max(1, terms), rows // BLOCKS))

    def _shared_out(self, s: BaseSchedule, cells: Sequence[str], rows: int) -> tuple[str, ...]:
        return s.share_out(*cells, each=rows, within=None if self.cpu else "thread.x")

    def _vectors(self, s: BaseSchedule, n: Nest, loop: str) -> None:
        """Vectors along a loop of cells of a CPU, the loops of terms around them."""
        lanes, extent = self._lanes(n), most(s.index.loops[loop].extent)
        if self.cpu and extent >= lanes:
            shifts = n.kind == "map" and n.constant  # the last vector begins earlier: some cells are made again
            s.register_tile(loop, sizes=[lanes], lanes=lanes, tail="shift" if shifts and extent % lanes else "guard")


class NearPart(PairPart):
    """The producer inside a loop of the consumer, each of whose iterations computes what it reads."""

    rule = "compute_at"

    @property
    def lead(self) -> tuple[Iter, ...]:
        """The first axes of the consumer's cells whose iterations read cells of the producer that no other ones do."""
        loads = [x for x in self.anchor.loads if x.buffer in self.first.writes]
        own = self.anchor.spatial if self.anchor.reduced else self.anchor.spatial[:-1]
        found = []
        for n, it in enumerate(own):
            if not all(len(x.index) > n and x.index[n] is it.var for x in loads):
                break
            found.append(it)
        return tuple(found)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        a, b, lead = self.first, self.anchor, self.lead
        cells = [b.loops[it.var] for it in b.spatial]
        if not cells:
            s.compute_at(a.name, b.axes[0])
            return
        s.reorder(*cells, *(b.loops[it.var] for it in b.reduced))
        rows = self._reduced(s, b)
        if rows:
            cells = [str(x) for x in s.loops(b.name)[: len(cells)]]
        high = self._rows(b.size(lead)) if lead or not self.cpu else self._high()
        block, row = self._shared_out(s, cells[: len(lead) or 1], high)
        at = row if lead or not self.cpu else block
        own = self._reduced(s, a, at)
        if not own:
            s.compute_at(a.name, at)
        self._room(s, at)
        if not own and a.spatial:
            self._vectors(s, a, a.loops[a.spatial[-1].var])
        if not rows and cells[len(lead) or 1 :]:
            self._vectors(s, b, cells[-1])

    def _high(self) -> int:
        """Rows of a block whose neighbours read the same rows of the producer."""
        rows, line = self.anchor.size(self.anchor.spatial[:1]), sum(map(bytes_of, self.first.writes))
        line //= max(1, self.first.size(self.first.spatial[:1]))
        return _divisor(rows, min(ROWS_OF_A_BLOCK, rows // 4, NEAR_BYTES["cpu"] // 2 // max(1, line)))

    def _room(self, s: BaseSchedule, at: str) -> None:
        """Refuse to keep more near than a core, or a thread, has room for."""
        stage = s.index.stages[self.first.name]
        inside = s.index.between(s.index.loops[at], stage)
        cells = math.prod(most(x.extent) for x in inside if any(uses(w, {x.var}) for w in self._places(stage)))
        nbytes = sum(cells * DTYPES[b.dtype].bits // 8 for b in writes(stage.body))
        if nbytes > NEAR_BYTES[self.target.kind]:
            most_near = NEAR_BYTES[self.target.kind]
            message = f"an iteration of {at} reads {nbytes:,} bytes of {self.first.name}, and {most_near:,} stay near"
            raise refuse(ScheduleError, "fusions.room", message, hint="leave it a kernel of its own")

    @staticmethod
    def _places(stage: Stage) -> list[Expr]:
        return [bind for it, bind in zip(stage.iters, stage.binds, strict=True) if it.axis is Axis.SPATIAL]


class TogetherPart(PairPart):
    """Both nests in the outer loops that they share: what the first does in an iteration, and then the second."""

    rule = "fuse_with"

    @property
    def shared(self) -> int:
        """The number of first axes of cells with equal extents."""
        sizes = [[n.size([it]) for it in n.spatial] for n in (self.first, self.anchor)]
        return next((n for n, (x, y) in enumerate(zip(*sizes, strict=False)) if x != y), min(map(len, sizes)))

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        count, nests = self.shared, (self.first, self.anchor)
        flat = all(len(n.spatial) == count and n.kind == "map" for n in nests)
        for n in nests if count else ():
            cells = [n.loops[it.var] for it in n.spatial]
            s.reorder(*cells, *(n.loops[it.var] for it in n.reduced))
            if flat:
                self._flat(s, cells)
            else:
                self._nested(s, n, cells, count)
        s.fuse_with(*self.pair.names)

    def _flat(self, s: BaseSchedule, cells: Sequence[str]) -> None:
        """Cells in vectors of a CPU, or one for each thread."""
        lanes = self._lanes(self.first, self.anchor) if self.cpu else 1
        _, cell = self._shared_out(s, cells, lanes * (self._rows(self.first.cells) // lanes or 1))
        if self.cpu:
            s.register_tile(cell, sizes=[lanes], lanes=lanes)

    def _nested(self, s: BaseSchedule, n: Nest, cells: Sequence[str], count: int) -> None:
        """Iterations of the shared loops to blocks, what is inside in vectors."""
        reduced = count == len(cells) and self._reduced(s, n)
        if reduced:
            cells = [str(x) for x in s.loops(n.name)[:count]]
        rows = math.prod(n.size([it]) for it in n.spatial[:count])
        self._shared_out(s, cells[:count], self._rows(rows))
        if not reduced and cells[count:]:
            self._vectors(s, n, cells[-1])


class OwnPart(PairPart):
    """Both stages as they are scheduled alone, both by the configuration of the first one, in the loops they share."""

    rule = "fuse_with"

    def __init__(self, graph: Graph, pair: Pair, target: Target, own: Sequence[Part]) -> None:
        super().__init__(graph, pair, target)
        self.own = own

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        first, *_ = configs = [p.space.default for p in self.own]
        for part, c in zip(self.own, configs, strict=True):
            part.schedule(s, first if c.keys() == first.keys() else c)
        s.fuse_with(*self.pair.names)


def started(s: BaseSchedule, parts: Sequence[Part]) -> BaseSchedule:
    """Schedule parts, each by the configuration from which it starts."""
    for part in parts:
        part.steps(s, part.space.default)
    return s
