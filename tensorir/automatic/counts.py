"""Cost model of a scheduled program: cycles, bytes moved and launches of its kernels, counted in the loop tree ->
seconds.

The model ranks schedules of equal results. It counts operations, vector loads and stores, bytes of each array that a
kernel accesses, and launches; compiler optimizations are not modelled.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorir.arith.access import first_step
from tensorir.arith.point import NotExactError, evaluate
from tensorir.automatic.facts import Nest, bytes_of
from tensorir.errors.shown import Shown
from tensorir.ir.build import as_int, binary
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.node import Node
from tensorir.ir.shared import children_first
from tensorir.ir.tree import (
    Binary,
    Buffer,
    Call,
    Const,
    Expr,
    Kind,
    Load,
    Loop,
    Program,
    Scope,
    Select,
    Stage,
    Stmt,
    Store,
    Unary,
    Update,
    Var,
)  # fmt: skip
from tensorir.ir.visit import find, has, uses, writes
from tensorir.lower.resolve_scopes import resolve_scopes
from tensorir.machine import CPU, Machine, machine_of
from tensorir.schedule.analysis import Index, in_loops, statements
from tensorir.target import Target

PRICES, LINE = CPU.prices.operation, CPU.line
"""Cycles of operations, of GPUs too: ``Machine.threads`` says how many of a CPU core one of theirs is; and bytes moved
for one element at a data-dependent address (gather, scatter).
"""


@dataclass(frozen=True)
class KernelCounts:
    """Modelled work of one kernel.

    cycles: sum over all cores;  nbytes: bytes of the arrays in memory that it accesses, each array once
    moved:  bytes of memory traffic, including lines loaded before a partial write
    blocks: blocks of the grid, over which the cycles are distributed;  threads: of a block
    rate:   bytes per second of a core, for arrays of the whole program;  stages: its stages, the costliest first
    """

    cycles: float
    nbytes: int
    moved: float
    blocks: int
    threads: int
    rate: float
    stages: tuple[Counted, ...]

    def busy(self, machine: Machine) -> float:
        """Share, in (0, 1], of the machine's cores, or of the threads that would keep them busy."""
        return machine.busy(self.blocks, self.threads)

    def worked(self, machine: Machine) -> float:
        """Seconds of the kernel's blocks; launches excluded."""
        computed, moved = self.cycles / (machine.clock * machine.threads), self.moved / self.rate
        alone = max(computed, moved) + PRICES.overlap * min(computed, moved)
        return alone / (machine.cores * self.busy(machine)) + self.blocks * machine.block_s / machine.cores

    def launched(self, machine: Machine) -> float:
        """Seconds of launch overhead: ``launch_s``, or for a short kernel the rest of ``least_s``, its minimum time."""
        return max(machine.launch_s, machine.least_s - self.worked(machine))


@dataclass(frozen=True, repr=False)
class Counts(Shown):
    """Modelled work and seconds of a program's kernels, launched repeatedly.

    nbytes:   bytes of the arrays that kernels access, each array once per kernel
    launch_s: seconds spent in launches, included in ``seconds``
    blocks:   of the widest kernel
    """

    kernels: int
    nbytes: int
    seconds: float
    launch_s: float
    blocks: int


def called(n: Nest, along: set[Var] | None = None) -> float:
    """Cycles of the math functions that a stage calls per iteration, for one full vector; 0 without calls.

    along: count only calls that depend on one of these variables
    """
    found = (x for x in find(n.stage.body, Call) if along is None or uses(x, along))
    return sum(PRICES.functions.get(x.fn, PRICES.function) for x in found)


def counts_of(program: Program, target: Target) -> Counts:
    """Cost-model counts of a scheduled program on a target; seconds on its machine (``machine_of``).

    Symbolic extents count as their maximum.
    """
    machine = machine_of(target)
    return counted(kernels_of(program, target, machine), machine)


