"""Winograd's algorithm (``algorithms.winograd``) on CPUs: where it applies, its schedule and its space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from tensorir.algorithms.winograd import allowed_tiles, matrices
from tensorir.engines.model import (
    BLOCK,
    BLOCK_BYTES,
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
"""Parts of the loop over groups of pixels of a strip; of more, channels are gathered one by one."""
UNROLLS = [4, 1, 2, 8]
"""Input channels that are written out in a row: the knob ``unroll_c``."""
NEAR_BYTES = 512 * 1024
"""Filters of this size stay in the second-level cache next to everything else."""
TURNED, COPIED = 0.65, 0.2
"""Cycles of an element of the image that is kept channel-last, where pixels are contiguous and where channels are."""
SCATTERED, WRITTEN = 0.9, 0.3
"""Cycles of an element of the result that is written along pixels, and along channels as registers have it."""
TAPS = 288
"""Taps of an output channel that a block transforms, of 32 input channels where filters have 3 x 3: of 16 output
channels they stay in the first-level cache.
"""
FILTER, FAR_FILTER = 0.16, 0.45
"""Cycles of a byte of a filter that is read and of a transformed one that is written, in caches and beyond."""
CACHED = 4 << 20
"""Bytes of both that stay in caches."""
LONGEST_PANEL, USUAL_PANEL = 56, 16
"""Tiles of a panel of whole rows, of which register tiles are equal parts; and of parts of a row, whose places stay in
the first-level cache.
"""
TRANSFORMED = 1.6
"""Cycles of an element of the transformed image, for tiles of four outputs and filters of three."""
LOADED = 0.8
"""Cycles of a load of a vector of 64 bytes, or of a number for all its lanes."""
WRITTEN_CYCLES = 1.0
"""Cycles of an element of the transformed image that is written by one kernel and read by another."""


def admissible(shape: Conv) -> list[int]:
    """The tile sizes of Winograd's algorithm that apply, and whose error bound the convolution allows."""
    square = shape.r == shape.s and shape.stride == shape.dilation == 1 and shape.dtype == "float32"
    return allowed_tiles(shape.r, shape.max_error) if square and min(shape.c, shape.k) >= 8 else []


def cpu_template(shape: Conv) -> Template:
    """The template of a convolution that has admissible tiles."""
    return Template(
        lambda s, c: cpu_winograd(s, shape.on(s.target), **c),
        lambda target: space(shape.on(target)), ("cpu",), approximate=True,
    )  # fmt: skip


def cpu_winograd(
    s: BaseSchedule, shape: Conv, *, m: int, tb: int, panels: int, vectors: int, image: str, cb: int, tile: int,
    unroll_c: int, fetch: int,
) -> BaseSchedule:  # fmt: skip
    """Kernels: the filters, the image unless each block transforms its own, and the products with their way back.

    ``tb`` rows of tiles of ``m`` outputs, and ``panels`` of ``vectors`` of output channels, of a block; where the
    transformed ``image`` is kept: of a "block" in its memory, or by a "kernel"; ``cb`` channels of it at a time;
    ``tile`` tiles of a register tile; ``unroll_c``; ``fetch`` the next panel of filters while one is used
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
    """Tiles of a panel: whole rows of them, or an equal part of a long row that has one of a usual size."""
    wide = -(-shape.q // m)
    if wide <= LONGEST_PANEL:
        return wide * max(n for n in range(1, tb + 1) if tb % n == 0 and (n == 1 or n * wide <= LONGEST_PANEL))
    return next((n for n in range(USUAL_PANEL, SIDE - 1, -1) if wide % n == 0), wide)


def _filters(s: BaseSchedule, shape: Conv, width: int) -> None:
    """Vectors of output channels, of taps that are turned from rows of the filter; a row of places at a time, so that
    each is written in long runs.
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
    """Vectors of the last axis, the three before it written out."""
    s.reorder(*(f"{stage}.{x}" for x in order))
    for x in order[-4:-1]:
        s.unroll(f"{stage}.{x}")
    s.vectorize(f"{stage}.{order[-1]}")


