"""Pass: a reduction over a thread axis becomes per-thread partial results, and a tree that combines them.

Each thread first combines its own terms in registers, starting from the identity. Partial results are then combined by
shuffles within each warp and once across warps in shared memory, or entirely in shared memory. Both take about
log2(threads) steps in an order fixed by the schedule, so float results are reproducible; non-commutative combiners join
neighbours only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tensorir.arith.affine import Arith
from tensorir.expr.compute import compute, placeholder
from tensorir.expr.functions import minimum, where
from tensorir.intrin.declare import Intrin, meaning
from tensorir.ir.build import as_expr, as_int, binary, select
from tensorir.ir.layout import LANES_OF_WARP as WARP
from tensorir.ir.marks import Partition, Versions
from tensorir.ir.tree import (
    THREADS,
    Axis,
    Buffer,
    Expr,
    If,
    IntrinCall,
    Iter,
    Kind,
    Load,
    Loop,
    Program,
    Region,
    Scope,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip
from tensorir.ir.visit import find, replace, sequence, substitute, uses
from tensorir.lower.form import lowering
from tensorir.schedule.analysis import Index, across, index_of, ranges, unique
from tensorir.schedule.primitives.reduction import init_nest
from tensorir.schedule.rewrite import nest, swap
from tensorir.target import Target


@lowering
def combine_threads(program: Program, target: Target) -> Program:
    """Replace reductions over thread axes by per-thread partial results and their combination.

    needs: buffers have their scopes;  gives: no thread axis drives a reduction
    """
    bound = [x for x in find(program.body, Loop) if x.kind in THREADS]
    for name in [x.var.name for x in bound if _reduced(x)]:
        program = _combined(program, name, target)
    return program


def _reduced(loop: Loop) -> list[Stage]:
    """Stages that reduce over the thread loop ``loop``."""
    return [s for s in find(loop, Stage) if across(loop, s)]


def _combined(program: Program, name: str, target: Target) -> Program:
    index = index_of(program)
    loop = index.loops[name]
    made = [_Combined(index, s, loop, target) for s in _reduced(loop)]
    inside = replace(loop.body, {c.stage: c.accumulates() for c in made})
    first = loop.replace(body=sequence([*(c.starts() for c in made), inside]))
    pieces = sequence([first, *(s for c in made for s in c.combines())])
    if not index.above(loop):  # one kernel: what is in registers cannot reach the next
        pieces = Loop(Var(f"{name}.once", "index"), as_expr(1), pieces)
    return swap(program, loop, pieces)


@dataclass(frozen=True, eq=False)
class _Place:
    """Place of a thread's partial results in one step's loop nest: the loops, the indices, and the thread's number."""

    loops: list[Loop]
    at: tuple[Expr, ...]
    iters: tuple[Iter, ...]
    binds: tuple[Expr, ...]
    thread: Var


