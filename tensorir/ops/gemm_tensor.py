"""matmul on tensor cores: blocks of warps, sums and operands in fragments (CUDA from sm_75 on)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir.intrin.cuda import MULTIPLICATIONS, NARROW, Multiplication, loads_rows, rows_shape
from tensorir.intrin.stmatrix import COLUMNS
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
from tensorir.ops.problems import Gemm, Problem, result_type
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.gpu_model import Product, Tiles

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

KINDS = {("float16", ""): "f16", ("bfloat16", ""): "bf16", ("int8", ""): "s8", ("uint8", ""): "u8",
         ("float32", "tf32"): "tf32", ("float32", "3xtf32"): "3xtf32"}  # fmt: skip
"""What tensor cores multiply: type and named precision to the instructions' name for it."""
FLOATS_OF_8 = {"float8_e4m3": "e4m3", "float8_e5m2": "e5m2"}
"""Likewise, from sm_89 on; gradients of convolutions with respect to filters do not have them there."""


def multiplication(p: Problem, target: Target | None = None) -> Multiplication | None:
    """The instructions for a matmul, of the first kind of tensor cores that have them all or those of a target; None
    where there are none.
    """
    name = kind_of(p)
    if target is not None and not target.has("sm_80"):
        return NARROW.get(name or "")
    return MULTIPLICATIONS[name] if name else None


def least_target(p: Problem) -> str:
    """The first architecture whose tensor cores multiply these types."""
    name = kind_of(p) or ""
    return NARROW[name].needs if name in NARROW else MULTIPLICATIONS[name].needs


def kind_of(p: Problem) -> str | None:
    """The instructions' name for the type and precision of a product; None where there are none."""
    precision = p.precision if p.dtype == "float32" else ""
    return KINDS.get((p.dtype, precision)) or FLOATS_OF_8.get(p.dtype)


def gpu_tensor(s: Schedule, c: Config, p: Gemm) -> Schedule:
    """Both operands staged in shared memory per ``bk``, each warp multiplies ``wm`` x ``wn``.

    c: ``bm`` x ``bn`` of a block and ``wm`` x ``wn`` of a warp, ``bk``, ``depth`` of the pipeline, of which copies are
       asynchronous with ``in_flight``; ``raster``: rows of blocks in a band, ``splits``: parts of the reduction and
       ``atomic``: how they meet (``gemm_blocks``); ``staged``: 16-bit results leave by way of shared memory
    """
    for sums, each, part in each_sums(s, c, p, c["bk"]):
        product_on_cores(s, each, part, sums, operands(part))
    return join_operands(s, p)


