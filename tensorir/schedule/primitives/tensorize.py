"""tensorize: let one hardware instruction perform a nest with the same meaning.

The nest stays in the tree: its loops are marked INTRIN and its stage names the instruction, so init, footprints,
scopes, barriers and the interpreter treat it as an ordinary nest. ``lower/form_instructions.py`` replaces it by a call,
or by plain loops in languages without the instruction. Later primitives must keep the nest valid for the instruction
(``unfit``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.errors import Problem, ScheduleError
from tensorir.intrin.intrin import Intrin, intrinsic
from tensorir.intrin.match import NoMatch, match
from tensorir.ir.build import binary, const
from tensorir.ir.structure import identical
from tensorir.ir.text import show, text
from tensorir.ir.tree import Expr, Kind, Loop, Program, Region, Scope, Stage
from tensorir.ir.visit import find, uses
from tensorir.schedule.analysis import Index, caret, context, in_loops, index_of, need_serial, stages_of, statements
from tensorir.schedule.history import Name, S
from tensorir.schedule.registry import mark, primitive
from tensorir.schedule.rewrite import Rewrite, nest, swap
from tensorir.target import Target


@primitive("Instructions")
def tensorize(self: S, axis: Name, intrin: str | Intrin) -> S:
    """Perform the nest from ``axis`` inward by a hardware instruction; refused unless the meanings are equal.

    axis:   outermost of serial loops of constant extents around one stage
    intrin: name of an instruction ("mma.m16n8k16.f16.nt"), or a registered Intrin
    A reduction is initialised before the nest as always, by plain loops. The loops cannot be scheduled afterwards.
    Raises ScheduleError, codes of ``tensorize``; later primitives may raise ``tensorize.last``.
    """
    loop, history = self._loop(axis), self._history
    made = intrinsic(intrin)
    history._apply("tensorize", (loop, made), {}, lambda p: _tensorize(p, loop, made, history.target))
    return self


def _tensorize(program: Program, loop: Loop, intrin: Intrin, target: Target) -> Rewrite:
    stages = find(loop, Stage)
    if len(stages) != 1:
        raise _refuse("one-stage", f"{loop.var.name} holds {len(stages)} stages; an instruction is one", loop)
    loops, stage = find(loop, Loop), stages[0]
    for x in loops:
        need_serial(x, "tensorize")
    if intrin.text_for(target) is None:
        known = ", ".join(intrin.emit) or "no language"
        raise _refuse("dialect", f"{intrin.name} has no text for {target.language}", loop, f"it has one for {known}")
    if lack := intrin.lacks(target):
        raise _refuse("needs", f"{intrin.name} needs {lack}, which {target.text} does not have", loop)
    index = index_of(program)
    try:
        tiles = match(index.above(loop), loop, stage, intrin)
    except NoMatch as e:
        meaning = f"{intrin.name} computes\n{text(intrin.semantics.body)}"
        raise _refuse("same-meaning", str(e), loop, meaning) from None
    if intrin.by_warp:
        _held_by_warp(index, loop, intrin, tiles)
    if (tail := _tail(index, loops, stage, intrin)) is not None:
        message = f"the tail {show(tail)} of {stage.name} cuts through {loop.var.name}, and an instruction runs whole"
        raise _refuse("tail", message, loop, "split the axis exactly (tail='exact')")
    marked = nest([x.replace(kind=Kind.INTRIN) for x in loops], stage.replace(intrin=intrin))
    return Rewrite(swap(program, loop, marked), (), {x.var.name: f"{intrin.name} performs it" for x in loops})


def _held_by_warp(index: Index, loop: Loop, intrin: Intrin, tiles: Sequence[Region]) -> None:
    """Raise ScheduleError for a warp instruction outside a warp loop, or on tiles in other memory than it reads."""
    if not any(x.kind.lanes == intrin.lanes for x in index.above(loop)):
        who, axis = ("warp", "warp.x") if intrin.lanes == Kind.WARP_X.lanes else ("warpgroup", "warpgroup")
        raise _refuse("warp", f"the threads of a {who} run {intrin.name} together, and {loop.var.name} is no {who}'s",
                      loop, f"bind a loop around it to {axis}")  # fmt: skip
    for b, tile in zip(intrin.operands, tiles, strict=True):
        wanted = Scope.WARP if b in intrin.held else Scope.SHARED
        legal = {wanted, Scope.AUTO} | ({Scope.REGISTER} if wanted is Scope.WARP else set())  # a warp's own
        if tile.buffer.scope not in legal:
            raise _refuse(
                "scope",
                f"{intrin.name} has {b.name} in {_PLACES.get(wanted, 'shared memory')}, and {tile.buffer.name} is in "
                f"{_PLACES.get(tile.buffer.scope, tile.buffer.scope.value + ' memory')}",
                loop,
                f"stage_in({tile.buffer.name!r}, …, scope={wanted.value!r}) first" if b not in intrin.outputs
                else f"set_scope({tile.buffer.name!r}, {wanted.value!r})",
            )  # fmt: skip


_PLACES = {Scope.WARP: "the registers of a warp"}


def _refuse(code: str, message: str, loop: Loop, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(f"tensorize.{code}", message, at=caret(loop), hint=hint))


def _tail(index: Index, loops: list[Loop], stage: Stage, intrin: Intrin) -> Expr | None:
    """A guard of the stage that may hold for part of the instruction's tile only; None if there is none.

    Warp registers have space for whole tiles, whose invalid parts are never read; lowering refuses the rest.
    """
    if intrin.by_warp or intrin.maps:  # a tile that sticks out has zeros there
        return None
    arith = context(index, stage)
    inner = {x.var for x in loops}
    wanted = list(stage.guards)
    for it, bind in zip(stage.iters, stage.binds, strict=True):
        wanted += [binary("<=", const(0), bind), binary("<", bind, it.extent)]
    # what does not move with the nest holds for the whole of it or for nothing
    still = [g for g in wanted if not uses(g, inner)]
    arith = arith.child(assume=still)
    return next((g for g in wanted if uses(g, inner) and not arith.proves(in_loops(g, stage))), None)


@mark("tensorize", "stage_in", "stage_out")
def unfit(before: Program, after: Program, primitive: str) -> Problem | None:
    """Problem if ``primitive``, called after tensorize, changed the meaning of a tensorized nest, else None.

    Nests equal to before, under the same loops, pass without a check.
    """
    index = index_of(after)
    old = set(statements(before.body))  # kernels that nothing happened to
    changed = [top for top in statements(after.body) if top not in old]
    marked = [x for top in changed for x in find(top, Loop) if x.kind is Kind.INTRIN]
    known = index_of(before) if marked else index
    for loop in marked:
        inside = any(above in marked for above in index.above(loop))
        if known.loops.get(loop.var.name) is loop and identical(_around(known, loop), _around(index, loop)):
            continue
        if not inside and (why := _changed(index, loop)):
            copies = any(s.intrin is not None and s.intrin.maps for s in find(loop, Stage))
            hint = "via='threads' for the copy" if copies else f"{primitive} before tensorize"
            return Problem("tensorize.last", why, at=caret(loop), hint=hint)
    for s in (s for top in changed for s in stages_of(top)):
        if s.intrin is not None and not any(x in marked for x in index.above(s)):
            return Problem("tensorize.last", f"{s.name} would lose the loops of {s.intrin.name}", at=caret(s),
                           hint=f"{primitive} before tensorize")  # fmt: skip
    return None


def _around(index: Index, loop: Loop) -> list[object]:
    """Variable, extent and kind of each enclosing loop, outermost first, in one list."""
    return [said for x in index.above(loop) for said in (x.var, x.extent, x.kind)]


def _changed(index: Index, loop: Loop) -> str:
    stages = find(loop, Stage)
    if len(stages) != 1 or stages[0].intrin is None:
        return f"the instruction that performs {loop.var.name} would hold other work"
    stage = stages[0]
    try:
        tiles = match(index.above(loop), loop, stage, stage.intrin)
        if stage.intrin.by_warp:
            _held_by_warp(index, loop, stage.intrin, tiles)
    except NoMatch as e:
        return f"{stage.name} would no longer be {stage.intrin.name}: {e}"
    except ScheduleError as e:
        return e.problems[0].message
    tail = _tail(index, find(loop, Loop), stage, stage.intrin)
    return f"the tail {show(tail)} would cut through {stage.intrin.name}" if tail is not None else ""
