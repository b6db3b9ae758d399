"""Lowers a schedule, remembers the result; errors about too little memory name the scheduling step to blame."""

from __future__ import annotations

import functools
from dataclasses import replace

from tensorir.errors import CompileError
from tensorir.ir.tree import Program
from tensorir.lower import pipeline
from tensorir.lower.form import Pass
from tensorir.lower.kernel import Module
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target


def lowered(s: BaseSchedule, target: Target | None = None) -> Module:
    """Return the kernels (a Module) of a schedule, lowered for its own target or another.

    Raises LoweringError (not expressible on the target) and CompileError (too large for it).
    """
    try:
        return _lowered(s.program, target or s.target, tuple(pipeline.PASSES))
    except CompileError as e:
        told = [replace(p, at="\n".join(_with_step(s, x) for x in p.at.splitlines())) for p in e.problems]
        raise CompileError(told) from None


@functools.lru_cache(maxsize=4)
def _lowered(program: Program, target: Target, passes: tuple[Pass, ...]) -> Module:
    """Module of a scheduled program lowered for a target; cached by all three arguments."""
    return pipeline.lower(program, target)


def _with_step(s: BaseSchedule, line: str) -> str:
    """Append the responsible scheduling step to an error line: `NAME: rest   ->   NAME: rest, by STEP  at
    FILE:LINE`.
    """
    name = line.partition(":")[0]
    steps = [x for x in s.trace if name in x.out or (x.args[:1] == (name,) and x.primitive in MOVES)]
    if not steps:
        return line
    where = f"  at {steps[-1].where}" if steps[-1].where else ""
    return f"{line}, by {steps[-1]}{where}"


MOVES = ("compute_at", "reverse_compute_at", "set_scope")
"""Primitives placing the result of a stage."""
