"""Marks on loops: what a primitive asks for without changing the tree, with the rules by which it outlives others.

A mark is kept where its loop is (``reorder``), moved by its own rules (``split``, ``fuse``), or the primitive that
would lose it is refused. ``ir/text.noted`` prints all of them.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn

from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import as_int
from tensorir.ir.dims import dims_in
from tensorir.ir.text import noted
from tensorir.ir.tree import Kind, Loop, Program
from tensorir.ir.visit import find
from tensorir.schedule.analysis import caret, index_of


class LoopMark(ABC):
    """A mark that neither ``split`` nor ``fuse`` can move: the loop that has it stays whole.

    maker:  the primitive that makes it, after which its code is named (``partition.lost``)
    fields: of a loop, which say it, each 0, 1 or empty where it is not there
    """

    maker: str
    fields: tuple[str, ...]

    @abstractmethod
    def count(self, loop: Loop) -> int:
        """How many of it a loop has that mean something there."""

    def split(self, loop: Loop, new: list[Loop], even: bool) -> list[Loop]:
        """Return the loops that ``loop`` becomes, outermost first, with its mark.

        even: whether all tiles of the outermost loop are of one size
        """
        return self.refuse(loop, "split") if self.count(loop) else new

    def fuse(self, loops: Sequence[Loop], fused: Loop) -> Loop:
        """Return the loop that ``loops``, outermost first, become, with their marks."""
        return self.refuse(has[0], "fuse") if (has := [x for x in loops if self.count(x)]) else fused

    def refuse(self, loop: Loop, primitive: str) -> NoReturn:
        """Refuse a primitive after which no loop could have the mark of ``loop``."""
        raise ScheduleError(self.lost(loop, primitive))

    def lost(self, loop: Loop, primitive: str, now: Loop | None = None) -> Problem:
        """What is said then.

        now: the loop of that name, where it is still there
        """
        message = f"{primitive} leaves no loop that could have the mark of {loop.var.name}: {', '.join(noted(loop))}"
        return Problem(f"{self.maker}.lost", message, at=caret(loop), hint=f"{primitive} before {self.maker}")


class Partition(LoopMark):
    """Iterations at which a loop is cut: the first loop of several iterations is cut there, if they are whole ones."""

    maker, fields = "partition", ("parts",)

    def count(self, loop: Loop) -> int:
        return len(loop.parts)

    def split(self, loop: Loop, new: list[Loop], even: bool) -> list[Loop]:
        first, *inner = _several(new)
        inside = math.prod(as_int(x.extent) for x in inner)
        if loop.parts and (dims_in(*loop.parts) or not even or any(p % inside for p in loop.parts)):
            self.refuse(loop, "split")
        parts = tuple(sorted({*first.parts, *(p // inside for p in loop.parts)}))
        return [x.replace(parts=parts) if x is first else x for x in new]

    def fuse(self, loops: Sequence[Loop], fused: Loop) -> Loop:
        first, *inner = _several(loops)
        if other := [x for x in loops if x.parts and (x is not first or dims_in(*x.parts))]:
            self.refuse(other[0], "fuse")
        inside = math.prod(as_int(x.extent) for x in inner)
        return fused.replace(parts=tuple(p * inside for p in first.parts))


class Hint(LoopMark):
    """A factor to unroll by: the last loop of several iterations has it, if these are a multiple of it.

    It counts where the loop is emitted as a loop: elsewhere nobody reads it.
    """

    maker, fields = "annotate", ("hint",)

    def count(self, loop: Loop) -> int:
        return int(loop.hint > 0 and loop.kind is Kind.SERIAL)

    def split(self, loop: Loop, new: list[Loop], even: bool) -> list[Loop]:
        last = _several(new)[-1]
        if loop.hint and as_int(last.extent) % loop.hint:
            self.refuse(loop, "split")
        return [x.replace(hint=loop.hint) if x is last else x for x in new]

    def fuse(self, loops: Sequence[Loop], fused: Loop) -> Loop:
        last = _several(loops)[-1]
        if other := [x for x in loops if x.hint and (x is not last or as_int(x.extent) % x.hint)]:
            self.refuse(other[0], "fuse")
        return fused.replace(hint=last.hint)

    def lost(self, loop: Loop, primitive: str, now: Loop | None = None) -> Problem:
        if now is None or now.kind is loop.kind:
            return super().lost(loop, primitive)
        what = f"{primitive} makes {loop.var.name} a loop that no hint applies to, and it has one: {noted(loop)[-1]}"
        return Problem("annotate.lost", what, at=caret(loop), hint=f"undo the annotate, or {primitive} another loop")


class Versions(LoopMark):
    """Conditions for each of which the body is written twice; ``specialize`` has more to say of where they stand."""

    maker, fields = "specialize", ("cases",)

    def count(self, loop: Loop) -> int:
        return len(loop.cases)


class Skipped(LoopMark):
    """A condition without which an iteration is not run; ``skip`` has more to say of what is known then."""

    maker, fields = "skip", ("only",)

    def count(self, loop: Loop) -> int:
        return len(loop.only)


class Pipelined(LoopMark):
    """Copies that run ahead, of a loop with one body; ``pipeline`` has more to say of these copies."""

    maker, fields = "pipeline", ("depth", "later", "roles", "turns")

    def count(self, loop: Loop) -> int:
        return int(loop.depth > 1 and loop.kind is Kind.SERIAL and not loop.parts and not loop.cases)

    def lost(self, loop: Loop, primitive: str, now: Loop | None = None) -> Problem:
        message = f"{primitive} changes {loop.var.name}, whose copies run ahead"
        return Problem("pipeline.lost", message, at=caret(loop), hint=f"{primitive} before pipeline")


MARKS: tuple[LoopMark, ...] = (Partition(), Hint(), Versions(), Skipped(), Pipelined())
"""All marks on loops; each field of a loop that is no iteration is of one of them."""


def split_marks(loop: Loop, new: Sequence[Loop], even: bool = True) -> list[Loop]:
    """Return the loops that a split makes of ``loop`` with its marks; refuse those that none of them can have."""
    made = list(new)
    for mark in MARKS:
        made = mark.split(loop, made, even)
    return made


def fused_marks(loops: Sequence[Loop], fused: Loop) -> Loop:
    """Return the loop that ``loops`` are fused into with their marks; refuse those that it cannot have."""
    for mark in MARKS:
        fused = mark.fuse(loops, fused)
    return fused


def lost(before: Program, after: Program, primitive: str) -> Problem | None:
    """Return why ``primitive`` may not do what it did, where ``after`` has fewer marks of some sort than ``before``."""
    has = _counted(after)
    for mark, had, left in zip(MARKS, _counted(before), has, strict=True):
        if left < had:
            now = {x.var.name: x for x in find(after.body, Loop)}
            for x in find(before.body, Loop):
                if mark.count(x) > (mark.count(now[x.var.name]) if x.var.name in now else 0):
                    return mark.lost(x, primitive, now.get(x.var.name))
    return None


def _several(loops: Sequence[Loop]) -> Sequence[Loop]:
    """The loops of several iterations, or all where there are none."""
    return [x for x in loops if as_int(x.extent) > 1] or loops


@functools.lru_cache(maxsize=16)
def _counted(program: Program) -> tuple[int, ...]:
    """Marks by their sort; asked of a program after the primitive that made it and before the next one."""
    marked = [x for x in index_of(program).loops.values() if x.parts or x.hint or x.cases or x.only or x.depth > 1]
    return tuple(sum(map(mark.count, marked)) for mark in MARKS)
