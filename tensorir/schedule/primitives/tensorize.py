"""tensorize: replace a nest by an instruction with the same meaning."""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.intrin.intrin import Intrin
from tensorir.intrin.match import NoMatch, match
from tensorir.ir.text import text
from tensorir.ir.tree import IntrinCall, Kind, Loop, Program, Stage
from tensorir.ir.visit import find
from tensorir.schedule.analysis import Index, caret
from tensorir.schedule.rewrite import Rewrite, swap
from tensorir.target import Target


def tensorize(program: Program, loop: Loop, intrin: Intrin, target: Target) -> Rewrite:
    """Replace ``loop`` and what is in it by ``intrin``; refused unless the meanings are equal."""
    stages = find(loop, Stage)
    if len(stages) != 1 or any(x.kind is not Kind.SERIAL for x in find(loop, Loop)):
        raise ScheduleError(Problem("tensorize.one-stage", f"{loop.var.name} must hold one stage in serial loops", at=caret(loop)))
    stage = stages[0]
    index = Index(program)
    try:
        regions = match(index.above(loop), loop, stage, intrin)
    except NoMatch as e:
        raise ScheduleError(Problem("tensorize.same-meaning", str(e), at=caret(loop),
                                    hint=f"{intrin.name} computes\n{text(intrin.semantics.body)}")) from None  # fmt: skip
    inner = {x.var for x in find(loop, Loop)}
    from tensorir.ir.visit import uses

    if any(uses(g, inner) for g in stage.guards):
        raise ScheduleError(Problem("tensorize.tail", f"{stage.name} has a tail inside {loop.var.name}", at=caret(loop),
                                    hint="split exactly: tail='exact'"))  # fmt: skip
    kept = [(it, b) for it, b in zip(stage.iters, stage.binds, strict=True) if not uses(b, inner)]
    call = stage.replace(iters=tuple(i for i, _ in kept), binds=tuple(b for _, b in kept), body=IntrinCall(intrin, regions))
    del target
    return Rewrite(swap(program, loop, call))
