"""matmul in threads, by warp tiles: multiply-adds on quads of rows and columns that the lanes of a warp hold (CUDA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tensorir.ops.gemm_blocks import ORDER, Blocks, Operands, Sums, each_product, inline
from tensorir.ops.gemm_tensor import multiplication
from tensorir.ops.problems import Gemm
from tensorir.ops.tiles import Knob, Knobs, Rule
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target
from tensorir.tune.gpu_model import Product, Tiles

DTYPES = ("float32", "int32")
QUAD = 4
"""Neighbours that one access of 16 bytes brings."""


class WarpTile(Blocks):
    """Both operands staged in shared memory per ``bk``, k outermost; a warp makes ``li ri`` rows by ``lj rj`` columns.

    Its lanes are a grid of ``li`` x ``lj``, each holds ``ri`` x ``rj`` sums as quads that are apart, so that what a
    warp reads at once is in different banks and what it writes fills whole sectors (the warp tiles of CUTLASS,
    "Efficient GEMM in CUDA"). A block has ``wi`` x ``wj`` warps; ``depth`` is that of the pipeline, whose copies are
    asynchronous with ``in_flight``.
    """

    li, ri, rj, wi, wj = Knob(8, 4), Knob(8, 4, 16), Knob(8, 4, 16), Knob(2, 4, 1), Knob(4, 2, 1)
    bk, depth, in_flight = Knob(8, 16, 32), Knob(2, 1, 3, 4), Knob(0, 1)
    raster, splits, atomic, rest = ORDER
    scope = "warp"

    @classmethod
    def needs(cls, p: Gemm) -> str | None:
        return "sm_70" if p.dtype in DTYPES and multiplication(p) is None else None

    @property
    def lj(self) -> int:
        """Columns of the grid of lanes."""
        return 32 // self.li

    @property
    def high(self) -> int:
        return self.wi * self.li * self.ri

    @property
    def wide(self) -> int:
        return self.wj * self.lj * self.rj

    @property
    def step(self) -> int:
        return self.bk

    def product(self, s: Schedule, of: Sums, given: Operands) -> Schedule:
        p, acc, out, li, lj = self.p, of.stage, of.out, self.li, self.lj
        wm, wn = li * self.ri, lj * self.rj
        bi, wi, i = s.split(f"{out}.i", [None, self.wi, wm])
        bj, wj, j = s.split(f"{out}.j", [None, self.wj, wn])
        s.reorder(*of.outer, bi, bj, wi, wj, i, j)
        s.bind(wi, "warp.y").bind(wj, "warp.x")
        self.bind_blocks(s, [*of.outer, bi, bj])
        s.compute_at(acc, wj).set_scope(of.buffer, "warp")
        lead = of.lead
        s.layout(of.buffer, f"{lead}i, j -> i/4%{li}, j/4%{lj} | {lead}i/{QUAD * li}, j/{QUAD * lj}, i%4, j%4")
        ko, ki = s.split(f"{acc}.k", [None, self.bk])
        s.reorder(*of.own, ko, ki, f"{acc}.i", f"{acc}.j")
        for operand, axis, turned, tile, extent in (
            ("a", "i", not p.ta, self.high, p.m),
            ("b", "j", p.tb, self.wide, p.n),
        ):
            name, z, together, _ = given[operand]
            row, whole = (self.bk, p.k) if turned else (tile, extent)
            lanes = next((n for n in (QUAD, 2) if row % n == 0 and (together or whole) % n == 0), None)
            order = f"{axis}, k" if turned else f"k, {axis}"
            stored = f"{z}{order} -> {z}k, {self._column(axis, turned)}"
            copy = s.stage_in(name, at=ko, scope="shared", vector=lanes, layout=stored).name
            held = f"i/4%{li}, *{lj}" if axis == "i" else f"*{li}, j/4%{lj}"
            strip = QUAD * (li if axis == "i" else lj)
            s.stage_in(copy, at=ki, scope="warp", layout=f"{z}{order} -> {held} | {z}k, {axis}/{strip}, {axis}%4")
        s.unroll(ki)
        if self.depth > 1:
            s.pipeline(ko, self.depth, async_=bool(self.in_flight))
        return inline(s, given)

    def _column(self, axis: str, turned: bool) -> str:
        """Storage along the axis that is not k: where a warp writes rows along k, 32 vectors of four and then element
        by element, groups of quads are permuted by bits of k, so that its rows and its pieces of k meet in no bank.
        """
        pieces = self.bk // QUAD
        if not turned or pieces < 2 or 32 // pieces < QUAD:
            return axis
        return f"{axis}/4 ^ k/4%{pieces}*{32 // pieces // QUAD}, {axis}%4"

    @staticmethod
    def modelled(p: Gemm) -> Product:
        return Product(*each_product(p), "f32", 4, 4, adds=p.beta)

    @property
    def model(self) -> Tiles:
        return Tiles("threads", self.high, self.wide, self.bk, self.ri, self.rj, self.depth, bool(self.in_flight),
                     raster=self.raster, splits=self.splits)  # fmt: skip

    @property
    def operand_bytes(self) -> int:
        return 4 * self.depth * self.bk * (self.high + self.wide)

    rules: ClassVar[Mapping[str, Rule]] = {
        "warps": lambda t: 2 <= t.wi * t.wj <= 8,
        "shared": Blocks.shared,
        "registers": lambda t: t.ri * t.rj <= 128,
        "unrolled": lambda t: t.ri * t.rj * t.bk <= 2048,
        "sensible": Blocks.sensible,
        "ahead": Blocks.ahead,
        **Blocks.rules,
    }

    @classmethod
    def knobs(cls, p: Gemm, target: Target) -> Knobs:
        plain = {} if target.has("sm_80") else {"depth": [2, 1], "in_flight": [0]}
        return {**super().knobs(p, target), **plain}

    @classmethod
    def starts(cls, p: Gemm, target: Target) -> list[dict[str, int]]:
        few, least = dict(ri=4, rj=4, wi=1, wj=2, bk=16), min(p.m, p.n)
        first = dict(li=8, ri=4, rj=4, wi=2, wj=2, bk=16)
        if least >= 256:
            first = dict(li=8, ri=8, rj=8, wi=2, wj=4, bk=8)
        if least >= 1024 and target.sm >= 86:
            # a multiprocessor issues one instruction for each multiply-add from there on: larger tiles leave more
            first = dict(li=4, ri=8, rj=16, wi=4, wj=2, bk=8)
        if p.m <= 32 or p.n <= 32:
            first = dict(li=8 if p.m > 16 else 4, **few)
        smaller = dict(li=8, ri=4, rj=8, wi=2, wj=2, bk=16), dict(li=8, **few), dict(li=4, **few)
        return [{**c, "depth": 2, "in_flight": 0} for c in (first, *smaller)]
