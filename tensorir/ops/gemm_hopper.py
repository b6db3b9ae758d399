"""matmul by warpgroups (CUDA, sm_90a): one asks for tiles, the others multiply them; resident blocks walk all tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.intrin.cuda import Multiplication
from tensorir.intrin.hopper import KINDS, ROWS
from tensorir.ops.common import Config, out_stage
from tensorir.ops.gemm_tensor import multiplication

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

ROW_BYTES = 128
"""Of a row of a tile: what is swizzled together."""
MULTIPROCESSORS = 132
"""Of an H100 or H200, where the target does not say."""
REGISTERS = {1: (40, 240), 2: (40, 232), 3: (32, 160)}
"""Of a thread that loads and of one that computes, for so many warpgroups that compute (as CUTLASS deals them out)."""


def warpgroups(p: Mapping[str, Any]) -> Multiplication | None:
    """The products of warpgroups for a matmul, None where there are none or tiles of an operand cannot be copied."""
    m = multiplication(p)
    if m is None or m.name not in KINDS:
        return None
    plain = m.word == 2 or (not p["ta"] and p["tb"])  # others are not stored along k
    size = 4 // m.word
    rows = p["m"] if p["ta"] else p["k"], p["k"] if p["tb"] else p["n"]
    return m if plain and all(n * size % 16 == 0 for n in rows) else None


def gpu_hopper(s: Schedule, c: Config, p: Mapping[str, Any], target: Target) -> Schedule:
    """A block of ``groups`` warpgroups computes ``64 groups rows`` x ``bn`` elements, 128 bytes of k at a time.

    c: ``groups``, products of 64 rows each of which has (``rows``), ``bn``, ``depth`` of the ring, ``raster``: tiles of
       so many rows of blocks are walked together, column by column, so that what they read stays in the L2 cache
    """
    m, out = warpgroups(p), out_stage(s, "c", "warp")
    assert m is not None
    size = 4 // m.word
    bi, wi, i = s.split(f"{out}.i", [None, c["groups"], c["rows"] * ROWS])
    bj, j = s.split(f"{out}.j", [None, c["bn"]])
    batch = [f"{out}.z"] if p["batch"] > 1 else []
    s.reorder(*batch, bi, bj, wi, i, j)
    tile = resident(s, c, p, [*batch, bi, bj], target)
    s.bind(tile, "block.x").bind(wi, "warpgroup")
    s.compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, ROW_BYTES // size // m.k, m.k])
    i0, i1 = s.split("c.i", [None, ROWS])
    s.reorder(*(["c.z"] if batch else []), ko, kk, i0, i1, "c.j", ki)
    z = "z, " if batch else ""
    for name in "ab":
        s.stage_in(name, at=ko, scope="shared", layout=f"{z}r, x -> {z}{swizzled_rows(size)}", via="tma")
    orders = ("t" if p["ta"] else "n") + ("t" if p["tb"] else "n")
    s.tensorize(i1, f"wgmma.m64n{c['bn']}k{m.k}.{m.name}.{orders}").unroll(kk).unroll(i0)
    load, compute = REGISTERS[c["groups"]]
    return s.pipeline(ko, c["depth"], roles={"load": load, "compute": compute})


def swizzled_rows(size: int) -> str:
    """Storage in rows of 128 bytes, whose pieces of 16 are permuted by the row's number."""
    row, piece = ROW_BYTES // size, 16 // size
    return f"x/{row}, r, x/{piece}%8 ^ r%8, x%{piece}"


def resident(s: Schedule, c: Config, p: Mapping[str, Any], outer: list[Any], target: Target) -> Any:
    """The loop over blocks: one for each tile, or as many as there is room for, each of which walks several."""
    rows, columns = _tiles(c, p)
    *batch, bi, bj = outer
    if c["raster"] > 1:
        bands, row = s.split(bi, [None, c["raster"]])
        s.reorder(bands, bj, row)
        tile = s.fuse(*batch, bands, bj, row)
    else:
        tile = s.fuse(*batch, bi, bj)
    room = target.units or MULTIPROCESSORS
    if c["resident"] and rows * columns * p["batch"] > room:
        _, tile = s.split(tile, [None, room])
    return tile


def _tiles(c: Config, p: Mapping[str, Any]) -> tuple[int, int]:
    """Tiles along the rows and along the columns of the result."""
    return -(-p["m"] // (ROWS * c["rows"] * c["groups"])), -(-p["n"] // c["bn"])


def hopper_space(p: Mapping[str, Any], target: Target) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block."""
    from tensorir.tune.space import Space

    m = warpgroups(p)
    assert m is not None

    def shared(c: Mapping[str, Any]) -> bool:
        rows = c["groups"] * c["rows"] * ROWS
        return bool(ROW_BYTES * c["depth"] * (rows + c["bn"]) + 4096 <= target.shared_optin_bytes)

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["rows"] * c["bn"] // 2 <= {1: 200, 2: 192, 3: 128}[c["groups"]])

    def panels(c: Mapping[str, Any]) -> bool:
        return bool(p["tb"] or c["bn"] % (ROW_BYTES * m.word // 4) == 0)

    def bands(c: Mapping[str, Any]) -> bool:
        return bool(c["raster"] == 1 or _tiles(c, p)[0] % c["raster"] == 0)

    def sensible(c: Mapping[str, Any]) -> bool:
        rows = c["groups"] * c["rows"] * ROWS
        return bool((rows == ROWS or rows // 2 < p["m"]) and (c["bn"] == 64 or c["bn"] // 2 < p["n"]))

    large = min(p["m"], p["n"]) >= 2048
    default = dict(groups=2, bn=256 if large else 128, depth=4) if p["m"] > ROWS else dict(groups=1, bn=64, depth=6)
    if p["m"] > ROWS and p["n"] <= 64:
        default["bn"] = 64
    if m.word != 2 and large:  # sums of 32 bits leave as they are
        default["depth"] = 3
    return Space(
        where={"shared": shared, "registers": registers, "panels": panels, "bands": bands, "sensible": sensible},
        default={**default, "rows": 1, "raster": 1, "resident": 1},
        groups=[2, 1, 3],
        rows=[1, 2],
        bn=[256, 128, 192, 64, 160, 224, 96, 32],
        depth=[4, 3, 5, 6, 2, 8],
        raster=[1, 8, 4, 2, 16],
        resident=[1, 0],
    )
