"""Direct convolution on CPUs with output channels in the vector lanes: what it computes, its schedule and its space.

One work-item a block. The input rows of a block are in block memory, zero padded and channel last, weights in panels
of 16 output channels; per step of the reduction a register tile of some pixels by some vectors of channels takes the
loads of these and one broadcast a pixel.

In groups, panels are of channels of one group: as wide as the configuration says, the last one moved back where they do
not divide it. A block computes whole groups, from their channels of the input alone.

A 1x1 convolution is a matrix product over all pixels that the stride keeps, rows joined: output channels in the lanes,
weights in panels of 16; or, where an image's pixels are contiguous (NCHW), pixels in the lanes, read in place or as a
panel in block memory, and one weight after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorir.engines.model import (
    BLOCK,
    BLOCK_BYTES,
    PANEL,
    SPARE_REGISTERS,
    SUMS,
    channel_lanes,
    counts,
    in_balanced_tiles,
    most_pixels,
    panel_step,
    panel_vectors,
    priced,
    room,
    shared,
    space_of,
    tile_sizes,
)
from tensorir.engines.problems import Conv
from tensorir.engines.steps import divisors_near, out_stage, unroll_by
from tensorir.engines.tiles import Config
from tensorir.ops.images import (
    COPIED,
    GATHERED,
    PACKED,
    UNROLLS,
    WRITTEN,
    channels_last,
    fetch_next,
    fetchable,
    fetches,
    pack_ahead,
    pack_at,
    packed_ahead,
    packed_bytes,
    packing,
    packs,
    staged,
    strip,
    sums_in_registers,
    write_tile,
    written,
)
from tensorir.ops.views import sums_axes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule
    from tensorir.tune.space import Space

NARROW_COLUMNS = 16
"""Columns up to which tiles may run over row ends."""
MOST_BODIES = 9
"""Bodies of such tiles: with more, the text for three widths of registers is above 100 KB."""


def view(s: BaseSchedule, shape: Conv, flat: bool = False) -> None:
    """Walk the sums by (n, p, q, k), or by (n, i, k) with the pixels of an image joined, in panels of weights
    w_packed (k/16, r, s, c, k%16);  in groups by (n, p, q, g, k), of weights (g, r, s, c, k), where c and k count
    channels of one group.
    """
    wide, kg = shape.wide, shape.kg
    if shape.groups > 1:
        axes, kept = f"n, p, q, g = k/{kg}, k = k%{kg}, r, s, c", "n, p, q, g, k"
        s.reindex("y", f"{sums_axes(shape)} -> {axes}", reads={"w": "g, r, s, c, k"}, dtype=wide, writes=kept)
        return
    kept = "n, i, k" if flat else "n, p, q, k"
    axes = f"{kept.replace('i', 'i = (p, q)')}, r, s, c"
    panels = {"w": f"ko = k/{PANEL}, r, s, c, ki = k%{PANEL}"}
    s.reindex("y", f"{sums_axes(shape)} -> {axes}", {"k": PANEL}, panels, dtype=wide, writes=kept)


def strip_columns(shape: Conv) -> int:
    """Columns of the padded image that the convolution reads."""
    return (shape.q - 1) * shape.stride + (shape.s - 1) * shape.dilation + 1


def strip_bytes(shape: Conv, rows: int, channels: int) -> int:
    """Block memory of so many channels of the padded input of as many rows of the result."""
    high = (rows - 1) * shape.stride + (shape.r - 1) * shape.dilation + 1
    return high * strip_columns(shape) * channels * shape.sum_bytes


def cpu_direct(
    s: BaseSchedule, shape: Conv, *, rows: int, tile: int, tile_rows: int, unroll_c: int, stage_x: int, pad_c: int,
    shift: int, pack: str, flat: int, fetch: int = 0, panels: int = 1, several: int = 1, panel: int = PANEL,
    vectors: int = 1,
) -> BaseSchedule:  # fmt: skip
    """``rows`` and ``panels``, of so many ``vectors``, of a block; pixels of the register tile (``tile`` columns by
    ``tile_rows``, or ``tile`` pixels that run over row ends when ``flat``); in groups, ``several`` groups of a block
    and ``panel`` channels of a tile instead of panels; ``unroll_c``; ``stage_x`` strip in block memory; ``pad_c`` spare
    channels of a pixel there; ``shift`` the last rows back; where the weights are packed (``pack``): "once", ahead;
    "kernel", one of its own; "block", each panel by the block; ``fetch`` the next panel into the caches while this one
    is used
    """
    grouped = shape.groups > 1
    x = channels_last(s, shape) if stage_x else ""
    view(s, shape, bool(flat))
    width = min(shape.vector_lanes, panel)
    pack_ahead(s, pack, shape)
    out = out_stage(s, "y")
    pb, p = s.split(f"{out}.p", [None, rows], tail="shift" if shift else "guard")
    if grouped:
        kg, k = s.split(f"{out}.k", [None, shape.kg])
        kb, kg = s.split(kg, [None, several])
        kp, k = s.split(k, [None, panel], tail="shift")
        kh, kl = s.split(k, [None, width])
        within = [kb, kg, kp]
    else:
        kb, kp, kh, kl = s.split(f"{out}.k", [None, panels, vectors, width])
        within = [kb, kp]
    if flat:
        bodies, size = flat_bodies(rows * shape.q, shape.q, tile)
        factors, tail = ([None, bodies, size], "guard") if size else ([None, tile], "balanced")
        *again, q0, q1 = s.split(s.fuse(p, f"{out}.q"), factors, tail=tail)
        s.reorder(f"{out}.n", pb, *within, *again, q0, q1, kh, kl)
        inner = [q1]
        # such a tile has its own body, where the rows and columns of its pixels are constants
        s.partition(q0, list(range(1, bodies)))
    else:
        p0, p1 = s.split(p, [None, tile_rows], tail="balanced")
        q0, q1 = s.split(f"{out}.q", [None, tile], tail="balanced")
        s.reorder(f"{out}.n", pb, *within, p0, q0, p1, q1, kh, kl)
        inner = [p1, q1]
    s.bind(f"{out}.n", "block.z").bind(pb, "block.y").bind(kb, "block.x")
    s.compute_at("y", kb)
    if stage_x:  # before tiles of two sizes are cut: a block takes the rows and columns that its results need
        image = shape.pad, shape.pad + shape.w
        taken = replace(shape, c=shape.cg * several) if grouped else shape
        strip(s, x, kb, taken, "w", strip_columns(shape), image, pad_c)
    elif shape.pad:
        s.compute_inline("x_pad")
    s.compute_at("y", q0)
    if pack == "block":
        pack_at(s, kp, shape)
    sums_in_registers(s, "y", ["n", "r", "s", "c"], ["i"] if flat else ["p", "q"], "k", width)
    for loop in (*inner[:-1], kh):
        s.unroll(loop)
    unroll_by(s, "y.c", unroll_c)
    if width > 1:
        write_tile(s, inner[-1], kh, kl, shape, rows * shape.q if flat else shape.q, tile)
    else:
        s.unroll(inner[-1])
    return fetch_next(s, fetch, kp)


def strip_space(shape: Conv) -> Space:
    """Strips of rows, panels and register tiles that are worth a try."""
    p, q, c, r, s = shape.p, shape.q, shape.c, shape.r, shape.s
    lanes, size = channel_lanes(shape), shape.sum_bytes
    panels = {v: -(-shape.k // (v * shape.vector_lanes)) for v in panel_vectors(shape)}
    in_place = not shape.pad and not shape.nchw and shape.stride == 1 and r == s == 1
    knobs: dict[str, list[Any]] = dict(
        rows=_rows(p),
        panels=sorted({n for v in panels.values() for n in counts(v, v)}),
        vectors=list(panels),
        tile=tile_sizes(shape, 4 * q if q <= NARROW_COLUMNS else q),
        tile_rows=[1, 2, 3] if most_pixels(shape) < 14 else [1, 2, 3, 4],
        unroll_c=UNROLLS,
        stage_x=[0, 1] if in_place else [1],
        pad_c=[0, 16] if c % 64 == 0 else [0],
        shift=[0, 1],
        pack=packs(shape),
        fetch=_fetches(shape),
        flat=[0, 1] if q <= NARROW_COLUMNS else [0],
    )

    def strip_cells(v: Config) -> int:
        rows = (v["rows"] - 1) * shape.stride + (r - 1) * shape.dilation + 1
        return int(rows * (shape.w + 2 * shape.pad) * (-(-c // lanes) * lanes + v["pad_c"]))

    def cost(v: Config) -> float:
        pitch, wide = size * (c + v["pad_c"]) * shape.stride, v["vectors"] * shape.vector_lanes
        step, flat = panel_step(shape, pitch, v["unroll_c"], c * r * s, v["vectors"]), v["flat"]
        steps = in_balanced_tiles(v["rows"] * q, v["tile"], step) if flat else _tall_tiles(v, q, step)
        weights = c * r * s * wide * size
        cycles = BLOCK + steps * c * r * s * v["panels"]
        cycles += v["stage_x"] * strip_cells(v) * staged(shape)
        cycles += v["panels"] * (weights / 24 if weights > 128 * 1024 else weights / 48)
        cycles += v["panels"] * weights / size * packing(shape, v["pack"])
        cycles += v["rows"] * q * v["panels"] * wide * written(shape)
        blocks = shape.n * -(-p // v["rows"]) * -(-panels[v["vectors"]] // v["panels"])
        return shared(priced(cycles, blocks)) + packed_ahead(shape, v["pack"])

    return space_of(
        knobs,
        {
            "fetch": fetchable,
            "panels": lambda v: v["panels"] <= panels[v["vectors"]],
            "registers": lambda v: v["tile"] * v["tile_rows"] <= most_pixels(shape, v["vectors"]),
            "sensible": lambda v: (
                v["tile_rows"] <= v["rows"]
                and (v["flat"] or v["tile"] <= max(q, 2))
                and (v["stage_x"] or not v["pad_c"])
                and (v["shift"] == 0 or p % v["rows"] > 0)
                and (not v["flat"] or _is_flat(v["rows"], v["tile_rows"], v["tile"], p, q))
            ),
            "fits": lambda v: not v["stage_x"] or size * strip_cells(v) <= BLOCK_BYTES,
            "room": lambda v: (
                size * v["stage_x"] * strip_cells(v) + packed_bytes(shape, v["vectors"] * shape.vector_lanes, v["pack"])
                <= room(shape)
            ),
        },
        cost,
        ("unroll_c", "shift", "pack", "fetch"),
    )


def _fetches(shape: Conv) -> list[int]:
    """``fetches`` where panels are there ahead of time; else the block that packs them has them near."""
    return fetches(shape, shape.taps) if shape.prepack else [0, 1]


def _rows(p: int) -> list[int]:
    return [v for v in divisors_near(p, (1, 2, 4, 7, 8, 14)) if v <= 28]


def _tall_tiles(v: Config, q: int, step: Callable[[int], float]) -> float:
    """Cycles of all register tiles of a panel that keep to rows, by those of one of so many pixels."""
    return in_balanced_tiles(
        v["rows"], v["tile_rows"], lambda high: in_balanced_tiles(q, v["tile"], lambda wide: step(wide * high))
    )


def _is_flat(rows: int, tile_rows: int, tile: int, p: int, q: int) -> bool:
    """Tiles that run over row ends are written out one by one: whole blocks of rows, and not too many bodies."""
    if p % rows or tile_rows != 1 or tile < 4 or q % tile == 0 or rows * q <= tile:
        return False
    return flat_bodies(rows * q, q, tile)[0] <= MOST_BODIES


def flat_bodies(pixels: int, q: int, tile: int) -> tuple[int, int]:
    """Number of bodies of tiles of joined rows of ``q`` pixels, and their size, where the columns of later tiles are
    those of earlier ones again; the size is 0 where every tile is its own.
    """
    tiles = -(-pixels // tile)
    size, rest = divmod(pixels, tiles)
    bodies = tiles if rest else math.lcm(size, q) // size
    return bodies, size if bodies < tiles else 0


# --- in groups of several channels


def fills_pixels(shape: Conv) -> bool:
    """True when pixels fill vectors better than the output channels of a group, where both can be in the lanes."""
    adjacent = shape.stride == 1 or shape.dtype == "float32"  # others are gathered one by one
    return bool(shape.nchw and shape.wide != "float32" and shape.kg < PANEL and shape.q >= 8 and adjacent)


def fits(shape: Conv) -> bool:
    """True when the input of one row of one group's results fits in a block's memory."""
    return strip_bytes(shape, 1, shape.cg) <= BLOCK_BYTES


def grouped_space(shape: Conv) -> Space:
    """A block computes some rows of ``several`` groups; a register tile, ``panel`` channels of one group."""
    p, q, cg, kg, groups = shape.p, shape.q, shape.cg, shape.kg, shape.groups
    taps, size = shape.taps, shape.sum_bytes
    most = {v: _pixels_by(shape, v) for v in (PANEL, 8, 4, 2, 1) if v <= kg}
    knobs: dict[str, list[Any]] = dict(
        rows=_rows(p),
        several=[v for v in counts(groups, groups) if groups % v == 0],
        panel=list(most)[:3],
        tile=[v for v in (14, 12, 8, 10, 7, 6, 5, 4, 3, 2) if v <= max(q, 2)],
        tile_rows=[1, 2, 3, 4],
        unroll_c=[v for v in UNROLLS if v <= cg],
        stage_x=[int(fits(shape))],
        pad_c=[0],
        shift=[0, 1],
        pack=packs(shape),
        flat=[0],
    )

    def cost(v: Config) -> float:
        vector = max(0.5, v["panel"] * size / 64)  # cycles of a pixel: a product, and the load of its factor
        panels = v["several"] * -(-kg // v["panel"])
        cycles = _tall_tiles(v, q, lambda pixels: max(pixels, SUMS) * vector + 0.5) * cg * taps * panels
        cycles += v["stage_x"] * strip_bytes(shape, v["rows"], cg * v["several"]) / size * staged(shape)
        cycles += v["rows"] * q * v["several"] * kg * written(shape)
        cycles += panels * (20.0 + v["panel"] * cg * taps * (PACKED if v["pack"] == "block" else size / 48))
        blocks = shape.n * -(-p // v["rows"]) * (groups // v["several"])
        return shared(priced(cycles + BLOCK, blocks)) + packed_ahead(shape, v["pack"])

    return space_of(
        knobs,
        {
            "registers": lambda v: v["tile"] * v["tile_rows"] <= max(2, most[v["panel"]]),
            "sensible": lambda v: v["tile_rows"] <= v["rows"] and (v["shift"] == 0 or p % v["rows"] > 0),
            "fits": lambda v: not v["stage_x"] or strip_bytes(shape, v["rows"], cg * v["several"]) <= BLOCK_BYTES,
            "room": lambda v: (
                v["stage_x"] * strip_bytes(shape, v["rows"], cg * v["several"])
                + packed_bytes(shape, v["panel"], v["pack"])
                <= room(shape)
            ),
        },
        cost,
        ("unroll_c", "shift", "pack"),
    )


def _pixels_by(shape: Conv, panel: int) -> int:
    """Pixels whose sums for so many channels stay in registers."""
    return max(1, (shape.registers - SPARE_REGISTERS) // (max(1, panel // shape.vector_lanes) * shape.product_room))


# --- 1x1


def pixel_view(s: BaseSchedule, shape: Conv, along: bool, stage_x: int, packed: bool) -> None:
    """Walk the sums as a product over the pixels that the stride keeps: (n, i, k), or (n, k, i) with pixels ``along``
    the lanes.

    Where they are not read in place, pixels are x_packed (n, i, c) or (n, c, i), and weights w_packed (k/16, c, k%16)
    """
    kept, pixels = ("n, k, i", "n, c, i") if along else ("n, i, k", "n, i, c")
    axes = f"{kept.replace('i', 'i = (p, q)')}, c = (c, r, s)"
    reads = {**({"x": pixels} if stage_x else {}), **({"w": f"ko = k/{PANEL}, c, ki = k%{PANEL}"} if packed else {})}
    pad = {"k": PANEL} if packed else None
    s.reindex("y", f"{sums_axes(shape)} -> {axes}", pad, reads, dtype=shape.wide, writes=kept)


def cpu_pixels(
    s: BaseSchedule, shape: Conv, *, lanes: str, block: int, panels: int, tile: int, stage_x: int, pad_c: int,
    unroll_c: int, pack: str, fetch: int,
) -> BaseSchedule:  # fmt: skip
    """Contents of ``lanes``; ``block`` pixels and ``panels`` of 16 channels of a block; ``tile``: the register tile's
    other side; ``stage_x`` pixels in block memory, each with ``pad_c`` spare channels; ``unroll_c``; ``pack`` as in
    ``direct``, or "none": read in place
    """
    width, along = shape.vector_lanes, lanes == "pixels"
    pixel_view(s, shape, along, stage_x, pack != "none")
    out = out_stage(s, "y")
    if pack != "none":
        pack_ahead(s, pack, shape)
    pixels = s.fuse(f"{out}.p", f"{out}.q", name="pixel")
    ib, i = s.split(pixels, [None, block], tail="shift" if along else "guard")
    if along:
        ip, ih, il = s.split(i, [None, PANEL // width, width])
        kb, kp, k = s.split(f"{out}.k", [None, panels, PANEL])
        inner, k1 = s.split(k, [None, tile], tail="balanced")
        s.reorder(f"{out}.n", ib, kb, *((kp, ip) if pack == "block" else (ip, kp)), inner, k1, ih, il)
    else:
        inner, i1 = s.split(i, [None, tile], tail="balanced")
        kb, kp, kh, kl = s.split(f"{out}.k", [None, panels, PANEL // width, width])
        s.reorder(f"{out}.n", ib, kb, kp, inner, i1, kh, kl)
    s.bind(f"{out}.n", "block.z").bind(ib, "block.x" if along else "block.y").bind(
        kb, "block.y" if along else "block.x"
    )
    if stage_x and not along:  # before tiles of two sizes are cut: a block takes no more pixels than its own
        s.compute_at("y", kb)
        even = shape.stride == 1 and shape.p * shape.q % block == 0
        strip(s, "x_packed", kb, shape, "i", block, (0, block), pad_c, even)
    s.compute_at("y", inner)
    if pack == "block":
        pack_at(s, kp, shape)
    rows, vectors = ("k", "i") if along else ("i", "k")
    sums_in_registers(s, "y", ["n", "c"], [rows], vectors, width)
    if along:
        s.unroll(k1).unroll(ih).vectorize(il)
    else:
        s.unroll(kh)
        write_tile(s, i1, kh, kl, shape, block, tile)
    if stage_x and along:
        s.set_scope("x_packed", "shared")
        s.compute_at("x_packed", kb)
        s.vectorize(s.split("x_packed.i", [None, width])[1])
    return unroll_by(fetch_next(s, fetch, kp), "y.c", unroll_c)


def pixel_space(shape: Conv) -> Space:
    """Blocks of pixels and panels, and register tiles, that are worth a try."""
    pixels, c, nchw, strided, size = shape.p * shape.q, shape.c, shape.nchw, shape.stride > 1, shape.sum_bytes
    wide = [v for v in (16, 32, 48, 64, 96) if v < pixels + PANEL] if nchw else []
    rows = sorted({-(-pixels // d) for d in (1, 2, 4, 7, 8, 14, 16, 28, 32, 56)})
    panels = -(-shape.k // PANEL)
    knobs: dict[str, list[Any]] = dict(
        lanes=["pixels", "channels"] if nchw else ["channels"],
        block=sorted({*wide, *rows}),
        panels=counts(panels, panels),
        tile=tile_sizes(shape, PANEL)[:3] if most_pixels(shape) <= 6 else [*tile_sizes(shape, 2 * PANEL), PANEL],
        stage_x=[1] if strided else [1, 0],
        pad_c=[0, 16] if c % 64 == 0 else [0],
        unroll_c=UNROLLS,
        pack=packs(shape) if not nchw or shape.prepack else ["none", *packs(shape)],
        fetch=_fetches(shape),
    )

    def cost(v: Config) -> float:
        cycles: float
        channels, block, tile = v["panels"] * PANEL, v["block"], v["tile"]
        if v["lanes"] == "pixels":
            none = v["pack"] == "none"
            sets = panel_step(shape, 4 * c if none else 0, v["unroll_c"], c)
            cycles = -(-block // PANEL) * v["panels"] * in_balanced_tiles(PANEL, tile, sets) * c
            cycles += v["stage_x"] * block * c * (GATHERED if strided else COPIED) + block * channels * WRITTEN
            cycles += channels * c * (4 / 40 + (0.0 if none else packing(shape, v["pack"])))
        else:
            step = panel_step(shape, 4 * (c + v["pad_c"]), v["unroll_c"], c)
            cycles = v["panels"] * in_balanced_tiles(block, tile, step) * c
            cycles += channels * c * (4 / 32 + packing(shape, v["pack"]))
            if nchw or strided:
                cycles += block * c * staged(shape)
            elif block * c > 65536:  # the pixels come from the second level for each panel
                cycles += v["panels"] * block * c / 10
            cycles += block * channels * written(shape)
        blocks = shape.n * -(-pixels // block) * -(-panels // v["panels"])
        return shared(priced(BLOCK + cycles, blocks)) + packed_ahead(shape, v["pack"])

    return space_of(
        knobs,
        {
            "pack": lambda v: v["pack"] != "none" or v["lanes"] == "pixels",
            "fetch": fetchable,
            "stage_x": lambda v: v["lanes"] == "pixels" or v["stage_x"] == int(nchw or strided),
            "pad_c": lambda v: not v["pad_c"] or (v["stage_x"] and v["lanes"] == "channels"),
            "block": lambda v: v["block"] in (wide if v["lanes"] == "pixels" else rows),
            "fits": lambda v: not v["stage_x"] or size * v["block"] * (c + v["pad_c"]) <= BLOCK_BYTES,
            "room": lambda v: (
                v["stage_x"] * size * v["block"] * (c + v["pad_c"]) + packed_bytes(shape, PANEL, v["pack"])
                <= room(shape)
            ),
        },
        cost,
        ("unroll_c", "fetch"),
    )
