"""Instructions that the threads of a warp run together, on all warps at once.

Operands are gathered from the lanes into whole tiles, the meaning of the instruction runs on those, and its result is
distributed to the lanes again.
"""

from __future__ import annotations

import math

import numpy as np

from tensorir.errors import Problem
from tensorir.interp.frame import Action, Frame
from tensorir.interp.lanes import Lanes
from tensorir.interp.memory import Cells, Fault
from tensorir.interp.tiles import Described
from tensorir.ir.build import as_expr, const
from tensorir.ir.layout import LANES_OF_WARP, lane_places
from tensorir.ir.tree import Buffer, IntrinCall, Loop, Ramp, Region, Scope, Stmt, Store, Var
from tensorir.ir.visit import find, reads


class _Operand:
    """One operand: the cells of a tile in each lane, and the tile of each warp."""

    def __init__(self, machine: Lanes, tile: Buffer, region: Region, call: IntrinCall) -> None:
        self.machine, self.home, self.lanes = machine, machine.memory[region.buffer], call.intrin.lanes
        self.described = Described(machine, tile, region) if tile.name in call.intrin.descriptors else None
        self.later = call.intrin.later
        if self.described is None:
            layout = call.intrin.held.get(tile) or call.intrin.addressed[tile]
            places = np.array(lane_places(layout, tile.dims))
            self.lane, self.register = places[:, 0], places[:, 1]
            run = int(self.register.max()) + 1
            self.at = machine.cells_of(region.buffer, Ramp(region.first[0], run, "index"))
        self.buffer = Buffer(tile.name, (as_expr(math.prod(tile.dims)),), tile.dtype, Scope.REGISTER)
        warps = len(machine.frame.lane) // self.lanes
        self.cells = Cells(self.buffer, warps, machine.n.storage(tile.dtype))
        machine.memory[self.buffer] = self.cells
        strides = tuple(math.prod(tile.dims[d + 1 :]) for d in range(len(tile.dims)))
        self.region = Region(self.buffer, (const(0),), tile.dims, strides)

    def _tile(self, f: Frame, warps: np.ndarray) -> np.ndarray:
        """The cells of the tiles of some warps, those of ``f``."""
        found: np.ndarray | None = f.cache.get(self)
        if found is None:
            found = f.cache[self] = warps[:, None] * self.cells.size + np.arange(self.cells.size)
        return found

    def _where(self, f: Frame) -> np.ndarray:
        """For each lane that takes part and each element it holds: the cell."""
        return np.asarray(self.at(f))

    def registers(self, f: Frame) -> np.ndarray:
        """The cells that the lanes hold."""
        return self._where(f)

    def gather(self, f: Frame, warps: np.ndarray) -> None:
        if self.described is not None:
            tiles = self.described.values(f, self.lanes)
        else:
            where = self._where(f)
            if self.home.watched:
                values = self.home.read(where, *self.machine.who(f, where))
            else:
                if not self.later:  # the sums of one product may be in flight when the next accumulates onto them
                    self.home.need_written(where)
                values = self.home.values[where]
            tiles = values.reshape(len(warps), self.lanes, -1)[:, self.lane, self.register]
        tile = self._tile(f, warps)
        self.cells.values[tile] = tiles
        assert self.cells.written is not None
        self.cells.written[tile] = True

    def clear(self, warps: np.ndarray) -> None:
        """Let the tiles of some warps be 0."""
        self.cells.values.reshape(-1, self.cells.size)[warps] = 0

    def deal(self, f: Frame, warps: np.ndarray) -> None:
        where = self._where(f)
        values = np.empty((len(warps), self.lanes, where.shape[1]), self.home.values.dtype)
        values[:, self.lane, self.register] = self.cells.values[self._tile(f, warps)]
        flat = values.reshape(where.shape)
        if self.home.watched:
            self.home.write(where, flat, *self.machine.who(f, where))
            return
        self.home.values[where] = flat
        if self.home.written is not None:
            self.home.written[where] = True


def collective(machine: Lanes, call: IntrinCall) -> Action:
    """What executes a call; raises Fault ``warp.divergent`` where not all lanes of a warp arrive."""
    operands = [_Operand(machine, tile, region, call)
                for tile, region in zip(call.intrin.operands, call.operands, strict=True)]  # fmt: skip
    meaning = _sums_outermost(call.intrin.inline(tuple(o.region for o in operands)))
    body, read = machine.stmt(meaning), reads(meaning)
    given = [o for o in operands if o.buffer in read]
    made = [o for o, tile in zip(operands, call.intrin.operands, strict=True) if tile in call.intrin.outputs]
    adds = [machine.expr(e) for e in call.adds]

    count = call.intrin.lanes
    key = object()

    def together(f: Frame) -> tuple[np.ndarray, Frame]:
        """The warps of the lanes that are active, and a frame with one lane for each."""
        lanes = f.lane.reshape(-1, count) if len(f.lane) % count == 0 else None
        if lanes is None or (lanes != lanes[:, :1] // count * count + np.arange(count)).any():
            what = "warp" if count == LANES_OF_WARP else "warpgroup"
            message = f"{call.intrin.name} is reached by some threads of a {what}, and all of them run it together"
            raise Fault(Problem("warp.divergent", message))
        warps = lanes[:, 0] // count
        return warps, Frame({}, warps, np.zeros_like(warps), warps)

    def run(f: Frame) -> None:
        if key not in f.cache:
            f.cache[key] = together(f)
        warps, inner = f.cache[key]
        for o in given:
            o.gather(f, warps)
        for e in adds:
            added = np.broadcast_to(np.asarray(e(f), bool), f.lane.shape).reshape(-1, count)
            if (added != added[:, :1]).any():
                message = f"some threads of {call.intrin.name} add to what its result holds, and others replace it"
                raise Fault(Problem("warp.divergent", message))
            for o in made:
                o.clear(warps[~added[:, 0]])
        body(inner)
        for o in made:
            o.deal(f, warps)
        if call.intrin.later:
            read = [(o.home, o.described.where(f, count)) for o in given if o.described is not None]
            machine.begin_product([(o.home, o.registers(f)) for o in made], read)

    return run


def _sums_outermost(meaning: Stmt) -> Stmt:
    """The nest with the loops over which it sums outside: the others are then executed at once."""
    loops: list[Loop] = []
    at = meaning
    while isinstance(at, Loop):
        loops.append(at)
        at = at.body
    if not isinstance(at, Store):
        return meaning
    free = {v for i in at.index for v in find(i, Var)}
    for x in [*(x for x in reversed(loops) if x.var in free), *(x for x in reversed(loops) if x.var not in free)]:
        at = x.replace(body=at)
    return at
