"""Winograd's algorithm (``algorithms.winograd``) on CPUs: where it applies, its schedule and its space."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tensorir.algorithms.winograd import SIZES, error_bound, matrices
from tensorir.engines.model import (
    BLOCK,
    BLOCK_BYTES,
    PANEL,
    counts,
    in_balanced_tiles,
    panel_step,
    priced,
    shared,
    space_of,
    tile_sizes,
)
from tensorir.engines.packing import SIDE, turned
from tensorir.engines.problems import Conv
from tensorir.engines.steps import divisor_near, last_stage, unroll_by
from tensorir.engines.tiles import Config
from tensorir.ir.words import SIDES
from tensorir.ops.images import UNROLLS, fetches, is_turned, staged, strip, write_channels, written

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.tune.space import Space

TAPS = 288
"""Taps of an output channel that a block transforms, of 32 input channels where filters have 3 x 3: of 16 output
channels they stay in the first-level cache.
"""
FILTER, FAR = 0.16, 0.45
"""Cycles of a byte of a filter that is read and of a transformed one that is written, in caches and beyond."""
CACHED = 4 << 20
"""Bytes of both that stay in caches."""
TRANSFORMED = 2.1
"""Cycles of an element of the transformed image, for tiles of four outputs and filters of three."""


def admissible(shape: Conv) -> list[int]:
    """The tile sizes of Winograd's algorithm that apply, and whose error bound the convolution allows."""
    square = shape.r == shape.s and shape.stride == shape.dilation == 1 and shape.dtype == "float32"
    if not square or shape.r not in (3, 5) or min(shape.c, shape.k) < 8:
        return []
    return [m for m in SIZES[shape.r] if error_bound(m, shape.r) <= shape.max_error]


