"""fuse_with: fuse the equal outer loops of two nests into one kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorir.arith.access import even
from tensorir.arith.affine import Arith, same
from tensorir.arith.point import NotExactError, evaluate
from tensorir.errors import Problem, ScheduleError
from tensorir.ir.marks import Pipelined, UnrollBy
from tensorir.ir.text import show
from tensorir.ir.tree import Buffer, Expr, Load, Loop, Prefetch, Program, Stage, Stmt, Store, Update, Var
from tensorir.ir.visit import find, sequence, substitute, walk
from tensorir.schedule.analysis import Index, caret, in_loops, index_of, ranges, statements
from tensorir.schedule.history import H, Name, Scheduled
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, nest, with_body


@dataclass(frozen=True, eq=False)
class _Access:
    stage: Stage
    buffer: Buffer
    index: tuple[Expr, ...]
    writes: bool

    def __str__(self) -> str:
        place = ", ".join(map(show, self.index))
        return f"{self.stage.name} {'writes' if self.writes else 'reads'} {self.buffer.name}[{place}]"


@primitive("Where a stage runs", moves=True)
def fuse_with(self: Scheduled[H], stage: Name, other: Name) -> H:
    """Run the nests of two stages in common outer loops, ``s.fuse_with("C", "R")``: one kernel, in each iteration first
    the body of the earlier nest, then of the later one. Returns the stage of the later nest.

    Outer loops are fused from the outermost one on, as long as they have equal extents and kinds, and iterations of
    one nest provably use results of the same iteration of the other alone. They keep the earlier nest's names.

    It gains a launch, on a GPU, and a second read of common operands if caches keep them.
    """
    history = self._history
    a, b = history._stage(stage), history._stage(other)
    (name,) = history._apply("fuse_with", (a, b), {}, lambda p: _fuse_with(p, a, b))
    return history._handle(name)


def _fuse_with(program: Program, a: Stage, b: Stage) -> Rewrite:
    index, roots = index_of(program), list(statements(program.body))
    tops = [_nest_of(index, roots, s) for s in (a, b)]
    first, last = min(tops, key=roots.index), max(tops, key=roots.index)
    if first is last:
        raise _refuse("fuse-with.same-nest", f"{a.name} and {b.name} are in one nest already", b)
    start, end = roots.index(first), roots.index(last)
    for between in roots[start + 1 : end]:
        for x, y in _conflicts(list(_accesses(between)), list(_accesses(last))):
            raise _refuse("fuse-with.between", f"{y}, and {x}: the nest cannot move before it", y.stage,
                          f"s.fuse_with({x.stage.name!r}, {y.stage.name!r}) first")  # fmt: skip
    pairs = _conflicts(list(_accesses(first)), list(_accesses(last)))
    shared = _shared(index, first, last, pairs)
    _extents_agree(shared[-1][0].body, shared[-1][1].body)
    swap = {y.var: x.var for x, y in shared}
    body = sequence([shared[-1][0].body, substitute(shared[-1][1].body, swap)])
    made = nest([x for x, _ in shared], body)
    gone = {y.var.name: f"{y.var.name} is fused with {x.var.name}" for x, y in shared}
    later = b if tops[1] is last else a
    stmts = [made if s is first else s for s in roots if s is not last]
    return Rewrite(with_body(program, sequence(stmts)), (later.name,), gone)


def _nest_of(index: Index, roots: Sequence[Stmt], stage: Stage) -> Loop:
    above = index.above(stage)
    if not above or above[0] not in roots:
        raise _refuse("fuse-with.loops", f"{stage.name} has no loop at the root", stage)
    return above[0]


def _shared(index: Index, first: Loop, last: Loop, pairs: Sequence[tuple[_Access, _Access]]) -> list[tuple[Loop, Loop]]:
    """Pairs of loops to fuse, outermost first; no iteration uses results of another one. Raises ScheduleError if not
    even the outermost pair fits.
    """
    arith = Arith(ranges(index.loops.values()))
    found: list[tuple[Loop, Loop]] = []
    x: Stmt = first
    y: Stmt = last
    while isinstance(x, Loop) and isinstance(y, Loop):
        stage = find(y, Stage)[0]
        if not same(x.extent, y.extent) or _said(x) != _said(y):
            if not found:
                raise _refuse("fuse-with.loops", f"{x.var.name} runs over {show(x.extent)} iterations ({x.kind.value}) "
                              f"and {y.var.name} over {show(y.extent)} ({y.kind.value}), so there is no common outer "
                              "loop", stage, "s.split and s.bind of both alike, or s.compute_at")  # fmt: skip
            break
        swap = {q.var: p.var for p, q in found}
        wrong = next((p for p in pairs if not _apart(*p, swap, x.var, y.var, arith)), None)
        if wrong is not None and not found:
            raise _refuse("fuse-with.dependence", f"{wrong[0]}, and {wrong[1]}{_witness(*wrong, x, y, index)}",
                          wrong[1].stage, "s.compute_at, which computes what an iteration needs")  # fmt: skip
        if wrong is not None:
            break
        found.append((x, y))
        x, y = x.body, y.body
    return found


def _extents_agree(first: Stmt, last: Stmt) -> None:
    """Raise ScheduleError if unfused inner loops would bind one hardware axis with different extents."""
    bound = {x.kind: x for x in find(first, Loop) if x.kind.level != "sequential"}
    for y in find(last, Loop):
        x = bound.get(y.kind)
        if x is not None and not same(x.extent, y.extent):
            raise _refuse("fuse-with.loops", f"{x.var.name} runs over {show(x.extent)} iterations and {y.var.name} "
                          f"over {show(y.extent)}, both bound to {y.kind.value}, which has one extent in a kernel",
                          find(y, Stage)[0], "split both alike")  # fmt: skip


def _said(x: Loop) -> tuple[object, ...]:
    """Kind and marks of a loop, equal for loops that may be fused; a loop with other marks than unroll hints and
    pipelining equals only itself.
    """
    pipe = Pipelined.of(x)
    own = x.var.name if any(not isinstance(m, UnrollBy | Pipelined) for m in x.marks) else ""
    return x.kind, UnrollBy.of(x).factor, pipe.depth, pipe.later, pipe.roles, pipe.turns, own


def _accesses(root: Stmt) -> Iterator[_Access]:
    for s in find(root, Stage):
        parts = [s.body, *([s.init] if s.init is not None else []), *s.guards]
        for n in (n for part in parts for n in walk(part)):  # of what reads in another way it is refused
            if isinstance(n, Load | Store):
                yield _Access(s, n.buffer, _where(s, n.index), isinstance(n, Store))
            elif isinstance(n, Update):
                yield from (_Access(s, b, _where(s, n.index), True) for b in n.buffers)
            elif not isinstance(n, Prefetch) and (b := getattr(n, "buffer", None)) is not None:  # (it changes nothing)
                raise _refuse("fuse-with.loops", f"{s.name} has a {type(n).__name__} of {b.name}, and which of its "
                              "cells that touches is not known", s, "s.fuse_with before this step")  # fmt: skip


def _where(stage: Stage, index: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(in_loops(i, stage) for i in index)


def _conflicts(a: Sequence[_Access], b: Sequence[_Access]) -> list[tuple[_Access, _Access]]:
    """Access pairs to one buffer with at least one write."""
    return [(x, y) for x in a for y in b if x.buffer is y.buffer and (x.writes or y.writes)]


def _apart(x: _Access, y: _Access, swap: dict[Var, Var], v: Var, w: Var, arith: Arith) -> bool:
    """True if iterations of ``v`` and ``w`` with different numbers provably access different elements."""
    for i, j in zip(x.index, y.index, strict=True):
        one, two = even(i, v, arith), even(substitute(j, dict(swap)), w, arith)
        if one is None or two is None or one[0] != two[0] or not one[0]:
            continue
        low, high = arith.range_of(one[1].plus(two[1], -1))
        if max(abs(low), abs(high)) < abs(one[0]):
            return True
    return False


def _witness(x: _Access, y: _Access, first: Loop, last: Loop, index: Index) -> str:
    """Text to append to an error: two different iterations that access one element, of up to 4,096 points per access,
    or the statement that none was found.
    """
    cells: dict[tuple[int, ...], int] = {}
    for where, loop in ((x.index, first), (y.index, last)):
        axes = list(dict.fromkeys([loop.var, *(v for i in where for v in find(i, Var))]))
        try:
            ends = [int(evaluate(index.loops[v.name].extent, {})) for v in axes]
            sides = [sorted({*range(min(4, n)), n - 1}) for n in ends]
            for point in itertools.islice(itertools.product(*sides), 4096):
                env = dict(zip(axes, point, strict=True))
                cell = tuple(int(evaluate(i, env)) for i in where)
                if loop is first:
                    cells.setdefault(cell, env[loop.var])
                elif cells.get(cell, env[loop.var]) != env[loop.var]:
                    place = ", ".join(map(str, cell))
                    return (f": {x.buffer.name}[{place}] is met when {first.var.name} = {cells[cell]} and when "
                            f"{last.var.name} = {env[loop.var]}")  # fmt: skip
        except (NotExactError, KeyError):
            return ", in the same iteration or not"
    return ", and it is not proved that they meet in the same iteration alone"


def _refuse(code: str, message: str, stage: Stage, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(stage), hint=hint))
