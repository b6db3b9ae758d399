"""Hopper engine (sm_90a): warp-specialized wgmma with TMA copies and persistent blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tensorir.engines.blocks import extent_of
from tensorir.engines.gemm_blocks import ORDER, Blocks, Operands, Sums, in_groups, inline, multiprocessors
from tensorir.engines.gemm_tensor import KINDS as RESULTS
from tensorir.engines.gemm_tensor import VECTOR, TensorTile, added, bring_rows, instructions, multiplication, store_rows
from tensorir.engines.problems import Gemm
from tensorir.engines.steps import written_by
from tensorir.engines.tiles import Knob, Rule
from tensorir.intrin.cuda import Multiplication
from tensorir.intrin.hopper import KINDS, ROWS, first_registers
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_model import Tiles

ROW_BYTES = 128
"""Bytes of a row of a staged tile, the unit of swizzling."""
STORED = 64
"""Columns of one TMA store of 16-bit results: 128 bytes."""
REGISTERS = {1: (40, 240), 2: (40, 232), 3: (32, 160)}
"""Consumer warpgroups -> registers per thread of (the producer, a consumer), as in CUTLASS."""
SUMS = {1: 200, 2: 192, 3: 128}
"""Consumer warpgroups -> maximum registers of a consumer thread for accumulators."""
OTHER_REGISTERS = 26
"""Registers of a product next to its accumulators; ptxas gives it no more than a thread has at launch (C7602)."""


def warpgroups(p: Gemm) -> Multiplication | None:
    """wgmma types for a product; None for unsupported types, rows of operands that TMA cannot copy (no multiple of 16
    bytes), non-16-bit operands not stored along k, or groups that are no multiples of 64 rows.
    """
    m = multiplication(p)
    if m is None or m.name not in KINDS:
        return None
    plain = m.word == 2 or (not p.ta and p.tb)  # others are not stored along k
    size = 4 // m.word
    rows = p.m if p.ta else p.k, p.k if p.tb else p.n
    one_group = not in_groups(p) or p.align % ROWS == 0
    return m if plain and one_group and all(n * size % 16 == 0 for n in rows) else None


class HopperTile(Blocks):
    """Hopper engine configuration: a block of ``groups`` warpgroups computes ``64 groups rows`` x ``bn`` elements, 128
    bytes of k at a time.

    rows: 64-row products per warpgroup;  depth: ring slots;  cluster: blocks along m that share loads of b's tiles;
    resident: persistent blocks, as many as run at once, each computing several tiles;  pingpong: each tile is computed
              by one warpgroup, so that one stores results while the next multiplies
    """

    groups, pingpong, rows, bn = Knob(2, 1, 3), Knob(0, 1), Knob(1, 2), Knob(256, 128, 192, 64, 160, 224, 96, 32)
    depth, cluster = Knob(4, 3, 5, 6, 2, 8), Knob(1, 2)
    raster = ORDER[0]
    resident = Knob(1, 0)
    splits, atomic, rest = ORDER[1:]
    scope = "warp"

    @classmethod
    def needs(cls, p: Gemm) -> str | None:
        return "sm_90a" if warpgroups(p) else None

    @property
    def together(self) -> int:
        """Consumer warpgroups per tile."""
        return 1 if self.pingpong else self.groups

    @property
    def high(self) -> int:
        return ROWS * self.rows * self.together * self.cluster

    @property
    def wide(self) -> int:
        return self.bn

    @property
    def step(self) -> int:
        return ROW_BYTES // self.p.element_bytes

    def product(self, s: BaseSchedule, of: Sums, given: Operands) -> BaseSchedule:
        p, m, size = self.p, instructions(self.p), self.p.element_bytes
        acc, out, z = of.stage, of.out, of.lead
        bi, wi, i = s.split(f"{out}.i", [None, self.together, self.rows * ROWS])
        bj, j = s.split(f"{out}.j", [None, self.bn])
        if self.cluster > 1:
            bi, rank = s.split(bi, [None, self.cluster])
            s.bind(rank, "cluster").reorder(*of.outer, bi, bj, rank, wi, i, j)
        else:
            s.reorder(*of.outer, bi, bj, wi, i, j)
        s.bind(self._resident(s, [*of.outer, bi, bj]), "block.x").bind(wi, "warpgroup")
        if self.leaves_whole and of.leave is not None:
            of.leave(wi, i, j)
        elif self.leaves_whole:
            third, layout = added(s, out, acc)[: int(p.beta)], f"{z}r, x -> {z}{swizzled_rows(2)}"
            at = wi
            if third:
                at, j = s.split(j, [None, self.panel])
                s.reorder(at, i, j)
            s.stage_out(out, at=at, scope="shared", layout=layout, via="tma")
            for name in third:
                s.stage_in(name, at=at, scope="shared", vector=VECTOR, layout=layout)
            store_rows(s, out, [i], j, f"m{ROWS}.{RESULTS[p.made, '']}.n")
        s.compute_at(acc, wi)
        ko, kk, ki = s.split(f"{acc}.k", [None, self.step // m.k, m.k])
        i0, i1 = s.split(f"{acc}.i", [None, ROWS])
        s.reorder(*of.own, ko, kk, i0, i1, f"{acc}.j", ki)
        for x in given.values():
            layout = f"{x.lead}r, x -> {x.lead}{swizzled_rows(size)}"
            s.stage_in(x.name, at=ko, scope="shared", layout=layout, via="tma")
        orders = ("t" if p.ta else "n") + ("t" if p.tb else "n")
        s.tensorize(i1, f"wgmma.m64n{self.bn}k{m.k}.{m.name}.{orders}").unroll(kk).unroll(i0)
        load, compute = REGISTERS[self.groups]
        turns = self.groups // self.together
        return inline(s, given).pipeline(ko, self.depth, roles={"load": load, "compute": compute}, turns=turns)

    def _resident(self, s: BaseSchedule, outer: list[str]) -> str:
        """Create and return the block loop: one block per tile, or persistent blocks."""
        tile, room = self.walked(s, outer), max(1, multiprocessors(self.target) // self.cluster)
        if self.resident and (math.prod(self.tiles) * self.p.batch * self.splits > room or self.pingpong):
            _, tile = s.split(tile, [None, room])
        return tile

    modelled = TensorTile.modelled

    @property
    def model(self) -> Tiles:
        rows = self.rows * ROWS
        return Tiles("wgmma", self.together * rows, self.bn, self.step, rows, self.bn, self.depth, cluster=self.cluster,
                     persistent=bool(self.resident), turns=self.groups // self.together, raster=self.raster,
                     splits=self.splits)  # fmt: skip

    @property
    def panel(self) -> int:
        """Columns of results stored at once when a third matrix shares the staging buffer."""
        return 128 if self.bn % 128 == 0 and self.bn > 128 else STORED

    @property
    def leaves_whole(self) -> bool:
        """True if 16-bit results are stored as TMA tiles."""
        return self.splits == 1 and self._halves_in_rows

    @property
    def _halves_in_rows(self) -> bool:
        """True if results are 16-bit in rows suitable for TMA."""
        return self.p.leaves_in_halves and self.p.in_rows and self.p.n % 8 == 0 and self.bn % 64 == 0

    @property
    def operand_bytes(self) -> int:
        return ROW_BYTES * self.depth * (self.together * self.rows * ROWS + self.bn) + 4096

    @property
    def result_bytes(self) -> int:
        whole = (self.splits == 1 or self.rest) and self._halves_in_rows
        if not whole:
            return 0
        columns = max(self.bn, 2 * self.panel if self.p.beta else 0)
        return 2 * self.groups * self.rows * ROWS * columns

    def turns(self) -> bool:
        """True if ping-pong is off, or possible: several warpgroups, persistent blocks of several tiles, no splits."""
        tiles = math.prod(self.tiles) * self.p.batch * self.cluster
        several = self.resident and self.groups > 1 and tiles > multiprocessors(self.target)
        return not self.pingpong or bool(several and self.splits == 1 and not self.rest)

    rules: ClassVar[Mapping[str, Rule]] = {
        "shared": Blocks.shared,
        "registers": lambda t: sums_fit(t.groups, t.rows, t.bn),
        "panels": lambda t: t.p.tb or t.bn % t.step == 0,  # rows of 128 bytes, where b is not stored along k
        "sensible": Blocks.sensible,
        "turns": turns,
        **Blocks.rules,
    }

    @classmethod
    def starts(cls, p: Gemm, target: Target) -> list[dict[str, int]]:
        large = min(p.m, p.n) >= 2048
        first = dict(groups=2, bn=256 if large else 128, depth=4) if p.m > ROWS else dict(groups=1, bn=64, depth=6)
        if p.m > ROWS and p.n <= 64:
            first["bn"] = 64
        if large and p.leaves_in_halves:  # next to their results
            first["depth"] = 3
        alone = {**first, "rows": 1, "resident": 1, "pingpong": 0, "cluster": 1}
        return [{**alone, "cluster": 2 if large else 1}, alone, {**alone, "groups": 1}]


def sums_fit(groups: int, rows: int, columns: int) -> bool:
    """True if ``rows`` accumulators of 64 x ``columns`` fit a consumer's registers; ``groups``: consumer warpgroups"""
    at_launch = first_registers(128 * (groups + 1))
    return rows * columns // 2 <= SUMS[groups] and columns // 2 + OTHER_REGISTERS <= at_launch


