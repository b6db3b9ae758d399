"""1x1 convolution on CPUs: a matrix product over all pixels that the stride keeps, rows joined.

Output channels in the lanes, weights in panels of 16; or, where an image's pixels are contiguous (NCHW), pixels
in the lanes, read in place or as a panel in block memory, and one weight after another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorir.ops.common import Config, out_stage, unroll_by
from tensorir.ops.images import (
    UNROLLS,
    fetch_next,
    fetchable,
    fetches,
    pack_ahead,
    pack_at,
    packing,
    packs,
    strip,
    sums_in_registers,
    write_tile,
)
from tensorir.ops.model import (
    BLOCK_BYTES,
    PANEL,
    counts,
    in_balanced_tiles,
    most_pixels,
    panel_step,
    priced,
    space_of,
    tile_sizes,
)
from tensorir.ops.problems import Conv
from tensorir.ops.views import sums_axes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.tune.space import Space


def view(s: Schedule, shape: Conv, along: bool, stage_x: int, packed: bool) -> None:
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
    s: Schedule, shape: Conv, *, lanes: str, block: int, panels: int, tile: int, stage_x: int, pad_c: int,
    unroll_c: int, pack: str, fetch: int,
) -> Schedule:  # fmt: skip
    """What the ``lanes`` hold; ``block`` pixels and ``panels`` of 16 channels of a block; ``tile``: the register tile's
    other side; ``stage_x`` pixels in block memory, each with ``pad_c`` spare channels; ``unroll_c``; ``pack`` as in
    ``direct``, or "none": read in place
    """
    width, along = shape.vector_lanes, lanes == "pixels"
    view(s, shape, along, stage_x, pack != "none")
    out = out_stage(s, "y")
    if pack != "none":
        pack_ahead(s, pack, width)
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
        pack_at(s, kp, width)
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


def space(shape: Conv) -> Space:
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
        fetch=fetches(shape, 1),
    )

    def cost(v: Config) -> float:
        cycles: float
        channels, block, tile = v["panels"] * PANEL, v["block"], v["tile"]
        if v["lanes"] == "pixels":
            none = v["pack"] == "none"
            sets = panel_step(shape, 4 * c if none else 0)
            cycles = -(-block // PANEL) * v["panels"] * in_balanced_tiles(PANEL, tile, sets) * c
            cycles += 400.0  # to start a block
            cycles += v["stage_x"] * block * c * (1.2 if strided else 0.3) + block * channels * 0.15
            cycles += channels * c * (4 / 40 + (0.0 if none else 4 * packing(shape)))
        else:
            cycles = v["panels"] * in_balanced_tiles(block, tile, panel_step(shape, 4 * (c + v["pad_c"]))) * c
            cycles += channels * c * (4 / 32 + 4 * packing(shape))
            if nchw or strided:
                cycles += block * c * (1.4 if nchw else 0.2)
            elif block * c > 65536:  # the pixels come from the second level for each panel
                cycles += v["panels"] * block * c / 10
            cycles += block * channels * (0.5 if nchw else 0.15)
        return priced(cycles, shape.n * -(-pixels // block) * -(-panels // v["panels"]))

    return space_of(
        knobs,
        {
            "pack": lambda v: v["pack"] != "none" or v["lanes"] == "pixels",
            "fetch": fetchable,
            "stage_x": lambda v: v["lanes"] == "pixels" or v["stage_x"] == int(nchw or strided),
            "pad_c": lambda v: not v["pad_c"] or (v["stage_x"] and v["lanes"] == "channels"),
            "block": lambda v: v["block"] in (wide if v["lanes"] == "pixels" else rows),
            "fits": lambda v: not v["stage_x"] or size * v["block"] * (c + v["pad_c"]) <= BLOCK_BYTES,
        },
        cost,
        ("unroll_c", "fetch"),
    )
