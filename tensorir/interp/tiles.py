"""Whole tiles in shared memory: what a tensor copy fills, and what a descriptor tells an instruction of."""

from __future__ import annotations

import math

import numpy as np

from tensorir.errors import Problem
from tensorir.interp.frame import Action, Frame
from tensorir.interp.lanes import Lanes
from tensorir.interp.memory import Cells, Fault
from tensorir.interp.roles import Barriers
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, IntrinCall, Pixels, Region

ATOM_ROWS, PIECE_BYTES = 8, 16


def offsets(region: Region, dims: tuple[int, ...]) -> np.ndarray:
    """For each element of a tile, in row-major order: its distance from the first, before any permutation."""
    if not region.swizzle:
        return np.arange(math.prod(dims))
    row = region.swizzle * 8 // DTYPES[region.buffer.dtype].bits
    eight, panel = region.strides
    columns = dims[-1]
    r, c = np.divmod(np.arange(math.prod(dims)), columns)
    return np.asarray(r // ATOM_ROWS * eight + r % ATOM_ROWS * row + c // row * panel + c % row)


def permuted(at: np.ndarray, region: Region) -> np.ndarray:
    """The places of these elements in a buffer whose rows are swizzled: pieces of 16 bytes, by the row's number."""
    if not region.swizzle:
        return at
    size = DTYPES[region.buffer.dtype].bits // 8
    row, piece = region.swizzle // size, PIECE_BYTES // size
    return np.asarray(at ^ (at // row % ATOM_ROWS * piece))


def copy_tile(machine: Lanes, barriers: Barriers, call: IntrinCall) -> Action:
    """What executes a tensor copy: into shared memory the tile is in flight from here on, and zero where the array
    ends; to an array only what it has is written, and the source has to stay until it was waited for.
    """
    tiles = dict(zip((t.name for t in call.intrin.operands), call.operands, strict=True))
    (name,) = call.intrin.maps
    array = _Whole(machine, tiles[name])
    (shared,) = (_Tile(machine, r, call.intrin.operands[0].dims) for n, r in tiles.items() if n != name)
    if call.intrin.stores:
        return _store(machine, shared, array)
    slot, barrier = machine.expr(call.signals[0].first[0]), call.signals[0].buffer
    size = shared.spread.size * DTYPES[shared.region.buffer.dtype].bits // 8

    def load(f: Frame) -> None:
        flat, inside = array.where(f)
        if array.home.written is not None:
            array.home.need_written(flat[inside])
        values = np.where(inside, array.home.values[flat], np.zeros((), array.home.values.dtype))
        at, first = shared.where(f), f.block // machine.cluster * machine.cluster
        for n in range(call.intrin.blocks):
            block = f.block if call.intrin.blocks == 1 else first + n
            where = at + (block - f.block)[:, None] * shared.home.size
            shared.home.depart(where, values)
            barriers.expect_landing(barrier, slot(f), block, shared.home, where, size)

    return load


def _store(machine: Lanes, shared: _Tile, array: _Whole) -> Action:
    def store(f: Frame) -> None:
        where = shared.where(f)
        now, me = machine.epoch[f.block][:, None], f.me[:, None]
        flat, inside = array.where(f)
        values = shared.home.read(where, me, now, machine.block_of, inside)
        who = np.broadcast_to(me, flat.shape)[inside]
        if array.home.watched:
            when = np.broadcast_to(now, flat.shape)[inside]  # a tile that was moved back is stored twice
            array.home.write(flat[inside], values[inside], who, when, machine.block_of, repeats=True)
        else:
            array.home.values[flat[inside]] = values[inside]
            if array.home.written is not None:
                array.home.written[flat[inside]] = True
        machine.later.of["stores"].begin([], [(shared.home, where)])

    return store


class _Whole:
    """A tile of an array in global memory, told by where it begins in each dimension."""

    def __init__(self, machine: Lanes, region: Region) -> None:
        self.home: Cells = machine.memory[region.buffer]
        self.shape, self.first = region.array, [machine.expr(i) for i in region.first]
        self.pixels, self.extents = region.pixels, region.extents
        steps = region.steps or (1,) * len(region.extents)
        self.grid = np.indices(region.extents).reshape(len(region.extents), -1) * np.array(steps)[:, None]
        self.offset = [] if region.pixels is None else [machine.expr(i) for i in region.pixels.offset]

    def where(self, f: Frame) -> tuple[np.ndarray, np.ndarray]:
        """The cells, a row for each thread that asks, and which of them the array has."""
        flat = np.zeros((len(f.lane), self.grid.shape[1]), np.int64)
        inside = np.ones(flat.shape, bool)
        first = [np.broadcast_to(np.asarray(i(f)), f.lane.shape)[:, None] for i in self.first]
        index = [i + along for i, along in zip(first, self.grid, strict=False)]
        if self.pixels is not None:
            index = self._through(self.pixels, f, first)
        for i, extent in zip(index, self.shape, strict=True):
            inside &= (i >= 0) & (i < extent)
            flat = flat * extent + np.clip(i, 0, extent - 1)
        return flat, inside

    def _through(self, p: Pixels, f: Frame, first: list[np.ndarray]) -> list[np.ndarray]:
        """Image, row, column and channel of each element of a tile that goes through images."""
        n, h, w, channel = first
        count, along = self.grid
        (high, wide), (step_h, step_w), (low_h, low_w) = p.shape, p.steps, p.lower
        number = (n * high + (h - low_h) // step_h) * wide + (w - low_w) // step_w + count
        off = [np.broadcast_to(np.asarray(i(f)), f.lane.shape)[:, None] for i in self.offset]
        row, column = number // wide % high * step_h + low_h, number % wide * step_w + low_w
        return [number // (high * wide), row + off[0], column + off[1], channel + along]


class _Tile:
    """A tile in shared memory."""

    def __init__(self, machine: Lanes, region: Region, dims: tuple[int, ...]) -> None:
        self.home: Cells = machine.memory[region.buffer]
        self.region, self.first, self.spread = region, machine.expr(region.first[0]), offsets(region, dims)

    def where(self, f: Frame) -> np.ndarray:
        """The cells, a row for each thread that tells of it."""
        first, block = np.broadcast_to(np.asarray(self.first(f)), f.lane.shape), f.block
        at = permuted(first[:, None] + self.spread, self.region)
        cells = at + block[:, None] * self.home.size
        beyond = len(at) and (at.min() < 0 or at.max() >= self.home.size)
        if beyond or (len(cells) and cells.max() >= len(self.home.values)):  # an array that blocks have no part of
            name = self.region.buffer.name
            raise Fault(Problem("memory.out-of-bounds", f"a tile leaves the {self.home.size} elements of {name}"))
        return np.asarray(cells)


class Described:
    """An operand that a warpgroup finds by a descriptor: a tile of shared memory for each."""

    def __init__(self, machine: Lanes, tile: Buffer, region: Region) -> None:
        self.machine, self.tile = machine, _Tile(machine, region, tile.dims)

    def where(self, f: Frame, lanes: int) -> np.ndarray:
        """The cells, a row for each warpgroup; all its threads tell the same first element."""
        first = np.broadcast_to(np.asarray(self.tile.first(f)), f.lane.shape).reshape(-1, lanes)
        if (first != first[:, :1]).any():
            raise Fault(Problem("warp.divergent", "the threads of a warpgroup tell different tiles of one operand"))
        one = np.zeros(len(f.lane), bool)
        one[::lanes] = True
        return self.tile.where(f.only(one))

    def values(self, f: Frame, lanes: int) -> np.ndarray:
        """What the tiles hold, a row for each warpgroup."""
        where, home = self.where(f, lanes), self.tile.home
        if not home.watched:
            home.need_written(where)
            return np.asarray(home.values[where])
        me = f.me.reshape(-1, lanes)[:, :1]
        now = self.machine.epoch[f.block].reshape(-1, lanes)[:, :1]
        return home.read(where, me, now, self.machine.block_of)
