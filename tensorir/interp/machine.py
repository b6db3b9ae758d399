"""Executes blocks of a lowered kernel in NumPy: statements compiled to closures over arrays with one element per
thread.

Each statement is compiled once per kernel, as expressions are (``lanes.py``); a loop iteration then costs a few NumPy
operations over all threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorir.errors import Problem
from tensorir.interp.doubles import Doubles
from tensorir.interp.frame import Action, Frame, KernelLike, Value
from tensorir.interp.lanes import Lanes
from tensorir.interp.lift import Lifts, at_once
from tensorir.interp.memory import Cells, Fault
from tensorir.interp.numbers import Numbers
from tensorir.interp.roles import Barriers
from tensorir.interp.tensor_cores import Rounding
from tensorir.ir.build import as_expr, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.layout import LANES_OF_WARP, lane_places
from tensorir.ir.tree import (
    Alloc,
    Arrive,
    Await,
    Barrier,
    Buffer,
    CommitGroup,
    Fence,
    If,
    InitBarriers,
    IntrinCall,
    Let,
    Load,
    Loop,
    Pixels,
    Prefetch,
    Ramp,
    Region,
    Roles,
    Scope,
    Seq,
    Stmt,
    Store,
    Var,
    WaitGroup,
)  # fmt: skip
from tensorir.ir.visit import find, has, reads

_Flight = tuple[Cells, np.ndarray, np.ndarray, np.ndarray]
"""Cells, where, and for each thread its number and its block."""


class BlockMachine(Lanes):
    """Executes some blocks of a kernel: statements are compiled to closures over arrays with one element per thread."""

    def __init__(self, k: KernelLike, memory: Mapping[Buffer, Cells], scalars: Mapping[Var, Any], numbers: Numbers,
                 blocks: Sequence[int] | np.ndarray, block_of: np.ndarray) -> None:  # fmt: skip
        super().__init__(k, memory, scalars, numbers, blocks, block_of)
        self.lifts = Lifts(k, numbers.exact)
        self.barriers = Barriers(self)
        self.leaving: list[_Flight] = []  # copies in flight that are no group yet, and those that are, oldest first
        self.groups: list[list[_Flight]] = []

    def go(self) -> None:
        """Run the kernel's body for these blocks."""
        self.stmt(self.k.body)(self.frame)

    def stmt(self, s: Stmt) -> Action:
        """A closure that executes ``s`` for the lanes of a Frame. Raises Fault ``interp.not-lowered`` for statements
        that lowered kernels do not have.
        """
        match s:
            case Seq():
                return self._seq([self.stmt(x) for x in s.stmts])
            case Loop():
                return self._loop(s)
            case Store():
                return self._store(s)
            case If():
                return self._if(s)
            case Prefetch():
                return self._seq([])
            case Alloc():
                return self._alloc(s)
            case Barrier():
                return self._barrier if not s.threads else self._role_barrier
            case CommitGroup():
                return self._commit if s.of == "copies" else lambda f: self.later.of[s.of].commit()
            case WaitGroup():
                return lambda f: self._wait(f, s.pending) if s.of == "copies" else self.later.of[s.of].wait(s.pending)
            case Fence():  # an order of the processor's, which the emulator looks at
                return self._seq([])
            case InitBarriers():
                return self.barriers.begin(s)
            case Arrive():
                return self.barriers.arrive(s)
            case Await():
                return self.barriers.wait(s)
            case Roles():
                return self.barriers.roles(s)
            case IntrinCall() if s.intrin.maps:
                return copy_tile(self, self.barriers, s)
            case Let():
                return self._let(s)
            case IntrinCall():
                return collective(self, s) if s.intrin.by_warp else self.stmt(s.intrin.inline(s.operands))
        raise Fault(Problem("interp.not-lowered", f"{type(s).__name__} has no meaning in a lowered kernel"))

    def in_numbers(self, numbers: Numbers, s: Stmt) -> Action:
        """Closure that executes ``s`` in the arithmetic ``numbers`` instead of the machine's."""
        own, self.n = self.n, numbers
        try:
            return self.stmt(s)
        finally:
            self.n = own

    def _seq(self, parts: list[Action]) -> Action:
        def run(f: Frame) -> None:
            for p in parts:
                p(f)

        return run

    def _loop(self, s: Loop) -> Action:
        lift = self.lifts.of(s, self.lanes)
        if lift is not None:
            return at_once(self, lift)
        body, var, extent = self.stmt(s.body), s.var, self.expr(s.extent)

        def run(f: Frame) -> None:
            n = extent(f)
            if isinstance(n, np.ndarray) and n.ndim:
                for i in range(int(n.max(initial=0))):
                    part = f.only(n > i)
                    part.env[var] = i
                    body(part)
                return
            for i in range(int(n)):
                f.env[var] = i
                body(f)

        return run

    def _if(self, s: If) -> Action:
        cond, then = self.expr(s.cond), self.stmt(s.then)

        def run(f: Frame) -> None:
            c = cond(f)
            if not isinstance(c, np.ndarray) or c.ndim == 0:
                if c:
                    then(f)
            elif c.all():
                then(f)
            elif c.any():
                then(f.only(c))

        return run

    def _alloc(self, s: Alloc) -> Action:
        if s.buffer.scope is Scope.BARRIER:
            return self.stmt(s.body)
        private = self.is_private(s.buffer)
        copies = self.copies[-1] if private else self.blocks
        self.depth[s.buffer] = len(self.copies) - 1
        cells = Cells(
            s.buffer,
            copies,
            self.n.storage(s.buffer.dtype),
            watched=s.buffer.scope is Scope.SHARED and self.threads > 1,
        )
        self.memory[s.buffer] = cells
        body = self.stmt(s.body)

        def run(f: Frame) -> None:
            cells.forget()
            body(f)

        return run

    def _barrier(self, f: Frame) -> None:
        if len(f.lane) != len(self.frame.lane):
            counts = np.bincount(f.block, minlength=self.blocks)
            if ((counts != 0) & (counts != self.threads)).any():
                b = int(np.argmax((counts != 0) & (counts != self.threads)))
                raise Fault(
                    Problem(
                        "barrier.divergent",
                        f"a barrier is reached by {counts[b]} of the {self.threads} threads of a block",
                    )
                )
            self.epoch[f.block] += 1  # of each block that came, once
            return
        self.epoch += 1

    def _role_barrier(self, f: Frame) -> None:
        self.epoch[np.unique(f.block)] += 1

    def _commit(self, f: Frame) -> None:
        self._need_all(f)
        self.groups.append(self.leaving)
        self.leaving = []

    def _wait(self, f: Frame, pending: int) -> None:
        """Complete asynchronous copies (cp.async) of all groups except the ``pending`` latest: at the wait, the latest
        moment allowed.
        """
        self._need_all(f)
        while len(self.groups) > pending:
            for cells, where, me, block in self.groups.pop(0):
                now = self.epoch[block]
                cells.land(where, me[:, None] if where.ndim == 2 else me, now[:, None] if where.ndim == 2 else now)

    def _need_all(self, f: Frame) -> None:
        if len(f.lane) != len(self.frame.lane):
            raise Fault(Problem("interp.not-lowered", "groups of copies are for all threads alike"))

    def _let(self, s: Let) -> Action:
        lets: list[tuple[Var, Value]] = []
        body: Stmt = s
        while isinstance(body, Let):  # there may be many, one inside the other
            if not has(body.value, Load) and all(v in self.hardware for v in find(body.value, Var)):
                self.hardware = self.hardware | {body.var}  # the same in every iteration: addresses may be kept
            lets.append((body.var, self.expr(body.value)))
            body = body.body
        rest = self.stmt(body)

        def run(f: Frame) -> None:
            for var, value in lets:
                f.env[var] = value(f)
            rest(f)

        return run

    def _store(self, s: Store) -> Action:
        cells, at, value = self.memory[s.buffer], self.cells_of(s.buffer, s.index[0]), self.expr(s.value)
        dtype, to_memory = s.buffer.dtype, self.n.to_memory
        if s.adds:
            return lambda f: cells.add(where := at(f), value(f), *self.who(f, where), self.n)

        def run(f: Frame) -> None:
            x = to_memory(value(f), dtype)
            where = at(f)
            if cells.watched:
                cells.write(where, x, *self.who(f, where), repeats=s.repeats)
            else:
                cells.values[where] = x
                if cells.written is not None:
                    cells.written[where] = True
            if s.later:
                cells.under_way(where)
                self.leaving.append((cells, where, f.me, f.block))

        return run