def swizzled_rows(size: int) -> str:
    """Layout text of 128-byte rows with swizzled 16-byte chunks; ``size``: bytes of an element."""
    row, piece = ROW_BYTES // size, 16 // size
    return f"x/{row}, r, x/{piece}%8 ^ r%8, x%{piece}"


def leave_in_tiles(s: BaseSchedule, rows: str, packs: Sequence[str], wi: str, i: str, k: str, made: str, panel: int
                   ) -> None:  # fmt: skip
    """Stage results of ``rows`` in shared memory and store them by TMA to a multi-dimensional array.

    packs: stages that reorder addends to rows, staged likewise, ``panel`` columns at a time
    i, k: row and column loops of one warpgroup of ``wi``;  made: result dtype
    """
    of_rows, array, at = list(s.loops(rows)), written_by(s, rows), wi
    if packs:
        at, k = s.split(k, [None, panel])
        s.reorder(at, i, k)
    s.set_scope(array, "register").compute_at(rows, at)  # each warpgroup its own
    s.set_scope(array, "shared").layout(array, f"r, x -> {swizzled_rows(2)}")
    bring_rows(s, packs, at, f"r, x -> {swizzled_rows(2)}", VECTOR)
    if extent_of(s, i) > ROWS:
        several, i = s.split(i, [None, ROWS])
        s.unroll(several)
    stored, k = s.split(k, [None, STORED])
    s.reorder(stored, i, k).unroll(stored)
    s.tensorize(i, f"tma.store.{made}.{ROWS}x{STORED}")
    store_rows(s, rows, of_rows[:-1], of_rows[-1], f"m{ROWS}.{RESULTS[made, '']}.n")
