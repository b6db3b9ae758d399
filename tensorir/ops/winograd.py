"""Winograd convolution (``algorithms.winograd``) on CPUs: conditions, schedule, search space, cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from tensorir.algorithms.winograd import allowed_tiles, matrices
from tensorir.engines.model import (
    BLOCK,
    DELAY,
    FIRST_CACHE_BYTES,
    FIRST_CACHE_STEP,
    MOST_WRITTEN,
    PANEL,
    SECOND_CACHE_STEP,
    SHARED_RATE,
    SPARE_REGISTERS,
    SPILLED,
    SUMS,
    channel_lanes,
    counts,
    in_balanced_tiles,
    priced,
    room,
    shared,
    space_of,
)
from tensorir.engines.packing import SIDE, turned
from tensorir.engines.problems import Conv
from tensorir.engines.steps import divisor_near, last_stage, unroll_by
from tensorir.engines.tiles import Config
from tensorir.ir.words import SIDES
from tensorir.tune.template import Template

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule
    from tensorir.tune.space import Space

MOST_CUTS = 4
"""Maximum pieces of the loop over pixel groups of a strip; with more, channels are gathered one by one."""
UNROLLS = [4, 1, 2, 8]
"""Values of the knob ``unroll_c``: input channels unrolled."""
NEAR_BYTES = 512 * 1024
"""Bytes of transformed filters that stay in the L2 cache next to other data."""
TURNED, COPIED = 0.65, 0.2
"""Cycles per image element stored channel-last: from contiguous pixels (NCHW), and from contiguous channels (NHWC)."""
SCATTERED, WRITTEN = 0.9, 0.3
"""Cycles per result element stored along pixels (NCHW), and along channels, the order of registers (NHWC)."""
TAPS = 288
"""Taps per output channel that a block transforms: of 32 input channels with 3 x 3 filters; those of 16 output channels
fit the L1 cache.
"""
FILTER, FAR_FILTER = 0.16, 0.45
"""Cycles per byte of filter read and transformed filter written, within caches and beyond."""
CACHED = 4 << 20
"""Bytes of filter and transformed filter together that fit the caches."""
LONGEST_PANEL, USUAL_PANEL = 56, 16
"""Maximum tiles of a panel of whole tile rows; tiles of a panel that is part of a row, limited by the L1 cache."""
TRANSFORMED = 1.6
"""Cycles per element of the transformed image, for tiles of four outputs and filters of three taps."""
LOADED = 0.8
"""Cycles of a load of a 64-byte vector, or of a broadcast."""
WRITTEN_CYCLES = 1.0
"""Cycles per element of the transformed image stored by one kernel and loaded by another."""


def admissible(shape: Conv) -> list[int]:
    """Tile sizes m that apply to the convolution and whose error bound is within its ``max_error``; [] if none."""
    square = shape.r == shape.s and shape.stride == shape.dilation == 1 and shape.dtype == "float32"
    return allowed_tiles(shape.r, shape.max_error) if square and min(shape.c, shape.k) >= 8 else []


def cpu_template(shape: Conv) -> Template:
    """Template of Winograd's algorithm for a convolution on CPUs; its space has tiles of all admissible sizes."""
    return Template(
        lambda s, c: cpu_winograd(s, shape.on(s.target), **c),
        lambda target: space(shape.on(target)), ("cpu",), approximate=True,
    )  # fmt: skip


