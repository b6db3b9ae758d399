"""matmul in threads, by warp tiles: multiply-adds on quads of rows and columns that the lanes of a warp hold (CUDA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir.ops.common import Config
from tensorir.ops.gemm_blocks import (
    EARLIER,
    RASTER,
    SPLITS,
    Operand,
    Sums,
    banded,
    bands,
    bind_blocks,
    each_product,
    first_of_one_group,
    in_groups,
    join_operands,
    of_one_group,
    operands,
    parts,
)
from tensorir.ops.gemm_waves import Block, dealt_out, each_sums, expected_time, rests
from tensorir.ops.problems import Gemm
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.gpu_model import Product, Tiles

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

DTYPES = ("float32", "int32")
QUAD = 4
"""Neighbours that one access of 16 bytes brings."""


def gpu_warp(s: Schedule, c: Config, p: Gemm) -> Schedule:
    """Both operands staged in shared memory per ``bk``, k outermost; a warp makes ``li ri`` rows by ``lj rj`` columns.

    Its lanes are a grid of ``li`` x ``lj``, each holds ``ri`` x ``rj`` sums as quads that are apart, so that what a
    warp reads at once is in different banks and what it writes fills whole sectors (the warp tiles of CUTLASS,
    "Efficient GEMM in CUDA").
    c: those, ``wi`` x ``wj`` warps of a block, ``bk``, ``depth`` of the pipeline, whose copies are asynchronous with
       ``in_flight``; ``raster``: rows of blocks in a band, ``splits``: parts of the reduction and
       ``atomic``: how they meet (``gemm_blocks``)
    """
    for sums, each, part in each_sums(s, c, p, c["bk"], "warp"):
        product_in_threads(s, each, part, sums, operands(part))
    return join_operands(s, p)


def product_in_threads(s: Schedule, c: Config, p: Gemm, of: Sums, given: Mapping[str, Operand]) -> Schedule:
    """Schedule the product ``of`` two tensors, a and b as they are ``given``, as ``gpu_warp`` says.

    p: its ``m``, ``n``, ``k`` and ``batch``, and whether the operands are stored turned, ``ta`` and ``tb``
    """
    acc, out, sums, outer, own, lead = of
    li, lj = c["li"], 32 // c["li"]
    wm, wn = li * c["ri"], lj * c["rj"]
    bi, wi, i = s.split(f"{out}.i", [None, c["wi"], wm])
    bj, wj, j = s.split(f"{out}.j", [None, c["wj"], wn])
    s.reorder(*outer, bi, bj, wi, wj, i, j)
    s.bind(wi, "warp.y").bind(wj, "warp.x")
    bind_blocks(s, c, [*outer, bi, bj])
    s.compute_at(acc, wj).set_scope(sums, "warp")
    s.layout(sums, f"{lead}i, j -> i/4%{li}, j/4%{lj} | {lead}i/{QUAD * li}, j/{QUAD * lj}, i%4, j%4")
    ko, ki = s.split(f"{acc}.k", [None, c["bk"]])
    s.reorder(*own, ko, ki, f"{acc}.i", f"{acc}.j")
    for operand, axis, turned, tile, extent in (
        ("a", "i", not p.ta, c["wi"] * wm, p.m),
        ("b", "j", p.tb, c["wj"] * wn, p.n),
    ):
        name, z, together = given[operand]
        row, whole = (c["bk"], p.k) if turned else (tile, extent)
        lanes = next((n for n in (QUAD, 2) if row % n == 0 and (together or whole) % n == 0), None)
        order = f"{axis}, k" if turned else f"k, {axis}"
        stored = f"{z}{order} -> {z}k, {_column(axis, c, turned)}"
        copy = s.stage_in(name, at=ko, scope="shared", vector=lanes, layout=stored).name
        held = f"i/4%{li}, *{lj}" if axis == "i" else f"*{li}, j/4%{lj}"
        strip = QUAD * (li if axis == "i" else lj)
        s.stage_in(copy, at=ki, scope="warp", layout=f"{z}{order} -> {held} | {z}k, {axis}/{strip}, {axis}%4")
    s.unroll(ki)
    if c["depth"] > 1:
        s.pipeline(ko, c["depth"], async_=bool(c["in_flight"]))
    return s


def _column(axis: str, c: Config, turned: bool) -> str:
    """Storage along the axis that is not k: where a warp writes rows along k, 32 vectors of four and then element by
    element, groups of quads are permuted by bits of k, so that its rows and its pieces of k meet in no bank.
    """
    pieces = c["bk"] // QUAD
    if not turned or pieces < 2 or 32 // pieces < QUAD:
        return axis
    return f"{axis}/4 ^ k/4%{pieces}*{32 // pieces // QUAD}, {axis}%4"


def warp_block(c: Mapping[str, Any]) -> Block:
    """Rows and columns of a block."""
    return c["wi"] * c["li"] * c["ri"], c["wj"] * 32 // c["li"] * c["rj"]


def warp_product(p: Gemm) -> Product:
    """A matmul as the model of kernels knows it."""
    return Product(*each_product(p), "f32", 4, 4, adds=bool(p.beta))


def warp_tiles(c: Mapping[str, Any]) -> Tiles:
    """A configuration of ``gpu_warp`` as the model of kernels knows it."""
    bm, bn = warp_block(c)
    copies, order = bool(c["in_flight"]), dict(raster=c["raster"], splits=c["splits"])
    return Tiles("threads", bm, bn, c["bk"], c["ri"], c["rj"], c["depth"], copies, **order)


def warp_space(p: Gemm, target: Target) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block, loops that are written out."""
    from tensorir.tune.space import Space

    def rows(c: Mapping[str, Any]) -> int:
        return warp_block(c)[0]

    def columns(c: Mapping[str, Any]) -> int:
        return warp_block(c)[1]

    def warps(c: Mapping[str, Any]) -> bool:
        return bool(2 <= c["wi"] * c["wj"] <= 8)

    def shared(c: Mapping[str, Any]) -> bool:
        return bool(4 * c["depth"] * c["bk"] * (rows(c) + columns(c)) <= target.shared_optin_bytes)

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["ri"] * c["rj"] <= 128)

    def unrolled(c: Mapping[str, Any]) -> bool:
        return bool(c["ri"] * c["rj"] * c["bk"] <= 2048)

    def sensible(c: Mapping[str, Any]) -> bool:
        return bool((rows(c) <= 64 or rows(c) // 2 < p.m) and (columns(c) <= 64 or columns(c) // 2 < p.n))

    def ahead(c: Mapping[str, Any]) -> bool:
        return bool(c["depth"] >= 2 if c["in_flight"] else c["depth"] <= 2)  # registers hold one tile

    def tiles(c: Mapping[str, Any]) -> tuple[int, int]:
        return -(-p.m // rows(c)), -(-p.n // columns(c))

    def whole(c: Mapping[str, Any]) -> bool:
        return banded(c, *tiles(c), target)

    def split(c: Mapping[str, Any]) -> bool:
        return dealt_out(c, p, warp_block(c), c["bk"], target)

    # a multiprocessor from 8.6 on issues one instruction for each multiply-add: larger tiles leave more of them
    wide = target.sm >= 86
    default = dict(li=8, ri=4, rj=4, wi=2, wj=2, bk=16)
    if min(p.m, p.n) >= 256:
        default = dict(li=8, ri=8, rj=8, wi=2, wj=4, bk=8)
        if wide and min(p.m, p.n) >= 1024:
            default = dict(li=4, ri=8, rj=16, wi=4, wj=2, bk=8)
    few = dict(ri=4, rj=4, wi=1, wj=2, bk=16)
    if p.m <= 32 or p.n <= 32:
        default = dict(li=8 if p.m > 16 else 4, **few)
    smaller = dict(li=8, ri=4, rj=8, wi=2, wj=2, bk=16), dict(li=8, **few), dict(li=4, **few)
    default = dict(first_of_one_group(p, rows, [default, *smaller]))
    where = {"warps": warps, "shared": shared, "registers": registers, "unrolled": unrolled, "sensible": sensible,
             "bands": whole, "parts": split}  # fmt: skip
    if in_groups(p):
        where["groups"] = lambda c: of_one_group(p, rows(c))
    if target.has("sm_80"):
        where["ahead"] = ahead
    default |= dict(depth=2, in_flight=0, raster=bands(*tiles(default), target), splits=1, atomic=0, rest=0)
    expected = expected_time(p, warp_product(p), warp_tiles, warp_block, gpu_of(target), target)
    knobs: dict[str, Sequence[int]] = dict(
        li=[8, 4], ri=[8, 4, 16], rj=[8, 4, 16], wi=[2, 4, 1], wj=[4, 2, 1], bk=[8, 16, 32],
        depth=[2, 1, 3, 4] if target.has("sm_80") else [2, 1],
        in_flight=[0, 1] if target.has("sm_80") else [0],
        raster=RASTER, splits=SPLITS, atomic=[0, 1], rest=rests(p),
    )  # fmt: skip
    space = Space(where=where, default={**default, "splits": parts(p, default, split, expected)}, **knobs)
    return space.since(EARLIER).expecting(expected)
