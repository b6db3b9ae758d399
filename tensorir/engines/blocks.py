"""What templates for GPUs share: how many blocks a grid has room for, and what a block stages."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tensorir.arith.affine import Arith
from tensorir.arith.box import side_of
from tensorir.engines.tiles import Config, Knobs, cheapest
from tensorir.ir.build import as_int
from tensorir.ir.tree import Expr, Var

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target

ROOMY = 48 * 1024
"""Bytes of shared memory with which several blocks run on a multiprocessor: what a default does with, if it can."""
ALIGNED = 128
"""Bytes that the starts of arrays in shared memory may take."""


def bind_grid(s: Schedule, z: Sequence[str], y: Sequence[str], x: Sequence[str]) -> str:
    """Bind nested loops to the axes of the grid, outermost first, and return the one of ``block.x``: those of ``z`` and
    of ``y`` are joined to it where their own axis has no room for as many.
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
    """Whether ``bind_grid`` finds an axis for so many blocks."""
    most_x, most_y, most_z = target.max_grid
    return (z * y * x if z > most_z else y * x if y > most_y else x) <= most_x


def _blocks(s: Schedule, loops: Sequence[str]) -> int:
    return math.prod(extent_of(s, x) for x in loops)


def extent_of(s: Schedule, loop: str) -> int:
    """Iterations of a loop."""
    return as_int(s.index.loops[str(loop)].extent)


def joint(s: Schedule, loops: Sequence[str]) -> str:
    """Several loops in one."""
    one = loops[0]
    for loop in loops[1:]:
        one = s.fuse(one, loop)
    return one


def groups_met(channels: int, part: int, tile: int) -> int:
    """Groups of ``part`` channels each of which a copy has room, that ``tile`` neighbours out of ``channels`` meet."""
    return _box(channels, part, tile)[0]


def within_group(channels: int, part: int, tile: int) -> int:
    """Channels of a group of ``part``, counted from its start, of which a copy for ``tile`` neighbours has room."""
    return _box(channels, part, tile)[1]


@functools.lru_cache(maxsize=4096)
def _box(channels: int, part: int, tile: int) -> tuple[int, int]:
    """The box of ``(i // part, i % part)`` for tiles of ``i``, by the arithmetic that ``stage_in`` asks."""
    outer, inner = Var("outer", "index"), Var("inner", "index")
    moving = {inner: (0, tile - 1)}
    arith = Arith({outer: (0, -(-channels // tile) - 1), **moving})
    at: Expr = outer * tile + inner
    sides = [side_of(e, arith, moving) for e in (at // part, at % part)]
    first, second = (s.extent if s is not None else n for s, n in zip(sides, (-(-channels // part), part), strict=True))
    return first, second


def start(knobs: Knobs, where: Mapping[str, Callable[[Config], object]], shared_bytes: Callable[[Config], int],
          wanted: Config | None = None) -> Config | None:  # fmt: skip
    """What a space starts with: ``wanted`` if it is legal and roomy, else the first legal configuration that is roomy,
    else the one that needs the least shared memory; None where nothing is legal.
    """
    if wanted is not None and shared_bytes(wanted) <= ROOMY and all(test(wanted) for test in where.values()):
        return wanted
    return cheapest(knobs, where, lambda c: max(ROOMY, shared_bytes(c)), ROOMY)
