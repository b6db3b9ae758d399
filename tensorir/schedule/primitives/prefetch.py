"""prefetch: request cache lines before they are read."""

from __future__ import annotations

import math

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int
from tensorir.ir.build import as_expr, binary
from tensorir.ir.dims import most_of
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Axis, Buffer, Iter, Kind, Load, Loop, Prefetch, Program, Scope, Stage, Stmt, Var
from tensorir.ir.visit import has, sequence, substitute
from tensorir.schedule.analysis import caret, index_of, need_room, stages_reading, unique
from tensorir.schedule.history import Name, S
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, accesses_to, footprint, nest, swap
from tensorir.target import Target

LINE = 64
"""Bytes of a cache line."""
MOST_LINES = 8
"""Requests that one iteration may make."""


@primitive("Copies and memory")
def prefetch(self: S, tensor: Name, at: Name, ahead: Name | None = None, distance: int = 1) -> S:
    """On CPUs, ask in each iteration of ``at`` for the cache lines of ``tensor`` that it will read when ``ahead`` is
    ``distance`` iterations further on.

    at:    a loop whose iterations read a box of at most 8 cache lines, of 64 bytes
    ahead: ``at`` (None) or a loop around it
    The stage ``<buffer>.fetch`` stands first in the loop; meaning and legality do not change. The hardware prefetches
    along one page; this is for what jumps, such as the panel of weights that comes next (Mowry, Lam and
    Gupta, "Design and evaluation of a compiler algorithm for prefetching", ASPLOS 1992).
    """
    history = self._history
    buffer, loop = history._buffer(tensor), self._loop(at)
    around = loop if ahead is None else self._loop(ahead)
    far = need_int("distance", distance, 1, 2**31 - 1, error=ScheduleError)
    history._apply("prefetch", (buffer, loop, around), {"distance": far},
                   lambda p: _prefetch(p, buffer, loop, around, far, history.target))  # fmt: skip
    return self


def _prefetch(program: Program, buffer: Buffer, at: Loop, ahead: Loop, distance: int, target: Target) -> Rewrite:
    index = index_of(program)
    readers = stages_reading(at, buffer)
    if target.kind != "cpu":
        raise _refuse("prefetch.cpu", f"{target.kind} targets have no such requests", at,
                      hint=f"s.stage_in({buffer.name!r}, at={at.var.name!r}, scope='shared')")  # fmt: skip
    if not readers:
        raise _refuse("prefetch.not-read", f"nothing inside {at.var.name} reads {buffer.name}", at)
    if buffer not in program.params and buffer.scope not in (Scope.GLOBAL, Scope.AUTO):
        raise _refuse("prefetch.near", f"{buffer.name} is in {buffer.scope.value} memory already", at)
    if ahead is not at and ahead not in index.above(at):
        raise _refuse("prefetch.encloses", f"{ahead.var.name} is not a loop around {at.var.name}", at,
                      hint=f"one of {', '.join(x.var.name for x in [*index.above(at), at])}")  # fmt: skip
    need_room(index, at, "prefetch")
    sides = footprint(index, accesses_to(at, buffer), at, Scope.REGISTER, most_of(buffer))
    if any(has(t, Load) for s in sides for t in s.first.terms):
        raise _refuse("prefetch.gather", f"data tells where {buffer.name} is read in {at.var.name}, and would be read "
                      "ahead of time itself", at, hint="a tensor whose indices are loops")  # fmt: skip
    step = max(1, LINE * 8 // DTYPES[buffer.dtype].bits)
    counts = [s.extent for s in sides[:-1]] + [-(-s.extent // step) for s in sides[-1:]]
    if (lines := math.prod(counts)) > MOST_LINES:
        raise _refuse(
            "prefetch.lines", f"one iteration of {at.var.name} reads {lines} cache lines of {buffer.name}, more than "
            f"{MOST_LINES}", at, hint="a loop further in")  # fmt: skip
    name = unique(f"{buffer.name}.fetch", index.names())
    axes = tuple(Var(f"ax{d}", "index") for d in range(len(sides)))
    loops = [Loop(Var(f"{name}.ax{d}", "index"), as_expr(n), at, Kind.UNROLL) for d, n in enumerate(counts)]
    later = {ahead.var: binary("+", ahead.var, distance)}
    binds = []
    for d, (side, x) in enumerate(zip(sides, loops, strict=True)):
        walked = binary("*", x.var, step if d == len(sides) - 1 else 1)
        binds.append(binary("+", substitute(side.first.expr(), later), walked if counts[d] > 1 else 0))
    iters = tuple(Iter(v, n, Axis.SPATIAL) for v, n in zip(axes, buffer.shape, strict=True))
    made: Stmt = Stage(name, iters, tuple(binds), Prefetch(buffer, axes))
    made = nest([x for x, n in zip(loops, counts, strict=True) if n > 1], made)
    return Rewrite(swap(program, at, at.replace(body=sequence([made, at.body]))), (name,))


def _refuse(code: str, message: str, at: Loop, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(at), hint=hint))
