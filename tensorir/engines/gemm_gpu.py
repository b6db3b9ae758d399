"""GPU matrix-product engines on CUDA cores: shared-memory tiles for any GPU, warp tiles for CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from tensorir.engines.blocks import bind_grid, has_room, start
from tensorir.engines.gemm_blocks import ORDER, Blocks, Engine, Operands, Sums, each_product, inline
from tensorir.engines.gemm_tensor import multiplication
from tensorir.engines.problems import Gemm
from tensorir.engines.steps import written_by
from tensorir.engines.tiles import Config, Knob, Knobs, Rule
from tensorir.gpu_devices import gpu_of, usual_gpu
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_model import MatrixProduct, Tiles, seconds

DTYPES = ("float32", "int32")
QUAD = 4
"""Adjacent 4-byte elements of one 16-byte access."""


class SharedTile(Engine):
    """Engine with operands in shared memory per ``bk`` and register tiles read in vectors of four.

    ``ti`` x ``tj`` threads per block, ``ri`` x ``rj`` elements per thread;  ``vector``: copy width;
    ``fragments``: load a step's operands to registers first;  ``depth``: pipeline stages;
    ``splits``: parts of the reduction
    """

    ti, tj, ri, rj = Knob(16, 8, 32, 4), Knob(16, 8, 32), Knob(8, 4, 2, 1, 16), Knob(8, 4, 2, 1)
    bk, vector, fragments, depth = Knob(8, 16, 32), Knob(4, 1), Knob(1, 0), Knob(2, 1)
    splits = ORDER[1]

    @property
    def high(self) -> int:
        return self.ti * self.ri

    @property
    def wide(self) -> int:
        return self.tj * self.rj

    @property
    def unrolled(self) -> int:
        return self.ri * self.rj * self.bk

    def product(self, s: BaseSchedule, of: Sums, given: Operands) -> BaseSchedule:
        p, acc, out = self.p, of.stage, of.out
        ib, it, il = s.split(f"{out}.i", [None, self.ti, self.ri])
        jb, jt, jl = s.split(f"{out}.j", [None, self.tj, self.rj])
        s.reorder(*of.outer, ib, jb, it, jt, il, jl)
        bind_grid(s, of.outer, [ib], [jb])
        s.bind(it, "thread.y").bind(jt, "thread.x")
        s.compute_at(acc, jt)
        ko, ki = s.split(f"{acc}.k", [None, self.bk])
        s.reorder(*of.own, ko, ki, f"{acc}.i", f"{acc}.j")
        copies = []
        for operand, axis, along_k, each, threads, extent in (
            ("a", "i", not p.ta, self.ri, self.ti, p.m),
            ("b", "j", p.tb, self.rj, self.tj, p.n),
        ):
            name, z = given[operand][:2]
            row, whole = (self.bk, p.k) if along_k else (threads * each, extent)
            order = f"{axis}, k" if along_k else f"k, {axis}"
            layout = f"{z}{order} -> {z}k, {_quads(axis, each, threads, self.bk, along_k)}"
            lanes = given[operand].lanes(row, whole, self.vector)
            copy = s.stage_in(name, at=ko, scope="shared", vector=lanes, layout=layout).name
            copies.append((copy, given[operand].dims + (not along_k), each))
        inline(s, given)
        for copy, dim, each in copies if self.fragments else ():
            fragment = s.stage_in(copy, at=ki, scope="register").name
            if each % 4 == 0:  # four neighbours of a tile are contiguous, whichever axis comes last
                _, four = s.split(f"{fragment}.ax{dim}", [None, 4])
                own = [x for x in s.loops(fragment) if str(x).startswith(f"{fragment}.") and x != four]
                s.reorder(*own, four).vectorize(four)
        s.unroll(f"{acc}.i").unroll(f"{acc}.j").unroll(ki)
        if self.rj % 4 == 0:
            tile, lane = s.split(jl, [None, 4])
            s.unroll(tile).vectorize(lane)
        s.unroll(il)
        return s.pipeline(ko, self.depth) if self.depth > 1 else s

    @classmethod
    def expected(cls, p: Gemm, target: Target) -> Callable[[Config], float] | None:
        """Function from a configuration to modelled seconds; None for an unknown device."""
        return cls._seconds(p, target) if gpu_of(target) else None

    @classmethod
    def _seconds(cls, p: Gemm, target: Target) -> Callable[[Config], float]:
        gpu, product = usual_gpu(target), WarpTile.modelled(p)
        return lambda c: seconds(product, cls(c, p, target).model, gpu)

    @property
    def model(self) -> Tiles:
        """This configuration in the performance model's terms."""
        return Tiles("threads", self.high, self.wide, self.bk, self.ri, self.rj, self.depth, False,
                     vector=4 if self.ri % 4 == self.rj % 4 == 0 else 1, splits=self.splits)  # fmt: skip

    rules: ClassVar[Mapping[str, Rule]] = {
        "threads": lambda t: t.ti * t.tj in (64, 128, 256),
        "shared": Engine.shared,
        "registers": lambda t: t.ri * t.rj <= 128,
        "unrolled": lambda t: t.unrolled <= 1024,
        "grid": lambda t: has_room(t.target, t.p.batch * t.splits, *t.tiles),
        "one group": Engine.of_one_group,
        "parts": Engine.parts,
        "waves": Engine.waves,
    }

    @classmethod
    def start(cls, p: Gemm, target: Target) -> Config | None:
        tile, bk = (8, 8) if p.m >= 256 and p.n >= 256 else (4, 16)
        first = dict(ti=16, tj=16, rj=tile, bk=bk, vector=4, fragments=1, depth=2, splits=1)
        starts = [{**first, "ri": n} for n in (8, 4, 2, 1) if n <= tile]
        wanted = next((c for c in starts if cls(c, p, target).of_one_group()), starts[-1])
        wanted["splits"] = cls(wanted, p, target).worth_parts(cls._seconds(p, target))
        knobs, where = cls.knobs(p, target), cls.where(p, target)
        return start(knobs, where, lambda c: cls(c, p, target).operand_bytes, wanted)


