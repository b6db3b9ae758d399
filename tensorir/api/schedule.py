"""``Schedule``: schedule primitives plus source, build, check, export and blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

from tensorir.api.build import Executable
from tensorir.api.exportable import Exportable, parts_of, parts_of_batches
from tensorir.api.this_machine import machine_here
from tensorir.api.unproven import LIMIT_S, needs_proof, prove
from tensorir.api.unproven import run_guarded as run_elsewhere
from tensorir.automatic.expected import Expected, expected_of
from tensorir.check.verdict import Verdict, arguments_for, check
from tensorir.codegen.cfamily import emit
from tensorir.codegen.source import GatherRange, SegmentRange, Source, UniquePlaces
from tensorir.errors import CheckError, LoweringError, Problem, ScheduleError, TensorIRError, refuse
from tensorir.errors.habits import answering, answers
from tensorir.errors.needs import need_int, need_list, need_mapping, need_number, need_text
from tensorir.export.folder import export_part
from tensorir.export.program import ExportError, ExportProgram
from tensorir.expr.program import dims_of, gathers, segments_of, unique_places
from tensorir.expr.tensor import Tensor
from tensorir.ir.dims import dims_in
from tensorir.ir.extents import line, value
from tensorir.ir.structure import identical
from tensorir.ir.text import said
from tensorir.ir.tree import Buffer, Expr, Var
from tensorir.lower.lowered import lowered
from tensorir.lower.room import may_be_full
from tensorir.machine import Machine, machine_of
from tensorir.runtime.compile_limit import compile_limit
from tensorir.runtime.device import Device, open_device
from tensorir.runtime.launch import CompiledProgram
from tensorir.schedule.primitives.assume import in_range
from tensorir.schedule.schedule import BaseSchedule
from tensorir.schedule.trace import Step, Trace
from tensorir.target import Target

SHARED_MEMORY_STEPS = ("stage_in", "stage_out", "set_scope", "compute_at", "reverse_compute_at", "pipeline")
"""Primitives that may increase shared memory; after each the target's limit is checked."""
MOST_NOTED = 24
"""Stages of a schedule, at most, that is lowered for its repr."""
MOST_TRIED = 4096
"""Values of a dim, from its lower bound on, that are tried to find two with the same shape, for a message."""


class HasDefault(Protocol):
    """Interface of a workload as seen by schedules of its templates."""

    def _default_part(self, target: Target) -> ExportProgram:
        """Return the default configuration's program for a target, to export."""


