"""CPU matrix-product engines (register tiles with packed panels), their cost model and start configurations.

All compute a register tile of a few rows by some vectors of columns: each reduction step has one broadcast per row, one
load per vector, and one multiply-add per pair. They differ in how operands are supplied:

column: the whole reduction in registers; b in panels packed inside the block, or by a separate kernel
image:  the same, for windows over a padded image, of which a block keeps what it reads
strip:  the reduction in pieces, with the sums of a strip of columns in block memory, so that b is read in long
        contiguous runs; b is packed per tile of columns, by a separate kernel, or (small m) not at all
dot:    vectors along the reduction, for b stored (n, k): dot products of whole rows, b unpacked

Start configurations come from a small model of a core and of the distribution of blocks to cores; measuring decides.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tensorir.engines.blocks import extent_of
from tensorir.engines.model import CpuTile, crowding, in_balanced_tiles, launched, room
from tensorir.engines.packing import SIDE, leave_turned, tiles_of, turned
from tensorir.engines.problems import Gemm
from tensorir.engines.product import Product, bind_outer, sums_in_registers
from tensorir.engines.steps import divisor_near, divisor_of, divisors_near, unroll_by
from tensorir.engines.tiles import Knob, Knobs, Rule
from tensorir.ir.words import SIDES
from tensorir.machine import CPU
from tensorir.schedule.analysis import packed_names
from tensorir.target import Target

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule


PRICES, (L1, L2) = CPU.prices.product, CPU.caches
FEW_TILES_ROWS = 64
"""Maximum rows of plain matrices for which the tiles of a panel take less time than loading a far panel."""
FEWEST_EVEN_ROWS = 4
"""Least rows of an evenly spaced tile that may be better than a larger, uneven one."""
FEW_ROWS = 12
"""Maximum rows for which reading b in place costs less than packing it."""


def reads_in_place(p: Gemm) -> bool:
    """True if b is to be read unpacked: at most ``FEW_ROWS`` rows, b stored (k, n) in whole vectors, no constant."""
    return p.m <= FEW_ROWS and not p.tb and p.n >= p.vector_lanes and not p.prepack


def is_scattered(p: Gemm) -> bool:
    """True if a vector of b's columns may be non-contiguous in memory, as runs of columns are not whole vectors."""
    return 0 < p.run < p.n and p.run % p.vector_lanes > 0


def is_even(p: Gemm, rows: int) -> bool:
    """True if the rows of any tile of ``rows`` rows are equally spaced in memory: no tile crosses runs, or tiles have
    whole runs.
    """
    return not p.row_run or rows % p.row_run == 0 or p.row_run % rows == 0


def has_gaps(p: Gemm) -> bool:
    """True for results stored (n, m) if a skips stored elements (``apart`` > 1): each panel of b reads across gaps."""
    return p.tc and p.apart[0] > 1.0


def is_far(p: Gemm) -> bool:
    """True if ``b`` exceeds the second-level cache, and a product waits for its panels: few rows of ``a``, or unequally
    spaced ones.

    For 128 rows of plain matrices, start configurations for this case reached only 0.88 to 0.95 of the speed of others.
    """
    waits = p.tc or p.row_run > 0 or p.m <= FEW_TILES_ROWS
    return waits and p.n * p.k * p.sum_bytes > PRICES.far_bytes


def step_cycles(p: Gemm, rows: int, vectors: int) -> float:
    """Cycles per reduction step of a register tile."""
    pitch = 0 if p.ta else p.k * p.sum_bytes
    even = is_even(p, rows)
    load = PRICES.folded if p.ta and vectors == 1 and even else PRICES.load
    places = 0.0 if even else PRICES.load * max(0, rows - PRICES.pointers)
    return CPU.prices.multiply * rows * vectors + load * rows * crowding(rows, pitch) + PRICES.load * vectors + places


def panel_cycles(p: Gemm, rows: int, tile: int, vectors: int) -> float:
    """Cycles per reduction step for all rows of a panel of ``vectors`` vectors."""
    return in_balanced_tiles(
        rows, tile, lambda high: max(CPU.prices.sum, step_cycles(p, high, vectors)) + spilled_cycles(p, high, vectors)
    )