def product_on_cores(s: Schedule, c: Config, p: Gemm, of: Sums, given: Mapping[str, Operand]) -> Schedule:
    """Schedule the product ``of`` two tensors, a and b as they are ``given``, as ``gpu_tensor`` says.

    p: its ``m``, ``n``, ``k`` and ``batch``, whether the operands are stored turned, ``ta`` and ``tb``, their type
       ``dtype`` and ``precision``
    """
    m = multiplication(p, s.target)
    assert m is not None
    acc, out, _, outer, own, _ = of
    bi, wi, i = s.split(f"{out}.i", [None, c["bm"] // c["wm"], c["wm"]])
    bj, wj, j = s.split(f"{out}.j", [None, c["bn"] // c["wn"], c["wn"]])
    s.reorder(*outer, bi, bj, wi, wj, i, j)
    s.bind(wi, "warp.y").bind(wj, "warp.x")
    z = "z, " if p.batch > 1 else ""
    if staged_out(c, p):
        s.stage_out(out, at=bj, scope="shared", vector=8, layout=f"{z}r, x -> {z}{OUT_ROWS}")
        if s.target.has("sm_90"):
            store_rows(s, out, [i], j, f"m16.{result_kind(p.dtype)}.n")
    bind_blocks(s, c, [*outer, bi, bj])
    s.compute_at(acc, wj)
    inner = [2] if m.halves == 1 else []  # instructions for what ldmatrix loads at once
    ko, ki, *halves, kk = s.split(f"{acc}.k", [None, c["bk"] // m.step, *inner, m.k])
    i0, i1 = s.split(f"{acc}.i", [None, 16])
    j0, j1 = s.split(f"{acc}.j", [None, 8])
    s.reorder(*own, ko, ki, *halves, i0, j0, i1, j1, kk)
    orders = {"a": "t" if p.ta else "n", "b": "t" if p.tb else "n"}
    copies = {}
    for operand, turned, tile, extent in (("a", p.ta, c["bm"], p.m), ("b", not p.tb, c["bn"], p.n)):
        row, whole = (tile, extent) if turned else (c["bk"], p.k)
        at_once, (name, lead, _) = loads_rows(m, operand, orders[operand]), given[operand]
        x = swizzled(row, m) if at_once else _spread(row, m)
        vector = vector_of(row, whole, m)
        layout = f"{lead}r, x -> {lead}r, {x}"
        copies[operand] = s.stage_in(name, at=ko, scope="shared", vector=vector, layout=layout).name
    for operand, order in orders.items():
        copy = s.stage_in(copies[operand], at=ki, scope="warp").name
        if loads_rows(m, operand, order):
            load_rows(s, copy, given[operand].dims, m, operand, order)
    s.tensorize(i1, f"mma.m16n8k{m.k}.{m.name}.{orders['a']}{orders['b']}")
    for loop in (ki, *halves):
        s.unroll(loop)
    if c["depth"] > 1:
        s.pipeline(ko, c["depth"], async_=bool(c["in_flight"]))
    return s


OUT_ROWS = "x/64, r, x/8%8 ^ r%8, x%8"
"""Storage of 16-bit results in shared memory, so that neither pairs of them nor eight meet bank conflicts."""


def staged_out(c: Mapping[str, Any], p: Gemm) -> bool:
    """Whether results leave by way of shared memory: those of 16 bits, of which a warp holds halves of sectors."""
    return bool(stageable(p) and c["staged"] and c["splits"] == 1)


def stageable(p: Gemm) -> bool:
    """Whether results have 16 bits and rows of whole vectors."""
    return p.n % 8 == 0 and p.leaves_in_halves


def tensor_product(p: Gemm) -> Product:
    """A matmul as the model of kernels knows it."""
    m = multiplication(p)
    assert m is not None
    size = 4 // m.word
    kind = "f8" if p.dtype in FLOATS_OF_8 else {1: "s8", 2: "f16", 4: "tf32"}[size]
    terms = 3 if p.precision == "3xtf32" else 1
    out = 2 if p.leaves_in_halves else 4
    return Product(*each_product(p), kind, size, out, terms, bool(p.beta), p.apart)


def tensor_block(c: Mapping[str, Any]) -> Block:
    """Rows and columns of a block."""
    return c["bm"], c["bn"]


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


def store_rows(s: Schedule, out: str, rows: Sequence[Any], columns: Any, tile: str) -> None:
    """Let ``out``, which writes to shared memory, do so by stmatrix: a ``tile`` of rows by 16 columns at once is
    converted in registers.
    """
    sizes = [int(n) for n in tile.partition(".")[0][1:].split("x")]
    parts = [s.split(x, [None, n]) for x, n in zip((*rows, columns), (*sizes, COLUMNS), strict=True)]
    s.reorder(*(x for x, _ in parts), *(x for _, x in parts))
    copy = s.stage_out(out, at=parts[-1][0], scope="warp")
    s.tensorize(copy.axes[-len(parts)], f"stmatrix.{tile}")


def result_kind(dtype: str) -> str:
    """The instructions' name for the type of results of products of ``dtype``, of 16 bits."""
    return KINDS[result_type(dtype), ""]


def vector_of(tile: int, extent: int, m: Multiplication) -> int | None:
    """Lanes of a copy along a row of ``tile`` elements of a tensor ``extent`` wide: up to 16 bytes."""
    return next((n for n in (16, 8, 4, 2) if n <= m.row and tile % n == 0 and extent % n == 0), None)


def swizzled(row: int, m: Multiplication, number: str = "r") -> str:
    """Storage of x along rows of ``row`` elements, whose pieces of 16 bytes are permuted by the row's ``number``, so
    that those of eight rows are in different banks.

    Eight pieces fill the 32 banks. A row of eight or more is permuted by its number; of shorter ones several are
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
    neighbouring rows are in different banks.
    """
    groups = row // 8
    if m.word > 1 or groups < 4 or groups & (groups - 1):
        return "x"
    return "x/8 ^ r%4, x%8"


def tensor_space(p: Gemm, target: Target) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block, whole warps."""
    from tensorir.tune.space import Space

    m, cp_async = multiplication(p, target), target.has("sm_80")
    assert m is not None
    size = 4 // m.word

    def warps(c: Mapping[str, Any]) -> bool:
        whole = c["bm"] % c["wm"] == 0 and c["bn"] % c["wn"] == 0
        return bool(whole and 2 <= c["bm"] // c["wm"] * (c["bn"] // c["wn"]) <= 8)

    def shared(c: Mapping[str, Any]) -> bool:
        needed, room = size * c["depth"] * c["bk"] * (c["bm"] + c["bn"]), target.shared_optin_bytes
        if needed > room or not stageable(p):
            return bool(needed <= room)
        whole = c["staged"] and (c["splits"] == 1 or c["rest"])
        return bool(needed + (2 * c["bm"] * c["bn"] if whole else 0) <= room)

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["wm"] * c["wn"] <= 64 * 64)

    def sensible(c: Mapping[str, Any]) -> bool:
        return all(c[t] <= 64 or c[t] // 2 < extent for t, extent in (("bm", p.m), ("bn", p.n)))

    def ahead(c: Mapping[str, Any]) -> bool:
        return bool(c["depth"] >= 2 if c["in_flight"] else c["depth"] <= 2)  # registers hold one tile

    def tiles(c: Mapping[str, Any]) -> tuple[int, int]:
        return -(-p.m // c["bm"]), -(-p.n // c["bn"])

    def whole(c: Mapping[str, Any]) -> bool:
        return banded(c, *tiles(c), target)

    def split(c: Mapping[str, Any]) -> bool:
        return dealt_out(c, p, tensor_block(c), c["bk"], target)

    least, bytes_of_k = min(p.m, p.n), [64, 128, 32]
    default = dict(bm=128, bn=128, wm=64, wn=32) if least >= 512 else dict(bm=64, bn=64, wm=32, wn=32)
    if least >= 2048:
        default = dict(bm=256, bn=128, wm=64, wn=64)
    if not cp_async:
        default = dict(bm=128, bn=128, wm=64, wn=32) if least >= 512 else default
    wide = 128 if p.n > 64 else 64
    narrow = [dict(bm=n, bn=wide, wm=min(n, 64), wn=32) for n in (128, 64, 32, 16)]
    default = dict(first_of_one_group(p, lambda c: c["bm"], [default, *narrow]))
    copies = dict(depth=4, in_flight=1) if cp_async else dict(depth=2, in_flight=0)
    default |= dict(bk=64 // size, **copies, raster=bands(*tiles(default), target), splits=1, atomic=0, rest=0)
    default["staged"] = 1
    default["staged"] = int(staged_out(default, p) and shared(default))
    expected = expected_time(p, tensor_product(p), tensor_tiles, tensor_block, gpu_of(target), target)
    where = {"warps": warps, "shared": shared, "registers": registers, "sensible": sensible, "ahead": ahead}
    if in_groups(p):
        where["groups"] = lambda c: of_one_group(p, c["bm"])
    space = Space(
        where={**where, "bands": whole, "parts": split},
        default={**default, "splits": parts(p, default, split, expected)},
        bm=[128, 64, 256, 32, 16] if in_groups(p) else [128, 64, 256],
        bn=[128, 64, 256],
        wm=[64, 32, 16],
        wn=[32, 64, 16],
        bk=[n // size for n in bytes_of_k],
        depth=[4, 3, 2, 5, 6, 1],
        in_flight=[1, 0] if cp_async else [0],
        raster=RASTER,
        splits=SPLITS,
        atomic=[0, 1],
        rest=rests(p),
        staged=[1, 0] if staged_out({"staged": 1, "splits": 1}, p) else [0],
    )
    return space.since({**EARLIER, "staged": 0}).expecting(expected)
