"""Depthwise convolution on GPUs: what counts is that every pixel is read about once, in whole sectors.

A thread makes a small tile of pixels, of as many channels as 16 bytes hold where these are contiguous (NHWC of 32-bit
types). What it reads, it reads into registers first. In NCHW neighbouring threads take neighbouring pixels, which share
most of what they read: a block copies the rows of its tile to shared memory. So it does with narrow types, of which a
thread has what a word of shared memory holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from tensorir.engines.problems import Conv
from tensorir.engines.steps import out_stage
from tensorir.engines.tiles import Config, Knob, Knobs, Rule, Tile, cheapest
from tensorir.ops.views import image_of, sums_axes, turn_filters
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target

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


class ChannelTile(Tile[Conv]):
    """A block has ``tk`` x ``tp`` x ``tq`` threads along channels, rows and columns, each of which makes ``rp`` x
    ``rq`` pixels of ``vec`` channels.
    """

    tk, tp, tq = Knob(1, 2, 4, 8, 16, 32, 64), Knob(1, 2, 4, 8, 16), Knob(1, 2, 4, 8, 16, 32)
    rp, rq, vec = Knob(1, 2, 4), Knob(1, 2, 4), Knob(4, 2, 1)

    @classmethod
    def needs(cls, p: Conv) -> str | None:
        return "" if p.groups == p.c == p.k > 1 and p.taps <= MOST_TAPS else None

    @classmethod
    def knobs(cls, p: Conv, target: Target) -> Knobs:
        return {**super().knobs(p, target), "rq": [1, 2, 4] if p.nchw else [1, 2], "vec": together(p)}

    @classmethod
    def start(cls, p: Conv, target: Target) -> Config | None:
        return cheapest(cls.knobs(p, target), cls.where(p, target), lambda c: cls(c, p, target).waste)

    def schedule(self, s: Schedule) -> Schedule:
        shape, nchw, vector, image = self.p, self.p.nchw, self.vec, image_of(self.p)
        if not nchw:  # filters whose channels are contiguous
            s.reindex("y", f"{sums_axes(shape)} -> n, p, q, k, r, s, c", reads={"w": "r, s, k"})
        out = out_stage(s, "y")
        kb, kt, kl = s.split(f"{out}.k", [None, self.tk, vector])
        pb, pt, pl = s.split(f"{out}.p", [None, self.tp, self.rp])
        qb, qt, ql = s.split(f"{out}.q", [None, self.tq, self.rq])
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
            s.stage_in(image, at=block, scope="shared", vector=self._copied)
        else:
            s.stage_in(image, at=along, scope="register", vector=lanes)
        if not nchw:
            s.stage_in("w_packed", at="y.s", scope="register", vector=lanes)
            if vector > 1:
                s.vectorize(kl)
            turn_filters(s, shape, 1)
        if shape.pad:
            s.compute_inline(image)
        return s

    @property
    def _copied(self) -> int | None:
        """Elements that a thread copies at once: 16 bytes of whole rows of channels, where there are such."""
        sizes = (16 // self.p.element_bytes >> n for n in range(4))
        fitting = (n for n in sizes if n > 1 and self.tk * self.vec % n == 0 and self.p.c % n == 0)
        return None if self.p.nchw else next(fitting, None)

    @property
    def threads(self) -> int:
        return self.tk * self.tp * self.tq

    @property
    def sides(self) -> tuple[tuple[int, int, int], ...]:
        channels = self.tk, 1, -(-self.p.k // self.vec)
        return channels, (self.tp * self.rp, 1, self.p.p), (self.tq * self.rq, 1, self.p.q)

    def sensible(self) -> bool:
        return all(tile == least or tile < 2 * extent for tile, least, extent in self.sides)

    @property
    def held(self) -> int:
        """Registers of a thread, for what it reads and what it makes."""
        read = 0 if through_shared(self.p) else _read(self.p, self.rp, self.rq) * self.vec
        return read + self.rp * self.rq * self.vec

    @property
    def operand_bytes(self) -> int:
        pixels = _read(self.p, self.tp * self.rp, self.tq * self.rq)
        return pixels * self.tk * self.vec * self.p.element_bytes

    rules: ClassVar[Mapping[str, Rule]] = {
        "threads": lambda t: t.threads in THREADS or (t.threads < min(THREADS) and t.p.k * t.p.p * t.p.q <= FEW),
        "sensible": sensible,
        "registers": lambda t: t.held <= REGISTERS,
        "shared": lambda t: not through_shared(t.p) or t.operand_bytes <= min(ROOM, t.target.shared_bytes),
    }

    @property
    def waste(self) -> tuple[float, ...]:
        """What is bad about a tile: neighbours of a warp that are not contiguous, pixels that are read again or made
        for nothing, narrow vectors, blocks of few or many threads.
        """
        p, size, (_, (high, _, _), (wide, _, _)) = self.p, self.p.element_bytes, self.sides
        apart = 32 / self.tq if p.nchw else max(1.0, min(128, p.c * size) / (self.tk * self.vec * size))
        made = math.prod(-(-extent // tile) * tile / extent for tile, _, extent in self.sides)
        read = _read(p, high, wide) / (high * wide * p.stride**2)
        narrow = max(together(p)) / self.vec
        idle = made * (read + 1) * (1 + math.log2(apart) / 4) * (1 + math.log2(narrow) / 4)
        return idle, abs(self.threads - 128), -self.rp * self.rq


def through_shared(shape: Conv) -> bool:
    """Whether a block copies its tile to shared memory."""
    return bool(shape.nchw or shape.element_bytes < 4)


def together(shape: Conv) -> list[int]:
    """Channels that a thread may have: those that are contiguous, in 16 bytes or in a word of shared memory."""
    if shape.nchw:
        return [1]
    most = (4 if through_shared(shape) else 16) // shape.element_bytes
    return [n for n in (4, 2, 1) if n <= most and shape.c % n == 0]


def _read(shape: Conv, rows: int, columns: int) -> int:
    """Pixels that so many outputs read."""
    sides = zip((rows, columns), (shape.r, shape.s), strict=True)
    return math.prod((n - 1) * shape.stride + (taps - 1) * shape.dilation + 1 for n, taps in sides)
