"""1x1 convolution on CPUs: a matrix product over all pixels that the stride keeps, rows joined.

Output channels in the lanes, weights in panels of 16; or, where an image's pixels are contiguous (NCHW), pixels
in the lanes, read in place or as a panel in block memory, and one weight after another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorir.ops.common import Config, out_stage, unroll_by
from tensorir.ops.direct import fetch_next, pack_apart, pack_at
from tensorir.ops.images import write_tile
from tensorir.ops.model import PANEL
from tensorir.ops.problems import Conv
from tensorir.ops.strips import strip
from tensorir.ops.views import sums_axes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule


def view(s: Schedule, c: Config, shape: Conv) -> None:
    """Walk the sums as a product over the pixels that the stride keeps: (n, i, k), or (n, k, i) with pixels in the
    lanes.

    Where they are not read in place, pixels are x_packed (n, i, c) or (n, c, i), and weights w_packed (k/16, c, k%16)
    """
    kept, pixels = ("n, k, i", "n, c, i") if c["lanes"] == "pixels" else ("n, i, k", "n, i, c")
    axes = f"{kept.replace('i', 'i = (p, q)')}, c = (c, r, s)"
    packs = {"x": pixels} if c["stage_x"] else {}
    if c["pack"] != "none":
        packs["w"] = f"ko = k/{PANEL}, c, ki = k%{PANEL}"
    pad = {"k": PANEL} if "w" in packs else None
    s.reindex("y", f"{sums_axes(shape)} -> {axes}", pad, packs, dtype=shape.wide, writes=kept)


def cpu_pixels(s: Schedule, c: Config, shape: Conv) -> Schedule:
    """c: what the lanes hold; ``block`` pixels and ``panels`` of 16 channels of a block; the register tile's other side
    (``tile``); ``stage_x`` pixels in block memory, each with ``pad_c`` spare channels; ``unroll_c``; ``pack`` as in
    ``direct``, or "none": read in place
    """
    view(s, c, shape)
    out, width = out_stage(s, "y"), shape.vector_lanes
    if c["pack"] != "none":
        pack_apart(s, c, width)
    if c["lanes"] == "pixels":
        return _pixel_lanes(s, c, out, width)
    ib, i = s.split(s.fuse(f"{out}.p", f"{out}.q", name="pixel"), [None, c["block"]])
    i0, i1 = s.split(i, [None, c["tile"]], tail="balanced")
    kb, kp, kh, kl = s.split(f"{out}.k", [None, c["panels"], PANEL // width, width])
    s.reorder(f"{out}.n", ib, kb, kp, i0, i1, kh, kl)
    s.bind(f"{out}.n", "block.z").bind(ib, "block.y").bind(kb, "block.x")
    s.compute_at("y", kb)
    if c["stage_x"]:  # before tiles of two sizes are cut: a block takes no more pixels than its own
        even = shape.stride == 1 and shape.p * shape.q % c["block"] == 0
        strip(s, "x_packed", kb, shape, "i", c["block"], (0, c["block"]), c["pad_c"], even)
    s.compute_at("y", i0)
    if c["pack"] == "block":
        pack_at(s, kp, width)
    half, lanes = s.split("y.k", [None, width])
    s.reorder("y.n", "y.c", "y.i", half, lanes)
    s.unroll("y.i").unroll(half).vectorize(lanes)
    s.unroll(kh)
    write_tile(s, i1, kh, kl, shape, c["block"], c["tile"])
    fetch_next(s, c, kp)
    return unroll_by(s, "y.c", c["unroll_c"])


def _pixel_lanes(s: Schedule, c: Config, out: str, width: int) -> Schedule:
    pixels = s.fuse(f"{out}.p", f"{out}.q", name="pixel")
    ib, i = s.split(pixels, [None, c["block"]], tail="shift")
    ip, ih, il = s.split(i, [None, PANEL // width, width])
    kb, kp, k = s.split(f"{out}.k", [None, c["panels"], PANEL])
    k0, k1 = s.split(k, [None, c["tile"]], tail="balanced")
    packs = c["pack"] == "block"
    s.reorder(f"{out}.n", ib, kb, *((kp, ip) if packs else (ip, kp)), k0, k1, ih, il)
    s.bind(f"{out}.n", "block.z").bind(ib, "block.x").bind(kb, "block.y")
    s.compute_at("y", k0)
    if packs:
        pack_at(s, kp, width)
    half, lanes = s.split("y.i", [None, width])
    s.reorder("y.n", "y.c", "y.k", half, lanes)
    s.unroll("y.k").unroll(half).vectorize(lanes)
    s.unroll(k1).unroll(ih).vectorize(il)
    if c["stage_x"]:
        s.set_scope("x_packed", "shared")
        s.compute_at("x_packed", kb)
        _, lane = s.split("x_packed.i", [None, width])
        s.vectorize(lane)
    fetch_next(s, c, kp)
    return unroll_by(s, "y.c", c["unroll_c"])
