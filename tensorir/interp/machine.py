"""Threads in NumPy: some blocks of a lowered kernel at once, one array lane each.

Statements are compiled to Python closures once per kernel, as expressions are (``lanes.py``); a loop iteration then
costs a few NumPy operations on all lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorir.errors import Problem
from tensorir.interp.frame import Action, Frame, KernelLike, Value
from tensorir.interp.lanes import Lanes
from tensorir.interp.lift import Lifts, at_once
from tensorir.interp.memory import Cells, Fault
from tensorir.interp.numbers import Numbers
from tensorir.interp.roles import Barriers
from tensorir.interp.tiles import copy_tile
from tensorir.interp.warps import collective
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
    Prefetch,
    Roles,
    Scope,
    Seq,
    Stmt,
    Store,
    Var,
    WaitGroup,
)  # fmt: skip
from tensorir.ir.visit import find, has

_Flight = tuple[Cells, np.ndarray, np.ndarray, np.ndarray]
"""Cells, where, and for each thread its number and its block."""


class Machine(Lanes):
    """Some blocks of a kernel that run: each kind of statement is a method that compiles it."""

    def __init__(self, k: KernelLike, memory: Mapping[Buffer, Cells], scalars: Mapping[Var, Any], numbers: Numbers,
                 blocks: Sequence[int] | np.ndarray, block_of: np.ndarray) -> None:  # fmt: skip
        super().__init__(k, memory, scalars, numbers, blocks, block_of)
        self.lifts = Lifts(k, numbers.exact)
        self.barriers = Barriers(self)
        self.leaving: list[_Flight] = []  # copies in flight that are no group yet, and those that are, oldest first
        self.groups: list[list[_Flight]] = []

    def go(self) -> None:
        """Run the kernel's body."""
        self.stmt(self.k.body)(self.frame)

    def stmt(self, s: Stmt) -> Action:
        """A closure that executes ``s``."""
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
        """The latest moment at which copies may land is the one that the text relies on."""
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
