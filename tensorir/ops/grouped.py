"""Convolution in groups of several channels on CPUs: which algorithm to start with, and the space of ``direct``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.ops.common import divisors_near
from tensorir.ops.direct import strip_bytes
from tensorir.ops.model import BLOCK_BYTES, PANEL, SPARE, SUMS, counts, in_balanced_tiles, priced, space_of
from tensorir.ops.problems import Conv

if TYPE_CHECKING:
    from tensorir.tune.legal import Predicate
    from tensorir.tune.space import Space


def narrow(shape: Conv) -> bool:
    """Whether pixels fill vectors better than the output channels of a group, where both can be in the lanes."""
    beside = shape.stride == 1 or shape.dtype == "float32"  # others are gathered one by one
    return bool(shape.kg < PANEL and shape.q >= 8 and beside)


def fits(shape: Conv) -> bool:
    """Whether the input of one row of one group's results fits in a block's memory."""
    return _strip_bytes(shape, {"rows": 1, "several": 1}) <= BLOCK_BYTES


def direct_space(shape: Conv) -> Space:
    """A block computes some rows of ``several`` groups; a register tile, ``panel`` channels of one group."""
    p, q, c, k, groups = shape.p, shape.q, shape.c, shape.k, shape.groups
    cg, kg, taps, size = c // groups, k // groups, shape.taps, shape.sum_bytes
    most = {v: _most_pixels(shape, v) for v in (PANEL, 8, 4, 2, 1) if v <= kg}
    knobs: dict[str, list[Any]] = dict(
        rows=[v for v in divisors_near(p, (1, 2, 4, 7, 8, 14)) if v <= 28],
        several=[v for v in counts(groups, groups) if groups % v == 0],
        panel=list(most)[:3],
        tile=[v for v in (14, 12, 8, 10, 7, 6, 5, 4, 3, 2) if v <= max(q, 2)],
        tile_rows=[1, 2, 3, 4],
        unroll_c=[v for v in (4, 1, 2, 8) if v <= cg],
        stage_x=[int(fits(shape))],
        pad_c=[0],
        shift=[0, 1],
        pack=["once"] if shape.prepack else ["block", "kernel"],
        flat=[0],
    )

    where: dict[str, Predicate] = {
        "registers": lambda v: v["tile"] * v["tile_rows"] <= max(2, most[v["panel"]]),
        "sensible": lambda v: v["tile_rows"] <= v["rows"] and (v["shift"] == 0 or p % v["rows"] > 0),
        "fits": lambda v: not v["stage_x"] or _strip_bytes(shape, v) <= BLOCK_BYTES,
    }

    def cost(v: Mapping[str, Any]) -> float:
        vector = max(0.5, v["panel"] * size / 64)  # cycles of a pixel: a product, and the load of its factor

        def step(pixels: int) -> float:
            return float(max(pixels, SUMS) * vector + 0.5)

        tall, high = -(-v["rows"] // v["tile_rows"]), min(v["tile_rows"], v["rows"])
        steps = tall * in_balanced_tiles(q, v["tile"], lambda wide: step(wide * high))
        panels, nchw = v["several"] * -(-kg // v["panel"]), shape.nchw
        cycles: float = steps * cg * taps * panels
        cycles += v["stage_x"] * _strip_bytes(shape, v) / size * (1.4 if nchw else 0.2)
        cycles += v["rows"] * q * v["several"] * kg * (1.0 if nchw else 0.15)
        cycles += panels * (20.0 + v["panel"] * cg * taps * size * (0.3 if v["pack"] == "block" else 1 / 48))
        blocks = shape.n * -(-p // v["rows"]) * (groups // v["several"])
        return priced(cycles + 400.0, blocks)

    return space_of(knobs, where, cost, ("unroll_c", "shift", "pack"))


def _strip_bytes(shape: Conv, v: Mapping[str, Any]) -> int:
    return strip_bytes(shape, v["rows"], shape.cg * v["several"])


def _most_pixels(shape: Conv, panel: int) -> int:
    """Pixels whose sums for so many channels stay in registers."""
    vectors = max(1, panel // shape.vector_lanes) * shape.product_room
    return max(1, (int(shape.registers) - SPARE) // vectors)
