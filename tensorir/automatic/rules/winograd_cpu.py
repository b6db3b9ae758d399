"""Winograd convolution on CPUs if its larger rounding error is allowed: filters in panels of output channels.

A kernel transforms the filter, in vectors of output channels; blocks multiply panels of tiles, in register tiles, and
transform the sums back; the image is transformed by blocks for themselves, or by a kernel for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, ClassVar

from tensorir.algorithms.winograd import matrices
from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Part
from tensorir.automatic.rules.conv_part import ConvStages, ConvTile, approximate_parts, cells
from tensorir.engines.model import (
    PANEL,
    SPARE_REGISTERS,
    CpuTile,
    channel_lanes,
    counts,
    in_balanced_tiles,
    priced,
    room,
    shared,
)
from tensorir.engines.packing import SIDE, turned
from tensorir.engines.problems import Conv
from tensorir.engines.steps import divisor_near, unroll_by
from tensorir.engines.tiles import Knob, Knobs, Rule
from tensorir.ir.words import SIDES
from tensorir.machine import CPU, Machine
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

PRICES, (L1, L2) = CPU.prices.winograd, CPU.caches
MOST_CUTS = 4
"""Maximum pieces of the loop over pixel groups of a strip; with more, channels are gathered one by one."""
TAPS = 288
"""Taps per output channel that a block transforms: of 32 input channels with 3 x 3 filters; those of 16 output channels
fit the L1 cache.
"""
LONGEST_PANEL, USUAL_PANEL = 56, 16
"""Maximum tiles of a panel of whole tile rows; tiles of a panel that is part of a row, limited by the L1 cache."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a convolution and its epilogue, if ``Wishes.max_error`` allows Winograd's rounding."""
    if target.kind == "cpu":
        yield from approximate_parts(graph, anchor, target, (WinogradPanels,))


