"""Depthwise convolution on GPUs: what counts is that every pixel is read about once, in whole sectors.

A thread makes a small tile of pixels, of as many channels as 16 bytes hold where these are contiguous (NHWC of 32-bit
types). What it reads, it reads into registers first. In NCHW neighbouring threads take neighbouring pixels, which share
most of what they read: a block copies the rows of its tile to shared memory. So it does with narrow types, of which a
thread has what a word of shared memory holds.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from tensorir.api.workload import Template
from tensorir.ir.dtypes import DTYPES
from tensorir.ops.common import Config, out_stage
from tensorir.ops.problems import Conv
from tensorir.ops.views import image_of, sums_axes

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


def depthwise_template(shape: Conv) -> dict[str, Template]:
    """The template, where each channel has a filter of its own."""
    if shape.c == 1 or not shape.groups == shape.c == shape.k or shape.taps > MOST_TAPS:
        return {}
    return {"gpu_depthwise": Template(lambda s, c: gpu_depthwise(s, c, shape), lambda t: space(shape, t), ("gpu",))}


def gpu_depthwise(s: Schedule, c: Config, shape: Conv) -> Schedule:
    """c: a block has ``tk`` x ``tp`` x ``tq`` threads along channels, rows and columns, each of which makes ``rp`` x
    ``rq`` pixels of ``vec`` channels
    """
    nchw, vector, image = shape.nchw, c["vec"], image_of(shape)
    if not nchw:  # filters whose channels are contiguous
        s.reindex("y", f"{sums_axes(shape)} -> n, p, q, k, r, s, c", reads={"w": "r, s, k"})
    out = out_stage(s, "y")
    kb, kt, kl = s.split(f"{out}.k", [None, c["tk"], vector])
    pb, pt, pl = s.split(f"{out}.p", [None, c["tp"], c["rp"]])
    qb, qt, ql = s.split(f"{out}.q", [None, c["tq"], c["rq"]])
    across, along = ((kt, pt), qt) if nchw else ((pt, qt), kt)
    blocks = (f"{out}.n", kb, pb, qb) if nchw else (f"{out}.n", pb, qb, kb)
    s.reorder(*blocks, *across, along, kl, pl, ql) if nchw else s.reorder(*blocks, *across, along, pl, ql, kl)
    block = s.fuse(*blocks, name="block")
    s.bind(block, "block.x").bind(s.fuse(*across, name="across"), "thread.y").bind(along, "thread.x")
    s.compute_at("y", along)
    s.reorder(*(f"y.{x}" for x in "ncrspqk"))
    for x in "rspqk":
        s.unroll(f"y.{x}")
    s.unroll(pl).unroll(ql)
    lanes = vector if vector > 1 else None
    if through_shared(shape):
        s.stage_in(image, at=block, scope="shared", vector=_copied(c, shape))
    else:
        s.stage_in(image, at=along, scope="register", vector=lanes)
    if not nchw:
        s.stage_in("w_packed", at="y.s", scope="register", vector=lanes)
        if vector > 1:
            s.vectorize(kl)
        _turn(s, shape)
    if shape.pad:
        s.compute_inline(image)
    return s


def _turn(s: Schedule, shape: Conv) -> None:
    """The filters by a kernel of their own, once where they are constants: channels side by side."""
    rows, lane = s.split("w_packed.k", [None, LANES])
    s.reorder(rows, lane, "w_packed.r", "w_packed.s")
    s.bind(rows, "block.x").bind(lane, "thread.x")
    if shape.prepack:
        s.run_once("w_packed")


def through_shared(shape: Conv) -> bool:
    """Whether a block copies its tile to shared memory."""
    return bool(shape.nchw or _size(shape) < 4)


def _size(shape: Conv) -> int:
    """Bytes of an element."""
    return DTYPES[shape.dtype].bits // 8


def together(shape: Conv) -> list[int]:
    """Channels that a thread may have: those that are contiguous, in 16 bytes or in a word of shared memory."""
    if shape.nchw:
        return [1]
    most = (4 if through_shared(shape) else 16) // _size(shape)
    return [n for n in (4, 2, 1) if n <= most and shape.c % n == 0]


def _copied(c: Config, shape: Conv) -> int | None:
    """Elements that a thread copies at once: 16 bytes of whole rows of channels, where there are such."""
    if shape.nchw:
        return None
    row = c["tk"] * c["vec"]
    sizes = (16 // _size(shape) >> n for n in range(4))
    return next((n for n in sizes if n > 1 and row % n == 0 and shape.c % n == 0), None)


def _read(shape: Conv, rows: int, columns: int) -> int:
    """Pixels that so many outputs read."""
    sides = zip((rows, columns), (shape.r, shape.s), strict=True)
    return math.prod((n - 1) * shape.stride + (taps - 1) * shape.dilation + 1 for n, taps in sides)


def space(shape: Conv, target: Target) -> Space:
    """The tiles whose registers and shared memory are there, in blocks without many idle threads."""
    from tensorir.tune.space import Space

    nchw = shape.nchw

    def threads(c: Config) -> bool:
        many = c["tk"] * c["tp"] * c["tq"]
        return many in THREADS or (many < min(THREADS) and shape.k * shape.p * shape.q <= FEW)

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


def _sides(c: Config, shape: Conv) -> tuple[tuple[int, int], ...]:
    """A block's tile and the result: vectors of channels, rows and columns."""
    channels = c["tk"], -(-shape.k // c["vec"])
    return channels, (c["tp"] * c["rp"], shape.p), (c["tq"] * c["rq"], shape.q)


def _waste(c: Config, shape: Conv) -> tuple[float, ...]:
    """What is bad about a tile: neighbours of a warp that are not contiguous, pixels that are read again or made
    for nothing, narrow vectors, blocks of few or many threads.
    """
    sides, size = _sides(c, shape), _size(shape)
    (_, (high, _), (wide, _)), row = sides, c["tk"] * c["vec"] * size
    apart = 32 / c["tq"] if shape.nchw else max(1.0, min(128, shape.c * size) / row)
    made = math.prod(-(-extent // tile) * tile / extent for tile, extent in sides)
    read = _read(shape, high, wide) / (high * wide * shape.stride**2)
    narrow = max(together(shape)) / c["vec"]
    return (made * (read + 1) * (1 + math.log2(apart) / 4) * (1 + math.log2(narrow) / 4),
            abs(c["tk"] * c["tp"] * c["tq"] - 128), -c["rp"] * c["rq"])  # fmt: skip