@answering(ScheduleError)
class Schedule(Exportable, BaseSchedule):
    """The schedule of a computation on a target; see the primitives' own documentation for each call.

    >>> s = Schedule(C, target="opencl")
    >>> io, ii = s[C].split("i", [None, 16])
    """

    edited: str | None = None
    """Text that replaces the emitted source (see ``with_source``)."""

    _workload: HasDefault | None = None
    """The workload it began from: its default serves where this schedule cannot be lowered for an export."""

    def emitted(self, target: object = None) -> Source:
        """The source with its parameters and launches, for this schedule's target or another.

        Text set by ``with_source`` is not in it.

        target: "opencl", "cuda" … alone mean this schedule's own target if that has this language
        Raises LoweringError if the target cannot express the schedule, or a launch could not infer a symbolic dim
        (``dim.untold``).
        """
        return emit_source(self, self._meant(target))

    @property
    def expected(self) -> Expected:
        """Modelled seconds on the target's machine, the limit that binds, and notes on what stays idle; the schedule
        does not run. A plain target or an opened device has this computer's rates of memory, probed once.

        Raises LoweringError and CompileError if the schedule cannot be lowered.
        """
        return self._expected_on(machine_here(self.target))

    def _expected_on(self, machine: Machine) -> Expected:
        """The modelled time on a machine, kept until the program changes."""
        program, known = self.__dict__.get("_expected", (None, {}))
        if program is not self.program:
            known = dict[Machine, Expected]()
            self._expected = self.program, known
        if machine not in known:
            known[machine] = expected_of(self, machine)
        found: Expected = known[machine]
        return found

    def _noted(self) -> str:
        """The facts of ``expected`` by the table's machine, if it takes milliseconds to know them: of automatic
        schedules of few stages.
        """
        made = self.edited is None and any(step.why for step in self._steps)
        if not made or len(self.index.stages) > MOST_NOTED:
            return ""
        try:
            facts = self._expected_on(machine_of(self.target)).facts  # no probe for a repr
        except Exception:  # a repr raises nothing
            return ""
        return f"; noted in s.expected: {', '.join(facts)}" if facts else ""

    def source(self, target: object = None) -> str:
        """The emitted text, or that of ``with_source`` in the schedule's own language.

        ``s.source("cuda")`` is this dialect of the same schedule; raises as ``emitted``.
        """
        if self.edited is not None and self._meant(target).language == self.target.language:
            return self.edited
        return self.emitted(target).text

    def _meant(self, target: Any) -> Target:
        own = target is None or (isinstance(target, str) and target == self.target.language)
        return self.target if own else Target.parse(target)

    def build(self, device: str | Device | None = None, *, limit_s: float | None = None) -> Executable:
        """Compile for a device (default: the first usable one of the schedule's language).

        Text of yours (``with_source``, instructions that you registered) runs once in another process before it runs
        here, on inputs that are made for it: what crashes, does not end or writes where it must not is refused.

        limit_s: seconds for the compilation, 60 when None (``compile.time-limit``), and for that run, 30 when None
        Raises LoweringError, CompileError, DeviceError; for such text LaunchError ``launch.crashed``,
        ``launch.time-limit``, ``launch.out-of-bounds``, ``launch.input-written``.
        """
        opened = open_device(device if device is not None else self.target)
        source, doubted = self._source_on(opened)
        if doubted:
            prove(source, opened, lambda: arguments_for(self), _seconds(limit_s))
        target = self._target_on(opened)
        with compile_limit(_limit(limit_s)):
            return Executable(source, opened, self.trace.code, self.began_with, max_error=self.allowed_error,
                              again=self._again, target=target)  # fmt: skip

    def _target_on(self, device: Device) -> Target:
        """Target for a device: the schedule's own if its language matches."""
        return self.target if self.target.language == device.target.language else device.target

    def _source_on(self, device: Device) -> tuple[Source, bool]:
        """(source for ``device``, true if it must first be proven harmless)."""
        source = emit_source(self, self._target_on(device))
        edited = self.edited is not None and self.edited != source.text
        return replace(source, text=self.edited) if self.edited is not None else source, needs_proof(source, edited)

    def _to_run(self) -> Source:
        """Source to run: emitted, or the user's edited text with the emitted launches."""
        source = self.emitted()
        return source if self.edited is None else replace(source, text=self.edited)

    def _part(self) -> ExportProgram:
        return self._part_as(self._to_run(), self.target)

    def _part_as(self, source: Source, target: Target) -> ExportProgram:
        again, error = self._again, self.allowed_error
        return ExportProgram(source, self.definition, None, self.trace.code, target.kind, {}, error, again, target.arch)

    def _again(self, wanted: str) -> ExportProgram:
        """This schedule lowered for target ``wanted``, as a program to export.

        Raises ExportError ``export.language`` for targets of another kind of device, except C, and for edited text. If
        lowering fails for a schedule from a workload's template, the workload's default for the target is returned.
        """
        to = Target.parse(wanted)
        to = replace(to, precise_math=to.precise_math or self.target.precise_math)
        if to.kind != self.target.kind and to.language != "c":
            message = f"a schedule for a {self.target.kind} ({self.target.language}) is none for {wanted}"
            hint = f'a schedule with target="{wanted}"; tensorir export writes the tuned kernels of each'
            raise refuse(ExportError, "export.language", message, hint=hint)
        if self.edited is not None:
            message = f"the {self.target.language} text was edited by with_source, which says nothing of {wanted}"
            raise refuse(ExportError, "export.language", message, hint="export the schedule without the edits")
        try:
            return self._part_as(self.emitted(to), to)
        except TensorIRError:
            if self._workload is None:
                raise
            try:
                return self._workload._default_part(to)
            except TensorIRError:
                pass
            raise

    def export(
        self,
        path: str | Path,
        to: str | Sequence[str] = ("source",),
        *,
        name: str | None = None,
        arch: Sequence[str] = (),
        backward: Mapping[str, Exportable] | None = None,
        batched: Exportable | Sequence[Exportable] | None = None,
    ) -> Path:
        """Write a folder that runs without tensorir, as ``Executable.export`` does; no device is needed.

        What it compares with is computed from the declarations, in NumPy. Raises as ``f.export``.
        """
        derived, several = parts_of(backward), parts_of_batches(batched)
        return export_part(self._part(), path, to, name=name, arch=arch, backward=derived, batched=several)

    def _run_guarded(
        self, arrays: Sequence[Any], device: str | Device | None = None, limit_s: float | None = None
    ) -> tuple[Source, Any, tuple[Problem, ...]]:
        """(source, results, problems found) of a run on copies of ``arrays`` between guard bytes, for checks.

        Problems: writes beyond an array, writes to inputs, output elements never written.
        """
        opened = open_device(device if device is not None else self.target)
        source, doubted = self._source_on(opened)
        if doubted:
            return source, *run_elsewhere(source, opened, arrays, _seconds(limit_s))
        return source, *CompiledProgram(source, opened).run_guarded(*arrays)

    def with_source(self, text: str) -> Self:
        """A fork that builds, checks (``level="device"``) and times ``text`` instead of the emitted source.

        Signatures and launches stay those of the schedule, so the fork takes no more steps, nor ``undo``
        (``with-source.frozen``). Raises ScheduleError ``with-source.text`` for a blank text.
        """
        if not isinstance(text, str) or not need_text("text", text, ScheduleError, empty=True).strip():
            raise ScheduleError(Problem("with-source.text", "with_source takes the text of a whole source file"))
        other = self.fork()
        other.edited = text
        return other

    def _apply(self, name: str, *args: Any) -> tuple[str, ...]:
        self._not_edited(f"s.{name}")
        made = super()._apply(name, *args)
        if name in SHARED_MEMORY_STEPS:
            self._need_room()
        return made

    def _need_room(self) -> None:
        """Raise ``compile.shared-memory``, after undoing the last step, if shared memory then exceeds the target's."""
        if not may_be_full(self):
            return
        try:
            lowered(self)
        except TensorIRError as e:
            if any(p.code == "compile.shared-memory" for p in e.problems):
                super().undo(1)
                raise

    def at(self, step: int) -> Self:
        """Copy of the schedule as it was after its first ``step`` calls; edited text is dropped."""
        other = self.fork()
        other.edited = None
        return other.undo(len(self._steps) - need_int("step", step, error=ScheduleError))

    def undo(self, n: int = 1) -> Self:
        """This schedule, with its last ``n`` calls taken back.

        Raises ScheduleError ``with-source.frozen`` for edited text, whose launch would change.
        """
        self._not_edited("s.undo")
        return super().undo(n)

    def _not_edited(self, call: str) -> None:
        if self.edited is not None:
            raise ScheduleError(
                Problem(
                    "with-source.frozen",
                    f"{call} would change the launch under the edited text",
                    hint="change the schedule that with_source was called on, and edit its source again",
                )
            )

    def check(
        self, level: str = "fast", shapes: object = None, seed: int = 0, *, limit_s: float | None = None
    ) -> Verdict:
        """Verdict, true if this schedule still computes its tensors; else it has the problems. A wrong schedule raises
        nothing.

        level: "fast" (legality, exact ring equivalence on awkward shapes, races, uninitialised reads, bounds; no
               device), "device" (also runs the kernel here against the reference), "emulate" (runs the CUDA text)
        shapes: {axis: extent}, or a list of them, instead of the awkward shapes; "device" ignores it
        seed:  of the inputs
        limit_s: seconds for each run of text that may not end: on the device until it has passed, 30 when None; of
                 CUDA text on the CPU (processor time), 60 and more for a large definition when None
        Raises CheckError ``check.level``, ``check.unknown-axis``, and ``check.edited-text`` for "fast" on edited text;
        CompileError of the C++ compiler for "emulate". Errors of lowering are problems of the Verdict.
        """
        need_text("level", level, CheckError)
        seed = need_int("seed", seed, 0, error=CheckError)
        return check(self, level, None if shapes is None else _shapes(shapes), seed, _limit(limit_s))

    def blame(self) -> Step | None:
        """The first step that breaks equivalence, by bisection with ``check()``; None if that is true.

        Raises CheckError ``blame.no-step`` if the schedule is wrong before its first step.
        """
        return blame(self)


