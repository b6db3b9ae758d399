"""Rows on CPUs, stored along the axis: lanes along the row, a few accumulators each, rows in blocks for the cores.

A reduction has several vectors of partial results, so that an addition need not wait for the one before; at the end
of a row these are joined vector by vector, then four lanes at a time: one by one they would take as long as the row.
What stages make for a row stays in the core's cache from one pass over it to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tensorir.automatic.counts import ISSUE, called
from tensorir.automatic.facts import Nest, bytes_of, vector_lanes
from tensorir.automatic.part import Config
from tensorir.automatic.rules.row_chain import Chain
from tensorir.automatic.rules.rows_part import RowsPart, kept_bytes, lies_along, trailing
from tensorir.automatic.rules.stream import ADDED, fused, narrow, on_cores, partial_loop
from tensorir.ir.visit import writes
from tensorir.schedule.schedule import Schedule

BLOCK = 1 << 15
"""Elements of a block: enough to be worth handing to a core."""
CACHE = 1 << 18
"""Bytes of a row's own arrays that a core's cache keeps."""
JOINED = 4
"""Lanes in which the last partial results are combined."""


class AlongPart(RowsPart):
    """A chain of stages, a row at a time, in vectors along it.

    Knobs: ``rows`` of a block, ``lanes`` of a vector, ``vectors`` of partial results.
    """

    @staticmethod
    def suits(chain: Chain) -> bool:
        """Whether elements next to each other are of the same row, and a row's own arrays fit the cache."""
        return lies_along(chain) and kept_bytes(chain) <= CACHE

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        widest = min(16, 2 * vector_lanes(self.target, self.bits))
        lanes = [n for n in (widest, widest // 2, widest // 4) if 1 < n <= self.length] or [1]
        rows = [max(1, min(n // self.length, -(-self.rows // 4))) for n in (BLOCK, BLOCK // 4, BLOCK * 4)]
        return {"rows": list(dict.fromkeys(rows)), "lanes": lanes, "vectors": [4, 2, 1, 8]}

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        return {"vectors of a row": lambda c: c["lanes"] * c["vectors"] <= self.length or c["vectors"] == 1}

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def start(self) -> Config | None:
        return self.fastest()

    def _seconds(self, c: Config) -> float:
        """Bytes over bandwidth, and the steps of each pass: vectors, sums that wait for each other, and their joins."""
        lanes, vectors, rows = int(c["lanes"]), int(c["vectors"]), int(c["rows"])
        cycles = sum(self._cycles(n, lanes, vectors) for n in self.nests) * self.rows
        return on_cores(self.target, cycles, sum(bytes_of(b) for b in self.outside), -(-self.rows // rows))

    def _cycles(self, n: Nest, lanes: int, vectors: int) -> float:
        """Cycles of a stage for one row: what computes, or sums that wait for the ones before, and their joins."""
        length = self.chain.length(n)
        whole, rest = divmod(length, lanes)  # the tail of a reduction goes lane by lane
        steps = whole + (2 * rest if n.reduced else min(rest, 1))
        along = {it.var for it in self.chain.within(n)}
        calls = called(n, along)  # what all elements have in common is made once
        computed = steps * narrow(self.target, lanes, self.bits) * ((n.operations + len(n.loads)) / ISSUE + calls)
        if not n.reduced:
            return computed
        return max(computed, ADDED * steps / vectors) + vectors + lanes / JOINED + JOINED

    # -- the steps

    def schedule(self, s: Schedule, config: Config) -> None:
        anchor = self.anchor
        parts = self.parts(s, anchor, config) if anchor.kind == "reduce" else []  # before its loops are split
        row = self._row(s, config)
        for n in (anchor, *reversed(self.chain.stages)):
            if n is not anchor:
                parts = self.parts(s, n, config) if n.kind == "reduce" else []
            for name in (*self._below(n), *reversed(parts)):  # the last one first: it reads the others
                s.compute_at(name, anchor.name, row)
            self.near(s, n, parts)
            if parts:
                self.in_lanes(s, n, parts, config)
            elif n.kind == "map":
                self._in_vectors(s, n, config)

    def _row(self, s: Schedule, config: Config) -> str:
        """The loop over the rows of a block."""
        block, row = s.split(fused(s, self.chain.loops(s)), [None, config["rows"]])
        s.bind(block, "block.x")
        return row

    def _below(self, n: Nest) -> tuple[str, ...]:
        return () if n is self.anchor else (n.name,)

    def near(self, s: Schedule, n: Nest, parts: Sequence[str]) -> None:
        """Keep results of a row in registers, arrays as long as the row in the block's memory."""
        scope = "shared" if n.kind == "map" and self.chain.within(n) else "register"
        for name in (*self._below(n), *parts):
            for b in writes(s.index.stages[name].body):
                s.set_scope(b.name, scope)

    def _in_vectors(self, s: Schedule, n: Nest, c: Config) -> None:
        lanes, within = int(c["lanes"]), self.chain.within(n)
        if not within or lanes == 1:
            return
        loop = self.trailing(s, n)
        length = n.size(trailing(n, within))
        again = length % lanes > 0 and length > lanes and n.constant  # the last vector begins earlier
        s.vectorize(s.split(loop, [None, lanes], tail="shift" if again else "guard")[1])

    def parts(self, s: Schedule, n: Nest, c: Config) -> list[str]:
        """Partial results of a reduction: vectors of them, joined vector by vector and then four lanes at a time."""
        lanes, step = int(c["lanes"]), int(c["lanes"]) * int(c["vectors"])
        if lanes == 1:
            return []
        term = self.trailing(s, n)
        parts = [s.rfactor(n.name, s.split(term, [None, step])[1]).name]
        joins = [k for k in dict.fromkeys((lanes, min(lanes, JOINED))) if k < step]
        return parts + [s.rfactor(n.name, s.split(s.loops(n.name)[-1], [None, k])[1]).name for k in joins]

    def in_lanes(self, s: Schedule, n: Nest, parts: Sequence[str], c: Config) -> None:
        lanes, vectors = int(c["lanes"]), int(c["vectors"])
        first, *others = parts
        lane, rest = self._loops_of(s, first)
        length = n.size(trailing(n, n.reduced))
        self._whole(s, rest, length, lanes * vectors, n)
        group = ""
        if vectors > 1:
            group, lane = s.split(lane, [vectors, lanes])
        s.reorder(rest, *([group] if group else []), lane)
        if group:
            self._whole(s, group, length % (lanes * vectors), lanes, n)
            s.unroll(group)
        s.vectorize(lane)
        for name in others:
            lane, rest = self._loops_of(s, name)
            s.reorder(rest, lane)
            s.unroll(rest).vectorize(lane)
        s.unroll(s.loops(n.name)[-1])

    @staticmethod
    def _whole(s: Schedule, loop: str, length: int, step: int, n: Nest) -> None:
        """Let a loop run over whole steps, apart from the last one, which has a condition."""
        if length % step and length > step and n.constant:
            s.partition(loop, [length // step])

    @staticmethod
    def _loops_of(s: Schedule, name: str) -> tuple[str, str]:
        """The loop of the partial results that a stage makes, and the last one of its terms."""
        own = [str(x) for x in s.loops(name)]
        lane = partial_loop(s, name)
        return lane, next(x for x in reversed(own) if x != lane)
