"""Filter gradients of convolutions on tensor cores (``mma.sync``): for each tap a matrix product summed over pixels.

The im2col matrix is never stored: a block copies the pixels of its tile from the image to shared memory. A small filter
gives few blocks, so the pixels are split into parts (split-K), which a second kernel adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tensorir.automatic.part import Config
from tensorir.automatic.rules.conv_image import LEAST_CHANNELS
from tensorir.automatic.rules.conv_part import ConvStages, ConvTile
from tensorir.engines.blocks import bind_grid, joint
from tensorir.engines.gemm_blocks import part_length
from tensorir.engines.gemm_tensor import KINDS, instructions, load_rows, modelled_kind, swizzled, vector_of
from tensorir.engines.problems import Conv
from tensorir.engines.steps import out_stage
from tensorir.engines.tiles import Knob, Knobs, Rule, Tile
from tensorir.gpu_devices import gpu_of
from tensorir.intrin.cuda import MULTIPLICATIONS, Multiplication, loads_rows
from tensorir.schedule.analysis import packed_names
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_model import MatrixProduct, Tiles, seconds

PARTS = (1, 2, 4, 8, 16, 32, 64)
"""Values of the knob ``parts``: number of parts of the pixels (split-K)."""
MANY_BLOCKS = 512
"""Blocks that fill the largest GPUs."""


def _orders(shape: Conv) -> tuple[str, str]:
    """Storage orders of both operands in shared memory, "n" or "t": in NCHW pixels, the reduction axis, are
    contiguous.
    """
    return ("n", "t") if shape.nchw else ("t", "n")


def _multiplication(shape: Conv) -> Multiplication | None:
    """Tensor-core instruction for the operands' types; None if there is none, if a group is narrower than a fragment,
    or if the type cannot be transposed by ``ldmatrix``.
    """
    name = KINDS.get((shape.dtype, shape.precision if shape.dtype == "float32" else ""))
    if name is None:
        return None
    m, groups = MULTIPLICATIONS[name], shape.groups
    turned = all(loads_rows(m, operand, order) for operand, order in zip("ab", _orders(shape), strict=True))
    whole = groups == 1 or (shape.kg % LEAST_CHANNELS == 0 and shape.cg >= 8)
    return m if turned and whole else None


def as_products(s: BaseSchedule, shape: Conv, of: ConvStages, parts: int) -> str:
    """Reindex the sums as matrix products over the pixels t, split into ``parts`` parts; return the name of the stage
    that computes the products.

    Operands: dy ([z,] [g,] t, k), image under each tap ([z,] [g,] r, s, t, c); for NCHW t is last. Sums: ([z,] [g,] r,
    s, k, c); k and c count channels of one group.
    """
    dw, kg, old = of.sums, shape.kg, of.walk
    terms, said = "t = ({n}, {p}, {q})".format(**of.axes), of.said({})
    if parts > 1:
        s.reindex(dw, f"{old} -> {_axes('krsc', said)}, {terms}", writes="k, r, s, c")
        length = part_length(shape.pixels, parts, 1)
        old, terms, said = "k, r, s, c | t", f"z = t/{length}, t = t%{length}", {}
    z, g = "z, " if parts > 1 else "", "g, " if shape.groups > 1 else ""
    channel = said.get("k", "k")
    said |= {"g": f"{channel}/{kg}", "k": f"{channel}%{kg}"} if g else {}
    k, c = ("k, t", "c, t") if shape.nchw else ("t, k", "t, c")
    reads = {of.other: f"{z}{g}{k}", of.image: f"{z}{g}r, s, {c}"}
    s.reindex(dw, f"{old} -> {_axes('grskc' if g else 'rskc', said)}, {terms}", reads=reads, writes=f"{g}r, s, k, c")
    return s.rfactor(dw, f"{dw}.z").name if parts > 1 else dw


def _axes(letters: str, said: Mapping[str, str]) -> str:
    """New axes as the text of a ``reindex`` view, each with its definition in ``said`` if it has one."""
    return ", ".join(f"{v} = {said[v]}" if v in said else v for v in letters)


class FilterTile(ConvTile):
    """Tile of a filter gradient: ``bk`` x ``bc`` channels per block, ``wk`` x ``wc`` per warp, ``bt`` pixels per step,
    ``depth`` pipeline stages, ``parts`` of the pixels (split-K); ``staged``: results are stored through shared memory.
    """

    way = "tensor"
    bk, bc, wk, wc = Knob(64, 128, 32, 16), Knob(64, 128, 32, 16), Knob(32, 64, 16), Knob(32, 64, 16)
    bt, depth, parts, staged = Knob(32, 64, 16), Knob(4, 3, 2, 1), Knob(*PARTS), Knob(1, 0)

    @classmethod
    def needs(cls, p: Conv) -> str | None:
        return "sm_80" if _multiplication(p) else None

    @classmethod
    def knobs(cls, p: Conv, target: Target) -> Knobs:
        steps = [n // p.element_bytes for n in (64, 128, 32)]
        return {**super().knobs(p, target), "bt": steps, "staged": [1, 0] if _stageable(p) else [0]}

    def schedule(self, s: BaseSchedule, of: ConvStages) -> BaseSchedule:
        shape, m, nchw, grouped = self.p, instructions(self.p), self.p.nchw, self.p.groups > 1
        of = of.leaving(s, "warp" if self.parts == 1 else "register")
        dy, pixels = packed_names([of.other, of.image], s.index.names())
        dw = as_products(s, shape, of, self.parts)
        if self.parts > 1:
            out = s.stage_out(dw, at="root", scope="warp").name
            _add_up(s, of)
            lead, channel = [f"{out}.rf", *([f"{out}.g"] if grouped else [])], f"{out}.k"
        else:
            out = out_stage(s, dw, "warp", of.out)
            group, channel = s.split(f"{out}.k", [None, shape.kg]) if grouped else (None, f"{out}.k")
            lead = [group] if group else []
        kb, wk, k = s.split(channel, [None, self.bk // self.wk, self.wk])
        cb, wc, cl = s.split(f"{out}.c", [None, self.bc // self.wc, self.wc])
        taps = [f"{out}.r", f"{out}.s"]
        s.reorder(*lead, *taps, kb, cb, wk, wc, k, cl)
        block = bind_grid(s, [*lead, *taps], [kb], [cb])
        s.bind(wk, "warp.y").bind(wc, "warp.x")
        if self.leaves_staged:
            layout = f"k, r, s, c -> r, s, k, {swizzled(self.bc, m, 'k').replace('x', 'c')}"
            s.stage_out(out, at=block, scope="shared", vector=vector_of(self.bc, shape.cg, m), layout=layout)
        s.compute_at(dw, wc)
        to, ti, tt = s.split(f"{dw}.t", [None, self.bt // m.k, m.k])
        k0, k1 = s.split(f"{dw}.k", [None, 16])
        c0, c1 = s.split(f"{dw}.c", [None, 8])
        own = [f"{dw}.{v}" for v in (*(["rf"] if self.parts > 1 else []), *(["g"] if grouped else []), "r", "s")]
        s.reorder(*own, to, ti, k0, c0, k1, c1, tt)
        for operand, of_channels, tile in ((dy, "k", self.bk), (pixels, "c", self.bc)):
            self._stage(s, operand, of_channels, tile, to)
        if of.moved:
            s.compute_inline(of.image)
        names = ((dy, "a", len(own) - 2), (pixels, "b", len(own)))
        for (operand, fragment, dim), order in zip(names, _orders(shape), strict=True):
            load_rows(s, s.stage_in(f"{operand}_shared", at=ti, scope="warp").name, dim, m, fragment, order)
        s.tensorize(k1, f"mma.m16n8k{m.k}.{m.name}.{''.join(_orders(shape))}")
        s.unroll(ti)
        if self.depth > 1:
            s.pipeline(to, self.depth, async_=not nchw)
        return s

    def _stage(self, s: BaseSchedule, operand: str, channel: str, tile: int, at: Any) -> None:
        """Stage a tile of ``operand`` in shared memory, directly from the stored array (the im2col view is inlined)."""
        p, m = self.p, instructions(self.p)
        lead = [v for v, used in (("z", self.parts > 1), ("g", p.groups > 1)) if used]
        dims = "".join(f"{v}, " for v in (*lead, *("rs" if channel == "c" else "")))
        row, run = (channel, "t") if p.nchw else ("t", channel)
        width, extent = (self.bt, self.bt) if p.nchw else (tile, p.kg if channel == "k" else p.cg)
        stored = swizzled(width, m, row).replace("x", run)
        layout = f"{dims}{row}, {run} -> {dims}{row}, {stored}"
        s.stage_in(operand, at=at, scope="shared", vector=vector_of(width, extent, m), layout=layout)
        s.compute_inline(operand)

    @property
    def leaves_staged(self) -> bool:
        """True if results are stored through shared memory."""
        return bool(self.staged and self.parts == 1 and _stageable(self.p))

    @property
    def operand_bytes(self) -> int:
        return self.p.element_bytes * self.depth * self.bt * (self.bk + self.bc)

    @property
    def result_bytes(self) -> int:
        return 2 * self.bk * self.bc if self.leaves_staged else 0

    @property
    def sides(self) -> tuple[tuple[int, int, int], ...]:
        return (self.bk, 32, self.p.kg), (self.bc, 32, self.p.cg)

    def long(self, steps: int) -> bool:
        """True if each part has at least ``steps`` steps of the main loop."""
        return self.parts == 1 or part_length(self.p.pixels, self.parts, 1) >= steps * self.bt

    rules: ClassVar[Mapping[str, Rule]] = {
        "warps": lambda t: t.bk % t.wk == 0 and t.bc % t.wc == 0 and 2 <= t.bk // t.wk * (t.bc // t.wc) <= 8,
        "groups": lambda t: t.p.groups == 1 or t.p.kg % t.bk == 0,
        "shared": Tile.shared,
        "registers": lambda t: t.wk * t.wc <= 64 * 64,
        "sensible": lambda t: t.sensible() and t.long(4),
        "ahead": lambda t: not t.p.nchw or t.depth <= 2,
    }

    @classmethod
    def expected(cls, p: Conv, target: Target) -> Callable[[Config], float] | None:
        """Cost model of matrix products, configuration -> seconds, for one product per tap; None for other targets."""
        gpu = gpu_of(target)
        return (lambda c: seconds(*cls(c, p, target).model, gpu)) if gpu else None

    @property
    def model(self) -> tuple[MatrixProduct, Tiles]:
        """Inputs of the cost model of matrix products: problem and tiles."""
        p = self.p
        image = min(1.0, p.n * p.c * p.h * p.w / (p.groups * p.taps * p.cg * p.pixels))
        product = MatrixProduct(
            p.kg, p.cg, p.pixels, p.groups * p.taps, modelled_kind(p), p.element_bytes,
            2 if p.leaves_in_halves else 4, 3 if p.precision == "3xtf32" else 1, apart=(1.0 / p.taps, image),
        )  # fmt: skip
        tiles = Tiles("mma", self.bk, self.bc, self.bt, self.wk, self.wc, self.depth, not p.nchw, splits=self.parts)
        return product, tiles

    @classmethod
    def start(cls, p: Conv, target: Target) -> Config | None:
        """Default configuration: 64 x 64 channels if there are as many, and enough parts to fill the largest GPUs; None
        if it is illegal.
        """
        bk = next((n for n in (64, 32) if (n <= 32 or n // 2 < p.kg) and (p.groups == 1 or p.kg % n == 0)), 16)
        bc = 64 if p.cg > 32 else 32
        blocks = p.groups * p.taps * -(-p.kg // bk) * -(-p.cg // bc)
        first = cls(dict(bk=bk, bc=bc, wk=min(32, bk), wc=16 if 16 in (bk, bc // 2) else 32, bt=64 // p.element_bytes,
                         depth=2 if p.nchw else 4, staged=int(_stageable(p))), p, target)  # fmt: skip
        parts = [n for n in PARTS if n == 1 or (blocks * n <= MANY_BLOCKS and first.but(parts=n).long(16))]
        config = {**first.config, "parts": parts[-1]}
        return config if all(test(config) for test in cls.where(p, target).values()) else None


def _stageable(shape: Conv) -> bool:
    """True if results may be stored through shared memory: 16-bit results with contiguous channels, since a row of a
    fragment covers only half a sector.
    """
    rows = not shape.nchw and vector_of(LEAST_CHANNELS, shape.cg, instructions(shape))
    return bool(rows and shape.leaves_in_halves)


def _add_up(s: BaseSchedule, of: ConvStages) -> None:
    """Schedule the kernel that adds up the parts: one thread per element of the filter."""
    final = out_stage(s, of.sums, epilogue=of.out)
    block, thread = s.split(joint(s, list(s.loops(final))), [None, 128])
    s.bind(block, "block.x").bind(thread, "thread.x").compute_at(of.sums, thread)