def cpu_winograd(
    s: Schedule, shape: Conv, *, m: int, tb: int, panels: int, cb: int, tile: int, unroll_c: int, fetch: int
) -> Schedule:
    """Kernels: the weights, the input transform, and per panel of 16 channels the products with their way back.

    ``tb`` rows of tiles of ``m`` outputs, and ``panels``, of a block; ``cb`` channels of an input block;
    ``tile`` tiles of a register tile; ``unroll_c``; ``fetch`` as in ``direct``
    """
    width = shape.vector_lanes
    s.redeclare("winograd", tile=m, panel=PANEL)
    _filters(s, shape, width)
    if shape.prepack:
        s.run_once("U")
    _input(s, shape, m, cb, width)
    out = last_stage(s, "y")
    p0, p1 = s.split(f"{out}.p", [None, m])
    q0, q1 = s.split(f"{out}.q", [None, m])
    pb, pt = s.split(p0, [None, tb])
    kb, kp, kh, kl = s.split(f"{out}.k", [None, panels, PANEL // width, width])
    s.reorder(f"{out}.n", pb, kb, kp, pt, q0, kh, p1, q1, kl)
    s.bind(f"{out}.n", "block.z").bind(pb, "block.y").bind(kb, "block.x")
    s.compute_at("Y", kh)
    s.compute_at("Z", kh)
    _transform(s, "Z", "tbiuk")
    _transform(s, "Y", "tijvk")
    s.unroll(p1)
    if is_turned(shape, m) and m in SIDES:
        s.partition(q0, [shape.q // m])  # what is beyond the image is left out one by one
        s.reorder(kl, q1)
        s.unroll(kl).vectorize(q1)
    else:
        s.unroll(q1)
        write_channels(s, kl, shape)
    return _products(s, kp, width, tile, unroll_c, fetch)


def _filters(s: Schedule, shape: Conv, width: int) -> None:
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


def _transform(s: Schedule, stage: str, order: Sequence[str]) -> None:
    """Vectors of the last axis, the three before it written out."""
    s.reorder(*(f"{stage}.{x}" for x in order))
    for x in order[-4:-1]:
        s.unroll(f"{stage}.{x}")
    s.vectorize(f"{stage}.{order[-1]}")


def _input(s: Schedule, shape: Conv, m: int, channels: int, width: int) -> None:
    columns = -(-shape.q // m)
    s.stage_out("V", "root", "register")
    tb, tw = s.split("V.out.t", [None, columns])
    cb, cl, lanes = s.split("V.out.c", [None, channels // width, width])
    s.reorder(tb, cb, tw, cl, "V.out.u", "V.out.v", lanes)
    s.bind(tb, "block.y").bind(cb, "block.x")
    s.compute_at("V", cl)
    s.compute_at("T", cl)
    _transform(s, "T", "tbuyc")
    _transform(s, "V", "tuvxc")
    s.unroll("V.out.u").unroll("V.out.v").vectorize(lanes)
    strip(s, "x_pad", cb, shape, "w", columns * m + shape.r - 1, (shape.pad, shape.pad + shape.w))


def _products(s: Schedule, panel: Any, width: int, tile: int, unroll_c: int, fetch: int) -> Schedule:
    s.set_scope("M", "shared")
    s.compute_at("M", panel)
    t0, t1 = s.split("M.t", [None, tile], tail="balanced")
    half, lanes = s.split("M.k", [None, width])
    s.reorder("M.u", "M.v", t0, "M.c", t1, half, lanes)
    s.stage_out("M", t0, "register")
    s.unroll(t1).unroll(half).vectorize(lanes)
    unroll_by(s, "M.c", unroll_c)
    half, lanes = s.split("M.out.k", [None, width])
    s.unroll("M.out.t").unroll(half).vectorize(lanes)
    return s.prefetch("U", at="M.c", ahead="M.v") if fetch else s


@cache
def transforms(m: int, r: int) -> tuple[float, float]:
    """How long an element takes of the transforms there and back, by their operations, over those of tiles of four
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
    return shared(moved * (FILTER if moved <= CACHED else FAR))


def space(shape: Conv) -> Space:
    """Tiles of outputs, blocks and register tiles that are worth a try."""
    p, q, c, r = shape.p, shape.q, shape.c, shape.r
    panels, sizes, lanes = -(-shape.k // PANEL), admissible(shape), shape.vector_lanes
    knobs: dict[str, list[Any]] = dict(
        m=sizes,
        tb=sorted({v for m in sizes for v in counts(-(-p // m), 8)}),
        panels=counts(panels, panels),
        cb=sorted({min(v, -(-c // lanes) * lanes) for v in (16, 32, 64, 128)}, reverse=True),
        tile=[v for v in tile_sizes(shape, 2 * PANEL) if v >= 6] or tile_sizes(shape, PANEL)[:1],
        unroll_c=UNROLLS,
        fetch=fetches(shape, 36),
    )

    def kept(v: Config) -> int:
        """Bytes of a block's products."""
        return int(4 * (v["m"] + r - 1) ** 2 * v["tb"] * -(-q // v["m"]) * PANEL)

    def cost(v: Config) -> float:
        high, wide, a2 = -(-p // v["m"]), -(-q // v["m"]), (v["m"] + r - 1) ** 2
        blocks, inputs = shape.n * (high // v["tb"]) * -(-panels // v["panels"]), shape.n * high * -(-c // v["cb"])
        weights = a2 * c * PANEL * 4
        # bytes of weights a cycle, cycles an element on the way back: both measured, on cores of two generations
        if shape.vector_bytes >= 64:
            rate, slow = 200 if v["fetch"] else 16, 8
        else:
            rate, slow = 32 if weights * panels <= 1 << 20 else 16, 8 if kept(v) <= 64 * 1024 else 16
        rate = rate if weights * panels <= 16 << 20 else 6
        step = panel_step(shape, 4 * c, v["unroll_c"], c)
        there, ways = transforms(v["m"], r)
        tiles = v["tb"] * wide
        block = in_balanced_tiles(tiles, v["tile"], step) * a2 * c + weights / rate
        block += tiles * (a2 * slow * ways + v["m"] ** 2 * PANEL * written(shape))
        strip = (v["m"] + r - 1) * (wide * v["m"] + r - 1) * staged(shape)
        image = c * high * shape.n * (wide * a2 * TRANSFORMED * there + strip) / inputs
        cycles = shared(priced(BLOCK + v["panels"] * block, blocks)) + shared(priced(BLOCK + image, inputs))
        return cycles + (0.0 if shape.prepack else filters(shape, v["m"]))

    return space_of(
        knobs,
        {
            "rows": lambda v: v["tb"] <= -(-p // v["m"]) and -(-p // v["m"]) % v["tb"] == 0,
            "fits": lambda v: (
                kept(v) <= BLOCK_BYTES
                and 4 * (v["m"] + r - 1) * (-(-q // v["m"]) * v["m"] + r - 1) * v["cb"] <= BLOCK_BYTES
            ),
        },
        cost,
        ("unroll_c",),
    )
