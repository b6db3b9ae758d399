"""BaseSchedule and StageRef: the user's handles of a scheduled program, with all primitives as methods."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.habits import answering, public, unknown
from tensorir.errors.handles import Handle
from tensorir.errors.needs import wrong
from tensorir.errors.shown import Shown, Text, difference, few_lines
from tensorir.ir.text import text
from tensorir.ir.tree import Kind
from tensorir.schedule.analysis import stages_writing
from tensorir.schedule.history import AxisRef, H, History, Scheduled
from tensorir.schedule.primitives import (
    across,
    annotate,
    assume,
    atomic,
    binding,
    buffers,
    clone,
    cut,
    fuse_with,
    loops,
    once,
    pipeline,
    placement,
    prefetch,
    redeclare,
    reduce_in_lanes,
    reduction,
    register_tile,
    reindex,
    reverse_inline,
    rolling,
    share_out,
    skip,
    specialize,
    staging,
    tensorize,
    terms,
)
from tensorir.schedule.registry import PRIMITIVES
from tensorir.schedule.trace import Trace, read_trace

P = ParamSpec("P")
R = TypeVar("R")


@answering(ScheduleError)
class AxisMethods(Scheduled[H]):
    """Primitives that take axes, of schedules and of stages: ``s.split("C.i", …)`` is ``s[C].split("i", …)``."""

    split = loops.split
    tile = loops.tile
    register_tile = register_tile.register_tile
    share_out = share_out.share_out
    partition = loops.partition
    cut = cut.cut
    fuse = loops.fuse
    reorder = loops.reorder
    bind = binding.bind
    parallel = binding.parallel
    reduce_across = across.reduce_across
    skip = skip.skip
    vectorize = loops.vectorize
    unroll = loops.unroll
    specialize = specialize.specialize
    annotate = annotate.annotate
    stage_in = staging.stage_in
    prefetch = prefetch.prefetch
    keep_term = terms.keep_term
    pipeline = pipeline.pipeline
    tensorize = tensorize.tensorize


def of_stage(method: Callable[Concatenate[StageRef, Any, P], R]) -> Callable[Concatenate[StageRef, P], R]:
    """``method(schedule, stage, …)``, a primitive that takes a stage first   ->   ``called(handle, …)`` on a handle of
    that stage.
    """

    def called(self: StageRef, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self, self.name, *args, **kwargs)

    signature = inspect.signature(method)
    this, _, *others = signature.parameters.values()
    functools.update_wrapper(called, method).__signature__ = signature.replace(parameters=[this, *others])  # type: ignore[attr-defined]
    return called


@answering(ScheduleError)
class StageRef(Handle, AxisMethods["StageRef"], Shown):
    """One stage of a schedule: its methods are the schedule's, without the stage, and with its own names of axes."""

    compute_at = of_stage(placement.compute_at)
    reverse_compute_at = of_stage(placement.reverse_compute_at)
    compute_inline = of_stage(placement.compute_inline)
    reverse_compute_inline = of_stage(reverse_inline.reverse_compute_inline)
    clone = of_stage(clone.clone)
    fuse_with = of_stage(fuse_with.fuse_with)
    stage_out = of_stage(staging.stage_out)
    reindex = of_stage(reindex.reindex)
    decompose_reduction = of_stage(reduction.decompose_reduction)
    rfactor = of_stage(reduction.rfactor)
    reduce_in_lanes = of_stage(reduce_in_lanes.reduce_in_lanes)
    rolling = of_stage(rolling.rolling)
    atomic = of_stage(atomic.atomic)

    def __init__(self, schedule: BaseSchedule, name: str) -> None:
        self.schedule, self.name = schedule, name

    def __repr__(self) -> str:
        return f"<stage {self.name}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if not name.startswith("_") and hasattr(type(self.schedule), name):
                raise unknown("stage", name, f"stage {self.name}", remedy=f's.{name}("{self.name}", …)')
            raise unknown("stage", name, f"stage {self.name}", public(StageRef))

    def __deepcopy__(self, memo: dict[int, Any]) -> StageRef:
        return StageRef(copy.deepcopy(self.schedule, memo), self.name)

    def _data(self) -> tuple[Any, ...]:
        return StageRef, (self.schedule, self.name)

    @property
    def _history(self) -> BaseSchedule:
        return self.schedule

    def _axis(self, axis: Any) -> str:
        return self.axis(axis)

    @property
    def axes(self) -> tuple[AxisRef, ...]:
        """Names of the loops around the stage, outermost first, without those that an instruction performs."""
        return self.schedule.loops(self.name)

    def axis(self, axis: object) -> str:
        """Full name ("C.i.0") of one of the stage's loops, given ``i``, ``i.0``, a full name or a handle; names that no
        loop has are not refused here.
        """
        return self.schedule._axis_of(self.name, axis)


