"""atomic: sums to which several threads add terms by atomic operations."""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.ir.tree import Program, Stage, Update
from tensorir.ir.visit import reads
from tensorir.schedule.analysis import caret, index_of, reopens, stages_writing
from tensorir.schedule.history import Name, S
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, swap

DTYPES = ("float32", "int32", "uint32")
"""Dtypes that threads can add to without a lock on every device, whatever its language."""


@primitive("Reductions", moves=True)
def atomic(self: S, stage: Name) -> S:
    """Let a sum add its terms by atomic operations, so that loops of its reduction may be bound to blocks and threads;
    float32, int32 and uint32 only.

    The sum starts in a kernel of its own (``decompose_reduction`` at its outermost loop), and nothing else in its
    kernel may touch the result. Terms are added in any order: sums of floats differ in their last bits from one launch
    to the next.
    """
    found = self._history._stage(stage)
    self._history._apply("atomic", (found,), {}, lambda p: _atomic(p, found))
    return self


def _atomic(program: Program, stage: Stage) -> Rewrite:
    update = stage.body
    if not isinstance(update, Update) or update.combiner.name != "sum" or len(update.buffers) != 1:
        raise _refuse("atomic.sum", f"{stage.name} adds nothing up", stage, "a stage that reduces with sum")
    buffer = update.buffers[0]
    if buffer.dtype not in DTYPES:
        message = f"{stage.name} adds up {buffer.dtype}: atomic sums are of {', '.join(DTYPES)}"
        raise _refuse("atomic.dtype", message, stage, "s.rfactor and a second kernel that adds up")
    index = index_of(program)
    here = index.root_of(stage)
    starts = [w for w in stages_writing(program.body, buffer) if w is not stage]
    if stage.init is not None or not starts or any(index.root_of(w) is here for w in starts):
        hint = f"s.decompose_reduction({stage.name!r}, {index.above(stage)[0].var.name!r}) first"
        raise _refuse(
            "atomic.start", f"{buffer.name} has to start in a kernel before {stage.name} adds to it", stage, hint
        )
    if reopens(stage) or buffer in reads(stage):
        raise _refuse("atomic.sum", f"{stage.name} needs what it has added so far", stage, "a plain sum")
    return Rewrite(swap(program, stage, stage.replace(body=update.replace(atomic=True))))


def _refuse(code: str, message: str, stage: Stage, hint: str) -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(stage), hint=hint))
