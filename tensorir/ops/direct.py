"""Direct convolution on CPUs with output channels in the vector lanes: what it computes, and its schedule.

One work-item a block. The input rows of a block are in block memory, zero padded and channel last, weights in panels
of 16 output channels; per step of the reduction a register tile of some pixels by one panel takes the load of the panel
(one vector or two) and one broadcast a pixel.

In groups, panels are of channels of one group: as wide as the configuration says, the last one moved back where they do
not divide it. A block computes whole groups, from their channels of the input alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.ops.common import Config, accumulator, out_stage, sum_bytes, unroll_by, vector_lanes
from tensorir.ops.images import write_tile
from tensorir.ops.model import PANEL
from tensorir.ops.strips import strip
from tensorir.ops.views import channels_last, sums_axes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule

MOST_BODIES = 9
"""Bodies of tiles that run over row ends: with more, the text for three widths of registers is above 100 KB."""


def view(s: Schedule, shape: Mapping[str, Any], flat: bool = False) -> None:
    """Walk the sums by (n, p, q, k), or by (n, i, k) with the pixels of an image joined, in panels of weights
    w_packed (k/16, r, s, c, k%16);  in groups by (n, p, q, g, k), of weights (g, r, s, c, k), where c and k count
    channels of one group.
    """
    wide, kg = accumulator(shape["dtype"]), shape["k"] // shape["groups"]
    if shape["groups"] > 1:
        axes, kept = f"n, p, q, g = k/{kg}, k = k%{kg}, r, s, c", "n, p, q, g, k"
        s.reindex("y", f"{sums_axes(shape)} -> {axes}", reads={"w": "g, r, s, c, k"}, dtype=wide, writes=kept)
        return
    kept = "n, i, k" if flat else "n, p, q, k"
    axes = f"{kept.replace('i', 'i = (p, q)')}, r, s, c"
    panels = {"w": f"ko = k/{PANEL}, r, s, c, ki = k%{PANEL}"}
    s.reindex("y", f"{sums_axes(shape)} -> {axes}", {"k": PANEL}, panels, dtype=wide, writes=kept)


def flat_bodies(pixels: int, q: int, tile: int) -> tuple[int, int]:
    """How many bodies tiles of joined rows of ``q`` pixels have, and their size, where the columns of later tiles are
    those of earlier ones again; the size is 0 where every tile is its own.
    """
    tiles = -(-pixels // tile)
    size, rest = divmod(pixels, tiles)
    bodies = tiles if rest else math.lcm(size, q) // size
    return bodies, size if bodies < tiles else 0


def strip_columns(shape: Mapping[str, Any]) -> int:
    """Columns of the padded image that the convolution reads."""
    return int((shape["q"] - 1) * shape["stride"] + (shape["s"] - 1) * shape["dilation"] + 1)


def strip_bytes(shape: Mapping[str, Any], rows: int, channels: int) -> int:
    """Block memory of so many channels of the padded input of as many rows of the result."""
    high = (rows - 1) * shape["stride"] + (shape["r"] - 1) * shape["dilation"] + 1
    return int(high * strip_columns(shape) * channels * sum_bytes(shape))


def cpu_direct(s: Schedule, c: Config, shape: Mapping[str, Any]) -> Schedule:
    """c: rows and panels of a block; pixels of the register tile (``tile`` columns by ``tile_rows``, or ``tile`` pixels
    that run over row ends when ``flat``); in groups, ``several`` groups of a block and ``panel`` channels of a tile
    instead of panels; ``unroll_c``; ``stage_x`` strip in block memory; ``pad_c`` spare channels of a pixel there;
    ``shift`` the last rows back; where the weights are packed (``pack``): "once", ahead; "kernel", one of its own;
    "block", each panel by the block; ``fetch`` the next panel into the caches while this one is used
    """
    grouped = shape["groups"] > 1
    x = channels_last(s, shape) if c["stage_x"] else ""
    view(s, shape, bool(c["flat"]))
    width = min(vector_lanes(shape), c["panel"]) if grouped else vector_lanes(shape)
    pack_apart(s, c, width, "w_packed.g" if grouped else "w_packed.ko", "w_packed.k" if grouped else "w_packed.ki")
    out = out_stage(s, "y")
    pb, p = s.split(f"{out}.p", [None, c["rows"]], tail="shift" if c["shift"] else "guard")
    if grouped:
        kg, k = s.split(f"{out}.k", [None, shape["k"] // shape["groups"]])
        kb, kg = s.split(kg, [None, c["several"]])
        kp, k = s.split(k, [None, c["panel"]], tail="shift")
        kh, kl = s.split(k, [None, width])
        within = [kb, kg, kp]
    else:
        kb, kp, kh, kl = s.split(f"{out}.k", [None, c["panels"], PANEL // width, width])
        within = [kb, kp]
    if c["flat"]:
        bodies, size = flat_bodies(c["rows"] * shape["q"], shape["q"], c["tile"])
        joined = s.fuse(p, f"{out}.q")
        sizes = ([None, bodies, size], "guard") if size else ([None, c["tile"]], "balanced")
        *again, q0, q1 = s.split(joined, sizes[0], tail=sizes[1])
        inner, pixels = [q1], ["y.i"]
        s.reorder(f"{out}.n", pb, *within, *again, q0, q1, kh, kl)
        # such a tile has its own body, where the rows and columns of its pixels are constants
        s.partition(q0, list(range(1, bodies)))
    else:
        p0, p1 = s.split(p, [None, c["tile_rows"]], tail="balanced")
        q0, q1 = s.split(f"{out}.q", [None, c["tile"]], tail="balanced")
        s.reorder(f"{out}.n", pb, *within, p0, q0, p1, q1, kh, kl)
        inner, pixels = [p1, q1], ["y.p", "y.q"]
    s.bind(f"{out}.n", "block.z").bind(pb, "block.y").bind(kb, "block.x")
    s.compute_at("y", kb)
    if c["stage_x"]:  # before tiles of two sizes are cut: a block takes the rows and columns that its results need
        image = shape["pad"], shape["pad"] + shape["w"]
        taken = {**shape, "c": shape["c"] // shape["groups"] * c["several"]} if grouped else shape
        strip(s, x, kb, taken, "w", strip_columns(shape), image, c["pad_c"])
    elif shape["pad"]:
        s.compute_inline("x_pad")
    s.compute_at("y", q0)
    if c["pack"] == "block":
        pack_at(s, kp, width, "w_packed.k" if grouped else "w_packed.ki")
    kh2, lanes = s.split("y.k", [None, width])
    s.reorder("y.n", "y.r", "y.s", "y.c", *pixels, kh2, lanes)
    for loop in (*pixels, kh2, *inner[:-1], kh):
        s.unroll(loop)
    if width > 1:
        s.vectorize(lanes)
    unroll_by(s, "y.c", c["unroll_c"])
    extent = c["rows"] * shape["q"] if c["flat"] else shape["q"]
    if width > 1:
        write_tile(s, inner[-1], kh, kl, shape, extent, c["tile"])
    else:
        s.unroll(inner[-1])
    fetch_next(s, c, kp)
    return s


def fetch_next(s: Schedule, c: Config, panel: Any) -> None:
    """Ask for the weights of the next ``panel`` while one is used, where the configuration says so."""
    if c.get("fetch"):
        s.prefetch("w_packed", at="y.c", ahead=panel)


def pack_apart(s: Schedule, c: Config, width: int, panels: str = "w_packed.ko", channels: str = "w_packed.ki") -> None:
    """The panels of weights ``w_packed`` in a kernel of their own, perhaps run once, unless a block packs its own."""
    if c["pack"] == "block":
        return
    s.bind(panels, "block.x")
    _in_vectors(s, channels, width)
    if c["pack"] == "once":
        s.run_once("w_packed")


def pack_at(s: Schedule, panel: Any, width: int, channels: str = "w_packed.ki") -> None:
    """The panel of weights that one iteration of ``panel`` uses, in block memory."""
    s.set_scope("w_packed", "shared")
    s.compute_at("w_packed", panel)
    _in_vectors(s, channels, width)


def _in_vectors(s: Schedule, channels: str, width: int) -> None:
    # a panel is whole vectors; the channels of a group need not be, and their last vector is moved back
    whole = channels == "w_packed.ki"
    lanes = s.split(channels, [None, width], tail="guard" if whole else "shift")[1]
    if width > 1:
        s.vectorize(lanes)
