"""specialize: two versions of a loop's body, under a condition and its negation."""

from __future__ import annotations

from collections.abc import Iterator

from tensorir.arith.affine import Arith
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_text
from tensorir.ir.build import as_int, binary, const
from tensorir.ir.marks import Versions
from tensorir.ir.text import show
from tensorir.ir.tree import Binary, Buffer, Const, Expr, Kind, Load, Loop, Program, Scope, Stage, Var
from tensorir.ir.visit import find, uses, writes
from tensorir.schedule.analysis import caret, index_of
from tensorir.schedule.conditions import parse
from tensorir.schedule.history import Name, S
from tensorir.schedule.registry import mark, primitive
from tensorir.schedule.rewrite import Rewrite, swap

MOST_VERSIONS = 16
_LANES = (Kind.VECTOR, Kind.COOPERATIVE, Kind.INTRIN)


@primitive("Loops")
def specialize(self: S, axis: Name, cond: str) -> S:
    """Give the body of a loop a version for the iterations in which ``cond`` holds, and one for the others.

    cond: of the loop and those around it, and of elements of inputs: "C.i.0 < 3", "mask[C.i.0] == 0". In its version it
          is known: guards, selects and conditions that follow from it vanish. The tree keeps one body with a mark;
          lowering writes both. A further condition on the same loop makes versions of both, up to 16 in all
    Raises ScheduleError, codes of ``specialize``; later primitives may raise them too.
    """
    loop = self._loop(axis)
    need_text("cond", cond, ScheduleError)
    self._history._apply("specialize", (loop, cond), {}, lambda p: _specialize(p, loop, cond))
    return self


def _specialize(program: Program, loop: Loop, cond: str) -> Rewrite:
    index = index_of(program)
    around = {x.var.name: x.var for x in [*index.above(loop), loop]}
    found = parse(cond, around, {b.name: b for b in program.inputs})
    done = swap(program, loop, loop.marked(Versions((*Versions.of(loop).where, found))))
    if problem := next(_problems(done), None):
        raise ScheduleError(problem)
    return Rewrite(done)


@mark("specialize")
def unfit(before: Program, after: Program, primitive: str) -> Problem | None:
    """Problem if ``primitive`` left a ``specialize`` mark without its meaning, else None."""
    return next(_problems(after, primitive), None)


def _problems(program: Program, primitive: str = "reorder") -> Iterator[Problem]:
    """Problems of all ``specialize`` marks in a tree after ``primitive``."""
    index = index_of(program)
    for loop in find(program.body, Loop, lambda x: bool(Versions.of(x).where)):
        around = [*index.above(loop), loop]
        versions = 1 << sum(len(Versions.of(x).where) for x in around)
        if versions > MOST_VERSIONS:
            yield Problem(
                "specialize.versions",
                f"the body of {loop.var.name} would be written {versions} times; the limit is {MOST_VERSIONS}",
                at=caret(loop),
                hint="one condition that joins several with and, or",
            )
        for cond in Versions.of(loop).where:
            yield from _misplaced(loop, cond, around, primitive)
            yield from _outside(loop, cond, around)
            yield from _divergent(loop, cond, around)


def _misplaced(loop: Loop, cond: Expr, around: list[Loop], primitive: str) -> Iterator[Problem]:
    of = {x.var: x for x in around}
    for v in find(cond, Var):
        if v not in of:
            yield Problem(
                "specialize.scope",
                f"the condition {show(cond)} on the body of {loop.var.name} is about {v.name}, "
                "which would not be a loop around it",
                at=caret(loop),
                hint=f"{primitive} before specialize",
            )
        elif of[v].kind in _LANES:
            yield _in_lanes(loop, cond, of[v])
    if loop.kind in _LANES:
        yield _in_lanes(loop, cond, loop)


def _in_lanes(loop: Loop, cond: Expr, x: Loop) -> Problem:
    return Problem(
        "specialize.lanes",
        f"the iterations of {x.var.name} run at once ({x.kind.value}): they cannot choose between versions by "
        f"{show(cond)}",
        at=caret(loop),
        hint="a condition on loops further out, on the body of one of them",
    )


def _outside(loop: Loop, cond: Expr, around: list[Loop]) -> Iterator[Problem]:
    """Yield Problems if the condition may load input elements out of range, as after an overshooting split, or divide
    negative numbers.
    """
    arith = Arith({x.var: (0, as_int(x.extent) - 1) for x in around if isinstance(x.extent, Const)})
    for n in find(cond, Load):
        for i, extent in zip(n.index, n.buffer.shape, strict=True):
            if not (arith.proves(binary("<=", const(0), i)) and arith.proves(binary("<", i, extent))):
                yield Problem(
                    "specialize.out-of-range",
                    f"{show(n)} may be read with the index {show(i)}, but {n.buffer.name} has {show(extent)} there",
                    at=caret(loop),
                    hint="splits that divide (tail='exact'), and an index that stays inside",
                )
    for d in find(cond, Binary, lambda b: b.op in ("//", "%")):
        if arith.range(d.a)[0] < 0:
            yield Problem(
                "specialize.negative",
                f"{show(d.a)} may be negative in {show(cond)}, and // and % of such numbers differ between languages",
                at=caret(loop),
                hint=f"{show(d.b)} or a multiple of it added inside",
            )


def _divergent(loop: Loop, cond: Expr, around: list[Loop]) -> Iterator[Problem]:
    """Yield a Problem if threads of one block could take different versions with a barrier inside."""
    threads = [x for x in around if x.kind.level == "thread" and uses(cond, {x.var})]
    shared = [b for s in find(loop.body, Stage) for b in writes(s) if b.scope is Scope.SHARED]
    if threads and shared:
        yield _waits(loop, cond, threads[0], shared[0])


def _waits(loop: Loop, cond: Expr, thread: Loop, b: Buffer) -> Problem:
    return Problem(
        "specialize.divergent",
        f"the threads of {thread.var.name} would run different versions of the body of {loop.var.name}, which fills "
        f"{b.name} in shared memory: they must all arrive at its barriers",
        at=caret(loop),
        hint=f"a condition without {thread.var.name}, or one on the body of a loop inside ({show(cond)})",
    )
