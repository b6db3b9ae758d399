"""Blocks of a tiled product on GPUs: in which order they are walked, and how many share one tile's reduction.

A device of so many multiprocessors makes as many tiles at a time; the last wave leaves most of them idle where few
tiles are left. Osama et al. ("Stream-K", PPoPP 2023) deal iterations instead of tiles out to blocks for what is left.
Here whole rows of blocks are left, each tile is distributed in equal parts, and a kernel of its own adds these up, so
that no block waits for another one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

from tensorir.engines.blocks import extent_of
from tensorir.engines.problems import Gemm
from tensorir.engines.steps import last_stage, out_stage, written_by
from tensorir.engines.tiles import Config, Knob, Knobs, Rule, Tile
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.gpu_model import MatrixProduct, Tiles, seconds

MULTIPROCESSORS = 132
"""Of an H100 or H200, where nothing says how many there are."""
UNSPLIT: Mapping[str, int] = {"raster": 1, "splits": 1, "atomic": 0, "rest": 0}
"""Blocks in rows, each with all terms of its tile."""
TERMS = 128
"""Of a part, at least."""
ADDERS = 256
"""Threads of a block that adds up partial sums."""
SPLIT_SHARE = 0.9
"""A reduction is split by default where that is expected to take less than this share of the time."""

Leave = Callable[[str, str, str], None]


def multiprocessors(target: Target) -> int:
    """Of the device that kernels are made for."""
    gpu = gpu_of(target)
    return gpu.units if gpu else target.units or MULTIPROCESSORS


# --- what is multiplied


class Operand(NamedTuple):
    """An operand as templates stage it: its name, and its dimensions before rows and columns as index maps say them.

    together: how many neighbours in a row of it are contiguous in memory; None for whole rows
    inlined: it is computed where it is copied, and not stored
    """

    name: str
    lead: str
    together: int | None = None
    inlined: bool = False

    def lanes(self, row: int, whole: int, most: int) -> int | None:
        """Neighbours that a copy of rows of ``row`` elements takes at once, out of ``whole``: a power of two up to
        ``most`` that divides what is contiguous; None for one by one.
        """
        run = self.together or whole
        return next((n for n in (16, 8, 4, 2) if n <= most and row % n == 0 and run % n == 0), None)

    @property
    def dims(self) -> int:
        """The number of dimensions before rows and columns."""
        return self.lead.count(",")


class Sums(NamedTuple):
    """The sums that a template schedules: ``stage`` adds up products, ``out`` takes the sums from there.

    outer: loops of ``out`` that stand before rows and columns;  own: those of ``stage``;  lead: dimensions of the sums
           before rows and columns, as an index map says them
    leave: told the loop over warpgroups, or over blocks, and those over the rows and columns of one, lets results leave
           in whole tiles where these are no rows of a matrix
    """

    stage: str
    out: str
    outer: list[str]
    own: list[str]
    lead: str
    leave: Leave | None = None

    @property
    def made(self) -> str:
        """The stage that makes results of the sums: ``out``, or the one that it takes whole tiles from."""
        return self.out if self.leave is None else self.out.removesuffix(".out")

    @classmethod
    def over(cls, stage: str, out: str, axes: Sequence[str]) -> Self:
        """Those whose rows and columns come after ``axes``."""
        outer, own = ([f"{name}.{x}" for x in axes] for name in (out, stage))
        return cls(stage, out, outer, own, "".join(f"{x}, " for x in axes))


Operands = Mapping[str, Operand]


def inline(s: BaseSchedule, given: Operands) -> BaseSchedule:
    """Compute what operands are made of where it is copied."""
    for name in (x.name for x in given.values() if x.inlined):
        s.compute_inline(name)
    return s


def in_groups(p: Gemm) -> bool:
    """True when the matrix that rows are multiplied with is that of their group."""
    return p.align > 0


def each_product(p: Gemm) -> tuple[int, int, int, int]:
    """Rows, columns and terms of each product, and how many there are; groups are expected to be of equal size."""
    if not in_groups(p):
        return p.m, p.n, p.k, p.batch
    blocks = -(-p.m // p.align)
    groups = min(blocks, p.groups)
    return -(-blocks // groups) * p.align, p.n, p.k, groups


def plain_sums(p: Gemm) -> bool:
    """True when the result is the sums themselves, to which blocks can add."""
    done = p.bias or p.act or p.alpha or p.beta
    return not done and p.dtype in ("float32", "int32", "int8", "uint8")


# --- engines


class Engine(Tile[Gemm], ABC):
    """A configuration of what multiplies two matrices on a GPU.

    bk, depth: terms that are multiplied at a time, and how many tiles of them a pipeline holds
    scope: where sums are held
    """

    bk, depth = Knob[int](), Knob[int]()
    scope: ClassVar[str] = "register"

    @property
    @abstractmethod
    def high(self) -> int:
        """Rows of a block, or of a cluster."""

    @property
    @abstractmethod
    def wide(self) -> int:
        """Columns of a block."""

    @abstractmethod
    def product(self, s: BaseSchedule, of: Sums, given: Operands) -> BaseSchedule:
        """Schedule the product ``of`` two tensors, a and b as they are ``given``."""

    @property
    def unrolled(self) -> int:
        """Multiply-adds of a thread that are written out; 0 of instructions for whole tiles."""
        return 0

    @property
    def tiles(self) -> tuple[int, int]:
        """Blocks, or clusters, along the rows and along the columns of the result."""
        return -(-self.p.m // self.high), -(-self.p.n // self.wide)

    @property
    def operand_bytes(self) -> int:
        return self.p.element_bytes * self.depth * self.bk * (self.high + self.wide)

    @property
    def sides(self) -> Iterator[tuple[int, int, int]]:
        yield self.high, 64, self.p.m
        yield self.wide, 64, self.p.n

    def of_one_group(self) -> bool:
        """True when all rows of a block, or of a cluster, are multiplied with one matrix."""
        return not in_groups(self.p) or self.p.align % self.high == 0

    def sums(self, s: BaseSchedule, stage: str = "c", as_matrix: Callable[[str], None] = lambda out: None,
             epilogue: str | None = None) -> Sums:  # fmt: skip
        """The stages of a product.

        stage: what adds up products, over rows i, columns j and terms k;  as_matrix: told the stage that writes the
               result, makes loops over rows and columns of those that it has;  epilogue: as ``out_stage`` takes it
        """
        out = out_stage(s, stage, self.scope, epilogue)
        as_matrix(out)
        return Sums.over(stage, out, self.p.axes)


ORDER = Knob(1, 8, 4, 2, 16), Knob(1, 2, 3, 4, 6, 8, 12, 16, 24, 32), Knob(0, 1), Knob(0, 1)
"""Of blocks: rows of a band, parts of the reduction, how they meet, whether only what whole waves leave is in parts."""


class Blocks(Engine):
    """The walk over the blocks of a product, and the number that share one tile's reduction (CUDA).

    raster: rows of blocks in a band;  splits: parts of the reduction, which a second kernel adds up, or which with
    ``atomic`` are added to the result in any order;  rest: only what whole waves leave is in parts
    in_flight: copies of the pipeline are asynchronous
    """

    in_flight = Knob(0, 1)
    raster, splits, atomic, rest = ORDER

    @property
    def step(self) -> int:
        """Terms that are multiplied at a time."""
        return self.bk

    @classmethod
    @abstractmethod
    def starts(cls, p: Gemm, target: Target) -> list[dict[str, int]]:
        """Configurations to start with, the one of the largest tiles in front; ``UNSPLIT`` is the rest of them."""

    @staticmethod
    @abstractmethod
    def modelled(p: Gemm) -> MatrixProduct:
        """A product as the model of kernels knows it."""

    @property
    @abstractmethod
    def model(self) -> Tiles:
        """This configuration as the model of kernels knows it."""

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
        """Likewise, of two products where the rest is computed apart; None for an unknown device."""
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

    def worth_parts(self, expected: Callable[[Config], float]) -> int:
        """Parts to start with: those of the least expected time, where that is worth a second kernel.

        Where rows and columns are no fewer than terms, smaller tiles would fill the device as well.
        """
        if self.p.k <= max(self.p.m, self.p.n):
            return 1
        tried = {n: self.but(splits=n) for n in ORDER[1].values}
        times = {n: expected(c.config) for n, c in tried.items() if c.parts() and c.waves()}
        best = min(times, key=lambda n: times[n])
        return best if times[best] < SPLIT_SHARE * times[1] else 1

    def ahead(self) -> bool:
        """True when copies have room: asynchronous ones in more tiles than one, others in registers, which hold one."""
        return self.depth >= 2 if self.in_flight else self.depth <= 2

    # --- the order of blocks

    def bands(self) -> bool:
        """True when bands are whole: a rest would be blocks with nothing to do, of more blocks than run at once."""
        rows, columns = self.tiles
        return self.raster == 1 or (rows % self.raster == 0 and rows * columns > multiprocessors(self.target))

    def walked(self, s: BaseSchedule, outer: Sequence[str]) -> str:
        """One loop over all blocks of the nest ``outer``, the last two of which are rows and columns of blocks.

        Bands of ``raster`` rows are walked column by column: blocks that run side by side form a square rather than a
        row, and read fewer rows of one operand and columns of the other, which stay in the L2 cache.
        """
        *batch, bi, bj = outer
        if self.raster == 1:
            return s.fuse(*outer, name="tile")
        bands, row = s.split(bi, [None, self.raster])
        return s.reorder(bands, bj, row).fuse(*batch, bands, bj, row, name="tile")

    def bind_blocks(self, s: BaseSchedule, outer: Sequence[str]) -> None:
        """Blocks of the nest ``outer``: a grid of columns and rows, or in bands a line; what is before them is z. A
        line as well where an axis of the grid has no room for as many.
        """
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
        """Rows of the result that whole waves make; 0 where there is no such wave, or nothing left."""
        (rows, columns), units = self.tiles, multiprocessors(self.target)
        whole = rows * columns // units * units // columns
        return whole * self.high if whole < rows else 0

    def parts(self) -> bool:
        """True when a reduction is in as many parts as are asked for, with enough terms each, which can meet so."""
        if self.splits == 1:
            return not (self.atomic or self.rest)
        length = part_length(self.p.k, self.splits, self.step)
        if -(-self.p.k // length) != self.splits or length < max(TERMS, 4 * self.step):
            return False
        return not self.atomic or (not self.rest and plain_sums(self.p))

    def waves(self) -> bool:
        """True when parts are no more blocks than run at once, and what whole waves leave is in whole bands."""
        if self.splits == 1:
            return True
        rows, columns = self.tiles
        if self.rest:
            first = self.whole_rows
            head, rows = (-(-n // self.high) for n in (first, self.p.m - first))
            if not first or head % self.raster or rows % self.raster:
                return False  # bands with blocks that have nothing to do
        return rows * columns * self.p.batch * self.splits <= 2 * multiprocessors(self.target)

    rules: ClassVar[Mapping[str, Rule]] = {
        "one group": Engine.of_one_group, "bands": bands, "parts": parts, "waves": waves,
    }  # fmt: skip

    def sums(self, s: BaseSchedule, stage: str = "c", as_matrix: Callable[[str], None] = lambda out: None,
             epilogue: str | None = None) -> Sums:  # fmt: skip
        """The stages of a product; with ``splits`` its reduction is in so many parts, each of whole ``step`` terms.

        Then blocks of a part each write partial sums to a workspace, and a second kernel adds them up and does the
        epilogue: for few tiles and long reductions (split-K). With ``atomic`` they add to the result instead, in any
        order, and the other kernel comes first and only starts it from 0.
        """
        if self.splits == 1:
            return super().sums(s, stage, as_matrix, epilogue)
        batch, acc = self.p.axes, self._partial(s, stage)
        if self.atomic:
            first = s.decompose_reduction(stage, f"{stage}.{(*batch, 'i')[0]}").name
            _, few, lanes = _share_elements(s, self.p, batch, first)
            if lanes > 1:
                s.vectorize(few)
            out = s.atomic(stage)[stage].name
        else:
            last = out_stage(s, stage, epilogue=epilogue)
            as_matrix(last)
            self._add_up(s, batch, last, stage)
            out = s.stage_out(acc, at="root", scope="warp").name
        return Sums.over(acc, out, ["rf", *batch])

    def declare(self, s: BaseSchedule) -> None:
        """Declare what whole waves leave of a product apart, where that is asked for."""
        if self.rest:
            s.redeclare("stream_k", rest=self.p.m - self.whole_rows)

    def each(self, s: BaseSchedule, stage: str) -> Iterator[tuple[Self, Sums]]:
        """The two products of one whose last rows, which whole waves leave, are declared apart. Those of the first have
        no parts; partial sums of the other are added up in a third kernel.
        """
        first, out = self.whole_rows, last_stage(s, stage)
        tail = s.cut(f"{out}.i", first - self.p.m).name
        yield self.but(replace(self.p, m=first), splits=1), Sums.over("head", out, [])
        stage = self._partial(s, "rest")
        self._add_up(s, [], tail, "rest")
        apart = s.stage_out(stage, at="root", scope="warp").name
        yield self.but(replace(self.p, m=self.p.m - first)), Sums.over(stage, apart, ["rf"])

    def _partial(self, s: BaseSchedule, stage: str) -> str:
        """The stage of partial sums of ``stage``, whose reduction is in ``splits`` parts of whole ``step`` terms."""
        length = part_length(self.p.k, self.splits, self.step)
        part, _ = s.split(f"{stage}.k", [None, length], names=("part", "k"))
        return s.rfactor(stage, part).name

    def _add_up(self, s: BaseSchedule, batch: Sequence[str], out: str, sums: str) -> None:
        """The second kernel, that of ``out``, adds up the parts of ``sums``."""
        thread, few, lanes = _share_elements(s, self.p, batch, out)
        s.compute_at(sums, thread)
        s.reorder(*(f"{sums}.{x}" for x in ("rf", *batch, "i", "j")))
        s.unroll(f"{sums}.rf")
        if lanes > 1:
            s.stage_in(written_by(s, f"{sums}.rf"), at=f"{sums}.rf", scope="register", vector=lanes)
            s.vectorize(few).vectorize(f"{sums}.j")


def _share_elements(s: BaseSchedule, p: Gemm, batch: Sequence[str], out: str) -> tuple[str, str, int]:
    """Threads of a kernel of its own take four neighbours of ``out`` each, or as many as rows are made of; returns
    the loops over threads and over neighbours, and how many these are.
    """
    lanes = next(n for n in (4, 2, 1) if p.n % n == 0)
    j, few = s.split(f"{out}.j", [None, lanes])
    each = s.fuse(*(f"{out}.{x}" for x in batch), f"{out}.i", j, name="each")
    block, thread = s.split(each, [None, ADDERS])
    s.bind(block, "block.x").bind(thread, "thread.x")
    return thread, few, lanes


def part_length(k: int, splits: int, step: int) -> int:
    """Terms of each part of a reduction but the last."""
    return -(-k // (splits * step)) * step
