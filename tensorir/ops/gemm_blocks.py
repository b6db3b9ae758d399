"""Blocks of a tiled product on GPUs: in which order they are walked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir.ops.common import Config
from tensorir.tune.gpu_devices import gpu_of

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target

MULTIPROCESSORS = 132
"""Of an H100 or H200, where nothing says how many there are."""
RASTER = (1, 8, 4, 2, 16)
"""Rows of blocks in a band."""
EARLIER: Mapping[str, int] = {"raster": 1}
"""What configurations mean that were recorded before there were these knobs."""


def multiprocessors(target: Target) -> int:
    """Of the device that kernels are made for."""
    gpu = gpu_of(target)
    return gpu.units if gpu else target.units or MULTIPROCESSORS


def walked(s: Schedule, raster: int, outer: Sequence[Any]) -> Any:
    """One loop over all blocks of the nest ``outer``, the last two of which are rows and columns of blocks.

    Bands of ``raster`` rows are walked column by column: blocks that run side by side form a square rather than a row,
    and read fewer rows of one operand and columns of the other, which stay in the L2 cache.
    """
    *batch, bi, bj = outer
    if raster == 1:
        return s.fuse(*outer, name="tile")
    bands, row = s.split(bi, [None, raster])
    return s.reorder(bands, bj, row).fuse(*batch, bands, bj, row, name="tile")


def bind_blocks(s: Schedule, c: Config, outer: Sequence[Any]) -> None:
    """Blocks of the nest ``outer``: a grid of columns and rows, or in bands a line; what is before them is z."""
    *batch, bi, bj = outer
    if c["raster"] > 1:
        s.bind(walked(s, c["raster"], [bi, bj]), "block.x")
    else:
        s.bind(bi, "block.y").bind(bj, "block.x")
    if batch:
        s.bind(batch[0] if len(batch) == 1 else s.fuse(*batch), "block.z")


def whole_bands(c: Config, rows: int) -> bool:
    """Whether ``rows`` rows of blocks are bands with none left over, which would be blocks with nothing to do."""
    return bool(c["raster"] == 1 or rows % c["raster"] == 0)


def bands(rows: int, columns: int, target: Target) -> int:
    """Rows of a band to start with: more than one where not all blocks run at once."""
    if rows * columns <= multiprocessors(target):
        return 1
    return next(n for n in (8, 4, 2, 1) if rows % n == 0)
