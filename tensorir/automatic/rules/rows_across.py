"""Reductions along a strided axis: adjacent elements belong to different rows, so that lanes take one row each and
memory is read contiguously.

A core's lane has its row's terms one after another, several per step; threads share the terms of a row. Where rows are
few, several blocks share the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.automatic.counts import called
from tensorir.automatic.facts import Nest, bytes_of, vector_lanes
from tensorir.automatic.levels import choices
from tensorir.automatic.part import Config
from tensorir.automatic.rules.requests import WINDOW
from tensorir.automatic.rules.row_chain import Chain
from tensorir.automatic.rules.rows_part import RowsPart, kept_bytes
from tensorir.automatic.rules.rows_split import RowsInParts
from tensorir.automatic.rules.stream import PRICES, add_parts, all_along
from tensorir.engines.blocks import joint
from tensorir.schedule.schedule import BaseSchedule

LEAST_ROWS = 16
"""Least number of adjacent rows."""
TERMS = 8
"""Terms combined per step of a vector."""
PIECE = 128
"""Least terms of a cell per block of threads, when terms are split."""
COMBINE_STEPS = 4
"""Steps of a thread to combine the partial result of another one."""


class AcrossPart(RowsPart):
    """Chain whose rows are interleaved in memory: several rows at a time, one per lane.

    Knobs: ``columns``, rows per block; ``share``, threads per row; ``pieces``, parts of the terms if rows are few.
    """

    @property
    def name(self) -> str:
        return "rows_across"

    @staticmethod
    def suits(chain: Chain) -> bool:
        """True if adjacent elements belong to different rows, and there are at least ``LEAST_ROWS`` rows."""
        anchor, last = chain.anchor, chain.anchor.spatial[-1]
        if last not in chain.rows or chain.grouped or not anchor.constant or anchor.size([last]) < LEAST_ROWS:
            return False
        if not chain.stages and anchor.size(anchor.reduced) <= WINDOW:
            return False
        return all(all_along(n, chain.axis(n, last).var) for n in chain.reduced)

    @cached_property
    def width(self) -> int:
        """Number of rows that are adjacent in memory: the extent of the anchor's last axis."""
        return self.anchor.size(self.anchor.spatial[-1:])

    @cached_property
    def splits(self) -> bool:
        """True if the chain is a single reduction, whose terms may be split over blocks."""
        return self.anchor.kind == "reduce" and not self.chain.stages

    @property
    def terms(self) -> int:
        """Number of terms summed for one cell of the result."""
        return self.anchor.size(self.anchor.reduced)

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        columns = self.levels.adjacent(self.width, self.bits, lambda columns: self._near(columns, 2))
        few = bool(self.chain.stages) and self.rows < self.levels.machine.cores * columns[0]
        share = [8, 16, 4, 2, *([32, 64] if few else [])] if self.levels.threaded else []
        return choices(columns=columns, share=share, pieces=[1, *self._pieces(columns[0])])

    def _pieces(self, columns: int) -> list[int]:
        """Numbers of parts of the terms where rows are few."""
        if not self.levels.threaded:
            terms = self.anchor.size(self.anchor.reduced[:1])
            few = self.splits and self.rows * 8 <= terms * self.width
            return [n for n in (16, 8, 32) if few and n * 8 <= terms]
        pieces = [1 << n for n in range(1, 9) if self.splits and PIECE << n <= self.terms]
        return pieces or (self.in_parts(-(-self.rows // columns), PIECE) if self._side_by_side else [])

    @property
    def _side_by_side(self) -> bool:
        """True if each reduction's last spatial axis is the one of adjacent rows."""
        last, places = self.anchor.spatial[-1].var, self.chain.places
        return all(n.spatial and (at := places[n][-1]) is not None and at[0] is last for n in self.chain.reduced)

    def _near(self, columns: int, share: int) -> bool:
        """True if intermediate results of ``columns`` rows, or of the threads that share them, fit near memory."""
        kept = kept_bytes(self.chain) + 8 * share if self.levels.threaded else kept_bytes(self.chain) or 4
        return columns * kept <= self.levels.near_bytes

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        if not self.levels.threaded:
            first = self.knobs()["columns"][0]
            return {"whole rows in pieces": lambda c: c["pieces"] == 1 or c["columns"] == first}
        return {
            "shared memory": lambda c: self._near(c["columns"], c["share"]),
            "threads": lambda c: c["columns"] * c["share"] <= min(512, self.target.max_threads),
        }

    def start(self) -> Config | None:
        return self.fastest()

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def _seconds(self, c: Config) -> float:
        """Modelled seconds: steps of the lanes, memory traffic with that of partial sums, and the kernel after them.

        Traffic is slower for short contiguous runs, and by threads that have no row.
        """
        share, pieces, threaded = int(c.get("share", 1)), int(c["pieces"]), self.levels.threaded
        columns, machine = int(c["columns"]) if threaded or pieces == 1 else self.width, self.levels.machine
        blocks = self.rows // self.width * -(-self.width // columns) * pieces
        partial = bytes_of(self.anchor.writes[0]) * pieces if pieces > 1 else 0
        moved = sum(bytes_of(b) for b in self.outside)
        if not threaded:
            issue = machine.prices.operation.issue
            cycles = sum(self.chain.length(n) * (n.operations / issue + called(n)) for n in self.nests)
            runs = 1.0 if columns >= self.width else 1 + 8 * PRICES.rows / self.bits / columns
            whole, left = divmod(self.width, vector_lanes(self.target, self.bits))
            each = sum(self.chain.length(n) for n in self.chain.reduced) * machine.prices.operation.late_read
            cycles = self.rows / self.width * (whole * cycles + left * each)  # sums of lanes one by one stay in memory
            taken = self.levels.seconds(cycles, (moved + 4 * partial) * runs, blocks)
            return taken + machine.another_s * (pieces > 1)
        waste = -(-self.width // columns) * columns / self.width
        steps = sum(-(-self.chain.length(n) // (share * pieces)) * n.operations for n in self.nests)
        cycles = blocks * (steps + COMBINE_STEPS * share) * machine.turn
        taken = self.levels.seconds(cycles, (moved + 2 * partial * self.splits) * waste, blocks, columns * share)
        return taken + (machine.launch_s * (pieces > 1) if self.splits else self.split_s(pieces))

    @property
    def _lanes(self) -> int:
        """Lanes of two vectors of a core."""
        return self.levels.lanes(self.bits, self.width, 1)[0]

    # -- the steps

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        if int(config["pieces"]) > 1:
            if self.splits:
                self._in_pieces(s, config)
            else:
                self._rows_in_pieces(s, config)
            return
        block, column = self._blocks(s, int(config["columns"]))
        last = min(int(config["columns"]), self.width)
        last = self.width % last or last
        self._in_lanes(s, column, self._inner(self.anchor), self.anchor, config, last)
        s.bind(block, "block.x")
        for n in reversed(self.chain.stages):
            s.compute_at(n.name, block, scope=self.scope(n, "shared"))
            column = n.loops[self.chain.axis(n, self.anchor.spatial[-1]).var]
            self._in_lanes(s, column, self._inner(n), n, config, last)

    def _blocks(self, s: BaseSchedule, columns: int) -> tuple[str, str]:
        """(loop over blocks, loop over the rows of a block), for ``columns`` rows per block."""
        loops = self.anchor.loops
        rows = [loops[it.var] for it in self.chain.rows]
        block, column = s.split(rows[-1], [None, columns])
        s.reorder(*rows[:-1], block, *(x for x in self.anchor.axes if x not in rows), column)
        if not self.levels.threaded and columns < self.width and self.width % columns:
            if len(rows) > 1:
                s.share_out(*rows[:-1], to="block.y")
            s.partition(block, [self.width // columns])  # the last block alone has conditions for its lanes
            return block, column
        return joint(s, [*rows[:-1], block]), column

    def _inner(self, n: Nest) -> list[str]:
        """Names of a stage's loops within a row."""
        return [n.loops[it.var] for it in self.chain.within(n)]

    def _in_lanes(self, s: BaseSchedule, column: str, inner: Sequence[str], n: Nest, c: Config, last: int) -> None:
        """Assign rows to lanes; ``inner``: loops within a row, ``last``: rows of the last block."""
        if self.levels.threaded:
            self._in_threads(s, column, inner, n, int(c["share"]))
            return
        lanes = self._lanes
        if n.kind == "reduce":
            _, vector = s.register_tile(inner[-1], column, sizes=[TERMS, lanes], lanes=lanes)
        else:
            (vector,) = s.register_tile(column, sizes=[lanes], lanes=lanes)
            s.reorder(*inner, vector)
        if last % lanes and last > lanes:
            s.partition(vector, [last // lanes])

    @staticmethod
    def _in_threads(s: BaseSchedule, column: str, inner: Sequence[str], n: Nest, share: int) -> None:
        """Assign rows to adjacent threads, and the elements of a row to ``share`` of them."""
        if inner:
            rest, thread = s.split(inner[-1], [None, share])
            if n.kind == "reduce":
                s.reorder(column, thread, *inner[:-1], rest).reduce_across(thread, "thread.y")
            else:
                s.reorder(*inner[:-1], rest, thread, column).bind(thread, "thread.y")
        s.bind(column, "thread.x")

    def _in_pieces(self, s: BaseSchedule, c: Config) -> None:
        """Split the terms into parts over blocks, with a second kernel that adds the partial sums."""
        name, count, threaded = self.anchor.name, len(self.anchor.spatial), self.levels.threaded
        if threaded:
            self._place(s, s.rfactor(name, self._part(s, self.anchor, int(c["pieces"]))).name, self.anchor, c)
            add_parts(s, name, count)
            return
        part = s.rfactor(name, s.split(self.anchor.loops[self.anchor.reduced[0].var], [c["pieces"], None])[0]).name
        *cells, piece = [str(x) for x in s.loops(part)[: count + 1]]
        terms = [str(x) for x in s.loops(part)[count + 1 :]]
        s.reorder(piece, *cells[:-1], *terms, cells[-1])
        self._in_lanes(s, cells[-1], terms, self.anchor, c, self.width)
        s.share_out(piece, *cells[:-1])
        own = [str(x) for x in s.loops(name)]
        self._in_lanes(s, own[count - 1], own[count:], self.anchor, c, self.width)
        if count > 1:
            s.share_out(*own[: count - 1])

    def _rows_in_pieces(self, s: BaseSchedule, c: Config) -> None:
        """Split rows into parts over blocks; the next kernel combines them."""
        pieces = int(c["pieces"])

        def place(chain: Chain, n: Nest, name: str) -> str:
            if n.kind == "map":
                rows, inner = ([n.loops[it.var] for it in axes] for axes in (chain.rows, chain.within(n)))
                s.reorder(*rows, *inner)
                s.split(joint(s, inner), [pieces, None])
            return self._place(s, name, n, c)

        RowsInParts(s, self.chain, lambda n: self._part(s, n, pieces), place).schedule()

    @staticmethod
    def _part(s: BaseSchedule, n: Nest, pieces: int) -> str:
        """Split the terms of a reduction into ``pieces`` parts; return the loop over them."""
        terms = [n.loops[it.var] for it in n.reduced]
        s.reorder(*(n.loops[it.var] for it in n.spatial), *terms)
        return s.split(joint(s, terms), [pieces, None])[0]

    @staticmethod
    def _place(s: BaseSchedule, name: str, n: Nest, c: Config) -> str:
        """Assign parts of rows, computed by the stage called ``name``, to blocks and threads; return the loop over the
        rows of a block.
        """
        *cells, piece, term = s.loops(name)
        block, column = s.split(cells[-1], [None, int(c["columns"])])
        rest, thread = s.split(term, [None, int(c["share"])])
        s.reorder(*cells[:-1], block, piece, column, thread, rest)
        s.bind(column, "thread.x")
        if n.kind == "map":
            s.bind(thread, "thread.y")
        else:
            s.reduce_across(thread, "thread.y")
        s.share_out(*cells[:-1], block, piece)
        return str(column)