def _image(s: BaseSchedule, shape: Conv, m: int, channels: int, panel: int, blocks: bool) -> None:
    """Tiles in vectors of channels, of which panels are turned into vectors of tiles; ``channels`` at a time.

    blocks: share them out, as a kernel of its own
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
    """The padded image in block memory, made in each iteration of ``at`` in vectors of channels: as stored (NHWC), or
    turned from vectors of pixels where those are contiguous (NCHW).

    extent: pixels of a row, of which those in ``range(*image)`` are in the image
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
    """Cuts of the loop over groups of pixels: each that reaches beyond the image is a part of its own, since what
    its lanes read has to be known one by one.
    """
    starts = [min(x, extent - SIDE) for x in range(0, extent, SIDE)]
    inner = [image[0] <= x and x + SIDE <= image[1] for x in starts]
    return [t for t in range(1, len(starts)) if not (inner[t] and inner[t - 1])]


def _cut(s: BaseSchedule, loop: str, points: Sequence[int]) -> None:
    """A loop in parts that begin at ``points``, if there are any."""
    if points:
        s.partition(loop, list(points))


def _products(s: BaseSchedule, at: Any, width: int, panel: int, tile: int) -> None:
    """The sums of products in register tiles of ``tile`` tiles, which do not go beyond a panel of them."""
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
    """Times of an element in the transforms there and back, by their operations, over those of tiles of four
    outputs by filters of three, for which what they take was measured.
    """

    def each(m: int, r: int) -> tuple[float, float]:
        a = m + r - 1
        back, _, there = (sum(1 for row in x for v in row if v) for x in matrices(m, r))
        return 2 * there / a, back * (a + m) / a**2

    (there, back), usual = each(m, r), each(4, 3)
    return there / usual[0], back / usual[1]


def filters(shape: Conv, m: int) -> float:
    """Cycles of all cores for the kernel that transforms filters."""
    moved = 4 * shape.c * -(-shape.k // PANEL) * PANEL * (shape.taps + (m + shape.r - 1) ** 2)
    return shared(moved * (FILTER if moved <= CACHED else FAR_FILTER))


def space(shape: Conv) -> Space:
    """Tiles of outputs, blocks and register tiles that are worth a try."""
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
            "fits": lambda v: _Blocks(shape, v).bytes <= min(BLOCK_BYTES, room(shape)),
        },
        lambda v: _Blocks(shape, v).cost,
        ("unroll_c",),
    )


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a configuration: their memory and their cycles."""

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
        """Pixels of the image that a panel takes of a channel."""
        rows = max(1, self.panel // self.wide)
        return (rows * self.m + self.shape.r - 1) * (min(self.panel, self.wide) * self.m + self.shape.r - 1)

    def places(self, channels: int) -> int:
        """Bytes of so many channels of a block's transformed tiles."""
        return 4 * self.a**2 * self.tiles * channels

    @cached_property
    def bytes(self) -> int:
        """Memory of the larger block."""
        products, strip = self.places(self.channels), 4 * self.strip * int(self.config["cb"])
        if self.config["image"] == "block":
            return products + self.places(self.shape.c) + strip
        return max(products, strip)

    @cached_property
    def cost(self) -> float:
        """Cycles of all cores."""
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
        """Cycles of a panel of output channels, with the way back."""
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
    """Cycles of one step of the reduction for some tiles by so many vectors of output channels: of adding, or of
    loading both operands.
    """
    adding = SHARED_RATE if shape.vector_bytes >= 64 else 0.5
    near = SECOND_CACHE_STEP if shape.c * vectors * shape.vector_bytes > FIRST_CACHE_BYTES // 2 else FIRST_CACHE_STEP

    def step(tiles: int) -> float:
        sums = tiles * vectors
        spilled = SPILLED if sums * unroll > MOST_WRITTEN else 0.0
        waited = DELAY * max(0, SUMS - sums) + near * vectors
        return max(adding * sums, LOADED * (tiles + vectors)) + spilled * sums + waited

    return step
