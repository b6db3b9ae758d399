"""Transfers marks of loops (hints, pipelining, parts, …) through primitives, or refuses with a reason."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tensorir.errors import Problem, ScheduleError
from tensorir.ir.marks import MARKS, Pipelined, RuledMark, UnplacedError, UnrollBy
from tensorir.ir.text import noted, show
from tensorir.ir.tree import Loop, Program, Stmt
from tensorir.ir.visit import find
from tensorir.schedule.analysis import caret, statements

T = TypeVar("T")


def split_marks(loop: Loop, new: Sequence[Loop], even: bool = True) -> list[Loop]:
    """Return the loops ``new`` of a split with the marks of ``loop`` transferred. Raises ScheduleError
    ``<primitive that made the mark>.lost`` if no loop can take one.

    even: False if iterations of the outer loop may have different lengths or overlap (tails "balanced", "shift")
    """
    made = list(new)
    for sort in MARKS:
        if m := sort.of(loop):
            made = _placed(sort, "split", functools.partial(m.split, loop, made, even))
    return made


def fused_marks(loops: Sequence[Loop], fused: Loop) -> Loop:
    """Return ``fused`` with the marks of ``loops`` transferred. Raises ScheduleError
    ``<primitive that made the mark>.lost`` if it cannot take one.
    """
    for sort in MARKS:
        fused = _placed(sort, "fuse", functools.partial(sort.fuse, loops, fused))
    return fused


def _placed(sort: type[RuledMark], primitive: str, f: Callable[[], T]) -> T:
    """Result of a mark's transfer rule ``f``, its refusal raised as ScheduleError."""
    try:
        return f()
    except UnplacedError as e:
        raise ScheduleError(_lost(sort, e.loop, primitive)) from None


def lost(before: Program, after: Program, primitive: str) -> Problem | None:
    """Return a Problem if ``after`` has fewer marks of some kind than ``before``, else None."""
    old, new = set(statements(before.body)), set(statements(after.body))
    had, left = _marked(old - new), _marked(new - old)
    for sort in MARKS:
        if left[sort] < had[sort]:
            now = {x.var.name: x for x in find(after.body, Loop)}
            for x in find(before.body, Loop):
                other = now.get(x.var.name)
                if sort.of(x).count(x) > (0 if other is None else sort.of(other).count(other)):
                    return _lost(sort, x, primitive, other)
    return None


def _lost(sort: type[RuledMark], loop: Loop, primitive: str, now: Loop | None = None) -> Problem:
    """Problem for a primitive that would drop a mark of ``loop``.

    now: the loop of that name in the tree afterwards, None if there is none
    """
    name, hint = loop.var.name, f"{primitive} before {sort.maker}"
    message = f"{primitive} leaves no loop that could have the mark of {name}: {', '.join(noted(loop))}"
    if sort is Pipelined:
        message = f"{primitive} changes {name}, whose copies run ahead"
    if sort is UnrollBy and now is not None and now.kind is not loop.kind:
        message = f"{primitive} makes {name} a loop that no hint applies to, and it has one: {sort.of(loop).text(show)}"
        hint = f"undo the annotate, or {primitive} another loop"
    return Problem(f"{sort.maker}.lost", message, at=caret(loop), hint=hint)


def _marked(kernels: Iterable[Stmt]) -> Counter[type[RuledMark]]:
    """Number of marks of each kind in ``kernels``."""
    loops = [x for top in kernels for x in find(top, Loop) if x.marks]
    return Counter({sort: sum(sort.of(x).count(x) for x in loops) for sort in MARKS})
