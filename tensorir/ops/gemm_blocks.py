"""Blocks of a tiled product on GPUs: in which order they are walked, and how many share one tile's reduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorir.ops.blocks import extent_of
from tensorir.ops.common import Config, out_stage, written_by
from tensorir.ops.problems import Gemm
from tensorir.tune.gpu_devices import gpu_of

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target

MULTIPROCESSORS = 132
"""Of an H100 or H200, where nothing says how many there are."""
RASTER = (1, 8, 4, 2, 16)
"""Rows of blocks in a band."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Parts of the reduction."""
EARLIER: Mapping[str, int] = {"raster": 1, "splits": 1, "atomic": 0, "rest": 0}
"""What configurations mean that were recorded before there were these knobs."""
TERMS = 128
"""Of a part, at least."""
ADDERS = 256
"""Threads of a block that adds up partial sums."""
WORTH = 0.9
"""A reduction is split by default where that is expected to take less than this share of the time."""


def multiprocessors(target: Target) -> int:
    """Of the device that kernels are made for."""
    gpu = gpu_of(target)
    return gpu.units if gpu else target.units or MULTIPROCESSORS


# --- operands


class Operand(NamedTuple):
    """An operand as templates stage it: its name, and its dimensions before rows and columns as index maps say them.

    together: how many neighbours in a row of it are contiguous in memory; None for whole rows
    """

    name: str
    lead: str
    together: int | None = None

    @property
    def dims(self) -> int:
        """How many dimensions are before rows and columns."""
        return self.lead.count(",")


def operands(p: Gemm) -> dict[str, Operand]:
    """Of a product, or of one in groups, each ``align`` rows of which have a matrix of their own."""
    z = "z, " if p.batch > 1 else ""
    b = Operand("b_block", "z, ") if in_groups(p) else Operand("b", z)
    return {"a": Operand("a", z), "b": b}


def in_groups(p: Gemm) -> bool:
    """Whether the matrix that rows are multiplied with is that of their group."""
    return p.align > 0


