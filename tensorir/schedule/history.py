"""A program with the primitives applied to it (History), and lookup of its loops, stages and tensors by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from tensorir.errors import Problem, ScheduleError, TensorIRError, user_line
from tensorir.errors.habits import answering
from tensorir.errors.handles import Handle
from tensorir.errors.needs import need_int, need_text, plain_int, wrong
from tensorir.errors.shown import Shown
from tensorir.expr.program import as_outputs, program_of
from tensorir.expr.tensor import Tensor
from tensorir.intrin.declare import Intrin
from tensorir.ir.tree import Buffer, Kind, Loop, Program, Stage
from tensorir.schedule import marks
from tensorir.schedule.analysis import Index, index_of, lookup
from tensorir.schedule.ownership import misplaced
from tensorir.schedule.registry import MARKS, PRIMITIVES
from tensorir.schedule.rewrite import Declared, Rewrite
from tensorir.schedule.trace import Step, Trace
from tensorir.target import Target

H = TypeVar("H")
"""Handles of stages (``StageRef``), which are made of all primitives and so are defined after them."""

S = TypeVar("S", bound="Scheduled[Any]")
"""A handle that primitives are called on, and most of them return."""


class Named(Protocol):
    """An object with a name: a tensor, an axis, or a stage handle."""

    @property
    def name(self) -> str: ...


Name = str | Named
"""A loop, a stage or a tensor: by its name, or by what has it."""


class AxisRef(str, Shown):
    """The full name of a loop, such as ``C.i.0``."""

    __slots__ = ()


class Scheduled(Generic[H]):
    """Base of Schedule and StageRef: primitives are methods of either; a StageRef resolves axis names within its stage
    first.
    """

    @property
    def _history(self) -> History[H]:
        raise NotImplementedError

    def _axis(self, axis: Any) -> Any:
        """Full loop name for a user's axis name or handle; this class takes it as it is, a StageRef puts its stage in
        front.
        """
        return axis

    def _loop(self, axis: Any) -> Loop:
        return self._history._found_loop(self._axis(axis))

    def _place(self, at: Any) -> Loop | None:
        """Loop for a user's axis name; None for "root"."""
        return None if isinstance(at, str) and at == "root" else self._loop(at)


class Version(NamedTuple):
    """State after some steps: the program, removed names with their fate, declared outputs, and the marks left
    (``registry.MARKS``).
    """

    program: Program
    gone: Mapping[str, str]
    declared: Declared
    marks: frozenset[str] = frozenset()

    def after(self, step: Step) -> frozenset[str]:
        """Names of the marks in the tree after ``step``: those of this version, and those that the step leaves."""
        return self.marks.union(name for name, m in MARKS.items() if m.made_by(step))


