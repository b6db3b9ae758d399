"""matmul on GPUs: shared tiles and register tiles on any, and the engines for CUDA (``gemm_warp``: warp tiles,
``gemm_tensor``, ``gemm_hopper``: on tensor cores).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tensorir.api.workload import Template
from tensorir.ops.blocks import bind_grid, has_room, start
from tensorir.ops.gemm_blocks import Engine, Operands, Sums, inline
from tensorir.ops.gemm_hopper import HopperTile
from tensorir.ops.gemm_tensor import TensorTile
from tensorir.ops.gemm_warp import WarpTile
from tensorir.ops.problems import Gemm
from tensorir.ops.tiles import Config, Knob, Rule
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target


class SharedTile(Engine):
    """Both operands staged in shared memory per ``bk``, register tiles read from there in vectors of four.

    ``ti`` x ``tj`` threads of a block make ``ri`` x ``rj`` elements each; ``vector``: what copies take at once;
    ``fragments``: what a step reads is in registers first; ``depth`` of the pipeline
    """

    ti, tj, ri, rj = Knob(16, 8, 32, 4), Knob(16, 8, 32), Knob(8, 4, 2, 1, 16), Knob(8, 4, 2, 1)
    bk, vector, fragments, depth = Knob(8, 16, 32), Knob(4, 1), Knob(1, 0), Knob(2, 1)

    @property
    def high(self) -> int:
        return self.ti * self.ri

    @property
    def wide(self) -> int:
        return self.tj * self.rj

    def product(self, s: Schedule, of: Sums, given: Operands) -> Schedule:
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
            s.stage_in(name, at=ko, scope="shared", vector=_vector(row, whole, self.vector), layout=layout)
            copies.append((f"{name}_shared", given[operand].dims + (not along_k), each))
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

    @property
    def operand_bytes(self) -> int:
        return self.p.element_bytes * self.depth * self.bk * (self.high + self.wide)

    rules: ClassVar[Mapping[str, Rule]] = {
        "threads": lambda t: t.ti * t.tj in (64, 128, 256),
        "shared": Engine.shared,
        "registers": lambda t: t.ri * t.rj <= 128,
        "unrolled": lambda t: t.ri * t.rj * t.bk <= 1024,
        "grid": lambda t: has_room(t.target, t.p.batch, *t.tiles),
        "one group": Engine.of_one_group,
    }

    @classmethod
    def start(cls, p: Gemm, target: Target) -> Config | None:
        tile, bk = (8, 8) if p.m >= 256 and p.n >= 256 else (4, 16)
        first = dict(ti=16, tj=16, rj=tile, bk=bk, vector=4, fragments=1, depth=2)
        starts = [{**first, "ri": n} for n in (8, 4, 2, 1) if n <= tile]
        wanted = next((c for c in starts if cls(c, p, target).of_one_group()), starts[-1])
        knobs, where = cls.knobs(p, target), cls.where(p, target)
        return start(knobs, where, lambda c: cls(c, p, target).operand_bytes, wanted)


ENGINES: Mapping[str, type[Engine]] = {
    "gpu_hopper": HopperTile,
    "gpu_tensor": TensorTile,
    "gpu_warp": WarpTile,
    "gpu_tile": SharedTile,
}
"""The engines by their templates' names, the one that a search begins with first."""


def gpu_templates(p: Gemm) -> dict[str, Template]:
    """The templates for GPUs: for CUDA on tensor cores where these multiply the operands' type, else in threads; for
    any of them by shared tiles.
    """
    return {name: engine.template(p) for name, engine in ENGINES.items() if engine.needs(p) is not None}


def _quads(axis: str, tile: int, threads: int, bk: int, along_k: bool) -> str:
    """Storage of an axis that threads read in tiles: the first four of all threads side by side, then the next four, so
    that what a warp reads at once is in different banks; xored so that what it writes at once does, too.

    A warp writes 32 vectors of four, along the axis, or along k and then element by element. Their places in eight
    groups of four banks take three bits: low bits of ``axis/4``, of which some are in the order anyway, and where it
    writes along k, bits of ``k/4`` in what is left of the three.
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


def _vector(tile: int, extent: int, wanted: int) -> int | None:
    """Lanes of a cooperative copy along a row of ``tile`` elements of a tensor ``extent`` wide."""
    for lanes in (4, 2):
        if lanes <= wanted and tile % lanes == 0 and extent % lanes == 0:
            return lanes
    return None
