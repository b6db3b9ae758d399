"""Pass: insert ``__syncthreads()`` or named barriers wherever threads of a block exchange data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorir.arith.affine import Arith
from tensorir.ir.build import as_int
from tensorir.ir.tree import (
    WARPS,
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Const,
    Expr,
    Fence,
    If,
    IntrinCall,
    Kind,
    Let,
    Load,
    Loop,
    Program,
    Region,
    Roles,
    Scope,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
    WaitGroup,
)  # fmt: skip
from tensorir.ir.visit import find, has, reads, sequence, uses, writes
from tensorir.lower.form import bound_loops, each_nest, fail, kernel_arith, lowering, rewrap, thread_count
from tensorir.lower.order_products import STORES
from tensorir.lower.tiles import read_whole
from tensorir.schedule.analysis import in_loops
from tensorir.target import Target


@lowering
def insert_barriers(program: Program, target: Target) -> Program:
    """Insert barriers between writes and later reads, and reads and later writes, by different threads.

    gives: no two threads touch one shared cell, one of them writing, without a barrier between; the interpreter
           checks exactly this

    Raises LoweringError ``lower.divergent-barrier`` where only some threads would reach one.
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        written = {b for s in find(body, Stage) for b in writes(s.body)}
        calls = find(body, IntrinCall)
        signalled = {b for c in calls if c.signals for b in writes(c)}
        leaving = {b for c in calls if c.intrin.stores for b in reads(c)}
        threads = {x.var for x in axes if x.kind.level == "thread"}
        tiles = _Tiles(signalled, read_whole(calls) - signalled, leaving)
        if thread_count(axes) == 1 and not (
            tiles.async_read or leaving
        ):  # else an asynchronous unit runs next to the one thread
            return nest
        owners = _Owners(axes, kernel_arith(program.known, axes, body))
        return rewrap(axes, _Sync(written, threads, tiles, owners).visit(body, _Touched())[0])

    return each_nest(program, kernel)


@dataclass(frozen=True)
class _Slot:
    """Slot of a ring buffer used by an access: ``(base + offset) % slots``, with ``base`` the loop variable."""

    base: Var
    offset: int
    slots: int

    def apart(self, o: _Slot | None) -> bool:
        """True if this access and ``o`` provably use different slots of one ring in each iteration; False if ``o`` is
        None.
        """
        same_ring = o is not None and o.base is self.base and o.slots == self.slots
        return o is not None and same_ring and (self.offset - o.offset) % self.slots != 0


@dataclass(frozen=True)
class _Owner:
    """The owning thread as a function of the element index: accesses by owners alone need no barrier.

    ``index[dim] = sum(c * thread) + part + whole``, each c at least the span of the threads before it, part in
    [0, least c), whole a multiple of the span of all: modulo that, elements of different threads never coincide.

    dims: (dim, {(thread, c)}, span) for each dimension that determines threads; all are determined
    """

    dims: frozenset[tuple[int, frozenset[tuple[Var, int]], int]]


_Access = tuple[Buffer, str, "_Slot | None", "_Owner | None"]


@dataclass(frozen=True)
class _Touched:
    """Accesses since the last barrier: (buffer, stage that computes, ring slot or None, owning threads if known)."""

    read: frozenset[_Access] = frozenset()
    written: frozenset[_Access] = frozenset()

    def __or__(self, o: _Touched) -> _Touched:
        return _Touched(self.read | o.read, self.written | o.written)

    def conflicts(self, o: _Touched) -> set[Buffer]:
        """Buffers accessed by two different stages with at least one write, unless slots or owners keep them apart."""
        return {
            a for mine, theirs in ((self.written, o.read), (self.written, o.written), (self.read, o.written))
            for a, s, slot, owner in mine for b, t, other, whose in theirs
            if a is b and s != t and not (slot and slot.apart(other)) and (owner is None or owner != whose)
        }  # fmt: skip

    def in_any_iteration(self, of: Var) -> _Touched:
        """The same accesses as seen from another iteration of the loop over ``of``: ring slots become unknown."""

        def said(found: frozenset[_Access]) -> frozenset[_Access]:
            return frozenset((b, s, None if slot and slot.base is of else slot, own) for b, s, slot, own in found)

        return _Touched(said(self.read), said(self.written))


