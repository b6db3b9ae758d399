"""Tensor-core engine (mma, CUDA from sm_75): blocks of warps with operands and accumulators in fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tensorir.engines.gemm_blocks import ORDER, UNSPLIT, Blocks, Operands, Sums, each_product, in_groups, inline
from tensorir.engines.problems import Gemm, TileProblem, result_type
from tensorir.engines.steps import written_by
from tensorir.engines.tiles import Knob, Knobs, Rule
from tensorir.intrin.cuda import MULTIPLICATIONS, SM_75_MULTIPLICATIONS, Multiplication, loads_rows, rows_shape
from tensorir.intrin.stmatrix import COLUMNS
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.structure import identical
from tensorir.ir.tree import Load
from tensorir.ir.visit import find
from tensorir.schedule.rewrite import written_index
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_model import MatrixProduct, Tiles

KINDS = {("float16", ""): "f16", ("bfloat16", ""): "bf16", ("int8", ""): "s8", ("uint8", ""): "u8",
         ("float32", "tf32"): "tf32", ("float32", "3xtf32"): "3xtf32"}  # fmt: skip
"""(operand type, precision of float32 products, else "") -> its name in tensor-core instructions."""
FLOATS_OF_8 = {"float8_e4m3": "e4m3", "float8_e5m2": "e5m2"}
"""8-bit float type -> its name in tensor-core instructions (sm_89 on); filter gradients of convolutions lack them."""


def multiplication(p: TileProblem, target: Target | None = None) -> Multiplication | None:
    """Tensor-core types for a product on ``target`` (None: any); None if unsupported."""
    return (MULTIPLICATIONS if target is None or target.has("sm_80") else SM_75_MULTIPLICATIONS).get(kind_of(p) or "")


def instructions(p: TileProblem, target: Target | None = None) -> Multiplication:
    """``multiplication`` for a product known to be supported; AssertionError for others."""
    m = multiplication(p, target)
    assert m is not None
    return m


def kind_of(p: TileProblem) -> str | None:
    """Operand type of tensor-core instructions for a product, as in their names: "f16", "tf32"; None if unsupported, as
    for float32 with precision "fp32".
    """
    precision = p.precision if p.dtype == "float32" else ""
    return KINDS.get((p.dtype, precision)) or FLOATS_OF_8.get(p.dtype)


def modelled_kind(p: TileProblem) -> str:
    """Kind of a product in the performance model, by operand width."""
    return "f8" if p.dtype in FLOATS_OF_8 else {1: "s8", 2: "f16", 4: "tf32"}[p.element_bytes]


VECTOR = 8
"""Maximum 16-bit results per vector store: 16 bytes."""
OUT_ROWS = "x/64, r, x/8%8 ^ r%8, x%8"
"""Layout of 16-bit results in shared memory, free of bank conflicts for accesses of two and of eight elements."""


class TensorTile(Blocks):
    """Tensor-core engine configuration: operands in shared memory per ``bk``; each warp computes ``wm`` x ``wn`` of the
    block's ``bm`` x ``bn``.

    depth: pipeline stages;  in_flight: copies are asynchronous;  staged: 16-bit results are stored through shared
           memory
    """

    bm, bn, wm, wn = Knob(128, 64, 256), Knob(128, 64, 256), Knob(64, 32, 16), Knob(32, 64, 16)
    bk, depth, in_flight = Knob(32, 64, 16), Knob(4, 3, 2, 5, 6, 1), Knob(1, 0)
    raster, splits, atomic, rest = ORDER
    staged = Knob(1, 0)

    @classmethod
    def needs(cls, p: Gemm) -> str | None:
        name = kind_of(p)
        return ({**MULTIPLICATIONS, **SM_75_MULTIPLICATIONS}[name].needs) if name else None

    @property
    def high(self) -> int:
        return self.bm

    @property
    def wide(self) -> int:
        return self.bn

    def product(self, s: BaseSchedule, of: Sums, given: Operands) -> BaseSchedule:
        p, m, acc = self.p, instructions(self.p, s.target), of.stage
        bi, bj, wi, wj, i, j = self._warps(s, of)
        s.bind(wi, "warp.y").bind(wj, "warp.x")
        if self.leaves_whole:
            if of.leave is None:
                layout = f"{of.lead}r, x -> {of.lead}{OUT_ROWS}"
                s.stage_out(of.out, at=bj, scope="shared", vector=VECTOR, layout=layout)
                for name in added(s, of.out, of.stage)[: int(p.beta)]:
                    s.stage_in(name, at=bj, scope="shared", vector=VECTOR, layout=layout)
            if s.target.has("sm_90"):
                store_rows(s, of.made, [i], j, f"m16.{KINDS[p.made, '']}.n")
        self.bind_blocks(s, [*of.outer, bi, bj])
        s.compute_at(acc, wj)
        inner = [2] if m.halves == 1 else []  # instructions for what ldmatrix loads at once
        ko, ki, *halves, kk = s.split(f"{acc}.k", [None, self.bk // m.step, *inner, m.k])
        i0, i1 = s.split(f"{acc}.i", [None, 16])
        j0, j1 = s.split(f"{acc}.j", [None, 8])
        s.reorder(*of.own, ko, ki, *halves, i0, j0, i1, j1, kk)
        orders = {"a": "t" if p.ta else "n", "b": "t" if p.tb else "n"}
        copies = {}
        for operand, turned, tile, extent in (("a", p.ta, self.bm, p.m), ("b", not p.tb, self.bn, p.n)):
            row, whole = (tile, extent) if turned else (self.bk, p.k)
            at_once, lead = loads_rows(m, operand, orders[operand]), given[operand].lead
            layout = f"{lead}r, x -> {lead}r, {swizzled(row, m) if at_once else _spread(row, m)}"
            vector = given[operand].lanes(row, whole, m.row)
            copy = s.stage_in(given[operand].name, at=ko, scope="shared", vector=vector, layout=layout)
            copies[operand] = copy.name
        for operand, order in orders.items():
            fragment = s.stage_in(copies[operand], at=ki, scope="warp").name
            if loads_rows(m, operand, order):
                load_rows(s, fragment, given[operand].dims, m, operand, order)
        s.tensorize(i1, f"mma.m16n8k{m.k}.{m.name}.{orders['a']}{orders['b']}")
        for loop in (ki, *halves):
            s.unroll(loop)
        if self.depth > 1:
            s.pipeline(ko, self.depth, async_=bool(self.in_flight))
        return inline(s, given)

    def _warps(self, s: BaseSchedule, of: Sums) -> tuple[str, ...]:
        """Names of loops over block rows and columns, warps, and elements of a warp."""
        if of.leave is None:
            bi, wi, i = s.split(f"{of.out}.i", [None, self.bm // self.wm, self.wm])
            bj, wj, j = s.split(f"{of.out}.j", [None, self.bn // self.wn, self.wn])
            s.reorder(*of.outer, bi, bj, wi, wj, i, j)
            return bi, bj, wi, wj, i, j
        bi, i = s.split(f"{of.out}.i", [None, self.bm])
        bj, j = s.split(f"{of.out}.j", [None, self.bn])
        s.reorder(*of.outer, bi, bj, i, j)
        of.leave(bj, i, j)
        wi, i = s.split(f"{of.made}.i", [None, self.wm])
        wj, j = s.split(f"{of.made}.j", [None, self.wn])
        s.reorder(wi, wj, i, j)
        return bi, bj, wi, wj, i, j

    @property
    def leaves_whole(self) -> bool:
        """True if results are staged in shared memory."""
        return bool(self.staged) and self.splits == 1 and stageable(self.p)

    @staticmethod
    def modelled(p: Gemm) -> MatrixProduct:
        terms, out = 3 if p.precision == "3xtf32" else 1, 2 if p.leaves_in_halves else 4
        return MatrixProduct(*each_product(p), modelled_kind(p), p.element_bytes, out, terms, p.beta, p.apart)

    @property
    def model(self) -> Tiles:
        return Tiles("mma", self.bm, self.bn, self.bk, self.wm, self.wn, self.depth, bool(self.in_flight),
                     raster=self.raster, splits=self.splits, results=self.result_bytes)  # fmt: skip

    @property
    def result_bytes(self) -> int:
        whole = stageable(self.p) and self.staged and (self.splits == 1 or self.rest)
        return 2 * (1 + self.p.beta) * self.bm * self.bn if whole else 0

    rules: ClassVar[Mapping[str, Rule]] = {
        "whole": lambda t: t.bm % t.wm == 0 and t.bn % t.wn == 0,
        "warps": lambda t: 2 <= t.bm // t.wm * (t.bn // t.wn) <= 8,
        "shared": Blocks.shared,
        "registers": lambda t: t.wm * t.wn <= 64 * 64,
        "sensible": Blocks.sensible,
        "ahead": Blocks.ahead,
        **Blocks.rules,
    }

    @classmethod
    def knobs(cls, p: Gemm, target: Target) -> Knobs:
        steps = [n // p.element_bytes for n in (64, 128, 32)]
        own = {"bk": steps, "staged": [1, 0] if stageable(p) else [0]}
        if in_groups(p):
            own["bm"] = [128, 64, 256, 32, 16]
        if not target.has("sm_80"):
            own["in_flight"] = [0]
        return {**super().knobs(p, target), **own}

    @classmethod
    def starts(cls, p: Gemm, target: Target) -> list[dict[str, int]]:
        least, wide, copies = min(p.m, p.n), 128 if p.n > 64 else 64, target.has("sm_80")
        first = dict(bm=64, bn=64, wm=32, wn=32)
        if least >= 512:
            first = dict(bm=128, bn=128, wm=64, wn=32)
        if least >= 2048 and copies:
            first = dict(bm=256, bn=128, wm=64, wn=64)
        narrow = [dict(bm=n, bn=wide, wm=min(n, 64), wn=32) for n in (128, 64, 32, 16)]
        ring = dict(depth=4, in_flight=1) if copies else dict(depth=2, in_flight=0)
        found = [{**c, **ring, "bk": 64 // p.element_bytes, "staged": int(stageable(p))} for c in (first, *narrow)]
        return [c if cls({**UNSPLIT, **c}, p, target).shared() else {**c, "staged": 0} for c in found]


def stageable(p: Gemm) -> bool:
    """True if results can be staged in shared memory: 16-bit, rows of whole vectors."""
    return p.n % 8 == 0 and p.leaves_in_halves and p.in_rows


def added(s: BaseSchedule, out: str, total: str) -> list[str]:
    """Names of the 16-bit arrays, other than ``total``'s, that stage ``out`` reads only at the element that it
    writes.
    """
    stage, sums = s.index.stages[out], written_by(s, total)
    at, loads = written_index(stage), find(stage.body, Load)
    found = [b for x in loads if DTYPES[(b := x.buffer).dtype].bits == 16 and b.name != sums]
    return [b.name for b in dict.fromkeys(found) if all(identical(x.index, at) for x in loads if x.buffer is b)]


def leave_in_vectors(s: BaseSchedule, rows: str, packs: Sequence[str], block: str, i: str, j: str, lanes: int) -> None:
    """Stage results of ``rows`` in shared memory, then store them in vectors by all threads of ``block``.

    packs: stages that reorder addends to rows, staged likewise;  i, j: row and column loops;  lanes: vector width
    """
    array = written_by(s, rows)
    s.set_scope(array, "register").compute_at(rows, block)
    s.set_scope(array, "shared").layout(array, f"r, x -> {OUT_ROWS}")
    bring_rows(s, packs, block, f"r, x -> {OUT_ROWS}", lanes)
    j, few = s.split(j, [None, lanes])
    s.vectorize(few).bind(s.fuse(i, j), "threads")


def bring_rows(s: BaseSchedule, packs: Sequence[str], at: str, layout: str, lanes: int) -> None:
    """Stage the arrays of ``packs`` in shared memory at loop ``at``, in vectors of ``lanes``, and inline the stages."""
    for name in packs:
        s.stage_in(written_by(s, name), at=at, scope="shared", vector=lanes if lanes > 1 else None, layout=layout)
        s.compute_inline(name)


def load_rows(s: BaseSchedule, copy: str, dim: int, m: Multiplication, operand: str, order: str) -> None:
    """Tensorize a copy to registers with ldmatrix; ``dim``: its dimension over rows"""
    rows, columns = rows_shape(m, operand, order)
    r0, r1 = s.split(f"{copy}.ax{dim}", [None, rows])
    c0, c1 = s.split(f"{copy}.ax{dim + 1}", [None, columns])
    s.reorder(r0, c0, r1, c1).tensorize(r1, f"ldmatrix.{m.name}.{operand}.{order}")


def store_rows(s: BaseSchedule, out: str, rows: Sequence[str], columns: str, tile: str) -> None:
    """Tensorize the stores of ``out`` to shared memory with stmatrix, in tiles of rows by 16 columns.

    rows, columns: its loops;  tile: name of the instruction, "m16.f16.n": 16 rows, one size per loop of ``rows``
    """
    sizes = [int(n) for n in tile.partition(".")[0][1:].split("x")]
    parts = [s.split(x, [None, n]) for x, n in zip((*rows, columns), (*sizes, COLUMNS), strict=True)]
    s.reorder(*(x for x, _ in parts), *(x for _, x in parts))
    copy = s.stage_out(out, at=parts[-1][0], scope="warp")
    s.tensorize(copy.axes[-len(parts)], f"stmatrix.{tile}")


def result_kind(dtype: str) -> str:
    """Type name in instructions of 16-bit results of products of ``dtype``, "f16" or "bf16"; KeyError for others."""
    return KINDS[result_type(dtype), ""]


def vector_of(tile: int, extent: int, m: Multiplication) -> int | None:
    """Widest vector, in elements, for copying rows of ``tile`` elements: up to 16 bytes; None for scalars.

    It divides ``tile`` and ``extent``, the array's row.
    """
    return next((n for n in (16, 8, 4, 2) if n <= m.row and tile % n == 0 and extent % n == 0), None)


def swizzled(row: int, m: Multiplication, number: str = "r") -> str:
    """Layout text of index ``x`` in rows of ``row`` elements: 16-byte chunks swizzled by the row ``number``, free of
    bank conflicts over eight rows; "x" if no swizzle applies.

    Eight chunks fill the 32 banks. A row of eight or more chunks is permuted by its number. Shorter rows lie several to
    a 128-byte line, and are permuted by the next bits of their number (as CUTLASS's swizzles of 32, 64 and 128 bytes).
    """
    pieces = row // m.row
    if pieces < 2 or pieces & (pieces - 1):
        return "x"
    several = max(1, 8 // pieces)
    bits = f"{number}%8" if several == 1 else f"{number}/{several}%{pieces}"
    return f"x/{m.row} ^ {bits}, x%{m.row}"


def _spread(row: int, m: Multiplication) -> str:
    """Layout text of index ``x`` in rows of ``row`` elements that lanes read one by one, free of bank conflicts; "x" if
    no swizzle applies.
    """
    piece = {1: 8, 4: 16}.get(m.word, 0)
    pieces = row // piece if piece else 0
    if pieces < 4 or pieces & (pieces - 1):
        return "x"
    return f"x/{piece} ^ r{f'/{m.word}' if m.word > 1 else ''}%4, x%{piece}"
