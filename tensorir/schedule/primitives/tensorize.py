"""tensorize: let one hardware instruction perform a nest with the same meaning.

The nest stays in the tree, marked: its loops become INTRIN and its stage names the instruction. So init, footprints,
scopes, barriers and the interpreter see an ordinary nest; only ``lower/form_instructions.py`` makes it a call, or plain
loops in a language without the instruction. What later primitives do to the nest must leave it the instruction
(``unfit``).
"""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.intrin.intrin import Intrin
from tensorir.intrin.match import NoMatch, match
from tensorir.ir.build import binary, const
from tensorir.ir.text import show, text
from tensorir.ir.tree import Expr, Kind, Loop, Program, Stage
from tensorir.ir.visit import find, uses
from tensorir.schedule.analysis import Index, caret, context, in_loops, need_serial
from tensorir.schedule.rewrite import Rewrite, nest, swap
from tensorir.target import Target


def tensorize(program: Program, loop: Loop, intrin: Intrin, target: Target) -> Rewrite:
    """Perform ``loop`` and the loops in it by ``intrin``; refused unless the meanings are equal.

    A reduction is initialised before the nest as always, by plain loops.
    """
    stages = find(loop, Stage)
    if len(stages) != 1:
        raise ScheduleError(Problem("tensorize.one-stage", f"{loop.var.name} holds {len(stages)} stages; an instruction is one",
                                    at=caret(loop)))  # fmt: skip
    loops, stage = find(loop, Loop), stages[0]
    for x in loops:
        need_serial(x, "tensorize")
    _has(intrin, target, loop)
    index = Index(program)
    try:
        match(index.above(loop), loop, stage, intrin)
    except NoMatch as e:
        raise ScheduleError(Problem("tensorize.same-meaning", str(e), at=caret(loop),
                                    hint=f"{intrin.name} computes\n{text(intrin.semantics.body)}")) from None  # fmt: skip
    if (tail := _tail(index, loops, stage)) is not None:
        raise ScheduleError(Problem("tensorize.tail", f"the tail {show(tail)} of {stage.name} cuts through {loop.var.name}, "
                                    "and an instruction runs whole", at=caret(loop),
                                    hint="split the axis exactly (tail='exact')"))  # fmt: skip
    marked = nest([x.replace(kind=Kind.INTRIN) for x in loops], stage.replace(intrin=intrin))
    return Rewrite(swap(program, loop, marked), (), {x.var.name: f"{intrin.name} performs it" for x in loops})


def _has(intrin: Intrin, target: Target, loop: Loop) -> None:
    if intrin.text_for(target) is None:
        raise ScheduleError(Problem("tensorize.dialect", f"{intrin.name} has no text for {target.language}", at=caret(loop),
                                    hint=f"it has one for {', '.join(intrin.emit) or 'no language'}"))  # fmt: skip
    if lack := intrin.lacks(target):
        raise ScheduleError(Problem("tensorize.needs", f"{intrin.name} needs {lack}, which {target.text} does not have", at=caret(loop)))


def _tail(index: Index, loops: list[Loop], stage: Stage) -> Expr | None:
    """A condition of the stage that may hold for a part of the nest only."""
    arith = context(index, stage)
    inner = {x.var for x in loops}
    wanted = list(stage.guards)
    for it, bind in zip(stage.iters, stage.binds, strict=True):
        wanted += [binary("<=", const(0), bind), binary("<", bind, it.extent)]
    # what does not move with the nest holds for the whole of it or for nothing
    still = [g for g in wanted if not uses(g, inner)]
    arith = arith.child(assume=still)
    return next((g for g in wanted if uses(g, inner) and not arith.proves(in_loops(g, stage))), None)


def unfit(program: Program) -> Problem | None:
    """What keeps a tensorized nest from still being its instruction, None when all is well."""
    index = Index(program)
    marked = [x for x in index.loops.values() if x.kind is Kind.INTRIN]
    for loop in marked:
        if any(above in marked for above in index.above(loop)):
            continue
        stages = find(loop, Stage)
        made = [s for s in stages if s.intrin is not None]
        if len(stages) != 1 or not made:
            return Problem("tensorize.last", f"the instruction that performs {loop.var.name} would hold other work", at=caret(loop))
        stage = made[0]
        why = ""
        try:
            match(index.above(loop), loop, stage, stage.intrin)
        except NoMatch as e:
            why = str(e)
        if not why and (tail := _tail(index, find(loop, Loop), stage)) is not None:
            why = f"the tail {show(tail)} cuts through it"
        if why:
            return Problem("tensorize.last", f"{stage.name} would no longer be {stage.intrin.name}: {why}", at=caret(loop))
    bare = [s for s in index.stages.values() if s.intrin is not None and not any(x in marked for x in index.above(s))]
    return Problem("tensorize.last", f"{bare[0].name} would lose the loops of {bare[0].intrin.name}", at=caret(bare[0])) if bare else None