@dataclass(frozen=True)
class _Tiles:
    """Sets of buffers accessed as whole tiles: TMA destinations awaited at mbarriers; operands of asynchronous
    instructions, whose writers need a proxy fence; and TMA store sources among them.
    """

    signalled: set[Buffer]
    async_read: set[Buffer]
    leaving: set[Buffer]


class _Sync:
    """Barrier insertion. meeting: threads per barrier, 0 for the whole block;  turn: which ping-pong set of a role"""

    def __init__(self, written: set[Buffer], threads: set[Var], tiles: _Tiles, owners: _Owners | None,
                 meeting: int = 0, turn: Var | None = None) -> None:  # fmt: skip
        self.written, self.threads, self.tiles, self.owners = written, threads, tiles, owners
        self.meeting, self.turn = meeting, turn

    def visit(self, s: Stmt, before: _Touched) -> tuple[Stmt, _Touched, _Touched]:
        """(statement with barriers, accesses since its last barrier, accesses before its first barrier)."""
        if isinstance(s, If) and not uses(s.cond, self.threads):
            # all threads of the block go the same way, so they may wait inside; or they pass by, and nobody waits
            then, after, head = self.visit(s.then, _Touched())
            return s.replace(then=then), before | after, head
        if isinstance(s, Stage | If):
            return s, *self._leaf(s, before)
        if isinstance(s, Seq):
            return self._seq(s, before)
        if isinstance(s, Alloc | Let):
            body, after, head = self.visit(s.body, before)
            return s.replace(body=body), after, head
        if isinstance(s, Loop):
            return self._loop(s, before)
        if isinstance(s, Roles):
            return self._roles(s), _Touched(), _Touched()
        return s, before, _Touched()

    def _roles(self, s: Roles) -> Roles:
        """Each warp-specialized role synchronized separately; mbarriers order data between roles."""
        done = []
        for r in s.roles:
            meeting = r.at_once * Kind.WARPGROUP.lanes
            sync = _Sync(self.written, self.threads | {r.var}, self.tiles, None, meeting, r.turn)
            done.append(r.replace(body=sync.visit(r.body, _Touched())[0]))
        return s.replace(roles=tuple(done))

    def _barrier(self, buffers: set[Buffer], before: _Touched) -> Stmt:
        """A statement that orders accesses to ``buffers`` before it and after it."""
        scopes = {b.scope for b in buffers}
        meet = Barrier(tuple(x for x in (Scope.SHARED, Scope.GLOBAL) if x in scopes), self.meeting, self.turn)
        return sequence([*self._settled(before), meet])

    def _settled(self, before: _Touched) -> list[Stmt]:
        """Statements required before any barrier: wait for pending stores of tiles, and fence writes to shared memory
        that asynchronous units read.
        """
        gone = self.tiles.leaving & {b for b, *_ in before.read}
        seen = self.tiles.async_read & {b for b, *_ in before.written}
        return [*([WaitGroup(0, STORES)] if gone else []), *([Fence("async")] if seen else [])]

    def _leaf(self, s: Stmt, before: _Touched) -> tuple[_Touched, _Touched]:
        mine = _Touched()
        for stage in find(s, Stage):
            one = self._touches(stage)
            if isinstance(s, If) and mine.conflicts(one):
                raise fail(
                    "lower.divergent-barrier",
                    f"{stage.name} needs a barrier inside a condition that not all threads share",
                    "exact splits around shared memory; specialize by conditions without thread indices",
                )
            mine |= one
        return before | mine, mine

    def _touches(self, s: Stage) -> _Touched:
        def shared(b: Buffer) -> bool:
            return (b.scope is Scope.SHARED and b not in self.tiles.signalled) or (
                b.scope is Scope.GLOBAL and b in self.written
            )

        def access(b: Buffer) -> _Access:
            slot = self._slot(b, s)
            return b, s.of or s.name, slot, None if slot or self.owners is None else self.owners.of(b, s)

        return _Touched(
            frozenset(access(b) for b in reads(s) if shared(b)),
            frozenset(access(b) for b in writes(s.body) if shared(b)),
        )

    def _slot(self, b: Buffer, s: Stage) -> _Slot | None:
        slot = _slot_of(b, s)
        return None if slot is not None and slot.base in self.threads else slot  # another thread's is another slot

    def _seq(self, s: Seq, before: _Touched) -> tuple[Stmt, _Touched, _Touched]:
        out: list[Stmt] = []
        head, open_ = _Touched(), True  # still before the first barrier
        since = before
        for x in s.stmts:
            body, after, first = self.visit(x, _Touched())
            if clash := since.conflicts(first):
                out.append(self._barrier(clash, since))
                if open_:
                    open_ = False
                since = _Touched()
            if open_:
                head |= first
            inner = _waits(body)
            if has(body, Barrier):  # perhaps under a condition
                out += self._settled(since)
            since = after if inner else since | after
            open_ = open_ and not inner
            out.append(body)
        return sequence(out), since, head

    def _loop(self, s: Loop, before: _Touched) -> tuple[Stmt, _Touched, _Touched]:
        body, after, head = self.visit(s.body, _Touched())
        after, head = after.in_any_iteration(s.var), head.in_any_iteration(s.var)
        once = isinstance(s.extent, Const) and s.extent.value <= 1
        clash: set[Buffer] = set()
        if not once and (clash := after.conflicts(head)):
            meet = self._barrier(clash, after)
            if clash <= self.tiles.leaving and (first := _before_writes(body, clash, meet, self.threads)) is not None:
                body = first  # an asynchronous store has an iteration's time to leave
            else:
                body = sequence([body, meet])
                after = _Touched()
        if not once and has(body, Barrier):
            body = self._handed_on(body, after, clash)
        if not _waits(body):
            after = before | after
        return s.replace(body=body), after, head

    def _handed_on(self, body: Stmt, after: _Touched, met: set[Buffer]) -> Stmt:
        """A loop body followed by the waits that the next iteration's first barrier requires, if that barrier is for
        other buffers than ``met``.
        """
        gone = (self.tiles.leaving & {b for b, *_ in after.read} & {*writes(body)}) - met
        seen = self.tiles.async_read & {b for b, *_ in after.written}
        if gone:
            meet = sequence([WaitGroup(0, STORES), Barrier((Scope.SHARED,), self.meeting, self.turn)])
            first = _before_writes(body, gone, meet, self.threads)
            body = sequence([body, meet]) if first is None else first
        return sequence([body, Fence("async")]) if seen else body


