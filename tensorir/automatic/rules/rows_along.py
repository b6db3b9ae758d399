"""Row reductions along contiguous elements: lanes along the row.

Lanes of a core are those of vectors; several vectors of accumulators hide the latency of dependent additions. At the
end of a row they are combined as vectors, then four lanes at a time; lane by lane this would take as long as the row.
Intermediate rows stay in cache between passes.

Lanes of a multiprocessor are threads: thread t has the elements t, t + threads, …, and the results of threads are
combined by shuffles. A row read by several stages is copied to shared memory once, in vectors. Where rows are few,
several blocks share each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.automatic.facts import Nest, bytes_of, widest_bits
from tensorir.automatic.levels import choices, levels_of
from tensorir.automatic.part import Config, parts_of
from tensorir.automatic.rules.row_chain import Chain
from tensorir.automatic.rules.rows_part import RowsPart, kept_bytes, length_of, lies_along, shortest_end, trailing
from tensorir.automatic.rules.rows_split import RowsInParts
from tensorir.automatic.rules.stream import all_along
from tensorir.engines.blocks import joint
from tensorir.gpu_devices import usual_gpu
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.structure import identical
from tensorir.ir.tree import Buffer, Load, Var
from tensorir.ir.visit import has, uses
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

LITTLE_WORK = 1 << 18
"""Maximum operations of all stages whose launches take longer than the work of a few cores."""
SMALL_PRODUCT = 256
"""Multiply-adds of a product within a row, up to which it needs no register tile."""
ELEMENTS_PER_THREAD = 4
"""Most elements of a row for each thread, where rows are fewer than multiprocessors."""


class AlongPart(RowsPart):
    """Chain of stages row by row, a row in lanes.

    Knobs: ``rows`` per block or ``threads`` of a block, ``lanes`` per vector, ``vectors`` of accumulators; ``parts`` of
    a row, a block each, if rows are few.
    """

    @staticmethod
    def suits(chain: Chain, target: Target) -> bool:
        """True if rows are contiguous (``lies_along``) and a row's intermediate results fit near memory."""
        return lies_along(chain) and kept_bytes(chain) <= levels_of(target).near_bytes

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        levels, within = self.levels, self.chain.within
        even = 4 if self.anchor.constant and all(n.size(trailing(n, within(n))) % 4 == 0 for n in self._maps) else 1
        lanes = levels.lanes(self.bits, self.length, even)
        whole = levels.threaded and all(trailing(n, within(n)) == within(n) for n in self.nests)
        parts = self.in_parts(self.rows, 32 * max(lanes)) if whole else []
        return choices(
            rows=levels.rows(self.length, self.rows), threads=levels.threads(self.length), lanes=lanes,
            vectors=levels.accumulators, parts=[1, *parts] if parts else [],
        )  # fmt: skip

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        if not self.levels.accumulators:
            return {}
        return {"vectors of a row": lambda c: c["lanes"] * c["vectors"] <= self.length or c["vectors"] == 1}

    @cached_property
    def _maps(self) -> list[Nest]:
        return [n for n in self.nests if n.kind == "map" and self.chain.within(n)]

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def start(self) -> Config | None:
        return self.fastest()

    def _seconds(self, c: Config) -> float:
        """Modelled seconds: memory traffic, and the cycles of each pass over the rows."""
        levels, parts, within = self.levels, parts_of(c), self.chain.within
        passes = [(n, -(-self.chain.length(n) // parts), {it.var for it in within(n)}) for n in self.nests]
        cycles = sum(levels.passing(n, length, along, self.bits, c) for n, length, along in passes) * self.rows * parts
        blocks = -(-self.rows // int(c.get("rows", 1))) * parts
        return levels.seconds(cycles, self._moved(c), blocks, int(c.get("threads", 1))) + self.split_s(parts)

    def _moved(self, c: Config) -> float:
        """Bytes from and to memory; those of rows that several stages read again, unless they are near."""
        moved = sum(bytes_of(b) for b in self.outside)
        if not self.levels.threaded:
            return moved
        near = self._staged if parts_of(c) == 1 else []
        readers = {b: sum(b in n.reads for n in self.nests) for b in self.outside if b not in near}
        again = sum(bytes_of(b) * max(0, count - 1) for b, count in readers.items())
        return moved * (1.0 if int(c["lanes"]) > 1 else 1.0 + usual_gpu(self.target).words) + again

    # -- the steps

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        anchor = self.anchor
        if parts_of(config) > 1:
            self._in_parts(s, config)
            return
        if anchor.kind == "reduce":  # before its loops are split
            self.reduced(s, anchor, config)
        row = str(s.share_out(*self.chain.loops(s), each=config.get("rows"))[-1])
        steps = {anchor: self._spread(s, anchor, config)} if anchor.kind == "map" else {}
        for n in reversed(self.chain.stages):
            if n.kind == "reduce":
                self.reduced(s, n, config, row)
                continue
            s.compute_at(n.name, row, scope=self.scope(n, "shared" if self.chain.within(n) else "register"))
            steps[n] = self._spread(s, n, config)
        if self.levels.threaded:
            self._copy(s, row, steps, int(config["lanes"]))

    def _spread(self, s: BaseSchedule, n: Nest, c: Config) -> str:
        """Assign the elements of a map to lanes; return the loop over steps of a lane, "" without."""
        lanes, within = int(c["lanes"]), self.chain.within(n)
        if not within or lanes * int(c.get("threads", 1)) == 1:
            return ""
        length = n.size(trailing(n, within))
        again = length % lanes > 0 and length > lanes and n.constant  # the last vector begins earlier
        return self.levels.spread(s, self.trailing(s, n), c, shifts=again)

    def reduced(self, s: BaseSchedule, n: Nest, c: Config, row: str | None = None) -> None:
        """Assign the terms of the reduction ``n`` to lanes, in place or computed at loop ``row`` of its reader."""
        own, last = ([n.loops[it.var] for it in axes] for axes in (n.reduced, trailing(n, n.reduced)))
        scope = self.scope(n, "register")
        self.levels.reduce(s, n.name, last, c, own[: len(own) - len(last)], row, scope)

    def _copy(self, s: BaseSchedule, row: str, steps: Mapping[Nest, str], lanes: int) -> None:
        """Copy rows to shared memory that several stages read, and from there vectors of elements to registers."""
        anchor = self.anchor
        near = {b: b.name for n in self._maps if n is not anchor and not self.graph.is_output(n) for b in n.writes}
        for b in self._staged:
            with s.because(f"rows: {b.name} is read once, and then from shared memory"):
                near[b] = s.stage_in(b.name, at=row, scope="shared", vector=lanes).name
        for n, step in steps.items() if lanes > 1 else ():
            own = {*near, *(self._columns if n is anchor else ()), *(b for b in self.outside if self._along(n, b))}
            for b in (b for b in n.reads if b in own and step):
                with s.because(f"rows: {lanes} neighbours of {b.name} in one load"):
                    s.stage_in(near.get(b, b.name), at=step, scope="register", vector=lanes)

    def _in_parts(self, s: BaseSchedule, config: Config) -> None:
        """Share each row out to several blocks, in a kernel for each reduction and one for the results."""
        parts, threads, lanes = parts_of(config), int(config["threads"]), int(config["lanes"])

        def part(n: Nest) -> str:
            return s.split(joint(s, [n.loops[it.var] for it in trailing(n, n.reduced)]), [parts, None, threads])[0]

        def place(chain: Chain, n: Nest, name: str) -> str:
            if n.kind == "map":
                of, _, thread, lane = s.split(
                    joint(s, [n.loops[it.var] for it in chain.within(n)]), [parts, None, threads, lanes]
                )
                s.bind(thread, "thread.x")
                if lanes > 1:
                    s.vectorize(lane)
            else:
                of, rest, thread = s.loops(name)[-3:]
                s.reorder(thread, rest).reduce_across(thread, "thread.x")
            own = s.loops(name)
            return s.share_out(*own[: own.index(of) + 1])[0]

        RowsInParts(s, self.chain, part, place).schedule()

    # -- what is copied

    @cached_property
    def _staged(self) -> list[Buffer]:
        """Arrays whose row several stages read, to be staged within the limit of shared memory."""
        left = self.levels.near_bytes - kept_bytes(self.chain)
        found = []
        for b in (b for b in self.outside if b not in self.made):
            readers = [n for n in self.nests if b in n.reads]
            row = self.length * DTYPES[b.dtype].bits // 8
            if len(readers) > 1 and self.anchor.constant and row <= left and all(self._of_a_row(n, b) for n in readers):
                left -= row
                found.append(b)
        return found

    def _of_a_row(self, n: Nest, b: Buffer) -> bool:
        """True if a stage reads each element of an array's row once, none at a place that data choose."""
        within = {it.var for it in self.chain.within(n)}
        loads = [x for x in n.loads if x.buffer is b]
        if any(has(i, Load) for x in loads for i in x.index):
            return False
        return all(sum(uses(i, within) for i in x.index) == len(within) == _places(x, within) for x in loads)

    def _along(self, n: Nest, b: Buffer) -> bool:
        """True if a stage reads elements of less than 32 bits of its own row, contiguous per thread."""
        narrow, within = DTYPES[b.dtype].bits < 32, self.chain.within(n)
        loads = [x for x in n.loads if x.buffer is b]
        return bool(narrow and within) and self._of_a_row(n, b) and all(x.index[-1] is within[-1].var for x in loads)

    @cached_property
    def _columns(self) -> list[Buffer]:
        """Arrays that the anchor reads identically in every row (weight, bias), contiguous along the row."""
        last = [it.var for it in trailing(self.anchor, self.chain.within(self.anchor))]
        rows = {it.var for it in self.chain.rows}
        loads = [x for x in self.anchor.loads if not any(uses(i, rows) for i in x.index)]
        return list(dict.fromkeys(x.buffer for x in loads if identical(x.index[-len(last) :], last)))


class NearRowsPart(AlongPart):
    """Stages over the same rows that exchange elements of a row, each in near memory until all are done: small matrices
    (rows and columns summed in turn), or maps.
    """

    @property
    def name(self) -> str:
        return "rows_near"

    @staticmethod
    def exchanges(chain: Chain, target: Target) -> bool:
        """True if what is kept of a row fits near memory, adjacent elements are within it and, where nothing is
        reduced, fill lanes, and rows occupy the device or take little.

        Cores also take reductions within a row, with small products; threads take maps alone, of constant extents.
        """
        levels, nests = levels_of(target), (*chain.stages, chain.anchor)
        if not chain.rows or chain.grouped or not chain.within(chain.anchor) or kept_bytes(chain) > levels.near_bytes:
            return False
        if levels.threaded and not (chain.anchor.constant and all(n.kind == "map" and chain.within(n) for n in nests)):
            return False
        if any(chain.within(n) and n.spatial and n.spatial[-1] not in chain.within(n) for n in nests):
            return False
        if not chain.reduced and shortest_end(chain) < levels.group(widest_bits(nests)):
            return False
        little = sum(n.work for n in nests) <= LITTLE_WORK
        if levels.threaded:
            little = length_of(chain) <= ELEMENTS_PER_THREAD * target.max_threads
        wide = little or chain.count >= levels.machine.cores
        return wide and all(
            chain.length(n) <= SMALL_PRODUCT for n in chain.reduced if n.reuses and not _scales(chain, n)
        )

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {**super().knobs(), "lanes": self.levels.lanes(self.bits, shortest_end(self.chain), 1, order=(2, 1, 4))}

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


def _scales(chain: Chain, n: Nest) -> bool:
    """True if each term of a reduction is an element of its own, times factors of its row or column: no product."""
    return any({*chain.within(n)} <= {*n.along(x)} for x in n.loads)


def _places(x: Load, within: set[Var]) -> int:
    """Number of indices of ``x`` that are plain axes within a row."""
    return sum(i in within for i in x.index)
