"""CUDA shuffles: registers of other threads of the warp, which its 32 threads read together."""

from __future__ import annotations

import functools

from tensorir.expr.compute import compute, placeholder
from tensorir.expr.functions import minimum, where
from tensorir.intrin.declare import Intrin, meaning
from tensorir.ir.layout import LANES_OF_WARP as WARP

DTYPES = ("float32", "float64", "int32", "uint32", "int64", "uint64")
"""Of values that a shuffle takes as they are held in registers."""
_MANUAL = "CUDA C++ Programming Guide, warp shuffle functions"
_LANE_LAYOUT = "n -> n |"


@functools.cache
def from_above(dtype: str, offset: int) -> Intrin:
    """Return the instruction that gives each lane the value of that ``offset`` above it, the last ones their own."""
    x = placeholder((WARP,), dtype, name="x")
    y = compute((WARP,), lambda n: where(n < WARP - offset, x[minimum(n + offset, WARP - 1)], x[n]), name="y")
    return Intrin(
        name=f"cuda.shfl-down.{dtype}.{offset}",
        semantics=meaning(y),
        emit={"cuda": f"{{y_value}} = __shfl_down_sync(0xffffffffu, {{x_value}}, {offset});"},
        source=_MANUAL,
        fragments={"x": _LANE_LAYOUT, "y": _LANE_LAYOUT},
    )


@functools.cache
def from_first(dtype: str, width: int) -> Intrin:
    """Return the instruction that gives each of ``width`` neighbouring lanes the value of the first one of them."""
    x = placeholder((WARP,), dtype, name="x")
    y = compute((WARP,), lambda n: x[n // width * width], name="y")
    return Intrin(
        name=f"cuda.shfl.{dtype}.{width}",
        semantics=meaning(y),
        emit={"cuda": f"{{y_value}} = __shfl_sync(0xffffffffu, {{x_value}}, 0, {width});"},
        source=_MANUAL,
        fragments={"x": _LANE_LAYOUT, "y": _LANE_LAYOUT},
    )
