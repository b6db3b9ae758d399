"""The CPU schedule of Winograd's algorithm (``algorithms.winograd``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorir.ir.words import SIDES
from tensorir.ops.common import Config, last_stage, unroll_by
from tensorir.ops.images import is_turned, write_channels
from tensorir.ops.model import PANEL
from tensorir.ops.problems import Conv
from tensorir.ops.strips import strip

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule


def cpu_winograd(s: Schedule, c: Config, shape: Conv) -> Schedule:
    """Kernels: the weights, the input transform, and per panel of 16 channels the products with their way back.

    c: m; rows of tiles a block (``tb``); panels a block (``panels``); channels of an input block (``cb``);
    tiles of a register tile (``tile``); ``unroll_c``
    """
    m, width = c["m"], shape.vector_lanes
    s.redeclare("winograd", tile=m, panel=PANEL)
    _weights(s, shape.prepack)
    _input(s, c, shape, width)
    out = last_stage(s, "y")
    p0, p1 = s.split(f"{out}.p", [None, m])
    q0, q1 = s.split(f"{out}.q", [None, m])
    pb, pt = s.split(p0, [None, c["tb"]])
    kb, kp, kh, kl = s.split(f"{out}.k", [None, c["panels"], PANEL // width, width])
    s.reorder(f"{out}.n", pb, kb, kp, pt, q0, kh, p1, q1, kl)
    s.bind(f"{out}.n", "block.z").bind(pb, "block.y").bind(kb, "block.x")
    s.compute_at("Y", kh)
    s.compute_at("Z", kh)
    for stage, order in (("Z", ("t", "b", "i", "u", "k")), ("Y", ("t", "i", "j", "v", "k"))):
        s.reorder(*(f"{stage}.{x}" for x in order))
        for x in order[1:4]:
            s.unroll(f"{stage}.{x}")
        s.vectorize(f"{stage}.k")
    s.unroll(p1)
    if is_turned(shape, m) and m in SIDES:
        s.partition(q0, [shape.q // m])  # what is beyond the image is left out one by one
        s.reorder(kl, q1)
        s.unroll(kl).vectorize(q1)
    else:
        s.unroll(q1)
        write_channels(s, kl, shape)
    _products(s, c, kp, width)
    return s


def _weights(s: Schedule, ahead: bool) -> None:
    s.compute_at("U64", s.split("U.ki", [None, PANEL])[0])
    s.bind("U.ko", "block.x")
    if ahead:
        s.run_once("U")


def _input(s: Schedule, c: Config, shape: Conv, width: int) -> None:
    columns = -(-shape.q // c["m"])
    s.stage_out("V", "root", "register")
    tb, tw = s.split("V.out.t", [None, columns])
    cb, cl, lanes = s.split("V.out.c", [None, c["cb"] // width, width])
    s.reorder(tb, cb, tw, cl, "V.out.u", "V.out.v", lanes)
    s.bind(tb, "block.y").bind(cb, "block.x")
    s.compute_at("V", cl)
    s.compute_at("T", cl)
    for stage, order in (("T", ("t", "b", "u", "y", "c")), ("V", ("t", "u", "v", "x", "c"))):
        s.reorder(*(f"{stage}.{x}" for x in order))
        for x in order[1:4]:
            s.unroll(f"{stage}.{x}")
        s.vectorize(f"{stage}.c")
    s.unroll("V.out.u").unroll("V.out.v").vectorize(lanes)
    pad, extent = shape.pad, columns * c["m"] + shape.r - 1
    strip(s, "x_pad", cb, shape, "w", extent, (pad, pad + shape.w))


def _products(s: Schedule, c: Config, panel: Any, width: int) -> None:
    s.set_scope("M", "shared")
    s.compute_at("M", panel)
    t0, t1 = s.split("M.t", [None, c["tile"]], tail="balanced")
    half, lanes = s.split("M.k", [None, width])
    s.reorder("M.u", "M.v", t0, "M.c", t1, half, lanes)
    s.stage_out("M", t0, "register")
    s.unroll(t1).unroll(half).vectorize(lanes)
    unroll_by(s, "M.c", c["unroll_c"])
    half, lanes = s.split("M.out.k", [None, width])
    s.unroll("M.out.t").unroll(half).vectorize(lanes)
    if c["fetch"]:
        s.prefetch("U", at="M.c", ahead="M.v")