class _Combined:
    """Builds the statements that combine one reduction over threads."""

    def __init__(self, index: Index, stage: Stage, loop: Loop, target: Target) -> None:
        assert isinstance(stage.body, Update)  # reduce_across has seen to it
        self.index, self.stage, self.loop, self.update = index, stage, loop, stage.body
        self.threads = as_int(loop.extent)
        self.inner = [loop, *index.between(loop, stage)]
        self.names = index.names()
        self.to_all = any(b.scope in (Scope.REGISTER, Scope.WARP) for b in stage.body.buffers)
        self.last = ""  # stage of the last step
        self.reach = shape = self._reach()
        self.part = self._buffers("part", shape, Scope.REGISTER)
        self.by_warp = self._by_warp(target)
        self.tree = self._buffers("tree", self._slot(shape, as_expr(self.threads)), Scope.SHARED)
        self.other = self._buffers("other", shape, Scope.REGISTER)

    def _buffers(self, word: str, shape: tuple[Expr, ...], scope: Scope) -> tuple[Buffer, ...]:
        return tuple(Buffer(unique(f"{b.name}_{word}", self.names), shape, b.dtype, scope) for b in self.update.buffers)

    def _slot(self, cell: tuple[Expr, ...], thread: Expr) -> tuple[Expr, ...]:
        """Shared-memory index of a thread's partial result; threads adjacent along x are adjacent in memory."""
        return (*cell, thread) if self.loop.kind is Kind.THREAD_X else (thread, *cell)

    def _reach(self) -> tuple[Expr, ...]:
        """Number of result elements along each dimension, including those beyond the end that overshooting
        loops touch.
        """
        arith = Arith(ranges(self.index.above(self.stage)))
        axes = dict(zip((i.var for i in self.stage.iters), self.stage.binds, strict=True))
        ends = (arith.range_of(arith.linear(substitute(i, axes)))[1] for i in self.update.index)
        shape = self.update.buffers[0].shape
        return tuple(n if math.isinf(end) else as_expr(int(end) + 1) for n, end in zip(shape, ends, strict=True))

    def _by_warp(self, target: Target) -> bool:
        """True if whole warps share each result, so that shuffles can combine it."""
        top = self.index.root_of(self.loop)
        extents = {x.kind: as_int(x.extent) for x in find(top, Loop) if x.kind.level == "thread"}
        around = [*self.index.above(self.loop), self.loop]
        return (
            target.language == "cuda"
            and self.loop.kind is Kind.THREAD_X
            and (self.threads % WARP == 0 or WARP % self.threads == 0)
            and math.prod(extents.values()) % WARP == 0
            and Kind.VTHREAD not in extents
            and all(b.dtype in SHUFFLED_DTYPES for b in self.update.buffers)
            and not any(
                Versions.of(x).where or Partition.of(x).at for x in around
            )  # all lanes come to a shuffle together
        )

    # --- the pieces

    def starts(self) -> Stmt:
        """Loop nest that sets each thread's partial result to the identity."""
        identity = self.update.combiner.identity
        p = self._place("init", self.loop.var)
        body = sequence([Store(b, p.at, i) for b, i in zip(self.part, identity, strict=True)])
        return self._nest("init", p, body)

    def accumulates(self) -> Stage:
        """Stage in which each thread reduces its own terms."""
        return self.stage.replace(body=self.update.replace(buffers=self.part), init=None)

    def combines(self) -> Iterator[Stmt]:
        """Loop nests that combine the threads' partial results and store the result."""
        yield from self._warps() if self.by_warp else self._shared()
        yield self._result()

    def _warps(self) -> Iterator[Stmt]:
        """Statements that reduce by shuffles within each warp, exchange the warps' results through shared memory, and
        reduce those by shuffles again.
        """
        yield from self._shuffles("warp", min(self.threads, WARP))
        warps = self.threads // WARP
        if warps > 1:
            yield self._step("put", self._put, lambda t: binary("==", binary("%", t, WARP), 0))
            yield self._step("take", self._take)
            yield from self._shuffles("warps", 1 << (warps - 1).bit_length())
        if self.to_all:
            yield self._step("all", lambda p: self._pass_on(p, self.part, from_first, min(self.threads, WARP)))

    def _shuffles(self, word: str, lanes: int) -> Iterator[Stmt]:
        """Shuffle steps that leave in the first of ``lanes`` neighbouring threads the combination of all, in order."""
        offset = 1
        while offset < lanes:

            def get(p: _Place, offset: int = offset) -> Stmt:
                return self._pass_on(p, self.other, from_above, offset)

            yield self._step(f"{word}.{offset}.get", get)
            yield self._step(f"{word}.{offset}", lambda p: self._joined(self.part, p.at, self.other, p.at))
            offset *= 2

    def _pass_on(self, p: _Place, to: Sequence[Buffer], instruction: Callable[[str, int], Intrin], n: int) -> Stmt:
        """Shuffle calls that move this lane's values ``part`` into another lane's ``to``."""
        whole = (1,) * len(p.at)
        return sequence([
            IntrinCall(instruction(b.dtype, n), (Region(b, p.at, whole), Region(o, p.at, whole)))
            for b, o in zip(self.part, to, strict=True)
        ])  # fmt: skip

    def _put(self, p: _Place) -> Stmt:
        """Stores of each warp's result to shared memory, by its first lane."""
        return self._moves(self.tree, self._slot(p.at, binary("//", p.thread, WARP)), self.part, p.at)

    def _take(self, p: _Place) -> Stmt:
        """Loads of one warp's result into each of the first lanes."""
        lane, warps = binary("%", p.thread, WARP), self.threads // WARP
        values = [Load(b, self._slot(p.at, lane), b.dtype) for b in self.tree]
        return sequence([
            Store(b, p.at, select(binary("<", lane, warps), v, i))
            for b, v, i in zip(self.part, values, self.update.combiner.identity, strict=True)
        ])  # fmt: skip

    def _shared(self) -> Iterator[Stmt]:
        """Tree reduction in shared memory: each step combines the halves of the partial results, or neighbours."""
        yield self._step("put", lambda p: self._moves(self.tree, self._slot(p.at, p.thread), self.part, p.at))
        commutes, left, apart = self.update.combiner.commutative, self.threads, 1
        while left > 1:
            half = -(-left // 2)

            def step(p: _Place, by: int = half if commutes else apart) -> Stmt:
                mine, other = (self._slot(p.at, t) for t in (p.thread, binary("+", p.thread, by)))
                return self._joined(self.tree, mine, self.tree, other)

            def lower(t: Expr, n: int = left - half) -> Expr:
                return binary("<", t, n)

            def paired(t: Expr, apart: int = apart) -> Expr:
                first = binary("==", binary("%", t, 2 * apart), 0)
                return binary("and", first, binary("<", t, self.threads - apart))

            yield self._step(f"tree.{half if commutes else apart}", step, lower if commutes else paired)
            left, apart = half, 2 * apart

    def _result(self) -> Stmt:
        """Loop nest that stores the combined result."""
        value, update = self.part, self.update
        at: tuple[Expr, ...] = update.index
        if not self.by_warp:
            value, at = self.tree, self._slot(at, as_expr(0))
        body = self._moves(update.buffers, update.index, value, at)
        if self.stage.init is None:  # it has begun in a nest of its own
            body = update.replace(values=tuple(Load(b, at, b.dtype) for b in value))
        made = init_nest(self.index, self.stage, self.inner, f"{self.stage.name}.result", body)
        if self.by_warp or self.to_all:
            return made
        return replace(made, {x: x.replace(of=self.last) for x in find(made, Stage)})  # by the first thread alone

    # --- nests

    def _moves(self, to: Sequence[Buffer], at: tuple[Expr, ...], of: Sequence[Buffer], where: tuple[Expr, ...]) -> Stmt:
        return sequence([Store(b, at, Load(v, where, v.dtype)) for b, v in zip(to, of, strict=True)])

    def _joined(
        self, to: Sequence[Buffer], at: tuple[Expr, ...], of: Sequence[Buffer], where: tuple[Expr, ...]
    ) -> Update:
        """``to[at] = combine(to[at], of[where])``; ``of`` has the later terms."""
        return Update(tuple(to), at, tuple(Load(b, where, b.dtype) for b in of), self.update.combiner)

    def _step(self, word: str, body: Callable[[_Place], Stmt], where: Callable[[Expr], Expr] | None = None) -> Stmt:
        """Loop nest of one step over all threads, or those whose number satisfies ``where``."""
        self.last = f"{self.stage.name}.{word}"
        thread = Var(f"{self.last}.thread", "index")
        p = self._place(word, thread)
        made = self._nest(word, p, body(p))
        made = made if where is None else If(where(thread), made)
        return Loop(thread, self.loop.extent, made, self.loop.kind)

    def _place(self, word: str, thread: Var) -> _Place:
        """Indices of a thread's partial results under fresh loops, unguarded by conditions."""
        stage, name = self.stage, f"{self.stage.name}.{word}"
        mine = [x for x in self.inner if x is not self.loop and self._is_spatial(x)]
        fresh: dict[Var, Expr] = {}
        loops = []
        for x in mine:
            var = Var(f"{name}.{x.var.name.split('.', 1)[-1]}", "index")
            kind = Kind.UNROLL if x.kind is Kind.VECTOR and self.by_warp else x.kind
            fresh[x.var] = var
            loops.append(Loop(var, x.extent, x.body, kind))
        axes = dict(zip((i.var for i in stage.iters), stage.binds, strict=True))
        cells = tuple(substitute(substitute(i, axes), fresh) for i in self.update.index)
        iters = tuple(Iter(Var(f"d{d}", "index"), n, Axis.SPATIAL) for d, n in enumerate(self.reach))
        return _Place(loops, tuple(i.var for i in iters), iters, cells, thread)

    def _is_spatial(self, x: Loop) -> bool:
        driven = [it for it, b in zip(self.stage.iters, self.stage.binds, strict=True) if uses(b, {x.var})]
        return bool(driven) and all(it.axis is Axis.SPATIAL for it in driven)

    def _nest(self, word: str, p: _Place, body: Stmt) -> Stmt:
        """Loops of ``p`` around a stage ``<stage>.<word>``: the thread number is one of its axes, so that elements are
        disjoint.
        """
        own = Iter(Var("thread", "index"), self.loop.extent, Axis.SPATIAL)
        body = substitute(body, {p.thread: own.var})
        stage = Stage(f"{self.stage.name}.{word}", (*p.iters, own), (*p.binds, p.thread), body)
        return nest(p.loops, stage)


# --- shuffles


SHUFFLED_DTYPES = ("float32", "float64", "int32", "uint32", "int64", "uint64")
"""Types that shuffle instructions take as they are held in registers."""
_MANUAL = "CUDA C++ Programming Guide, warp shuffle functions"
_LANE_LAYOUT = "n -> n |"


@functools.cache
def from_above(dtype: str, offset: int) -> Intrin:
    """Return a ``__shfl_down_sync`` instruction: each lane gets the value of lane + ``offset``; the last lanes keep
    theirs.
    """
    x = placeholder((WARP,), dtype, name="x")
    y = compute((WARP,), lambda n: where(n < WARP - offset, x[minimum(n + offset, WARP - 1)], x[n]), name="y")
    return Intrin(
        name=f"cuda.shfl-down.{dtype}.{offset}",
        semantics=meaning(y),
        emit={"cuda": f"{{y_value}} = __shfl_down_sync(0xffffffffu, {{x_value}}, {offset});"},
        source=_MANUAL,
        fragments={"x": _LANE_LAYOUT, "y": _LANE_LAYOUT},
    )


@functools.cache
def from_first(dtype: str, width: int) -> Intrin:
    """Return a ``__shfl_sync`` instruction: each group of ``width`` lanes gets its first lane's value."""
    x = placeholder((WARP,), dtype, name="x")
    y = compute((WARP,), lambda n: x[n // width * width], name="y")
    return Intrin(
        name=f"cuda.shfl.{dtype}.{width}",
        semantics=meaning(y),
        emit={"cuda": f"{{y_value}} = __shfl_sync(0xffffffffu, {{x_value}}, 0, {width});"},
        source=_MANUAL,
        fragments={"x": _LANE_LAYOUT, "y": _LANE_LAYOUT},
    )