def spilled_cycles(p: Gemm, rows: int, vectors: int) -> float:
    """Cycles per reduction step of a tile whose accumulators, vectors of b and an element of a exceed the registers.

    Compilers load all vectors of b first, for the rows to share: 3 rows of 4 vectors on 16 registers take gcc 2.2 times
    as long as 6 rows of 2, and clang 1.2 times.
    """
    return PRICES.spilled * rows * vectors if rows > 1 and (rows + 1) * vectors + 1 > p.registers > 0 else 0.0


def dot_cycles(p: Gemm, rows: int, outputs: int) -> float:
    """Cycles of dot products between ``rows`` rows and ``outputs`` columns, overlapping."""
    sums = rows * outputs
    step = step_cycles(p, rows, outputs) + (PRICES.spilled * sums if rows * (outputs + 1) >= p.registers else 0.0)
    return -(-p.k // p.vector_lanes) * step + PRICES.across * p.vector_lanes * sums * (
        1.0 if outputs % 4 else PRICES.four
    )


def element_cycles(p: Gemm, depth: int, width: int, in_place: bool) -> float:
    """Extra cycles per element of a b panel, beyond its load."""
    kept, pitch = int(PRICES.l1_share * L1.nbytes), p.n * p.sum_bytes
    if in_place and is_scattered(p):
        return PRICES.scattered
    if in_place:  # rows whose pitch divides by a large power of two fall into the same few sets
        kept = min(kept, L1.nbytes // math.gcd(pitch, L1.span) * width * p.sum_bytes) if pitch % CPU.line == 0 else 0
    panel = depth * width * p.sum_bytes
    line = PRICES.second_line if panel > kept else 0.0
    if panel > L2.nbytes // 2 and is_far(p):  # next to what else is read
        line = PRICES.third_line
    return line * p.sum_bytes / 64


def packing_cycles(p: Gemm, vectors: int, turned: bool) -> float:
    """Cycles to pack one element of b in panels of ``vectors`` vectors; ``turned``: transposed in registers"""
    way = PRICES.gather if is_scattered(p) else PRICES.turn if turned else PRICES.strided if p.tb else PRICES.copy
    return way + (PRICES.ragged / vectors if p.n % p.vector_lanes else 0.0)


def reading_cycles(p: Gemm, rows: int, run: int, cores: int) -> float:
    """Cycles of cold reads of a and b over all ``cores``, for blocks of ``rows`` rows.

    run: columns after which b is read elsewhere; 0 if all are contiguous

    Blocks are distributed along rows of the result: with several blocks a column each core reads all of b, else of a.
    """
    several = rows < p.m and p.batch == 1
    of_a, of_b = (p.k * side * share for side, share in zip((p.m, p.n), p.apart, strict=True))
    b, a = of_b * (1.0 if several else 1 / cores), of_a * (1 / cores if several or p.batch > 1 else 1.0)
    return cores * p.batch * (PRICES.far_line * (a + b) * p.sum_bytes / 64 + (PRICES.far_run * b / run if run else 0.0))


ROWS_OF_SUMS = 96
"""Maximum rows for which the accumulators of a strip of columns fit block memory next to the block's part of b."""
ROWS, COLUMNS = 16, 512
"""Rows and columns of an operand packed per block of a packing kernel."""


class RegisterTile(CpuTile[Gemm], ABC):
    """Base of CPU engines: blocks of ``rows`` rows (0: all) in register tiles of ``tile`` rows.

    pack_a: pack a first, converted to the accumulator type;  unroll_k: unrolled reduction steps
    """

    rows, tile, pack_a, unroll_k = Knob[int](), Knob[int](), Knob[int](), Knob[int]()

    @property
    def high(self) -> int:
        """Rows per block."""
        return self.rows or self.p.m

    @property
    @abstractmethod
    def wide(self) -> int:
        """Columns per block."""

    @classmethod
    def knobs(cls, p: Gemm, target: Target) -> Knobs:
        m, whole = p.m, p.wide is None
        plain = whole and not has_gaps(p)
        first = int((not plain or m * p.k * p.sum_bytes > L2.nbytes) and m > FEW_ROWS)
        in_place = plain and (p.tc or not p.ta)
        parts = {-(-m // d) for d in (2, 4, 8)} | {64, 128, 256, 512, 1024}
        sizes = [6, 4, 5, 3, 2, 1, 8, 12] if p.registers < 32 else [14, 12, 8, 6, 4, 3, 2, 1, 10, 7, 5, 20, 28]
        return dict(
            rows=[0, *sorted(r for r in parts if 1 < r < m)],
            tile=list(dict.fromkeys([*sizes, *(rows for rows, _ in _even_tiles(p))])),
            vectors=[2, 3, 4, 1, 6, 8],
            pack_a=[0] if in_place else [1] if p.prepack_a else [first, 1 - first],
            unroll_k=[4, 1, 2, 8],
        )

    @property
    def terms_first(self) -> bool:
        """True if a is packed as it is stored, one term of all rows after another."""
        return self.p.ta and self.p.tc

    def makespan(self) -> float:
        """Number of blocks that the busiest core executes, as a float; slightly more if blocks are few."""
        blocks = self.p.batch * -(-self.p.n // self.wide) * -(-self.p.m // self.high)
        return blocks / self.machine.balance(blocks) * (PRICES.few if blocks < 2 * self.machine.cores else 1.0)

    @abstractmethod
    def product(self, s: BaseSchedule, of: Product) -> BaseSchedule:
        """Schedule product ``of`` with this configuration; returns ``s``."""

    def walk(self, s: BaseSchedule, of: Product, k: str, a: str, b: str = "") -> Product:
        """Reindex the reduction to ``k``; pack a (if ``pack_a``) as ``a``, b as ``b`` ("": no); the updated Product."""
        packed = ((of.a, of.a_outer, a if self.pack_a else ""), (of.b, of.b_outer, b))
        reads = {name: ", ".join((*outer, axes)) for name, outer, axes in packed if axes}
        axes = ", ".join((*of.outer, "i", "j"))
        copies = dict(zip(reads, packed_names(reads, s.index.names()), strict=True))
        s.reindex(of.stage, f"{axes} | k -> {axes}, {k}", reads=reads, dtype=of.wide)
        return of._replace(a_copy=copies.get(of.a, ""), b_copy=copies.get(of.b, ""))

    def row_blocks(self, s: BaseSchedule, out: str) -> tuple[list[str], str]:
        """([loop over row blocks] or [], loop inside); the last block is shifted back."""
        if not self.rows:
            return [], f"{out}.i"
        block, inside = s.share_out(f"{out}.i", each=self.rows, to="block.y", tail="shift")
        return [block], inside

    def rows_packed(self, s: BaseSchedule, of: Product) -> BaseSchedule:
        """Schedule the kernel that packs a in the accumulator type, if ``pack_a``; returns ``s``."""
        if not self.pack_a:
            return s
        p, packed = self.p, of.a_copy
        if self.terms_first:
            s.share_out(f"{packed}.k", each=max(SIDE, ROWS * COLUMNS // p.m))
            if 0 < p.row_run < p.m:
                s.split(f"{packed}.i", [None, p.row_run])
        elif p.ta and turns(p, p.m, p.k):
            block = tiles_of(p.m, SIDE, SIDE), tiles_of(p.k, p.vector_lanes, ROWS // SIDE)
            ib, kb = turned(s, packed, "root", "i", "k", p.vector_lanes, block)
            packed = ib.split(".i")[0]
            s.bind(ib, "block.x").bind(kb, "block.y")
        else:
            _, inside = s.share_out(f"{packed}.i", each=8)
            if p.ta:
                s.reorder(f"{packed}.k", inside)
            else:
                s.register_tile(f"{packed}.k", sizes=[p.vector_lanes], lanes=p.vector_lanes)
        return bind_outer(s, [f"{packed}.{v}" for v in of.a_outer])


class PanelTile(RegisterTile):
    """Register tiles over b panels of ``vectors`` vectors.

    pack: packing of panels: "block" or "panel" (inside the block), "kernel" (a separate kernel), "none" (read in place)
    """

    vectors, pack = Knob[int](), Knob[str]()

    @property
    def width(self) -> int:
        """Columns per panel."""
        return self.vectors * self.p.vector_lanes

    def panel_cycles(self) -> float:
        """Cycles of one panel for all rows of a block, packing included."""
        p, elements, tiles = self.read, self.width * self.p.k, -(-self.high // self.tile)
        cycles = panel_cycles(p, self.high, self.tile, self.vectors) * p.k
        cycles *= PRICES.uneven if p.apart[0] < 1.0 and not is_even(p, -(-self.high // tiles)) else 1.0
        cycles += element_cycles(p, self.length, self.width, self.pack == "none") * elements * tiles
        if p.tc:
            gaps = max(0.0, p.apart[0] - 1.0) * self.high * p.k
            cycles += self.leaving * self.high * self.width + PRICES.gap_line * gaps * p.sum_bytes / 64
        if self.pack == "kernel" and is_far(p):  # the first tile waits for a panel
            late = PRICES.far_stream * self.vectors * p.vector_lanes * p.sum_bytes / 64
            cycles += max(0.0, late - step_cycles(p, -(-self.high // tiles), self.vectors)) * self.length
        cycles += 0.0 if is_even(p, -(-self.high // tiles)) else PRICES.place * self.high
        return cycles + (self.packing * elements if self.pack in ("block", "panel") else 0.0)

    @property
    def read(self) -> Gemm:
        """The product as tiles read it: packed rows of a have no gaps, and one distance."""
        p = self.p
        return replace(p, apart=(min(1.0, p.apart[0]), p.apart[1]), row_run=0) if p.tc and self.pack_a else p

    @property
    def leaving(self) -> float:
        """Cycles to store one result of a transposed tile (``tc``): ``leaving`` in vectors to ``alone`` one by one."""
        least, more = divmod(self.high, -(-self.high // self.tile))
        if not more or least < min(SIDES):
            return PRICES.leaving if least >= min(SIDES) else PRICES.alone
        alone = 1 - least // min(SIDES) * min(SIDES) / (least + 0.5)
        return PRICES.leaving + (PRICES.alone - PRICES.leaving) * alone

    @property
    def packing(self) -> float:
        """Cycles to pack one element of b."""
        return packing_cycles(self.p, self.vectors, self.turns)

    @property
    def ragged(self) -> float:
        """Extra cycles of a block for scalar stores at ragged edges."""
        return PRICES.ragged * self.high * self.wide if self.pack != "none" and self.p.n % self.p.vector_lanes else 0.0

    @property
    def run(self) -> int:
        """Number of columns of b that are read contiguously."""
        return self.width

    @property
    def around(self) -> float:
        """Cycles outside blocks: cold reads of a and b, and the packing kernels."""
        p, packing, moved = self.p, 0.0, PRICES.packed * self.p.sum_bytes / 64
        if self.pack == "kernel" and not p.prepack:
            packing += (self.packing + moved) * p.k * p.n * p.batch + (self.machine.one_kernel if p.image else 0.0)
        if self.pack_a and has_gaps(p):
            packing += (PRICES.gather + moved) * p.k * p.m * p.batch + self.machine.one_kernel
        runs = 0 if p.tb or p.prepack or is_scattered(p) else self.run
        return reading_cycles(p, self.high, runs, self.machine.cores) + packing

    @property
    def chains(self) -> int:
        """Least accumulator vectors of a register tile: up to 6, to keep a core busy; 1 below 4 rows."""
        p = self.p
        return min(6, p.m * -(-p.n // p.vector_lanes), (p.registers + 2) // 3) if p.m >= 4 else 1

    rules: ClassVar[Mapping[str, Rule]] = {
        # the sums, one operand's part and an element of the other fill the registers and no more
        "registers": lambda t: t.tile * t.vectors + min(t.tile, t.vectors) < t.p.registers,
        "busy": lambda t: t.tile * t.vectors >= t.chains,
        "sensible": lambda t: t.tile <= t.high and t.p.vector_lanes * (t.vectors - 1) < t.p.n,
    }

    def panels_packed(self, s: BaseSchedule, of: Product, block: str) -> None:
        """Schedule the packing of panels of b: inside loop ``block``, or by a separate kernel if ``pack`` says so."""
        p, packed, near = self.p, of.b_copy, self.pack in ("block", "panel")
        if near:
            s.compute_at(packed, block, scope="shared")
        if self.turns:
            tiles = tiles_of(self.length, SIDE, 4 * SIDE), 1
            kb, _ = turned(s, packed, block if near else "root", "k", "ji", p.vector_lanes, tiles)
            written = kb.rpartition(".k")[0]
            if not near:
                s.bind(kb, "block.x").bind(f"{written}.jo", "block.y")
        else:
            written = packed
            jo, k = f"{packed}.jo", f"{packed}.k"
            if not near:  # long parts of some rows
                _, k = s.share_out(k, each=divisor_near(self.length, ROWS), to="block.y")
                several = tiles_of(p.n, self.width, max(1, COLUMNS // self.width))
                jo = s.share_out(jo, each=several if several > 1 else None)[-1]
            if extent_of(s, jo) > 1 and (near or several > 1):
                s.reorder(k, jo)
            s.register_tile(f"{packed}.ji", lanes=p.vector_lanes)
        if not near:
            bind_outer(s, [f"{written}.{v}" for v in of.b_outer])

    @property
    def turns(self) -> bool:
        """True if panels of b are transposed in registers while packing."""
        return self.p.tb and turns(self.p, self.length, self.p.vector_lanes)

    @property
    def length(self) -> int:
        """Reduction steps per panel."""
        return self.p.k


class ColumnTile(PanelTile):
    """Engine "column": whole reduction in registers; ``panels`` panels per block."""

    panels = Knob[int]()

    @property
    def wide(self) -> int:
        return self.panels * self.width

    def product(self, s: BaseSchedule, of: Product) -> BaseSchedule:
        a, b = "k, i" if self.terms_first else "i, k", f"jo = j/{self.width}, k, ji = j%{self.width}"
        of = self.walk(s, of, "k", a=a, b=b)
        out = of.written(s)
        bind_outer(s, of.loops(out, ""))
        jb, j = s.share_out(f"{out}.j", each=self.wide)
        ib, i = self.row_blocks(s, out)
        lanes, block = self.p.vector_lanes, ib[0] if ib else jb
        if of.keep:  # before tiles of two sizes are cut: a block keeps what its rows read
            s.compute_at(of.stage, block)
            of.keep(block)
        if self.p.tc:
            i0, i1 = s.split(i, [None, self.tile], tail="balanced")
            jp, jh, jl = s.split(j, [None, self.vectors, lanes])
            s.reorder(*((jp, i0) if self.panels > 1 else (i0, jp)), i1, jh, jl)
            leave_turned(s, i1, jh, jl, self.high, self.tile, self.p.dtype)
        else:
            i0, jp = s.register_tile(i, j, sizes=[self.tile, self.width], lanes=lanes, tail=["balanced", "guard"])
            if self.panels > 1:
                s.reorder(jp, i0)
        s.compute_at(of.stage, i0)
        sums_in_registers(s, of, of.stage, self.p, self.unroll_k)
        self.panels_packed(s, of, block)
        return self.rows_packed(s, of)

    @property
    def block_bytes(self) -> int:
        """Bytes of block memory: packed panels."""
        return self.p.sum_bytes * self.wide * self.p.k if self.pack == "block" else 0

    rules: ClassVar[Mapping[str, Rule]] = {
        **PanelTile.rules,
        "columns": lambda t: t.panels == 1 or t.wide < t.p.n + t.width,
        "fits": lambda t: t.block_bytes <= room(t.p.block_bytes),
    }

    @classmethod
    def knobs(cls, p: Gemm, target: Target) -> Knobs:
        pack = ["kernel"] if p.prepack else ["block", "kernel"]
        return {"panels": [1, 2, 4, 8, 16], **super().knobs(p, target), "pack": pack}

    @classmethod
    def tried(cls, p: Gemm, knobs: Knobs) -> Iterable[Knobs]:
        judged = {name: knobs[name] for name in ("panels", "rows", "pack", *(["pack_a"] if has_gaps(p) else []))}
        return [{**judged, "tile": [tile], "vectors": [vectors]} for tile, vectors in _tiles(p)]

    def cost(self) -> float:
        far = PRICES.far_panels if self.pack == "kernel" and is_far(self.p) else 0.0
        blocks = (self.panels * self.panel_cycles() + self.ragged + far + self.kept) * self.makespan()
        return launched(blocks + self.around, self.machine)

    @property
    def kept(self) -> float:
        """Cycles of a block to stage its part of the image; 0.0 without one."""
        return 0.0


class PaddedTile(ColumnTile):
    """Engine "image": "column" for windows over a padded image; a block stages the part that its rows read."""

    @property
    def image_rows(self) -> int:
        """Rows of pixels per block."""
        return self.high // self.p.row_run

    @property
    def image_bytes(self) -> int:
        """Bytes of the image per block."""
        _, least, more = self.p.image
        return least + self.image_rows * more

    @property
    def block_bytes(self) -> int:
        """Bytes of block memory: packed panels and the part of the image."""
        return super().block_bytes + self.image_bytes

    @property
    def kept(self) -> float:
        return PRICES.kept * self.image_bytes / self.p.sum_bytes

    rules: ClassVar[Mapping[str, Rule]] = {
        **ColumnTile.rules,
        "whole": lambda t: t.high % t.tile == 0,  # others reach over a row more, and ask in each step
        "image": lambda t: (
            t.high % t.p.row_run == 0 and (t.p.m == t.p.image[0] * t.p.row_run or t.p.image[0] % t.image_rows == 0)
        ),
    }

    @classmethod
    def knobs(cls, p: Gemm, target: Target) -> Knobs:
        rows = divisors_near(p.image[0], (1, 2, 3, 4, 6, 7, 8, 12, 14))
        return {**super().knobs(p, target), "rows": [r * p.row_run % p.m for r in rows], "pack_a": [0]}


class StripTile(PanelTile):
    """Engine "strip": ``columns`` columns per block, reduction in pieces of ``depth``, accumulators in block memory; b
    unpacked, packed per panel, or by a kernel (``pack``).
    """

    columns, depth = Knob[int](), Knob[int]()

    @property
    def wide(self) -> int:
        return self.columns

    def product(self, s: BaseSchedule, of: Product) -> BaseSchedule:
        c, p, depth, packs = of.stage, self.p, self.depth, self.pack != "none"
        b = f"q, jo = j/{self.width}, k, ji = j%{self.width}" if packs else ""
        of = self.walk(s, of, f"q = k/{depth}, k = k%{depth}", a="i, k = (q, k)", b=b)
        s.rfactor(c, f"{c}.q")
        out = of.written(s, "shared")
        bind_outer(s, of.loops(out, ""))
        jb, j = s.share_out(f"{out}.j", each=self.columns, tail="guard" if packs else "shift")
        ib, _ = self.row_blocks(s, out)
        s.register_tile(j, sizes=[p.vector_lanes], lanes=p.vector_lanes)
        s.compute_at(of.stage, ib[0] if ib else jb)
        if p.k % depth and p.k > depth and not self.pack_a:
            s.partition(f"{c}.rf", [p.k // depth])
        i0, jt = s.register_tile(
            f"{c}.i", f"{c}.j", sizes=[self.tile, self.width], lanes=p.vector_lanes, tail=["balanced", "guard"]
        )
        s.reorder(*of.loops(c, ""), f"{c}.rf", jt, i0)
        s.compute_at(f"{c}.rf", i0)
        sums_in_registers(s, of, f"{c}.rf", p, self.unroll_k)
        if packs:
            self.panels_packed(s, of, jt)
        return self.rows_packed(s, of)

    @property
    def length(self) -> int:
        return self.depth

    @property
    def run(self) -> int:
        return self.width if self.pack == "kernel" else self.columns  # what follows a panel's piece comes with it

    @property
    def block_bytes(self) -> int:
        """Bytes of block memory: accumulators and a packed panel."""
        panel = self.depth * self.width if self.pack == "panel" else 0
        return self.p.sum_bytes * (self.high * self.columns + panel)

    rules: ClassVar[Mapping[str, Rule]] = {
        **PanelTile.rules,
        "columns": lambda t: t.columns % t.width == 0 and (t.pack != "none" or t.columns <= t.p.n),
        "fits": lambda t: t.block_bytes <= room(t.p.block_bytes),
        "unrolled": lambda t: t.unroll_k <= t.depth,
    }

    @classmethod
    def knobs(cls, p: Gemm, target: Target) -> Knobs:
        pack = ["kernel", "none"] if p.prepack else ["panel", "none", "kernel"]
        return {
            "columns": _strips(p.n, p.vector_lanes),
            "depth": list(dict.fromkeys(divisor_near(p.k, d) for d in (256, 128, 64, 16, 8))),
            **super().knobs(p, target),
            "pack": [x for x in pack if x != "none" or not p.tb],
        }

    @classmethod
    def tried(cls, p: Gemm, knobs: Knobs) -> Iterable[Knobs]:
        in_place, one = reads_in_place(p), p.m == 1
        depth = divisor_near(p.k, (8 if one else 64) if in_place else 256)
        # a single row has two sums, so that many rows of b are read side by side
        line = max(1, 64 // p.vector_bytes)
        tiles = [tile for tile in _tiles(p) if tile[1] <= line or not one]
        judged: Knobs = dict(
            columns=knobs["columns"],
            rows=knobs["rows"] if p.m > ROWS_OF_SUMS else [0],
            depth=[depth],
            pack=["none"] if in_place else knobs["pack"][:1],
            unroll_k=[u for u in ((8, 4, 1) if one else (4, 1)) if u <= depth][:1],
        )
        return [{**judged, "tile": [rows], "vectors": [v]} for rows, v in [*tiles, *([(1, line)] if one else [])]]

    def cost(self) -> float:
        p, panels, pieces = self.p, -(-self.columns // self.width), -(-self.p.k // self.depth)
        sums = self.high * (pieces * panels * self.vectors + 2 * self.columns / p.vector_lanes)
        cycles = panels * self.panel_cycles() + PRICES.sum * sums + self.ragged
        return launched(cycles * self.makespan() + self.around, self.machine)


class DotTile(RegisterTile):
    """Engine "dot": vectors along the reduction, ``columns`` per block, tiles of ``tile`` x ``outputs`` partial-sum
    vectors.
    """

    columns, outputs = Knob[int](), Knob[int]()

    @property
    def wide(self) -> int:
        return self.columns

    def product(self, s: BaseSchedule, of: Product) -> BaseSchedule:
        c, p, lanes = of.stage, self.p, self.p.vector_lanes
        of = self.walk(s, of, f"k = k/{lanes}, l = k%{lanes}", a="i, k = (k, l)")
        s.rfactor(c, f"{c}.l")
        out = of.written(s)
        bind_outer(s, of.loops(out, ""))
        _, j = s.share_out(f"{out}.j", each=self.columns, tail="shift")
        _, i = self.row_blocks(s, out)
        i0, j0 = s.register_tile(i, j, sizes=[self.tile, self.outputs], tail="balanced")
        s.reorder(j0, i0)
        s.compute_at(of.stage, i0)
        s.compute_at(f"{c}.rf", i0)
        s.register_tile(f"{c}.rf.i", f"{c}.rf.j", f"{c}.rf.rf", lanes=lanes)
        if p.k % lanes and p.k > lanes and not self.pack_a:
            s.partition(f"{c}.rf.k", [p.k // lanes])
        unroll_by(s, f"{c}.rf.k", self.unroll_k)
        s.register_tile(f"{c}.i", f"{c}.j", f"{c}.rf")
        return self.rows_packed(s, of)

    rules: ClassVar[Mapping[str, Rule]] = {
        "registers": lambda t: t.outputs * (t.tile + (t.tile > 1)) < t.p.registers,
        "sensible": lambda t: t.tile <= t.high and t.outputs <= t.columns,
    }

    @classmethod
    def knobs(cls, p: Gemm, target: Target) -> Knobs:
        shared = {name: values for name, values in super().knobs(p, target).items() if name != "vectors"}
        return {
            "columns": _strips(p.n, 1, (16, 32, 48, 64, 96, 128, 256)),
            "outputs": [3, 4, 8, 2, 6, 1, 12],
            **shared,
        }

    @classmethod
    def tried(cls, p: Gemm, knobs: Knobs) -> Iterable[Knobs]:
        pairs = [(4, 3), (2, 4), (1, 8), (3, 3), (2, 2), (1, 4), (1, 2), (1, 1)]
        judged: Knobs = dict(columns=knobs["columns"], unroll_k=[1])
        return [{**judged, "tile": [rows], "outputs": [outputs]} for rows, outputs in pairs]

    def cost(self) -> float:
        def of_rows(rows: int) -> float:
            return in_balanced_tiles(self.columns, self.outputs, lambda outputs: dot_cycles(self.p, rows, outputs))

        cycles = in_balanced_tiles(self.high, self.tile, of_rows)
        cores = self.machine.cores
        return launched(cycles * self.makespan() + reading_cycles(self.p, self.high, 0, cores), self.machine)


TEMPLATES: Mapping[str, type[RegisterTile]] = {"column": ColumnTile, "strip": StripTile, "dot": DotTile}


def cpu_engines(p: Gemm) -> dict[str, type[RegisterTile]]:
    """{name: engine}, the most promising for the problem first: "column" and "strip", and "dot" for b stored (n, k)."""
    order = ["column", "strip"]
    if not p.prepack and not p.tb and (p.m <= FEW_ROWS or (p.m <= ROWS_OF_SUMS and p.n * p.k >= 1 << 20)):
        order.reverse()
    if p.tb and p.k > 1:
        order.insert(0 if p.m <= ROWS_OF_SUMS // 3 and not p.prepack else len(order), "dot")
    return {name: TEMPLATES[name] for name in order}


def turns(p: Gemm, run: int, last: int) -> bool:
    """True if an operand is transposed in registers while packing: float32, vectors of at least 8 lanes, an extent of
    at least 8 along ``run`` (contiguous in memory) and of a vector along ``last`` (contiguous when packed).
    """
    return p.dtype == "float32" and run >= SIDE and last >= p.vector_lanes >= SIDE


def _tiles(shape: Gemm) -> list[tuple[int, int]]:
    """Candidate register tiles (rows, vectors) of at most m rows whose accumulators fit the registers."""
    found = [(6, 2), (4, 3), (3, 4), (2, 6), (1, 8), (4, 2), (3, 3), (2, 4), (1, 4)]
    found += [(rows, 1) for rows in (8, 6, 4, 3, 2, 1)]
    if shape.registers >= 32:
        found = [(14, 2), (12, 2), (8, 3), (6, 4), (10, 2), (28, 1), (20, 1), (14, 1), (12, 1), *found]
    most = shape.registers // shape.product_room
    found += [tile for tile in _even_tiles(shape) if tile not in found]
    return [p for p in found if p[0] <= shape.m and p[0] * p[1] <= most]


def _even_tiles(shape: Gemm) -> list[tuple[int, int]]:
    """Tiles (rows, vectors) of the most rows that divide ``row_run`` and fit the registers, for 2, 3 and 4 vectors.

    Without tiles of fewer than ``FEWEST_EVEN_ROWS`` rows; [] without ``row_run``.
    """
    most = shape.registers // shape.product_room
    found = [(divisor_of(shape.row_run, most // v - 1), v) for v in (2, 3, 4)] if shape.row_run else []
    return [tile for tile in found if tile[0] >= FEWEST_EVEN_ROWS]


def _strips(n: int, lanes: int, wanted: Sequence[int] = ()) -> list[int]:
    """Candidate strip widths below n + 6 * lanes, ascending: ``wanted``, else whole vectors, and rounded parts of n."""
    sizes = wanted or [lanes * v for v in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)]
    parts = {-(-n // (d * lanes)) * lanes for d in (1, 2, 4, 6, 8)}
    limit = max(2048, *sizes)
    return sorted({v for v in (*sizes, *parts) if v <= limit and v < n + 6 * lanes})
