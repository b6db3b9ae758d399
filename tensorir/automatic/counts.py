"""The work of a scheduled program's kernels, counted from its loop tree, and its seconds by a model.

The model is for telling which of two schedules of the same cells is faster. It counts operations, reads and writes by
vectors, the bytes of each array that a kernel touches, and launches; it knows nothing of what a compiler does besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorir.arith.access import first_step
from tensorir.arith.point import NotExactError, evaluate
from tensorir.automatic.facts import Nest, bytes_of
from tensorir.errors.shown import Shown
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.node import Node
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
from tensorir.ir.visit import find, uses, writes
from tensorir.lower.resolve_scopes import resolve_scopes
from tensorir.schedule.analysis import Index, in_loops, statements
from tensorir.target import Target

CALL = {"exp": 16.5, "exp2": 15.0, "log": 18.0, "log2": 18.0, "tanh": 27.0, "erf": 27.0, "sin": 16.5, "cos": 16.5,
        "pow": 33.0, "sqrt": 10.0, "rsqrt": 10.0}  # fmt: skip
"""Cycles of a function of a whole vector; of another one, ``OTHER_CYCLES``."""
OTHER_CYCLES = 4.0
EXTREME_OPS = 3.0
"""Operations of a minimum or maximum, which gives a NaN where one is given."""
DIVIDE = 7.0
"""Cycles of a division of a whole vector."""
ISSUE = 2.5
"""Vectors of simple operations, of reads or of writes a cycle of a core that is faster than ``cycles_s``."""
LINE = 64.0
"""Bytes that are moved for an element whose place is data."""
PENDING = 4096
"""Bytes of stores that wait to be written; what is read from two of them waits until they are."""
LATE_READ_CYCLES = 8.0
"""Cycles of such a read."""
CALL_SLOWDOWN = 1.1
"""The slowdown of functions computed next to others, which need registers as well."""
PAGE = 4096
"""Bytes of a page."""
FIRST_CACHE_BYTES = 32768
"""Bytes of a core's first cache."""
SECOND_CACHE_CYCLES = 2.0
"""Cycles of reading from the second cache what is kept near and does not fit the first one."""
REGISTER_ARRAY_BYTES = 2048
"""Bytes of an array that stays in registers."""
OVERLAP = 0.35
"""The part of the shorter one of computing and moving that does not overlap with the other one."""
SUM_LATENCY = 3.2
"""Cycles until a sum can be added to again."""


@dataclass(frozen=True)
class Machine:
    """A kind of device as the model knows it.

    call_s:   of a launch of a program of any kernels;  launch_s: of one more kernel in it;  block_s: of a block
    wake_s:   until other cores are there, where any kernel of a program has work for them;  least_s: of any kernel
    cycles_s: cycles a second;  cores: that have blocks of their own
    levels:   (bytes, bytes a second) of each cache from the nearest one on, and of memory: where everything that a
              program touches fits, there it is found again
    sets:     of each cache the lines of a set, the bytes after which sets repeat, and cycles until it answers
    miss:     cycles until memory answers;  walk: to find the page of an element, where each is in another one
    apart:    cycles of each element of a vector that is read from places that are not neighbours
    """

    call_s: float
    launch_s: float
    cycles_s: float
    cores: int
    levels: tuple[tuple[float, float], ...]
    sets: tuple[tuple[int, int, float], ...]
    miss: float
    walk: float
    apart: float
    block_s: float
    wake_s: float
    least_s: float

    def far(self, lines: int, pitch: int) -> float:
        """Cycles to wait for an element of a line, when so many others, so far apart, are read before it is again.

        Lines at multiples of large powers of two share the few places of the same sets of a cache.
        """
        walk = self.walk if pitch >= PAGE else 0.0
        for ways, span, cycles in self.sets:
            if lines * math.gcd(pitch, span) <= ways * span:
                return cycles + (walk if cycles else 0.0)
        return self.miss + walk

    def rate(self, nbytes: float) -> float:
        """Bytes a second of what is read and written again and again, so many bytes in all."""
        return next(rate for size, rate in self.levels if nbytes <= size)


CPU = Machine(
    call_s=1.2e-6, launch_s=0.8e-6, cycles_s=3e9, cores=2, levels=((4e5, 130e9), (math.inf, 57e9)),
    sets=((8, 1 << 12, 0.0), (8, 1 << 17, 6.0)), miss=70.0, walk=4.0, apart=1.0, block_s=4e-8, wake_s=3.6e-6,
    least_s=7e-6,
)  # fmt: skip
"""A core of a server with vectors of 64 bytes; fitted to benchmarks/automatic/fusions.py."""
GPU = Machine(
    call_s=2e-6, launch_s=2e-6, cycles_s=1.4e9, cores=108, levels=((30e6, 4e12), (math.inf, 1.5e12)),
    sets=(), miss=0.0, walk=0.0, apart=0.25, block_s=0.0, wake_s=0.0,
    least_s=0.0,
)  # fmt: skip
"""A GPU with 108 multiprocessors, by its data sheet; no measurement has judged this one."""


