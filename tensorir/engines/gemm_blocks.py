"""Base classes of GPU matrix-product engines: order of blocks, split-K, and leftover tiles of the last wave.

A wave is one tile per multiprocessor; the last wave leaves many idle if few tiles remain. Stream-K (Osama et al., PPoPP
2023) distributes the remaining iterations to blocks. Here the remaining tiles are whole rows of blocks, each tile's
reduction is split in equal parts, and a second kernel adds these up, so that no block waits for another one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

from tensorir.engines.blocks import add_by_tree, extent_of
from tensorir.engines.problems import Gemm
from tensorir.engines.steps import last_stage, out_stage, written_by
from tensorir.engines.tiles import Config, Knob, Knobs, Rule, Tile
from tensorir.gpu_devices import gpu_of
from tensorir.machine import machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_model import MatrixProduct, Tiles, seconds

UNSPLIT: Mapping[str, int] = {"raster": 1, "splits": 1, "atomic": 0, "rest": 0}
"""Knob values for row-major blocks without split reductions."""
TERMS = 128
"""Least terms per part of a split reduction."""
ADDERS = 256
"""Threads per block of the kernel that adds up partial sums."""
SPLIT_SHARE = 0.9
"""A default splits the reduction if its modelled time is less than this share of the unsplit one."""

Leave = Callable[[str, str, str], None]


def multiprocessors(target: Target) -> int:
    """Number of multiprocessors of the target device."""
    return machine_of(target).cores


# --- what is multiplied


class Operand(NamedTuple):
    """An operand as engines stage it: tensor name, and leading dimensions as index map text.

    together: number of contiguous neighbours in a row; None for whole rows
    inlined: computed during the copy instead of stored
    """

    name: str
    lead: str
    together: int | None = None
    inlined: bool = False

    def lanes(self, row: int, whole: int, most: int) -> int | None:
        """Vector width, in elements, for copying rows of ``row`` elements: a power of two up to ``most`` and 16 that
        divides ``row`` and the contiguous runs (``together``, else ``whole``, the array's row); None for scalars.
        """
        run = self.together or whole
        return next((n for n in (16, 8, 4, 2) if n <= most and row % n == 0 and run % n == 0), None)

    @property
    def dims(self) -> int:
        """Number of leading dimensions."""
        return self.lead.count(",")


class Sums(NamedTuple):
    """The accumulation that an engine schedules: ``stage`` accumulates products, ``out`` reads the result.

    outer: leading loops of ``out``;  own: those of ``stage``;  lead: leading dimensions as index map text
    leave: function (warpgroup or block loop, its row and column loops) that stores results as whole tiles, if they are
           not rows of a matrix
    """

    stage: str
    out: str
    outer: list[str]
    own: list[str]
    lead: str
    leave: Leave | None = None

    @property
    def made(self) -> str:
        """Stage that computes results from accumulators: ``out``, or the stage before its tile copy."""
        return self.out if self.leave is None else self.out.removesuffix(".out")

    @classmethod
    def over(cls, stage: str, out: str, axes: Sequence[str]) -> Self:
        """Sums whose row and column axes follow ``axes``."""
        outer, own = ([f"{name}.{x}" for x in axes] for name in (out, stage))
        return cls(stage, out, outer, own, "".join(f"{x}, " for x in axes))


Operands = Mapping[str, Operand]


def inline(s: BaseSchedule, given: Operands) -> BaseSchedule:
    """Inline producers of operands (those marked ``inlined``) into the copies of the operands; returns ``s``."""
    for name in (x.name for x in given.values() if x.inlined):
        s.compute_inline(name)
    return s


def in_groups(p: Gemm) -> bool:
    """True for a grouped product: the matrix depends on the row's group."""
    return p.align > 0


def each_product(p: Gemm) -> tuple[int, int, int, int]:
    """(rows, columns, terms, number) of the products, for grouped ones of each group's, assuming equal groups."""
    if not in_groups(p):
        return p.m, p.n, p.k, p.batch
    blocks = -(-p.m // p.align)
    groups = min(blocks, p.groups)
    return -(-blocks // groups) * p.align, p.n, p.k, groups


def plain_sums(p: Gemm) -> bool:
    """True if the result is the bare sum, in the accumulator's type, so that blocks may accumulate into it."""
    done = p.bias or p.act or p.alpha or p.beta
    return not done and p.dtype in ("float32", "int32", "int8", "uint8")


# --- engines


class Engine(Tile[Gemm], ABC):
    """A configuration of a matrix-product engine on a GPU.

    bk, depth: k extent of a tile, and number of pipelined tiles
    splits: parts of the reduction, added up by a second kernel
    scope, parts_scope: memory of the accumulators, of whole sums and of parts
    """

    bk, depth, splits = Knob[int](), Knob[int](), Knob[int]()
    scope: ClassVar[str] = "register"
    parts_scope: ClassVar[str] = "register"

    @property
    @abstractmethod
    def high(self) -> int:
        """Rows per block or cluster."""

    @property
    @abstractmethod
    def wide(self) -> int:
        """Columns per block."""

    @abstractmethod
    def product(self, s: BaseSchedule, of: Sums, given: Operands) -> BaseSchedule:
        """Schedule the sums ``of`` as a product of the operands ``given``; returns ``s``."""

    @property
    def unrolled(self) -> int:
        """Unrolled multiply-adds per thread; 0 for tile instructions."""
        return 0

    @property
    def tiles(self) -> tuple[int, int]:
        """(number of blocks along rows, number of blocks along columns) of one product."""
        return -(-self.p.m // self.high), -(-self.p.n // self.wide)

    @property
    def operand_bytes(self) -> int:
        return self.p.element_bytes * self.depth * self.bk * (self.high + self.wide)

    @property
    def sides(self) -> Iterator[tuple[int, int, int]]:
        yield self.high, 64, self.p.m
        yield self.wide, 64, self.p.n

    def of_one_group(self) -> bool:
        """True if all rows of a block use one matrix."""
        return not in_groups(self.p) or self.p.align % self.high == 0

    def sums(self, s: BaseSchedule, stage: str = "c", as_matrix: Callable[[str], None] = lambda out: None,
             epilogue: str | None = None) -> Sums:  # fmt: skip
        """Schedule the output stage; return the Sums (stage names and axes) of a product or of its parts.

        stage:     accumulates over rows i, columns j and terms k
        as_matrix: function that reindexes the output stage to rows and columns
        epilogue:  see ``out_stage``
        """
        acc = stage if self.splits == 1 else self._partial(s, stage)
        out = out_stage(s, stage, self.scope if acc == stage else "register", epilogue)
        as_matrix(out)
        if acc == stage:
            return Sums.over(stage, out, self.p.axes)
        self._add_up(s, self.p.axes, out, stage)
        return Sums.over(acc, s.stage_out(acc, at="root", scope=self.parts_scope).name, ["rf", *self.p.axes])

    # --- the reduction in parts

    @property
    def step(self) -> int:
        """Extent of k per tile."""
        return self.bk

    def worth_parts(self, expected: Callable[[Config], float]) -> int:
        """Value of ``splits`` with the least modelled time; 1 unless that is below ``SPLIT_SHARE`` of the unsplit one.

        1 also if rows and columns are at least as many as terms: smaller tiles would fill the device as well.
        """
        if self.p.k <= max(self.p.m, self.p.n):
            return 1
        tried = {n: self.but(splits=n) for n in ORDER[1].values}
        times = {n: expected(c.config) for n, c in tried.items() if c.parts() and c.waves()}
        best = min(times, key=lambda n: times[n])
        return best if times[best] < SPLIT_SHARE * times[1] else 1

    def parts(self) -> bool:
        """True if the reduction can be split as requested: ``splits`` parts of at least ``TERMS`` terms and four
        steps.
        """
        length = part_length(self.p.k, self.splits, self.step)
        return self.splits == 1 or (-(-self.p.k // length) == self.splits and length >= max(TERMS, 4 * self.step))

    def waves(self) -> bool:
        """True if unsplit, or if the split tiles make at most two waves of blocks."""
        rows, columns = self.tiles
        return self.splits == 1 or rows * columns * self.p.batch * self.splits <= 2 * multiprocessors(self.target)

    def _partial(self, s: BaseSchedule, stage: str) -> str:
        """Create and return the partial-sum stage of a split reduction."""
        length = part_length(self.p.k, self.splits, self.step)
        part, _ = s.split(f"{stage}.k", [None, length], names=("part", "k"))
        return s.rfactor(stage, part).name

    def _add_up(self, s: BaseSchedule, batch: Sequence[str], out: str, sums: str) -> None:
        """Schedule the second kernel, which adds partial sums in ``out``: a cell per thread, or by a tree."""
        cells = [f"{out}.{x}" for x in (*batch, "i", "j")]
        if add_by_tree(s, cells, f"{sums}.rf", ADDERS * _together(self.p), sums):
            return
        thread, few, lanes = _share_elements(s, self.p, batch, out)
        s.compute_at(sums, thread)
        s.reorder(*(f"{sums}.{x}" for x in ("rf", *batch, "i", "j")))
        s.unroll(f"{sums}.rf")
        if lanes > 1:
            s.stage_in(written_by(s, f"{sums}.rf"), at=f"{sums}.rf", scope="register", vector=lanes)
            s.vectorize(few).vectorize(f"{sums}.j")


ORDER = Knob(1, 8, 4, 2, 16), Knob(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128), Knob(0, 1), Knob(0, 1)
"""Knobs ``raster``, ``splits``, ``atomic`` and ``rest`` of ``Blocks``."""


class Blocks(Engine):
    """Base of CUDA engines with a traversal order of blocks and split reductions.

    raster: rows of blocks per band;  splits: parts of the reduction, added up by a second kernel, or if ``atomic`` by
    atomic additions to the result, in any order;  rest: 1 to split only the tiles of the last, partial wave
    in_flight: 1 if the pipeline's copies are asynchronous
    """

    in_flight = Knob(0, 1)
    raster, splits, atomic, rest = ORDER
    parts_scope = "warp"

    @classmethod
    @abstractmethod
    def starts(cls, p: Gemm, target: Target) -> list[dict[str, int]]:
        """Start configurations without split reductions, the largest tiles first."""

    @staticmethod
    @abstractmethod
    def modelled(p: Gemm) -> MatrixProduct:
        """The product in the performance model's terms."""

    @property
    @abstractmethod
    def model(self) -> Tiles:
        """This configuration in the performance model's terms."""

    @classmethod
    def knobs(cls, p: Gemm, target: Target) -> Knobs:
        return {**super().knobs(p, target), "rest": [0] if p.batch > 1 or in_groups(p) else [0, 1]}

    @classmethod
    def start(cls, p: Gemm, target: Target) -> Config:
        starts = [cls({**UNSPLIT, **c}, p, target) for c in cls.starts(p, target)]
        first = next((c for c in starts if c.of_one_group()), starts[-1])
        first = next(c for n in (8, 4, 2, 1) if (c := first.but(raster=n)).bands())
        expected = cls.expected(p, target)
        return {**first.config, "splits": first.worth_parts(expected) if expected else 1}

    @classmethod
    def expected(cls, p: Gemm, target: Target) -> Callable[[Config], float] | None:
        """Function from a configuration to modelled seconds, split products included; None for an unknown device."""
        gpu, product = gpu_of(target), cls.modelled(p)
        if gpu is None:
            return None
        known = gpu

        def time(c: Config) -> float:
            tile = cls(c, p, target)
            first = tile.whole_rows if tile.rest else 0
            if not first:
                return seconds(product, tile.model, known)
            head, rest = replace(product, m=first), replace(product, m=product.m - first)
            return seconds(head, tile.but(splits=1).model, known) + seconds(rest, tile.model, known)

        return time

    def ahead(self) -> bool:
        """True if the pipeline is feasible: asynchronous copies with several tiles, or register copies with two."""
        return self.depth >= 2 if self.in_flight else self.depth <= 2

    # --- the order of blocks

    def bands(self) -> bool:
        """True if blocks are traversed row by row, or in bands that divide the grid, which is larger than one wave
        then.
        """
        rows, columns = self.tiles
        return self.raster == 1 or (rows % self.raster == 0 and rows * columns > multiprocessors(self.target))

    def walked(self, s: BaseSchedule, outer: Sequence[str]) -> str:
        """Fuse the block loops ``outer`` into one, traversed in bands of ``raster`` rows for L2 locality; returns it.

        Bands are traversed column by column, so concurrent blocks form a square rather than a row. They read fewer
        distinct rows of one operand and columns of the other, which stay in the L2 cache.
        """
        *batch, bi, bj = outer
        if self.raster == 1:
            return s.fuse(*outer, name="tile")
        bands, row = s.split(bi, [None, self.raster])
        return s.reorder(bands, bj, row).fuse(*batch, bands, bj, row, name="tile")

    def bind_blocks(self, s: BaseSchedule, outer: Sequence[str]) -> None:
        """Bind block loops ``outer`` to the grid: (z, y, x), or one axis if in bands or too large."""
        *before, bi, bj = outer
        _, most_y, most_z = s.target.max_grid
        if math.prod(extent_of(s, x) for x in before) > most_z:
            s.bind(self.walked(s, outer), "block.x")
            return
        if self.raster > 1 or extent_of(s, bi) > most_y:
            s.bind(self.walked(s, [bi, bj]), "block.x")
        else:
            s.bind(bi, "block.y").bind(bj, "block.x")
        if before:
            s.bind(before[0] if len(before) == 1 else s.fuse(*before, name="part"), "block.z")

    # --- the reduction in parts

    @property
    def whole_rows(self) -> int:
        """Rows of the result covered by full waves; 0 if no wave is full or nothing is left over."""
        (rows, columns), units = self.tiles, multiprocessors(self.target)
        whole = rows * columns // units * units // columns
        return whole * self.high if whole < rows else 0

    def parts(self) -> bool:
        """True if the reduction can be split as requested, ``atomic`` only for ``plain_sums`` without ``rest``.

        Unsplit: True without ``atomic`` and ``rest``.
        """
        if self.splits == 1:
            return not (self.atomic or self.rest)
        return super().parts() and (not self.atomic or (not self.rest and plain_sums(self.p)))

    def waves(self) -> bool:
        """True if unsplit, or if the split tiles make at most two waves of blocks; with ``rest``, they and the unsplit
        ones must also be whole bands, and there must be both.
        """
        if self.splits == 1 or not self.rest:
            return super().waves()
        first = self.whole_rows
        head, rows = (-(-n // self.high) for n in (first, self.p.m - first))
        if not first or head % self.raster or rows % self.raster:
            return False  # bands with blocks that have nothing to do
        return rows * self.tiles[1] * self.p.batch * self.splits <= 2 * multiprocessors(self.target)

    rules: ClassVar[Mapping[str, Rule]] = {
        "one group": Engine.of_one_group, "bands": bands, "parts": parts, "waves": waves,
    }  # fmt: skip

    def sums(self, s: BaseSchedule, stage: str = "c", as_matrix: Callable[[str], None] = lambda out: None,
             epilogue: str | None = None) -> Sums:  # fmt: skip
        """As ``Engine.sums``; with ``atomic``, parts are added to the result by their own blocks."""
        if self.splits == 1 or not self.atomic:
            return super().sums(s, stage, as_matrix, epilogue)
        batch, acc = self.p.axes, self._partial(s, stage)
        first = s.decompose_reduction(stage, f"{stage}.{(*batch, 'i')[0]}").name
        _, few, lanes = _share_elements(s, self.p, batch, first)
        if lanes > 1:
            s.vectorize(few)
        return Sums.over(acc, s.atomic(stage)[stage].name, ["rf", *batch])

    def declare(self, s: BaseSchedule) -> None:
        """Redeclare the last wave's leftover rows as a separate product, if requested."""
        if self.rest:
            s.redeclare("stream_k", rest=self.p.m - self.whole_rows)

    def each(self, s: BaseSchedule, stage: str) -> Iterator[tuple[Self, Sums]]:
        """Yield (configuration, Sums) of the main product and of the separately declared leftover."""
        first, out = self.whole_rows, last_stage(s, stage)
        tail = s.cut(f"{out}.i", first - self.p.m).name
        yield self.but(replace(self.p, m=first), splits=1), Sums.over("head", out, [])
        stage = self._partial(s, "rest")
        self._add_up(s, [], tail, "rest")
        apart = s.stage_out(stage, at="root", scope="warp").name
        yield self.but(replace(self.p, m=self.p.m - first)), Sums.over(stage, apart, ["rf"])


def _together(p: Gemm) -> int:
    """Neighbours of a row that a thread of an elementwise kernel takes."""
    return next(n for n in (4, 2, 1) if p.n % n == 0)


def _share_elements(s: BaseSchedule, p: Gemm, batch: Sequence[str], out: str) -> tuple[str, str, int]:
    """(thread loop, neighbour loop, neighbours per thread) of an elementwise kernel over ``out``."""
    lanes = _together(p)
    j, few = s.split(f"{out}.j", [None, lanes])
    each = s.fuse(*(f"{out}.{x}" for x in batch), f"{out}.i", j, name="each")
    block, thread = s.split(each, [None, ADDERS])
    s.bind(block, "block.x").bind(thread, "thread.x")
    return thread, few, lanes


def part_length(k: int, splits: int, step: int) -> int:
    """Terms per part of a reduction of k terms, a multiple of ``step``; the last part may be shorter."""
    return -(-k // (splits * step)) * step