def each_product(p: Gemm) -> tuple[int, int, int, int]:
    """Rows, columns and terms of each product, and how many there are; groups are expected to be of equal size."""
    if not in_groups(p):
        return p.m, p.n, p.k, p.batch
    blocks = -(-p.m // p.align)
    groups = min(blocks, p.groups)
    return -(-blocks // groups) * p.align, p.n, p.k, groups


def join_operands(s: Schedule, p: Gemm) -> Schedule:
    """Compute what operands are made of where it is copied."""
    return s.compute_inline("b_block") if in_groups(p) else s


def first_of_one_group(p: Gemm, rows: Callable[[Config], int], starts: Sequence[Config]) -> Config:
    """What to start with: the first whose ``rows`` are multiplied with one matrix, the last if there is none."""
    return next((c for c in starts if of_one_group(p, rows(c))), starts[-1])


def of_one_group(p: Gemm, rows: int) -> bool:
    """Whether all ``rows`` of a block, or of a cluster, are multiplied with one matrix."""
    return not in_groups(p) or p.align % rows == 0


# --- the order of blocks


def walked(s: Schedule, raster: int, outer: Sequence[Any]) -> Any:
    """One loop over all blocks of the nest ``outer``, the last two of which are rows and columns of blocks.

    Bands of ``raster`` rows are walked column by column: blocks that run side by side form a square rather than a row,
    and read fewer rows of one operand and columns of the other, which stay in the L2 cache.
    """
    *batch, bi, bj = outer
    if raster == 1:
        return s.fuse(*outer, name="tile")
    bands, row = s.split(bi, [None, raster])
    return s.reorder(bands, bj, row).fuse(*batch, bands, bj, row, name="tile")


def bind_blocks(s: Schedule, c: Config, outer: Sequence[Any]) -> None:
    """Blocks of the nest ``outer``: a grid of columns and rows, or in bands a line; what is before them is z. A line as
    well where an axis of the grid has no room for as many.
    """
    *before, bi, bj = outer
    rows, parts = extent_of(s, bi), math.prod(extent_of(s, x) for x in before)
    if parts > s.target.max_grid[2]:
        s.bind(walked(s, c["raster"], outer), "block.x")
        return
    if c["raster"] > 1 or rows > s.target.max_grid[1]:
        s.bind(walked(s, c["raster"], [bi, bj]), "block.x")
    else:
        s.bind(bi, "block.y").bind(bj, "block.x")
    if before:
        s.bind(before[0] if len(before) == 1 else s.fuse(*before, name="part"), "block.z")


def banded(c: Config, rows: int, columns: int, target: Target) -> bool:
    """Whether bands are whole, since a rest would be blocks with nothing to do, of more blocks than run at once."""
    return bool(c["raster"] == 1 or (rows % c["raster"] == 0 and rows * columns > multiprocessors(target)))


def bands(rows: int, columns: int, target: Target) -> int:
    """Rows of a band to start with."""
    return next(n for n in (8, 4, 2, 1) if banded({"raster": n}, rows, columns, target))


# --- the reduction in parts


class Sums(NamedTuple):
    """What a template schedules: ``stage`` adds up products in ``buffer``, ``out`` takes them from there.

    outer: loops of ``out`` that stand before rows and columns;  own: those of ``stage``;  lead: dimensions of
           ``buffer`` before rows and columns, as an index map says them
    """

    stage: str
    out: str
    buffer: str
    outer: list[str]
    own: list[str]
    lead: str


def sums_of(s: Schedule, c: Config, p: Gemm, step: int, scope: str = "register", stage: str = "c",
            as_matrix: Callable[[str], None] = lambda out: None) -> Sums:  # fmt: skip
    """The stages of a product; with ``splits`` its reduction is in so many parts, each of whole ``step`` terms.

    Then blocks of a part each write partial sums to a workspace, and a second kernel adds them up and does the
    epilogue: for few tiles and long reductions (split-K). With ``atomic`` they add to the result instead, in any order,
    and the other kernel comes first and only starts it from 0.
    stage: what adds up products, over rows i, columns j and terms k;  as_matrix: told the stage that writes the result,
           makes loops over rows and columns of those that it has
    """
    batch = ["z"] if p.batch > 1 else []
    if c["splits"] == 1:
        out = out_stage(s, stage, scope)
        as_matrix(out)
        acc, axes = stage, batch
    else:
        acc = partial_sums(s, c, p, step, stage)
        if c["atomic"]:
            _start(s, p, stage, batch)
            out = s.atomic(stage)[stage].name
        else:
            last = out_stage(s, stage)
            as_matrix(last)
            add_up(s, p, batch, last, stage)
            out = s.stage_out(acc, at="root", scope="warp").name
        axes = ["rf", *batch]
    lead = "".join(f"{x}, " for x in axes)
    return Sums(acc, out, written_by(s, acc), [f"{out}.{x}" for x in axes], [f"{acc}.{x}" for x in axes], lead)


def partial_sums(s: Schedule, c: Config, p: Gemm, step: int, stage: str) -> str:
    """The stage of partial sums of ``stage``, whose reduction is in ``splits`` parts of whole ``step`` terms."""
    part, _ = s.split(f"{stage}.k", [None, part_length(p.k, c["splits"], step)], names=("part", "k"))
    return s.rfactor(stage, part).name


def add_up(s: Schedule, p: Gemm, batch: Sequence[str], out: str, sums: str) -> None:
    """The second kernel, that of ``out``: a thread adds up the parts of four neighbours, or as many as rows are made
    of.
    """
    lanes = _lanes(p)
    j, few = s.split(f"{out}.j", [None, lanes])
    each = s.fuse(*(f"{out}.{x}" for x in batch), f"{out}.i", j, name="each")
    block, thread = s.split(each, [None, ADDERS])
    s.bind(block, "block.x").bind(thread, "thread.x").compute_at(sums, thread)
    s.reorder(*(f"{sums}.{x}" for x in ("rf", *batch, "i", "j")))
    s.unroll(f"{sums}.rf")
    if lanes > 1:
        s.stage_in(written_by(s, f"{sums}.rf"), at=f"{sums}.rf", scope="register", vector=lanes)
        s.vectorize(few).vectorize(f"{sums}.j")


def _start(s: Schedule, p: Gemm, stage: str, batch: Sequence[str]) -> None:
    """The kernel that starts results from 0."""
    first = s.decompose_reduction(stage, f"{stage}.{(*batch, 'i')[0]}").name
    j, few = s.split(f"{first}.j", [None, _lanes(p)])
    each = s.fuse(*(f"{first}.{x}" for x in batch), f"{first}.i", j, name="each")
    block, thread = s.split(each, [None, ADDERS])
    s.bind(block, "block.x").bind(thread, "thread.x")
    if _lanes(p) > 1:
        s.vectorize(few)


def _lanes(p: Gemm) -> int:
    """Neighbours of a row that a thread takes: four, or as many as rows are made of."""
    return next(n for n in (4, 2, 1) if p.n % n == 0)


def plain_sums(p: Gemm) -> bool:
    """Whether the result is the sums themselves, to which blocks can add."""
    done = p.bias or p.act or p.alpha or p.beta
    return not done and p.dtype in ("float32", "int32", "int8", "uint8")


def part_length(k: int, splits: int, step: int) -> int:
    """Terms of each part of a reduction but the last."""
    return -(-k // (splits * step)) * step


def in_parts(c: Config, p: Gemm, step: int, tiles: int, target: Target) -> bool:
    """Whether parts are as many as are asked for, with enough terms each, and no more blocks than run at once."""
    if c["splits"] == 1:
        return not c["atomic"]
    if c["atomic"] and not plain_sums(p):
        return False
    k, tiles = p.k, tiles * p.batch
    length = part_length(k, c["splits"], step)
    whole = -(-k // length) == c["splits"] and length >= max(TERMS, 4 * step)
    return bool(whole and tiles * c["splits"] <= 2 * multiprocessors(target))


def parts(p: Gemm, default: Config, fits: Callable[[Config], bool], expected: Callable[[Config], float] | None) -> int:
    """Parts to start with: those of the least expected time, where that is worth a second kernel.

    Where rows and columns are no fewer than terms, smaller tiles would fill the device as well.
    """
    if expected is None or p.k <= max(p.m, p.n):
        return 1
    times = {n: expected(c) for n in SPLITS if fits(c := {**default, "splits": n})}
    best = min(times, key=lambda n: times[n])
    return best if times[best] < WORTH * times[1] else 1
