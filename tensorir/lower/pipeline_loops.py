"""Pass: software-pipeline loops, copying the next tile while the current one is used.

Copies through registers are double-buffered ("Efficient GEMM in CUDA", CUTLASS, section on software pipelining). The
first tile is copied before the loop. Each iteration loads the next tile into registers, computes on the current one,
and stores the registers into the other buffer. So the loads overlap the computation, and one barrier per iteration is
enough, as the buffer written is not read. Two iterations are unrolled, so that each half has constant buffers.

Asynchronous copies (cp.async) need no registers and may run further ahead: the buffers are slots of one array, and
iteration i uses slot i % depth (CUTLASS's multistage pipelines). The iteration waits for its own tile and then at a
barrier. After it, all tiles of this iteration are visible, and the slot it refills next is no longer read.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorir.ir.build import as_expr, as_int, binary
from tensorir.ir.marks import Pipelined, UnrollBy
from tensorir.ir.tree import (
    Alloc,
    Barrier,
    Buffer,
    CommitGroup,
    Const,
    Expr,
    Fence,
    If,
    IntrinCall,
    Load,
    Loop,
    Program,
    Scope,
    Stage,
    Stmt,
    Store,
    Var,
    WaitGroup,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, has, sequence, substitute, swap_buffers, writes
from tensorir.lower.form import each_nest, fail, lowering
from tensorir.lower.partition_loops import Twin, fresh_names
from tensorir.lower.rings import InSlot, allocated, allocs, ring
from tensorir.lower.tiles import read_whole
from tensorir.schedule.primitives.pipeline import copies_ahead, loaded_first, registers_of
from tensorir.target import Target


@lowering
def pipeline_loops(program: Program, target: Target) -> Program:
    """Expand software-pipelined loops to prologue, overlapped main loop and buffers.

    needs: buffers have their place and size;  gives: no loop has a depth

    Raises LoweringError ``lower.pipeline`` for a loop without copies that can run ahead, or of no constant extent.
    """
    if not find(program.body, Loop, lambda x: Pipelined.of(x).depth > 1):
        return program
    taken = {s.name for s in find(program.body, Stage)}
    return each_nest(program, _Pipeline(taken))


@dataclass(frozen=True)
class _Ahead:
    """One prefetched copy: ``load`` from memory to registers ``held``, ``store`` from there to its buffer."""

    load: Stmt
    store: Stmt
    held: tuple[Buffer, ...]


@dataclass(frozen=True, eq=False)
class _Body:
    """An iteration of the loop over ``var``: its copies, its other statements, and its private buffers."""

    var: Var
    trips: int
    copies: list[Stmt]
    rest: list[Stmt]
    own: list[Buffer]

    def iteration(self, here: Expr, mine: dict[Buffer, Buffer], other: dict[Buffer, Buffer]) -> Stmt:
        """Statement of iteration ``here``: load the tile of the next one, compute on buffers ``mine``, store that tile
        to buffers ``other``.
        """
        following = binary("+", here, 1)
        there = binary("<", following, self.trips)
        ahead = [_split(s) for s in self.copies]
        loads = sequence([substitute(a.load, {self.var: following}) for a in ahead])
        work = sequence([swap_buffers(substitute(s, {self.var: here}), mine) for s in self.rest])
        stores = sequence([swap_buffers(substitute(a.store, {self.var: following}), other) for a in ahead])
        out = sequence([If(there, loads), allocated(self.own, work), If(there, stores)])
        return allocated([b for a in ahead for b in a.held], out)


class _Pipeline(Rewriter):
    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def on_Loop(self, n: Loop) -> Stmt:
        n = self.children(n)
        pipe = Pipelined.of(n)
        if pipe.depth < 2 or (isinstance(n.extent, Const) and as_int(n.extent) < 2):
            return n.marked(Pipelined())  # one iteration has no other to copy for
        own, body = allocs(n.body)
        copies = copies_ahead(body, {b for b in own if b.scope is Scope.SHARED}, through=not pipe.later)
        if not copies or not isinstance(n.extent, Const):
            raise fail(
                "lower.pipeline",
                f"no iteration of {n.var.name} begins with copies into shared memory that could run ahead",
                "stage_in(…, scope='shared') at this loop, from tensors that it does not write",
            )
        filled = list(dict.fromkeys(b for s in copies for b in writes(s)))
        if pipe.later:
            return self._in_flight(n, own, [s for s in body if s not in copies], copies, filled)
        rest = [s for s in body if s not in copies]
        apart = {b: s for s in copies for b in registers_of(s, body) if b in own}
        copies = [allocated([b for b in apart if apart[b] is s], s) for s in copies]
        own, filled = [b for b in own if b not in apart], [b for b in filled if b.scope is Scope.SHARED]
        both = ({b: b for b in filled}, {b: b.replace(name=b.name) for b in filled})
        trips, pair = as_int(n.extent), Var(n.var.name, "index")
        one = _Body(n.var, trips, copies, rest, [b for b in own if b not in filled])
        even, odd = binary("*", pair, 2), binary("+", binary("*", pair, 2), 1)
        second = self._again(one.iteration(odd, both[1], both[0]))
        halves = [one.iteration(even, both[0], both[1]),
                  If(binary("<", odd, trips), second) if trips % 2 else second]  # fmt: skip
        first = [self._again(substitute(_through(_split(s)), {n.var: as_expr(0)})) for s in copies]
        loop = Loop(pair, as_expr(-(-trips // 2)), sequence(halves)).marked(UnrollBy.of(n))
        return allocated([b for buffers in both for b in buffers.values()], sequence([*first, loop]))

    def _in_flight(
        self, n: Loop, own: list[Buffer], rest: list[Stmt], copies: list[Stmt], filled: list[Buffer]
    ) -> Stmt:
        """The multi-stage form of loop ``n`` with asynchronous copies (cp.async)."""
        trips, depth = as_int(n.extent), Pipelined.of(n).depth
        ahead = depth - 1
        rings = {b: ring(b, depth) for b in filled}
        copy = _Later()(sequence(copies))

        def tile(body: Stmt, iteration: Expr, slot: Expr) -> Stmt:
            return InSlot(rings, slot)(substitute(body, {n.var: iteration}))  # type: ignore[no-any-return]

        first, there = Var(n.var.name, "index"), binary("+", n.var, ahead)
        start: Stmt = tile(copy, first, first)
        if trips < ahead:
            start = If(binary("<", first, trips), start)
        prologue = Loop(first, as_expr(ahead), sequence([start, CommitGroup()]))
        following = self._again(tile(copy, there, binary("%", there, depth)))
        work = allocated([b for b in own if b not in filled], tile(sequence(rest), n.var, n.var % depth))
        body = [
            WaitGroup(ahead - 1),
            *([Fence("async")] if read_whole(find(sequence(rest), IntrinCall)) & set(filled) else []),
            Barrier(),
            If(binary("<", there, trips), following),
            CommitGroup(),  # empty at the end: so that the same number is left to wait for
            work,
        ]
        loop = n.replace(body=sequence(body)).marked(Pipelined())
        return allocated(list(rings.values()), sequence([prologue, loop]))

    def _again(self, body: Stmt) -> Stmt:
        """A duplicate of ``body`` with new loop variables, stage names and local buffers."""
        twins = {a.buffer: a.buffer.replace(name=a.buffer.name) for a in find(body, Alloc)}
        return Twin(fresh_names(body, self.taken), twins, same=True)(body)  # type: ignore[no-any-return]


class _Later(Rewriter):
    """Rewriter: mark stores asynchronous, complete only when their group is awaited."""

    def on_Store(self, n: Store) -> Store:
        return n.replace(later=True)


def _split(copy: Stmt) -> _Ahead:
    """Split a copy: loads into one register per iteration of its stages, then stores from there. Registers it already
    uses are extended over the surrounding loops.
    """
    inside = set(registers_of(copy, [copy]))
    if inside:
        first = _Kept(set(loaded_first(copy, inside)), inside)
        load = first(copy)
        return _Ahead(load, _Kept(first.fetched, inside, first.kept)(copy), tuple(b for b, _ in first.kept.values()))
    loads = _Half()
    load = loads(copy)
    return _Ahead(load, _Half(loads.held)(copy), tuple(loads.held.values()))


def _through(ahead: _Ahead) -> Stmt:
    """An unsplit copy that still goes through registers, to load in vectors when the destination is scattered."""
    return allocated(list(ahead.held), sequence([ahead.load, ahead.store]))


class _Kept(Rewriter):
    """Rewriter: reduce a copy to its loads into registers ``fetched``; given ``kept``, to what it computes and stores
    from them.

    inside: all registers of the copy
    """

    def __init__(
        self,
        fetched: set[Buffer],
        inside: set[Buffer],
        kept: dict[Buffer, tuple[Buffer, tuple[Var, ...]]] | None = None,
    ) -> None:
        self.fetched, self.inside = fetched, inside
        self.second, self.kept = kept is not None, {} if kept is None else kept
        self.loops: list[Loop] = []

    def on_Loop(self, n: Loop) -> Stmt:
        self.loops.append(n)
        body = self(n.body)
        self.loops.pop()
        return n.replace(body=body) if has(body, Stage) else body

    def on_Alloc(self, n: Alloc) -> Stmt:
        if n.buffer not in self.fetched:
            body = self(n.body)
            return n.replace(body=body) if self.second or n.buffer not in self.inside else body
        if not self.second:
            around = tuple(x.extent for x in self.loops)
            more = n.buffer.replace(name=f"{n.buffer.name}_next", shape=(*around, *n.buffer.shape))
            self.kept[n.buffer] = more, ()
        self.kept[n.buffer] = self.kept[n.buffer][0], tuple(x.var for x in self.loops)
        return self(n.body)  # type: ignore[no-any-return]

    def on_Stage(self, n: Stage) -> Stmt:
        loads = bool(set(writes(n.body)) & self.fetched)
        return sequence([]) if loads == self.second else self.children(n)

    def on_Load(self, n: Load) -> Load:
        n = self.children(n)
        return Load(self.kept[n.buffer][0], self._at(n), n.dtype) if n.buffer in self.kept else n

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        return n.replace(buffer=self.kept[n.buffer][0], index=self._at(n)) if n.buffer in self.kept else n

    def _at(self, n: Load | Store) -> tuple[Expr, ...]:
        return (*self.kept[n.buffer][1], *n.index)


class _Half(Rewriter):
    """Rewriter: reduce a copy to its loads into new registers; given ``held``, to the stores from them."""

    def __init__(self, held: dict[str, Buffer] | None = None) -> None:
        self.second, self.held = held is not None, {} if held is None else held
        self.loops: list[Loop] = []

    def on_Loop(self, n: Loop) -> Loop:
        self.loops.append(n)
        out = self.children(n)
        self.loops.pop()
        return out

    def on_Stage(self, n: Stage) -> Stage:
        if self.second:
            return n.replace(body=self._half(n.body, self.held[n.name]))
        (buffer,) = writes(n.body)
        shape = tuple(x.extent for x in self.loops)
        self.held[n.name] = Buffer(f"{buffer.name}_next", shape, buffer.dtype, Scope.REGISTER)
        return n.replace(name=f"{n.name}.load", body=self._half(n.body, self.held[n.name]))

    def _half(self, body: Stmt, held: Buffer) -> Stmt:
        if isinstance(body, If):
            return body.replace(then=self._half(body.then, held))
        assert isinstance(body, Store)
        index = tuple(x.var for x in self.loops)
        if self.second:
            return body.replace(value=Load(held, index, body.value.dtype))
        return Store(held, index, body.value)