@answering(ScheduleError)
class History(Handle, Scheduled[H], Shown):
    """A program and the steps applied to it. Trees are immutable, so old versions are kept for free."""

    def __init__(self, outputs: Tensor | Sequence[Tensor], target: Any = "opencl") -> None:
        self.definition = as_outputs(outputs)
        self.target = Target.parse(target)
        self._error: float | None = None
        self._why = ""
        self._within = ""
        self._start(program_of(self.definition))

    def _start(self, program: Program) -> None:
        self._versions = [Version(program, {}, Declared(self.definition))]
        self._steps: list[Step] = []

    @property
    def _history(self) -> History[H]:
        return self

    def _handle(self, stage: str) -> H:
        raise NotImplementedError

    @property
    def program(self) -> Program:
        """The current loop tree."""
        return self._versions[-1].program

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The computed tensors, as declared by the user or by the last ``redeclare``."""
        return self._versions[-1].declared.outputs

    @property
    def began_with(self) -> tuple[Tensor, ...]:
        """The tensors that the steps were first applied to: the definition, or a template's replacement of it."""
        return self._versions[0].declared.outputs

    @property
    def allowed_error(self) -> float | None:
        """Allowed error of results relative to the largest: set by the user, or the bound of approximate algorithms;
        None if results round as the definition does.
        """
        return self._versions[-1].declared.error if self._error is None else self._error

    @allowed_error.setter
    def allowed_error(self, error: float | None) -> None:
        self._error = error

    @property
    def inexact_by(self) -> float | None:
        """Error of ``outputs`` against the definition even in exact arithmetic, relative to the largest result. None if
        all algorithms (``redeclare``) are exact; else ``allowed_error``: None unless an algorithm or the user set it.
        """
        return None if self._versions[-1].declared.exact else self.allowed_error

    @property
    def trace(self) -> Trace:
        """The steps applied so far."""
        return Trace(self._steps)

    @property
    def index(self) -> Index:
        """Lookup of loops and stages by name."""
        program = self.program
        cached: Index | None = getattr(self, "_index", None)
        if cached is None or cached.program is not program:
            self._index = cached = index_of(program)
        return cached

    def fork(self) -> Self:
        """An independent copy."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._versions, other._steps = list(self._versions), list(self._steps)
        return other

    def __copy__(self) -> Self:
        return self.fork()

    def _follow(self, other: History[Any]) -> None:
        """Replace the steps of this schedule by those of ``other``, which has the same definition and target."""
        self._versions, self._steps = list(other._versions), list(other._steps)

    def undo(self, n: int = 1) -> Self:
        """Take back the last ``n`` steps, in place, and return the schedule; ScheduleError ``undo.count`` if there are
        fewer.
        """
        if not 0 <= need_int("n", n, error=ScheduleError) <= len(self._steps):
            raise ScheduleError(Problem("undo.count", f"cannot undo {n} of {len(self._steps)} steps"))
        self._back_to(len(self._steps) - n)
        return self

    def at(self, step: int) -> Self:
        """A copy of the schedule as it was after its first ``step`` steps; ScheduleError ``undo.count`` if there are
        fewer.
        """
        return self.fork().undo(len(self._steps) - need_int("step", step, error=ScheduleError))

    def _back_to(self, steps: int) -> None:
        del self._versions[steps + 1 :], self._steps[steps:]

    @contextlib.contextmanager
    def _as_one(self) -> Iterator[None]:
        """Context manager that undoes all steps inside if one is refused."""
        steps = len(self._steps)
        try:
            yield
        except BaseException:
            self._back_to(steps)
            raise

    @contextlib.contextmanager
    def because(self, why: str) -> Iterator[None]:
        """Context manager that attaches reason ``why``, as one line, to the steps inside: a comment in traces."""
        before, self._why = self._why, " ".join(need_text("why", why, ScheduleError).split())
        try:
            yield
        finally:
            self._why = before

    # --- steps

    def _apply(self, name: str, args: Sequence[Any], options: Mapping[str, Any],
               act: Callable[[Program], Rewrite]) -> tuple[str, ...]:  # fmt: skip
        """Apply rewrite ``act`` and record it as a step; return the names that it made. Raises if it is refused.

        args, options: recorded for replay, nodes by name; options equal to their defaults are omitted
        """
        last = self._versions[-1]
        program, gone = last.program, last.gone
        primitive = PRIMITIVES[name]
        try:
            done = act(program)
        except TensorIRError:
            raise
        except RecursionError:
            raise ScheduleError(Problem("schedule.too-deep", f"the loop tree is too deep for {name}")) from None
        step = Step(name, tuple(map(_plain, args)), self._given(name, options), done.new, user_line(), self._why)
        if problem := marks.lost(program, done.program, name):
            raise ScheduleError(problem)
        left = last.after(step)
        for mark in MARKS.values():
            if mark.name in left and (problem := mark.unfit(program, done.program, name)):
                raise ScheduleError(problem)
        if primitive.moves and (problem := misplaced(done.program)):
            raise ScheduleError(problem)
        by = self._within or f"step {len(self._steps) + 1}, {step}"
        told = {k: f"{v} by {by}" for k, v in done.gone.items()}
        self._versions.append(Version(done.program, {**gone, **told}, done.declared or last.declared, left))
        self._steps.append(step)
        return done.new

    def _compose(self, name: str, args: Sequence[Any], options: Mapping[str, Any],
                 act: Callable[[Self], Sequence[str]]) -> tuple[str, ...]:  # fmt: skip
        """Record the several primitives that ``act`` applies to a copy as one step; return the names from ``act``."""
        step = Step(name, tuple(map(_plain, args)), self._given(name, options), (), user_line(), self._why)
        parts = self.fork()
        parts._within = self._within or f"step {len(self._steps) + 1}, {step}"
        made = tuple(act(parts))
        last = parts._versions[-1]
        self._versions.append(last._replace(marks=last.after(step)))
        self._steps.append(replace(step, out=made))
        return made

    @staticmethod
    def _given(name: str, options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """(name, value) pairs of ``options`` as JSON data, without those equal to their defaults."""
        defaults = PRIMITIVES[name].defaults
        return tuple((k, _plain(v)) for k, v in options.items() if k not in defaults or v != defaults[k])

    # --- names

    def _found_loop(self, axis: Any) -> Loop:
        name = _name_of(axis, "axis")
        found = self.index.loops.get(name)
        if found is not None and found.kind is not Kind.INTRIN:
            return found
        gone = self._versions[-1].gone
        # loops that an instruction performs are in the tree, and yet nothing can be done to them any more
        loops = {n: x for n, x in self.index.loops.items() if x.kind is not Kind.INTRIN}
        if name not in loops and name not in gone and "." not in name:
            ends = [n for n in loops if n.endswith(f".{name}")]
            if len(ends) > 1:
                raise ScheduleError(Problem("loop.ambiguous", f"{name} fits {' and '.join(ends)}", hint=f"{ends[0]!r}"))
        return lookup("loop", name, loops, gone)

    def _axis_of(self, stage: str, axis: Any) -> str:
        """Full loop name of a stage's axis, given ``i``, ``i.0``, a full name or a handle; ``<stage>.<axis>`` for names
        that no loop has.
        """
        if not isinstance(axis, str):
            raise wrong("axis", axis, "an axis by name or handle", ScheduleError)
        own, loops = f"{stage}.{axis}", self.index.loops
        if isinstance(axis, AxisRef) or (own not in loops and own not in self._versions[-1].gone and axis in loops):
            return axis
        return own

    def _loop_of(self, stage: Any, axis: Any) -> Loop:
        """The loop ``axis`` of ``stage``; with ``axis`` None, ``stage`` names the loop."""
        return self._found_loop(stage if axis is None else self._axis_of(self._stage(stage).name, axis))

    def _stage(self, stage: Any) -> Stage:
        index = self.index
        if isinstance(stage, Tensor):
            for b in index.buffers().values():  # of two tensors of one name the second has another one here
                if b.origin is stage and b.name in index.stages:
                    return index.stages[b.name]
            for s in index.stages.values():
                if s.name == stage.name or (stage.op is not None and s.name == stage.op.name):
                    return s
            return lookup("stage", stage.name, index.stages, self._versions[-1].gone)
        return lookup("stage", _name_of(stage, "stage"), index.stages, self._versions[-1].gone)

    def _buffer(self, tensor: Any) -> Buffer:
        table = self.index.buffers()
        if isinstance(tensor, Tensor):
            for b in table.values():
                if b.origin is tensor:
                    return b
        return lookup("tensor", _name_of(tensor, "tensor"), table, self._versions[-1].gone)


def full_name(loop: Loop, name: str) -> str:
    """``<stage>.<name>`` with the stage of ``loop``; a name with a dot is returned as it is."""
    return name if "." in name else f"{loop.var.name.split('.')[0]}.{name}"


def _name_of(x: Any, what: str) -> str:
    if isinstance(x, str):
        return x
    name = getattr(x, "name", None)
    if isinstance(name, str):
        return name
    several = ", ".join(map(repr, x)) if isinstance(x, list | tuple) and all(isinstance(y, str) for y in x) else ""
    hint = f"one by one: {several}" if several else ""
    raise wrong(what, x, f"{'an' if what == 'axis' else 'a'} {what} by name or handle", ScheduleError, hint)


def _plain(v: Any) -> Any:
    """A step's argument as JSON data: nodes as names, NumPy ints as ints, lists recursively."""
    if isinstance(v, Loop):
        return v.var.name
    if isinstance(v, Stage | Buffer | Intrin):
        return v.name
    return [_plain(x) for x in v] if isinstance(v, Sequence) and not isinstance(v, str) else plain_int(v)
