"""Common code of convolutions on CPUs: a block's image and weights, register tiles, and knobs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorir.engines.blocks import extent_of
from tensorir.engines.model import LAUNCH, PANEL, channel_lanes, shared
from tensorir.engines.packing import SIDE, turned
from tensorir.engines.problems import Conv
from tensorir.engines.steps import divisor_near
from tensorir.engines.tiles import Config
from tensorir.ir.words import SIDES
from tensorir.ops.views import image_stage, reorder_image
from tensorir.schedule.analysis import packed_names

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule

MOST_CUTS = 4
"""Parts of the loop over such groups of pixels; of more, channels are gathered one by one."""
UNROLLS = [4, 1, 2, 8]
"""Input channels that are written out in a row: the knob ``unroll_c``."""
TAPS = 288
"""Taps of an output channel that are turned before they are put in their places: of 16 channels they stay in the
first-level cache.
"""
NEAR_BYTES = 512 * 1024
"""Weights of this size stay in the second-level cache next to everything else."""


PACKED = 0.6
"""Cycles of an element of weights that is packed."""
TURNED, COPIED = 0.65, 0.2
"""Cycles of an element of the image that is kept channel-last, where pixels are contiguous and where channels are."""
GATHERED = 1.2
"""Cycles of an element of the image where a stride keeps pixels apart that are put side by side."""
SCATTERED, WRITTEN = 0.9, 0.3
"""Cycles of an element of the result that is written along pixels, and along channels as registers have it."""


# --- images


def channels_last(s: BaseSchedule, shape: Conv) -> str:
    """Keep what the taps read as (n, h, w, c), in the type of the sums; returns its stage."""
    stage = image_stage(s, shape)
    reorder_image(s, stage, shape, {v: v for v in "nhwc"})
    return stage


def strip(s: BaseSchedule, stage: str, at: str, shape: Conv, pixels: str, extent: int,
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
        group, several = turned(s, stage, at, pixels, "c", lanes)
        if pixels == "w":  # rows of one channel follow each other in memory
            s.reorder(several, f"{group.removesuffix('.w.0')}.h", group)
        cut(s, group, cuts)
        return
    several, lane = s.split(f"{stage}.c", [None, lanes])
    s.vectorize(lane)
    if shape.nchw:
        s.reorder(several, f"{stage}.{pixels}")  # a few cache lines at a time, each until nothing of it is left
    cut(s, f"{stage}.{pixels}", [x for x in image if 0 < x < extent])


def _cuts(extent: int, image: Sequence[int]) -> list[int]:
    """Cuts of the loop over groups of pixels: each that reaches beyond the image is a part of its own, since what
    its lanes read has to be known one by one.
    """
    starts = [min(x, extent - SIDE) for x in range(0, extent, SIDE)]
    inner = [image[0] <= x and x + SIDE <= image[1] for x in starts]
    return [t for t in range(1, len(starts)) if not (inner[t] and inner[t - 1])]


def staged(shape: Conv) -> float:
    """Cycles of an element of the image that a block keeps channel-last."""
    return TURNED if shape.nchw else COPIED


def written(shape: Conv) -> float:
    """Cycles of an element of the result."""
    return SCATTERED if shape.nchw else WRITTEN


# --- weights


def pack_ahead(s: BaseSchedule, pack: str, shape: Conv) -> None:
    """The panels of weights ``w_packed`` in a kernel of their own, perhaps run once, unless a block packs its own."""
    if pack != "block":
        _weights(s, shape, "root")
    if pack == "once":
        s.run_once("w_packed")


def pack_at(s: BaseSchedule, panel: str, shape: Conv) -> None:
    """The panel of weights that one iteration of ``panel`` uses, in block memory."""
    _weights(s, shape, panel)


def _weights(s: BaseSchedule, shape: Conv, at: str) -> None:
    """Panels of weights in vectors of output channels, which are turned from rows of the filter where these are long
    enough: of channels, or of channels and taps in the order in which they are stored.
    """
    loops = [str(loop) for loop in s.loops("w_packed")]
    lead, *_, last = own = [x.removeprefix("w_packed.") for x in loops]
    lanes = next((n for n in SIDES if shape.kg % n == 0), 0) if shape.groups > 1 else SIDE
    channels = shape.cg >= SIDE and (not shape.nchw or shape.taps == 1)
    able = shape.dtype == "float32" and lanes > 0 and shape.cg * shape.taps >= SIDE
    rows = packed_names(["w"], s.index.names())[0] if able and not channels else ""
    if rows:
        flat, axes = "c, r, s" if shape.nchw else "r, s, c", ", ".join(own)
        s.reindex("w_packed", f"{axes} -> {axes}", reads={"w": f"{lead}, t = ({flat}), {last}"})
    if at != "root":
        s.set_scope("w_packed", "shared").compute_at("w_packed", at)
    if able and channels:
        group, _ = turned(s, "w_packed", at, "c", last, lanes, (-(-shape.cg // SIDE), 1))
        if at == "root":
            s.bind(f"{group.rpartition('.c')[0]}.{lead}", "block.x")
        return
    blocks = [(loops[0], "block.x")]
    if rows:
        size = divisor_near(shape.cg, max(SIDE, TAPS // shape.taps)) if shape.nchw else shape.cg
        block, c = s.split("w_packed.c", [None, size])
        s.reorder(loops[0], block, "w_packed.r", "w_packed.s", c, loops[-1])
        s.set_scope(rows, "shared").compute_at(rows, block)
        turned(s, rows, block, "t", last, lanes, (-(-size * shape.taps // SIDE), 1))
        blocks = [(loops[0], "block.y"), (block, "block.x")]  # blocks one after another continue the same rows
    most = min(shape.vector_lanes, PANEL, extent_of(s, loops[-1]))  # wider vectors would make the array wider
    vectorized(s, loops[-1], 1 << (most.bit_length() - 1), "guard" if last == "ki" else "shift")
    for loop, axis in blocks if at == "root" else []:
        s.bind(loop, axis)


def packed_bytes(shape: Conv, channels: int, pack: str) -> int:
    """Block memory of so many channels of weights that a block packs, and of the rows of a panel that it turns."""
    if pack != "block":
        return 0
    chunk = divisor_near(shape.cg, max(SIDE, TAPS // shape.taps)) if shape.nchw else shape.cg
    turned_rows = 0 if shape.dtype != "float32" or ((shape.taps == 1 or not shape.nchw) and shape.cg >= SIDE) else chunk
    return (channels * shape.cg * shape.sum_bytes + PANEL * turned_rows * 4) * shape.taps


def fetch_next(s: BaseSchedule, fetch: int, panel: str) -> BaseSchedule:
    """Ask for the weights of the next ``panel`` while one is used, if they are to be fetched."""
    return s.prefetch("w_packed", at="y.c", ahead=panel) if fetch else s


def packs(shape: Conv) -> list[str]:
    """Ways to pack weights, the default first: without further wishes a convolution is one kernel."""
    return ["once"] if shape.prepack else ["block", "kernel"]


def packing(shape: Conv, pack: str = "block") -> float:
    """Cycles an element that a block spends on packing weights."""
    return PACKED if pack == "block" and not shape.prepack else 0.0


def packed_ahead(shape: Conv, pack: str) -> float:
    """Cycles of the kernel that packs weights in each call, if there is one."""
    return LAUNCH + shared(PACKED * shape.k * shape.cg * shape.taps) if pack == "kernel" else 0.0


def fetches(shape: Conv, taps: int) -> list[int]:
    """True when to ask for weights ahead of time: first what suits how far away they are."""
    return [1, 0] if taps * shape.c * shape.k * shape.sum_bytes >= NEAR_BYTES else [0, 1]


def fetchable(v: Config) -> bool:
    """True when there are panels ahead of time, if they are to be fetched."""
    return not v["fetch"] or v["pack"] in ("once", "kernel")


# --- register tiles


def vectorized(s: BaseSchedule, loop: str, lanes: int, tail: str = "shift") -> None:
    """A loop in vectors, the last of which is moved back where they do not divide it, or with another ``tail``."""
    lane = s.split(loop, [None, lanes], tail=tail)[1]
    if lanes > 1:
        s.vectorize(lane)


def cut(s: BaseSchedule, loop: str, points: Sequence[int]) -> None:
    """A loop in parts that begin at ``points``, if there are any."""
    if points:
        s.partition(loop, list(points))


def sums_in_registers(s: BaseSchedule, stage: str, outer: Sequence[str], tile: Sequence[str], vector: str, width: int
                      ) -> None:  # fmt: skip
    """A register tile of ``stage``, innermost and written out: rows of ``tile``, each of whole vectors."""
    half, lanes = s.split(f"{stage}.{vector}", [None, width])
    loops = [f"{stage}.{v}" if isinstance(v, str) else v for v in tile]
    s.reorder(*(f"{stage}.{v}" if isinstance(v, str) else v for v in outer), *loops, half, lanes)
    for loop in (*loops, half):
        s.unroll(loop)
    if width > 1:
        s.vectorize(lanes)


def write_tile(s: BaseSchedule, pixel: str, half: str, lanes: str, shape: Conv, extent: int, most: int) -> None:
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
    """True when a result's register tiles of so many pixels of a row are written along the pixels."""
    return bool(shape.nchw and shape.dtype == "float32" and pixels >= min(SIDES))


def write_channels(s: BaseSchedule, lanes: str, shape: Conv) -> None:
    """The innermost loop over channels of the result: vectors where they are contiguous."""
    if shape.nchw:
        s.unroll(lanes)
    else:
        s.vectorize(lanes)