def _before_writes(s: Stmt, buffers: set[Buffer], meet: Stmt, threads: set[Var]) -> Stmt | None:
    """``s`` with barrier ``meet`` inserted before its first write to one of ``buffers``; None if impossible."""
    if isinstance(s, Alloc | Let):
        body = _before_writes(s.body, buffers, meet, threads)
        return None if body is None else s.replace(body=body)
    if isinstance(s, If) and not uses(s.cond, threads):
        body = _before_writes(s.then, buffers, meet, threads)
        return None if body is None else s.replace(then=body)
    if not isinstance(s, Seq):
        return None
    n = next((n for n, x in enumerate(s.stmts) if buffers & {*writes(x)}), None)
    if n is None:
        return None
    waits = meet.stmts if isinstance(meet, Seq) else (meet,)
    if n and _same_meeting(s.stmts[n - 1], waits[-1]):  # the others are at a barrier already
        return sequence([*s.stmts[: n - 1], *waits[:-1], *s.stmts[n - 1 :]])
    return sequence([*s.stmts[:n], meet, *s.stmts[n:]])


def _same_meeting(a: Stmt, b: Stmt) -> bool:
    """True if barrier ``a`` includes ``b``: same threads, and all of its memory scopes."""
    return (
        isinstance(a, Barrier) and isinstance(b, Barrier) and {*b.scopes} <= {*a.scopes}
        and a.threads == b.threads and a.turn is b.turn
    )  # fmt: skip


