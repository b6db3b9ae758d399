"""blame: the first step of a schedule that breaks equivalence."""

from __future__ import annotations

from tensorir.check.verdict import check
from tensorir.errors import CheckError, refuse
from tensorir.ir.structure import identical
from tensorir.schedule.schedule import Schedule
from tensorir.schedule.trace import Step


def blame(s: Schedule) -> Step | None:
    """The first step after which the schedule no longer computes its definition, by bisection; None where it does.

    Raises CheckError ``blame.no-step`` where it is wrong before any step: a template has scheduled other outputs, or
    what is declared is no reduction in any order.
    """
    steps, verdict = s.trace, check(s)
    if verdict:
        return None
    template = verdict.problems[0].code == "check.definition" and not identical(s.began_with, s.definition)
    if template or not (first := check(s.at(0))):
        told = (verdict if template else first).problems[0]
        message = f"no step is to blame, for the schedule is wrong before the first one: {told.message} ({told.code})"
        raise refuse(CheckError, "blame.no-step", message, hint="another declaration, or an associative combiner")
    low, high = 0, len(steps)  # right after ``low`` steps, wrong after ``high``
    while high - low > 1:
        middle = (low + high) // 2
        if check(s.at(middle)):
            low = middle
        else:
            high = middle
    return steps[high - 1]
