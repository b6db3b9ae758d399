"""Threads in NumPy: some blocks of a lowered kernel at once, one array lane each.

Statements and expressions are compiled to Python closures once per kernel; a loop iteration then costs a few NumPy
operations on all lanes. An index is split into a part that depends on the thread only, computed once, and a part in
loop variables, which is a Python integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from tensorir.arith.affine import Arith
from tensorir.errors import Problem
from tensorir.interp.apart import PRIVATE
from tensorir.interp.lift import Lifts, at_once
from tensorir.interp.memory import Cells, Fault
from tensorir.interp.numbers import Numbers
from tensorir.interp.products import Later, Touched
from tensorir.interp.roles import Barriers
from tensorir.interp.tiles import copy_tile
from tensorir.interp.warps import collective
from tensorir.ir.build import as_int
from tensorir.ir.tree import (
    Alloc,
    Arrive,
    Await,
    Barrier,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    CommitGroup,
    Const,
    Expr,
    Fence,
    If,
    InitBarriers,
    IntrinCall,
    Kind,
    Let,
    Load,
    Loop,
    Pack,
    Prefetch,
    Ramp,
    Roles,
    Scope,
    Select,
    Seq,
    Stmt,
    Store,
    Unary,
    Var,
    WaitGroup,
)  # fmt: skip
from tensorir.ir.visit import find, lanes_of


class KernelLike(Protocol):
    """What the interpreter needs of a lowered kernel (``lower.kernel.Kernel``)."""

    @property
    def params(self) -> tuple[Buffer, ...]: ...
    @property
    def axes(self) -> tuple[Loop, ...]: ...
    @property
    def body(self) -> Stmt: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def block(self) -> tuple[int, int, int]: ...


class Frame:
    """The lanes that are active: thread-dependent values as arrays over them.

    own:    for each depth of loops that run at once the numbers of the lanes' own memory allocated there
    wanted: the lanes of a vector whose values go anywhere, by thread; None for all
    """

    __slots__ = ("block", "cache", "env", "lane", "me", "own", "wanted")

    def __init__(self, env: dict[Var, Any], lane: np.ndarray, block: np.ndarray, me: np.ndarray,
                 own: tuple[np.ndarray, ...] = ()) -> None:  # fmt: skip
        self.env, self.lane, self.block, self.me = env, lane, block, me
        self.own = own or (lane,)
        self.cache: dict[Any, Any] = {}
        self.wanted: np.ndarray | None = None

    def only(self, mask: np.ndarray) -> Frame:
        env = {v: x[mask] if isinstance(x, np.ndarray) and x.ndim else x for v, x in self.env.items()}
        lane, *deeper = [x[mask] for x in self.own]
        some = Frame(env, lane, self.block[mask], self.me[mask], (lane, *deeper))
        some.wanted = None if self.wanted is None else self.wanted[mask]
        return some

    def wanting(self, lanes: np.ndarray) -> Frame:
        """The same threads, of whose vectors these lanes (of those wanted so far) go anywhere."""
        some = Frame(self.env, self.lane, self.block, self.me, self.own)
        some.cache = self.cache
        some.wanted = lanes if self.wanted is None else lanes & self.wanted
        return some

    def wanted_of(self, where: np.ndarray) -> np.ndarray | None:
        """Which of the cells that vectors, or threads, read go anywhere."""
        if self.wanted is None:
            return None
        return np.broadcast_to(self.wanted, where.shape) if where.ndim == 2 else np.asarray(self.wanted.any(axis=1))

    def repeated(self, times: int, values: Mapping[Var, np.ndarray], private: bool = False) -> Frame:
        """Each lane ``times`` times, side by side, with these ``values`` (of so many lanes) besides its own.

        private: they are lanes with memory of their own
        """
        env = {v: np.repeat(x, times) if isinstance(x, np.ndarray) and x.ndim else x for v, x in self.env.items()}
        env.update({v: np.tile(x, len(self.lane)) for v, x in values.items()})
        lane, *deeper = [np.repeat(x, times) for x in self.own]
        if private:
            deeper.append((self.own[-1][:, None] * times + np.arange(times)).ravel())
        return Frame(env, lane, np.repeat(self.block, times), np.repeat(self.me, times), (lane, *deeper))


_Flight = tuple[Cells, np.ndarray, np.ndarray, np.ndarray]
"""Cells, where, and for each thread its number and its block."""
Value = Callable[[Frame], Any]
Action = Callable[[Frame], None]


class Machine:
    """Some blocks of a kernel: one lane a thread, each kind of statement and expression a method that compiles it."""

    def __init__(self, k: KernelLike, memory: Mapping[Buffer, Cells], scalars: Mapping[Var, Any], numbers: Numbers,
                 blocks: range, block_of: np.ndarray) -> None:  # fmt: skip
        self.k, self.n, self.block_of = k, numbers, block_of
        self.memory = dict(memory)
        bx, by, bz = k.block
        gx, gy, _ = k.grid
        self.cluster = next((as_int(x.extent) for x in k.axes if x.kind is Kind.CLUSTER), 1)
        self.threads, self.blocks = bx * by * bz, len(blocks)
        t, b = np.arange(self.threads), np.arange(blocks.start, blocks.stop)
        thread, block = np.tile(t, self.blocks), np.repeat(b, self.threads)
        hardware = {
            Kind.THREAD_X: thread % bx, Kind.THREAD_Y: thread // bx % by, Kind.THREAD_Z: thread // (bx * by),
            Kind.BLOCK_X: block % gx // self.cluster, Kind.BLOCK_Y: block // gx % gy, Kind.BLOCK_Z: block // (gx * gy),
            Kind.CLUSTER: block % gx % self.cluster,
        }  # fmt: skip
        env: dict[Var, Any] = {x.var: hardware[x.kind] for x in k.axes}
        self.hardware = set(env)
        env.update(scalars)
        self.epoch = np.zeros(self.blocks, np.int32)
        self.frame = Frame(env, np.arange(len(thread)), block - blocks.start, block * self.threads + thread)
        self.arith = Arith()
        self.lifts = Lifts(k, numbers.exact)
        self.lanes, self.copies = len(thread), [len(thread)]  # in the loops that are compiled, and of own memory there
        self.depth: dict[Buffer, int] = {}
        self.leaving: list[_Flight] = []  # copies under way that are no group yet, and those that are, oldest first
        self.groups: list[list[_Flight]] = []
        self.barriers = Barriers(self)
        self.later = Later()

    def go(self) -> None:
        """Run the kernel's body."""
        self.stmt(self.k.body)(self.frame)

    # --- statements

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
                return copy_tile(self, s)
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

    @contextmanager
    def widened(self, inner: set[Var], times: int, private: bool) -> Iterator[set[Var]]:
        """What is compiled meanwhile runs on so many times the lanes, which tell the loop variables ``inner``; gives
        what each lane knew before.
        """
        known, lanes = self.hardware, self.lanes
        self.hardware, self.lanes = known | inner, lanes * times
        if private:
            self.copies.append(self.copies[-1] * times)
        yield known
        if private:
            self.copies.pop()
        self.hardware, self.lanes = known, lanes

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
        private = self._is_private(s.buffer)
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

    def _is_private(self, b: Buffer) -> bool:
        """Whether each lane has a buffer of its own: shared memory, too, where a block is one thread."""
        return b.scope in PRIVATE or (b.scope is Scope.SHARED and self.threads == 1 and self.cluster == 1)

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

    def begin_product(self, made: list[Touched], read: list[Touched]) -> None:
        """An instruction of warpgroups is under way: its registers wait for it, and what it reads has to stay."""
        self.later.of["products"].begin(made, read)

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
        if not find(s.value, Load) and all(v in self.hardware for v in find(s.value, Var)):
            self.hardware = self.hardware | {s.var}  # the same in every iteration: addresses may be kept
        value, body, var = self.expr(s.value), self.stmt(s.body), s.var

        def run(f: Frame) -> None:
            f.env[var] = value(f)
            body(f)

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

    def who(self, f: Frame, where: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The threads that access cells, the barriers they have passed, and the blocks of all threads."""
        me, now = f.me, self.epoch[f.block]
        if where.ndim == 2:
            me, now = me[:, None], now[:, None]
        return me, now, self.block_of

    # --- addresses

    def cells_of(self, b: Buffer, i: Expr) -> Callable[[Frame], np.ndarray]:
        """Absolute cells of an access, one per lane (and per vector lane)."""
        cells = self.memory[b]
        ramp = isinstance(i, Ramp)
        width = i.lanes if isinstance(i, Ramp) else b.lanes
        scale = 1 if isinstance(i, Ramp) else b.lanes
        fixed, moving = self._split(i.base if isinstance(i, Ramp) else i)
        size, name = cells.size, b.name
        spread = np.arange(width) if ramp or b.lanes > 1 else None
        key = id(fixed), b
        private, depth = self._is_private(b), self.depth.get(b, 0)

        def run(f: Frame) -> np.ndarray:
            found = f.cache.get(key)
            if found is None:
                base = np.broadcast_to(np.asarray(fixed(f)) * scale, f.lane.shape)
                copy = f.own[depth] if private else f.block if b.scope is Scope.SHARED else 0
                home = base + copy * size
                if spread is not None:
                    home = home[:, None] + spread
                found = home, *_bounds(base)
                f.cache[key] = found
            home, low, high = found
            step = moving(f)
            if isinstance(step, np.ndarray):
                step = step * scale
                exact = np.asarray(fixed(f)) * scale + step
                low, high = _bounds(exact)
                out = home + (step if spread is None else step[:, None])
            else:
                step *= scale
                low, high = low + step, high + step
                out = home + step
            if len(f.lane) and (low < 0 or high + width > size):
                bad = low if low < 0 else high + width - 1
                raise Fault(Problem("memory.out-of-bounds", f"{name}[{bad}] is outside the {size} elements of {name}"))
            return out  # type: ignore[no-any-return]

        return run

    def _split(self, i: Expr) -> tuple[Value, Value]:
        """An index as a part fixed per thread and a part that loops move."""
        form = self.arith.linear(i)
        fixed, loops, other = [], [], []
        for atom, c in form.terms.items():
            names = find(atom, Var)
            if not find(atom, Load) and all(v in self.hardware for v in names):
                fixed.append((self.expr(atom), c))
            elif isinstance(atom, Var):
                loops.append((atom, c))
            else:
                other.append((self.expr(atom), c))
        constant = form.constant

        def first(f: Frame) -> Any:
            out: Any = constant
            for e, c in fixed:
                out = out + e(f) * c
            return out

        def rest(f: Frame) -> Any:
            out: Any = 0
            for v, c in loops:
                out = out + f.env[v] * c
            for e, c in other:
                out = out + e(f) * c
            return out

        return first, rest

    # --- expressions

    def expr(self, e: Expr) -> Value:
        """A closure that evaluates ``e``."""
        n = self.n
        match e:
            case Const():
                value = n.const(e.value, e.dtype)
                return lambda f: value
            case Var():
                return lambda f: f.env[e]
            case Load():
                return self._load(e)
            case Binary():
                if e.op in ("and", "or") and lanes_of(e) == 1 and find(e.b, Load):
                    return self._lazily(e)
                a, b, op, kind = self.expr(e.a), self.expr(e.b), e.op, e.a.dtype
                return lambda f: n.binary(op, a(f), b(f), kind)
            case Select():
                return self._select(e)
            case Cast():
                a, old, new = self.expr(e.a), e.a.dtype, e.dtype
                return lambda f: n.cast(a(f), old, new)
            case Unary():
                a, op, kind = self.expr(e.a), e.op, e.dtype
                return lambda f: n.unary(op, a(f), kind)
            case Call():
                args, fn, kind, given = [self.expr(x) for x in e.args], e.fn, e.dtype, e.args[0].dtype
                return lambda f: n.call(fn, [x(f) for x in args], kind, given)
            case Broadcast():
                a = self.expr(e.value)
                return lambda f: _column(a(f))
            case Pack():
                items = [self.expr(i) for i in e.items]
                return lambda f: np.stack([np.broadcast_to(i(f), f.lane.shape) for i in items], axis=-1)
        raise Fault(Problem("interp.not-lowered", f"{type(e).__name__} has no meaning in a lowered kernel"))

    def _load(self, e: Load) -> Value:
        cells, at = self.memory[e.buffer], self.cells_of(e.buffer, e.index[0])

        def run(f: Frame) -> Any:
            where = at(f)
            if cells.watched:
                return cells.read(where, *self.who(f, where), f.wanted_of(where))
            if cells.written is not None:
                cells.need_written(where, f.wanted_of(where))
            return cells.values[where]

        return run

    def _lazily(self, e: Binary) -> Value:
        """``&&`` and ``||`` look at their right side only where the left one leaves the answer open."""
        a, b, both = self.expr(e.a), self.expr(e.b), e.op == "and"

        def run(f: Frame) -> Any:
            c = a(f)
            if not isinstance(c, np.ndarray) or c.ndim == 0:
                return b(f) if bool(c) == both else c
            still = c if both else ~c
            if still.all():
                return b(f)
            if not still.any():
                return c
            out = c.copy()
            out[still] = b(f.only(still))
            return out

        return run

    def _select(self, e: Select) -> Value:
        """Only the chosen side is evaluated, lane by lane."""
        cond, a, b, kind = self.expr(e.cond), self.expr(e.a), self.expr(e.b), self.n.storage(e.dtype)
        lanes = lanes_of(e)
        vector, each = lanes > 1, lanes_of(e.cond) > 1

        def run(f: Frame) -> Any:
            c = cond(f)
            if each:  # both sides are computed in all lanes
                c = np.broadcast_to(c, (len(f.lane), lanes))
                return np.asarray(np.where(c, a(f.wanting(c)), b(f.wanting(~c))), kind)
            if not isinstance(c, np.ndarray) or c.ndim == 0:
                return a(f) if c else b(f)
            if c.all():
                return a(f)
            if not c.any():
                return b(f)
            yes, no = a(f.only(c)), b(f.only(~c))
            wide = [np.asarray(x).shape[-1] for x in (yes, no) if np.asarray(x).ndim == 2]
            out = np.zeros((len(c), max(wide, default=1)) if vector else len(c), kind)  # equal lanes may be one column
            out[c], out[~c] = yes, no
            return out

        return run


def _bounds(x: np.ndarray) -> tuple[int, int]:
    return (int(x.min()), int(x.max())) if x.size else (0, 0)


def _column(x: Any) -> Any:
    return x[:, None] if isinstance(x, np.ndarray) and x.ndim == 1 else x
