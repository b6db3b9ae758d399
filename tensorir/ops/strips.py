"""Input of a block in block memory, channels last, whatever its order in global memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorir.ops.model import channel_lanes
from tensorir.ops.problems import Conv

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule

SIDE = 8
"""Pixels that are read side by side where channels are not contiguous."""
MOST_CUTS = 4
"""Parts of the loop over such groups of pixels; of more, channels are gathered one by one."""


def strip(s: Schedule, stage: str, at: Any, shape: Conv, pixels: str, extent: int,
          image: Sequence[int], pad: int = 0, even: bool = True) -> None:  # fmt: skip
    """``stage`` in block memory, made in each iteration of ``at`` in vectors of channels: as stored (NHWC), gathered,
    or turned from vectors of pixels where those are contiguous (NCHW).

    pixels: the axis along a row of ``extent`` pixels, of which those in ``range(*image)`` are in the image
    pad:    spare channels of a pixel; even: pixels are contiguous, and all rows have as many
    """
    lanes = channel_lanes(shape)
    s.set_scope(stage, "shared")
    s.compute_at(stage, at)
    if pad:
        s.layout(stage, pad=pad)
    cuts = _cuts(extent, image)
    whole = even and shape.dtype == "float32" and extent >= SIDE and lanes >= SIDE and shape.c % lanes == 0
    if shape.nchw and whole and len(cuts) <= MOST_CUTS:
        _turned(s, stage, at, pixels, lanes, cuts)
        return
    several, lane = s.split(f"{stage}.c", [None, lanes])
    s.vectorize(lane)
    if shape.nchw:
        s.reorder(several, f"{stage}.{pixels}")  # a few cache lines at a time, each until nothing of it is left
    inside = [x for x in image if 0 < x < extent]
    if inside:
        s.partition(f"{stage}.{pixels}", inside)


def _cuts(extent: int, image: Sequence[int]) -> list[int]:
    """Where to cut the loop over groups of pixels: each that reaches beyond the image is a part of its own, since what
    its lanes read has to be known one by one.
    """
    starts = [min(x, extent - SIDE) for x in range(0, extent, SIDE)]
    inner = [image[0] <= x and x + SIDE <= image[1] for x in starts]
    return [t for t in range(1, len(starts)) if not (inner[t] and inner[t - 1])]


def _turned(s: Schedule, stage: str, at: Any, pixels: str, lanes: int, cuts: list[int]) -> None:
    """Registers of pixels by channels, filled along pixels and written along channels."""
    s.stage_out(stage, at, "register")
    group, pixel = s.split(f"{stage}.out.{pixels}", [None, SIDE], tail="shift")
    several, lane = s.split(f"{stage}.out.c", [None, lanes])
    s.reorder(group, several, pixel, lane)
    s.compute_at(stage, several)
    s.reorder(f"{stage}.c", f"{stage}.{pixels}")
    s.unroll(f"{stage}.c").vectorize(f"{stage}.{pixels}")
    s.unroll(pixel).vectorize(lane)
    if cuts:
        s.partition(group, cuts)
