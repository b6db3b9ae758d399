"""Pass: warp specialization. One warpgroup issues tile copies, the others compute on tiles that have arrived.

Both roles run the loops around the pipelined one. A ring slot is full when the bytes of its tiles have arrived, and
free when every computing warpgroup has read it. Each of the two events has its own mbarrier per slot, with phases of
alternating parity (as in CUTLASS's warp-specialized pipelines). Products are in flight while the next tile is awaited:
a slot is freed one iteration after its own, the last one of an output tile before its epilogue.

With turns (as in CUTLASS's ping-pong kernels), sets of warpgroups alternate: each computes one output tile, and slots
are filled in that order. A third kind of barrier lets a set begin when all slots of the previous set were full. This is
necessary for correctness: parity distinguishes a phase from the next but not from the one after that, so an early set
could mistake another set's slot for its own. Each set has its own copy of other shared memory, such as staged results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tensorir.intrin.hopper import tile_copy
from tensorir.ir.build import as_expr, as_int, binary, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.marks import Pipelined, UnrollBy
from tensorir.ir.tree import (
    Alloc,
    Arrive,
    Await,
    Barrier,
    Buffer,
    Const,
    Expr,
    If,
    InitBarriers,
    IntrinCall,
    Kind,
    Loop,
    Program,
    Region,
    Role,
    Roles,
    Scope,
    Stage,
    Stmt,
    Var,
    WaitGroup,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, has, replace, sequence, substitute, uses, writes
from tensorir.lower.form import bound_loops, each_nest, fail, lowering, rewrap
from tensorir.lower.order_products import PRODUCTS, only_products
from tensorir.lower.rings import InSlot, allocated, allocs, ring
from tensorir.lower.tiles import ATOM_ROWS
from tensorir.schedule.analysis import statements
from tensorir.target import Target


@lowering
def split_roles(program: Program, target: Target) -> Program:
    """Split warp-specialized loops into a producer role, which issues tile copies, and consumer roles.

    needs: buffers have their place and size, instructions are calls, products are waited for
    gives: no loop has roles; copies of whole tiles signal an mbarrier, which is awaited before they are read

    Raises LoweringError ``lower.roles``: several such loops in a kernel, copies under conditions or outside the loop.
    """
    return each_nest(program, _kernel)


def _kernel(nest: Stmt) -> Stmt:
    axes, body = bound_loops(nest)
    loops = find(body, Loop, lambda x: bool(Pipelined.of(x).roles))
    if len(loops) > 1:
        names = " and ".join(dict.fromkeys(x.var.name for x in loops))
        raise fail("lower.roles", f"the roles of a kernel share one ring, and several loops have roles ({names})",
                   "splits that divide, or tail='pad', around the pipelined loop")  # fmt: skip
    made = _Split(axes, body, loops[0]).nest() if loops else nest
    if left := find(made, IntrinCall, lambda c: bool(c.intrin.maps) and not (c.signals or c.intrin.stores)):
        tile = left[0].operands[-1].buffer.name
        raise fail("lower.roles", f"a copy of whole tiles to {tile} is asynchronous, and nothing awaits it",
                   "s.pipeline(…, roles={'load': 40, 'compute': 232}) on the loop that it is made in")  # fmt: skip
    return made


@dataclass(frozen=True, eq=False)
class _Turn:
    """Ring slot of an iteration, and the mbarrier parity of the phase in which it is full."""

    count: Expr
    depth: int

    @property
    def slot(self) -> Expr:
        return binary("%", self.count, self.depth)

    def parity(self, since: int = 0) -> Expr:
        return binary("%", binary("+", binary("//", self.count, self.depth), since), 2)


class _Split:
    def __init__(self, axes: list[Loop], body: Stmt, loop: Loop) -> None:
        self.axes, self.body, self.loop = axes, body, loop
        self.group = next(x for x in axes if x.kind is Kind.THREAD_Y)
        self.lane = next(x for x in axes if x.kind is Kind.THREAD_X)
        self.pipe = Pipelined.of(loop)
        self.turns, self.number = self.pipe.turns, Var("turn", "index")
        self.groups = as_int(self.group.extent)  # of each ping-pong set
        self.all_groups = self.groups * self.turns
        self.cluster = next((x for x in axes if x.kind is Kind.CLUSTER), None)
        self.blocks = 1 if self.cluster is None else as_int(self.cluster.extent)
        self.around = _around(body, loop)
        self.tile = self._tile()
        found, stmts = allocs(loop.body)
        self.copies = copies_of(stmts, found)
        filled = list(dict.fromkeys(b for s in self.copies for b in writes(s)))
        mine = [b for b in allocated_in(body) if b.scope is Scope.SHARED and b not in filled] if self.turns > 1 else []
        self.each = {b: ring(b, self.turns) for b in mine}
        self.own = [b for b in found if b not in filled and b not in self.each]
        self.rest = list(statements(sequence([s for s in stmts if s not in self.copies])))
        self.rings = {b: ring(b, self.pipe.depth) for b in filled}
        # products of one iteration stay in flight into the next if nothing else there touches what they read and make
        self.later = isinstance(self.rest[-1], WaitGroup) and only_products(sequence(self.rest))
        self.full = self._barriers("full", self.pipe.depth)
        self.empty = self._barriers("empty", self.pipe.depth)
        self.order = self._barriers("order", self.turns)
        count: Expr = const(0)
        for x in (*self.around, loop):
            count = binary("+", binary("*", count, as_int(x.extent)), x.var)
        self.turn = _Turn(count, self.pipe.depth)

    def _barriers(self, name: str, count: int) -> Buffer:
        return Buffer(name, (as_expr(count),), "int64", Scope.BARRIER)

    def nest(self) -> Stmt:
        registers = self.pipe.roles
        number = self.group.var.replace()
        alone = self.turns > 1 and self.groups == 1
        compute = substitute(self._computing(), {self.group.var: const(0) if alone else number})
        load = substitute(self._loading(), {self.group.var: const(0), self.lane.var: const(0)})
        if any(not isinstance(x.cond, Const) for x in find(load, If)):
            raise fail("lower.roles", "tiles are copied under a condition, and their barrier waits for all of them",
                       "exact splits around the pipelined loop")  # fmt: skip
        roles = Roles((
            Role("compute", number, 0, self.all_groups, registers[1], compute, turns=self.turns,
                 turn=self.number if self.turns > 1 else None),
            Role("load", Var("loader", "index"), self.all_groups, 1, registers[0], load, one=True),
        ))  # fmt: skip
        # a product of a warpgroup has read its tile when one of its threads knows, others when each thread has
        arrivals = self.groups * (1 if self.later else as_int(self.lane.extent))
        meet = Barrier((Scope.CLUSTER,)) if self.cluster is not None else Barrier()
        start = [InitBarriers(self.full, 1), InitBarriers(self.empty, arrivals * self.blocks), meet, roles]
        barriers = [self.full, self.empty]
        if self.turns > 1:
            start.insert(2, InitBarriers(self.order, self.groups))
            barriers.append(self.order)
        body = allocated([*self.rings.values(), *self.each.values(), *barriers], sequence(start))
        axes = [x.replace(extent=as_expr(self.all_groups + 1)) if x is self.group else x for x in self.axes]
        return rewrap(axes, body)

    def _loading(self) -> Stmt:
        slot = self.turn.slot
        bytes_ = sum(_bytes(s) for s in self.copies)
        whole = sequence(self.copies)
        if self.cluster is not None:
            whole = _Shared(self.cluster)(whole)
        copies = _Signal(Region(self.full, (slot,), (1,)))(InSlot(self.rings, slot)(whole))
        body = sequence([Await(self.empty, (slot,), self.turn.parity(1)), Arrive(self.full, (slot,), bytes_), copies])
        loading = rewrap([*(x.marked(UnrollBy(1)) for x in self.around), self._plain()], body)
        return loading if self.cluster is None else sequence([loading, self._emptied()])

    def _emptied(self) -> Stmt:
        """Loop that awaits the release of all ring slots by other blocks, so that none signals a block that has exited.

        A cluster barrier would do, but would wait for all stores of each thread.
        """
        steps = math.prod(as_int(x.extent) for x in (*self.around, self.loop))
        n = Var("left", "index")
        then = _Turn(binary("+", n, steps), self.pipe.depth)
        return Loop(n, as_expr(self.pipe.depth), Await(self.empty, (then.slot,), then.parity(1))).marked(UnrollBy(1))

    def _computing(self) -> Stmt:
        slot = self.turn.slot
        work = InSlot(self.rings, slot)(sequence(self.rest[:-1] if self.later else self.rest))
        parts: list[Stmt] = [Await(self.full, (slot,), self.turn.parity()), work]
        after_loop: list[Stmt] = []
        if not self.later:
            parts.append(self._released(slot))
        else:
            before = _Turn(binary("+", self.turn.count, self.pipe.depth - 1), self.pipe.depth)  # the one before
            begun = binary("<", const(0), self.loop.var)
            parts += [WaitGroup(1, PRODUCTS), self._released_by_few(before.slot, begun)]
            # the last slot of a tile is released before its results leave: tiles of the next one come meanwhile
            last = substitute(slot, {self.loop.var: const(as_int(self.loop.extent) - 1)})
            after_loop += [WaitGroup(0, PRODUCTS), self._released_by_few(last)]
        loop = self._plain(allocated(self.own, sequence(parts)))
        if self.turns == 1:
            return replace(self.body, {self.loop: sequence([loop, *after_loop])})
        after = binary("%", binary("+", self.number, 1), self.turns)
        told = If(binary("<", self.lane.var, 1), Arrive(self.order, (after,)))
        mine = sequence([Await(self.order, (self.number,), self._order_parity()), loop, told, *after_loop])
        return self._in_turns(_Without(self.each)(replace(self.body, {self.loop: mine})))

    def _order_parity(self) -> Expr:
        """Parity of the phase that ends when the preceding ping-pong set begins its epilogue; the first set waits for
        none.
        """
        number = self.tile.var if self.tile is not None else const(0)
        return binary("%", binary("+", binary("//", binary("+", number, self.turns - 1), self.turns), 1), 2)

    def _in_turns(self, body: Stmt) -> Stmt:
        """Body of one ping-pong set of warpgroups: every n-th iteration of the tile loop."""
        body = InSlot(self.each, self.number)(body)
        if self.tile is None:
            return If(binary("<", self.number, 1), body)
        tile = self.tile.var
        (walk,) = find(body, Loop, lambda x: x.var is tile)
        count, step = as_int(walk.extent), tile.replace()
        number = binary("+", binary("*", step, self.turns), self.number)
        inner = substitute(walk.body, {walk.var: number})
        if count % self.turns:
            inner = If(binary("<", number, count), inner)
        fewer = Loop(step, as_expr(-(-count // self.turns)), inner, walk.kind).marked(UnrollBy.of(walk))
        return replace(body, {walk: fewer})

    def _tile(self) -> Loop | None:
        """Loop around the pipeline with several iterations, shared by the ping-pong sets; None for a single tile.

        The outermost one for a single set; raises ``lower.roles`` if several sets have more than one.
        """
        walked = [x for x in self.around if as_int(x.extent) > 1]
        if len(walked) > 1 and self.turns > 1:
            names = " and ".join(x.var.name for x in walked)
            message = f"turns are of one loop's iterations, and {names} are around {self.loop.var.name}"
            raise fail("lower.roles", message, "one loop over all tiles, which s.fuse makes")
        return walked[0] if walked else None

    def _released_by_few(self, slot: Expr, where: Expr | None = None) -> Stmt:
        """Statement by which lane n arrives at the "empty" mbarrier of ``slot`` in block n of the cluster."""
        first = binary("<", self.lane.var, self.blocks)
        rank = self.lane.var if self.cluster is not None else None
        return If(first if where is None else binary("and", where, first), Arrive(self.empty, (slot,), rank=rank))

    def _released(self, slot: Expr) -> Stmt:
        """Statement in which each thread arrives at the "empty" mbarriers of ``slot`` in all blocks that fill it."""
        if self.cluster is None:
            return Arrive(self.empty, (slot,))
        rank = Var("rank", "index")
        return Loop(rank, as_expr(self.blocks), Arrive(self.empty, (slot,), rank=rank), Kind.UNROLL)

    def _plain(self, body: Stmt | None = None) -> Loop:
        """The loop, not unrolled: each iteration waits for an mbarrier, and compilers would unroll hundreds for
        nothing.
        """
        out = self.loop.marked(Pipelined(), UnrollBy(1))
        return out if body is None else out.replace(body=body)


def copies_of(stmts: list[Stmt], found: list[Buffer]) -> list[Stmt]:
    """Statements of an iteration that copy whole tiles into buffers ``found``; raises LoweringError ``lower.roles`` if
    there are none.
    """
    shared = {b for b in found if b.scope is Scope.SHARED}
    calls = [
        s for s in stmts if all(isinstance(x, IntrinCall) and x.intrin.maps and not x.intrin.stores for x in _leaves(s))
    ]
    made = [s for s in calls if has(s, Stage) and set(writes(s)) <= shared]
    if not made:
        raise fail("lower.roles", "no copies of whole tiles are left that a role could ask for", "exact splits")
    return made


def allocated_in(body: Stmt) -> list[Buffer]:
    """Buffers allocated in a part of ``body``."""
    return [x.buffer for x in find(body, Alloc)]


class _Without(Rewriter):
    """Rewriter: remove the Allocs of given buffers."""

    def __init__(self, buffers: Mapping[Buffer, Buffer]) -> None:
        self.buffers = buffers

    def on_Alloc(self, n: Alloc) -> Stmt:
        return self(n.body) if n.buffer in self.buffers else self.children(n)


def _leaves(s: Stmt) -> list[Stmt]:
    out = []
    for x in find(s, Stage):
        body = x.body
        while isinstance(body, If):
            body = body.then
        out.append(body)
    return out


def _around(body: Stmt, loop: Loop) -> list[Loop]:
    """Loops enclosing ``loop``; refuses conditions and computed extents, on which independent roles might disagree."""
    path: list[Stmt] = []
    at = body
    while at is not loop:
        path.append(at)
        at = next(c for c in at.children() if isinstance(c, Stmt) and (c is loop or loop in find(c, Loop)))
    if bad := [x for x in path if isinstance(x, If) or (isinstance(x, Loop) and not isinstance(x.extent, Const))]:
        what = "a condition" if isinstance(bad[0], If) else "a loop whose extent is computed"
        raise fail(
            "lower.roles", f"{what} is around {loop.var.name}, and its roles would have to agree on it", "exact splits"
        )
    return [x for x in path if isinstance(x, Loop)]


def _bytes(copy: Stmt) -> int:
    """Bytes that a copy transfers per iteration."""
    if isinstance(copy, Loop):
        return as_int(copy.extent) * _bytes(copy.body)
    if isinstance(copy, IntrinCall):
        tile = copy.operands[copy.intrin.operands.index(copy.intrin.outputs[0])]
        return int(math.prod(tile.extents)) * DTYPES[tile.buffer.dtype].bits // 8
    return sum([_bytes(c) for c in copy.children() if isinstance(c, Stmt)])


class _Shared(Rewriter):
    """Rewriter for tiles needed by all blocks of a cluster: each block multicasts an equal part of the rows."""

    def __init__(self, cluster: Loop) -> None:
        self.rank, self.blocks = cluster.var, as_int(cluster.extent)

    def on_IntrinCall(self, n: IntrinCall) -> IntrinCall:
        source, made = n.operands
        dims = n.intrin.operands[0].dims
        own = any(uses(i, {self.rank}) for i in source.first)
        part = dims[0] // self.blocks
        whole = len(dims) > 1 and dims[0] % self.blocks == 0 and part * math.prod(dims[1:-1]) % ATOM_ROWS == 0
        if own or not whole:
            return n
        intrin = tile_copy(made.buffer.dtype, (part, *dims[1:]), self.blocks, source.pixels is not None)

        def shifted(r: Region) -> Region:
            d = next(d for d, extent in enumerate(r.extents) if extent > 1)
            first = binary("+", r.first[d], binary("*", self.rank, r.span[d] // self.blocks))
            return r.replace(
                first=(*r.first[:d], first, *r.first[d + 1 :]), extents=(*r.extents[:d], part, *r.extents[d + 1 :])
            )

        return IntrinCall(intrin, (shifted(source), shifted(made)))


class _Signal(Rewriter):
    """Rewriter: copies arrive at mbarrier ``barrier`` when complete."""

    def __init__(self, barrier: Region) -> None:
        self.barrier = barrier

    def on_IntrinCall(self, n: IntrinCall) -> IntrinCall:
        return n.replace(signals=(self.barrier,))
