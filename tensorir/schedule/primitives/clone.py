"""clone: duplicate a producer stage for one of its readers."""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.ir.tree import Loop, Program, Scope, Stage, Var
from tensorir.ir.visit import find, sequence, substitute, swap_buffers, writes
from tensorir.schedule.analysis import caret, index_of, stages_reading, stages_writing, unique
from tensorir.schedule.history import H, Name, Scheduled
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, nest, own_nest, swap


@primitive("Where a stage runs")
def clone(self: Scheduled[H], stage: Name, *, for_: Name) -> H:
    """Compute a stage once more for one of its readers, ``s.clone("S", for_="O")``; returns the new stage,
    ``<stage>.clone``, whose results that reader alone reads.

    for_: the reader

    The two are scheduled separately: each may be placed in a loop of its reader, inlined, or stored in an order of its
    own. Their loops are those that the stage has from its declaration, so clone it before scheduling them.
    """
    history = self._history
    found, reader = history._stage(stage), history._stage(for_)
    (name,) = history._apply("clone", (found,), {"for_": reader}, lambda p: _clone(p, found, reader))
    return history._handle(name)


def _clone(program: Program, stage: Stage, reader: Stage) -> Rewrite:
    index = index_of(program)
    made = writes(stage.body)
    body = program.body
    readers = [s for s in find(body, Stage) if s is not stage and any(s in stages_reading(body, b) for b in made)]
    if reader not in readers:
        hint = f"one of {', '.join(s.name for s in readers)}" if readers else ""
        raise _refuse("clone.not-read", f"{reader.name} does not read {stage.name}", reader, hint)
    if len(readers) == 1 and not set(made) & set(program.outputs):
        message = f"{reader.name} is the only reader of {stage.name}: nobody would need the first one"
        raise _refuse("clone.one-reader", message, stage, f"schedule {stage.name} itself")
    if any(len(stages_writing(body, b)) > 1 for b in made):
        raise _refuse("clone.several-writers", f"{made[0].name} is written by several stages", stage)
    top = own_nest(index, stage, "clone", dealt=False)
    if len(find(top, Stage)) > 1:
        raise _refuse("clone.scheduled", f"other stages run in the loops of {stage.name}", stage, "clone it first")
    taken = index.names()
    name = unique(f"{stage.name}.clone", taken)
    scopes = {b: Scope.AUTO if b in program.outputs else b.scope for b in made}
    copies = {b: b.replace(name=unique(f"{b.name}_clone", taken), scope=scopes[b], origin=None) for b in made}
    loops = [x.replace(var=Var(f"{name}.{x.var.name.rpartition('.')[2]}", "index")) for x in find(top, Loop)]
    fresh = {old.var: new.var for old, new in zip(find(top, Loop), loops, strict=True)}
    second = substitute(swap_buffers(stage, copies), fresh).replace(name=name)
    done = swap(program, top, sequence([top, nest(loops, second)]))
    return Rewrite(swap(done, reader, swap_buffers(reader, copies)), (name,))


def _refuse(code: str, message: str, stage: Stage, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(stage), hint=hint))
