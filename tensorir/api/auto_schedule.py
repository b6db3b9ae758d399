"""Schedules without a schedule: the default that ``auto`` makes of a declaration."""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.api.schedule import Schedule
from tensorir.automatic.plan import default_plan
from tensorir.errors import ScheduleError
from tensorir.errors.habits import answers
from tensorir.expr.program import as_outputs
from tensorir.expr.tensor import Tensor
from tensorir.runtime.host import target_here
from tensorir.target import Target


@answers(ScheduleError)
def auto_schedule(outputs: Tensor | Sequence[Tensor], target: str | Target = "opencl") -> Schedule:
    """A schedule of ``outputs`` on a target, made from the declaration alone: the default configuration of the first
    template of ``tir.auto``. No device is needed, and nothing is measured.

    ``print(s.trace)`` gives the steps, each with the rule and the reason, to be taken as text and changed.
    """
    wanted = target_here(target)
    plan = default_plan(as_outputs(outputs), wanted)
    s = Schedule(outputs, wanted)
    plan.schedule(s, plan.space().default)
    return s
