"""What copies that go through images do (TMA, im2col mode): which order corners have, what steps and offsets mean.

The header of the driver says that corners are given as depth, height, width; CUTLASS gives width first, as all other
numbers of a map are. Images, filters and steps here differ along rows and columns, so that the result tells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tensorir.codegen.source import TensorMap

from .probes import SPARE, Made, Probe, loaded, loading, numbered, pictured

Pair = tuple[int, int]


@dataclass(frozen=True)
class Walk:
    """A copy of pixels of an image (n, h, w, c), from ``first`` (n, h, w) and ``channel`` on, all of rows and columns.

    A pixel is followed by that ``steps`` further along w; behind the last column + ``upper`` by the first one that is
    ``lower``, ``steps`` further along h, and so on to the next image. What is read lies ``offset`` from there.
    """

    first: tuple[int, int, int]
    shape: tuple[int, ...] = (3, 7, 9, 64)
    box: Pair = (48, 32)
    lower: Pair = (-1, -2)
    upper: Pair = (-1, 0)
    steps: Pair = (1, 1)
    offset: Pair = (0, 0)
    channel: int = 0
    swizzle: int = 0
    dtype: str = "int32"
    blocks: int = 1

    def tile(self, x: np.ndarray) -> np.ndarray:
        """What comes of an array; pixels beyond it are 0."""
        (n, h, w), (count, channels) = self.first, self.box
        out = np.zeros((count, channels), x.dtype)
        last = [size - 1 + up for size, up in zip(x.shape[1:3], self.upper, strict=True)]
        for pixel in out:
            row, column = h + self.offset[0], w + self.offset[1]
            if 0 <= n < x.shape[0] and 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
                some = x[n, row, column, self.channel : self.channel + channels]
                pixel[: len(some)] = some
            w += self.steps[1]
            if w > last[1]:
                w, h = self.lower[1], h + self.steps[0]
                if h > last[0]:
                    h, n = self.lower[0], n + 1
        return out

    def made(self, **others: Walk) -> Made:
        """others: what would come instead, by the words for it with _ between them"""
        x = numbered(self.shape, self.dtype)
        tile = self.tile(x)
        room = -(-tile.nbytes // 1024) * 1024 + SPARE
        found = {words.replace("_", " "): pictured(other.tile(x), room, self.swizzle, blocks=self.blocks)
                 for words, other in others.items()}  # fmt: skip
        n, h, w = map(str, self.first)
        call, how = "tir_tma_im2col(tile, &x_map, full, {});", "tir_tma_load_pixels"
        count = self.box[0] // self.blocks
        if self.blocks > 1:  # of one row of pixels, each block brings a part
            w += f" + (int)blockIdx.x * {count * self.steps[1]}"
            place = f"tile + blockIdx.x * {tile.nbytes // 4 // self.blocks}"
            call = f"tir_tma_im2col_multicast({place}, &x_map, full, {(1 << self.blocks) - 1}, {{}});"
            how = "tir_tma_multicast_pixels"
        given = (self.channel, w, h, n, *reversed(self.offset))
        text = loading(call.format(", ".join(map(str, given))), how, tile.nbytes, room, self.blocks)
        tiles = TensorMap("x_map", "x", self.dtype, self.shape, (count, self.box[1]), self.swizzle, (1, *self.steps, 1),
                          self.lower, self.upper)  # fmt: skip
        return loaded(text, tiles, x, pictured(tile, room, self.swizzle, blocks=self.blocks), found, room, self.blocks)


def _corners() -> Made:
    walk = Walk((0, 1, 3), lower=(-1, -3), upper=(-2, 1))
    turned = {v: getattr(walk, v)[::-1] for v in ("lower", "upper")}
    return walk.made(
        corners_are_given_rows_first=replace(walk, **turned),
        the_upper_corner_is_not_counted=replace(walk, upper=tuple(n - 1 for n in walk.upper)),
        corners_are_counted_from_the_first_pixel_of_the_copy=replace(walk, lower=walk.first[1:]),
    )


def _steps() -> Made:
    walk = Walk((0, 1, 1), steps=(2, 3), lower=(-1, -2), upper=(0, 0), shape=(3, 9, 11, 64))
    return walk.made(
        steps_are_not_heeded=replace(walk, steps=(1, 1)),
        steps_are_given_rows_first=replace(walk, steps=(3, 2)),
        the_last_column_is_that_of_the_image=replace(walk, upper=(0, -1)),
    )


def _offsets() -> Made:
    walk = Walk((0, -1, -2), offset=(2, 3))
    inside = replace(walk, first=(0, 1, 1), offset=(0, 0))
    return walk.made(
        offsets_are_given_rows_first=replace(walk, offset=(3, 2)),
        offsets_are_not_heeded=replace(walk, offset=(0, 0)),
        offsets_are_where_the_walk_begins=inside,
    )


def _beyond() -> Made:
    """From the last image on, of which a part is left: the rest is 0, and counts as bytes."""
    walk = Walk((2, 4, 3), offset=(1, 2))
    return walk.made(the_last_image_is_gone_through_again=replace(walk, first=(0, 4, 3)))


PIXEL_PROBES = (
    Probe("im2col corners", "corners are given columns first, and bound where pixels begin, before offsets", _corners),
    Probe("im2col steps", "pixels are so many columns apart, and so many rows: columns first", _steps),
    Probe("im2col offsets", "an instruction's offsets are told columns first, and move what is read", _offsets),
    Probe("im2col beyond", "pixels behind the last image come as zeros, and count as bytes", _beyond),
    Probe("im2col 16 bits, swizzled", "64 channels of 16 bits, rows of a tile numbered as those of boxes",
          Walk((0, -1, -2), box=(56, 64), channel=64, shape=(3, 7, 9, 128), swizzle=128, dtype="bfloat16").made),
    Probe("im2col channels", "channels behind the last one are zeros",
          Walk((1, 0, 0), channel=40, offset=(1, 1)).made),
    Probe("im2col large array", "an array of more than 128 KiB, whose map is not mended for old drivers",
          Walk((2, 3, 1), shape=(3, 40, 30, 64), offset=(2, 0), swizzle=128).made),
    Probe("im2col multicast", "two blocks bring half of a row of pixels each, to both",
          Walk((1, 2, -2), box=(16, 32), shape=(2, 5, 24, 32), blocks=2, swizzle=128, offset=(0, 1)).made),
)  # fmt: skip