# Instructions that the threads of a warp run together, on all warps at once.
#
# Operands are gathered from the lanes into whole tiles, the meaning of the instruction runs on those, and its result is
# distributed to the lanes again.


class _Operand:
    """One operand of a warp-wide instruction, copied between the lanes' registers and one whole tile per warp."""

    def __init__(self, machine: Lanes, tile: Buffer, region: Region, call: IntrinCall, inside: Numbers) -> None:
        self.name, self.numbers = tile.name, machine.n
        self.machine, self.home, self.lanes = machine, machine.memory[region.buffer], call.intrin.lanes
        self.described = DescribedTile(machine, tile, region) if tile.name in call.intrin.descriptors else None
        self.later = call.intrin.later
        if self.described is None:
            layout = call.intrin.held.get(tile) or call.intrin.addressed[tile]
            places = np.array(lane_places(layout, tile.dims))
            self.lane, self.register = places[:, 0], places[:, 1]
            run = int(self.register.max()) + 1
            self.at = machine.cells_of(region.buffer, Ramp(region.first[0], run, "index"))
        self.buffer = Buffer(tile.name, (as_expr(math.prod(tile.dims)),), tile.dtype, Scope.REGISTER)
        warps = len(machine.frame.lane) // self.lanes
        self.cells = Cells(self.buffer, warps, inside.storage(tile.dtype))
        machine.memory[self.buffer] = self.cells
        strides = tuple(math.prod(tile.dims[d + 1 :]) for d in range(len(tile.dims)))
        self.region = Region(self.buffer, (const(0),), tile.dims, strides)

    def _tile(self, f: Frame, warps: np.ndarray) -> np.ndarray:
        """Element numbers, in the copy, of the tiles of ``warps``: one row per warp."""
        found: np.ndarray | None = f.cache.get(self)
        if found is None:
            found = f.cache[self] = warps[:, None] * self.cells.size + np.arange(self.cells.size)
        return found

    def registers(self, f: Frame) -> np.ndarray:
        """Element numbers of the registers of each lane: one row per lane."""
        return np.asarray(self.at(f))

    def gather(self, f: Frame, warps: np.ndarray) -> None:
        if self.described is not None:
            tiles = self.described.values(f, self.lanes)
        else:
            where = self.registers(f)
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
        """Set the tiles of some warps to 0."""
        self.cells.values.reshape(-1, self.cells.size)[warps] = 0

    def round(self, f: Frame, warps: np.ndarray, how: Rounding | None = None) -> None:
        """Round in place the tiles of ``warps``: to the operand's dtype, or by the function ``how``, as the instruction
        rounds its operands.
        """
        tile, kind = self._tile(f, warps), self.buffer.dtype
        old = self.cells.values[tile]
        self.cells.values[tile] = self.numbers.cast(old, "float64", kind) if how is None else how(old)

    def deal(self, f: Frame, warps: np.ndarray) -> None:
        where = self.registers(f)
        values = np.empty((len(warps), self.lanes, where.shape[1]), self.home.values.dtype)
        values[:, self.lane, self.register] = self.cells.values[self._tile(f, warps)]
        flat = values.reshape(where.shape)
        if self.home.watched:
            self.home.write(where, flat, *self.machine.who(f, where))
            return
        self.home.values[where] = flat
        if self.home.written is not None:
            self.home.written[where] = True


