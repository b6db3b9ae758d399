"""Checks that every read runs in a thread or block that can see the written element; run after each primitive.

A register belongs to one thread, shared memory to one block, global memory to all. Barriers order threads of one block;
nothing orders blocks. Binding, moving or staging may violate this long after the buffer was created, so the whole tree
is checked after each of these primitives.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from tensorir.arith.affine import Arith, Linear, structure
from tensorir.arith.point import NotExactError, Number, evaluate
from tensorir.errors import Problem
from tensorir.ir.build import as_int
from tensorir.ir.structure import among
from tensorir.ir.tree import (
    Binary,
    Buffer,
    Const,
    Expr,
    IntrinCall,
    Kind,
    Load,
    Loop,
    Program,
    Scope,
    Stage,
    Stmt,
    Update,
    Var,
)
from tensorir.ir.visit import find, has, reads, uses, writes
from tensorir.schedule.analysis import (
    Index,
    across,
    adds_atomically,
    caret,
    drives,
    in_loops,
    ranges,
    statements,
)
from tensorir.schedule.rewrite import shared_by, written_index

_POINTS = 512  # iterations of one loop that are tried one by one


def misplaced(program: Program) -> Problem | None:
    """The first Problem: a buffer whose elements do not reach all their readers, or that two threads would write
    concurrently. None if there is none.
    """
    tops = statements(program.body)
    users = Counter(b for top in tops for b in _used(top))
    for top in tops:
        if _bound(top) and (problem := _first_problem(top, frozenset(b for b in _used(top) if users[b] > 1))):
            return problem
    return None


@functools.lru_cache(maxsize=1024)
def _bound(top: Stmt) -> tuple[Loop, ...]:
    """Loops of a kernel bound to threads or blocks."""
    return tuple(x for x in find(top, Loop) if x.kind.level != "sequential" and _extent(x) > 1)


@functools.lru_cache(maxsize=1024)
def _used(top: Stmt) -> frozenset[Buffer]:
    """Buffers accessed by the stages of a kernel."""
    known = map(touched, find(top, Stage))
    return frozenset(b for t in known for b in (*t.loads, *t.writes))


@functools.lru_cache(maxsize=1024)
def _first_problem(top: Stmt, outside: frozenset[Buffer]) -> Problem | None:
    """First Problem of a kernel, cached by its tree, or None.

    outside: its buffers that other kernels access as well
    """
    index = Index(Program("", inputs=(), outputs=(), body=top))
    return next(_problems(index, {s: touched(s) for s in index.stages.values()}, top, outside), None)


class Touched(NamedTuple):
    """Buffers accessed by a stage.

    loads:  read in its body, indices and guards;  reads: those and its instructions' operands
    updates: true if it accumulates
    """

    loads: frozenset[Buffer]
    reads: frozenset[Buffer]
    writes: tuple[Buffer, ...]
    updates: bool


@functools.lru_cache(maxsize=1024)
def touched(s: Stage) -> Touched:
    """Return the Touched of a stage; cached."""
    loads = frozenset(x.buffer for x in find(s, Load))
    return Touched(loads, frozenset(reads(s)), tuple(writes(s.body)), has(s.body, Update))


def _extent(x: Loop) -> int:
    return as_int(x.extent) if isinstance(x.extent, Const) else 2


def _problems(index: Index, known: dict[Stage, Touched], top: Stmt, outside: AbstractSet[Buffer]) -> Iterator[Problem]:
    stages = find(top, Stage)
    made: dict[Buffer, list[Stage]] = {}
    for s in stages:
        for b in known[s].writes:
            made.setdefault(b, []).append(s)
    for s in stages:
        own = [x for x in _bound_above(index, s) if x.kind.level == "thread" and drives(x, s)]
        if own and _dealt(index, s):
            yield Problem(
                "scope.private",
                f"all threads fill {s.name} together, but each iteration of {own[0].var.name}, which "
                f"{own[0].kind.value} distributes, wants its own",
                at=caret(s),
                hint=f"bind {own[0].var.name} first, then stage; or cooperative=False",
            )
    for b, writers in made.items():
        scope = b.scope
        if scope is Scope.AUTO and b in outside:
            scope = Scope.GLOBAL  # where lowering will put it
        elif scope is Scope.AUTO:
            scope = _narrowest(index, writers, [s for s in stages if b in known[s].loads])
        readers = [s for s in stages if b in known[s].reads or (b in known[s].writes and known[s].updates)]
        if len({*writers, *readers}) == 1:
            continue
        if adders := [w for w in writers if adds_atomically(w)]:
            other = next(s for s in (*writers, *readers) if s is not adders[0])
            yield Problem(
                "scope.atomic",
                f"{other.name} touches {b.name} in the kernel in which {adders[0].name} adds to it",
                at=caret(other),
                hint=f"a nest of its own for {other.name}",
            )
        for w in writers:
            yield from _private(index, b, scope, w, readers)
            if scope in (Scope.SHARED, Scope.GLOBAL):
                yield from _shared(index, b, scope, w, readers, _bound(top))


def _narrowest(index: Index, writers: Sequence[Stage], readers: Sequence[Stage]) -> Scope:
    """The scope that lowering will choose for an "auto" buffer of one kernel: registers, shared memory if a thread loop
    separates writers and readers, AUTO if a block loop does.
    """
    paths = [index.paths[s] for s in (*writers, *readers)]
    common = sum(len({id(n) for n in level}) == 1 for level in zip(*paths, strict=False))
    levels = {n.kind.level for p in paths for n in p[common:] if isinstance(n, Loop)}
    return Scope.AUTO if "block" in levels else Scope.SHARED if "thread" in levels else Scope.REGISTER


def _private(index: Index, b: Buffer, scope: Scope, w: Stage, readers: Sequence[Stage]) -> Iterator[Problem]:
    """Yield Problems where an element in a private copy (register of a thread, shared memory of a block) is read by
    another thread or block than wrote it.
    """
    for x in index.above(w):
        alone = x.kind is not Kind.COOPERATIVE and (_extent(x) == 1 or not drives(x, w) or across(x, w))
        if alone or not _one_copy_each(scope, x.kind):  # a distributed loop of one iteration is the first thread's
            continue
        for r in readers:
            who = "block" if x.kind.level == "block" else "thread"
            if r is w:
                continue
            if (
                x in index.above(r)
                and who == "thread"
                and not drives(x, r)
                and {c.scope for c in writes(r.body)} - {Scope.REGISTER, Scope.WARP}
            ):
                yield Problem(
                    "scope.private",
                    f"{r.name} copies {b.name} for the whole block, but each thread of {x.var.name} has its own "
                    f"{scope.value} copy",
                    at=caret(r),
                    hint=f"a copy in registers, or keep {b.name} in shared memory",
                )
            if x not in index.above(r) and not _hands_back(index, b, w, x, r):
                shared = "the threads share" if x.kind is Kind.COOPERATIVE else f"{x.kind.value} distributes"
                yield Problem(
                    "scope.private",
                    f"{r.name} reads {b.name} outside {x.var.name}, which {shared}: each {who} "
                    f"would have filled only its own part of its own {scope.value} copy",
                    at=caret(x),
                    hint=f"bind a loop around {r.name} as well, or keep {b.name} in wider memory",
                )


def _hands_back(index: Index, b: Buffer, w: Stage, x: Loop, r: Stage) -> bool:
    """True if reader ``r``, in a loop bound like ``x``, reads in each iteration only what ``x``'s same iteration wrote:
    both index a dimension of ``b`` by iteration * n + offset, offset < n.
    """
    if x.kind.level != "thread" or b.scope not in (Scope.REGISTER, Scope.WARP):
        return False
    other = next((y for y in index.above(r) if y.kind is x.kind and _extent(y) == _extent(x)), None)
    found = [load.index for load in find(r, Load) if load.buffer is b]
    found += [u.index for u in find(r, Update) if b in u.buffers]
    if other is None or not found or b in {v for call in find(r, IntrinCall) for v in reads(call)}:
        return False
    common = [y for y in index.above(r) if y in index.above(w)]
    wrote = [_part_of(index, w, i, x, common) for i in written_index(w)]
    return all(any(p is not None and p == _part_of(index, r, i, other, common)
                   for p, i in zip(wrote, at, strict=True)) for at in found)  # fmt: skip


def _part_of(index: Index, s: Stage, i: Expr, own: Loop, common: Sequence[Loop]) -> tuple[int, Any] | None:
    """(elements per iteration of ``own``, start) if index ``i`` partitions a dimension by iteration, possibly modulo
    the size of all parts; else None.
    """
    arith = Arith(ranges(y for y in index.above(s) if isinstance(y.extent, Const)))
    form, still = arith.linear(in_loops(i, s)), {y.var for y in common}
    cells = form.terms.get(own.var, 0)
    base = {t: c for t, c in form.terms.items() if set(find(t, Var)) <= still}
    more = {t: c for t, c in form.terms.items() if t is not own.var and t not in base}
    rounds = {t for t, c in more.items() if c % max(1, cells * _extent(own)) == 0}
    if arith.range_of(Linear({t: more[t] for t in rounds}, 0))[0] < 0:
        return None
    low, high = arith.range_of(Linear({t: c for t, c in more.items() if t not in rounds}, form.constant))
    if cells < 1 or low < 0 or high >= cells:
        return None
    return cells, frozenset((structure(t), c) for t, c in base.items())


def _one_copy_each(scope: Scope, kind: Kind) -> bool:
    if scope in (Scope.REGISTER, Scope.WARP):
        return kind.level != "sequential" or kind is Kind.COOPERATIVE
    return scope is Scope.SHARED and kind.level == "block"


def _shared(
    index: Index, b: Buffer, scope: Scope, w: Stage, readers: Sequence[Stage], bound: Sequence[Loop]
) -> Iterator[Problem]:
    for kind in {x.kind: None for x in bound}:
        if _one_copy_each(scope, kind):
            continue
        mine = [x for x in _bound_above(index, w) if x.kind is kind and drives(x, w) and not across(x, w)]
        for x in mine:
            inner = [x, *index.between(x, w)]
            if not _dealt(index, w) and not disjoint(index, w, x) and not any(shared_by(index, w, y, b) for y in inner):
                yield Problem(
                    "scope.overlap",
                    f"several iterations of {x.var.name} write the same cells of {b.name}, and {kind.value} runs them "
                    "at the same time",
                    at=caret(w),
                    hint=f"keep {b.name} in registers, or place {w.name} outside {x.var.name}",
                )
        if kind.level == "block":
            for r in readers:
                if r is w or (mine and all(x in index.above(r) for x in mine)):
                    continue
                alone = Scope.GLOBAL in {c.scope for c in writes(r.body)} and not any(
                    x.kind is kind and drives(x, r) for x in _bound_above(index, r)
                )
                if mine or not alone:
                    yield Problem(
                        "scope.grid-wide",
                        f"{r.name} reads {b.name}, which another block of {kind.value} writes in the same kernel: "
                        "nothing orders blocks",
                        at=caret(w),
                        hint=f"give {w.name} a nest of its own, or place it inside the blocks that read it",
                    )


def _bound_above(index: Index, s: Stage) -> list[Loop]:
    return [x for x in index.above(s) if x.kind.level != "sequential" and _extent(x) > 1]


def _dealt(index: Index, w: Stage) -> bool:
    return any(x.kind is Kind.COOPERATIVE for x in index.above(w))


def disjoint(index: Index, w: Stage, loop: Loop) -> bool:
    """True if different iterations of ``loop`` provably write different elements."""
    arith = Arith(ranges(x for x in index.above(w) if isinstance(x.extent, Const)))
    moving = {loop.var, *(x.var for x in index.between(loop, w))}
    if loop.kind.level == "block":  # nothing orders blocks: each is somewhere else in the loops around
        moving |= {x.var for x in index.above(loop) if x.kind.level == "sequential"}
    forms = [arith.linear(in_loops(i, w)) for i in written_index(w)]
    atoms = {t for f in forms for t in f.terms if uses(t, {loop.var})}
    told = [t for t in atoms if any(t in f.terms and _injective(f, arith, moving) for f in forms)]
    return _determines(told, loop)


def _injective(form: Linear, arith: Arith, moving: set[Var]) -> bool:
    """True if the value of linear form ``form`` determines all of its ``moving`` terms, as digits of a mixed radix
    number.
    """
    reach = 0.0
    parts = []
    for t, c in form.terms.items():
        if uses(t, moving):
            low, high = arith.range_of(Linear({t: 1}, 0))
            parts.append((abs(c), high - low))
    for c, steps in sorted(parts):
        if not steps < math.inf or (steps and c <= reach):
            return False
        reach += c * steps
    return True


def _values(e: Expr, var: Var, n: int) -> list[Number]:
    """Values of ``e`` for ``var`` = 0 … n-1; all 0 if they cannot be computed."""
    try:
        return [evaluate(e, {var: k}) for k in range(n)]
    except NotExactError:
        return [0] * n


def _determines(atoms: Sequence[Expr], loop: Loop) -> bool:
    """True if the values of ``atoms`` determine the iteration of ``loop``."""
    if among(loop.var, atoms):
        return True
    alone = [t for t in atoms if set(find(t, Var)) == {loop.var}]
    n = _extent(loop)
    if n <= _POINTS:
        values = [_values(t, loop.var, n) for t in alone]
        return len({tuple(v[k] for v in values) for k in range(n)}) == n
    parts = sorted(filter(None, (_digit(t, loop.var) for t in alone)))
    place = 1
    for low, size in parts:  # digits from the lowest, without a gap
        if low > place:
            return False
        place = max(place, low * size)
    return place >= n


def _digit(t: Expr, v: Var) -> tuple[int, int] | None:
    """(a, b) if ``t`` is ``v // a % b``, b huge without ``%``; None for other expressions."""
    size, low = 1 << 62, 1
    if isinstance(t, Binary) and t.op == "%" and isinstance(t.b, Const):
        size, t = as_int(t.b), t.a
    if isinstance(t, Binary) and t.op == "//" and isinstance(t.b, Const):
        low, t = as_int(t.b), t.a
    return (low, size) if t is v else None