def counted(kernels: Sequence[KernelCounts], machine: Machine) -> Counts:
    """Counts of kernels that are launched together."""
    launched = sum(k.launched(machine) for k in kernels)
    wake = machine.wake_s if any(k.blocks > 1 for k in kernels) else 0.0
    taken = machine.call_s + wake + launched + sum(k.worked(machine) for k in kernels)
    return Counts(
        len(kernels), sum(k.nbytes for k in kernels), taken, launched, max((k.blocks for k in kernels), default=1)
    )


def kernels_of(
    program: Program, target: Target, machine: Machine, scalar: Mapping[str, float] | None = None
) -> list[KernelCounts]:
    """Counts of each kernel of a scheduled program, in launch order.

    scalar: fraction of the iterations of each vector loop, by its name, that lowering runs one by one; 0 for others.
            Without it, a guess from the stage
    """
    scoped = resolve_scopes(program, target)
    touched = {b for s in find(scoped.body, Stage) for b in _arrays(s)}
    rate, index = machine.rate(sum(map(bytes_of, touched))), Index(scoped)
    return [_kernel(index, root, target, machine, rate, scalar) for root in statements(scoped.body)]


def _kernel(
    index: Index, root: Stmt, target: Target, machine: Machine, rate: float, scalar: Mapping[str, float] | None
) -> KernelCounts:
    stages = find(root, Stage)
    near = _near(index, stages)
    each = sorted((Counted(index, s, target, machine, near, scalar) for s in stages), key=lambda c: -c.cycles)
    nbytes, moved = dict[Buffer, float](), dict[Buffer, float]()
    for c in each:
        for b, read, more in c.touched():
            nbytes[b] = max(nbytes.get(b, 0.0), read)
            moved[b] = max(moved.get(b, 0.0), more)
    blocks, threads = (max(_bound(c, level) for c in each) for level in ("block", "thread"))
    cycles, held = sum(c.cycles for c in each), int(sum(nbytes.values()))
    return KernelCounts(cycles, held, sum(moved.values()), max(1, blocks), max(1, threads), rate, tuple(each))


def _bound(c: Counted, level: str) -> int:
    """Iterations of a stage's loops bound to blocks, or to threads; lanes of warps are implied."""
    return math.prod(_extent(x) * max(1, x.kind.lanes) for x in c.loops if x.kind.level == level)


def _extent(x: Loop) -> int:
    return most(x.extent)


@dataclass(frozen=True)
class Near:
    """A local array (not in global memory): bytes and shape of the part in use, and the loops enclosing all its
    uses.
    """

    nbytes: int
    shape: tuple[int, ...]
    around: frozenset[Var]

    def named(self, moving: Sequence[Loop]) -> bool:
        """True if the array can be held in registers: at most ``register_bytes``, and each ``moving`` loop
        that is not in ``around`` is unrolled, a vector loop or of one iteration, so that indices are constants.
        """
        written_out = (Kind.UNROLL, Kind.VECTOR)
        inside = [x for x in moving if x.var not in self.around and _extent(x) > 1]
        return self.nbytes <= PRICES.register_bytes and all(x.kind in written_out for x in inside)


def _near(index: Index, stages: Sequence[Stage]) -> dict[Buffer, Near]:
    """Local arrays of a kernel, those not in global or constant memory -> size and enclosing loops."""
    users: dict[Buffer, list[tuple[Stage, Sequence[Expr]]]] = {}
    for s in stages:
        for b, at in _accesses(s.body):
            if b.scope not in (Scope.GLOBAL, Scope.CONSTANT):
                users.setdefault(b, []).append((s, [in_loops(i, s) for i in at]))
    return {
        b: _used(b, [(index.above(s), places, b in writes(s.body)) for s, places in found])
        for b, found in users.items()
    }


