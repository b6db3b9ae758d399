"""Depthwise convolution on GPUs: what counts is that every pixel is read about once, in whole sectors.

A thread makes a small tile of pixels, of as many channels as 16 bytes hold where these lie side by side (NHWC of 32-bit
types). What it reads, it reads into registers first. In NCHW neighbouring threads take neighbouring pixels, which share
most of what they read: a block copies the rows of its tile to shared memory. So it does with narrow types, of which a
thread has what a word of shared memory holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tensorir.api.workload import Template
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Expr
from tensorir.ops.common import Config, last_stage
from tensorir.ops.images import Shape, declaring, result, widened

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

MOST_TAPS = 49
"""Taps that are written out."""
THREADS = (64, 128, 256)
"""Of a block."""
FEW = 1024
"""Elements of an image of the result that may be left to smaller blocks."""
REGISTERS = 96
"""Of a thread, for what it reads and what it makes."""
ROOM = 48 * 1024
"""Shared memory of a block that any device has."""
LANES = 128
"""Channels of a block that turns the filters."""


def depthwise_template(operands: Mapping[str, Tensor | None], shape: Shape) -> dict[str, Template]:
    """The template, where each channel has a filter of its own."""
    if shape["c"] == 1 or not shape["groups"] == shape["c"] == shape["k"] or shape["r"] * shape["s"] > MOST_TAPS:
        return {}
    function = declaring(operands, shape, conv2d, gpu_depthwise)
    return {"gpu_depthwise": Template(function, lambda t: space(shape, t), ("gpu",))}


def conv2d(x: Tensor, w: Tensor, shape: Shape) -> Tensor:
    """``nn.conv2d`` with a filter for each channel.

    Intermediates: padded, as x;  NHWC: taps (r, s, c);  sums, as the result
    """
    nchw, pad, stride, dilation = shape["layout"] == "NCHW", shape["pad"], shape["stride"], shape["dilation"]
    n, c, h, v = (shape[name] for name in "nchw")
    size = (n, c, h + 2 * pad, v + 2 * pad) if nchw else (n, h + 2 * pad, v + 2 * pad, c)

    def pixel(*at: Expr) -> Expr:
        i = list(at)
        for d in (2, 3) if nchw else (1, 2):
            i[d] = i[d] - pad
        return x.get(*i, fill=0)

    image = compute(size, pixel, "padded", axes=tuple("nchw" if nchw else "nhwc")) if pad else x
    taps = None if nchw else compute((shape["r"], shape["s"], c), lambda r, s, c: w[c, r, s, 0], "taps")
    rr, rs = reduce_axis(shape["r"], "r"), reduce_axis(shape["s"], "s")

    def product(n: Expr, c: Expr, p: Expr, q: Expr) -> Expr:
        row, column = p * stride + rr * dilation, q * stride + rs * dilation
        read = image[(n, c, row, column) if nchw else (n, row, column, c)]
        return total(widened(read) * widened(w[c, 0, rr, rs] if taps is None else taps[rr, rs, c]), axis=(rr, rs))

    p, q = shape["p"], shape["q"]
    if nchw:
        sums = compute((n, c, p, q), product, "sums", axes=tuple("nkpq"))
        return result(shape, lambda n, k, p, q: sums[n, k, p, q])
    sums = compute((n, p, q, c), lambda n, p, q, c: product(n, c, p, q), "sums", axes=tuple("npqk"))
    return result(shape, lambda n, k, p, q: sums[n, p, q, k])


def gpu_depthwise(s: Schedule, c: Config, shape: Shape) -> Schedule:
    """c: a block has ``tk`` x ``tp`` x ``tq`` threads along channels, rows and columns, each of which makes ``rp`` x
    ``rq`` pixels of ``vec`` channels
    """
    nchw, vector, image = shape["layout"] == "NCHW", c["vec"], "padded" if shape["pad"] else "x"
    out = last_stage(s, "y")
    kb, kt, kl = s.split(f"{out}.k", [None, c["tk"], vector])
    pb, pt, pl = s.split(f"{out}.p", [None, c["tp"], c["rp"]])
    qb, qt, ql = s.split(f"{out}.q", [None, c["tq"], c["rq"]])
    across, along = ((kt, pt), qt) if nchw else ((pt, qt), kt)
    blocks = (f"{out}.n", kb, pb, qb) if nchw else (f"{out}.n", pb, qb, kb)
    s.reorder(*blocks, *across, along, kl, pl, ql) if nchw else s.reorder(*blocks, *across, along, pl, ql, kl)
    block = s.fuse(*blocks, name="block")
    s.bind(block, "block.x").bind(s.fuse(*across, name="across"), "thread.y").bind(along, "thread.x")
    s.compute_at("sums", along)
    s.reorder(*(f"sums.{x}" for x in ("n", "r", "s", "p", "q", "k")))
    for x in ("r", "s", "p", "q", "k"):
        s.unroll(f"sums.{x}")
    s.unroll(pl).unroll(ql)
    lanes = vector if vector > 1 else None
    if through_shared(shape):
        s.stage_in(image, at=block, scope="shared", vector=_copied(c, shape))
    else:
        s.stage_in(image, at=along, scope="register", vector=lanes)
    if not nchw:
        s.stage_in("taps", at="sums.s", scope="register", vector=lanes)
        if vector > 1:
            s.vectorize(kl)
        _turn(s, shape)
    if shape["pad"]:
        s.compute_inline("padded")
    return s


def _turn(s: Schedule, shape: Shape) -> None:
    """The filters by a kernel of their own, once where they are constants: channels side by side."""
    rows, lane = s.split("taps.c", [None, LANES])
    s.reorder(rows, lane, "taps.r", "taps.s")
    s.bind(rows, "block.x").bind(lane, "thread.x")
    if shape["prepack"]:
        s.run_once("taps")


def through_shared(shape: Shape) -> bool:
    """Whether a block copies its tile to shared memory."""
    return bool(shape["layout"] == "NCHW" or _size(shape) < 4)


def _size(shape: Shape) -> int:
    """Bytes of an element."""
    return DTYPES[shape["dtype"]].bits // 8


def together(shape: Shape) -> list[int]:
    """Channels that a thread may have: those that lie side by side, in 16 bytes or in a word of shared memory."""
    if shape["layout"] == "NCHW":
        return [1]
    most = (4 if through_shared(shape) else 16) // _size(shape)
    return [n for n in (4, 2, 1) if n <= most and shape["c"] % n == 0]


def _copied(c: Config, shape: Shape) -> int | None:
    """Elements that a thread copies at once: 16 bytes of whole rows of channels, where there are such."""
    if shape["layout"] == "NCHW":
        return None
    row = c["tk"] * c["vec"]
    sizes = (16 // _size(shape) >> n for n in range(4))
    return next((n for n in sizes if n > 1 and row % n == 0 and shape["c"] % n == 0), None)


def _read(shape: Shape, rows: int, columns: int) -> int:
    """Pixels that so many outputs read."""
    sides = zip((rows, columns), (shape["r"], shape["s"]), strict=True)
    return math.prod((n - 1) * shape["stride"] + (taps - 1) * shape["dilation"] + 1 for n, taps in sides)


def space(shape: Shape, target: Target) -> Space:
    """The tiles whose registers and shared memory are there, in blocks without many idle threads."""
    from tensorir.tune.space import Space

    nchw = shape["layout"] == "NCHW"

    def threads(c: Config) -> bool:
        many = c["tk"] * c["tp"] * c["tq"]
        return many in THREADS or (many < min(THREADS) and shape["k"] * shape["p"] * shape["q"] <= FEW)

    def sensible(c: Config) -> bool:
        return all(tile == 1 or tile < 2 * extent for tile, extent in _sides(c, shape))

    def registers(c: Config) -> bool:
        read = 0 if through_shared(shape) else _read(shape, c["rp"], c["rq"]) * c["vec"]
        return bool(read + c["rp"] * c["rq"] * c["vec"] <= REGISTERS)

    def shared(c: Config) -> bool:
        tile = _read(shape, c["tp"] * c["rp"], c["tq"] * c["rq"]) * c["tk"] * c["vec"] * _size(shape)
        return bool(not through_shared(shape) or tile <= min(ROOM, target.shared_bytes))

    knobs = dict(tk=[1, 2, 4, 8, 16, 32, 64], tp=[1, 2, 4, 8, 16], tq=[1, 2, 4, 8, 16, 32], rp=[1, 2, 4],
                 rq=[1, 2, 4] if nchw else [1, 2], vec=together(shape))  # fmt: skip
    where = {"threads": threads, "sensible": sensible, "registers": registers, "shared": shared}
    every = (dict(zip(knobs, v, strict=True)) for v in itertools.product(*knobs.values()))
    legal = [c for c in every if all(test(c) for test in where.values())]
    return Space(where=where, default=min(legal, key=lambda c: _waste(c, shape), default=None), **knobs)


def _sides(c: Config, shape: Shape) -> tuple[tuple[int, int], ...]:
    """A block's tile and the result: vectors of channels, rows and columns."""
    channels = c["tk"], -(-shape["k"] // c["vec"])
    return channels, (c["tp"] * c["rp"], shape["p"]), (c["tq"] * c["rq"], shape["q"])


def _waste(c: Config, shape: Shape) -> tuple[float, ...]:
    """What is bad about a tile: neighbours of a warp that do not lie side by side, pixels that are read again or made
    for nothing, narrow vectors, blocks of few or many threads.
    """
    sides, size = _sides(c, shape), _size(shape)
    (_, (high, _), (wide, _)), row = sides, c["tk"] * c["vec"] * size
    apart = 32 / c["tq"] if shape["layout"] == "NCHW" else max(1.0, min(128, shape["c"] * size) / row)
    made = math.prod(-(-extent // tile) * tile / extent for tile, extent in sides)
    read = _read(shape, high, wide) / (high * wide * shape["stride"] ** 2)
    narrow = max(together(shape)) / c["vec"]
    return (made * (read + 1) * (1 + math.log2(apart) / 4) * (1 + math.log2(narrow) / 4),
            abs(c["tk"] * c["tp"] * c["tq"] - 128), -c["rp"] * c["rq"])  # fmt: skip
