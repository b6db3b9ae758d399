"""The CPU algorithms of conv2d: for each what it computes, its schedule, its space and the configuration to start from.

The starting configurations come from a small model of a core (``model``) and of how blocks are dealt to cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorir.ops.depthwise as depthwise  # "from tensorir.ops import" asks the package for a name like it: 2 ms
import tensorir.ops.direct as direct
import tensorir.ops.grouped as grouped
import tensorir.ops.pixels as pixels
import tensorir.ops.winograd as winograd
from tensorir.algorithms.winograd import SIZES, error_bound
from tensorir.api.workload import Template
from tensorir.ops.common import Config, divisors_near, sum_bytes, vector_lanes
from tensorir.ops.model import (
    BLOCK_BYTES,
    PANEL,
    balance,
    channel_lanes,
    counts,
    in_balanced_tiles,
    most_pixels,
    on_core,
    panel_step,
    priced,
    space_of,
    tile_sizes,
)  # fmt: skip
from tensorir.target import Target

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.tune.legal import Predicate
    from tensorir.tune.space import Space

Shape = Mapping[str, Any]
Scheduler = Callable[["Schedule", Config, Shape], "Schedule"]

PACKING = {True: 0.0, False: 0.3}
"""Cycles a byte that a block spends on packing weights, by whether they are packed ahead."""
NEAR_BYTES = 512 * 1024
"""Weights of this size stay in the second-level cache next to everything else."""
NARROW = 16
"""Columns up to which tiles may run over row ends."""


def cpu_templates(shape: Shape, max_error: float) -> dict[str, Template]:
    """The algorithms that are legal for this convolution, the one that promises most first."""
    found: dict[str, Template] = {}

    def add(name: str, space: Callable[[Shape], Space], schedule: Scheduler, rounds: bool = False) -> None:
        found[name] = Template(
            lambda s, c: schedule(s, c, on_core(shape, s.target)), _on(space, shape), kinds=("cpu",), approximate=rounds
        )

    def winograds() -> None:
        add("cpu_winograd", partial(_winograd_space, max_error=max_error), winograd.cpu_winograd, rounds=True)

    if depthwise.applies(shape):
        add("cpu_depthwise", depthwise.space, depthwise.cpu_depthwise)
        return found
    if shape["groups"] > 1:
        add("cpu_direct", grouped.direct_space, direct.cpu_direct)
        if depthwise.takes_groups(shape):
            add("cpu_grouped", depthwise.space, depthwise.cpu_depthwise)
        return dict(reversed(found.items())) if grouped.narrow(shape) or not grouped.fits(shape) else found
    fast = bool(admissible(shape, max_error))
    if fast and shape["prepack"]:
        winograds()
    if shape["r"] == shape["s"] == 1 and not shape["pad"]:
        add("cpu_pixels", _pixels_space, pixels.cpu_pixels)
    add("cpu_direct", _direct_space, direct.cpu_direct)
    if fast and not shape["prepack"]:
        winograds()  # it takes several kernels: not what a call without further wishes starts with
    return found


def _on(space: Callable[[Shape], Space], shape: Shape) -> Callable[[Target], Space]:
    return lambda target: space(on_core(shape, target))


# --- direct ----------------------------------------------------------------------------------------------------------


def _direct_space(shape: Shape) -> Space:
    p, q, c, r, s = (shape[v] for v in ("p", "q", "c", "r", "s"))
    panels, lanes, size = -(-shape["k"] // PANEL), channel_lanes(shape), sum_bytes(shape)
    in_place = not shape["pad"] and shape["layout"] == "NHWC" and shape["stride"] == 1 and r == s == 1
    knobs: dict[str, list[Any]] = dict(
        rows=[v for v in divisors_near(p, (1, 2, 4, 7, 8, 14)) if v <= 28],
        panels=counts(panels, panels),
        tile=tile_sizes(shape, 4 * q if q <= NARROW else q),
        tile_rows=[1, 2, 3] if most_pixels(shape) < 14 else [1, 2, 3, 4],
        unroll_c=[4, 1, 2, 8],
        stage_x=[0, 1] if in_place else [1],
        pad_c=[0, 16] if c % 64 == 0 else [0],
        shift=[0, 1],
        pack=_packs(shape),
        fetch=_fetches(shape, r * s),
        flat=[0, 1] if q <= NARROW else [0],
    )

    def strip(v: Mapping[str, Any]) -> int:
        rows = (v["rows"] - 1) * shape["stride"] + (r - 1) * shape["dilation"] + 1
        return int(rows * (shape["w"] + 2 * shape["pad"]) * (-(-c // lanes) * lanes + v["pad_c"]))

    where: dict[str, Predicate] = {
        "fetch": _fetchable,
        "registers": lambda v: v["tile"] * v["tile_rows"] <= most_pixels(shape),
        "sensible": lambda v: (
            v["tile_rows"] <= v["rows"]
            and (v["flat"] or v["tile"] <= max(q, 2))
            and bool(v["stage_x"] or not v["pad_c"])
            and (v["shift"] == 0 or p % v["rows"] > 0)
            and (not v["flat"] or _is_flat(v, p, q))
        ),
        "fits": lambda v: not v["stage_x"] or size * strip(v) <= BLOCK_BYTES,
    }

    def cost(v: Mapping[str, Any]) -> float:
        step = panel_step(shape, size * (c + v["pad_c"]) * shape["stride"])
        strips, groups = -(-p // v["rows"]), -(-panels // v["panels"])
        tall = -(-v["rows"] // v["tile_rows"])
        high = min(v["tile_rows"], v["rows"])
        if v["flat"]:
            steps = in_balanced_tiles(v["rows"] * q, v["tile"], step)
        else:
            steps = tall * in_balanced_tiles(q, v["tile"], lambda wide: step(wide * high))
        cycles: float = steps * c * r * s * v["panels"]
        if v["stage_x"]:
            cycles += strip(v) * (1.4 if shape["layout"] == "NCHW" else 0.2)
        weights = c * r * s * PANEL * size
        cycles += v["panels"] * (weights / 24 if weights > 128 * 1024 else weights / 48)
        cycles += v["panels"] * weights * PACKING[shape["prepack"]]
        cycles += v["rows"] * q * v["panels"] * PANEL * (0.5 if shape["layout"] == "NCHW" else 0.15)
        blocks = shape["n"] * strips * groups
        return priced(cycles, blocks)

    return space_of(knobs, where, cost, ("unroll_c", "shift", "pack", "fetch"))


def _is_flat(v: Mapping[str, Any], p: int, q: int) -> bool:
    """Tiles that run over row ends are written out one by one: whole blocks of rows, and not too many tiles."""
    if p % v["rows"] or v["tile_rows"] != 1 or v["tile"] < 4 or q % v["tile"] == 0 or v["rows"] * q <= v["tile"]:
        return False
    return direct.flat_bodies(v["rows"] * q, q, v["tile"])[0] <= direct.MOST_BODIES


# --- 1x1 -------------------------------------------------------------------------------------------------------------


def _pixels_space(shape: Shape) -> Space:
    pixels_, k, c, nchw = shape["p"] * shape["q"], shape["k"], shape["c"], shape["layout"] == "NCHW"
    strided, size = shape["stride"] > 1, sum_bytes(shape)
    wide = [v for v in (16, 32, 48, 64, 96) if v < pixels_ + PANEL] if nchw else []
    rows = sorted({-(-pixels_ // d) for d in (1, 2, 4, 7, 8, 14, 16, 28, 32, 56)})
    panels = -(-k // PANEL)
    knobs: dict[str, list[Any]] = dict(
        lanes=["pixels", "channels"] if nchw else ["channels"],
        block=sorted({*wide, *rows}),
        panels=counts(panels, panels),
        tile=tile_sizes(shape, PANEL)[:3] if most_pixels(shape) <= 6 else [*tile_sizes(shape, 2 * PANEL), PANEL],
        stage_x=[1] if strided else [1, 0],
        pad_c=[0, 16] if c % 64 == 0 else [0],
        unroll_c=[4, 1, 2, 8],
        pack=_packs(shape) if not nchw or shape["prepack"] else ["none", *_packs(shape)],
        fetch=_fetches(shape, 1),
    )
    where: dict[str, Predicate] = {
        "pack": lambda v: v["pack"] != "none" or v["lanes"] == "pixels",
        "fetch": _fetchable,
        "stage_x": lambda v: v["lanes"] == "pixels" or v["stage_x"] == int(nchw or strided),
        "pad_c": lambda v: not v["pad_c"] or (v["stage_x"] and v["lanes"] == "channels"),
        "block": lambda v: v["block"] in (wide if v["lanes"] == "pixels" else rows),
        "fits": lambda v: not v["stage_x"] or size * v["block"] * (c + v["pad_c"]) <= BLOCK_BYTES,
    }

    def cost(v: Mapping[str, Any]) -> float:
        cycles: float
        blocks, channels = shape["n"] * -(-pixels_ // v["block"]) * -(-panels // v["panels"]), v["panels"] * PANEL
        if v["lanes"] == "pixels":
            none = v["pack"] == "none"
            sets = panel_step(shape, 4 * c if none else 0)
            cycles = -(-v["block"] // PANEL) * v["panels"] * in_balanced_tiles(PANEL, v["tile"], sets) * c
            cycles += 400.0  # to start a block
            cycles += v["stage_x"] * v["block"] * c * (1.2 if strided else 0.3) + v["block"] * channels * 0.15
            cycles += channels * c * (4 / 40 + (0.0 if none else 4 * PACKING[shape["prepack"]]))
        else:
            cycles = v["panels"] * in_balanced_tiles(v["block"], v["tile"], panel_step(shape, 4 * (c + v["pad_c"]))) * c
            cycles += channels * c * (4 / 32 + 4 * PACKING[shape["prepack"]])
            if nchw or strided:
                cycles += v["block"] * c * (1.4 if nchw else 0.2)
            elif v["block"] * c > 65536:  # the pixels come from the second level for each panel
                cycles += v["panels"] * v["block"] * c / 10
            cycles += v["block"] * channels * (0.5 if nchw else 0.15)
        return priced(cycles, blocks)

    return space_of(knobs, where, cost, ("unroll_c", "fetch"))


def _packs(shape: Shape) -> list[str]:
    """Where weights may be packed, the default first: without further wishes a convolution is one kernel."""
    return ["once"] if shape["prepack"] else ["block", "kernel"]


def _fetches(shape: Shape, taps: int) -> list[int]:
    """Whether to ask for weights ahead of time: first what suits how far away they are."""
    far = taps * shape["c"] * shape["k"] * sum_bytes(shape) >= NEAR_BYTES
    return [1, 0] if far else [0, 1]


def _fetchable(v: Mapping[str, Any]) -> bool:
    return not v["fetch"] or v["pack"] in ("once", "kernel")


# --- Winograd --------------------------------------------------------------------------------------------------------


def admissible(shape: Shape, max_error: float) -> list[int]:
    """The tile sizes of Winograd's algorithm that apply, and whose error bound ``max_error`` allows."""
    square = shape["r"] == shape["s"] and shape["stride"] == shape["dilation"] == 1 and shape["dtype"] == "float32"
    if not square or shape["r"] not in (3, 5) or min(shape["c"], shape["k"]) < 8:
        return []
    return [m for m in SIZES[shape["r"]] if error_bound(m, shape["r"]) <= max_error]


