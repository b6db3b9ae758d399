"""Shared and register buffers: boxes of the elements that stages read and write, and stores that nobody reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tensorir.arith.affine import Arith
from tensorir.arith.box import Side, side_of
from tensorir.ir.tree import (
    Alloc,
    Buffer,
    Expr,
    If,
    IntrinCall,
    Load,
    Loop,
    Region,
    Scope,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Pruner, find, reads, writes
from tensorir.lower.form import loop_ranges
from tensorir.schedule.analysis import in_loops

LOCAL = (Scope.SHARED, Scope.WARP, Scope.REGISTER)


@dataclass(frozen=True, eq=False)
class Access:
    """One access of a stage to a buffer: its index, and the statements that enclose it."""

    stage: Stage
    path: tuple[Stmt, ...]
    index: tuple[Expr, ...]
    writes: bool
    extents: tuple[int, ...]  # how far it reaches from there: 1 in each dimension but for operands of instructions


def local_accesses(body: Stmt) -> dict[Buffer, list[Access]]:
    """Every access to shared and register buffers, in program order."""
    out: dict[Buffer, list[Access]] = {}
    _collect(body, (), out)
    return out


def _collect(s: Stmt, path: tuple[Stmt, ...], out: dict[Buffer, list[Access]]) -> None:
    if isinstance(s, Stage):
        for n in (n for root in (*s.binds, *s.guards, s.body) for n in find(root, (Load, Store, Update, IntrinCall))):
            for b, index, write, extents in _touched(n):
                if b.scope in LOCAL:
                    out.setdefault(b, []).append(Access(s, path, index, write, extents or (1,) * len(index)))
        return
    for c in s.children():
        if isinstance(c, Stmt):
            _collect(c, (*path, s), out)


def _touched(n: object) -> list[tuple[Buffer, tuple[Expr, ...], bool, tuple[int, ...]]]:
    if isinstance(n, Load | Store):
        return [(n.buffer, n.index, isinstance(n, Store), ())]
    if isinstance(n, Update):
        return [(b, n.index, write, ()) for b in n.buffers for write in (False, True)]
    if isinstance(n, IntrinCall):
        read, written = reads(n), writes(n)
        return [
            (r.buffer, r.first, write, r.extents)
            for r in n.operands for write, used in ((False, read + written), (True, written)) if r.buffer in used
        ]  # fmt: skip
    return []


def common(found: list[Access]) -> tuple[Stmt | None, int]:
    """Innermost loop or sequence that contains all accesses, and its depth; (None, 0) if only the kernel does."""
    depth = 0
    paths = [a.path for a in found]
    while all(len(p) > depth for p in paths) and len({id(p[depth]) for p in paths}) == 1:
        depth += 1
    while depth and not isinstance(paths[0][depth - 1], Loop | Seq):
        depth -= 1
    return (paths[0][depth - 1] if depth else None), depth


def sides_of(
    buffer: Buffer, found: list[Access], depth: int, axes: list[Loop], arith: Arith
) -> list[list[Side | None]]:
    """Per access, per dimension: the interval of indices touched while loops inside depth ``depth`` run; None if
    unknown.

    For shared memory, thread loops run as well.
    """
    moving: dict[Var, tuple[float, float]] = {}
    if buffer.scope is Scope.SHARED:
        moving.update(loop_ranges([x for x in axes if x.kind.level == "thread"]))
    out = []
    known: dict[int, tuple[Mapping[Var, tuple[float, float]], Arith]] = {}  # by path: all accesses of a stage have one
    covered: dict[tuple[int, Expr], Side | None] = {}  # an update reads what it writes
    for a in found:
        if id(a.path) not in known:
            inner = {**moving, **loop_ranges([x for x in a.path[depth:] if isinstance(x, Loop)])}
            conds = [x.cond for x in a.path if isinstance(x, If)]
            known[id(a.path)] = inner, arith.child(assume=conds) if conds else arith
        inside, here = known[id(a.path)]
        places = [(id(a.path), in_loops(i, a.stage)) for i in a.index]
        covered.update({p: side_of(p[1], here, inside) for p in places if p not in covered})
        sides = [covered[p] for p in places]
        out.append(
            [
                s if s is None or n == 1 else Side(s.first, s.extent + n - 1)
                for s, n in zip(sides, a.extents, strict=True)
            ]
        )
    return out


def makers(body: Stmt, axes: list[Loop], arith: Arith) -> dict[tuple[Buffer, str], list[list[set[str]]]]:
    """For each (buffer, reading stage), per read: the sets of other stages, each of which writes every element the read
    touches. A set has one stage, or the parts of a partitioned loop.
    """
    out: dict[tuple[Buffer, str], list[list[set[str]]]] = {}
    for b, found in local_accesses(body).items():
        _, depth = common(found)
        sides = sides_of(b, found, depth, axes, arith)
        writers = [(a.stage, s) for a, s in zip(found, sides, strict=True) if a.writes]
        for a, s in zip(found, sides, strict=True):
            if not a.writes:
                out.setdefault((b, a.stage.name), []).append(_fill(s, [w for w in writers if w[0] is not a.stage]))
    return out


def _fill(box: list[Side | None], writers: list[tuple[Stage, list[Side | None]]]) -> list[set[str]]:
    """Sets of stage names that together write all of ``box``: single stages, else several that adjoin along a
    dimension.
    """
    reaches = [(stage.name, [_reach(i, o) for i, o in zip(box, sides, strict=True)]) for stage, sides in writers]
    sizes = [side.extent if side else 0 for side in box]
    whole = [{name} for name, reach in reaches if all(map(_covers, reach, sizes))]
    if whole:
        return whole
    ways = []
    for d, size in enumerate(sizes):
        row = [(r[d], name) for name, r in reaches if all(_covers(r[k], sizes[k]) for k in range(len(box)) if k != d)]
        ways += [names] if (names := _chain(row, size)) else []
    return ways


def _reach(inner: Side | None, outer: Side | None) -> tuple[int, int] | None:
    """Constant bounds (low, high) of interval ``outer`` relative to the start of ``inner``; None if not constant."""
    if inner is None or outer is None:
        return None
    apart = outer.first.plus(inner.first, -1)
    return None if apart.terms else (apart.constant, apart.constant + outer.extent)


def _covers(reach: tuple[int, int] | None, size: int) -> bool:
    return reach is not None and reach[0] <= 0 and reach[1] >= size


def _chain(row: list[tuple[tuple[int, int] | None, str]], size: int) -> set[str]:
    """Names of intervals that cover 0 to ``size`` without a gap; an empty set if they cannot."""
    names, end = set(), 0
    for (first, last), name in sorted((reach, name) for reach, name in row if reach is not None):
        if end < size and first <= end < last:
            names.add(name)
            end = last
    return names if end >= size else set()


def without_unread(body: Stmt) -> Stmt:
    """``body`` without stores to local buffers that are never read."""
    while True:
        stores = find(body, Store)
        own = Counter(n.buffer for s in stores for n in find(s, Load) if n.buffer is s.buffer)
        loads = Counter(n.buffer for n in find(body, Load))
        used = {b for b, n in loads.items() if n > own[b]} | {r.buffer for r in find(body, Region)}
        dead = {s.buffer for s in stores if s.buffer.scope in LOCAL} - used
        if not dead:
            return body
        body = _Without(dead)(body)


class _Without(Pruner):
    def __init__(self, dead: set[Buffer]) -> None:
        self.dead = dead

    def on_Store(self, n: Store) -> Stmt:
        return Seq(()) if n.buffer in self.dead else n

    def on_Alloc(self, n: Alloc) -> Stmt:
        return self.within(n, lambda a, body: body if a.buffer in self.dead else a.replace(body=body))