class WinogradPanels(ConvTile, CpuTile[Conv]):
    """Winograd in kernels: filter transform, image transform (if ``image`` is "kernel"), products with output
    transform.

    m: outputs of a tile;  tb: rows of tiles per block;  panels: panels of output channels per block, ``vectors`` each
    image: "block" to transform the image per block in its memory, "kernel" for a separate kernel
    cb: image channels per step;  tile: tiles of a register tile;  unroll_c: input channels unrolled
    fetch: 1 to prefetch the next panel of filters
    """

    way, approximate, free = "winograd", True, ("unroll_c",)
    m, tb, panels, vectors = Knob[int](), Knob[int](), Knob[int](), Knob(2, 1, 4)
    image, cb, tile = Knob("kernel", "block"), Knob(16, 32, 64, 128), Knob(14, 12, 7, 8, 6, 4, 28, 10, 5)
    unroll_c, fetch = Knob(4, 1, 2, 8), Knob(1, 0)

    @classmethod
    def needs(cls, p: Conv) -> str | None:
        return "" if p.winograd_tiles else None

    @classmethod
    def knobs(cls, p: Conv, target: Target) -> Knobs:
        sizes, lanes = p.winograd_tiles, p.vector_lanes
        wide = [_panels(p, v) for v in cls.vectors.values]
        far = 36 * p.c * p.k * p.sum_bytes >= L2.nbytes // 2
        return {
            "m": sizes,
            "tb": sorted({n for m in sizes for n in counts(-(-p.p // m), 8)}),
            "panels": sorted({n for v in wide for n in counts(v, v)}),
            "vectors": cls.vectors.values,
            "image": cls.image.values,
            "cb": sorted({min(v, -(-p.c // lanes) * lanes) for v in cls.cb.values}),
            "tile": [v for v in cls.tile.values if v <= _most_sums(p)] or [2],
            "unroll_c": cls.unroll_c.values,
            "fetch": [1, 0] if far else [0, 1],
        }

    # --- what a block computes

    @property
    def high(self) -> int:
        """Rows of tiles of an image."""
        return -(-self.p.p // self.m)

    @property
    def wide(self) -> int:
        """Tiles of a row."""
        return -(-self.p.q // self.m)

    @property
    def side(self) -> int:
        """Rows and columns of a transformed tile."""
        return self.m + self.p.r - 1

    @property
    def tiles(self) -> int:
        """Tiles of a block."""
        return self.tb * self.wide

    @cached_property
    def panel(self) -> int:
        """Tiles per panel: whole tile rows, or an equal part of a row that exceeds ``LONGEST_PANEL``."""
        wide, tb = self.wide, self.tb
        if wide <= LONGEST_PANEL:
            return wide * max(n for n in range(1, tb + 1) if tb % n == 0 and (n == 1 or n * wide <= LONGEST_PANEL))
        return next((n for n in range(USUAL_PANEL, SIDE - 1, -1) if wide % n == 0), wide)

    @property
    def channels(self) -> int:
        """Output channels of a panel."""
        return self.vectors * self.p.vector_lanes

    @property
    def strip(self) -> int:
        """Image pixels per channel that a panel reads."""
        more, rows = self.p.r - 1, max(1, self.panel // self.wide)
        return (rows * self.m + more) * (min(self.panel, self.wide) * self.m + more)

    def transformed(self, channels: int) -> int:
        """Bytes of ``channels`` channels of a block's transformed tiles."""
        return 4 * self.side**2 * self.tiles * channels

    @property
    def bytes(self) -> int:
        """Bytes of block memory: of the only kernel, or of the larger one if ``image`` is "kernel"."""
        products, strip = self.transformed(self.channels), 4 * self.strip * self.cb
        if self.image == "block":
            return products + self.transformed(self.p.c) + strip
        return max(products, strip)

    rules: ClassVar[Mapping[str, Rule]] = {
        "rows": lambda t: t.tb <= t.high and t.high % t.tb == 0,
        "channels": lambda t: t.vectors == 1 or t.vectors // 2 * t.p.vector_lanes < t.p.k,
        "panels": lambda t: t.panels <= _panels(t.p, t.vectors),
        "tile": lambda t: t.tile <= max(t.panel, 4),  # the least is always legal
        "registers": lambda t: min(t.tile, t.panel) * t.vectors <= _most_sums(t.p),
        # each block of output channels would transform the image again
        "once": lambda t: t.image == "kernel" or t.panels == _panels(t.p, t.vectors),
        "fits": lambda t: t.bytes <= room(t.p.block_bytes),
    }

    # --- its steps

    def declare(self, s: BaseSchedule, of: ConvStages) -> None:
        s.redeclare("winograd", tile=self.m, panel=PANEL, of=of.sums)

    def schedule(self, s: BaseSchedule, of: ConvStages) -> BaseSchedule:
        shape, width, m = self.p, self.p.vector_lanes, self.m
        # register tiles read a panel of tiles channel by channel, one after another
        s.reindex(
            "M", "u, v, t, k | c -> u, v, t, k, c", reads={"V": f"u, v, to = t/{self.panel}, c, ti = t%{self.panel}"}
        )
        _filters(s, shape, width, f"{of.other}_panel")
        out = of.last(s)
        n, k, p, q = cells(s, out, shape)
        p0, p1 = s.split(p, [None, m])
        q0, q1 = s.split(q, [None, m])
        pb, pt = s.split(p0, [None, self.tb])
        kb, kp, kh, kl = s.split(k, [None, self.panels, self.vectors, width])
        s.reorder(n, pb, kb, kp, pt, q0, kh, p1, q1, kl)
        s.bind(n, "block.z").bind(pb, "block.y").bind(kb, "block.x")
        s.compute_at("Y", kh)
        s.compute_at("Z", kh)
        _transform(s, "Z", "tbiuk")
        _transform(s, "Y", "tijvk")
        s.unroll(p1)
        if shape.nchw and m in SIDES:
            s.partition(q0, [shape.q // m])  # what is beyond the image is left out one by one
            s.reorder(kl, q1)
            s.unroll(kl).vectorize(q1)
        else:
            s.unroll(q1)
            if shape.nchw:
                s.unroll(kl)
            else:
                s.vectorize(kl)
        _products(s, kp, width, self.panel, self.tile)
        unroll_by(s, "M.c", self.unroll_c)
        if self.fetch:
            s.prefetch("U", at="M.c", ahead="M.v")
        if self.image == "block":
            s.set_scope("V_packed", "shared").compute_at("V_packed", kb)
        self._image(s, f"{of.image}_pad")
        return s

    def _image(self, s: BaseSchedule, padded: str) -> None:
        """Schedule the image transform, in blocks of its own for ``image`` "kernel": vectors of channels, transposed to
        vectors of tiles panel by panel, ``cb`` channels at a time.
        """
        shape, m, wide, panel, lanes = self.p, self.m, self.wide, self.panel, channel_lanes(self.p)
        several, lane = s.split("V_packed.c", [None, lanes], tail="shift")
        cb, cl = s.split(several, [None, max(1, self.cb // lanes)])
        group, c = s.split(lane, [None, min(SIDE, lanes)])
        panels = list(s.split("V_packed.to", [None, wide // panel])) if panel < wide else ["V_packed.to"]
        s.reorder(*panels, cb, cl, "V_packed.u", "V_packed.v", group, c, "V_packed.ti")
        if self.image == "kernel":
            s.bind(s.fuse(*panels) if panels[1:] else panels[0], "block.y").bind(cb, "block.x")
        at, side = cl, next((n for n in SIDES if n <= panel), 0)
        if side:
            place, ti = s.split("V_packed.ti", [None, side], tail="shift")
            s.reorder(group, place, c, ti)
            s.unroll(c).vectorize(ti)
            if panel > USUAL_PANEL:  # more tiles than the first-level cache holds with all their places
                s.reorder(place, "V_packed.u", "V_packed.v", group)
                at = place
        else:
            s.reorder(group, "V_packed.ti", c)
            s.unroll("V_packed.ti").vectorize(c)
        s.set_scope("V", "register").compute_at("V", at)
        _transform(s, "V", "tuvxc")
        s.compute_at("T", "V.t")
        _transform(s, "T", "tbuyc")
        taken = min(panel, wide) * m  # results of a row, the last of which are the fewest of the image
        _strip(s, padded, cb, shape, taken + shape.r - 1, (shape.pad, shape.pad + shape.w - wide * m + taken))

    # --- its time

    def cost(self) -> float:
        """Modelled cycles over all cores."""
        shape, high, machine = self.p, self.high, self.machine
        blocks = shape.n * (high // self.tb) * -(-shape.k // (self.panels * self.channels))
        panels = self.panels * self._products()
        there = transforms(self.m, shape.r)[0] * PRICES.transformed
        turned = shape.c * (
            self.panel * self.side**2 * there + self.strip * (PRICES.turned if shape.nchw else PRICES.copied)
        )
        if self.image == "block":
            cycles = shared(priced(PRICES.block + panels + turned * self.tiles / self.panel, blocks, machine), machine)
        else:
            parts = -(-shape.c // self.cb)
            cycles = (
                shared(priced(PRICES.block + panels, blocks, machine), machine)
                + PRICES.handed * shape.n * high * self.wide * self.side**2 * shape.c
            )
            blocks = shape.n * high * self.wide // self.panel * parts
            cycles += shared(priced(PRICES.block + turned / parts, blocks, machine), machine)
        return cycles + (0.0 if shape.prepack else filters(shape, self.m, machine))

    def _products(self) -> float:
        """Modelled cycles of one panel of output channels, output transform included."""
        shape = self.p
        weights, kept = self.side**2 * shape.c * self.channels * 4, self.transformed(self.channels)
        filter_bytes = weights * -(-shape.k // self.channels)
        if shape.vector_bytes >= 64:
            rate = PRICES.fetched_weights if self.fetch else PRICES.far_weights
            slow = PRICES.back if kept <= 3 * L1.nbytes else PRICES.far_back
        else:
            rate = PRICES.near_weights if filter_bytes <= L2.nbytes else PRICES.far_weights
            slow = PRICES.back if kept <= 2 * L1.nbytes else PRICES.far_back_narrow
        rate = rate if filter_bytes <= PRICES.cold_bytes else PRICES.cold_weights
        step = _step(shape, self.vectors, self.unroll_c)
        added = in_balanced_tiles(self.panel, self.tile, step) * self.tiles / self.panel * self.side**2 * shape.c
        back = self.side**2 * slow * transforms(self.m, shape.r)[1]
        back += self.m**2 * PANEL * (PRICES.scattered if shape.nchw else PRICES.written)
        return added + weights / rate + self.tiles * back * self.channels / PANEL


def _panels(shape: Conv, vectors: int) -> int:
    """Panels of ``vectors`` vectors of output channels."""
    return -(-shape.k // (vectors * shape.vector_lanes))


def _most_sums(shape: Conv) -> int:
    """Vector registers for the sums of a register tile."""
    return max(2, shape.registers - SPARE_REGISTERS)


def _filters(s: BaseSchedule, shape: Conv, width: int, taps: str) -> None:
    """Schedule the filter transform: vectors of output channels, from taps transposed in block memory; one row of tile
    elements at a time, stored in long runs.
    """
    s.stage_out("U", "root", "register")
    size = divisor_near(shape.c, max(SIDE, TAPS // shape.taps))
    block, c = s.split("U.out.c", [None, size])
    half, lanes = s.split("U.out.ki", [None, width])
    s.reorder("U.out.ko", block, "U.out.u", c, half, "U.out.v", lanes)
    s.bind("U.out.ko", "block.y").bind(block, "block.x")  # blocks one after another continue the same rows
    s.unroll("U.out.u").unroll("U.out.v").vectorize(lanes)
    s.compute_at("U", half).compute_at("W", half)
    for stage, order in (("W", "usrk"), ("U", "uvsk")):
        _transform(s, stage, ("ko", "c", *order[:3], "ki"))
    s.set_scope(taps, "shared").compute_at(taps, block)
    turned(s, taps, block, "t", "ki", block=(-(-size * (shape.taps if shape.nchw else 1) // SIDE), 1))


def _transform(s: BaseSchedule, stage: str, order: Sequence[str]) -> None:
    """Reorder the loops of a transform as ``order``, vectorize the last one and unroll the three before it."""
    s.reorder(*(f"{stage}.{x}" for x in order))
    for x in order[-4:-1]:
        s.unroll(f"{stage}.{x}")
    s.vectorize(f"{stage}.{order[-1]}")


def _strip(s: BaseSchedule, padded: str, at: str, shape: Conv, extent: int, image: Sequence[int]) -> None:
    """Compute the padded image in block memory at loop ``at``, in vectors of channels, transposed from vectors of
    pixels for NCHW.

    extent: pixels of a row, of which ``range(*image)`` are inside the image
    """
    lanes = channel_lanes(shape)
    s.set_scope(padded, "shared")
    s.compute_at(padded, at)
    cuts = _cuts(extent, image)
    if shape.nchw and extent >= SIDE and lanes >= SIDE and shape.c % lanes == 0 and len(cuts) <= MOST_CUTS:
        group, several = turned(s, padded, at, "w", "c", lanes)
        s.reorder(several, f"{group.removesuffix('.w.0')}.h", group)  # rows of a channel follow each other in memory
        _cut(s, group, cuts)
        return
    several, lane = s.split(f"{padded}.c", [None, lanes])
    s.vectorize(lane)
    if shape.nchw:
        s.reorder(several, f"{padded}.w")  # a few cache lines at a time, each until nothing of it is left
    _cut(s, f"{padded}.w", [x for x in image if 0 < x < extent])


def _cuts(extent: int, image: Sequence[int]) -> list[int]:
    """Points to cut the loop over pixel groups: a group that reaches beyond the image is separate, with statically
    known loads.
    """
    starts = [min(x, extent - SIDE) for x in range(0, extent, SIDE)]
    inner = [image[0] <= x and x + SIDE <= image[1] for x in starts]
    return [t for t in range(1, len(starts)) if not (inner[t] and inner[t - 1])]


def _cut(s: BaseSchedule, loop: str, points: Sequence[int]) -> None:
    """Partition ``loop`` at ``points``; no step if there are none."""
    if points:
        s.partition(loop, list(points))


def _products(s: BaseSchedule, at: Any, width: int, panel: int, tile: int) -> None:
    """Schedule the products at loop ``at``: register tiles of ``tile`` image tiles by ``width`` channels, ``panel``
    image tiles at a time.
    """
    s.set_scope("M", "shared")
    s.compute_at("M", at)
    several, place = s.split("M.t", [None, panel])
    t0, t1 = s.split(place, [None, min(tile, panel)], tail="balanced")
    half, lanes = s.split("M.k", [None, width])
    s.reorder("M.u", "M.v", several, t0, "M.c", t1, half, lanes)
    s.stage_out("M", t0, "register")
    s.unroll(t1).unroll(half).vectorize(lanes)
    half, lanes = s.split("M.out.k", [None, width])
    s.unroll("M.out.t").unroll(half).vectorize(lanes)


@cache
def transforms(m: int, r: int) -> tuple[float, float]:
    """(input, output) transform cost per element, by operations, relative to F(4 x 4, 3 x 3), whose cost was
    measured.
    """

    def each(m: int, r: int) -> tuple[float, float]:
        a = m + r - 1
        back, _, there = (sum(1 for row in x for v in row if v) for x in matrices(m, r))
        return 2 * there / a, back * (a + m) / a**2

    (there, back), usual = each(m, r), each(4, 3)
    return there / usual[0], back / usual[1]


def filters(shape: Conv, m: int, machine: Machine) -> float:
    """Cycles of the filter-transform kernel, shared by all cores."""
    moved = 4 * shape.c * -(-shape.k // PANEL) * PANEL * (shape.taps + (m + shape.r - 1) ** 2)
    return shared(moved * (PRICES.filter if moved <= PRICES.cached else PRICES.far_filter), machine)


def _step(shape: Conv, vectors: int, unroll: int) -> Callable[[int], float]:
    """Function tiles -> cycles of one reduction step of a register tile with ``vectors`` vectors: multiply-adds or
    loads.
    """
    adding = PRICES.shared if shape.vector_bytes >= 64 else PRICES.narrow
    near = PRICES.second_step if shape.c * vectors * shape.vector_bytes > L1.nbytes // 2 else PRICES.first_step

    def step(tiles: int) -> float:
        sums = tiles * vectors
        spilled = PRICES.spilled if sums * unroll > PRICES.written_out else 0.0
        waited = PRICES.delay * max(0, CPU.prices.sums - sums) + near * vectors
        return max(adding * sums, PRICES.loaded * (tiles + vectors)) + spilled * sums + waited

    return step