def _used(b: Buffer, users: Sequence[tuple[Sequence[Loop], Sequence[Expr], bool]]) -> Near:
    """Size of the part of ``b`` that its writers fill; users: (loops, indices, True for a writer)"""
    common = {
        x.var for level in zip(*(path for path, *_ in users), strict=False) for x in level[:1] if len(set(level)) == 1
    }
    box = [1] * len(b.shape)
    for path, places, _ in [u for u in users if u[2]] or users:
        for n, i in enumerate(places):
            cells = math.prod(_extent(x) for x in path if x.var not in common and uses(i, {x.var}))
            box[n] = max(box[n], min(most(b.shape[n]), cells))
    return Near(math.prod(box) * max(8, DTYPES[b.dtype].bits) // 8, tuple(box), frozenset(common))


def _accesses(body: Node) -> Iterator[tuple[Buffer, Sequence[Expr]]]:
    """(buffer, indices) of each load, store and update in ``body``."""
    for x in find(body, Load):
        yield x.buffer, x.index
    for y in find(body, Store):
        yield y.buffer, y.index
    for u in find(body, Update):
        for b in u.buffers:
            yield b, u.index


def _stored(b: Buffer, shape: Sequence[int], places: Sequence[Expr]) -> tuple[Sequence[int], Sequence[Expr]]:
    """(extents, indices) of an array of some shape in the order of its layout; without what the layout folds."""
    if b.layout is None or b.layout.lanes:
        return shape, places
    extents, order = list[int](), list[Expr]()
    for d, divisor, extent in b.layout.pieces:
        index = binary("//", places[d], divisor) if divisor > 1 else places[d]
        order.append(binary("%", index, extent) if extent else index)
        extents.append(extent or -(-shape[d] // divisor))
    return extents, order


def _between(moving: Sequence[Loop], steps: Mapping[Var, int | None], size: int) -> tuple[int, int]:
    """(lines, pitch): cache lines read until the same line is read again, and bytes between them; (0, 0) if the next
    read of a line follows at once, or never comes.
    """
    lines, pitch = 1, 0
    for x in reversed(moving):
        step = steps[x.var]
        if step is None or abs(step * size) < LINE:
            break
        lines *= _extent(x)
        pitch = pitch or abs(step * size)
    else:
        return 0, 0  # no loop comes back to a line: each is read for its first element alone
    return (lines, pitch) if pitch else (0, 0)


def _new_lines(moving: Sequence[Loop], steps: Mapping[Var, int | None], size: int) -> float:
    """Fraction of accesses whose line is not in the L1 cache from the one before, or from the last iteration of a loop
    that moves within a line.
    """
    lines = 1
    for x in reversed(moving):
        step = steps[x.var]
        if step is not None and abs(step * size) < LINE:
            return abs(step * size) / LINE if 2 * lines * LINE <= CPU.caches[0].nbytes else 1.0
        lines *= _extent(x)
    return 1.0


def _arrays(s: Stage) -> dict[Buffer, None]:
    """Arrays in global or constant memory that a stage accesses."""
    return dict.fromkeys(b for b, _ in _accesses(s.body) if b.scope in (Scope.GLOBAL, Scope.CONSTANT))


class Counted:
    """Cost-model counts of one stage in its enclosing loops.

    lanes:  its vector loop;  scalar: fraction of its iterations that run one by one
    """

    def __init__(
        self, index: Index, stage: Stage, target: Target, machine: Machine, near: Mapping[Buffer, Near],
        scalar: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.stage, self.target, self.machine, self.near = stage, target, machine, near
        self.loops = index.above(stage)
        self._walks = dict[frozenset[Var], tuple[list[Loop], float]]()
        drive = {v for bind in stage.binds for v in find(bind, Var)}
        self.lanes = next((x for x in self.loops if x.kind is Kind.VECTOR and x.var in drive), None)
        self.scalar = 0.0
        if self.lanes is not None:
            self.scalar = self._guessed(self.lanes) if scalar is None else scalar.get(self.lanes.var.name, 0.0)

    def _guessed(self, lanes: Loop) -> float:
        """1 if one side of a choice may not be computed where the other is chosen, which has no vectors; else 0."""
        guarded = any(uses(g, {lanes.var}) for g in self.stage.guards)
        return 1.0 if guarded and has(self.stage.body, Call, Select) else 0.0

    @property
    def wide(self) -> int:
        """Lanes of the vector loop; 1 without one."""
        return _extent(self.lanes) if self.lanes else 1

    @property
    def once(self) -> bool:
        """True if the stage runs ahead of time, once for many launches."""
        return all(b.once for b in writes(self.stage.body))

    @property
    def times(self) -> float:
        """Total iterations of all enclosing loops."""
        return float(math.prod(_extent(x) for x in self.loops))

    def vectors(self, bits: int, times: float, wide: int) -> float:
        """Instructions for ``times`` operations on elements of ``bits`` bits, in vectors of ``wide`` elements; several
        per vector if it exceeds the target's vector registers (at least 16 bytes).
        """
        return times / wide * math.ceil(wide * bits / (8 * max(16, self.target.vector_bytes)))

    def _moving(self, places: Sequence[Expr]) -> tuple[list[Loop], float]:
        """(loops, times): loops whose variables occur in ``places``, outermost first, and how often these expressions
        are evaluated.

        Invariant expressions are hoisted out of inner loops, and out of unrolled loops that do not change them.
        """
        moving = [x for x in self.loops if any(uses(i, {x.var}) for i in places)]
        around = self.loops[: self.loops.index(moving[-1]) + 1] if moving else []
        return moving, math.prod(_extent(x) for x in around if x.kind is not Kind.UNROLL or x in moving)

    @cached_property
    def _axes(self) -> dict[Node, frozenset[Var]]:
        """Axes of the stage that each part of its body depends on."""
        own, found = {it.var for it in self.stage.iters}, dict[Node, frozenset[Var]]()
        for n in children_first([self.stage.body], lambda n: n.children()):
            below = (found[c] for c in n.children())
            found[n] = frozenset({n}) if isinstance(n, Var) and n in own else frozenset().union(*below)
        return found

    def _moved_by(self, axes: frozenset[Var]) -> tuple[list[Loop], float]:
        """``_moving`` of an expression in some axes of the stage."""
        if axes not in self._walks:
            pairs = zip(self.stage.iters, self.stage.binds, strict=True)
            self._walks[axes] = self._moving([bind for it, bind in pairs if it.var in axes])
        return self._walks[axes]

    @cached_property
    def cycles(self) -> float:
        """Cycles of all operations and accesses, over all iterations; on CPUs at least the longest dependent chain."""
        return max(self.busy, self.waits)

    @cached_property
    def waits(self) -> float:
        """Cycles of the longest chain of dependent additions on a CPU; 0 on a GPU, whose threads wait in turn."""
        return self._waits(find(self.stage.body, Update)) if self.target.kind == "cpu" else 0.0

    @cached_property
    def busy(self) -> float:
        """Cycles of all operations and accesses, over all iterations."""
        return self.in_vectors + self.scalar * self.slower if self.scalar else self.in_vectors

    @cached_property
    def in_vectors(self) -> float:
        """``busy`` if all iterations of the vector loop ran in vectors."""
        return self._computed() + self._moved()

    @cached_property
    def slower(self) -> float:
        """Additional cycles if no iteration of the vector loop ran in vectors; GPUs have vectors of accesses alone."""
        one = copy.copy(self)
        one.lanes = None
        computed = one._computed() - self._computed() if self.target.kind == "cpu" else 0.0
        return max(0.0, computed + one._moved() - self._moved())

    def _moved(self) -> float:
        """Cycles of all accesses, over all iterations."""
        return sum(self._reached(b, at) for b, at in _accesses(self.stage.body))

    def _computed(self) -> float:
        """Cycles of all operations, over all iterations."""
        body = self.stage.body
        added = {x for u in find(body, Update) for x in u.values if _fuses(x, u)}
        crowded = len({n.fn for n in find(body, Call) if n.fn in PRICES.functions}) > 1 and not has(body, Select)
        lane = next((it.var for it, x in zip(self.stage.iters, self.stage.binds, strict=True)
                     if self.lanes and uses(x, {self.lanes.var})), None)  # fmt: skip
        computed = sum(
            self._of(n) * share * (PRICES.crowded if crowded and isinstance(n, Call) else 1.0)
            for n, share in arithmetic(body, lane)
            if n not in added
        )
        return computed + sum(self._combined(u) for u in find(body, Update))

    def _combined(self, u: Update) -> float:
        """Cycles of the combiner of an update: old value, new value -> combined value."""
        inside = [n for r in u.combiner.result for n in find(r, Binary)]
        operations = sum(self._simple(n) for n in inside)
        operations *= 1.0 + 2.0 * math.log2(self.wide) if self._in_lanes(u) else 1.0  # and as many shuffles
        vectors = max(self.vectors(DTYPES[b.dtype].bits, self.times, self.wide) for b in u.buffers)
        chosen = self.target.kind == "cpu" and any(has(i, Load) for i in u.index)  # one may meet the one before
        return max(operations * vectors / PRICES.issue, CPU.prices.stream.term * self.times if chosen else 0.0)

    def _in_lanes(self, u: Update) -> bool:
        """True if the lanes of a vector are combined with each other, as those of a scan are."""
        return self.lanes is not None and not any(uses(in_loops(i, self.stage), {self.lanes.var}) for i in u.index)

    def _of(self, n: Expr) -> float:
        """Cycles of one operation of the body, over all iterations."""
        moving, times = self._moved_by(self._axes[n])
        if not moving:
            return 0.0
        each = self.vectors(max(8, DTYPES[n.dtype].bits), times, self.wide if self.lanes in moving else 1)
        if isinstance(n, Call):
            return each * PRICES.functions.get(n.fn, PRICES.function)
        operations = 1.0
        if isinstance(n, Binary) and n.op in ("/", "//", "%"):
            if n.op == "/" or not isinstance(n.b, Const):
                return each * PRICES.divide
            operations = PRICES.quotient if as_int(n.b) & (as_int(n.b) - 1) else 1.0
        elif isinstance(n, Binary):
            operations = self._simple(n)
        return each * operations / PRICES.issue

    def _simple(self, n: Binary) -> float:
        """Simple operations of one on two values: several for extremes of floats, but on GPUs, which have them."""
        several = n.op in ("max", "min") and is_float(n.dtype) and self.target.kind == "cpu"
        return PRICES.extreme if several else 1.0

    def _reached(self, b: Buffer, index: Sequence[Expr]) -> float:
        """Cycles of one load or store of ``b[index]``, over all iterations; 0 for an element held in a register."""
        places = [in_loops(i, self.stage) for i in index]
        moving, times = self._moving(places)
        near = self.near.get(b)
        if not moving or (near and near.named(moving)):
            return 0.0
        size = max(1, DTYPES[b.dtype].bits // 8)
        shape, stored = _stored(b, near.shape if near else [most(n) for n in b.shape], places)
        steps = {x.var: first_step(shape, stored, x.var) for x in moving}
        step = steps.get(self.lanes.var) if self.lanes is not None else None
        issued = PRICES.loads.get(step) if step in (0, 1) or (step and self.target.kind == "cpu") else None
        if issued:
            times = self.vectors(8 * size, times, self.wide)
        far = 0.0 if near and near.nbytes <= CPU.caches[0].nbytes else self.machine.far(*_between(moving, steps, size))
        if near and 2 * near.nbytes > CPU.caches[0].nbytes:
            far += PRICES.second_cache * (
                min(1.0, self.wide * size / LINE) if issued else _new_lines(moving, steps, size)
            )
        crosses = step == 1 and self.target.kind == "cpu" and self._crosses(b, stored)
        pending = near and near.nbytes <= PRICES.pending_bytes
        wait = PRICES.late_read if pending else min(1.0, self.wide * size / LINE) / PRICES.issue
        each = self.machine.apart if self.lanes in moving and not issued else (issued or 1.0) / PRICES.issue
        return times * (each + far + (wait if crosses else 0.0))

    def _crosses(self, b: Buffer, places: Sequence[Expr]) -> bool:
        """True if vector loads of ``b`` are misaligned: they span two cache lines, or the results of two stores."""
        made = writes(self.stage.body)
        try:
            return b not in made and int(evaluate(places[-1], dict.fromkeys(find(places[-1], Var), 0))) % self.wide != 0
        except NotExactError:
            return False

    def _waits(self, updates: Sequence[Update]) -> float:
        """Cycles of the longest chain of dependent additions to one accumulator."""
        longest = 0.0
        for u in updates:
            places = [in_loops(i, self.stage) for i in u.index]
            side, latency = (self.wide, 2.0 * CPU.prices.sum) if self._in_lanes(u) else (1, CPU.prices.sum)
            for x in reversed(self.loops):
                if x is self.lanes and latency > CPU.prices.sum:
                    continue
                if not any(uses(i, {x.var}) for i in places):
                    break
                side *= _extent(x) if x.kind in (Kind.UNROLL, Kind.VECTOR) else 1
                if x.kind not in (Kind.UNROLL, Kind.VECTOR):
                    side = 1 << 30
                    break
            larger = any(self._simple(n) > 1 for r in u.combiner.result for n in find(r, Binary))
            longest = max(longest, self.times / side * latency * (2.0 if larger else 1.0))
        return longest

    def touched(self) -> Iterator[tuple[Buffer, float, float]]:
        """(array, bytes, moved): for each access to an array in memory the bytes accessed, and the bytes of traffic
        they cause.
        """
        made = writes(self.stage.body)
        for b, index in _accesses(self.stage.body):
            if b in self.near:
                continue
            places = [in_loops(i, self.stage) for i in index]
            cells = math.prod(_extent(x) for x in self.loops if any(uses(i, {x.var}) for i in places))
            size = DTYPES[b.dtype].bits / 8
            line = LINE if any(has(i, Load) for i in places) and self.apart(places) else size
            fetched = 2.0 if b in made and self.target.kind == "cpu" else 1.0  # a line is read before a part is written
            whole = float(bytes_of(b))
            yield b, min(whole, cells * size), fetched * min(whole, cells * line)

    def apart(self, places: Sequence[Expr]) -> bool:
        """True if the innermost loop moves an index before the last: indirect accesses gather elements, not rows."""
        return not self.loops or any(uses(i, {self.loops[-1].var}) for i in places[:-1])


def _fuses(x: Expr, u: Update) -> bool:
    """True if the product ``x`` and its addition by the update are one multiply-add."""
    return u.combiner.name == "sum" and isinstance(x, Binary) and x.op == "*" and is_float(x.dtype)


def arithmetic(body: Node, lane: Var | None) -> Iterator[tuple[Expr, float]]:
    """(operation, weight) of each operation on values in ``body``, of shared ones once; index arithmetic is excluded,
    conditions on indices included, except that lanes for which one differs take a choice.

    The weight is halved in each side of a Select whose condition is uniform across lanes: a branch evaluates one side.
    """
    weights: dict[Node, float] = {body: 1.0}
    for n in reversed(children_first([body], _evaluated)):
        branches = isinstance(n, Select) and _uniform(n, lane)
        if isinstance(n, Binary | Unary | Call) or (isinstance(n, Select) and not (branches and not has(n.cond, Load))):
            yield n, weights[n]
        for child in _evaluated(n):
            own = weights[n] / 2 if branches and isinstance(n, Select) and child is not n.cond else weights[n]
            weights[child] = min(1.0, weights.get(child, 0.0) + own)


def _evaluated(n: Node) -> tuple[Node, ...]:
    """What a node computes its value from: no indices, and no condition on indices alone."""
    match n:
        case Load():
            return ()
        case Store():
            return (n.value,)
        case Update():
            return n.values
        case Select() if not has(n.cond, Load):
            return (n.a, n.b)
    return n.children()


def _uniform(choice: Select, lane: Var | None) -> bool:
    """True if all lanes take one side."""
    return lane is None or not uses(choice.cond, {lane})
