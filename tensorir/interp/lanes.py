"""Compiles a kernel's expressions and addresses to Python closures over arrays with one element per thread.

Expressions are compiled to Python closures once per kernel. An index is split into a part that depends on the thread
only, computed once, and a part in loop variables, which is a Python integer.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorir.arith.affine import Arith
from tensorir.errors import Problem
from tensorir.interp.distinct_cells import PRIVATE_SCOPES
from tensorir.interp.frame import Action, Frame, KernelLike, Value
from tensorir.interp.memory import Cells, Fault
from tensorir.interp.numbers import Numbers
from tensorir.ir.build import as_int
from tensorir.ir.lanes import lanes_of
from tensorir.ir.tree import (
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Kind,
    Load,
    Pack,
    Ramp,
    Scope,
    Select,
    Shuffle,
    Stmt,
    Unary,
    Var,
)  # fmt: skip
from tensorir.ir.visit import find, has


class Lanes(ABC):
    """Compiler of a kernel's expressions and addresses to closures that evaluate them for some blocks, as arrays with
    one element per thread.
    """

    def __init__(self, k: KernelLike, memory: Mapping[Buffer, Cells], scalars: Mapping[Var, Any], numbers: Numbers,
                 blocks: Sequence[int] | np.ndarray, block_of: np.ndarray) -> None:  # fmt: skip
        self.k, self.n, self.block_of = k, numbers, block_of
        self.memory = dict(memory)
        bx, by, bz = k.block
        gx, gy, _ = k.grid
        self.cluster = next((as_int(x.extent) for x in k.axes if x.kind is Kind.CLUSTER), 1)
        self.threads, self.blocks = bx * by * bz, len(blocks)
        t, b = np.arange(self.threads), np.asarray(blocks)
        thread, at = np.tile(t, self.blocks), np.repeat(np.arange(self.blocks), self.threads)
        each = {
            Kind.THREAD_X: t % bx, Kind.THREAD_Y: t // bx % by, Kind.THREAD_Z: t // (bx * by),
            Kind.BLOCK_X: b % gx // self.cluster, Kind.BLOCK_Y: b // gx % gy, Kind.BLOCK_Z: b // (gx * gy),
            Kind.CLUSTER: b % gx % self.cluster,
        }  # fmt: skip
        env: dict[Var, Any] = {
            x.var: np.tile(each[x.kind], self.blocks) if x.kind.level == "thread" else each[x.kind][at] for x in k.axes
        }
        self.hardware = set(env)
        env.update(scalars)
        self.epoch = np.zeros(self.blocks, np.int32)
        self.frame = Frame(env, np.arange(len(thread)), at, b[at] * self.threads + thread)
        self.arith = Arith()
        self._steady = False  # whether what is compiled is a part of what is kept
        self.lanes, self.copies = len(thread), [len(thread)]  # in the loops that are compiled, and of own memory there
        self.depth: dict[Buffer, int] = {}
        self.later = Later()

    @abstractmethod
    def stmt(self, s: Stmt) -> Action:
        """A closure that executes ``s`` for the lanes of a Frame."""

    @contextmanager
    def widened(self, inner: set[Var], times: int, private: bool) -> Iterator[set[Var]]:
        """Context manager: inside, code is compiled for ``times`` as many lanes, in which the loop variables ``inner``
        are known. Yields the variables known outside.

        private: True if each of the new lanes has separate private memory
        """
        known, lanes = self.hardware, self.lanes
        self.hardware, self.lanes = known | inner, lanes * times
        if private:
            self.copies.append(self.copies[-1] * times)
        yield known
        if private:
            self.copies.pop()
        self.hardware, self.lanes = known, lanes

    def is_private(self, b: Buffer) -> bool:
        """True if each lane has its own copy of ``b`` (also shared memory of one-thread blocks)."""
        return b.scope in PRIVATE_SCOPES or (b.scope is Scope.SHARED and self.threads == 1 and self.cluster == 1)

    def begin_product(self, made: list[Touched], read: list[Touched]) -> None:
        """Begin an asynchronous warpgroup product: until it is awaited, accumulators ``made`` may not be accessed and
        inputs ``read`` may not change.
        """
        self.later.of["products"].begin(made, read)

    def who(self, f: Frame, where: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(numbers of the accessing threads, their barrier epochs, block number of every thread), shaped for the
        element numbers ``where``.
        """
        me, now = f.me, self.epoch[f.block]
        if where.ndim == 2:
            me, now = me[:, None], now[:, None]
        return me, now, self.block_of

    # --- addresses

    def cells_of(self, b: Buffer, i: Expr) -> Callable[[Frame], np.ndarray]:
        """Function from a Frame to the element numbers, in the memory of all copies of ``b``, that index ``i`` denotes:
        one per lane, or a row per lane for vectors. It raises Fault ``memory.out-of-bounds``.
        """
        cells = self.memory[b]
        ramp = isinstance(i, Ramp)
        width = i.lanes if isinstance(i, Ramp) else b.lanes
        scale = 1 if isinstance(i, Ramp) else b.lanes
        fixed, moving = self._split(i.base if isinstance(i, Ramp) else i)
        size, name = cells.size, b.name
        spread = np.arange(width) if ramp or b.lanes > 1 else None
        key = id(fixed), b
        private, depth = self.is_private(b), self.depth.get(b, 0)

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
        """Closures (part that depends on threads only, part that depends on loops) whose sum is the index."""
        form = self.arith.linear(i)
        fixed, loops, other = [], [], []
        for atom, c in form.terms.items():
            names = find(atom, Var)
            if not has(atom, Load) and all(v in self.hardware for v in names):
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
        """Closure that evaluates ``e`` for the lanes of a Frame; its value is cached if it depends on threads and
        blocks only.
        """
        if self._steady or type(e) is not Binary or not self._stays(e):
            return self._compiled(e)
        self._steady = True
        value, key = self._compiled(e), object()
        self._steady = False

        def run(f: Frame) -> Any:
            found = f.cache.get(key)
            if found is None:
                found = f.cache[key] = value(f)
            return found

        return run

    def _stays(self, e: Expr) -> bool:
        """True if ``e`` depends on threads and blocks only."""
        names = find(e, Var)
        return bool(names) and not has(e, Load) and all(v in self.hardware for v in names)

    def _compiled(self, e: Expr) -> Value:
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
                if e.op in ("and", "or") and lanes_of(e) == 1 and has(e.b, Load):
                    return self._lazily(e)
                a, b, done = self.expr(e.a), self.expr(e.b), n.operation(e.op, e.a.dtype)
                if isinstance(e.b, Const):
                    number = n.const(e.b.value, e.b.dtype)
                    return lambda f: done(a(f), number)
                return lambda f: done(a(f), b(f))
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
                items, kept = [self.expr(i) for i in e.items], n.storage(e.dtype)
                return lambda f: np.stack([np.broadcast_to(_of(kept, i(f)), f.lane.shape) for i in items], axis=-1)
            case Shuffle():
                return self._shuffled(e)
        raise Fault(Problem("interp.not-lowered", f"{type(e).__name__} has no meaning in a lowered kernel"))

    def _shuffled(self, e: Shuffle) -> Value:
        """Closure that evaluates a vector shuffle."""
        a, b, width, kind = self.expr(e.a), self.expr(e.b), lanes_of(e.a), self.n.storage(e.dtype)
        picks = np.array(e.picks) if len(e.picks) > 1 else e.picks[0]

        def run(f: Frame) -> Any:
            both = [np.broadcast_to(_of(kind, x), (len(f.lane), width)) for x in (a(f), b(f))]
            return np.concatenate(both, axis=1)[:, picks]

        return run

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
        """Closure that evaluates ``and`` or ``or``, the right side only in lanes whose result it decides."""
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
        """Closure that evaluates a select, each side only in lanes that choose it."""
        cond, a, b, kind = self.expr(e.cond), self.expr(e.a), self.expr(e.b), self.n.storage(e.dtype)
        lanes, fill = lanes_of(e), isinstance(e.b, Const)
        vector, each = lanes > 1, lanes_of(e.cond) > 1

        def run(f: Frame) -> Any:
            c = cond(f)
            if each:  # both sides are computed in all lanes
                c = np.broadcast_to(c, (len(f.lane), lanes))
                return np.where(c, _of(kind, a(f.wanting(c))), _of(kind, b(f.wanting(~c))))
            if not isinstance(c, np.ndarray) or c.ndim == 0:
                return a(f) if c else b(f)
            if c.all():
                return a(f)
            if not c.any():
                return b(f)
            yes, no = a(f.only(c)), (b(f) if fill else b(f.only(~c)))
            wide = [np.asarray(x).shape[-1] for x in (yes, no) if np.asarray(x).ndim == 2]
            out = np.zeros((len(c), max(wide, default=1)) if vector else len(c), kind)  # equal lanes may be one column
            out[c], out[~c] = yes, no
            return out

        return run