@dataclass(frozen=True)
class KernelCounts:
    """The work of one kernel.

    cycles: of all its cores together;  nbytes: of the arrays in memory that it reads and writes, each once
    moved:  bytes that this moves, with those of lines that are read because they are written
    blocks: that share the cycles
    """

    cycles: float
    nbytes: int
    moved: float
    blocks: int

    def worked(self, machine: Machine, rate: float) -> float:
        """The seconds that its blocks take, its arrays moved at so many bytes a second."""
        computed = self.cycles / machine.cycles_s
        moved = self.moved / rate * machine.cores
        alone = max(computed, moved) + OVERLAP * min(computed, moved)
        return alone / min(machine.cores, self.blocks) + self.blocks * machine.block_s

    def launched(self, machine: Machine, rate: float) -> float:
        """The seconds that it takes besides: of a short one, until the next one can begin."""
        return max(machine.launch_s, machine.least_s - self.worked(machine, rate))


@dataclass(frozen=True, repr=False)
class Counts(Shown):
    """The work of a program's kernels, and their seconds, launched again and again, by the model.

    nbytes:   of the arrays that kernels read and write, each once a kernel
    launch_s: the part of the seconds that launches take
    """

    kernels: int
    nbytes: int
    seconds: float
    launch_s: float


def called(n: Nest, along: set[Var] | None = None) -> float:
    """Cycles of the functions that a cell, or a term of it, calls on vectors; of those that differ ``along`` axes."""
    found = (x for x in find(n.stage.body, Call) if along is None or uses(x, along))
    return sum(CALL.get(x.fn, OTHER_CYCLES) for x in found)


def counts_of(program: Program, target: Target) -> Counts:
    """The counts of a scheduled program."""
    machine = CPU if target.kind == "cpu" else GPU
    scoped = resolve_scopes(program, target)
    touched = {b for s in find(scoped.body, Stage) for b in _arrays(s)}
    rate = machine.rate(sum(map(bytes_of, touched)))
    index = Index(scoped)
    kernels = [_kernel(index, root, target, machine) for root in statements(scoped.body)]
    launched = sum(k.launched(machine, rate) for k in kernels)
    wake = machine.wake_s if any(k.blocks > 1 for k in kernels) else 0.0
    taken = machine.call_s + wake + launched + sum(k.worked(machine, rate) for k in kernels)
    return Counts(len(kernels), sum(k.nbytes for k in kernels), taken, launched)


def _kernel(index: Index, root: Stmt, target: Target, machine: Machine) -> KernelCounts:
    stages = find(root, Stage)
    near = _near(index, stages)
    counted = [Counted(index, s, target, machine, near) for s in stages]
    nbytes, moved = dict[Buffer, float](), dict[Buffer, float]()
    for c in counted:
        for b, read, more in c.touched():
            nbytes[b] = max(nbytes.get(b, 0.0), read)
            moved[b] = max(moved.get(b, 0.0), more)
    blocks = max(math.prod(_extent(x) for x in c.loops if x.kind.level == "block") for c in counted)
    return KernelCounts(
        sum(c.cycles() for c in counted), int(sum(nbytes.values())), sum(moved.values()), max(1, blocks)
    )


def _extent(x: Loop) -> int:
    return most(x.extent)


@dataclass(frozen=True)
class Near:
    """An array that is not in memory: bytes and shape of what is used between the first use of a cell and its last, and
    the loops around that.
    """

    nbytes: int
    shape: tuple[int, ...]
    around: frozenset[Var]

    def named(self, moving: Sequence[Loop]) -> bool:
        """True when what a stage uses of it is in registers: no loop computes which."""
        written_out = (Kind.UNROLL, Kind.VECTOR)
        inside = [x for x in moving if x.var not in self.around and _extent(x) > 1]
        return self.nbytes <= REGISTER_ARRAY_BYTES and all(x.kind in written_out for x in inside)


def _near(index: Index, stages: Sequence[Stage]) -> dict[Buffer, Near]:
    """The arrays of a kernel that are not in memory."""
    users: dict[Buffer, list[tuple[Stage, Sequence[Expr]]]] = {}
    for s in stages:
        for b, at in _accesses(s.body):
            if b.scope not in (Scope.GLOBAL, Scope.CONSTANT):
                users.setdefault(b, []).append((s, [in_loops(i, s) for i in at]))
    return {b: _used(b, [(index.above(s), places) for s, places in found]) for b, found in users.items()}


