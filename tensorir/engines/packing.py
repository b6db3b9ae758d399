"""Operands in another order, read and written in vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule

SIDE = 8
"""Rows and columns that are turned at a time in registers."""


def turned(s: Schedule, stage: str, at: str, run: str, last: str, lanes: int = SIDE) -> str:
    """Fill ``stage``, whose last axis is ``last``, from what is stored along ``run``: tiles of ``SIDE`` places of that
    by ``lanes`` of ``last`` are read along the one, turned in registers and written along the other. Returns the loop
    over such tiles.

    at: the loop in which the stage is computed, or "root"
    """
    out = s.stage_out(stage, at, "register").name
    group, place = s.split(f"{out}.{run}", [None, SIDE], tail="shift")
    several, lane = s.split(f"{out}.{last}", [None, lanes])
    s.reorder(group, several, place, lane)
    s.compute_at(stage, several)
    s.reorder(f"{stage}.{last}", f"{stage}.{run}")
    s.unroll(f"{stage}.{last}").vectorize(f"{stage}.{run}")
    s.unroll(place).vectorize(lane)
    return str(group)
