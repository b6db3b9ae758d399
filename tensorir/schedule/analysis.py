"""Queries on a program's loop tree for schedule primitives: lookup by name, enclosing loops, readers and writers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from tensorir.arith.affine import Arith, Interval
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.shown import Shown
from tensorir.errors.spelling import nearest
from tensorir.ir.build import as_int, no_constant
from tensorir.ir.dims import dims_in
from tensorir.ir.node import Node
from tensorir.ir.text import lines
from tensorir.ir.tree import (
    THREADS,
    Axis,
    Buffer,
    Const,
    Expr,
    If,
    Iter,
    Kind,
    Load,
    Loop,
    Prefetch,
    Program,
    Scope,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip
from tensorir.ir.visit import find, has, reads, substitute, uses, writes

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Index(Shown):
    """Lookup of a program's loops, stages and buffers by name, and of the statements that enclose each."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._kernels = [_within(top) for top in statements(program.body)]
        self.loops: Mapping[str, Loop] = _Joined([k.loops for k in self._kernels])
        """Every loop by name."""
        self.paths: Mapping[Node, tuple[Stmt, ...]] = _Joined([{program.body: ()}, *(k.paths for k in self._kernels)])
        """For each statement, the statements that enclose it, from its kernel inward."""

    @functools.cached_property
    def stages(self) -> dict[str, Stage]:
        """Every stage by name."""
        return {name: x for k in self._kernels for name, x in k.stages.items()}

    def __repr__(self) -> str:
        return f"<Index of {self.program.name}: {len(self.loops)} loops, {len(self.stages)} stages>"

    def above(self, n: Node) -> list[Loop]:
        """Loops enclosing ``n``, outermost first, without ``n`` itself."""
        return [x for x in self.paths[n] if isinstance(x, Loop)]

    def between(self, outer: Loop, inner: Node) -> list[Loop]:
        """Loops strictly between ``outer`` and ``inner``, outermost first."""
        path = self.above(inner)
        return path[path.index(outer) + 1 :]

    def names(self) -> set[str]:
        """Every name in use: loops, stages and buffers."""
        return {*self.buffers(), *self.loops, *self.stages}

    def root_of(self, n: Node) -> Stmt:
        """The top-level nest (kernel) that contains ``n``."""
        path = self.paths[n]
        return path[0] if path else n  # type: ignore[return-value]

    @functools.cached_property
    def _buffers(self) -> dict[str, Buffer]:
        used = (b for written in (False, True) for top in statements(self.program.body) for b in _of(top, written))
        return {b.name: b for b in (*self.program.params, *used)}

    def buffers(self) -> dict[str, Buffer]:
        """All buffers by name."""
        return self._buffers


class _Joined(Mapping[K, V]):
    """What the kernels of a program have, without a table of all: each step of a schedule looks up a few."""

    def __init__(self, parts: Sequence[Mapping[K, V]]) -> None:
        self.parts = parts

    def __getitem__(self, key: K) -> V:
        for part in reversed(self.parts):
            if key in part:
                return part[key]
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return any(key in part for part in self.parts)

    def __iter__(self) -> Iterator[K]:
        return (key for part in self.parts for key in part)

    def __len__(self) -> int:
        return sum(map(len, self.parts))


class _Within:
    """Loops and stages of one kernel by name, and the enclosing statements of each."""

    def __init__(self, top: Stmt) -> None:
        self.loops: dict[str, Loop] = {}
        self.stages: dict[str, Stage] = {}
        self.paths: dict[Node, tuple[Stmt, ...]] = {}
        self._visit(top, ())

    def _visit(self, s: Stmt, path: tuple[Stmt, ...]) -> None:
        self.paths[s] = path
        while type(s) is Loop:  # most trees are nests
            self.loops[s.var.name] = s
            path = (*path, s)
            s = s.body
            self.paths[s] = path
        if type(s) is Stage:
            self.stages[s.name] = s
            return
        below = (*path, s)
        for child in reversed(s.bodies_backwards()):
            if isinstance(child, Stmt):
                self._visit(child, below)