def _of(kind: np.dtype, x: Any) -> np.ndarray:
    """``x`` as an array of dtype ``kind`` (NumPy would mix int and uint64 to doubles)."""
    return np.asarray(x, kind)


def _bounds(x: np.ndarray) -> tuple[int, int]:
    return (int(x.min()), int(x.max())) if x.size else (0, 0)


def _column(x: Any) -> Any:
    return x[:, None] if isinstance(x, np.ndarray) and x.ndim == 1 else x


# Instructions of warpgroups that are in flight.

Touched = tuple[Cells, np.ndarray]
_Product = tuple[list[Touched], list[Touched]]


class Later(threading.local):
    """Asynchronous operations in flight, per warp-specialized role (thread of the interpreter): products, and tile
    stores.
    """

    def __init__(self) -> None:
        self.of = {"products": Products(), "stores": Products()}


class Products:
    """Asynchronous operations in flight, in groups: the elements that they will write and those that they still
    read.
    """

    def __init__(self) -> None:
        self.now: list[_Product] = []
        self.groups: list[list[_Product]] = []

    def begin(self, made: list[Touched], read: list[Touched]) -> None:
        """Add an operation that writes elements ``made`` and reads ``read``; it may accumulate onto registers of
        earlier ones.
        """
        for cells, at in made:
            cells.under_way(at)
        for cells, at in read:
            cells.read_later(at, 1)
        self.now.append((made, read))

    def commit(self) -> None:
        """Make a group of the operations begun since the last call."""
        self.groups.append(self.now)
        self.now = []

    def wait(self, pending: int) -> None:
        """Complete all groups except the ``pending`` latest."""
        while len(self.groups) > pending:
            for made, read in self.groups.pop(0):
                for cells, at in made:
                    cells.arrive(at)
                for cells, at in read:
                    cells.read_later(at, -1)
        for made, _ in (p for group in (*self.groups, self.now) for p in group):
            for cells, at in made:
                cells.under_way(at)
