"""matmul on tensor cores: blocks of warps, sums and operands in fragments (CUDA from sm_80 on)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.intrin.cuda import MULTIPLICATIONS, Multiplication, loads_rows, rows_shape
from tensorir.ops.common import Config, leaves_in_halves
from tensorir.ops.gemm_blocks import EARLIER, RASTER, SPLITS, banded, bands, bind_blocks, in_parts, parts, sums_of
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.gpu_model import Product, Tiles, expectation

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

KINDS = {("float16", ""): "f16", ("bfloat16", ""): "bf16", ("int8", ""): "s8", ("uint8", ""): "u8",
         ("float32", "tf32"): "tf32", ("float32", "3xtf32"): "3xtf32"}  # fmt: skip
"""What tensor cores multiply: type and named precision to the instructions' name for it."""


def multiplication(p: Mapping[str, Any]) -> Multiplication | None:
    """The instructions for a matmul, None where tensor cores have none."""
    name = KINDS.get((p["dtype"], p["precision"] if p["dtype"] == "float32" else ""))
    return MULTIPLICATIONS[name] if name else None


def gpu_tensor(s: Schedule, c: Config, p: Mapping[str, Any]) -> Schedule:
    """Both operands staged in shared memory per ``bk``, each warp multiplies ``wm`` x ``wn``.

    c: ``bm`` x ``bn`` of a block and ``wm`` x ``wn`` of a warp, ``bk``, ``depth`` of the pipeline, of which copies are
       on their own with ``in_flight``; ``raster``: rows of blocks in a band, ``splits``: parts of the reduction and
       ``atomic``: how they meet (``gemm_blocks``); ``staged``: 16-bit results leave by way of shared memory
    """
    m = multiplication(p)
    assert m is not None
    acc, out, _, outer, own, _ = sums_of(s, c, p, c["bk"])
    bi, wi, i = s.split(f"{out}.i", [None, c["bm"] // c["wm"], c["wm"]])
    bj, wj, j = s.split(f"{out}.j", [None, c["bn"] // c["wn"], c["wn"]])
    s.reorder(*outer, bi, bj, wi, wj, i, j)
    s.bind(wi, "warp.y").bind(wj, "warp.x")
    z = "z, " if p["batch"] > 1 else ""
    if staged_out(c, p):
        s.stage_out(out, at=bj, scope="shared", vector=8, layout=f"{z}r, x -> {z}{OUT_ROWS}")
    bind_blocks(s, c, [*outer, bi, bj])
    s.compute_at(acc, wj)
    ko, ki, kk = s.split(f"{acc}.k", [None, c["bk"] // m.k, m.k])
    i0, i1 = s.split(f"{acc}.i", [None, 16])
    j0, j1 = s.split(f"{acc}.j", [None, 8])
    s.reorder(*own, ko, ki, i0, j0, i1, j1, kk)
    orders = {"a": "t" if p["ta"] else "n", "b": "t" if p["tb"] else "n"}
    for name, turned, tile, extent in (("a", p["ta"], c["bm"], p["m"]), ("b", not p["tb"], c["bn"], p["n"])):
        row, whole = (tile, extent) if turned else (c["bk"], p["k"])
        at_once = loads_rows(m, name, orders[name])
        x = swizzled(row, m) if at_once else _spread(row, m)
        s.stage_in(name, at=ko, scope="shared", vector=vector_of(row, whole, m), layout=f"{z}r, x -> {z}r, {x}")
    for name, order in orders.items():
        copy = s.stage_in(f"{name}_shared", at=ki, scope="warp").name
        if loads_rows(m, name, order):
            load_rows(s, copy, int(p["batch"] > 1), m, name, order)
    s.tensorize(i1, f"mma.m16n8k{m.k}.{m.name}.{orders['a']}{orders['b']}")
    s.unroll(ki)
    if c["depth"] > 1:
        s.pipeline(ko, c["depth"], async_=bool(c["in_flight"]))
    return s


OUT_ROWS = "x/64, r, x/8%8 ^ r%8, x%8"
"""Storage of 16-bit results in shared memory, so that neither pairs of them nor eight meet bank conflicts."""


def staged_out(c: Mapping[str, Any], p: Mapping[str, Any]) -> bool:
    """Whether results leave by way of shared memory: those of 16 bits, of which a warp holds halves of sectors."""
    return bool(c["staged"] and c["splits"] == 1 and p["n"] % 8 == 0 and leaves_in_halves(p))


def tensor_product(p: Mapping[str, Any]) -> Product:
    """A matmul as the model of kernels knows it."""
    m = multiplication(p)
    assert m is not None
    size = 4 // m.word
    kind = {1: "s8", 2: "f16", 4: "tf32"}[size]
    terms = 3 if p["precision"] == "3xtf32" else 1
    out = size if kind == "f16" else 4
    return Product(p["m"], p["n"], p["k"], p["batch"], kind, size, out, terms, bool(p["beta"]))


def tensor_tiles(c: Mapping[str, Any]) -> Tiles:
    """A configuration of ``gpu_tensor`` as the model of kernels knows it."""
    copies, order = bool(c["in_flight"]), dict(raster=c["raster"], splits=c["splits"])
    return Tiles("mma", c["bm"], c["bn"], c["bk"], c["wm"], c["wn"], c["depth"], copies, **order)


def load_rows(s: Schedule, copy: str, dim: int, m: Multiplication, operand: str, order: str) -> None:
    """Tensorize with ldmatrix a copy into registers, whose rows are numbered by its dimension ``dim``."""
    rows, columns = rows_shape(m, operand, order)
    r0, r1 = s.split(f"{copy}.ax{dim}", [None, rows])
    c0, c1 = s.split(f"{copy}.ax{dim + 1}", [None, columns])
    s.reorder(r0, c0, r1, c1).tensorize(r1, f"ldmatrix.{m.name}.{operand}.{order}")


def vector_of(tile: int, extent: int, m: Multiplication) -> int | None:
    """Lanes of a copy along a row of ``tile`` elements of a tensor ``extent`` wide: up to 16 bytes."""
    return next((n for n in (16, 8, 4, 2) if n <= m.row and tile % n == 0 and extent % n == 0), None)


def swizzled(row: int, m: Multiplication, number: str = "r") -> str:
    """Storage of x along rows of ``row`` elements, whose pieces of 16 bytes are permuted by the row's ``number``, so
    that those of eight rows lie in different banks.

    Eight pieces fill the 32 banks. A row of eight or more is permuted by its number; of shorter ones several lie
    side by side, and the next bits of their number permute them (as CUTLASS's swizzles of 32, 64 and 128 bytes).
    """
    pieces = row // m.row
    if pieces < 2 or pieces & (pieces - 1):
        return "x"
    several = max(1, 8 // pieces)
    bits = f"{number}%8" if several == 1 else f"{number}/{several}%{pieces}"
    return f"x/{m.row} ^ {bits}, x%{m.row}"


def _spread(row: int, m: Multiplication) -> str:
    """Rows of k that lanes read element by element, eight columns of four rows at a time: groups of eight words of
    neighbouring rows lie in different banks.
    """
    groups = row // 8
    if m.word > 1 or groups < 4 or groups & (groups - 1):
        return "x"
    return "x/8 ^ r%4, x%8"


def tensor_space(p: Mapping[str, Any], target: Target) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block, whole warps."""
    from tensorir.tune.space import Space

    m = multiplication(p)
    assert m is not None
    size = 4 // m.word

    def warps(c: Mapping[str, Any]) -> bool:
        whole = c["bm"] % c["wm"] == 0 and c["bn"] % c["wn"] == 0
        return bool(whole and 2 <= c["bm"] // c["wm"] * (c["bn"] // c["wn"]) <= 8)

    def shared(c: Mapping[str, Any]) -> bool:
        results = 2 * c["bm"] * c["bn"] if staged_out(c, p) else 0
        return bool(size * c["depth"] * c["bk"] * (c["bm"] + c["bn"]) + results <= target.shared_optin_bytes)

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["wm"] * c["wn"] <= 64 * 64)

    def sensible(c: Mapping[str, Any]) -> bool:
        return all(c[t] == 64 or c[t] // 2 < p[x] for t, x in (("bm", "m"), ("bn", "n")))

    def ahead(c: Mapping[str, Any]) -> bool:
        return bool(c["depth"] >= 2 if c["in_flight"] else c["depth"] <= 2)  # registers hold one tile

    def tiles(c: Mapping[str, Any]) -> tuple[int, int]:
        return -(-p["m"] // c["bm"]), -(-p["n"] // c["bn"])

    def whole(c: Mapping[str, Any]) -> bool:
        return banded(c, *tiles(c), target)

    def split(c: Mapping[str, Any]) -> bool:
        return in_parts(c, p, c["bk"], math.prod(tiles(c)), target)

    least, bytes_of_k = min(p["m"], p["n"]), [64, 128, 32]
    default = dict(bm=128, bn=128, wm=64, wn=32) if least >= 512 else dict(bm=64, bn=64, wm=32, wn=32)
    if least >= 2048:
        default = dict(bm=256, bn=128, wm=64, wn=64)
    default |= dict(bk=64 // size, depth=4, in_flight=1, raster=bands(*tiles(default), target), splits=1, atomic=0)
    default["staged"] = 1
    default["staged"] = int(staged_out(default, p) and shared(default))
    expected = expectation(tensor_product(p), tensor_tiles, gpu_of(target))
    where = {"warps": warps, "shared": shared, "registers": registers, "sensible": sensible, "ahead": ahead}
    space = Space(
        where={**where, "bands": whole, "parts": split},
        default={**default, "splits": parts(p, default, split, expected)},
        bm=[128, 64, 256],
        bn=[128, 64, 256],
        wm=[64, 32, 16],
        wn=[32, 64, 16],
        bk=[n // size for n in bytes_of_k],
        depth=[4, 3, 2, 5, 6, 1],
        in_flight=[1, 0],
        raster=RASTER,
        splits=SPLITS,
        atomic=[0, 1],
        staged=[1, 0] if staged_out({"staged": 1, "splits": 1}, p) else [0],
    )
    return space.since({**EARLIER, "staged": 0}).expecting(expected)
