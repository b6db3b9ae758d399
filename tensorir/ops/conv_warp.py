"""conv2d in threads, by warp tiles (CUDA): a product of filters with the pixels under their taps, which are never
stored as a matrix (implicit GEMM; Chetlur et al., "cuDNN", arXiv 1410.0759). A block copies those of its tile to shared
memory from where they are stored.

The reduction goes tap by tap and through all channels under each: a step of ``bk`` terms stays under one tap, whose
place is then the same for all threads, and channels are made up to whole steps. Fewer channels than a step has, those
of a picture, follow each other without a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tensorir.engines.gemm_blocks import Operand
from tensorir.engines.gemm_gpu import DTYPES, WarpTile
from tensorir.engines.problems import Conv, Gemm
from tensorir.engines.tiles import Config, Knob, Knobs, Rule
from tensorir.ops.conv_products import ProductTile
from tensorir.ops.views import image_of, sums_axes
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target

LANES, PACKED = 32, 256
"""Filters that a block turns, and its threads, each of which takes one channel of one."""
LEAST = 16
"""Rows, and columns, of the smallest tile of a warp; channels of a group must be whole tiles."""
TILE = ("li", "ri", "rj", "wi", "wj", "bk")
TILES = ((8, 8, 8, 2, 4, 8), (8, 8, 8, 1, 4, 8), (4, 8, 8, 4, 1, 8), (4, 8, 16, 4, 2, 8), (8, 4, 8, 1, 4, 8),
         (4, 4, 8, 1, 4, 16), (8, 4, 4, 2, 2, 16), (4, 4, 4, 1, 2, 16),
         (8, 4, 4, 2, 1, 16))  # fmt: skip
"""Tiles to start with: the first whose expected time is NEAR the least."""
NEAR = 1.15


def as_product(s: Schedule, shape: Conv, bk: int, packed: int) -> None:
    """Walk the sums as a product; k counts terms, i and j channels of the result and pixels, the latter of which are
    side by side in NCHW.

    z, the group, is in front of all where there are several: filters w_packed (k, channel), of 1x1 filters
    (channel, k), what is under the taps of a pixel (k, pixel), for NHWC (pixel, k), and sums (i, j)
    """
    nchw, grouped, image = shape.nchw, shape.groups > 1, image_of(shape)
    (channel, pixel), lead = "ij" if nchw else "ji", "z, " if grouped else ""
    columns = f"{lead}k, {pixel}" if nchw else f"{lead}{pixel}, k"
    taps = f"{lead}k, {channel}" if is_packed(shape, packed) else f"{lead}{channel}, k"
    step = {"c": bk if shape.cg > bk else 1}
    axes = f"{sums_axes(shape)} -> {_rows_and_columns(shape, '(n, p, q)')}, k = (r, s, c)"
    s.reindex("y", axes, step, {image: columns, "w": taps}, writes=f"{lead}i, j")


def _rows_and_columns(shape: Conv, pixel: str) -> str:
    """The axes of the product's result, made of channels and of ``pixel``."""
    kg, grouped, nchw = shape.kg, shape.groups > 1, shape.nchw
    channel = f"k%{kg}" if grouped else "k"
    i, j = (channel, pixel) if nchw else (pixel, channel)
    return f"{f'z = k/{kg}, ' if grouped else ''}i = {i}, j = {j}"


def is_packed(shape: Conv, packed: int) -> bool:
    """Whether a kernel of its own turns the filters: in KCRS channels under a tap are as far apart as it has taps."""
    return bool(packed and _apart(shape))


def _apart(shape: Conv) -> bool:
    """Whether channels under a tap are not contiguous."""
    return bool(shape.nchw and shape.taps > 1)


