"""matmul by warpgroups (CUDA, sm_90a): one asks for tiles, the others multiply them; resident blocks walk all tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tensorir.intrin.cuda import Multiplication
from tensorir.intrin.hopper import KINDS, ROWS, first_registers
from tensorir.ops.common import Config
from tensorir.ops.gemm_blocks import (
    RASTER,
    SPLITS,
    Operand,
    Sums,
    banded,
    first_of_one_group,
    in_groups,
    multiprocessors,
    of_one_group,
    operands,
    parts,
    walked,
)
from tensorir.ops.gemm_blocks import bands as first_bands
from tensorir.ops.gemm_tensor import multiplication, result_kind, store_rows, tensor_product
from tensorir.ops.gemm_waves import Block, dealt_out, each_sums, expected_time, rests
from tensorir.ops.problems import Gemm
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.gpu_model import Tiles

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

ROW_BYTES = 128
"""Of a row of a tile: what is swizzled together."""
REGISTERS = {1: (40, 240), 2: (40, 232), 3: (32, 160)}
"""Of a thread that loads and of one that computes, for so many warpgroups that compute (as CUTLASS deals them out)."""
SUMS = {1: 200, 2: 192, 3: 128}
"""Of those of a thread that computes, what sums may take."""
OTHER_REGISTERS = 26
"""Registers of a product next to its accumulators; ptxas gives it no more than a thread has at launch (C7602)."""

Leave = Callable[[Any, Any, Any], None]


def warpgroups(p: Gemm) -> Multiplication | None:
    """The products of warpgroups for a matmul, None where there are none or tiles of an operand cannot be copied, or
    have rows of several groups.
    """
    m = multiplication(p)
    if m is None or m.name not in KINDS:
        return None
    plain = m.word == 2 or (not p.ta and p.tb)  # others are not stored along k
    size = 4 // m.word
    rows = p.m if p.ta else p.k, p.k if p.tb else p.n
    return m if plain and of_one_group(p, ROWS) and all(n * size % 16 == 0 for n in rows) else None


def gpu_hopper(s: Schedule, c: Config, p: Gemm, target: Target) -> Schedule:
    """A block of ``groups`` warpgroups computes ``64 groups rows`` x ``bn`` elements, 128 bytes of k at a time.

    c: ``groups``, products of 64 rows each of which has (``rows``), ``bn``, ``depth`` of the ring; ``cluster``: blocks
       below each other that bring the tiles of b for all of them; ``raster``: so many rows of blocks are walked
       together, column by column, so that what they read stays in the L2 cache; ``resident``: no more blocks than run
       at once, each of which walks several tiles; ``splits``: parts of the reduction, ``atomic``: how they meet
       (``gemm_blocks``); ``pingpong``: of those tiles each is one warpgroup's, in ping-pong: the results of one
       leave while the next one multiplies
    """
    m = warpgroups(p)
    assert m is not None
    for sums, each, part in each_sums(s, c, p, ROW_BYTES * m.word // 4, "warp"):
        product_by_warpgroups(s, each, part, sums, operands(part), target)
    return s


def product_by_warpgroups(
    s: Schedule, c: Config, p: Gemm, of: Sums, given: Mapping[str, Operand], target: Target,
    leave: Leave | None = None,
) -> Schedule:  # fmt: skip
    """Schedule the product ``of`` two tensors, a and b as they are ``given``, as ``gpu_hopper`` says.

    leave: told the loop over warpgroups and those over the rows and columns of one, lets results leave in whole tiles
           where these are no rows of a matrix
    """
    m = warpgroups(p)
    assert m is not None
    size, z = 4 // m.word, "z, " if p.batch > 1 else ""
    acc, out, _, outer, own, _ = of
    at_once = together(c)
    bi, wi, i = s.split(f"{out}.i", [None, at_once, c["rows"] * ROWS])
    bj, j = s.split(f"{out}.j", [None, c["bn"]])
    if c["cluster"] > 1:
        bi, rank = s.split(bi, [None, c["cluster"]])
        s.bind(rank, "cluster").reorder(*outer, bi, bj, rank, wi, i, j)
    else:
        s.reorder(*outer, bi, bj, wi, i, j)
    tile = resident(s, c, p, [*outer, bi, bj], target)
    s.bind(tile, "block.x").bind(wi, "warpgroup")
    if stored_whole(c, p) and leave is not None:
        leave(wi, i, j)
    elif stored_whole(c, p):
        s.stage_out(out, at=wi, scope="shared", layout=f"{z}r, x -> {z}{swizzled_rows(2)}", via="tma")
        store_rows(s, out, [i], j, f"m{ROWS}.{result_kind(p.dtype)}.n")
    s.compute_at(acc, wi)
    ko, kk, ki = s.split(f"{acc}.k", [None, ROW_BYTES // size // m.k, m.k])
    i0, i1 = s.split(f"{acc}.i", [None, ROWS])
    s.reorder(*own, ko, kk, i0, i1, f"{acc}.j", ki)
    for name, lead, _ in given.values():
        s.stage_in(name, at=ko, scope="shared", layout=f"{lead}r, x -> {lead}{swizzled_rows(size)}", via="tma")
    orders = ("t" if p.ta else "n") + ("t" if p.tb else "n")
    s.tensorize(i1, f"wgmma.m64n{c['bn']}k{m.k}.{m.name}.{orders}").unroll(kk).unroll(i0)
    for name in [x.name for x in given.values() if x.name in s.index.stages]:
        s.compute_inline(name)  # where it is copied
    load, compute = REGISTERS[c["groups"]]
    return s.pipeline(ko, c["depth"], roles={"load": load, "compute": compute}, turns=c["groups"] // at_once)


def sums_fit(groups: int, rows: int, columns: int) -> bool:
    """Whether a thread has registers for ``rows`` products of 64 x ``columns`` elements, and for each one at launch."""
    at_launch = first_registers(128 * (groups + 1))
    return rows * columns // 2 <= SUMS[groups] and columns // 2 + OTHER_REGISTERS <= at_launch


def together(c: Mapping[str, Any]) -> int:
    """Warpgroups that compute a tile."""
    return 1 if c["pingpong"] else int(c["groups"])


def stored_whole(c: Mapping[str, Any], p: Gemm) -> bool:
    """Whether results leave in whole tiles: those of 16 bits, which a warp would write in halves of sectors."""
    return bool(c["splits"] == 1 and halves_in_rows(c, p))


def halves_in_rows(c: Mapping[str, Any], p: Gemm) -> bool:
    """Whether results have 16 bits and rows that tiles of them may be copied to."""
    return bool(p.leaves_in_halves and p.n % 8 == 0 and c["bn"] % 64 == 0)


def swizzled_rows(size: int) -> str:
    """Storage in rows of 128 bytes, whose pieces of 16 are permuted by the row's number."""
    row, piece = ROW_BYTES // size, 16 // size
    return f"x/{row}, r, x/{piece}%8 ^ r%8, x%{piece}"


