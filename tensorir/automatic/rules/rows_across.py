"""Reductions along a strided axis: adjacent elements belong to different rows, so that lanes or threads take one row
each and memory is read contiguously.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.automatic.counts import ISSUE, called
from tensorir.automatic.facts import Nest, bytes_of, vector_lanes
from tensorir.automatic.part import Config
from tensorir.automatic.rules.requests import WINDOW
from tensorir.automatic.rules.row_chain import Chain
from tensorir.automatic.rules.rows_part import RowsPart, kept_bytes
from tensorir.automatic.rules.rows_split import RowsInParts
from tensorir.automatic.rules.stream import BYTES_S, JOIN_S, RUNS, add_parts, all_along, fused, on_cores
from tensorir.machine import machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.gpu_model import LAUNCH_S

LEAST_ROWS = 16
"""Least number of adjacent rows."""
TERMS = 8
"""Terms combined per step of a vector; default number of threads that share the terms of a cell."""
CACHE = 1 << 18
"""Bytes of a block's intermediate arrays that fit a core's cache."""
RESIDENT = 1024
"""Threads of a multiprocessor that use all of its bandwidth."""
PIECE = 128
"""Least terms of a cell per block on a GPU, when terms are split."""


def suits(chain: Chain) -> bool:
    """True if adjacent elements belong to different rows, and there are at least ``LEAST_ROWS`` rows."""
    last = chain.anchor.spatial[-1]
    if last not in chain.rows or chain.grouped or not chain.anchor.constant or chain.anchor.size([last]) < LEAST_ROWS:
        return False
    if not chain.stages and chain.anchor.size(chain.anchor.reduced) <= WINDOW:
        return False
    return all(_across(n, chain) for n in chain.reduced)


def _across(n: Nest, chain: Chain) -> bool:
    """True if a reduction's inputs are contiguous across rows, or do not depend on the row."""
    return all_along(n, chain.axis(n, chain.anchor.spatial[-1]).var)