def collective(machine: BlockMachine, call: IntrinCall) -> Action:
    """Closure that executes a warp-wide or warpgroup-wide instruction; it raises Fault ``warp.divergent`` if some lanes
    do not take part.
    """
    core = machine.n.tensor_core(call)
    inside = machine.n if core is None else Doubles()
    operands = [_Operand(machine, tile, region, call, inside)
                for tile, region in zip(call.intrin.operands, call.operands, strict=True)]  # fmt: skip
    meaning = _sums_outermost(call.intrin.inline(tuple(o.region for o in operands)))
    body, read = machine.in_numbers(inside, meaning), reads(meaning)
    given = [o for o in operands if o.buffer in read]
    made = [o for o, tile in zip(operands, call.intrin.operands, strict=True) if tile in call.intrin.outputs]
    adds = [machine.expr(e) for e in call.adds]

    count = call.intrin.lanes
    key = object()

    def together(f: Frame) -> tuple[np.ndarray, Frame]:
        """(numbers of the warps, or warpgroups, that are active; frame with one lane for each). Raises Fault
        ``warp.divergent``.
        """
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
        if core is None:
            body(inner)
        for product in core.products if core is not None else ():
            for o in given:
                if o.name in product:
                    o.gather(f, warps)
                    o.round(f, warps, product[o.name])
            body(inner)
            for o in made:
                o.round(f, warps)
        for o in made:
            o.deal(f, warps)
        if call.intrin.later:
            read = [(o.home, o.described.where(f, count)) for o in given if o.described is not None]
            machine.begin_product([(o.home, o.registers(f)) for o in made], read)

    return run


def _sums_outermost(meaning: Stmt) -> Stmt:
    """The nest with its reduction loops outermost, so that the other loops can run at once; unchanged if it is not
    perfect.
    """
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


# --- whole tiles in shared memory: tensor copies, descriptors


ATOM_ROWS, PIECE_BYTES = 8, 16


