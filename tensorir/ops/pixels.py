"""1x1 convolution with stride 1 on CPUs: a matrix product over all pixels of an image, rows joined.

NHWC: output channels in the lanes, weights in panels of 16. NCHW: pixels in the lanes, a block's pixels as a panel in
block memory, weights read in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.tree import Expr
from tensorir.ops.common import Config, last_stage
from tensorir.schedule.schedule import Schedule

PANEL = 16
LANES = 8


def conv2d(x: Tensor, w: Tensor, shape: Mapping[str, Any]) -> Tensor:
    """``nn.conv2d`` of 1x1 filters, stride 1, no padding; equal to it.

    Intermediates: NHWC: W (k/16, c, k%16), Y (n, pixel, k);  NCHW: X (n, c, pixel), Y (n, k, pixel)
    """
    n, c, k, p, q = (shape[v] for v in ("n", "c", "k", "p", "q"))
    rc = reduce_axis(c, "c")
    if shape["layout"] == "NCHW":
        flat = compute((n, c, p * q), lambda n, c, i: x[n, c, i // q, i % q], "X", axes=("n", "c", "i"))
        y = compute((n, k, p * q), lambda n, k, i: total(w[k, rc, 0, 0] * flat[n, rc, i], axis=rc), "Y")
        return compute((n, k, p, q), lambda n, k, p, q_: y[n, k, p * q + q_], "y", axes=("n", "k", "p", "q"))  # type: ignore[no-any-return]
    panels = -(-k // PANEL)

    def packed(ko: Expr, c: Expr, ki: Expr) -> Expr:
        o = ko * PANEL + ki
        return w.get(o, 0, 0, c, fill=0) if k % PANEL else w[o, 0, 0, c]

    weights = compute((panels, c, PANEL), packed, "W", axes=("ko", "c", "ki"))

    def sums(n: Expr, i: Expr, k: Expr) -> Expr:
        return total(x[n, i // q, i % q, rc] * weights[k // PANEL, rc, k % PANEL], axis=rc)

    y = compute((n, p * q, panels * PANEL), sums, "Y")
    return compute((n, p, q, k), lambda n, p, q_, k: y[n, p * q + q_, k], "y", axes=("n", "p", "q", "k"))  # type: ignore[no-any-return]


def cpu_pixels(s: Schedule, c: Config, shape: Mapping[str, Any]) -> Schedule:
    """c: ``block`` pixels and ``channels`` of a block; rows of the register tile (``tile``); ``unroll_c``."""
    out = last_stage(s, "y")
    if shape["layout"] == "NCHW":
        return _pixel_lanes(s, c, out)
    s.bind("W.ko", "block.x").vectorize(s.split("W.ki", [None, LANES])[1])
    if shape["prepack"]:
        s.run_once("W")
    ib, i = s.split(s.fuse(f"{out}.p", f"{out}.q"), [None, c["block"]])
    i0, i1 = s.split(i, [None, c["tile"]], tail="balanced")
    kb, kp, kh, kl = s.split(f"{out}.k", [None, c["channels"] // PANEL, PANEL // LANES, LANES])
    s.reorder(f"{out}.n", ib, kb, kp, i0, i1, kh, kl)
    s.bind(f"{out}.n", "block.z").bind(ib, "block.y").bind(kb, "block.x")
    s.compute_at("Y", i0)
    half, lanes = s.split("Y.k", [None, LANES])
    s.reorder("Y.n", "Y.c", "Y.i", half, lanes)
    s.unroll("Y.i").unroll(half).vectorize(lanes)
    s.unroll(i1).unroll(kh).vectorize(kl)
    return _unrolled(s, c)


def _pixel_lanes(s: Schedule, c: Config, out: str) -> Schedule:
    pixels = s.fuse(f"{out}.p", f"{out}.q")
    ib, i = s.split(pixels, [None, c["block"]], tail="shift")
    ip, ih, il = s.split(i, [None, PANEL // LANES, LANES])
    kb, k = s.split(f"{out}.k", [None, c["channels"]])
    k0, k1 = s.split(k, [None, c["tile"]], tail="balanced")
    s.reorder(f"{out}.n", ib, kb, ip, k0, k1, ih, il)
    s.bind(f"{out}.n", "block.z").bind(ib, "block.x").bind(kb, "block.y")
    s.compute_at("Y", k0)
    half, lanes = s.split("Y.i", [None, LANES])
    s.reorder("Y.n", "Y.c", "Y.k", half, lanes)
    s.unroll("Y.k").unroll(half).vectorize(lanes)
    s.unroll(k1).unroll(ih).vectorize(il)
    s.set_scope("X", "shared")
    s.compute_at("X", kb)
    _, lane = s.split("X.i", [None, LANES])
    s.vectorize(lane)
    return _unrolled(s, c)


def _unrolled(s: Schedule, c: Config) -> Schedule:
    if c["unroll_c"] > 1:
        s.annotate("Y.c", "unroll", c["unroll_c"])
    return s
