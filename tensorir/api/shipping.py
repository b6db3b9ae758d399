"""Makes exportable programs from a workload's configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tensorir.api.work import Work
from tensorir.export.program import ExportProgram
from tensorir.target import Target


def part_of_work(
    work: Work, template: str, config: Mapping[str, object], target: Target, about: Mapping[str, object] | None = None
) -> ExportProgram:
    """ExportProgram of a configuration, with test data from the workload's reference."""
    made = work.schedule(config, template=template, target=target)._part()
    return work._tested(replace(made, about=about or {}), template, again_of_work(work, template, config, target))


def again_of_work(
    work: Work, template: str, config: Mapping[str, object], target: Target
) -> Callable[[str], ExportProgram]:
    """Function from a target name to this configuration's ExportProgram for it; falls back to the workload's default
    there.

    ``about`` of the program tells whether it is the default.
    """

    def again(wanted: str) -> ExportProgram:
        made = work.schedule(config, template=template, target=target)._again(wanted)
        if made.about:
            return made
        about = {"template": template, "config": dict(config), "record": None}
        return work._tested(replace(made, about=about), template, again)

    return again