def _seconds(limit_s: float | None) -> float:
    """``limit_s`` validated, or ``LIMIT_S`` if None: seconds for a run of unproven text."""
    limit = _limit(limit_s)
    return LIMIT_S if limit is None else limit


def _limit(limit_s: Any) -> float | None:
    return None if limit_s is None else need_number("limit_s", limit_s, 0.0, CheckError)


def _shapes(shapes: Any) -> tuple[Any, ...]:
    found = (
        (shapes,)
        if isinstance(shapes, Mapping)
        else need_list("shapes", shapes, "dicts from axes to extents", CheckError)
    )
    for n, one in enumerate(found):
        for axis, extent in need_mapping(f"shapes[{n}]", one, CheckError).items():
            need_int(f"shapes[{n}][{axis!r}]", extent, 0, 2**31 - 1, CheckError)
    return found


@answers(ScheduleError)
def replay(outputs: Tensor | Sequence[Tensor], trace: Trace | str, target: object = "opencl") -> Schedule:
    """New schedule of ``outputs`` with every step of ``trace`` (a Trace or its JSON) applied.

    Raises ScheduleError ``trace.…`` for steps that are no calls of primitives, and what a refused step raises.
    """
    return Schedule(outputs, target).replay(trace)


def emit_source(s: BaseSchedule, target: Target) -> Source:
    """Source of ``s`` lowered for ``target``, with the index ranges that a launch must check.

    Raises LoweringError: ``dim.untold``, and whatever the target cannot express or hold.
    """
    need_told(s.program.inputs, dims_of(s.outputs))
    source = emit(lowered(s, target), target, str(s.trace).splitlines(), gathers_of(s))
    names = {b.origin: b.name for b in s.program.inputs}
    unique = tuple(
        UniquePlaces(
            into,
            tuple(map(said, domain)),
            tuple(("" if t is None else names[t], at) for t, at in index),
            tuple(map(said, shape)),
        )
        for into, domain, index, shape in unique_places(s.outputs)
    )
    segments = tuple(SegmentRange(names[g.tensor], g.along, g.most, g.axis) for g in segments_of(s.outputs))
    return replace(source, unique=unique, segments=segments) if unique or segments else source


