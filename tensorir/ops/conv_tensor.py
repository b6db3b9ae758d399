"""conv2d on tensor cores: implicit GEMM over NHWC images with stride 1 (CUDA from sm_80 on).

Sixteen pixels of a row are the rows of an instruction's operand: with the channel last, each of them is a run of
channels in shared memory, wherever the filter's tap moves it. So the image is staged once with its halo and read at
every tap; nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir import nn
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.intrin.cuda import MULTIPLICATIONS, Multiplication
from tensorir.ir.tree import Expr
from tensorir.ops.common import Config, out_stage
from tensorir.ops.gemm_tensor import KINDS, load_rows, swizzled, vector_of
from tensorir.ops.images import epilogue

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

PIXELS = 16
"""Pixels of a row that one instruction takes."""


def conv_multiplication(shape: Mapping[str, Any]) -> Multiplication | None:
    """The instructions for a convolution, None where they do not fit it."""
    name = KINDS.get((shape["dtype"], ""))
    fits = shape["layout"] == "NHWC" and shape["groups"] == 1 and shape["stride"] == 1
    return MULTIPLICATIONS[name] if name and fits else None


def declared(operands: Mapping[str, Tensor | None], shape: Mapping[str, Any]) -> Tensor:
    """``nn.conv2d`` with the filter turned to (r, s, k, c): what an instruction multiplies are its last dimensions."""
    x, w, m = operands["x"], operands["w"], conv_multiplication(shape)
    assert x is not None
    assert w is not None
    assert m is not None
    n, k, r, s, p, q, c, dilation = (shape[v] for v in (*"nkrspqc", "dilation"))
    pad = shape["pad"]
    xp = nn.pad2d(x, pad, layout="NHWC", name="x_pad") if pad else x
    turned = compute((r, s, k, c), lambda r, s, k, c: w[k, r, s, c], name="w_turned")
    rr, rs, rc = reduce_axis(r, "r"), reduce_axis(s, "s"), reduce_axis(c, "c")

    def term(n: Expr, p: Expr, q: Expr, k: Expr) -> Expr:
        pixel = xp[n, p + rr * dilation, q + rs * dilation, rc]
        return cast(pixel, m.sums) * cast(turned[rr, rs, k, rc], m.sums)

    y = compute((n, p, q, k), lambda n, p, q, k: total(term(n, p, q, k), axis=(rr, rs, rc)), name="y")
    return epilogue(y, operands, shape)


def gpu_tensor(s: Schedule, c: Config, shape: Mapping[str, Any]) -> Schedule:
    """c: ``wp`` x ``wk`` warps of a block, each with ``rp`` rows of sixteen pixels by ``rk`` channels; ``bc`` input
    channels at a time, ``depth`` of the pipeline of copies
    """
    m = conv_multiplication(shape)
    assert m is not None
    out = out_stage(s, "y", "warp")
    pb, wp, p = s.split(f"{out}.p", [None, c["wp"], c["rp"]])
    qb, q = s.split(f"{out}.q", [None, PIXELS])
    kb, wk, k = s.split(f"{out}.k", [None, c["wk"], c["rk"]])
    s.reorder(f"{out}.n", kb, pb, qb, wp, wk, p, q, k)
    s.bind(f"{out}.n", "block.z").bind(kb, "block.y").bind(s.fuse(pb, qb), "block.x")
    s.bind(wp, "warp.y").bind(wk, "warp.x")
    s.compute_at("y", wk)
    co, ci, cc = s.split("y.c", [None, c["bc"] // m.k, m.k])
    k0, k1 = s.split("y.k", [None, 8])
    q0, q1 = s.split("y.q", [None, PIXELS])
    s.reorder("y.n", co, "y.r", "y.s", ci, "y.p", q0, k0, q1, k1, cc)
    image = "x_pad" if shape["pad"] else "x"
    lanes = vector_of(c["bc"], shape["c"], m)
    z, row = "n, h, ", swizzled(c["bc"], m, "w")
    s.stage_in(image, at=co, scope="shared", vector=lanes, layout=f"{z}w, c -> {z}w, {row.replace('x', 'c')}")
    z, row = "r, s, ", swizzled(c["bc"], m, "k")
    s.stage_in("w_turned", at=co, scope="shared", vector=lanes, layout=f"{z}k, c -> {z}k, {row.replace('x', 'c')}")
    s.compute_inline("w_turned")
    if shape["pad"]:
        s.compute_inline(image)
    for name, operand, order in ((f"{image}_shared", "a", "n"), ("w_turned_shared", "b", "t")):
        load_rows(s, s.stage_in(name, at=ci, scope="warp").name, 2, m, operand, order)
    s.tensorize(q1, f"mma.m16n8k{m.k}.{m.name}.nt")
    s.unroll("y.s").unroll(ci)
    if c["depth"] > 1:
        s.pipeline(co, c["depth"], async_=True)
    return s


def conv_space(shape: Mapping[str, Any], target: Target) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block, whole warps."""
    from tensorir.tune.space import Space

    m = conv_multiplication(shape)
    assert m is not None
    size = 4 // m.word
    halo_p, halo_q = ((shape[v] - 1) * shape["dilation"] for v in "rs")

    def warps(c: Mapping[str, Any]) -> bool:
        return bool(2 <= c["wp"] * c["wk"] <= 8)

    def shared(c: Mapping[str, Any]) -> bool:
        image = (c["wp"] * c["rp"] + halo_p) * (PIXELS + halo_q)
        weights = shape["r"] * shape["s"] * c["wk"] * c["rk"]
        return bool(size * c["depth"] * c["bc"] * (image + weights) <= target.shared_optin_bytes)

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["rp"] * PIXELS * c["rk"] <= 64 * 64)

    def sensible(c: Mapping[str, Any]) -> bool:
        rows, channels = c["wp"] * c["rp"], c["wk"] * c["rk"]
        return bool((rows <= 4 or rows // 2 < shape["p"]) and (channels <= 32 or channels // 2 < shape["k"]))

    knobs = dict(
        wp=[2, 4, 1], wk=[2, 4, 1], rp=[4, 2, 1], rk=[32, 64, 16],
        bc=[n // size for n in (32, 64, 128)], depth=[3, 2, 4, 1],
    )  # fmt: skip
    where = {"warps": warps, "shared": shared, "registers": registers, "sensible": sensible}
    wanted = dict(wp=2, wk=2, rp=4 if shape["p"] > 8 else 2, rk=32, bc=32 // size, depth=3)
    return Space(where=where, default=wanted if all(t(wanted) for t in where.values()) else None, **knobs)