class _Owners:
    """Determines which thread of a block owns the elements that a stage accesses."""

    def __init__(self, axes: list[Loop], arith: Arith) -> None:
        threads = [x for x in axes if x.kind.level == "thread" and as_int(x.extent) > 1]
        self.warps = any(x.kind in WARPS for x in axes)
        self.sizes, self.arith = {x.var: as_int(x.extent) for x in threads}, arith

    def of(self, b: Buffer, s: Stage) -> _Owner | None:
        """Owner of the elements of ``b`` accessed in stage ``s``; None if indices do not determine it."""
        if self.warps or has(s, IntrinCall):
            return None
        found = set[_Owner | None]()
        for n in find(s, (Load, Store, Update)):
            if isinstance(n, Load | Store | Update) and b in (n.buffers if isinstance(n, Update) else (n.buffer,)):
                found.add(self._told([in_loops(i, s) for i in n.index]))
        return found.pop() if len(found) == 1 else None

    def _told(self, index: Sequence[Expr]) -> _Owner | None:
        dims = [(d, *found) for d, i in enumerate(index) if (found := self._threads(i)) is not None]
        told = {v for _, threads, _ in dims for v, _ in threads}
        return _Owner(frozenset(dims)) if told == {*self.sizes} else None

    def _threads(self, index: Expr) -> tuple[frozenset[tuple[Var, int]], int] | None:
        """({(thread variable, factor)}, span) of an index that determines its threads; None for others."""
        form = self.arith.linear(index)
        threads = [(v, int(c)) for v, c in form.terms.items() if isinstance(v, Var) and v in self.sizes]
        others = [(t, int(c)) for t, c in form.terms.items() if not (isinstance(t, Var) and t in self.sizes)]
        if not threads or any(c <= 0 for _, c in threads) or any(uses(t, set(self.sizes)) for t, _ in others):
            return None
        threads.sort(key=lambda at: at[1])
        least, reach = threads[0][1], 1
        for v, c in threads:
            if c < reach:
                return None
            reach = c * self.sizes[v]
        low = high = float(form.constant % reach)
        for t, c in others:
            if c % reach:
                first, last = (c * x for x in self.arith.range(t))
                low, high = low + min(first, last), high + max(first, last)
        return (frozenset(threads), reach) if low >= 0 and high < least else None


def _slot_of(b: Buffer, s: Stage) -> _Slot | None:
    """Ring slot shared by all accesses of ``b`` in a stage; None if ``b`` is no ring or slots differ."""
    found: set[_Slot | None] = set()
    for n in find(s.body, (Load, Store, Region)):
        if isinstance(n, Load | Store | Region) and n.buffer is b:
            index = n.first if isinstance(n, Region) else n.index
            first, slot = index[0] if index else None, None
            if isinstance(first, Binary) and first.op == "%" and isinstance(first.b, Const):
                form = Arith().linear(first.a)
                terms = list(form.terms.items())
                if len(terms) == 1 and isinstance(terms[0][0], Var) and terms[0][1] == 1:
                    slot = _Slot(terms[0][0], form.constant, as_int(first.b))
            found.add(slot)
    return found.pop() if len(found) == 1 else None


def _waits(s: Stmt) -> bool:
    """True if executing ``s`` certainly passes a barrier."""
    if not has(s, Barrier) or isinstance(s, If):
        return False
    return isinstance(s, Barrier) or any(_waits(c) for c in s.children() if isinstance(c, Stmt))