def cpu_winograd(
    s: BaseSchedule, shape: Conv, *, m: int, tb: int, panels: int, vectors: int, image: str, cb: int, tile: int,
    unroll_c: int, fetch: int,
) -> BaseSchedule:  # fmt: skip
    """Schedule Winograd in kernels: filter transform, image transform (if ``image`` is "kernel"), products with output
    transform; return ``s``.

    m: outputs of a tile;  tb: rows of tiles per block;  panels: panels of output channels per block, ``vectors`` each
    image: "block" to transform the image per block in its memory, "kernel" for a separate kernel
    cb: image channels per step;  tile: tiles of a register tile;  unroll_c: input channels unrolled
    fetch: 1 to prefetch the next panel of filters
    """
    width, panel = shape.vector_lanes, _panel(shape, m, tb)
    s.redeclare("winograd", tile=m, panel=PANEL)
    # register tiles read a panel of tiles channel by channel, one after another
    s.reindex("M", "u, v, t, k | c -> u, v, t, k, c", reads={"V": f"u, v, to = t/{panel}, c, ti = t%{panel}"})
    _filters(s, shape, width)
    if shape.prepack:
        s.run_once("U")
    out = last_stage(s, "y")
    p0, p1 = s.split(f"{out}.p", [None, m])
    q0, q1 = s.split(f"{out}.q", [None, m])
    pb, pt = s.split(p0, [None, tb])
    kb, kp, kh, kl = s.split(f"{out}.k", [None, panels, vectors, width])
    s.reorder(f"{out}.n", pb, kb, kp, pt, q0, kh, p1, q1, kl)
    s.bind(f"{out}.n", "block.z").bind(pb, "block.y").bind(kb, "block.x")
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
    _products(s, kp, width, panel, tile)
    unroll_by(s, "M.c", unroll_c)
    if fetch:
        s.prefetch("U", at="M.c", ahead="M.v")
    if image == "block":
        s.set_scope("V_packed", "shared").compute_at("V_packed", kb)
    _image(s, shape, m, cb, panel, image == "kernel")
    return s