_within = functools.lru_cache(maxsize=1024)(_Within)  # successive programs of a schedule differ in one kernel


@functools.lru_cache(maxsize=2048)
def _of(top: Stmt, written: bool) -> Sequence[Buffer]:
    """Buffers that a kernel writes, or with ``written`` False reads."""
    return writes(top) if written else reads(top)


@functools.lru_cache(maxsize=1024)
def touched_by(top: Stmt) -> tuple[Buffer, ...]:
    """The buffers that a kernel reads or writes, each once."""
    return tuple(dict.fromkeys((*_of(top, False), *_of(top, True))))


def users(body: Stmt, buffers: Iterable[Buffer]) -> list[Stmt]:
    """Kernels (top-level nests) in ``body`` that read or write one of ``buffers``, and all with any prefetch."""
    wanted = set(buffers)
    return [s for s in statements(body) if not wanted.isdisjoint(touched_by(s)) or has(s, Prefetch)]


def stages_of(top: Stmt) -> Iterable[Stage]:
    """The stages of a kernel, in their order."""
    return _within(top).stages.values()


@functools.lru_cache(maxsize=16)
def index_of(program: Program) -> Index:
    """Return the Index of a program; cached."""
    return Index(program)


def driven_by(loop: Loop) -> list[tuple[Stage, Iter]]:
    """(stage, axis) pairs under ``loop`` whose axis value depends on the loop variable."""
    return [(s, it) for s in find(loop, Stage) for it in driven_axes(loop, s)]


def driven_axes(loop: Loop, stage: Stage) -> list[Iter]:
    """Axes of ``stage`` whose value depends on the variable of ``loop``."""
    return [it for it, bind in zip(stage.iters, stage.binds, strict=True) if uses(bind, {loop.var})]


def drives(loop: Loop, stage: Stage) -> bool:
    """True if an axis of ``stage`` depends on the variable of ``loop``."""
    return any(uses(b, {loop.var}) for b in stage.binds)


def ranges(loops: Iterable[Loop]) -> dict[Var, Interval]:
    """{variable: interval} of loops; extents must be constant."""
    return {x.var: (0, as_int(x.extent) - 1) for x in loops}


def context(index: Index, n: Node, *, inside: bool = False) -> Arith:
    """Arithmetic that knows the ranges of the loops enclosing ``n``; with ``inside`` also of those that it encloses."""
    loops = [*index.above(n), *(find(n, Loop) if inside else ())]
    return Arith(ranges(loops))


@functools.lru_cache(maxsize=1024)
def in_loops(e: Expr, stage: Stage) -> Expr:
    """``e`` with the axes of ``stage`` replaced by their loop expressions; cached, so equal calls give the same
    object.
    """
    return substitute(e, dict(zip((i.var for i in stage.iters), stage.binds, strict=True)))


def loads_of(stage: Stage, buffer: Buffer) -> list[Load]:
    """Loads of ``buffer`` in the body of ``stage``."""
    return find(stage.body, Load, lambda n: n.buffer is buffer)


def constant_extent(loop: Loop, code: str) -> int:
    """Extent of ``loop`` as an int; raises ScheduleError ``code`` if it is not constant."""
    if isinstance(loop.extent, Const):
        return as_int(loop.extent)
    raise ScheduleError(Problem(code, f"loop {loop.var.name} has the symbolic extent of an outer loop or of data"))


def need_constant(stage: Stage) -> None:
    """Raise ScheduleError ``dim.constant`` if an axis of ``stage`` has an extent known only at launch."""
    for it in stage.iters:
        if dims_in(it.extent):
            raise ScheduleError(no_constant(it.extent).problems)


