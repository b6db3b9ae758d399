"""Programs to export from schedules and workloads, which can be lowered again for another target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorir.errors import TensorIRError, refuse
from tensorir.export.part import ExportError, Part
from tensorir.target import Target

if TYPE_CHECKING:
    from tensorir.api.schedule import Schedule
    from tensorir.api.workload import Workload


def part_of(s: Schedule, about: Mapping[str, Any] | None = None) -> Part:
    """What a schedule computes as a program to export: its edited text where there is one."""
    from tensorir.api.candidate import source_of

    return _part(s, source_of(s), s.target, about)


def part_of_work(
    work: Workload, template: str, config: Mapping[str, Any], target: Target, about: Mapping[str, Any] | None = None
) -> Part:
    """The program of a configuration, tested against the workload's reference."""
    made = part_of(work.schedule(config, template=template, target=target), about)
    error = work.allowed_error(template)
    return replace(made, reference=work.reference, max_error=error, again=again_of_work(work, template, config, target))


def again_of_work(work: Workload, template: str, config: Mapping[str, Any], target: Target) -> Callable[[str], Part]:
    """What lowers a configuration that was chosen for ``target`` for another one; see ``Part.again``."""
    return lambda wanted: _relowered(work, template, config, target, wanted)


def again_of(s: Schedule) -> Callable[[str], Part]:
    """What lowers a schedule for another target than its own; see ``Part.again``."""
    return lambda wanted: _emitted(s, wanted)


def _relowered(work: Workload, template: str, config: Mapping[str, Any], target: Target, wanted: str) -> Part:
    """The kernel of a configuration that was chosen for ``target``, lowered for another; where its schedule cannot be,
    the workload's default schedule there, which ``about`` says.

    Raises ExportError ``export.language`` for another kind of device, and what lowering for it raises.
    """
    to = Target.parse(wanted)
    if to.kind == target.kind or to.language == "c":
        try:
            return _of_work(work, template, work.schedule(config, template=template, target=target), wanted, config)
        except TensorIRError:
            if to.language != "c":
                raise
    else:
        raise _other_kind(wanted, target)
    name = work.template_for(to)
    default = work.templates[name].space_for(to).default
    return _of_work(work, name, work.schedule(default, template=name, target=to), wanted, default)


def _of_work(work: Workload, template: str, s: Schedule, wanted: str, config: Mapping[str, Any]) -> Part:
    about = {"template": template, "config": dict(config), "record": None}
    error = work.allowed_error(template)
    return replace(_emitted(s, wanted), reference=work.reference, about=about, max_error=error)


def _emitted(s: Schedule, wanted: str) -> Part:
    """The schedule as a program for a target of the same kind of device; ``export.language`` where that is another, or
    the text is the user's.
    """
    to = Target.parse(wanted)
    if to.kind != s.target.kind and to.language != "c":
        raise _other_kind(wanted, s.target)
    if s.edited is not None:
        message = f"the {s.target.language} text was edited by with_source, which says nothing of {to.language} text"
        raise refuse(ExportError, "export.language", message, hint="export the schedule without the edits")
    return _part(s, s.emitted(to), to, None)


def _part(s: Schedule, source: Any, target: Target, about: Mapping[str, Any] | None) -> Part:
    return Part(source, s.definition, None, str(s.trace), target.kind, about or {}, s.allowed_error, again_of(s))


def _other_kind(wanted: str, target: Target) -> TensorIRError:
    message = f"a schedule for a {target.kind} ({target.language}) is none for {wanted}"
    hint = f'a schedule with target="{wanted}"; tensorir export writes the tuned kernels of each'
    return refuse(ExportError, "export.language", message, hint=hint)