def _channels(shape: Conv, bk: int) -> int:
    """Channels under a tap, made up to whole steps of ``bk``; one tap follows the other."""
    return shape.cg if shape.cg < bk else -(-shape.cg // bk) * bk


def product(shape: Conv, bk: int, packed: int = 0) -> Gemm:
    """The product as one matmul is described."""
    kg, many, nchw = shape.kg, shape.n * shape.p * shape.q, shape.nchw
    m, n = (kg, many) if nchw else (many, kg)
    return Gemm(m=m, n=n, k=_channels(shape, bk) * shape.taps, batch=shape.groups, ta=is_packed(shape, packed),
                tb=not nchw, dtype=shape.dtype)  # fmt: skip


class FilterPixelTile(ProductTile):
    """Products of filters with the pixels under their taps; ``bk`` says what channels are made up to.

    packed: filters are turned by a kernel of their own
    """

    packed, bk = Knob(0, 1), WarpTile.bk
    earlier: ClassVar[Config] = {"atomic": 0, "rest": 0, "packed": 0}

    @classmethod
    def needs(cls, p: Conv) -> str | None:
        return "sm_70" if p.dtype in DTYPES and (p.groups == 1 or p.kg % LEAST == 0) else None

    @classmethod
    def engine(cls, p: Conv) -> type[WarpTile]:
        return WarpTile

    @property
    def product(self) -> Gemm:
        return product(self.p, self.bk)

    def schedule(self, s: Schedule) -> Schedule:
        shape, columns, packed = self.p, f"{image_of(self.p)}_packed", is_packed(self.p, self.packed)
        as_product(s, shape, self.bk, self.packed)
        tile = WarpTile(self.config, product(shape, self.bk, self.packed), s.target)
        lead, taps, pixels = "z, " if shape.groups > 1 else "", *_neighbours(shape, self.packed)
        first = Operand("w_packed", lead, taps, inlined=not packed)
        second = Operand(columns, lead, pixels, inlined=True)
        given = {"a": first, "b": second} if shape.nchw else {"a": second, "b": first}
        tile.product(s, tile.sums(s, "y", lambda out: _as_matrix(s, out, shape)), given)
        if packed:
            _pack(s, shape, self.bk)
        return s.compute_inline("x_pad") if shape.pad else s

    rules: ClassVar[Mapping[str, Rule]] = {
        "groups": lambda t: t.p.groups == 1 or t.p.kg % (t.inner.high if t.p.nchw else t.inner.wide) == 0,
        "turned": lambda t: not t.packed or packed_bytes(t.p, t.bk) <= t.target.shared_optin_bytes,
    }

    @classmethod
    def knobs(cls, p: Conv, target: Target) -> Knobs:
        own = {"atomic": [0], "rest": [0], "packed": [0, 1] if _apart(p) else [0]}  # results are no rows of sums
        return {**WarpTile.knobs(product(p, 8), target), **own}

    @classmethod
    def start(cls, p: Conv, target: Target) -> Config | None:
        """One kernel: a second one, which turns filters or adds up parts, is the search's to find."""
        packed, where, expected = int(_apart(p) and p.prepack), cls.where(p, target), cls.expected(p, target)
        usual = {**WarpTile.start(product(p, 8), target), "splits": 1, "packed": packed}
        tried = [*({**usual, **dict(zip(TILE, tile, strict=True)), "raster": 1} for tile in TILES), usual]
        tried += [{**c, "packed": 0} for c in tried if packed and not where["turned"](c)]
        legal = [c for c in tried if all(test(c) for test in where.values())]
        times = [expected(c) if expected else 0.0 for c in legal]
        return next((c for c, time in zip(legal, times, strict=True) if time <= NEAR * min(times)), None)


def _as_matrix(s: Schedule, out: str, shape: Conv) -> None:
    """Walk a result by the rows and columns of the product: the pixels of an image first, which are contiguous."""
    s.reindex(out, "p, q -> p = (p, q)")
    s.reindex(out, f"n, k, p -> {_rows_and_columns(shape, '(n, p)')}")


def _neighbours(shape: Conv, packed: int) -> tuple[int, int]:
    """How many taps, and pixels under them, are contiguous in a row of the product's operands."""
    plain = shape.r * shape.s == shape.stride == 1 and not shape.pad
    pixels = (shape.p * shape.q if plain else 1) if shape.nchw else shape.cg
    return shape.kg if is_packed(shape, packed) else 1 if _apart(shape) else shape.cg, pixels


def _pack(s: Schedule, shape: Conv, bk: int) -> None:
    """The filters by a kernel of their own, once where they are constants; a block turns those that it reads in shared
    memory.
    """
    z = ["w_packed.z"] if shape.groups > 1 else []
    taps, c = s.split("w_packed.k", [None, _channels(shape, bk)])
    cb, cl = s.split(c, [None, PACKED // LANES])
    ib, il = s.split("w_packed.i", [None, LANES])
    s.reorder(*z, ib, cb, cl, il, taps)
    block = s.fuse(*z, ib, cb, name="filters")
    s.bind(block, "block.x").bind(cl, "thread.y").bind(il, "thread.x")
    s.stage_in("w", at=block, scope="shared", layout="k, c, r, s -> c, r, s, k", pad=1)
    if shape.prepack:
        s.run_once("w_packed")


def packed_bytes(shape: Conv, bk: int) -> int:
    """Shared memory in which ``_pack`` turns filters: the channels of a step under all taps, or all channels where
    steps end at others than whole taps.
    """
    step, depth, r, s = PACKED // LANES, _channels(shape, bk), shape.r, shape.s
    last = (r * s - 1) * depth + -(-depth // step) * step - 1
    cells = step * r * s if depth % step == 0 else (last // (depth * s) + 1) * s * depth
    return int(shape.element_bytes * (LANES + 1) * cells)
