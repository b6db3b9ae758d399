"""matmul on tensor cores: blocks of warps, sums and operands in fragments (CUDA from sm_80 on, 16-bit floats)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.ops.common import Config, out_stage

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

KINDS = {"float16": "f16", "bfloat16": "bf16"}
"""Types of the operands, as instructions call them."""
STEP = 16
"""Terms of the reduction that one instruction adds up; it makes 16 x 8 sums."""
ROW = 8
"""Elements of the rows of 16 bytes that instructions read from shared memory."""


def gpu_tensor(s: Schedule, c: Config, p: Mapping[str, Any]) -> Schedule:
    """Both operands staged in shared memory per ``bk``, each warp multiplies ``wm`` x ``wn``.

    c: ``bm`` x ``bn`` of a block and ``wm`` x ``wn`` of a warp, ``bk``, ``depth`` of the pipeline, of which copies are
       on their own with ``in_flight``
    """
    kind, out = KINDS[p["dtype"]], out_stage(s, "c")
    bi, wi, i = s.split(f"{out}.i", [None, c["bm"] // c["wm"], c["wm"]])
    bj, wj, j = s.split(f"{out}.j", [None, c["bn"] // c["wn"], c["wn"]])
    batch = [f"{out}.z"] if p["batch"] > 1 else []
    s.reorder(*batch, bi, bj, wi, wj, i, j)
    s.bind(bi, "block.y").bind(bj, "block.x").bind(wi, "warp.y").bind(wj, "warp.x")
    if batch:
        s.bind(batch[0], "block.z")
    s.compute_at("c", wj)
    ko, ki, kk = s.split("c.k", [None, c["bk"] // STEP, STEP])
    i0, i1 = s.split("c.i", [None, 16])
    j0, j1 = s.split("c.j", [None, 8])
    s.reorder(*(["c.z"] if batch else []), ko, ki, i0, j0, i1, j1, kk)
    for name, turned, tile, extent in (("a", p["ta"], c["bm"], p["m"]), ("b", not p["tb"], c["bn"], p["n"])):
        row, whole = (tile, extent) if turned else (c["bk"], p["k"])
        s.stage_in(name, at=ko, scope="shared", vector=_vector(row, whole), layout=_swizzled(row, bool(batch)))
    for name, order in (("a", "t" if p["ta"] else "n"), ("b", "t" if p["tb"] else "n")):
        copy = s.stage_in(f"{name}_shared", at=ki, scope="warp").name
        r0, r1 = s.split(f"{copy}.ax{len(batch)}", [None, 16])
        c0, c1 = s.split(f"{copy}.ax{len(batch) + 1}", [None, 16])
        s.reorder(r0, c0, r1, c1).tensorize(r1, f"ldmatrix.{kind}.{name}.{order}")
    s.tensorize(i1, f"mma.m16n8k16.{kind}.{'t' if p['ta'] else 'n'}{'t' if p['tb'] else 'n'}")
    s.unroll(ki)
    if c["depth"] > 1:
        s.pipeline(ko, c["depth"], async_=bool(c["in_flight"]))
    return s


def _vector(tile: int, extent: int) -> int | None:
    """Lanes of a copy along a row of ``tile`` elements of a tensor ``extent`` wide: up to 16 bytes."""
    return next((n for n in (8, 4, 2) if tile % n == 0 and extent % n == 0), None)


def _swizzled(row: int, batch: bool) -> str:
    """Rows of ``row`` elements, whose pieces of 16 bytes are permuted so that eight rows lie in different banks.

    Eight pieces fill the 32 banks. A row of eight or more is permuted by its number; of shorter ones several lie
    side by side, and the next bits of their number permute them (as CUTLASS's swizzles of 32, 64 and 128 bytes).
    """
    z, pieces = "z, " if batch else "", row // ROW
    if pieces < 2 or pieces & (pieces - 1):
        return f"{z}r, x -> {z}r, x"
    several = max(1, 8 // pieces)
    bits = "r%8" if several == 1 else f"r/{several}%{pieces}"
    return f"{z}r, x -> {z}r, x/{ROW} ^ {bits}, x%{ROW}"


def tensor_space(p: Mapping[str, Any], target: Target) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block, whole warps."""
    from tensorir.tune.space import Space

    def warps(c: Mapping[str, Any]) -> bool:
        whole = c["bm"] % c["wm"] == 0 and c["bn"] % c["wn"] == 0
        return bool(whole and 2 <= c["bm"] // c["wm"] * (c["bn"] // c["wn"]) <= 8)

    def shared(c: Mapping[str, Any]) -> bool:
        return bool(2 * c["depth"] * c["bk"] * (c["bm"] + c["bn"]) <= target.shared_optin_bytes)

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["wm"] * c["wn"] <= 64 * 64)

    def sensible(c: Mapping[str, Any]) -> bool:
        return all(c[t] == 64 or c[t] // 2 < p[x] for t, x in (("bm", "m"), ("bn", "n")))

    def ahead(c: Mapping[str, Any]) -> bool:
        return bool(c["depth"] >= 2 if c["in_flight"] else c["depth"] <= 2)  # registers hold one tile

    big = min(p["m"], p["n"]) >= 512
    default = dict(bm=128, bn=128, wm=64, wn=32) if big else dict(bm=64, bn=64, wm=32, wn=32)
    return Space(
        where={"warps": warps, "shared": shared, "registers": registers, "sensible": sensible, "ahead": ahead},
        default={**default, "bk": 32, "depth": 4, "in_flight": 1},
        bm=[128, 64, 256],
        bn=[128, 64, 256],
        wm=[64, 32, 16],
        wn=[32, 64, 16],
        bk=[32, 64, 16],
        depth=[4, 3, 2, 5, 6, 1],
        in_flight=[1, 0],
    )
