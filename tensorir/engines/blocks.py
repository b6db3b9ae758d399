"""Helpers of GPU engines: grid binding, and choice of a start configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tensorir.engines.tiles import Config, Knobs, cheapest
from tensorir.ir.build import as_int
from tensorir.machine import machine_of

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule
    from tensorir.target import Target

ROOMY = 48 * 1024
"""Bytes of shared memory per block that defaults keep to if possible, so that several blocks fit a multiprocessor."""
TREE_CELLS, TREE_THREADS, LEAST_PARTS = 32, 256, 4
"""Of a tree of partial sums: cells per block, threads, and least parts per thread."""


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


def add_by_tree(s: BaseSchedule, cells: Sequence[str], parts: str, each: int, sums: str | None = None) -> bool:
    """Bind a kernel that adds partial sums, several threads to a cell, and return True; False without a step if blocks
    of ``each`` cells are enough for half of the multiprocessors, or there are few parts.

    cells: loops over the results;  parts: loop over the parts, in the stage ``sums`` if another one reads the sums
    """
    count, terms = _blocks(s, cells), extent_of(s, parts)
    width = min(TREE_CELLS, 1 << (count - 1).bit_length())
    share = min(TREE_THREADS // width, 1 << (max(1, terms // LEAST_PARTS).bit_length() - 1))
    if 2 * count >= each * machine_of(s.target).cores or share == 1:
        return False
    block, cell = s.split(joint(s, cells), [None, width]) if cells else ("", "")
    if cells:
        s.bind(block, "block.x")
    if width > 1:
        s.bind(cell, "thread.x")
    if sums is not None:
        s.compute_at(sums, cell, scope="register")
    rest, part = s.split(parts, [None, share])
    s.reorder(part, rest).reduce_across(part, "thread.y" if width > 1 else "thread.x")
    return True


def start(knobs: Knobs, where: Mapping[str, Callable[[Config], object]], shared_bytes: Callable[[Config], int],
          wanted: Config | None = None) -> Config | None:  # fmt: skip
    """Start configuration: ``wanted`` if legal and modest in shared memory, else the first such, else the one with
    least shared memory; None if none is legal.
    """
    if wanted is not None and shared_bytes(wanted) <= ROOMY and all(test(wanted) for test in where.values()):
        return wanted
    return cheapest(knobs, where, lambda c: max(ROOMY, shared_bytes(c)), ROOMY)
