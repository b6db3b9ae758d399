"""Handles: ``s[C]`` for a stage, and the axes that primitives return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir.errors import ScheduleError
from tensorir.errors.habits import answering, public, unknown
from tensorir.errors.needs import wrong
from tensorir.errors.shown import Shown

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule


class AxisRef(str, Shown):
    """The full name of a loop, such as ``C.i.0``."""

    __slots__ = ()


@answering(ScheduleError)
class StageRef(Shown):
    """One stage of a schedule: its methods are the schedule's, with the stage's name put before axis names."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule, self.name = schedule, name

    def __repr__(self) -> str:
        return f"<stage {self.name}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if not name.startswith("_") and hasattr(type(self.schedule), name):
                raise unknown("stage", name, f"stage {self.name}", remedy=f's.{name}("{self.name}", …)')
            raise unknown("stage", name, f"stage {self.name}", public(StageRef))

    @property
    def axes(self) -> tuple[AxisRef, ...]:
        """The loops around the stage, outermost first."""
        return self.schedule.loops(self.name)

    def axis(self, axis: Any) -> str:
        """The full name of one of the stage's loops, given ``i``, ``i.0`` or a full name or handle."""
        if not isinstance(axis, str):
            raise wrong("axis", axis, "an axis by name or handle", ScheduleError)
        own = f"{self.name}.{axis}"
        gone = self.schedule._versions[-1][1]
        if isinstance(axis, AxisRef) or (
            own not in self.schedule.index.loops and own not in gone and axis in self.schedule.index.loops
        ):
            return axis
        return own

    def split(self, axis: Any, factors: Sequence[int | None], tail: str = "guard",
              names: Sequence[str] | None = None) -> tuple[AxisRef, ...]:  # fmt: skip
        """See ``Schedule.split``."""
        return self.schedule.split(self.axis(axis), factors, tail, names)

    def partition(self, axis: Any, at: Sequence[int]) -> StageRef:
        """See ``Schedule.partition``."""
        self.schedule.partition(self.axis(axis), at)
        return self

    def pipeline(self, axis: Any, depth: int = 2, async_: bool = False, roles: Mapping[str, int] | None = None,
                 turns: int = 1) -> StageRef:  # fmt: skip
        """See ``Schedule.pipeline``."""
        self.schedule.pipeline(self.axis(axis), depth, async_, roles, turns)
        return self

    def prefetch(self, tensor: Any, at: Any, ahead: Any = None, distance: int = 1) -> StageRef:
        """See ``Schedule.prefetch``."""
        self.schedule.prefetch(tensor, self.axis(at), None if ahead is None else self.axis(ahead), distance)
        return self

    def reindex(self, view: str, pad: Mapping[str, int] | None = None, reads: Mapping[str, str] | None = None,
                name: str | None = None) -> tuple[AxisRef, ...]:  # fmt: skip
        """See ``Schedule.reindex``."""
        return self.schedule.reindex(self.name, view, pad, reads, name)

    def fuse(self, *axes: Any, name: str | None = None) -> AxisRef:
        """See ``Schedule.fuse``."""
        return self.schedule.fuse(*map(self.axis, axes), name=name)

    def tile(self, *axes: Any, factors: Sequence[int]) -> tuple[AxisRef, ...]:
        """See ``Schedule.tile``."""
        return self.schedule.tile(*map(self.axis, axes), factors=factors)

    def cut(self, axis: Any, at: int) -> StageRef:
        """See ``Schedule.cut``."""
        return self.schedule.cut(self.axis(axis), at)

    def reorder(self, *axes: Any) -> StageRef:
        """See ``Schedule.reorder``."""
        self.schedule.reorder(*map(self.axis, axes))
        return self

    def bind(self, axis: Any, to: str) -> StageRef:
        """See ``Schedule.bind``."""
        self.schedule.bind(self.axis(axis), to)
        return self

    def vectorize(self, axis: Any) -> StageRef:
        """See ``Schedule.vectorize``."""
        self.schedule.vectorize(self.axis(axis))
        return self

    def parallel(self, axis: Any) -> StageRef:
        """See ``Schedule.parallel``."""
        self.schedule.parallel(self.axis(axis))
        return self

    def unroll(self, axis: Any) -> StageRef:
        """See ``Schedule.unroll``."""
        self.schedule.unroll(self.axis(axis))
        return self

    def specialize(self, axis: Any, cond: str) -> StageRef:
        """See ``Schedule.specialize``; the condition has full names."""
        self.schedule.specialize(self.axis(axis), cond)
        return self

    def annotate(self, axis: Any, key: str, value: Any) -> StageRef:
        """See ``Schedule.annotate``."""
        self.schedule.annotate(self.axis(axis), key, value)
        return self

    def compute_at(self, consumer: Any, axis: Any = None) -> StageRef:
        """See ``Schedule.compute_at``."""
        self.schedule.compute_at(self.name, consumer, axis)
        return self

    def reverse_compute_at(self, producer: Any, axis: Any = None) -> StageRef:
        """See ``Schedule.reverse_compute_at``."""
        self.schedule.reverse_compute_at(self.name, producer, axis)
        return self

    def compute_inline(self) -> None:
        """See ``Schedule.compute_inline``; the stage is gone afterwards."""
        self.schedule.compute_inline(self.name)

    def reverse_compute_inline(self) -> None:
        """See ``Schedule.reverse_compute_inline``; the stage is gone afterwards."""
        self.schedule.reverse_compute_inline(self.name)

    def stage_in(self, tensor: Any, at: Any = "root", scope: str = "shared", **how: Any) -> StageRef:
        """See ``Schedule.stage_in``; ``how``: its other arguments by name."""
        return self.schedule.stage_in(tensor, self._place(at), scope, **how)

    def stage_out(self, at: Any = "root", scope: str = "register", layout: str | None = None, via: str = "threads",
                  vector: int | None = None) -> StageRef:  # fmt: skip
        """See ``Schedule.stage_out``."""
        return self.schedule.stage_out(self.name, self._place(at), scope, layout, via, vector)

    def _place(self, at: Any) -> Any:
        return at if isinstance(at, str) and at == "root" else self.axis(at)

    def decompose_reduction(self, axis: Any) -> StageRef:
        """See ``Schedule.decompose_reduction``."""
        return self.schedule.decompose_reduction(self.name, self.axis(axis))

    def atomic(self) -> StageRef:
        """See ``Schedule.atomic``."""
        self.schedule.atomic(self.name)
        return self

    def rfactor(self, axis: Any) -> StageRef:
        """See ``Schedule.rfactor``."""
        return self.schedule.rfactor(self.name, self.axis(axis))

    def tensorize(self, axis: Any, intrin: Any) -> StageRef:
        """See ``Schedule.tensorize``."""
        self.schedule.tensorize(self.axis(axis), intrin)
        return self
