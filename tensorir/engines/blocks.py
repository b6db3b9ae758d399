"""Helpers of GPU engines: grid binding, and choice of a start configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tensorir.engines.tiles import Config, Knobs, cheapest
from tensorir.ir.build import as_int

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule
    from tensorir.target import Target

ROOMY = 48 * 1024
"""Bytes of shared memory per block that defaults keep to if possible, so that several blocks fit a multiprocessor."""


def bind_grid(s: BaseSchedule, z: Sequence[str], y: Sequence[str], x: Sequence[str]) -> str:
    """Bind nested loops to grid axes z, y, x, outermost first; returns the ``block.x`` loop. Loops too long for z or y
    are fused into x.
    """
    _, most_y, most_z = s.target.max_grid
    above, below, along = list(z), list(y), list(x)
    if _blocks(s, below) > most_y or _blocks(s, above) > most_z:
        below, along = [], [*below, *along]
    if _blocks(s, above) > most_z:
        above, along = [], [*above, *along]
    for loops, axis in ((above, "block.z"), (below, "block.y")):
        if loops:
            s.bind(joint(s, loops), axis)
    block = joint(s, along)
    s.bind(block, "block.x")
    return block


def has_room(target: Target, z: int, y: int, x: int) -> bool:
    """True if the target's grid can hold z x y x x blocks, as ``bind_grid`` places them."""
    most_x, most_y, most_z = target.max_grid
    return (z * y * x if z > most_z else y * x if y > most_y else x) <= most_x


def _blocks(s: BaseSchedule, loops: Sequence[str]) -> int:
    return math.prod(extent_of(s, x) for x in loops)


def extent_of(s: BaseSchedule, loop: str) -> int:
    """Constant extent of the loop named ``loop``."""
    return as_int(s.index.loops[str(loop)].extent)


def joint(s: BaseSchedule, loops: Sequence[str]) -> str:
    """Fuse several loops; returns the name of the result."""
    one = loops[0]
    for loop in loops[1:]:
        one = s.fuse(one, loop)
    return one


def start(knobs: Knobs, where: Mapping[str, Callable[[Config], object]], shared_bytes: Callable[[Config], int],
          wanted: Config | None = None) -> Config | None:  # fmt: skip
    """Start configuration: ``wanted`` if legal and modest in shared memory, else the first such, else the one with
    least shared memory; None if none is legal.
    """
    if wanted is not None and shared_bytes(wanted) <= ROOMY and all(test(wanted) for test in where.values()):
        return wanted
    return cheapest(knobs, where, lambda c: max(ROOMY, shared_bytes(c)), ROOMY)