def _panel(shape: Conv, m: int, tb: int) -> int:
    """Tiles per panel: whole tile rows, or an equal part of a row that exceeds ``LONGEST_PANEL``."""
    wide = -(-shape.q // m)
    if wide <= LONGEST_PANEL:
        return wide * max(n for n in range(1, tb + 1) if tb % n == 0 and (n == 1 or n * wide <= LONGEST_PANEL))
    return next((n for n in range(USUAL_PANEL, SIDE - 1, -1) if wide % n == 0), wide)


def _filters(s: BaseSchedule, shape: Conv, width: int) -> None:
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
    s.set_scope("w_panel", "shared").compute_at("w_panel", block)
    turned(s, "w_panel", block, "t", "ki", block=(-(-size * (shape.taps if shape.nchw else 1) // SIDE), 1))


def _transform(s: BaseSchedule, stage: str, order: Sequence[str]) -> None:
    """Reorder the loops of a transform as ``order``, vectorize the last one and unroll the three before it."""
    s.reorder(*(f"{stage}.{x}" for x in order))
    for x in order[-4:-1]:
        s.unroll(f"{stage}.{x}")
    s.vectorize(f"{stage}.{order[-1]}")


def _image(s: BaseSchedule, shape: Conv, m: int, channels: int, panel: int, blocks: bool) -> None:
    """Schedule the image transform: vectors of channels, transposed to vectors of tiles panel by panel, ``channels`` at
    a time.

    blocks: True to bind it to blocks, as a separate kernel
    """
    wide, lanes = -(-shape.q // m), channel_lanes(shape)
    several, lane = s.split("V_packed.c", [None, lanes], tail="shift")
    cb, cl = s.split(several, [None, max(1, channels // lanes)])
    group, c = s.split(lane, [None, min(SIDE, lanes)])
    panels = list(s.split("V_packed.to", [None, wide // panel])) if panel < wide else ["V_packed.to"]
    s.reorder(*panels, cb, cl, "V_packed.u", "V_packed.v", group, c, "V_packed.ti")
    if blocks:
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
    _strip(s, cb, shape, taken + shape.r - 1, (shape.pad, shape.pad + shape.w - wide * m + taken))


def _strip(s: BaseSchedule, at: str, shape: Conv, extent: int, image: Sequence[int]) -> None:
    """Compute the padded image in block memory at loop ``at``, in vectors of channels, transposed from vectors of
    pixels for NCHW.

    extent: pixels of a row, of which ``range(*image)`` are inside the image
    """
    lanes = channel_lanes(shape)
    s.set_scope("x_pad", "shared")
    s.compute_at("x_pad", at)
    cuts = _cuts(extent, image)
    if shape.nchw and extent >= SIDE and lanes >= SIDE and shape.c % lanes == 0 and len(cuts) <= MOST_CUTS:
        group, several = turned(s, "x_pad", at, "w", "c", lanes)
        s.reorder(several, f"{group.removesuffix('.w.0')}.h", group)  # rows of a channel follow each other in memory
        _cut(s, group, cuts)
        return
    several, lane = s.split("x_pad.c", [None, lanes])
    s.vectorize(lane)
    if shape.nchw:
        s.reorder(several, "x_pad.w")  # a few cache lines at a time, each until nothing of it is left
    _cut(s, "x_pad.w", [x for x in image if 0 < x < extent])


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


def filters(shape: Conv, m: int) -> float:
    """Cycles of the filter-transform kernel, shared by all cores."""
    moved = 4 * shape.c * -(-shape.k // PANEL) * PANEL * (shape.taps + (m + shape.r - 1) ** 2)
    return shared(moved * (FILTER if moved <= CACHED else FAR_FILTER))


def space(shape: Conv) -> Space:
    """Search space of ``cpu_winograd`` for a convolution, with its cost model."""
    p, c = shape.p, shape.c
    sizes, lanes, most = admissible(shape), shape.vector_lanes, max(2, shape.registers - SPARE_REGISTERS)
    vectors = [2, 1, 4]
    panels = {v: -(-shape.k // (v * lanes)) for v in vectors}
    knobs: dict[str, list[Any]] = dict(
        m=sizes,
        tb=sorted({v for m in sizes for v in counts(-(-p // m), 8)}),
        panels=sorted({n for v in panels.values() for n in counts(v, v)}),
        vectors=vectors,
        image=["kernel", "block"],
        cb=sorted({min(v, -(-c // lanes) * lanes) for v in (16, 32, 64, 128)}),
        tile=[v for v in (14, 12, 7, 8, 6, 4, 28, 10, 5) if v <= most] or [2],
        unroll_c=UNROLLS,
        fetch=[1, 0] if 36 * shape.c * shape.k * shape.sum_bytes >= NEAR_BYTES else [0, 1],
    )

    least = min(knobs["tile"])
    return space_of(
        knobs,
        {
            "rows": lambda v: v["tb"] <= -(-p // v["m"]) and -(-p // v["m"]) % v["tb"] == 0,
            "channels": lambda v: v["vectors"] == 1 or v["vectors"] // 2 * lanes < shape.k,
            "panels": lambda v: v["panels"] <= panels[v["vectors"]],
            "tile": lambda v: v["tile"] == least or v["tile"] <= _panel(shape, v["m"], v["tb"]),
            "registers": lambda v: bool(min(v["tile"], _panel(shape, v["m"], v["tb"])) * v["vectors"] <= most),
            # each block of output channels would transform the image again
            "once": lambda v: v["image"] == "kernel" or v["panels"] == panels[v["vectors"]],
            "fits": lambda v: _Blocks(shape, v).bytes <= room(shape.block_bytes),
        },
        lambda v: _Blocks(shape, v).cost,
        ("unroll_c",),
    )


@dataclass(frozen=True)
class _Blocks:
    """Blocks of a configuration: memory and cost."""

    shape: Conv
    config: Config

    @cached_property
    def m(self) -> int:
        return int(self.config["m"])

    @cached_property
    def a(self) -> int:
        """Rows and columns of a transformed tile."""
        return self.m + self.shape.r - 1

    @cached_property
    def wide(self) -> int:
        """Tiles of a row."""
        return -(-self.shape.q // self.m)

    @cached_property
    def tiles(self) -> int:
        return int(self.config["tb"]) * self.wide

    @cached_property
    def panel(self) -> int:
        return _panel(self.shape, self.m, self.config["tb"])

    @cached_property
    def channels(self) -> int:
        """Output channels of a panel."""
        return int(self.config["vectors"]) * self.shape.vector_lanes

    @cached_property
    def strip(self) -> int:
        """Image pixels per channel that a panel reads."""
        rows = max(1, self.panel // self.wide)
        return (rows * self.m + self.shape.r - 1) * (min(self.panel, self.wide) * self.m + self.shape.r - 1)

    def places(self, channels: int) -> int:
        """Bytes of ``channels`` channels of a block's transformed tiles."""
        return 4 * self.a**2 * self.tiles * channels

    @cached_property
    def bytes(self) -> int:
        """Bytes of block memory, of the larger kernel."""
        products, strip = self.places(self.channels), 4 * self.strip * int(self.config["cb"])
        if self.config["image"] == "block":
            return products + self.places(self.shape.c) + strip
        return max(products, strip)

    @cached_property
    def cost(self) -> float:
        """Modelled cycles over all cores."""
        shape, v, high = self.shape, self.config, -(-self.shape.p // self.m)
        blocks = shape.n * (high // v["tb"]) * -(-shape.k // (v["panels"] * self.channels))
        panels = v["panels"] * self._products()
        there = transforms(self.m, shape.r)[0] * TRANSFORMED
        turned = shape.c * (self.panel * self.a**2 * there + self.strip * (TURNED if shape.nchw else COPIED))
        if v["image"] == "block":
            cycles = shared(priced(BLOCK + panels + turned * self.tiles / self.panel, blocks))
        else:
            parts = -(-shape.c // v["cb"])
            cycles = (
                shared(priced(BLOCK + panels, blocks))
                + WRITTEN_CYCLES * shape.n * high * self.wide * self.a**2 * shape.c
            )
            cycles += shared(priced(BLOCK + turned / parts, shape.n * high * self.wide // self.panel * parts))
        return cycles + (0.0 if shape.prepack else filters(shape, self.m))

    def _products(self) -> float:
        """Modelled cycles of one panel of output channels, output transform included."""
        shape, v = self.shape, self.config
        weights, kept = self.a**2 * shape.c * self.channels * 4, self.places(self.channels)
        filter_bytes = weights * -(-shape.k // self.channels)
        # bytes of weights a cycle, cycles an element on the way back: both measured, on cores of two generations
        if shape.vector_bytes >= 64:
            rate, slow = 200 if v["fetch"] else 16, 8 if kept <= 96 * 1024 else 11
        else:
            rate, slow = 32 if filter_bytes <= 1 << 20 else 16, 8 if kept <= 64 * 1024 else 16
        rate = rate if filter_bytes <= 16 << 20 else 6
        step = _step(shape, v["vectors"], v["unroll_c"])
        added = in_balanced_tiles(self.panel, v["tile"], step) * self.tiles / self.panel * self.a**2 * shape.c
        back = self.a**2 * slow * transforms(self.m, shape.r)[1]
        back += self.m**2 * PANEL * (SCATTERED if shape.nchw else WRITTEN)
        return added + weights / rate + self.tiles * back * self.channels / PANEL


def _step(shape: Conv, vectors: int, unroll: int) -> Callable[[int], float]:
    """Function tiles -> cycles of one reduction step of a register tile with ``vectors`` vectors: multiply-adds or
    loads.
    """
    adding = SHARED_RATE if shape.vector_bytes >= 64 else 0.5
    near = SECOND_CACHE_STEP if shape.c * vectors * shape.vector_bytes > FIRST_CACHE_BYTES // 2 else FIRST_CACHE_STEP

    def step(tiles: int) -> float:
        sums = tiles * vectors
        spilled = SPILLED if sums * unroll > MOST_WRITTEN else 0.0
        waited = DELAY * max(0, SUMS - sums) + near * vectors
        return max(adding * sums, LOADED * (tiles + vectors)) + spilled * sums + waited

    return step