class WarpTile(Blocks):
    """Matrix product on CUDA cores: tiles of ``bk`` terms in shared memory; li*ri x lj*rj results per warp.

    Its lanes form a grid of ``li`` x ``lj``. Each has ``ri`` x ``rj`` sums, in quads spread so that a warp's reads hit
    different banks and its writes fill whole sectors (the warp tiles of CUTLASS, "Efficient GEMM in CUDA"). A block has
    ``wi`` x ``wj`` warps; ``depth``: pipeline stages; ``in_flight``: copies are asynchronous.
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
        """Lane columns of a warp."""
        return 32 // self.li

    @property
    def high(self) -> int:
        return self.wi * self.li * self.ri

    @property
    def wide(self) -> int:
        return self.wj * self.lj * self.rj

    @property
    def unrolled(self) -> int:
        return self.ri * self.rj * self.bk

    def product(self, s: BaseSchedule, of: Sums, given: Operands) -> BaseSchedule:
        p, acc, out, li, lj = self.p, of.stage, of.out, self.li, self.lj
        wm, wn = li * self.ri, lj * self.rj
        bi, wi, i = s.split(f"{out}.i", [None, self.wi, wm])
        bj, wj, j = s.split(f"{out}.j", [None, self.wj, wn])
        s.reorder(*of.outer, bi, bj, wi, wj, i, j)
        s.bind(wi, "warp.y").bind(wj, "warp.x")
        self.bind_blocks(s, [*of.outer, bi, bj])
        sums, lead = written_by(s, acc), of.lead
        s.compute_at(acc, wj).set_scope(sums, "warp")
        s.layout(sums, f"{lead}i, j -> i/4%{li}, j/4%{lj} | {lead}i/{QUAD * li}, j/{QUAD * lj}, i%4, j%4")
        ko, ki = s.split(f"{acc}.k", [None, self.bk])
        s.reorder(*of.own, ko, ki, f"{acc}.i", f"{acc}.j")
        for operand, axis, turned, tile, extent in (
            ("a", "i", not p.ta, self.high, p.m),
            ("b", "j", p.tb, self.wide, p.n),
        ):
            name, z = given[operand][:2]
            row, whole = (self.bk, p.k) if turned else (tile, extent)
            lanes = given[operand].lanes(row, whole, QUAD)
            order = f"{axis}, k" if turned else f"k, {axis}"
            stored = f"{z}{order} -> {z}k, {self._column(axis, turned, tile if lanes is None else 0)}"
            copy = s.stage_in(name, at=ko, scope="shared", vector=lanes, layout=stored).name
            held = f"i/4%{li}, *{lj}" if axis == "i" else f"*{li}, j/4%{lj}"
            strip = QUAD * (li if axis == "i" else lj)
            s.stage_in(copy, at=ki, scope="warp", layout=f"{z}{order} -> {held} | {z}k, {axis}/{strip}, {axis}%4")
        s.unroll(ki)
        if self.depth > 1:
            s.pipeline(ko, self.depth, async_=bool(self.in_flight))
        return inline(s, given)

    def _column(self, axis: str, turned: bool, alone: int) -> str:
        """Layout text that avoids bank conflicts for an operand's non-k axis, with swizzles by bits of k; ``axis`` if
        no swizzle is needed or applies.

        turned: the operand is stored along k;  alone: extent of the tile if it is copied without vectors, else 0
        """
        if turned and alone:
            return f"{axis}/{QUAD} ^ k%{min(8, alone // QUAD)}, {axis}%{QUAD}"
        pieces = self.bk // QUAD
        if not turned or pieces < 2 or 32 // pieces < QUAD:
            return axis
        return f"{axis}/4 ^ k/4%{pieces}*{32 // pieces // QUAD}, {axis}%4"

    @staticmethod
    def modelled(p: Gemm) -> MatrixProduct:
        return MatrixProduct(*each_product(p), "f32", 4, 4, adds=p.beta, apart=p.apart)

    @property
    def model(self) -> Tiles:
        return Tiles("threads", self.high, self.wide, self.bk, self.ri, self.rj, self.depth, bool(self.in_flight),
                     raster=self.raster, splits=self.splits)  # fmt: skip

    rules: ClassVar[Mapping[str, Rule]] = {
        "warps": lambda t: 2 <= t.wi * t.wj <= 8,
        "shared": Blocks.shared,
        "registers": lambda t: t.ri * t.rj <= 128,
        "unrolled": lambda t: t.unrolled <= 2048,
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


def _quads(axis: str, tile: int, threads: int, bk: int, along_k: bool) -> str:
    """Layout text of an axis read in register tiles: quads of all threads interleaved and swizzled, free of bank
    conflicts; ``axis`` itself for tiles of one quad or with a partial one, no swizzle for unsupported sizes.

    tile: elements per thread;  threads: along the axis;  along_k: copies write along k

    A warp writes 32 vectors of four elements, along the axis, or along k elementwise. Three bits select one of eight
    groups of four banks: low bits of ``axis/4``, partly given by the order already; for writes along k, the remaining
    ones are bits of ``k/4``.
    """
    groups = tile // 4
    if tile % 4 or tile == 4:
        return axis
    plain = f"({axis}/4)%{groups}", f"{axis}/{tile}", f"{axis}%4"
    if groups not in (2, 4, 8) or threads % 8:
        return ", ".join(plain)
    low = groups.bit_length() - 1
    folds = [f"{axis}/4%{groups}*{8 // groups}"]
    if along_k:
        rows = (32 // bk).bit_length() - 1  # bits of axis/4 in a warp
        used = {3 - low + n if n < low else n - low for n in range(rows)}
        free = [n for n in range(3) if n not in used]
        folds += [f"k/{4 << n}%2*{1 << bit}" for n, bit in zip(range((bk // 4).bit_length() - 1), free, strict=False)]
    return f"{plain[0]}, {' ^ '.join([plain[1], *folds])}, {plain[2]}"
