"""Whole tiles in shared memory: what a tensor copy fills, and what a descriptor tells an instruction of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tensorir.errors import Problem
from tensorir.interp.memory import Cells, Fault
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, IntrinCall, Region

if TYPE_CHECKING:
    from tensorir.interp.machine import Action, Frame, Machine

ATOM_ROWS, PIECE_BYTES = 8, 16


def offsets(region: Region, dims: tuple[int, ...]) -> np.ndarray:
    """For each element of a tile, in row-major order: how far from the first it lies, before any permutation."""
    if not region.swizzle:
        return np.arange(math.prod(dims))
    row = region.swizzle * 8 // DTYPES[region.buffer.dtype].bits
    eight, panel = region.strides
    columns = dims[-1]
    r, c = np.divmod(np.arange(math.prod(dims)), columns)
    return np.asarray(r // ATOM_ROWS * eight + r % ATOM_ROWS * row + c // row * panel + c % row)


def permuted(at: np.ndarray, region: Region) -> np.ndarray:
    """Where these elements of a buffer lie, whose rows have their pieces of 16 bytes permuted by the row's number."""
    if not region.swizzle:
        return at
    size = DTYPES[region.buffer.dtype].bits // 8
    row, piece = region.swizzle // size, PIECE_BYTES // size
    return np.asarray(at ^ (at // row % ATOM_ROWS * piece))


def copy_tile(machine: Machine, call: IntrinCall) -> Action:
    """What executes a tensor copy: the tile is under way from here on, and zero where the array ends."""
    made, given = call.operands[-1], call.operands[0]
    tile = call.intrin.operands[-1]
    source, home = machine.memory[given.buffer], machine.memory[made.buffer]
    starts, first = [machine.expr(i) for i in given.first], machine.expr(made.first[0])
    shape = given.buffer.dims
    lead = len(shape) - len(tile.dims)
    grid = np.indices(tile.dims).reshape(len(tile.dims), -1)
    spread, slot = offsets(made, tile.dims), machine.expr(call.signals[0].first[0])
    size = DTYPES[made.buffer.dtype].bits // 8

    def run(f: Frame) -> None:
        flat = np.zeros((len(f.lane), grid.shape[1]), np.int64)
        inside = np.ones(flat.shape, bool)
        for d, extent in enumerate(shape):
            i = np.broadcast_to(np.asarray(starts[d](f)), f.lane.shape)[:, None] + (grid[d - lead] if d >= lead else 0)
            inside &= (i >= 0) & (i < extent)
            flat = flat * extent + np.clip(i, 0, extent - 1)
        if source.written is not None:
            source.need_written(flat[inside])
        values = np.where(inside, source.values[flat], np.zeros((), source.values.dtype))
        base = np.broadcast_to(np.asarray(first(f)), f.lane.shape)[:, None]
        at = permuted(base + spread, made)
        if len(at) and (at.min() < 0 or at.max() >= home.size):
            name = made.buffer.name
            raise Fault(Problem("memory.out-of-bounds", f"a tile leaves the {home.size} elements of {name}"))
        where = at + f.block[:, None] * home.size
        home.depart(where, values)
        machine.barriers.expect_landing(call.signals[0].buffer, slot(f), f.block, home, where, size * grid.shape[1])

    return run


class Described:
    """An operand that a warpgroup finds by a descriptor: a tile of shared memory for each."""

    def __init__(self, machine: Machine, tile: Buffer, region: Region) -> None:
        self.machine, self.region = machine, region
        self.home: Cells = machine.memory[region.buffer]
        self.first, self.spread = machine.expr(region.first[0]), offsets(region, tile.dims)

    def where(self, f: Frame, lanes: int) -> np.ndarray:
        """The cells, a row for each warpgroup; all its threads tell the same first element."""
        base = np.broadcast_to(np.asarray(self.first(f)), f.lane.shape).reshape(-1, lanes)
        if (base != base[:, :1]).any():
            raise Fault(Problem("warp.divergent", "the threads of a warpgroup tell different tiles of one operand"))
        at = permuted(base[:, :1] + self.spread, self.region)
        if len(at) and (at.min() < 0 or at.max() >= self.home.size):
            name = self.region.buffer.name
            raise Fault(Problem("memory.out-of-bounds", f"a tile leaves the {self.home.size} elements of {name}"))
        return np.asarray(at + f.block.reshape(-1, lanes)[:, :1] * self.home.size)

    def values(self, f: Frame, lanes: int) -> np.ndarray:
        """What the tiles hold, a row for each warpgroup."""
        where = self.where(f, lanes)
        if not self.home.watched:
            self.home.need_written(where)
            return np.asarray(self.home.values[where])
        me = f.me.reshape(-1, lanes)[:, :1]
        now = self.machine.epoch[f.block].reshape(-1, lanes)[:, :1]
        return self.home.read(where, me, now, self.machine.block_of)
