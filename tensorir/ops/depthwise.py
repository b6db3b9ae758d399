"""Depthwise convolution on CPUs, and any in groups of NCHW planes: what it computes, its schedules and their space.

One work-item a block, straight from the input: nothing is padded or copied. NHWC: channels in the lanes, all channels
of some pixels innermost, weights packed tap by tap. NCHW: pixels in the lanes, one channel after another, every tap a
vector load at another offset (for stride 2 two loads and a shuffle); several output channels of one group in a tile
share these loads, which is how groups are computed whose channels do not fill a vector. The loops over rows and pixels
are cut where padding comes into reach, so that only the tiles at the borders know of it.

16-bit floats are widened one by one, which takes longer than what is done with them: they are padded and widened once,
into block memory, some rows of the channels of one vector (NHWC) or all rows of one channel (NCHW).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir.engines.model import BLOCK_BYTES, CORES, LAUNCH, PANEL, SPARE, SUMS, priced, seconds_of
from tensorir.engines.problems import Conv, accumulator
from tensorir.engines.steps import divisors_near, out_stage
from tensorir.ops.direct import strip_bytes, strip_columns
from tensorir.ops.images import cut, pack_ahead, pack_at, packs, vectorized
from tensorir.ops.views import image_stage, reorder_image, sums_axes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.tune.legal import Predicate
    from tensorir.tune.space import Space


MOST_TAPS = 25
"""Taps that are written out; larger filters keep a loop over their rows."""
STRIP_BYTES = 64 * 1024
"""Of widened input that a block starts with: it is read once for each tap."""
MOST_CUTS = 6
"""Parts that a loop over tiles is cut into; a border of more tiles keeps its conditions."""


def applies(shape: Conv) -> bool:
    """Whether a convolution is depthwise: a group for each channel, and one output channel or several in each; what is
    staged has to fit, in NCHW as a plane.
    """
    if shape.groups != shape.c or shape.c == 1 < shape.k:
        return False
    least = strip_bytes(shape, *((1, PANEL) if not shape.nchw else (shape.p, 1)))
    return least <= BLOCK_BYTES or not staged(shape.dtype)


def takes_groups(shape: Conv) -> bool:
    """Whether groups of several channels can be treated alike: in planes, by weights that need not be widened."""
    return bool(shape.nchw and not staged(shape.dtype))


def staged(dtype: str) -> bool:
    """Whether images of this type are padded and widened in block memory first."""
    return accumulator(dtype) == "float32"


def view(s: Schedule, shape: Conv) -> str:
    """Walk the sums in the order of the result, where groups have one channel without an axis of it; in NHWC of
    weights w_packed (r, s, k), in the type of the sums.
    """
    wide, nchw, alone = shape.wide, shape.nchw, shape.c == shape.groups
    if nchw:
        axes = f"n, k, p, q, {'r = (c, r)' if alone else 'c, r'}, s"
        s.reindex("y", f"{sums_axes(shape)} -> {axes}", writes="n, k, p, q")
    else:
        axes = "n, p, q, k, r, s = (s, c)"
        s.reindex("y", f"{sums_axes(shape)} -> {axes}", reads={"w": "r, s, k"}, dtype=wide, writes="n, p, q, k")
    if staged(shape.dtype):
        image = image_stage(s, shape)
        reorder_image(s, image, shape, {v: v for v in ("nchw" if nchw else "nhwc")})
        return image
    if shape.pad:
        s.compute_inline("x_pad")
    return ""


def cpu_depthwise(
    s: Schedule, shape: Conv, *, tile_rows: int, tile: int, lanes: int, channels: int, pack: str, tile_k: int = 1,
    rows: int = 0,
) -> Schedule:  # fmt: skip
    """``tile_rows`` and, in NHWC, ``tile`` pixels of the register tile; ``lanes``; ``channels`` of a block; 16-bit
    NHWC: ``rows`` of a block; NCHW with several outputs a group: ``tile_k`` of them in the register tile;
    NHWC: where weights are packed (``pack``): "once", ahead; "kernel", one of its own; "block", by each block
    """
    image = view(s, shape)
    if shape.nchw:
        return _pixel_lanes(s, shape, image, tile_rows, lanes, channels, tile_k)
    pack_ahead(s, pack, lanes, "w_packed.r", "w_packed.k")
    out = out_stage(s, "y")
    k, kl = s.split(f"{out}.k", [None, lanes], tail="shift")
    kb, k0 = s.split(k, [None, -(-channels // lanes)])
    pb, p = s.split(f"{out}.p", [None, rows]) if image else ("", f"{out}.p")
    p0, p1 = s.split(p, [None, tile_rows], tail="balanced")
    q0, q1 = s.split(f"{out}.q", [None, tile], tail="balanced")
    s.reorder(f"{out}.n", *((pb, kb, k0, p0, q0) if image else (p0, kb, q0, k0)), p1, q1, kl)
    s.compute_at("y", q0 if image else k0)
    if pack == "block":
        pack_at(s, kb, lanes, "w_packed.k")
    y, yl = s.split("y.k", [None, lanes], tail="shift")
    s.reorder("y.n", "y.r", "y.s", "y.p", "y.q", y, yl)
    _written_out(s, shape, ["y.p", "y.q", p1, q1], [yl, kl] if lanes > 1 else [])
    if image:
        _stage(s, image, k0, shape)
        vectorized(s, f"{image}.c", lanes)
    else:
        cut(s, p0, _borders(shape.p, tile_rows, shape, "p"))
        cut(s, q0, _borders(shape.q, tile, shape, "q"))
    s.bind(f"{out}.n", "block.z").bind(pb or p0, "block.y").bind(kb, "block.x")
    return s


def _pixel_lanes(s: Schedule, shape: Conv, image: str, tile_rows: int, lanes: int, channels: int, tile_k: int
                 ) -> Schedule:  # fmt: skip
    out, several = out_stage(s, "y"), shape.k > shape.groups
    kb, k0 = s.split(f"{out}.k", [None, channels])
    outer, tile = [k0], list[Any]()
    if several:
        k0, k = s.split(k0, [None, shape.kg])
        groups, *tile = s.split(k, [None, tile_k])
        outer = [k0, groups]
    p0, p1 = s.split(f"{out}.p", [None, tile_rows], tail="balanced")
    q0, q1 = s.split(f"{out}.q", [None, lanes], tail="shift")
    s.reorder(f"{out}.n", kb, *outer, p0, q0, *tile, p1, q1)
    s.compute_at("y", q0)
    y, yl = s.split("y.q", [None, lanes])
    if several or shape.cg > 1:
        s.reorder("y.n", *(["y.c"] if shape.cg > 1 else []), "y.r", "y.s", "y.p", "y.k", y, yl)
        tile = ["y.k", *tile]
    else:
        s.reorder("y.n", "y.k", "y.r", "y.s", "y.p", y, yl)
    _written_out(s, shape, [*tile, "y.p", p1], [yl, q1] if lanes > 1 else [])
    if image:
        _stage(s, image, k0, shape)
    else:
        cut(s, p0, _borders(shape.p, tile_rows, shape, "p"))
        cut(s, q0, _borders(shape.q, lanes, shape, "q", lanes=True))
    return s.bind(f"{out}.n", "block.z").bind(kb, "block.x")


def _written_out(s: Schedule, shape: Conv, loops: Sequence[Any], vectors: Sequence[Any]) -> None:
    """The register tile, and the filter as far as that stays short."""
    for loop in ("y.s", *(["y.r"] if shape.taps <= MOST_TAPS else []), *loops):
        s.unroll(loop)
    for loop in vectors:
        s.vectorize(loop)


def _stage(s: Schedule, image: str, at: Any, shape: Conv) -> None:
    """The padded image in block memory, made in each iteration of ``at``; its rows know where padding begins."""
    s.set_scope(image, "shared")
    s.compute_at(image, at)
    cut(s, f"{image}.w", [x for x in (shape.pad, shape.pad + shape.w) if 0 < x < strip_columns(shape)])


def _borders(extent: int, tile: int, shape: Conv, axis: str, lanes: bool = False) -> list[int]:
    """Where to cut a loop over tiles of outputs: before the first tile that keeps out of padding, and after the last.

    lanes: tiles are vectors, the last one moved back; near the border each is a part of its own, since what its lanes
    read has to be known one by one
    """
    size, taps = (shape.h, shape.r) if axis == "p" else (shape.w, shape.s)
    pad, stride, tiles = shape.pad, shape.stride, -(-extent // tile)
    first = -(-pad // stride)  # outputs before it read padding, and those after the last
    last = (size - 1 + pad - (taps - 1) * shape.dilation) // stride
    if lanes:
        starts = [min(t * tile, max(extent - tile, 0)) for t in range(tiles)]
        ends = [a + tile for a in starts]
    else:
        least, more = divmod(extent, tiles)
        starts = [t * least + min(t, more) for t in range(tiles)]
        ends = [*starts[1:], extent]
    inner = [a >= first and b - 1 <= last for a, b in zip(starts, ends, strict=True)]
    cuts = [t for t in range(1, tiles) if inner[t] != inner[t - 1] or (lanes and not inner[t])]
    return cuts if len(cuts) <= MOST_CUTS else cuts[:0]


# --- the space -------------------------------------------------------------------------------------------------------


def space(shape: Conv) -> Space:
    """Register tiles, vectors and blocks that are worth a try."""
    nhwc, k, p, q = not shape.nchw, shape.k, shape.p, shape.q
    along, each = k if nhwc else q, k // shape.groups
    widest = max(1, shape.vector_bytes // shape.sum_bytes) if nhwc else 8
    lanes = [v for v in (16, 8, 4, 2, 1) if v <= min(along, widest)][: 3 if widest > 8 else 2]
    knobs: dict[str, list[Any]] = dict(
        tile_rows=[v for v in (1, 2, 3, 4, 5, 6, 7, 8) if v <= p],
        tile=[v for v in (1, 2, 3, 4, 5, 6, 7, 8) if v <= q] if nhwc else [1],
        lanes=lanes,
        channels=_channels(k, shape.n, lanes[0] if nhwc else each),
        pack=packs(shape) if nhwc else packs(shape)[:1],
    )
    if each > 1 and not nhwc:
        knobs["tile_k"] = [v for v in (4, 2, 8, 3, 5, 6, 7, 1) if each % v == 0]
    most = max(1, (shape.registers - SPARE) // shape.product_room)
    where: dict[str, Predicate] = {
        "registers": lambda c: c["tile_rows"] * c["tile"] * c.get("tile_k", 1) <= most,
    }
    if nhwc and staged(shape.dtype):
        knobs["rows"] = divisors_near(p, (1, 2, 4, 8, 16))
        where["rows"] = lambda c: c["tile_rows"] <= c["rows"]
        where["fits"] = lambda c: strip_bytes(shape, c["rows"], c["lanes"]) <= BLOCK_BYTES
    from tensorir.tune.space import Space

    default = _default(knobs, shape, most)
    return Space(where=where, default=default, **knobs).expecting(seconds_of(lambda c: cost(shape, c)))


def cost(shape: Conv, c: Mapping[str, Any]) -> float:
    """Cycles that are expected: tiles by what multiplies, what loads or the chain of a sum's taps, and how they start.

    Inputs of a tile are loaded once for all taps that need them, vectors that are not aligned in two parts.
    """
    tall, lanes, deep, nhwc, taps = c["tile_rows"], c["lanes"], c.get("tile_k", 1), not shape.nchw, shape.taps
    high = (tall - 1) * shape.stride + shape.r
    if nhwc:
        sums, loads = tall * c["tile"], high * ((c["tile"] - 1) * shape.stride + shape.s) + taps
        tiles = -(-shape.q // c["tile"]) * -(-shape.k // lanes)
    else:
        sums, loads = tall * deep, 2 * shape.stride * high * shape.s
        tiles = -(-shape.q // lanes) * shape.k // deep
    vectors = max(1.0, lanes * shape.sum_bytes / shape.vector_bytes)
    each = shape.cg * max(vectors * sums * taps, vectors * loads / 2, 2.0 * taps) + 2.0 * sums + 12.0
    groups = -(-shape.k // c["channels"])
    blocks = shape.n * groups * (-(-shape.p // tall) if nhwc and "rows" not in c else 1)
    cycles = shape.n * tiles * -(-shape.p // tall) * each
    return priced(cycles / blocks + 200.0, blocks) + (LAUNCH * CORES if c["pack"] == "kernel" else 0.0)


def _channels(k: int, n: int, lanes: int) -> list[int]:
    """Channels of a block: all, and equal parts of whole vectors."""
    vectors = -(-k // lanes)
    parts = {-(-vectors // d) for d in (1, 2, 4, 8, 16, 32, 64, 128) if d <= vectors}
    return sorted((v * lanes for v in parts), reverse=True)


def _default(knobs: Mapping[str, list[Any]], shape: Conv, most: int) -> dict[str, Any]:
    """What was good for MobileNet's layers on two cores: small register tiles, and all channels of some rows a block;
    in NCHW 16 blocks or more, an even number where channels allow it.
    """
    c = {name: values[0] for name, values in knobs.items()}
    nhwc = not shape.nchw
    even = [v for v in (4, 3, 2) if shape.p % v == 0]  # without a part for a shorter last tile
    c["tile_rows"] = min(2 if nhwc else [*even, 3][0], knobs["tile_rows"][-1])
    c["tile_rows"] = min(c["tile_rows"], most)
    if "tile_k" in knobs:
        c["tile_k"] = next((v for v in knobs["tile_k"] if v <= most), 1)
        c["tile_rows"] = min(c["tile_rows"], max(1, min(most, SUMS) // c["tile_k"]))
    c["tile"] = min(4 if shape.stride == 1 else 3, knobs["tile"][-1], most // c["tile_rows"])
    tall = c["tile_rows"]
    if "rows" in knobs:
        near = [v for v in knobs["rows"] if v >= tall and strip_bytes(shape, v, c["lanes"]) <= STRIP_BYTES]
        c["rows"] = tall = near[-1] if near else knobs["rows"][0]
        c["tile_rows"] = min(c["tile_rows"], tall)
    bands = shape.n * (-(-shape.p // tall) if nhwc else 1)
    for channels in knobs["channels"]:
        c["channels"] = channels
        blocks = bands * -(-shape.k // channels)
        if blocks >= (4 if nhwc else 16) and (nhwc or blocks % 2 == 0):
            break
    return c
