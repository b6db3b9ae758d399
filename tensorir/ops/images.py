"""What convolutions share: the epilogue of their declarations, and how CPUs write register tiles of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorir import nn
from tensorir.expr.tensor import Tensor
from tensorir.ir.words import SIDES
from tensorir.ops.problems import Conv, result_type

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule


def epilogue(y: Tensor, bias: Tensor | None, residual: Tensor | None, shape: Conv) -> Tensor:
    """Bias, residual and activation of the sums ``y``, in the type of the operands, integers in that of the sums."""
    axis, converts = 1 if shape.nchw else 3, shape.wide == "float32"
    name = "epilogue" if converts else "out"
    out = nn.bias_act(y, bias, shape.act, axis=axis, d=residual, name=name)
    return nn.convert(out, result_type(shape.dtype), name="out") if converts else out


def write_tile(s: Schedule, pixel: Any, half: Any, lanes: Any, shape: Conv, extent: int, most: int) -> None:
    """The loops over a register tile's pixels, its vectors of channels and the channels of one, innermost: vectors of
    what is contiguous in the result. In NCHW that are pixels, and the tile is turned in registers.

    pixel: the inner loop of a balanced split of ``extent`` pixels into tiles of at most ``most``
    """
    least, more = divmod(extent, -(-extent // most))
    if not is_turned(shape, least):
        s.unroll(pixel)
        write_channels(s, lanes, shape)
        return
    if more:  # tiles of two sizes: what both have as whole vectors, and the rest one by one
        side = min(SIDES, key=lambda n: (least + 1) % n + least / n)
        group, column = s.split(pixel, [None, side], tail="guard")
        s.partition(group, [least // side])
    else:
        group, column = s.split(pixel, [None, max(n for n in SIDES if n <= least)], tail="shift")
    s.reorder(group, half, lanes, column)
    s.unroll(group).unroll(lanes).vectorize(column)


def is_turned(shape: Conv, pixels: int) -> bool:
    """Whether a result's register tiles of so many pixels of a row are written along the pixels."""
    return bool(shape.nchw and shape.dtype == "float32" and pixels >= min(SIDES))


def write_channels(s: Schedule, lanes: Any, shape: Conv) -> None:
    """The innermost loop over channels of the result: vectors where they are contiguous."""
    if shape.nchw:
        s.unroll(lanes)
    else:
        s.vectorize(lanes)
