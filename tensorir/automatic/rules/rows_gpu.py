"""Row reductions along contiguous elements on GPUs: one block per row, or several, whose threads share the terms.

A row read by several stages is copied to shared memory once, in vectors. ``reduce_across`` gives thread t the elements
t, t + threads, … and combines the threads' results by shuffles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.automatic.facts import Nest, bytes_of
from tensorir.automatic.part import Config, parts_of
from tensorir.automatic.rules.row_chain import Chain
from tensorir.automatic.rules.rows_part import RowsPart, kept_bytes, length_of, lies_along, shortest_end, trailing
from tensorir.automatic.rules.rows_split import RowsInParts
from tensorir.automatic.rules.stream import fused
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.structure import identical
from tensorir.ir.tree import Buffer, Load, Var
from tensorir.ir.visit import uses
from tensorir.machine import machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

THREADS = (256, 128, 64, 32, 512)
WARP = 32
"""Least elements of a row in threads."""
ELEMENTS_PER_THREAD = 4
"""Most elements of a row for each thread, where rows are fewer than multiprocessors."""
RESIDENT = 8
"""Blocks of 256 threads resident on a multiprocessor."""


class BlockPart(RowsPart):
    """Chain of stages, one row per block. Knobs: ``threads`` per block, ``lanes`` per vector access; ``parts`` of a row
    if rows are few.
    """

    @staticmethod
    def suits(chain: Chain, target: Target) -> bool:
        """True if rows are contiguous and their intermediate arrays fit shared memory."""
        return lies_along(chain) and kept_bytes(chain) <= BlockPart.room(target)

    @staticmethod
    def room(target: Target) -> int:
        """Bytes of shared memory for intermediate results."""
        return target.shared_bytes - 2048

    def knobs(self) -> Mapping[str, Sequence[object]]:
        useful = [n for n in THREADS if n < 2 * self.length and n <= self.target.max_threads] or [32]
        most = 8 * min(16, self.target.vector_bytes) // self.bits
        fours = all(n.size(trailing(n, self.chain.within(n))) % 4 == 0 for n in self._maps) and self.anchor.constant
        lanes = [n for n in (4, 2) if n <= most and fours] + [1]
        whole = all(trailing(n, self.chain.within(n)) == self.chain.within(n) for n in self.nests)
        parts = self.in_parts(self.rows, 32 * max(lanes)) if whole else []
        return {"threads": useful, "lanes": lanes, **({"parts": [1, *parts]} if parts else {})}

    @cached_property
    def _maps(self) -> list[Nest]:
        return [n for n in self.nests if n.kind == "map" and self.chain.within(n)]

    def start(self) -> Config | None:
        return self.fastest()

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def _seconds(self, c: Config) -> float:
        """Modelled seconds: traffic of the busy multiprocessors, more if scalar, steps and barriers of all waves."""
        threads, lanes, parts, machine = int(c["threads"]), int(c["lanes"]), parts_of(c), machine_of(self.target)
        near = self._staged if parts == 1 else []
        readers = {b: sum(b in n.reads for n in self.nests) for b in self.outside if b not in near}
        moved = sum(bytes_of(b) for b in self.outside)
        again = sum(bytes_of(b) * max(0, count - 1) for b, count in readers.items())
        moved_s = (moved * (1.0 if lanes > 1 else 1.05) + again) / (machine.rate(moved) * machine.cores)
        steps = sum(-(-self.chain.length(n) // threads) * (n.operations + 4 * n.calls) for n in self.nests)
        waves = max(1.0, self.rows * threads / (RESIDENT * machine.cores * 256))
        waits = (len(self.nests) + 2 * len(self.chain.reduced)) * machine.barrier * (1 + threads / 1024)
        taken = waves * (steps / parts * machine.turn + waits) / machine.clock
        return moved_s / machine.busy(self.rows * parts, threads) + taken + self.split_s(parts)

    # -- the steps

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        anchor, threads = self.anchor, int(config["threads"])
        if parts_of(config) > 1:
            self._in_parts(s, config)
            return
        (row,) = s.share_out(*self.chain.loops(s))
        threads_of = {anchor: self._in_threads(s, anchor, config)} if anchor.kind == "map" else {}
        if anchor.kind == "reduce":
            self._shared_out(s, anchor, threads)
        for n in reversed(self.chain.stages):
            if n.kind == "reduce":
                s.compute_at(n.name, row)
                self._shared_out(s, n, threads)
                continue
            s.compute_at(n.name, row, scope=self.scope(n, "shared" if self.chain.within(n) else "register"))
            if thread := self._in_threads(s, n, config):
                threads_of[n] = thread
        lanes = int(config["lanes"])
        near = {b: b.name for n in self._maps if n is not anchor and not self.graph.is_output(n) for b in n.writes}
        for b in self._staged:
            with s.because(f"rows: {b.name} is read once, and then from shared memory"):
                near[b] = s.stage_in(b.name, at=row, scope="shared", vector=lanes).name
        for n, thread in threads_of.items() if lanes > 1 else ():
            own = {*near, *(self._columns if n is anchor else ()), *(b for b in self.outside if self._along(n, b))}
            for b in (b for b in n.reads if b in own):
                with s.because(f"rows: {lanes} neighbours of {b.name} in one load"):
                    s.stage_in(near.get(b, b.name), at=thread, scope="register", vector=lanes)

    def _in_parts(self, s: BaseSchedule, config: Config) -> None:
        """Share each row out to several blocks, in a kernel for each reduction and one for the results."""
        parts, threads, lanes = parts_of(config), int(config["threads"]), int(config["lanes"])

        def part(n: Nest) -> str:
            return s.split(fused(s, self._last(n)), [parts, None, threads])[0]

        def place(chain: Chain, n: Nest, name: str) -> str:
            if n.kind == "map":
                of, _, thread, lane = s.split(
                    fused(s, [n.loops[it.var] for it in chain.within(n)]), [parts, None, threads, lanes]
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

    def _in_threads(self, s: BaseSchedule, n: Nest, c: Config) -> str:
        """Bind the elements of a map to threads, ``lanes`` adjacent ones each; return the thread loop, "" for one
        element per row.
        """
        if not self.chain.within(n):
            return ""
        lanes = int(c["lanes"])
        _, thread, lane = s.split(self.trailing(s, n), [None, int(c["threads"]), lanes])
        s.bind(thread, "thread.x")
        if lanes > 1:
            s.vectorize(lane)
        return thread

    def _shared_out(self, s: BaseSchedule, n: Nest, threads: int) -> None:
        """Distribute the terms of a reduction over ``threads`` threads."""
        own = [n.loops[it.var] for it in n.reduced]
        last = self._last(n)
        rest, thread = s.split(fused(s, last), [None, threads])
        s.reorder(thread, *own[: len(own) - len(last)], rest)
        s.reduce_across(thread, "thread.x")

    def _last(self, n: Nest) -> list[str]:
        return [n.loops[it.var] for it in trailing(n, n.reduced)]

    # -- what is copied

    @cached_property
    def _staged(self) -> list[Buffer]:
        """Arrays whose row several stages read, to be staged within the limit of shared memory."""
        left = self.room(self.target) - kept_bytes(self.chain)
        found = []
        for b in (b for b in self.outside if b not in self.made):
            readers = [n for n in self.nests if b in n.reads]
            row = self.length * DTYPES[b.dtype].bits // 8
            if len(readers) > 1 and self.anchor.constant and row <= left and all(self._of_a_row(n, b) for n in readers):
                left -= row
                found.append(b)
        return found

    def _of_a_row(self, n: Nest, b: Buffer) -> bool:
        """True if a stage reads each element of an array's row once."""
        within = {it.var for it in self.chain.within(n)}
        loads = [x for x in n.loads if x.buffer is b]
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


class NearBlockPart(BlockPart):
    """Maps over the same rows that exchange elements of a row: one row per block, whose arrays are shared memory."""

    @property
    def name(self) -> str:
        return "rows_near"

    @staticmethod
    def suits_on(chain: Chain, target: Target) -> bool:
        """True if the chain reduces nothing, its rows are contiguous and fill a warp, what is kept of one fits
        shared memory, and few rows are short.
        """
        nests = (*chain.stages, chain.anchor)
        if not chain.rows or chain.reduced or chain.grouped or not chain.anchor.constant:
            return False
        if any(not chain.within(n) or n.spatial[-1] not in chain.within(n) for n in nests):
            return False
        short = length_of(chain) <= ELEMENTS_PER_THREAD * target.max_threads
        several = short or chain.count >= machine_of(target).cores
        return several and shortest_end(chain) >= WARP and kept_bytes(chain) <= BlockPart.room(target)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {"threads": super().knobs()["threads"], "lanes": [1]}


def _places(x: Load, within: set[Var]) -> int:
    """Number of indices of ``x`` that are plain axes within a row."""
    return sum(i in within for i in x.index)