def need_serial(loop: Loop, primitive: str) -> None:
    """Raise ScheduleError ``<primitive>.serial`` unless ``loop`` is serial: not unrolled, vectorized or bound."""
    if loop.kind is not Kind.SERIAL:
        message = f"loop {loop.var.name} is already {_done(loop.kind)}"
        raise ScheduleError(Problem(f"{primitive}.serial", message, at=caret(loop), hint=_instead(loop, primitive)))


def _instead(loop: Loop, primitive: str) -> str:
    """Hint at a way to keep the loop's kind and apply ``primitive`` as well; "" if there is no way."""
    verb = loop.kind.value if loop.kind in (Kind.UNROLL, Kind.VECTOR) else "bind"
    if primitive in ("split", "fuse") or (primitive == "partition" and loop.kind is not Kind.VTHREAD):
        return f"{primitive} it first, then {verb}"
    if primitive == "tensorize":
        return f"do not {verb} {loop.var.name}: the instruction performs all loops of its nest"
    if primitive == verb != "bind":
        return ""
    part = 2 if isinstance(loop.extent, Const) and as_int(loop.extent) <= 4 else 4
    others = f"{verb} one part, {primitive} the other"
    if primitive == verb:
        others = "bind one part, the other to block.x" if loop.kind is Kind.COOPERATIVE else "bind each part"
    return f"s.split({loop.var.name!r}, [None, {part}]) before that: {others}"


def need_room(index: Index, loop: Loop, primitive: str) -> None:
    """Raise ScheduleError ``<primitive>.room`` if ``loop`` is, or is inside, a vectorized loop or one distributed to a
    block's threads: no further stage can be inserted there.
    """
    for x in [*index.above(loop), loop]:
        if x.kind in (Kind.COOPERATIVE, Kind.VECTOR):
            raise ScheduleError(
                Problem(
                    f"{primitive}.room",
                    f"loop {x.var.name} is {_done(x.kind)}: no other stage can run inside it",
                    at=caret(x),
                    hint="give a loop further out",
                )
            )


def _done(kind: Kind) -> str:
    words = {
        Kind.UNROLL: "unrolled", Kind.VECTOR: "vectorized", Kind.COOPERATIVE: "distributed to the threads",
        Kind.INTRIN: "tensorized",
    }  # fmt: skip
    return words.get(kind, f"bound to {kind.value}")


def has_axis(loop: Loop, axis: Axis) -> list[tuple[Stage, Iter]]:
    """(stage, axis) pairs in which ``loop`` drives an axis of kind ``axis``."""
    return [(s, it) for s, it in driven_by(loop) if it.axis is axis]


def reopens(stage: Stage) -> bool:
    """True if a stage loads or stores a copy once per piece of a reduction that is accumulated in pieces
    (``reopen``).
    """
    return isinstance(stage.body, Store) and any(it.axis is Axis.ORDERED for it in stage.iters)


def scans(loop: Loop) -> bool:
    """True if ``loop`` iterates over terms of scans only, carrying their states."""
    found = driven_by(loop)
    return bool(found) and all(it.axis is Axis.ORDERED and is_scan(s) for s, it in found)


def reduces_in_order(loop: Loop) -> bool:
    """True if ``loop`` iterates over terms of non-commutative reductions only; vector lanes combine them as in
    a scan.
    """
    found = driven_by(loop)
    return bool(found) and all(it.axis is Axis.REDUCE for _, it in found) and len(in_order(loop)) == len(found)


def is_scan(stage: Stage) -> bool:
    """True if a stage stores the running result in every step (a scan)."""
    body = stage.body.then if isinstance(stage.body, If) else stage.body
    return isinstance(body, Seq) and any(it.axis is Axis.ORDERED for it in stage.iters)


def accumulates(loop: Loop, stage: Stage) -> bool:
    """True if later iterations of ``loop`` continue to accumulate into elements of ``stage``."""
    return any(it.axis is not Axis.SPATIAL for it in driven_axes(loop, stage))