def _winograd_space(shape: Shape, max_error: float) -> Space:
    p, q, c, r = (shape[v] for v in ("p", "q", "c", "r"))
    panels, sizes, lanes = -(-shape["k"] // PANEL), admissible(shape, max_error), vector_lanes(shape)
    knobs: dict[str, list[Any]] = dict(
        m=sizes,
        tb=sorted({v for m in sizes for v in counts(-(-p // m), 8)}),
        panels=counts(panels, panels),
        cb=sorted({min(v, -(-c // lanes) * lanes) for v in (16, 32, 64, 128)}, reverse=True),
        tile=[v for v in tile_sizes(shape, 2 * PANEL) if v >= 6] or tile_sizes(shape, PANEL)[:1],
        unroll_c=[4, 1, 2, 8],
        fetch=_fetches(shape, 36),
    )

    def tiles(v: Mapping[str, Any]) -> tuple[int, int]:
        return -(-p // v["m"]), -(-q // v["m"])

    where: dict[str, Predicate] = {
        "rows": lambda v: v["tb"] <= tiles(v)[0] and tiles(v)[0] % v["tb"] == 0,
        "fits": lambda v: (
            4 * (v["m"] + r - 1) ** 2 * v["tb"] * tiles(v)[1] * PANEL <= BLOCK_BYTES
            and 4 * (v["m"] + r - 1) * (tiles(v)[1] * v["m"] + r - 1) * v["cb"] <= BLOCK_BYTES
        ),
    }

    def cost(v: Mapping[str, Any]) -> float:
        high, wide = tiles(v)
        a2 = (v["m"] + r - 1) ** 2
        blocks = shape["n"] * (high // v["tb"]) * -(-panels // v["panels"])
        products = v["panels"] * a2 * in_balanced_tiles(v["tb"] * wide, v["tile"], panel_step(shape, 4 * c)) * c
        weights = a2 * c * PANEL * 4
        kept = 4 * a2 * v["tb"] * wide * PANEL
        # bytes of weights a cycle, cycles an element on the way back: both measured, on cores of two generations
        if shape["vector_bytes"] >= 64:
            rate = 200 if weights * panels <= 16 << 20 else 6
            slow = 8 if kept <= 32 * 1024 else 14 if kept <= 96 * 1024 else 20
        else:
            rate = 32 if weights * panels <= 1 << 20 else 16 if weights * panels <= 16 << 20 else 6
            slow = 8 if kept <= 64 * 1024 else 16
        products += v["panels"] * weights / rate
        back = v["panels"] * v["tb"] * wide * a2 * slow
        inputs = shape["n"] * high * wide * c * a2 * (0.6 if shape["layout"] == "NHWC" else 1.6)
        ahead = shape["n"] * high * -(-c // v["cb"])
        found: float = priced(products + back, blocks) + inputs / balance(ahead)
        return found

    return space_of(knobs, where, cost, ("unroll_c", "fetch"))