class AcrossPart(RowsPart):
    """Base of parts for chains whose rows are interleaved in memory: several rows at a time."""

    @property
    def name(self) -> str:
        return "rows_across"

    @cached_property
    def width(self) -> int:
        """Number of rows that are adjacent in memory: the extent of the anchor's last axis."""
        return self.anchor.size(self.anchor.spatial[-1:])

    @cached_property
    def splits(self) -> bool:
        """True if the chain is a single reduction, whose terms may be split over blocks."""
        return self.anchor.kind == "reduce" and not self.chain.stages

    def start(self) -> Config | None:
        return self.fastest()

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    @abstractmethod
    def _seconds(self, c: Config) -> float: ...

    def _column(self, n: Nest) -> str:
        """Name of a stage's loop over adjacent rows."""
        return n.loops[self.chain.axis(n, self.anchor.spatial[-1]).var]

    def _blocks(self, s: BaseSchedule, columns: int) -> tuple[str, str]:
        """(loop over blocks, loop over the rows of a block), for ``columns`` rows per block."""
        loops = self.anchor.loops
        rows = [loops[it.var] for it in self.chain.rows]
        block, column = s.split(rows[-1], [None, columns])
        s.reorder(*rows[:-1], block, *(x for x in self.anchor.axes if x not in rows), column)
        if self.target.kind == "cpu" and columns < self.width and self.width % columns:
            if len(rows) > 1:
                s.share_out(*rows[:-1], to="block.y")
            s.partition(block, [self.width // columns])  # the last block alone has conditions for its lanes
            return block, column
        return fused(s, [*rows[:-1], block]), column

    def _inner(self, n: Nest) -> list[str]:
        """Names of a stage's loops within a row."""
        return [n.loops[it.var] for it in self.chain.within(n)]


class RowLanesPart(AcrossPart):
    """Rows in vector lanes on a CPU. Knobs: ``columns``, rows per block; ``pieces``, parts of the terms if rows are
    few.
    """

    def knobs(self) -> Mapping[str, Sequence[object]]:
        every = -(-self.width // self.lanes) * self.lanes
        some = (1024, 4096, 256, 64, 16, *([every] if every < 4096 and self.width % 16 else []))
        columns = [n for n in dict.fromkeys(some) if n < 2 * self.width and n * self._kept <= CACHE] or [16]
        terms = self.anchor.size(self.anchor.reduced[:1])
        pieces = [n for n in (16, 8, 32) if self.splits and self.rows * 8 <= terms * self.width and n * 8 <= terms]
        return {"columns": columns, "pieces": [1, *pieces]}

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        first = self.knobs()["columns"][0]
        return {"whole rows in pieces": lambda c: c["pieces"] == 1 or c["columns"] == first}

    @cached_property
    def _kept(self) -> int:
        """Bytes of intermediate results per row; those of one sum if there is only a single reduction."""
        return kept_bytes(self.chain) if self.chain.stages else 4

    @cached_property
    def lanes(self) -> int:
        """Lanes of two vectors of the widest element type; at most 16."""
        return min(16, 2 * vector_lanes(self.target, self.bits))

    def _seconds(self, c: Config) -> float:
        """Modelled seconds of a configuration: arithmetic overlapped with memory traffic, plus launch and joining.

        Traffic counts partial sums and is slower for short contiguous runs.
        """
        pieces = int(c["pieces"])
        columns = min(int(c["columns"]), self.width) if pieces == 1 else self.width
        blocks = self.rows // self.width * -(-self.width // columns) * pieces
        again = 4 * pieces * bytes_of(self.anchor.writes[0]) if pieces > 1 else 0
        moved = sum(bytes_of(b) for b in self.outside) + again
        cycles = sum(self.chain.length(n) * (n.operations / ISSUE + called(n)) for n in self.nests)
        computed = self.rows * cycles / self.lanes
        taken = on_cores(self.target, computed, moved * (1 + 8 * RUNS / self.bits / columns), blocks)
        return taken + (JOIN_S if pieces > 1 else 0.0)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        anchor, pieces = self.anchor, int(config["pieces"])
        if pieces > 1:
            self._in_pieces(s, pieces)
            return
        columns = int(config["columns"])
        block, column = self._blocks(s, columns)
        last = self.width % columns or columns if columns < self.width else self.width
        self._in_lanes(s, column, self._inner(anchor), anchor, last)
        s.bind(block, "block.x")
        for n in reversed(self.chain.stages):
            s.compute_at(n.name, block, scope=self.scope(n, "shared"))
            self._in_lanes(s, self._column(n), self._inner(n), n, last)

    def _in_lanes(self, s: BaseSchedule, column: str, inner: Sequence[str], n: Nest, last: int) -> None:
        """Vectorize a stage across rows, several terms per step; ``last``: rows of the last block."""
        if n.kind == "reduce":
            _, vector = s.register_tile(inner[-1], column, sizes=[TERMS, self.lanes], lanes=self.lanes)
        else:
            (vector,) = s.register_tile(column, sizes=[self.lanes], lanes=self.lanes)
            s.reorder(*inner, vector)
        if last % self.lanes and last > self.lanes:
            s.partition(vector, [last // self.lanes])

    def _in_pieces(self, s: BaseSchedule, pieces: int) -> None:
        """Split the terms into ``pieces`` parts over blocks, with a second kernel that adds the partial sums."""
        name, n = self.anchor.name, self.anchor
        count = len(n.spatial)
        part = s.rfactor(name, s.split(n.loops[n.reduced[0].var], [pieces, None])[0]).name
        own = [str(x) for x in s.loops(part)]
        cells, piece, terms = own[:count], own[count], own[count + 1 :]
        s.reorder(piece, *cells[:-1], *terms, cells[-1])
        self._in_lanes(s, cells[-1], terms, n, self.width)
        s.share_out(piece, *cells[:-1])
        own = [str(x) for x in s.loops(name)]
        self._in_lanes(s, own[count - 1], own[count:], n, self.width)
        if count > 1:
            s.share_out(*own[: count - 1])


class WarpsPart(AcrossPart):
    """Rows in adjacent threads on a GPU. Knobs: ``columns``, rows per block; ``share``, threads per row; ``pieces``,
    parts of the terms if rows are few.
    """

    def knobs(self) -> Mapping[str, Sequence[object]]:
        columns = [n for n in (32, 64, 128) if self._fits(n, 2)] or [16, 8]
        pieces = [n for n in (2, 4, 8, 16, 32, 64, 128, 256) if self.splits and n * PIECE <= self.terms]
        pieces = pieces or (self.in_parts(-(-self.rows // columns[0]), PIECE) if self._side_by_side else [])
        few = self.chain.stages and self.rows < machine_of(self.target).cores * columns[0]
        return {"columns": columns, "share": [8, 16, 4, 2, *([32, 64] if few else [])], "pieces": [1, *pieces]}

    @property
    def _side_by_side(self) -> bool:
        """True if each reduction's last spatial axis is the one of adjacent rows."""
        last, places = self.anchor.spatial[-1].var, self.chain.places
        return all(n.spatial and (at := places[n][-1]) is not None and at[0] is last for n in self.chain.reduced)

    @property
    def terms(self) -> int:
        """Number of terms summed for one cell of the result."""
        return self.anchor.size(self.anchor.reduced)

    def _fits(self, columns: int, share: int) -> bool:
        """True if intermediate results of ``columns`` rows and the threads' partial results fit shared memory."""
        return columns * (kept_bytes(self.chain) + 8 * share) <= self.target.shared_bytes

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        return {
            "shared memory": lambda c: self._fits(c["columns"], c["share"]),
            "threads": lambda c: c["columns"] * c["share"] <= min(512, self.target.max_threads),
        }

    def _seconds(self, c: Config) -> float:
        columns, share, pieces = int(c["columns"]), int(c["share"]), int(c["pieces"])
        blocks = self.rows // self.width * -(-self.width // columns) * pieces
        machine = machine_of(self.target)
        idle = max(1.0, machine.cores * RESIDENT / (blocks * columns * share))
        waste = -(-self.width // columns) * columns / self.width
        steps = sum(-(-self.chain.length(n) // (share * pieces)) * n.operations for n in self.nests)
        again = 2 * pieces * bytes_of(self.anchor.writes[0]) if pieces > 1 and self.splits else 0
        moved = sum(bytes_of(b) for b in self.outside) + again
        rate = machine.rate(moved) * machine.cores if self.chain.stages else BYTES_S["gpu"]
        more = self.split_s(pieces) if not self.splits else LAUNCH_S if pieces > 1 else 0.0
        return moved / rate * waste * idle + (steps + 4 * share) * 1e-9 + more

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        anchor, share = self.anchor, int(config["share"])
        if int(config["pieces"]) > 1:
            self._in_pieces(s, int(config["columns"]), share, int(config["pieces"]))
            return
        block, column = self._blocks(s, int(config["columns"]))
        self._in_threads(s, anchor, column, share)
        s.bind(block, "block.x")
        for n in reversed(self.chain.stages):
            s.compute_at(n.name, block, scope=self.scope(n, "shared"))
            self._in_threads(s, n, self._column(n), share)

    def _in_pieces(self, s: BaseSchedule, columns: int, share: int, pieces: int) -> None:
        """Split the terms into ``pieces`` parts over blocks; the next kernel combines them, or a second one."""

        def part(n: Nest) -> str:
            terms = [n.loops[it.var] for it in n.reduced]
            s.reorder(*(n.loops[it.var] for it in n.spatial), *terms)
            return s.split(fused(s, terms), [pieces, None])[0]

        def place(chain: Chain, n: Nest, name: str) -> str:
            if n.kind == "map":
                rows, inner = ([n.loops[it.var] for it in axes] for axes in (chain.rows, chain.within(n)))
                s.reorder(*rows, *inner)
                s.split(fused(s, inner), [pieces, None])
            *cells, piece, term = s.loops(name)
            block, column = s.split(cells[-1], [None, columns])
            rest, thread = s.split(term, [None, share])
            s.reorder(*cells[:-1], block, piece, column, thread, rest)
            s.bind(column, "thread.x")
            if n.kind == "map":
                s.bind(thread, "thread.y")
            else:
                s.reduce_across(thread, "thread.y")
            s.share_out(*cells[:-1], block, piece)
            return column

        if not self.splits:
            RowsInParts(s, self.chain, part, place).schedule()
            return
        place(self.chain, self.anchor, s.rfactor(self.anchor.name, part(self.anchor)).name)
        add_parts(s, self.anchor.name, len(self.anchor.spatial))

    def _in_threads(self, s: BaseSchedule, n: Nest, column: str, share: int) -> None:
        inner = self._inner(n)
        if n.kind == "reduce":
            rest, thread = s.split(inner[-1], [None, share])
            s.reorder(column, thread, *inner[:-1], rest)
            s.bind(column, "thread.x")
            s.reduce_across(thread, "thread.y")
            return
        if inner:
            rest, thread = s.split(inner[-1], [None, share])
            s.reorder(*inner[:-1], rest, thread, column)
            s.bind(thread, "thread.y")
        s.bind(column, "thread.x")
