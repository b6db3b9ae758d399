"""Row reductions along contiguous elements on CPUs: lanes along the row, several vector accumulators, blocks of rows.

Several accumulators hide the latency of dependent additions. At the end of a row they are combined as vectors, then
four lanes at a time; lane by lane this would take as long as the row. Intermediate rows stay in cache between passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tensorir.automatic.counts import ISSUE, called
from tensorir.automatic.facts import Nest, bytes_of, vector_lanes, widest_bits
from tensorir.automatic.part import Config
from tensorir.automatic.rules.row_chain import Chain
from tensorir.automatic.rules.rows_part import RowsPart, kept_bytes, lies_along, shortest_end, trailing
from tensorir.automatic.rules.stream import SUM_CYCLES, all_along, narrow, on_cores
from tensorir.machine import machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

BLOCK = 1 << 15
"""Elements per block that amortize its start on a core."""
CACHE = 1 << 18
"""Bytes of a row's intermediate arrays that fit a core's cache."""
LITTLE_WORK = 1 << 18
"""Operations of all stages up to which launches take longer than the work of a few cores."""
SMALL_PRODUCT = 256
"""Multiply-adds of a product within a row, up to which it needs no register tile."""
JOINED_LANES = 4
"""Lanes in which the last partial results are combined."""


class AlongPart(RowsPart):
    """Chain of stages row by row, vectorized along the row.

    Knobs: ``rows`` per block, ``lanes`` per vector, ``vectors`` of accumulators.
    """

    @staticmethod
    def suits(chain: Chain) -> bool:
        """True if rows are contiguous (``lies_along``) and a row's intermediate results fit ``CACHE``."""
        return lies_along(chain) and kept_bytes(chain) <= CACHE

    @staticmethod
    def room(target: Target) -> int:
        """Bytes of a core's cache for intermediate results."""
        return CACHE

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
        """Modelled seconds: memory traffic, and the cycles of each pass over the rows."""
        lanes, vectors, rows = int(c["lanes"]), int(c["vectors"]), int(c["rows"])
        cycles = sum(self._cycles(n, lanes, vectors) for n in self.nests) * self.rows
        return on_cores(self.target, cycles, sum(bytes_of(b) for b in self.outside), -(-self.rows // rows))

    def _cycles(self, n: Nest, lanes: int, vectors: int) -> float:
        """Cycles of a stage per row: arithmetic, or the chain of dependent sums if longer, and combining
        accumulators.
        """
        length = self.chain.length(n)
        whole, rest = divmod(length, lanes)  # the tail of a reduction goes lane by lane
        steps = whole + (2 * rest if n.reduced else min(rest, 1))
        along = {it.var for it in self.chain.within(n)}
        calls = called(n, along)  # what all elements have in common is made once
        computed = steps * narrow(self.target, lanes, self.bits) * ((n.operations + len(n.loads)) / ISSUE + calls)
        if not n.reduced:
            return computed
        return max(computed, SUM_CYCLES * steps / vectors) + vectors + lanes / JOINED_LANES + JOINED_LANES

    # -- the steps

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        anchor = self.anchor
        if anchor.kind == "reduce":  # before its loops are split
            self.reduced(s, anchor, config)
        _, row = s.share_out(*self.chain.loops(s), each=config["rows"])
        if anchor.kind == "map":
            self._in_vectors(s, anchor, config)
        for n in reversed(self.chain.stages):
            if n.kind == "reduce":
                self.reduced(s, n, config, row)
                continue
            s.compute_at(n.name, row, scope=self.scope(n, "shared" if self.chain.within(n) else "register"))
            if n.kind == "map":
                self._in_vectors(s, n, config)

    def _in_vectors(self, s: BaseSchedule, n: Nest, c: Config) -> None:
        lanes, within = int(c["lanes"]), self.chain.within(n)
        if not within or lanes == 1:
            return
        length = n.size(trailing(n, within))
        again = length % lanes > 0 and length > lanes and n.constant  # the last vector begins earlier
        s.register_tile(self.trailing(s, n), sizes=[lanes], lanes=lanes, tail="shift" if again else "guard")

    def reduced(self, s: BaseSchedule, n: Nest, c: Config, row: str | None = None) -> None:
        """Vectorize the reduction ``n`` with vector accumulators, in place or computed at loop ``row`` of its
        reader.
        """
        if int(c["lanes"]) > 1:
            s.reduce_in_lanes(n.name, self.trailing(s, n), c["lanes"], vectors=c["vectors"], at=row)
        elif row is not None:
            s.compute_at(n.name, row, scope=self.scope(n, "register"))


class NearRowsPart(AlongPart):
    """Stages over small matrices (rows and columns summed in turn), each of which stays near until all are done."""

    @property
    def name(self) -> str:
        return "rows_near"

    @staticmethod
    def suits_on(chain: Chain, target: Target) -> bool:
        """True if there are rows for all cores, or little work, a row's intermediate results fit ``CACHE``, products in
        it are small, and what lies side by side is within it, in vectors where only maps go through it.
        """
        nests = (*chain.stages, chain.anchor)
        if not chain.rows or chain.grouped or not chain.within(chain.anchor) or kept_bytes(chain) > CACHE:
            return False
        if any(chain.within(n) and n.spatial and n.spatial[-1] not in chain.within(n) for n in nests):
            return False
        if not chain.reduced and 2 * shortest_end(chain) < vector_lanes(target, widest_bits(nests)):
            return False
        wide = chain.count >= machine_of(target).cores or sum(n.work for n in nests) <= LITTLE_WORK
        return wide and all(chain.length(n) <= SMALL_PRODUCT for n in chain.reduced if n.reuses)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        widest = vector_lanes(self.target, self.bits)
        most = min(16, shortest_end(self.chain))
        lanes = [n for n in (widest, widest // 2, widest // 4, 4) if 1 < n <= most]
        return {**super().knobs(), "lanes": list(dict.fromkeys(lanes)) or [1]}

    def reduced(self, s: BaseSchedule, n: Nest, c: Config, row: str | None = None) -> None:
        """Vectorize a reduction along what is contiguous: its terms, its cells, or nothing."""
        lanes, own = int(c["lanes"]), [it for it in self.chain.within(n) if it in n.spatial]
        terms = n.size(n.reduced[-1:])
        if all_along(n, n.reduced[-1].var) and terms >= lanes > 1:
            vectors = max(1, min(int(c["vectors"]), terms // lanes))
            s.reduce_in_lanes(n.name, n.loops[n.reduced[-1].var], lanes, vectors=vectors, at=row)
            return
        if row is not None:
            s.compute_at(n.name, row, scope=self.scope(n, "shared" if own else "register"))
        if lanes > 1 and own and all_along(n, own[-1].var) and n.size(own[-1:]) >= lanes:
            cell = n.loops[own[-1].var]
            s.reorder(*(n.loops[it.var] for it in n.reduced), cell)
            s.register_tile(cell, sizes=[lanes], lanes=lanes, tail="guard")