def offsets(region: Region, dims: tuple[int, ...]) -> np.ndarray:
    """Offset of each element of a tile of shape ``dims``, row-major, from the tile's first element in memory, before
    swizzling.
    """
    if not region.swizzle:
        return np.arange(math.prod(dims))
    row = region.swizzle * 8 // DTYPES[region.buffer.dtype].bits
    eight, panel = region.strides
    columns = dims[-1]
    r, c = np.divmod(np.arange(math.prod(dims)), columns)
    return np.asarray(r // ATOM_ROWS * eight + r % ATOM_ROWS * row + c // row * panel + c % row)


def permuted(at: np.ndarray, region: Region) -> np.ndarray:
    """Element numbers ``at`` after the region's swizzle: 16-byte chunks permuted by row."""
    if not region.swizzle:
        return at
    size = DTYPES[region.buffer.dtype].bits // 8
    row, piece = region.swizzle // size, PIECE_BYTES // size
    return np.asarray(at ^ (at // row % ATOM_ROWS * piece))


def copy_tile(machine: Lanes, barriers: Barriers, call: IntrinCall) -> Action:
    """Closure that executes a TMA copy.

    To shared memory: elements are in flight until awaited, 0 beyond the array's ends. To an array: elements beyond its
    ends are skipped, and the source may not change until awaited.
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
    """A tile of a global array in a TMA copy, located by an index per dimension."""

    def __init__(self, machine: Lanes, region: Region) -> None:
        self.home: Cells = machine.memory[region.buffer]
        self.shape, self.first = region.array, [machine.expr(i) for i in region.first]
        self.pixels, self.extents = region.pixels, region.extents
        steps = region.steps or (1,) * len(region.extents)
        self.grid = np.indices(region.extents).reshape(len(region.extents), -1) * np.array(steps)[:, None]
        self.offset = [] if region.pixels is None else [machine.expr(i) for i in region.pixels.offset]

    def where(self, f: Frame) -> tuple[np.ndarray, np.ndarray]:
        """(flat numbers of a tile's elements, mask of those inside the array): a row per issuing thread, a column per
        element; numbers outside are clipped to the array.
        """
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
        """[image, row, column, channel] index arrays of the elements of an im2col tile, one row per issuing thread."""
        n, h, w, channel = first
        count, along = self.grid
        (high, wide), (step_h, step_w), (low_h, low_w) = p.shape, p.steps, p.lower
        number = (n * high + (h - low_h) // step_h) * wide + (w - low_w) // step_w + count
        off = [np.broadcast_to(np.asarray(i(f)), f.lane.shape)[:, None] for i in self.offset]
        row, column = number // wide % high * step_h + low_h, number % wide * step_w + low_w
        return [number // (high * wide), row + off[0], column + off[1], channel + along]


class _Tile:
    """A tile in shared memory in a TMA copy or product."""

    def __init__(self, machine: Lanes, region: Region, dims: tuple[int, ...]) -> None:
        self.home: Cells = machine.memory[region.buffer]
        self.region, self.first, self.spread = region, machine.expr(region.first[0]), offsets(region, dims)

    def where(self, f: Frame) -> np.ndarray:
        """Element numbers of the tile, one row per issuing thread. Raises Fault ``memory.out-of-bounds``."""
        first, block = np.broadcast_to(np.asarray(self.first(f)), f.lane.shape), f.block
        at = permuted(first[:, None] + self.spread, self.region)
        cells = at + block[:, None] * self.home.size
        beyond = len(at) and (at.min() < 0 or at.max() >= self.home.size)
        if beyond or (len(cells) and cells.max() >= len(self.home.values)):  # an array that blocks have no part of
            name = self.region.buffer.name
            raise Fault(Problem("memory.out-of-bounds", f"a tile leaves the {self.home.size} elements of {name}"))
        return np.asarray(cells)


class DescribedTile:
    """A shared-memory operand of a warpgroup product, given by a descriptor: one tile per warpgroup."""

    def __init__(self, machine: Lanes, tile: Buffer, region: Region) -> None:
        self.machine, self.tile = machine, _Tile(machine, region, tile.dims)

    def where(self, f: Frame, lanes: int) -> np.ndarray:
        """Element numbers of the tile, one row per warpgroup of ``lanes`` threads. Raises Fault if its threads name
        different tiles.
        """
        first = np.broadcast_to(np.asarray(self.tile.first(f)), f.lane.shape).reshape(-1, lanes)
        if (first != first[:, :1]).any():
            raise Fault(Problem("warp.divergent", "the threads of a warpgroup tell different tiles of one operand"))
        one = np.zeros(len(f.lane), bool)
        one[::lanes] = True
        return self.tile.where(f.only(one))

    def values(self, f: Frame, lanes: int) -> np.ndarray:
        """Values of the tile's elements, one row per warpgroup of ``lanes`` threads. Raises Fault for races."""
        where, home = self.where(f, lanes), self.tile.home
        if not home.watched:
            home.need_written(where)
            return np.asarray(home.values[where])
        me = f.me.reshape(-1, lanes)[:, :1]
        now = self.machine.epoch[f.block].reshape(-1, lanes)[:, :1]
        return home.read(where, me, now, self.machine.block_of)