def across(loop: Loop, stage: Stage) -> bool:
    """True if each thread of ``loop`` holds a partial result of ``stage``, combined across threads."""
    return (
        loop.kind in THREADS
        and not adds_atomically(stage)
        and isinstance(stage.body, Update)
        and any(it.axis is Axis.REDUCE for it in driven_axes(loop, stage))
    )


def in_order(loop: Loop) -> list[tuple[Stage, Iter]]:
    """(stage, axis) pairs of ``loop`` whose terms have a fixed order: scans, pieces of reductions, non-commutative
    combiners.
    """
    return [
        (s, it) for s, it in driven_by(loop)
        if not adds_atomically(s) and (it.axis is Axis.ORDERED or (it.axis is Axis.REDUCE and not commutes(s)))
    ]  # fmt: skip


def commutes(stage: Stage) -> bool:
    """True if the stage's terms may be combined in any order."""
    return all(u.combiner.commutative for u in find(stage.body, Update))


def adds_atomically(stage: Stage) -> bool:
    """True if ``stage`` accumulates by atomic operations, so that any thread may run any of its iterations."""
    return isinstance(stage.body, Update) and stage.body.atomic


def caret(loop: Loop | Stage, show: int = 3) -> str:
    """The first ``show`` lines of the loop tree below ``loop`` as text, with an arrow at its own line."""
    text = lines(loop, 0)[:show]
    text[0] += "    <--"
    return "\n".join(text)


def lookup(what: str, name: str, table: Mapping[str, T], gone: Mapping[str, str]) -> T:
    """``table[name]``, a loop, stage or tensor by ``what``. Raises ScheduleError: ``<what>.gone`` with the name's fate
    from ``gone``, else ``<what>.unknown`` with the nearest name and the first 12 of ``table``.
    """
    if name in table:
        return table[name]
    if name in gone:
        raise ScheduleError(Problem(f"{what}.gone", f"{what} {name} no longer exists: {gone[name]}"))
    close = nearest(name, table)
    live = ", ".join(list(table)[:12])
    hint = f"{close[0]!r}?  " if close else ""
    raise ScheduleError(Problem(f"{what}.unknown", f"there is no {what} {name}", hint=f"{hint}{what}s: {live}"))


def packed_name(read: str) -> str:
    """Name for a packed copy: "x_packed" of all of "x", "x_j_k_packed" of the read "x[j, k]"."""
    return f"{'_'.join(re.findall('[A-Za-z0-9_]+', read))}_packed"


def unique(name: str, taken: Iterable[str]) -> str:
    """``name``, or ``name_1``, ``name_2`` … if taken."""
    used = set(taken)
    n, k = name, 1
    while n in used:
        n, k = f"{name}_{k}", k + 1
    return n


def packed_names(reads: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Names for packed copies of several reads, as ``reindex`` chooses them, avoiding those ``taken``."""
    used, made = set(taken), list[str]()
    for read in reads:
        made.append(unique(packed_name(read), used))
        used.add(made[-1])
    return made


def stages_reading(n: Stmt, buffer: Buffer) -> list[Stage]:
    """Stages under ``n`` that read ``buffer``."""
    return [s for top in users(n, [buffer]) for s in find(top, Stage) if any(x.buffer is buffer for x in find(s, Load))]


def stages_writing(n: Stmt, buffer: Buffer) -> list[Stage]:
    """Stages under ``n`` that write ``buffer``."""
    return [s for top in users(n, [buffer]) for s in find(top, Stage) if buffer in writes(s.body)]


def shares(scope: Scope, loop: Loop) -> bool:
    """True for shared memory and a loop bound to threads: all iterations see one copy of the buffer."""
    return scope is Scope.SHARED and loop.kind.level == "thread"


def statements(s: Stmt) -> Sequence[Stmt]:
    """The statements of a Seq, or the single statement."""
    return s.stmts if isinstance(s, Seq) else (s,)
