"""Runs all kernels of a lowered program in the interpreter, on shared memory arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tensorir.arith.affine import Arith, Linear
from tensorir.arith.conditions import conjuncts, contrary
from tensorir.errors import Problem
from tensorir.interp.frame import KernelLike
from tensorir.interp.lanes import Lanes
from tensorir.interp.lift import Lifts
from tensorir.interp.machine import BlockMachine
from tensorir.interp.memory import Cells, Fault
from tensorir.interp.numbers import Field, Numbers
from tensorir.interp.reference import constant_values
from tensorir.ir.build import as_int, binary, const
from tensorir.ir.tree import (
    Alloc,
    Binary,
    Buffer,
    Const,
    Expr,
    If,
    IntrinCall,
    Kind,
    Let,
    Load,
    Loop,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
)
from tensorir.ir.visit import find, has, substitute, writes

LANES_AT_ONCE = 4096  # threads run at once
LARGE_GRID_THREADS = 1 << 16
"""Threads of grids of which eight times as many run at once, and no block without need."""


class ModuleLike(Protocol):
    """Interface of a lowered program (``lower.kernel.Module``): the attributes that the interpreter reads."""

    @property
    def inputs(self) -> tuple[Buffer, ...]: ...
    @property
    def outputs(self) -> tuple[Buffer, ...]: ...
    @property
    def scalars(self) -> tuple[Var, ...]: ...
    @property
    def workspace(self) -> tuple[Buffer, ...]: ...
    @property
    def constants(self) -> tuple[Buffer, ...]: ...
    @property
    def kernels(self) -> Sequence[KernelLike]: ...


@np.errstate(all="ignore")
def run(module: ModuleLike, arrays: Mapping[str, object], numbers: Numbers) -> dict[str, np.ndarray]:
    """Execute all kernels on ``arrays`` (inputs and scalars by name, in the values of ``numbers``).

    Returns {output name: flat array}. Blocks of large grids that write nothing and read what others read are skipped.
    Raises Fault at the first undefined behaviour: ``race.shared``, ``race.global``, ``memory.uninitialised``,
    ``memory.in-flight``, ``memory.out-of-bounds``, ``memory.unwritten`` (an output element), ``barrier.divergent``,
    ``barrier.stuck``, ``barrier.misused``, ``barrier.uninitialised``, ``warp.divergent``; ``interp.not-lowered`` for a
    node that no lowered kernel has.
    """
    memory: dict[Buffer, Cells] = {}
    for b in module.inputs:
        memory[b] = Cells(b, 1, numbers.storage(b.dtype), np.array(arrays[b.name]))
    for b in module.constants:
        memory[b] = Cells(b, 1, numbers.storage(b.dtype), constant_values(b, numbers))
    for b in (*module.outputs, *module.workspace):
        memory[b] = Cells(b, 1, numbers.storage(b.dtype))
    scalars = {v: numbers.scalar(arrays[v.name], v.dtype) for v in module.scalars}
    for k in module.kernels:
        _run_kernel(k, memory, scalars, numbers)
    for b in module.outputs:
        written = memory[b].written
        if written is not None and not written.all():
            cell = int(np.argmin(written))
            raise Fault(Problem("memory.unwritten", f"{b.name}[{cell}] is never written"))
    return {b.name: memory[b].values for b in module.outputs}


def _run_kernel(k: KernelLike, memory: dict[Buffer, Cells], scalars: Mapping[Var, Any], numbers: Numbers) -> None:
    """Run all blocks of a kernel that can matter, a few at a time; results are left in ``memory``."""
    touched = set(writes(k.body))
    for b in k.params:
        old = memory[b]
        watched = b in touched
        new = Cells(b, 1, old.values.dtype, old.values, watched=watched)
        new.written = old.written
        memory[b] = new
    gx, gy, gz = k.grid
    bx, by, bz = k.block
    threads, blocks = bx * by * bz, gx * gy * gz
    block_of = np.repeat(np.arange(blocks), threads)
    if threads * blocks == 0:
        return  # nothing is launched
    cluster = next((as_int(x.extent) for x in k.axes if x.kind is Kind.CLUSTER), 1)
    many = threads * blocks > LARGE_GRID_THREADS
    step = (
        max(1, LANES_AT_ONCE * (8 if many else 1) // threads // cluster) * cluster
    )  # blocks of a cluster run together

    def machine(these: Sequence[int] | np.ndarray) -> BlockMachine:
        return BlockMachine(k, memory, scalars, numbers, these, block_of)

    todo = worth_running(k, set(scalars), machine, blocks) if many and cluster == 1 else np.arange(blocks)
    for first in range(0, len(todo), step):
        machine(todo[first : first + step]).go()


def iterations(module: ModuleLike) -> int:
    """Number of statements that ``run`` would execute one after another, an estimate of its cost; a loop without a
    constant extent counts 8 iterations.
    """
    total = 0
    for k in module.kernels:
        threads, blocks = math.prod(k.block), math.prod(k.grid)
        together = max(1, LANES_AT_ONCE // max(1, threads))
        lanes = max(1, threads * min(blocks, together))
        total += -(-blocks // together) * _statements(k.body, Lifts(k, Field().exact), lanes)
    return total


def _statements(s: Stmt, lifts: Lifts, lanes: int) -> int:
    while isinstance(s, Let):  # there may be many, one inside the other
        s = s.body
    if isinstance(s, Loop):
        lift = lifts.of(s, lanes)
        if lift is not None:
            return 1 if lift.summed else _statements(lift.body, lifts, lanes * lift.times)
        times = as_int(s.extent) if isinstance(s.extent, Const) else 8
        return times * _statements(s.body, lifts, lanes)
    if isinstance(s, Store | IntrinCall):
        return 1
    return sum(_statements(c, lifts, lanes) for c in s.children() if isinstance(c, Stmt))


# Blocks of a large grid that do nothing new: where dims are small, those for the largest ones write nothing.

LOOKED_AT = 1 << 18
"""Threads whose guards are evaluated together."""

Exprs = tuple[Expr, ...]


class AccessPlace(NamedTuple):
    """A load or store, described by expressions of blocks, threads and scalars that determine its address.

    guards: conditions under which it is reached;  parts: other subexpressions of its index and conditions
    """

    guards: Exprs
    parts: Exprs


def worth_running(k: KernelLike, known: set[Var], lanes: Callable[[np.ndarray], Lanes], count: int) -> np.ndarray:
    """Return the numbers of the blocks that a check needs to run, ascending: all that may write arrays, one of each
    group that reads the same addresses, and the last one. All blocks if the kernel has barriers, instructions or other
    such statements, addresses that depend on data it writes, or a store without a guard.

    known: scalars;  lanes: function from block numbers to a compiler of expressions for them;  count: number of blocks
    """
    every = np.arange(count)
    walk = _Walk(known | {x.var for x in k.axes}, {s.buffer for s in find(k.body, Store)})
    if not walk.through(k.body) or not walk.plain or any(not x.guards for x in walk.stores):
        return every
    stores, others = dict.fromkeys(x.guards for x in walk.stores), list(dict.fromkeys(walk.others))
    kept = np.zeros(count, bool)
    reached, ways = (np.zeros((len(others), count), kind) for kind in (bool, np.uint64))
    step = max(1, LOOKED_AT // int(np.prod(k.block)))
    for first in range(0, count, step):
        blocks = every[first : first + step]
        values = _Values(lanes(blocks), len(blocks))
        for guards in stores:
            kept[blocks] |= values.where(guards).any(axis=1)
        there = [values.where(access.guards) & ~kept[blocks, None] for access in others]
        if not any(x.any() for x in there):
            continue
        some = np.any([x.any(axis=1) for x in there], axis=0)
        idle = blocks[some]
        values = _Values(lanes(idle), len(idle))
        for n, access in enumerate(others):
            reached[n, idle] = there[n][some].any(axis=1)
            ways[n, idle] = values.digest(there[n][some], access.parts)
    for n in range(len(others)):
        new = np.flatnonzero(reached[n])
        kept[new[np.unique(ways[n, new], return_index=True)[1]]] = True
    kept[-1] = True
    return every[kept]


class _Values:
    """Values of expressions in all threads of some blocks, computed once each."""

    def __init__(self, machine: Lanes, blocks: int) -> None:
        self.machine, self.shape = machine, (blocks, machine.threads)
        self.known: dict[Expr, np.ndarray] = {}

    def of(self, e: Expr) -> np.ndarray:
        if e not in self.known:
            found = np.asarray(self.machine.expr(e)(self.machine.frame))
            self.known[e] = np.broadcast_to(found, (self.shape[0] * self.shape[1],)).reshape(self.shape)
        return self.known[e]

    def where(self, guards: Exprs) -> np.ndarray:
        """Boolean mask over (block, thread): True where all ``guards`` hold."""
        found = np.ones(self.shape, bool)
        for c in guards:
            found &= self.of(c).astype(bool)
        return found

    def digest(self, there: np.ndarray, parts: Exprs) -> np.ndarray:
        """One hash per block, of the values of ``parts`` in the threads of the mask ``there``."""
        rng = np.random.default_rng(len(parts))
        total = np.zeros(self.shape[0], np.uint64)
        for e in (None, *parts):
            weights = rng.integers(1 << 63, size=self.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
            values = there if e is None else np.where(there, self.of(e), 0)
            bits = values.astype(np.float64).view(np.uint64) if values.dtype.kind == "f" else values.astype(np.uint64)
            total += (bits * weights).sum(axis=1, dtype=np.uint64)
        return total


class _Walk:
    """Collector of a kernel's accesses.

    stores: stores to the kernel's arrays, and loads of these arrays;  others: all other accesses
    plain:  True if no address depends on data that the kernel writes
    """

    def __init__(self, told: set[Var], written: set[Buffer]) -> None:
        self.told, self.written, self.arith = told, written, Arith()
        self.plain = True
        self.loops: dict[Var, Expr] = {}
        self.own: set[Buffer] = set()
        self.stores: list[AccessPlace] = []
        self.others: list[AccessPlace] = []

    def through(self, s: Stmt, around: Exprs = ()) -> bool:
        """Collect the accesses of ``s``; return False if it holds other statements that may access memory.

        around: conditions under which ``s`` is reached
        """
        match s:
            case Store():
                for e in (*s.index, s.value):
                    self._reads(e, around)
                (self.others if s.buffer in self.own else self.stores).append(self._access(s.index, around))
                return True
            case If():
                self._reads(s.cond, around)
                return self.through(s.then, (*around, *conjuncts(s.cond)))
            case Loop():
                self._reads(s.extent, around)
                self.loops[s.var] = s.extent
                return self.through(s.body, around)
            case Let():
                values: dict[Var, Expr] = {}
                below: Stmt = s
                while isinstance(below, Let):  # there may be many, one inside the other
                    values[below.var] = substitute(below.value, values)
                    self._reads(values[below.var], around)
                    below = below.body
                return self.through(substitute(below, values), around)
            case Alloc():
                self.own.add(s.buffer)
                return self.through(s.body, around)
            case Seq():
                return all(self.through(x, around) for x in s.stmts)
        return False

    def _reads(self, e: Expr, around: Exprs) -> None:
        if not has(e, Load):
            return
        if isinstance(e, Load):  # of what the kernel writes no block reads for another one: that may be a race
            shared = e.buffer in self.written and e.buffer not in self.own
            (self.stores if shared else self.others).append(self._access(e.index, around))
        if isinstance(e, Select):
            self._reads(e.cond, around)
            self._reads(e.a, (*around, *conjuncts(e.cond)))
            self._reads(e.b, (*around, contrary(e.cond)))
        elif isinstance(e, Binary) and e.op in ("and", "or"):  # the right side only where the left one decides nothing
            self._reads(e.a, around)
            self._reads(e.b, (*around, *(conjuncts(e.a) if e.op == "and" else (contrary(e.a),))))
        else:
            for c in e.children():
                self._reads(c, around)

    def _access(self, index: Exprs, around: Exprs) -> AccessPlace:
        guards = [g for c in around for g in (c, self._weaker(c)) if g is not None and self._is_told(g)]
        parts: dict[Expr, None] = {}
        for e in (*index, *around, *self.loops.values()):
            self.plain &= not any(x.buffer in self.written for x in find(e, Load))
            self._take(e, parts)
        return AccessPlace(tuple(dict.fromkeys(guards)), tuple(parts))

    def _is_told(self, e: Expr) -> bool:
        return not has(e, Load) and all(v in self.told for v in find(e, Var))

    def _take(self, e: Expr, parts: dict[Expr, None]) -> None:
        """Add to ``parts`` the largest subexpressions of ``e`` that blocks, threads and scalars determine."""
        if not has(e, Var):
            return
        if self._is_told(e):
            parts[e] = None
            return
        for c in e.children():
            self._take(c, parts)

    def _weaker(self, c: Expr) -> Expr | None:
        """Condition that the comparison ``c`` implies, at the iterations of loops where it most likely holds; None for
        conditions of another form.
        """
        if not isinstance(c, Binary) or c.op not in ("<", "<=") or c.a.dtype != "index" or has(c, Load):
            return None
        form = self.arith.linear(c.a).plus(self.arith.linear(c.b), -1)
        least, terms = form.constant, dict(form.terms)
        for v in [t for t in terms if isinstance(t, Var) and t in self.loops]:
            step, extent = terms.pop(v), self.loops[v]
            if step < 0 and not isinstance(extent, Const):
                return None
            least += min(0, step * (as_int(extent) - 1)) if step < 0 else 0
        return binary(c.op, Linear(terms, least).expr(), const(0))
