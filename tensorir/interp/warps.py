"""Instructions that the threads of a warp run together, on all warps at once.

Operands are gathered from the lanes into whole tiles, the meaning of the instruction runs on those, and its result is
dealt out again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tensorir.errors import Problem
from tensorir.interp.memory import Cells, Fault
from tensorir.ir.build import as_expr, const
from tensorir.ir.layout import LANES_OF_WARP, lane_places
from tensorir.ir.tree import Buffer, IntrinCall, Ramp, Region, Scope
from tensorir.ir.visit import reads

if TYPE_CHECKING:
    from tensorir.interp.machine import Action, Frame, Machine


class _Operand:
    """One operand: the cells of a tile in each lane, and the tile of each warp."""

    def __init__(self, machine: Machine, tile: Buffer, region: Region, call: IntrinCall) -> None:
        layout = call.intrin.held.get(tile) or call.intrin.addressed[tile]
        places = np.array(lane_places(layout, tile.dims))
        self.lane, self.register = places[:, 0], places[:, 1]
        self.machine, self.home = machine, machine.memory[region.buffer]
        run = int(self.register.max()) + 1
        self.at = machine.cells_of(region.buffer, Ramp(region.first[0], run, "index"))
        self.buffer = Buffer(tile.name, (as_expr(math.prod(tile.dims)),), tile.dtype, Scope.REGISTER)
        warps = len(machine.frame.lane) // LANES_OF_WARP
        self.cells = Cells(self.buffer, warps, machine.n.storage(tile.dtype))
        machine.memory[self.buffer] = self.cells
        strides = tuple(math.prod(tile.dims[d + 1 :]) for d in range(len(tile.dims)))
        self.region = Region(self.buffer, (const(0),), tile.dims, strides)

    def _tile(self, warps: np.ndarray) -> np.ndarray:
        """The cells of the tiles of some warps."""
        return np.asarray(warps[:, None] * self.cells.size + np.arange(self.cells.size))

    def _where(self, f: Frame) -> np.ndarray:
        """For each lane that takes part and each element it holds: the cell."""
        return np.asarray(self.at(f))

    def gather(self, f: Frame, warps: np.ndarray) -> None:
        where = self._where(f)
        if self.home.watched:
            values = self.home.read(where, *self.machine.who(f, where))
        else:
            self.home.need_written(where)
            values = self.home.values[where]
        tiles = values.reshape(len(warps), LANES_OF_WARP, -1)[:, self.lane, self.register]
        self.cells.values[self._tile(warps)] = tiles
        assert self.cells.written is not None
        self.cells.written[self._tile(warps)] = True

    def deal(self, f: Frame, warps: np.ndarray) -> None:
        where = self._where(f)
        values = np.empty((len(warps), LANES_OF_WARP, where.shape[1]), self.home.values.dtype)
        values[:, self.lane, self.register] = self.cells.values[self._tile(warps)]
        flat = values.reshape(where.shape)
        if self.home.watched:
            self.home.write(where, flat, *self.machine.who(f, where))
            return
        self.home.values[where] = flat
        if self.home.written is not None:
            self.home.written[where] = True


def collective(machine: Machine, call: IntrinCall) -> Action:
    """What executes a call; raises Fault ``warp.divergent`` where not all lanes of a warp arrive."""
    from tensorir.interp.machine import Frame

    operands = [_Operand(machine, tile, region, call)
                for tile, region in zip(call.intrin.operands, call.operands, strict=True)]  # fmt: skip
    meaning = call.intrin.inline(tuple(o.region for o in operands))
    body, read = machine.stmt(meaning), reads(meaning)
    given = [o for o in operands if o.buffer in read]
    made = [o for o, tile in zip(operands, call.intrin.operands, strict=True) if tile in call.intrin.outputs]

    def run(f: Frame) -> None:
        lanes = f.lane.reshape(-1, LANES_OF_WARP) if len(f.lane) % LANES_OF_WARP == 0 else None
        if lanes is None or (lanes != lanes[:, :1] // LANES_OF_WARP * LANES_OF_WARP + np.arange(LANES_OF_WARP)).any():
            message = f"{call.intrin.name} is reached by some threads of a warp, and all of them run it together"
            raise Fault(Problem("warp.divergent", message))
        warps = lanes[:, 0] // LANES_OF_WARP
        for o in given:
            o.gather(f, warps)
        body(Frame({}, warps, np.zeros_like(warps), warps))
        for o in made:
            o.deal(f, warps)

    return run
