"""1x1 convolution on CPUs: a matrix product over all pixels that the stride keeps, rows joined.

Output channels in the lanes, weights in panels of 16; or, where an image's pixels lie one after another (NCHW), pixels
in the lanes, read in place or as a panel in block memory, and one weight after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.tree import Expr
from tensorir.ops.common import Config, last_stage, unroll_by, vector_lanes
from tensorir.ops.direct import fetch_next, pack_apart, pack_at
from tensorir.ops.images import packed, result, widened, write_tile
from tensorir.ops.model import PANEL
from tensorir.ops.strips import strip

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule


def conv2d(x: Tensor, w: Tensor, shape: Mapping[str, Any]) -> Tensor:
    """``nn.conv2d`` of 1x1 filters without padding; equal to it. Pixels that a stride leaves out are not read.

    W (k/16, 1, 1, c, k%16) unless ``pack`` is "none";  lanes "channels": X (n, pixel, c), Y (n, pixel, k);  "pixels":
    X (n, c, pixel), Y (n, k, pixel)
    """
    n, c, k, p, q, stride = (shape[v] for v in ("n", "c", "k", "p", "q", "stride"))
    rc, weights, channels = reduce_axis(c, "c"), packed(w, shape), -(-k // PANEL) * PANEL

    def weight(k: Expr) -> Expr:
        return widened(w[k, rc, 0, 0]) if shape.get("pack") == "none" else weights[k // PANEL, 0, 0, rc, k % PANEL]

    def pixel(n: Expr, i: Expr, c: Expr) -> Expr:
        row, col = i // q * stride, i % q * stride
        return widened(x[(n, c, row, col) if shape["layout"] == "NCHW" else (n, row, col, c)])

    if shape["lanes"] == "pixels":
        xs = compute((n, c, p * q), lambda n, c, i: pixel(n, i, c), "X", axes=("n", "c", "i"))
        size = (n, k if shape.get("pack") == "none" else channels, p * q)
        y = compute(size, lambda n, k, i: total(weight(k) * xs[n, rc, i], axis=rc), "Y")
        return result(shape, lambda n, k, p, q_: y[n, k, p * q + q_])
    xs = compute((n, p * q, c), pixel, "X", axes=("n", "i", "c"))
    y = compute((n, p * q, channels), lambda n, i, k: total(xs[n, i, rc] * weight(k), axis=rc), "Y")
    return result(shape, lambda n, k, p, q_: y[n, p * q + q_, k])


def cpu_pixels(s: Schedule, c: Config, shape: Mapping[str, Any]) -> Schedule:
    """c: what the lanes hold; ``block`` pixels and ``panels`` of 16 channels of a block; the register tile's other side
    (``tile``); ``stage_x`` pixels in block memory, each with ``pad_c`` spare channels; ``unroll_c``; ``pack`` as in
    ``direct``, or "none": read in place
    """
    out, width = last_stage(s, "y"), vector_lanes(shape)
    if c["pack"] != "none":
        pack_apart(s, c, width)
    if c["lanes"] == "pixels":
        return _pixel_lanes(s, c, out, width)
    ib, i = s.split(s.fuse(f"{out}.p", f"{out}.q"), [None, c["block"]])
    i0, i1 = s.split(i, [None, c["tile"]], tail="balanced")
    kb, kp, kh, kl = s.split(f"{out}.k", [None, c["panels"], PANEL // width, width])
    s.reorder(f"{out}.n", ib, kb, kp, i0, i1, kh, kl)
    s.bind(f"{out}.n", "block.z").bind(ib, "block.y").bind(kb, "block.x")
    s.compute_at("Y", kb)
    if c["stage_x"]:  # before tiles of two sizes are cut: a block takes no more pixels than its own
        even = shape["stride"] == 1 and shape["p"] * shape["q"] % c["block"] == 0
        strip(s, "X", kb, shape, "i", c["block"], (0, c["block"]), c["pad_c"], even)
    else:
        s.compute_inline("X")
    s.compute_at("Y", i0)
    if c["pack"] == "block":
        pack_at(s, kp, width)
    half, lanes = s.split("Y.k", [None, width])
    s.reorder("Y.n", "Y.c", "Y.i", half, lanes)
    s.unroll("Y.i").unroll(half).vectorize(lanes)
    s.unroll(kh)
    write_tile(s, i1, kh, kl, shape, c["block"], c["tile"])
    fetch_next(s, c, kp)
    return unroll_by(s, "Y.c", c["unroll_c"])


def _pixel_lanes(s: Schedule, c: Config, out: str, width: int) -> Schedule:
    pixels = s.fuse(f"{out}.p", f"{out}.q")
    ib, i = s.split(pixels, [None, c["block"]], tail="shift")
    ip, ih, il = s.split(i, [None, PANEL // width, width])
    kb, kp, k = s.split(f"{out}.k", [None, c["panels"], PANEL])
    k0, k1 = s.split(k, [None, c["tile"]], tail="balanced")
    packs = c["pack"] == "block"
    s.reorder(f"{out}.n", ib, kb, *((kp, ip) if packs else (ip, kp)), k0, k1, ih, il)
    s.bind(f"{out}.n", "block.z").bind(ib, "block.x").bind(kb, "block.y")
    if packs:
        pack_at(s, kp, width)
    s.compute_at("Y", k0)
    half, lanes = s.split("Y.i", [None, width])
    s.reorder("Y.n", "Y.c", "Y.k", half, lanes)
    s.unroll("Y.k").unroll(half).vectorize(lanes)
    s.unroll(k1).unroll(ih).vectorize(il)
    if c["stage_x"]:
        s.set_scope("X", "shared")
        s.compute_at("X", kb)
        _, lane = s.split("X.i", [None, width])
        s.vectorize(lane)
    else:
        s.compute_inline("X")
    fetch_next(s, c, kp)
    return unroll_by(s, "Y.c", c["unroll_c"])