def resident(s: Schedule, c: Config, p: Gemm, outer: list[Any], target: Target) -> Any:
    """The loop over blocks: one for each tile, or as many as there is room for, each of which walks several."""
    rows, columns = _tiles(c, p)
    tile = walked(s, c["raster"], outer)
    room = max(1, multiprocessors(target) // c["cluster"])
    if c["resident"] and (rows * columns * p.batch * c["splits"] > room or c["pingpong"]):
        _, tile = s.split(tile, [None, room])
    return tile


def _tiles(c: Config, p: Gemm) -> tuple[int, int]:
    """Tiles of a block, or of a cluster, along the rows and along the columns of the result."""
    return -(-p.m // _rows(c)), -(-p.n // c["bn"])


def hopper_block(c: Config) -> Block:
    """Rows of a block, or of a cluster, and columns."""
    return _rows(c), c["bn"]


def _rows(c: Config) -> int:
    """Of a block, or of a cluster."""
    return int(ROWS * c["rows"] * together(c) * c["cluster"])


def hopper_space(p: Gemm, target: Target) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block."""
    from tensorir.tune.space import Space

    m = warpgroups(p)
    assert m is not None
    room = target.shared_optin_bytes

    def shared(c: Mapping[str, Any]) -> bool:
        rows = c["rows"] * ROWS
        needed = ROW_BYTES * c["depth"] * (together(c) * rows + c["bn"]) + 4096
        if needed > room:
            return False
        whole = (c["splits"] == 1 or c["rest"]) and halves_in_rows(c, p)
        return bool(needed + (2 * c["groups"] * rows * c["bn"] if whole else 0) <= room)

    def registers(c: Mapping[str, Any]) -> bool:
        return sums_fit(c["groups"], c["rows"], c["bn"])

    def panels(c: Mapping[str, Any]) -> bool:
        return bool(p.tb or c["bn"] % (ROW_BYTES * m.word // 4) == 0)

    def turns(c: Mapping[str, Any]) -> bool:
        """Several tiles for each of the warpgroups in ping-pong, and several of these; parts of sums are none."""
        tiles = math.prod(_tiles(c, p)) * p.batch * c["cluster"]
        several = c["resident"] and c["groups"] > 1 and tiles > multiprocessors(target)
        return not c["pingpong"] or bool(several and c["splits"] == 1 and not c["rest"])

    def bands(c: Mapping[str, Any]) -> bool:
        return banded(c, *_tiles(c, p), target)

    def split(c: Mapping[str, Any]) -> bool:
        return dealt_out(c, p, hopper_block(c), ROW_BYTES * m.word // 4, target)

    def sensible(c: Mapping[str, Any]) -> bool:
        rows = together(c) * c["rows"] * ROWS * c["cluster"]
        return bool((rows == ROWS or rows // 2 < p.m) and (c["bn"] == 64 or c["bn"] // 2 < p.n))

    large = min(p.m, p.n) >= 2048
    default = dict(groups=2, bn=256 if large else 128, depth=4) if p.m > ROWS else dict(groups=1, bn=64, depth=6)
    if p.m > ROWS and p.n <= 64:
        default["bn"] = 64
    if large and p.leaves_in_halves:  # next to their results
        default["depth"] = 3
    default |= dict(rows=1, cluster=2 if large else 1, raster=1, resident=1, splits=1, atomic=0, rest=0, pingpong=0)
    alone = {**default, "cluster": 1}
    default = dict(first_of_one_group(p, _rows, [default, alone, {**alone, "groups": 1}]))
    default["raster"] = first_bands(*_tiles(default, p), target)
    expected = expected_time(p, tensor_product(p), lambda c: _model(c, m), hopper_block, gpu_of(target), target)
    where = {"shared": shared, "registers": registers, "panels": panels, "bands": bands, "sensible": sensible}
    if in_groups(p):
        where["groups"] = lambda c: of_one_group(p, _rows(c))
    return (
        Space(
            where={**where, "parts": split, "turns": turns},
            default={**default, "splits": parts(p, default, split, expected)},
            groups=[2, 1, 3],
            pingpong=[0, 1],
            rows=[1, 2],
            bn=[256, 128, 192, 64, 160, 224, 96, 32],
            depth=[4, 3, 5, 6, 2, 8],
            cluster=[1, 2],
            raster=RASTER,
            resident=[1, 0],
            splits=SPLITS,
            atomic=[0, 1],
            rest=rests(p),
        )
        .since({"cluster": 1, "splits": 1, "atomic": 0, "rest": 0, "pingpong": 0})
        .expecting(expected)
    )


def _model(c: Mapping[str, Any], m: Multiplication) -> Tiles:
    """A configuration as the model of kernels knows it."""
    high, order = c["rows"] * ROWS, dict(raster=c["raster"], splits=c["splits"])
    bk = ROW_BYTES * m.word // 4
    return Tiles("wgmma", together(c) * high, c["bn"], bk, high, c["bn"], c["depth"], cluster=c["cluster"],
                 persistent=bool(c["resident"]), turns=c["groups"] // together(c), **order)  # fmt: skip