def need_told(inputs: Sequence[Buffer], dims: Sequence[Var]) -> None:
    """Raise LoweringError ``dim.untold`` unless each dim has an input extent ``a * dim + b`` to be solved at launch."""
    places = [(e, f"{b.name}.shape[{d}]") for b in inputs for d, e in enumerate(b.shape)]
    lines = {solved[0] for e, _ in places if (solved := line(said(e))) is not None}
    for v in dims:
        if v.name not in lines:
            hint = f"an input of {v.name} elements, or an int in place of {v.name}"
            raise refuse(LoweringError, "dim.untold", _untold(v, places), hint=hint)


def _untold(v: Var, places: Sequence[tuple[Expr, str]]) -> str:
    """Reason why shapes do not determine a dim: no shape contains it, or several values give equal shapes."""
    have = [(said(e), where) for e, where in places if identical(dims_in(e), [v])]
    low, high = v.bounds or (0, 0)
    for text, where in have:
        seen: dict[int, int] = {}
        for n in range(low, min(high, low + MOST_TRIED) + 1):
            extent = value(text, {v.name: n})
            if (before := seen.setdefault(extent, n)) != n:
                return f"{where}, {text}, is {extent} for {v.name} = {before} and for {n}: a launch could not know it"
    for text, where in have:
        return f"{where}, {text}, is no multiple of {v.name} plus a constant, which a launch could solve"
    return f"no argument has a shape with {v.name}: a launch could not know it"


def gathers_of(s: BaseSchedule) -> tuple[GatherRange, ...]:
    """Ranges of index inputs whose values must be checked at launch, as no proof shows them in range."""
    names = {b.origin: b.name for b in s.program.inputs}
    found = [x for x in gathers(s.outputs) if not isinstance(x[1], int) or not in_range(s.program, x[0], x[1])]
    return tuple(dict.fromkeys(GatherRange(names[t], said(limit), into, part) for t, limit, into, part in found))


def blame(s: BaseSchedule) -> Step | None:
    """The first step after which the schedule is wrong, found by bisection; None if ``check`` passes.

    Raises CheckError ``blame.no-step`` if it is wrong before any step: a template scheduled other outputs, or the
    declared combiner is not associative.
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
