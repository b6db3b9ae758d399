"""Programs to export: schedules and executables, and their names in ``backward=`` and ``batched=``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorir.errors import refuse
from tensorir.errors.needs import shown
from tensorir.export.program import ExportError, ExportProgram


class Exportable:
    """A schedule or a compiled kernel: what folders are written from."""

    def _part(self) -> ExportProgram:
        """Return the program to export, with what makes the same for another target."""
        raise NotImplementedError


def parts_of(backward: object) -> dict[str, ExportProgram]:
    """The programs of ``backward=``, by input; ``export.backward`` for anything else."""
    if backward is None:
        return {}
    given = dict(backward) if isinstance(backward, Mapping) else {}
    if not isinstance(backward, Mapping) or not all(isinstance(g, Exportable) for g in given.values()):
        message = f"backward is a schedule or a kernel for each input that has a gradient, got {shown(backward)}"
        raise refuse(ExportError, "export.backward", message, hint='backward={"x": tir.Schedule(dx)}')
    return {of: made._part() for of, made in given.items()}


def parts_of_batches(batched: object) -> list[ExportProgram]:
    """The programs of ``batched=``, one or several; ``export.batched`` for anything else."""
    given: Any = batched if isinstance(batched, list | tuple) else [] if batched is None else [batched]
    if not all(isinstance(g, Exportable) for g in given):
        message = (
            f"batched is a schedule or a kernel for several items at once, or a list of them, got {shown(batched)}"
        )
        raise refuse(ExportError, "export.batched", message, hint="batched=tir.Schedule(many)")
    return [made._part() for made in given]
