"""blame: the first step of a schedule that breaks equivalence."""

from __future__ import annotations

from tensorir.check.verdict import check
from tensorir.schedule.schedule import Schedule
from tensorir.schedule.trace import Step


def blame(s: Schedule) -> Step | None:
    """The first step after which the schedule no longer computes its definition, by bisection; None where it does, and
    where a template has scheduled other outputs, which no step has done.
    """
    steps, verdict = s.trace, check(s)
    if verdict or (verdict.problems[0].code == "check.definition" and s.began_with != s.definition):
        return None
    low, high = 0, len(steps)  # right after ``low`` steps, wrong after ``high``
    while high - low > 1:
        middle = (low + high) // 2
        if check(s.at(middle)):
            low = middle
        else:
            high = middle
    return steps[high - 1] if steps else None
