"""Base class of exportable objects (schedules, executables), and validation of ``backward=`` and ``batched=``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorir.errors import refuse
from tensorir.errors.needs import shown
from tensorir.export.program import ExportError, ExportProgram


class Exportable:
    """A schedule or compiled kernel that can be written to a folder."""

    def _part(self) -> ExportProgram:
        """Return the program to export, with a function that lowers it for other targets."""
        raise NotImplementedError


def parts_of(backward: object) -> dict[str, ExportProgram]:
    """{input: program} of ``backward=``, {} for None; raises ExportError ``export.backward`` for anything but a mapping
    to schedules or kernels.
    """
    if backward is None:
        return {}
    given = dict(backward) if isinstance(backward, Mapping) else {}
    if not isinstance(backward, Mapping) or not all(isinstance(g, Exportable) for g in given.values()):
        message = f"backward is a schedule or a kernel for each input that has a gradient, got {shown(backward)}"
        raise refuse(ExportError, "export.backward", message, hint='backward={"x": tir.Schedule(dx)}')
    return {of: made._part() for of, made in given.items()}


def parts_of_batches(batched: object) -> list[ExportProgram]:
    """Programs of ``batched=``, one or several, [] for None; raises ExportError ``export.batched`` for anything but
    schedules or kernels.
    """
    given: Any = batched if isinstance(batched, list | tuple) else [] if batched is None else [batched]
    if not all(isinstance(g, Exportable) for g in given):
        message = (
            f"batched is a schedule or a kernel for several items at once, or a list of them, got {shown(batched)}"
        )
        raise refuse(ExportError, "export.batched", message, hint="batched=tir.Schedule(many)")
    return [made._part() for made in given]
