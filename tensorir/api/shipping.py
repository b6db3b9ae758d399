"""Programs to export from schedules and workloads, which can be lowered again for another target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorir.codegen.source import Source
from tensorir.errors import TensorIRError, refuse
from tensorir.errors.needs import shown
from tensorir.export.part import ExportError, Part
from tensorir.target import Target

if TYPE_CHECKING:
    from tensorir.api.schedule import Schedule
    from tensorir.api.workload import Workload


def part_of(s: Schedule, about: Mapping[str, Any] | None = None) -> Part:
    """What a schedule computes as a program to export: its edited text where there is one."""
    from tensorir.api.candidate import source_of

    return _part(s, source_of(s), s.target, about)


def parts_of(backward: object) -> dict[str, Part]:
    """The programs of ``backward=``, by input; ``export.backward`` for anything else."""
    from tensorir.api.build import Executable
    from tensorir.api.schedule import Schedule

    if backward is None:
        return {}
    given = dict(backward) if isinstance(backward, Mapping) else {}
    if not isinstance(backward, Mapping) or not all(isinstance(g, Schedule | Executable) for g in given.values()):
        message = f"backward is a schedule or a kernel for each input that has a gradient, got {shown(backward)}"
        raise refuse(ExportError, "export.backward", message, hint='backward={"x": tir.Schedule(dx)}')
    return {of: part_of(made) if isinstance(made, Schedule) else made._part() for of, made in given.items()}


def parts_of_batches(batched: object) -> list[Part]:
    """The programs of ``batched=``, one or several; ``export.batched`` for anything else."""
    from tensorir.api.build import Executable
    from tensorir.api.schedule import Schedule

    given: Any = batched if isinstance(batched, list | tuple) else [] if batched is None else [batched]
    if not all(isinstance(g, Schedule | Executable) for g in given):
        message = (
            f"batched is a schedule or a kernel for several items at once, or a list of them, got {shown(batched)}"
        )
        raise refuse(ExportError, "export.batched", message, hint="batched=tir.Schedule(many)")
    return [part_of(made) if isinstance(made, Schedule) else made._part() for made in given]


def part_of_work(
    work: Workload, template: str, config: Mapping[str, Any], target: Target, about: Mapping[str, Any] | None = None
) -> Part:
    """The program of a configuration, tested against the workload's reference."""
    made = part_of(work.schedule(config, template=template, target=target), about)
    return _of_work(made, work, template, again_of_work(work, template, config, target))


def again_of_work(work: Workload, template: str, config: Mapping[str, Any], target: Target) -> Callable[[str], Part]:
    """What lowers a configuration that was chosen for ``target`` for another one; see ``Part.again``.

    Where its schedule cannot be lowered so, it gives the workload's default there, which ``about`` says.
    """

    def again(wanted: str) -> Part:
        made = again_of(work.schedule(config, template=template, target=target))(wanted)
        if made.about:
            return made
        about = {"template": template, "config": dict(config), "record": None}
        return _of_work(replace(made, about=about), work, template, again)

    return again


def again_of(s: Schedule) -> Callable[[str], Part]:
    """What lowers a schedule for another target than its own; see ``Part.again``.

    Targets of another kind of device are refused, except C, and so is edited text. Where lowering refuses, and a
    workload's template made the schedule, that workload's default for the target is given.
    """

    def again(wanted: str) -> Part:
        to = Target.parse(wanted)
        if to.kind != s.target.kind and to.language != "c":
            message = f"a schedule for a {s.target.kind} ({s.target.language}) is none for {wanted}"
            hint = f'a schedule with target="{wanted}"; tensorir export writes the tuned kernels of each'
            raise refuse(ExportError, "export.language", message, hint=hint)
        if s.edited is not None:
            message = f"the {s.target.language} text was edited by with_source, which says nothing of {wanted}"
            raise refuse(ExportError, "export.language", message, hint="export the schedule without the edits")
        try:
            return _part(s, s.emitted(to), to)
        except TensorIRError:
            if s._workload is None:
                raise
            try:
                return _default(s._workload, to)
            except TensorIRError:
                pass
            raise

    return again


def _default(work: Workload, target: Target) -> Part:
    """The program of a workload's default configuration for a target."""
    name = work.template_for(target)
    config = work.templates[name].space_for(target).default
    s = work.schedule(config, template=name, target=target)
    made = _part(s, s.emitted(target), target, {"template": name, "config": dict(config), "record": None})
    return _of_work(made, work, name, again_of(s))


def _of_work(made: Part, work: Workload, template: str, again: Callable[[str], Part]) -> Part:
    return replace(made, reference=work.reference, max_error=work.allowed_error(template), again=again)


def _part(s: Schedule, source: Source, target: Target, about: Mapping[str, Any] | None = None) -> Part:
    error = s.allowed_error
    return Part(source, s.definition, None, str(s.trace), target.kind, about or {}, error, again_of(s), target.arch)
