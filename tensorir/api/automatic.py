"""``auto_schedule``: a schedule from a declaration alone; ``fusions``: a table of possible kernel fusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorir.api.schedule import Schedule
from tensorir.automatic.fusions import Fusion, Fusions, fusions_of
from tensorir.automatic.plan import default_plan
from tensorir.errors import ScheduleError
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_bool, need_int
from tensorir.expr.program import as_outputs
from tensorir.expr.tensor import Tensor
from tensorir.interp.reference import random_arguments
from tensorir.runtime.arguments import empty
from tensorir.runtime.device import Device, open_device
from tensorir.runtime.estimate import Rounds, middle
from tensorir.runtime.host import target_here
from tensorir.runtime.launch import BoundLaunch
from tensorir.runtime.timing import slots
from tensorir.target import Target
from tensorir.tune.ratio import Ratio

ROUGH_S = 1e-3
"""Seconds of one call, before anything is known of it."""
ARRAY_PLACES = 3
"""Sets of arrays, at other addresses, that share the rounds: some addresses slow a kernel down by half."""


@answers(ScheduleError)
def auto_schedule(outputs: Tensor | Sequence[Tensor], target: str | Target = "opencl") -> Schedule:
    """A schedule of ``outputs`` on a target, made from the declaration alone: the default configuration of the first
    template of ``tir.auto``. No device is needed, and nothing is measured. Raises ScheduleError ``automatic.no-rule``
    if no rule schedules it.

    ``print(s.trace)`` gives the steps, each with the rule and the reason, to be taken as text and changed.
    """
    wanted = target_here(target)
    plan = default_plan(as_outputs(outputs), wanted)
    s = Schedule(outputs, wanted)
    plan.start(s)
    return s


@answers(ScheduleError)
def fusions(
    outputs: Tensor | Sequence[Tensor], target: str | Target = "opencl", *, measure: bool = False, rounds: int = 15
) -> Fusions[Schedule]:
    """Table of the pairs of stages of ``outputs`` that one kernel may compute, with what each fusion gains.

    A row for each producer with its consumer, and for stages that do not need each other: whether it is legal (with the
    primitive's own error where not), bytes that are no longer written and read, and modelled time of the two stages
    before and after. ``row.schedule()`` gives the ordinary schedule to continue from. No device is needed, except to
    ``measure``: then each legal pair is timed on the target's device, both ways interleaved for ``rounds`` (2 to 1000)
    rounds.
    """
    need_bool("measure", measure, ScheduleError)
    need_int("rounds", rounds, 2, 1000, ScheduleError)
    found = fusions_of(as_outputs(outputs), target_here(target), Schedule)
    if not measure:
        return found
    device = open_device(found.target)
    return Fusions([replace(r, measured=gained(r, device, rounds)) if r.legal else r for r in found], found.target)


def gained(row: Fusion[Schedule], device: Device, rounds: int) -> Ratio:
    """Time of the two stages in separate kernels divided by their time in one, from interleaved rounds."""
    before, after, kept = list[float](), list[float](), []
    for _ in range(ARRAY_PLACES):
        calls = [launched(row.pair(fused), device) for fused in (False, True)]
        kept.append(calls)  # so that the next ones have other arrays
        turns = Rounds([(call, slots([call], ROUGH_S)[0]()) for call in calls])
        for _ in range(-(-rounds // ARRAY_PLACES)):
            turns.run()
        before += turns.samples[0]
        after += turns.samples[1]
    return Ratio(*middle([a / b for a, b in zip(before, after, strict=True)]))


def launched(s: Schedule, device: Device) -> BoundLaunch:
    """A bound launch of a schedule's compiled kernels on inputs created here, launched once."""
    given = []
    for a in random_arguments(s.outputs):
        given.append(empty(a.shape, a.dtype))
        given[-1][...] = a
    bound = s.build(device).bind(*given)
    bound()
    bound.finish()
    return bound