def _used(b: Buffer, users: Sequence[tuple[Sequence[Loop], Sequence[Expr]]]) -> Near:
    common = {
        x.var for level in zip(*(path for path, _ in users), strict=False) for x in level[:1] if len(set(level)) == 1
    }
    box = [1] * len(b.shape)
    for path, places in users:
        for n, i in enumerate(places):
            cells = math.prod(_extent(x) for x in path if x.var not in common and uses(i, {x.var}))
            box[n] = max(box[n], min(most(b.shape[n]), cells))
    return Near(math.prod(box) * max(8, DTYPES[b.dtype].bits) // 8, tuple(box), frozenset(common))


def _accesses(body: Node) -> Iterator[tuple[Buffer, Sequence[Expr]]]:
    """The arrays that a body reads or writes, and where."""
    for x in find(body, Load):
        yield x.buffer, x.index
    for y in find(body, Store):
        yield y.buffer, y.index
    for u in find(body, Update):
        for b in u.buffers:
            yield b, u.index


def _between(moving: Sequence[Loop], steps: Mapping[Var, int | None], size: int) -> tuple[int, int]:
    """Lines that are read until the same one is read again, and the bytes between them; 0 where that is at once."""
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


def _arrays(s: Stage) -> dict[Buffer, None]:
    """The arrays in memory that a stage reads or writes."""
    return dict.fromkeys(b for b, _ in _accesses(s.body) if b.scope in (Scope.GLOBAL, Scope.CONSTANT))


class Counted:
    """The counts of one stage in its loops."""

    def __init__(
        self, index: Index, stage: Stage, target: Target, machine: Machine, near: Mapping[Buffer, Near]
    ) -> None:
        self.stage, self.target, self.machine, self.near = stage, target, machine, near
        self.loops = index.above(stage)
        drive = {v for bind in stage.binds for v in find(bind, Var)}
        self.lanes = next((x for x in self.loops if x.kind is Kind.VECTOR and x.var in drive), None)
        guarded = self.lanes is not None and any(uses(g, {self.lanes.var}) for g in stage.guards)
        if guarded and find(stage.body, (Call, Select)):
            self.lanes = None  # one side of a choice may not be computed where the other is chosen: no vectors
        self.wide = _extent(self.lanes) if self.lanes else 1

    @property
    def times(self) -> float:
        """Iterations of all loops."""
        return float(math.prod(_extent(x) for x in self.loops))

    def vectors(self, bits: int, times: float, wide: int) -> float:
        """Instructions for so many operations on elements of so many bits, of which vectors have ``wide``."""
        return times / wide * math.ceil(wide * bits / (8 * max(16, self.target.vector_bytes)))

    def _moving(self, places: Sequence[Expr]) -> tuple[list[Loop], float]:
        """The loops whose iterations differ in some expressions, and how often these are computed: once in loops inside
        of those, and in unrolled ones that do not change them.
        """
        moving = [x for x in self.loops if any(uses(i, {x.var}) for i in places)]
        around = self.loops[: self.loops.index(moving[-1]) + 1] if moving else []
        return moving, math.prod(_extent(x) for x in around if x.kind is not Kind.UNROLL or x in moving)

    def cycles(self) -> float:
        """Cycles of its operations, reads and writes, or of sums that wait for each other where these are more."""
        body = self.stage.body
        crowded = len({n.fn for n in find(body, Call) if n.fn in CALL}) > 1 and not find(body, Select)
        lane = next((it.var for it, x in zip(self.stage.iters, self.stage.binds, strict=True)
                     if self.lanes and uses(x, {self.lanes.var})), None)  # fmt: skip
        busy = sum(
            self._of(n) * share * (CALL_SLOWDOWN if crowded and isinstance(n, Call) else 1.0)
            for n, share in _arithmetic(body, lane)
        )
        busy += sum(self._reached(b, at) for b, at in _accesses(body))
        updates = find(body, Update)
        busy += sum(self._combined(u) for u in updates)
        waits = self._waits(updates) if self.target.kind == "cpu" else 0.0
        return max(busy, waits)

    def _combined(self, u: Update) -> float:
        """Cycles of combining the values of an update with what is there."""
        inside = [n for r in u.combiner.result for n in find(r, Binary)]
        operations = sum(EXTREME_OPS if n.op in ("max", "min") else 1.0 for n in inside)
        return operations * max(self.vectors(DTYPES[b.dtype].bits, self.times, self.wide) for b in u.buffers) / ISSUE

    def _of(self, n: Expr) -> float:
        """Cycles of an operation."""
        moving, times = self._moving([in_loops(n, self.stage)])
        if not moving:
            return 0.0
        each = self.vectors(max(8, DTYPES[n.dtype].bits), times, self.wide if self.lanes in moving else 1)
        if isinstance(n, Call):
            return each * CALL.get(n.fn, OTHER_CYCLES)
        if isinstance(n, Binary) and n.op in ("/", "//", "%") and not (n.op != "/" and isinstance(n.b, Const)):
            return each * DIVIDE
        return each * (EXTREME_OPS if isinstance(n, Binary) and n.op in ("max", "min") else 1.0) / ISSUE

    def _reached(self, b: Buffer, index: Sequence[Expr]) -> float:
        """Cycles of reading or writing an element each time."""
        places = [in_loops(i, self.stage) for i in index]
        moving, times = self._moving(places)
        near = self.near.get(b)
        if not moving or (near and near.named(moving)):
            return 0.0
        size = max(1, DTYPES[b.dtype].bits // 8)
        shape = near.shape if near else [most(n) for n in b.shape]
        steps = {x.var: first_step(shape, places, x.var) for x in moving}
        together = self.lanes is not None and steps.get(self.lanes.var) == 1
        if together:
            times = self.vectors(8 * size, times, self.wide)
        apart = self.lanes in moving and not together
        far = 0.0 if near and near.nbytes <= FIRST_CACHE_BYTES else self.machine.far(*_between(moving, steps, size))
        far += SECOND_CACHE_CYCLES if near and near.nbytes > FIRST_CACHE_BYTES // 2 else 0.0
        crosses = together and self.target.kind == "cpu" and self._crosses(b, places)
        wait = LATE_READ_CYCLES if near and near.nbytes <= PENDING else 1 / ISSUE
        return times * ((self.machine.apart if apart else 1 / ISSUE) + far + (wait if crosses else 0.0))

    def _crosses(self, b: Buffer, places: Sequence[Expr]) -> bool:
        """True when vectors begin inside of aligned ones: parts of two lines, or of what two stores have written."""
        made = writes(self.stage.body)
        try:
            return b not in made and int(evaluate(places[-1], dict.fromkeys(find(places[-1], Var), 0))) % self.wide != 0
        except NotExactError:
            return False

    def _waits(self, updates: Sequence[Update]) -> float:
        """Cycles of the longest chain of sums, each of which needs the one before."""
        longest = 0.0
        for u in updates:
            places = [in_loops(i, self.stage) for i in u.index]
            side = 1
            for x in reversed(self.loops):
                if not any(uses(i, {x.var}) for i in places):
                    break
                side *= _extent(x) if x.kind in (Kind.UNROLL, Kind.VECTOR) else 1
                if x.kind not in (Kind.UNROLL, Kind.VECTOR):
                    side = 1 << 30
                    break
            larger = any(n.op in ("max", "min") for r in u.combiner.result for n in find(r, Binary))
            longest = max(longest, self.times / side * SUM_LATENCY * (2.0 if larger else 1.0))
        return longest

    def touched(self) -> Iterator[tuple[Buffer, float, float]]:
        """Each array in memory with the bytes of it that are read or written, and those that this moves."""
        made = writes(self.stage.body)
        for b, index in _accesses(self.stage.body):
            if b in self.near:
                continue
            places = [in_loops(i, self.stage) for i in index]
            cells = math.prod(_extent(x) for x in self.loops if any(uses(i, {x.var}) for i in places))
            size = DTYPES[b.dtype].bits / 8
            line = LINE if any(find(i, Load) for i in places) and self.apart(places) else size
            fetched = 2.0 if b in made and self.target.kind == "cpu" else 1.0  # a line is read before a part is written
            whole = float(bytes_of(b))
            yield b, min(whole, cells * size), fetched * min(whole, cells * line)

    def apart(self, places: Sequence[Expr]) -> bool:
        """True when data say where each single element is, not just where neighbours are."""
        return any(uses(i, {self.loops[-1].var}) for i in places[:-1]) or not self.loops


def _arithmetic(body: Node, lane: Var | None, share: float = 1.0) -> Iterator[tuple[Expr, float]]:
    """The operations of a body on values, not those that say places; and how often each is needed: the sides of
    a choice that all lanes make alike, every other time.
    """
    if isinstance(body, Load):
        return
    if isinstance(body, Binary | Unary | Select | Call):
        yield body, share
    inside = (body.value,) if isinstance(body, Store) else body.values if isinstance(body, Update) else body.children()
    for child in inside:
        alike = isinstance(body, Select) and child is not body.cond and (lane is None or not uses(body.cond, {lane}))
        yield from _arithmetic(child, lane, share / 2 if alike else share)
