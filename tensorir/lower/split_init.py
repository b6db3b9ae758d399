"""Pass: move a reduction's initialization in front of its outermost reduction loop."""

from __future__ import annotations

from tensorir.ir.build import as_expr
from tensorir.ir.tree import Axis, Kind, Loop, Program, Stage, Stmt, Var
from tensorir.ir.visit import Rewriter, find, sequence, writes
from tensorir.lower.boxes import LOCAL
from tensorir.lower.form import lowering
from tensorir.schedule.analysis import accumulates, index_of
from tensorir.schedule.primitives.reduction import init_nest
from tensorir.schedule.rewrite import swap
from tensorir.target import Target


@lowering
def split_init(program: Program, target: Target) -> Program:
    """Make each stage's ``init`` a separate stage before the outermost loop of its reduction.

    gives: no stage has an init
    """
    for name in [s.name for s in find(program.body, Stage) if s.init is not None]:
        index = index_of(program)
        stage = index.stages[name]
        outer = [
            x for x in index.above(stage)
            if x.kind is Kind.INTRIN  # nothing can stand inside an instruction
            or accumulates(x, stage)
        ]  # fmt: skip
        if outer:
            assert stage.init is not None
            inner = [outer[0], *index.between(outer[0], stage)]
            pair = sequence([_Of(name)(init_nest(index, stage, inner, f"{name}.init", stage.init)), outer[0]])
            if not index.above(outer[0]) and any(b.scope in LOCAL for b in writes(stage.body)):
                # one kernel: a local state cannot reach the next
                pair = Loop(Var(f"{name}.once", "index"), as_expr(1), pair)
            program = swap(program, outer[0], pair)
        else:
            assert stage.init is not None
            spatial = [(it, b) for it, b in zip(stage.iters, stage.binds, strict=True) if it.axis is Axis.SPATIAL]
            first: Stmt = Stage(
                f"{name}.init",
                tuple(i for i, _ in spatial),
                tuple(b for _, b in spatial),
                stage.init,
                None,
                stage.guards,
                of=name,
            )
            program = swap(program, stage, sequence([first, stage]))
        fresh = index_of(program).stages[name]
        program = swap(program, fresh, fresh.replace(init=None))
    return program


class _Of(Rewriter):
    """Rewriter: mark a stage as the initialization of another one, with the same elements and threads."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_Stage(self, n: Stage) -> Stage:
        return n.replace(of=self.name)
