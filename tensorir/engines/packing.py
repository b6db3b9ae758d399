"""Schedules transposing copies: operands packed through register transposition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorir.engines.steps import divisor_near
from tensorir.ir.words import SIDES

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule

SIDE = 8
"""Rows, and columns by default, of a tile transposed in registers."""


def turned(s: BaseSchedule, stage: str, at: str, run: str, last: str, lanes: int = SIDE,
           block: tuple[int, int] | None = None) -> tuple[str, str]:  # fmt: skip
    """Fill packed ``stage`` (last axis ``last``) from memory contiguous along ``run`` by register transposition of
    ``SIDE`` x ``lanes`` tiles; returns the tile loops.

    at: loop in which the stage is computed, or "root"
    block: tiles per block along both axes; those along ``run`` adjacent, to avoid cache set conflicts
    """
    out = s.stage_out(stage, at, "register").name
    group, place = s.split(f"{out}.{run}", [None, SIDE], tail="shift")
    several, lane = s.split(f"{out}.{last}", [None, lanes], tail="shift")
    loops, inner = (group, several), several
    if block:
        g0, g1 = s.split(group, [None, block[0]])
        s0, s1 = s.split(several, [None, block[1]])
        s.reorder(g0, s0, s1, g1, place, lane)
        loops, inner = (g0, s0), g1
    else:
        s.reorder(group, several, place, lane)
    s.compute_at(stage, inner)
    s.reorder(f"{stage}.{last}", f"{stage}.{run}")
    s.unroll(f"{stage}.{last}").vectorize(f"{stage}.{run}")
    s.unroll(place).vectorize(lane)
    return str(loops[0]), str(loops[1])


def leave_turned(s: BaseSchedule, row: str, half: str, lanes: str, extent: int, most: int, dtype: str) -> None:
    """Schedule the stores of a register tile whose results are contiguous along rows: the tile is transposed in
    registers and stored in vectors of rows; lane by lane for types other than float32 and for tiles of few rows.

    row:  loop over the tile's rows, inner part of a balanced split of ``extent`` rows into tiles of at most ``most``
    half: loop over its vectors of columns;  lanes: over the lanes of one, innermost
    """
    least, more = divmod(extent, -(-extent // most))
    if dtype != "float32" or least < min(SIDES):
        s.unroll(row).unroll(half).unroll(lanes)
        return
    if more:  # tiles of two sizes: what both have as whole vectors, and the rest one by one
        side = min(SIDES, key=lambda n: (least + 1) % n + least / n)
        group, inner = s.split(row, [None, side], tail="guard")
        s.partition(group, [least // side])
    else:
        group, inner = s.split(row, [None, max(n for n in SIDES if n <= least)], tail="shift")
    s.reorder(group, half, lanes, inner)
    s.unroll(group).unroll(half).unroll(lanes).vectorize(inner)


def tiles_of(extent: int, size: int, wanted: int) -> int:
    """Number of tiles of ``size`` per block along an extent, near ``wanted``: a divisor of all tiles if one is near."""
    return divisor_near(-(-extent // size), wanted)