@answering(ScheduleError)
class BaseSchedule(AxisMethods[StageRef], History[StageRef]):
    """A loop tree that primitives rewrite, one legal step at a time.

    outputs: a tensor or a tuple of them;  target: "opencl", "cuda", "cuda -arch=sm_90a", a Target …
    definition: the outputs that it was made for, with which ``check`` compares; no step changes it

    The tree is a value: ``fork`` and ``undo`` cost nothing, and a refused primitive leaves the schedule as it was.
    Loops are named ``stage.axis`` (``C.i``, parts ``C.i.0``, ``C.i.1``); every method takes names or handles.
    """

    compute_at = placement.compute_at
    reverse_compute_at = placement.reverse_compute_at
    compute_inline = placement.compute_inline
    reverse_compute_inline = reverse_inline.reverse_compute_inline
    clone = clone.clone
    fuse_with = fuse_with.fuse_with
    stage_out = staging.stage_out
    set_scope = buffers.set_scope
    layout = buffers.layout
    run_once = once.run_once
    reindex = reindex.reindex
    decompose_reduction = reduction.decompose_reduction
    rfactor = reduction.rfactor
    reduce_in_lanes = reduce_in_lanes.reduce_in_lanes
    rolling = rolling.rolling
    atomic = atomic.atomic
    assume = assume.assume
    redeclare = redeclare.redeclare

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            stage = f's["{name}"]' if not name.startswith("_") and name in self.index.stages else ""
            raise unknown("schedule", name, "a Schedule", public(type(self)), stage)

    def tree(self) -> Text:
        """The loop tree as text."""
        return Text(text(self.program))

    def __str__(self) -> str:
        return text(self.program)

    def __repr__(self) -> str:
        made = ", ".join(f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]" for t in self.outputs)
        last = f", the last {self._steps[-1]}" if self._steps else ""
        count = f"{len(self._steps)} step{'s' * (len(self._steps) != 1)}"
        return few_lines(
            f"<Schedule of {made} for {self.target}: {count}{last}; print(s) shows the loop tree{self._noted()}>"
        )

    def _noted(self) -> str:
        """Text on what stays idle, for the end of the repr."""
        return ""

    def __getitem__(self, stage: Any) -> StageRef:
        return self._handle(self._stage(stage).name)

    def _handle(self, stage: str) -> StageRef:
        return StageRef(self, stage)

    def loops(self, stage: object) -> tuple[AxisRef, ...]:
        """The loops around a stage, outermost first, without those that an instruction performs."""
        found = self._stage(stage)
        return tuple(AxisRef(x.var.name) for x in self.index.above(found) if x.kind is not Kind.INTRIN)

    def stages(self, tensor: object = None) -> tuple[StageRef, ...]:
        """All stages, or those that write ``tensor``."""
        if tensor is None:
            return tuple(map(self._handle, self.index.stages))
        return tuple(self._handle(s.name) for s in stages_writing(self.program.body, self._buffer(tensor)))

    def diff(self, other: BaseSchedule) -> Text:
        """Unified diff from the tree of ``other`` to this one; empty if they are equal."""
        if not isinstance(other, BaseSchedule):
            raise wrong("other", other, "a Schedule", ScheduleError)
        return difference(str(other), str(self))

    def replay(self, trace: Trace | str) -> Self:
        """Apply every step of ``trace`` (a Trace or its JSON) to this schedule and return it; if one is refused, those
        before it stay applied.

        Raises ScheduleError: ``trace.malformed``, ``trace.unknown-primitive``, and what the steps raise.
        """
        if not isinstance(trace, Trace | str):
            raise wrong("trace", trace, "the trace of a Schedule, or its JSON", ScheduleError)
        for step in read_trace(trace if isinstance(trace, str) else trace.to_json()):
            name, args, options = step.primitive, step.args, dict(step.options)
            if name not in PRIMITIVES or not PRIMITIVES[name].step:
                raise ScheduleError(Problem("trace.unknown-primitive", f"there is no primitive {name}"))
            try:
                PRIMITIVES[name].signature.bind(self, *args, **options)
            except TypeError as e:
                raise ScheduleError(Problem("trace.malformed", f"step {name} cannot be called so: {e}")) from None
            with self.because(step.why) if step.why else contextlib.nullcontext():
                getattr(self, name)(*args, **options)
        return self
