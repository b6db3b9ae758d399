"""Marks on loops: what a primitive asks for without changing the tree, which a later one keeps, moves or refuses."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import as_int
from tensorir.ir.text import noted
from tensorir.ir.tree import Kind, Loop, Program
from tensorir.ir.visit import find
from tensorir.schedule.analysis import caret, index_of


def marked_by(loop: Loop) -> dict[str, int]:
    """Return the primitives that have marked a loop, each with how many of its marks the loop has.

    A hint to unroll counts where the loop is emitted as a loop: elsewhere nobody reads it.
    """
    found = {
        "partition": len(loop.parts),
        "annotate": int(loop.hint > 0 and loop.kind is Kind.SERIAL),
        "specialize": len(loop.cases),
    }
    return {name: count for name, count in found.items() if count}


def lost(before: Program, after: Program, primitive: str) -> Problem | None:
    """Return why ``primitive`` may not do what it did, where ``after`` has fewer marks of some sort than ``before``."""
    had, has = _counted(before), _counted(after)
    for name, count in had.items():
        if has.get(name, 0) < count:
            now = {x.var.name: x for x in find(after.body, Loop)}
            left = {x: marked_by(now[x.var.name]).get(name, 0) if x.var.name in now else 0
                    for x in find(before.body, Loop)}  # fmt: skip
            loop = next(x for x, n in left.items() if n < marked_by(x).get(name, 0))
            return _lost(name, loop, primitive, now.get(loop.var.name))
    return None


def split_marks(loop: Loop, new: Sequence[Loop], even: bool = True) -> list[Loop]:
    """Return the loops that a split makes of ``loop``, outermost first, with its parts and its hint; refuse those that
    none of them can have.

    even: whether all tiles of the outermost loop are of one size

    Iterations are cut at the same places by the first loop of several iterations, if they are whole ones of it. A
    hint is the last one's, if that has a multiple of so many.
    """
    several = [n for n, x in enumerate(new) if as_int(x.extent) > 1] or [0]
    first, last = several[0], several[-1]
    inside = math.prod(as_int(x.extent) for x in new[first + 1 :])
    if loop.parts and (not even or any(p % inside for p in loop.parts)):
        raise ScheduleError(_lost("partition", loop, "split"))
    if loop.hint and as_int(new[last].extent) % loop.hint:
        raise ScheduleError(_lost("annotate", loop, "split"))
    made = list(new)
    made[first] = made[first].replace(parts=tuple(sorted({*made[first].parts, *(p // inside for p in loop.parts)})))
    made[last] = made[last].replace(hint=loop.hint)
    return made


def fused_marks(loops: Sequence[Loop]) -> tuple[tuple[int, ...], int]:
    """Return the parts and the hint of the loop that ``loops``, outermost first, are fused into; refuse other marks.

    The first loop of several iterations is cut where the fused one can be, the last one's hint says the same of it.
    """
    several = [x for x in loops if as_int(x.extent) > 1] or [*loops]
    inside = math.prod(as_int(x.extent) for x in several[1:])
    for x in loops:
        if x.parts and x is not several[0]:
            raise ScheduleError(_lost("partition", x, "fuse"))
        if x.hint and (x is not several[-1] or as_int(x.extent) % x.hint):
            raise ScheduleError(_lost("annotate", x, "fuse"))
    return tuple(p * inside for p in several[0].parts), several[-1].hint


@functools.lru_cache(maxsize=16)
def _counted(program: Program) -> dict[str, int]:
    """Marks by their sort; asked of a program after the primitive that made it and before the next one."""
    found: dict[str, int] = {}
    for loop in (x for x in index_of(program).loops.values() if x.parts or x.hint or x.cases):
        for name, count in marked_by(loop).items():
            found[name] = found.get(name, 0) + count
    return found


def _lost(mark: str, loop: Loop, primitive: str, now: Loop | None = None) -> Problem:
    message = f"{primitive} leaves no loop that could have the mark of {loop.var.name}: {', '.join(noted(loop))}"
    hint = f"{primitive} before {mark}"
    if now is not None and now.kind is not loop.kind:
        message = (
            f"{primitive} makes {loop.var.name} a loop that no hint applies to, and it has one: unroll by {loop.hint}"
        )
        hint = f"undo the annotate, or {primitive} another loop"
    return Problem(f"{mark}.lost", message, at=caret(loop), hint=hint)
