"""conv2d, and its image's gradient, by warpgroups (CUDA, sm_90a): implicit GEMM whose operands are tiles of the image
and of the filter.

A tile of the image is a box of pixels by a run of channels, wherever a tap of the filter moves it: tensor copies find
it and fill with zeros what is beyond the image, so that nothing is gathered and padding costs nothing. With a stride
the tile is every stride-th pixel of a box, which one copy brings as if they were neighbours (a tensor map's steps).

Or it is pixels of the results one after another, whatever rows and images they are of, so that none is idle but behind
the last one of all: images of 7x7 or 14x14 pixels fill boxes badly. The pixels under a tap are copied by the im2col
mode of tensor maps, which walks an image, and beyond its border brings zeros; those of a 1x1 filter are rows of a
matrix.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Self

from tensorir.engines.gemm_blocks import multiprocessors
from tensorir.engines.gemm_hopper import REGISTERS, ROW_BYTES, STORED, leave_in_tiles, sums_fit, swizzled_rows
from tensorir.engines.gemm_tensor import instructions, result_kind, store_rows
from tensorir.engines.problems import Conv, result_type
from tensorir.engines.steps import out_stage
from tensorir.engines.tiles import Config, Knob, Knobs, Rule, Tile
from tensorir.intrin.hopper import KINDS, ROWS
from tensorir.intrin.match import MOST_SPAN, MOST_STEP
from tensorir.intrin.pixels import CORNERS, MOST_OFFSET, MOST_PIXEL_STEP
from tensorir.ops.conv_tensor import conv_multiplication, view
from tensorir.ops.views import image_of, sums_axes
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target

WIDTHS = (8, 16, 32, 64)
"""Pixels of a row that a product may have."""
CHANNELS = (64, 128, 256, 192, 96, 32)
"""That a block may compute."""
NO_WIDTH = WIDTHS[0]
"""What ``wide`` is where it says nothing: pixels in one line."""
WORTH = 1.05
"""How much longer boxes must be expected to take for a search to start with pixels in one line."""


class Sums(NamedTuple):
    """The sums of a convolution, or of its image's gradient, as they are declared channels last.

    stage, image, axes: what adds up, what its taps read, and the axes of the former;  pixels, made, summed: which of
    these number pixels, and which channels of the result and of the image
    order: "t" where the filter is stored along the latter, "n" where it is along those of the result
    """

    stage: str
    image: str
    axes: str
    pixels: str
    made: str
    summed: str
    order: str = "t"


def as_rows(s: Schedule, of: Sums, shape: Conv) -> None:
    """Walk sums with all pixels as rows: ([g,] i, k).

    Operands: what each tap reads for each pixel ([g,] r, s, i, c), and w_packed ([g,] r, s, k, c), or with the order
    "n" ([g,] r, s, c, k); k and c count channels of one group.
    """
    group, lead, made = "", "", of.made
    if shape.groups > 1:
        group, lead, made = f"g = {of.made}/{shape.kg}, ", "g, ", f"{of.made}%{shape.kg}"
    axes = f"{of.axes} -> {group}i = ({of.pixels}), k = {made}, r, s, c = {of.summed}"
    reads = {of.image: f"{lead}r, s, i, c", "w": f"{lead}r, s, {'k, c' if of.order == 't' else 'c, k'}"}
    s.reindex(of.stage, axes, reads=reads, writes=f"{lead}i, k")


class PixelTile(Tile[Conv]):
    """A block of ``groups`` warpgroups computes 64 pixels each, ``wide`` of a row, by ``bk`` channels; a step is a tap
    of the filter and 128 bytes of input channels.

    depth: of the ring;  resident: no more blocks than run at once, each of which walks several tiles
    pixels: "box", or "im2col" for all pixels in one line, which has no use for ``wide``
    """

    groups, wide, bk = Knob(2, 1, 3), Knob(*WIDTHS), Knob(*CHANNELS)
    depth, resident, pixels = Knob(4, 3, 5, 6, 2, 8), Knob(1, 0), Knob("box", "im2col")
    earlier: ClassVar[Config] = {"pixels": "box"}

    @property
    def in_line(self) -> bool:
        """Whether pixels are in one line."""
        return self.pixels == "im2col"

    @property
    def high(self) -> int:
        """Rows of the pixels of a warpgroup's box."""
        return ROWS // self.wide

    @property
    def leaves_whole(self) -> bool:
        """Whether results leave in whole tiles: those of 16 bits, which a warp would write in halves of sectors."""
        return self.p.leaves_in_halves and self.bk % 64 == 0

    @property
    def tiles(self) -> int:
        """Tiles of all blocks."""
        p = self.p
        if self.in_line:
            return -(-p.pixels // (self.groups * ROWS)) * p.groups * -(-p.kg // self.bk)
        rows = -(-p.p // (self.groups * ROWS // self.wide))
        return p.n * rows * -(-p.q // self.wide) * -(-p.k // self.bk)

    @property
    def clocks(self) -> int:
        """What all blocks take for 128 bytes of input channels under one tap: rounds of blocks, times the longer of its
        products and its copies.

        A multiprocessor of Hopper does 2048 multiply-adds of 16 bits in a clock, and has 64 bytes from the L2 cache (as
        DeepGEMM reckons, heuristics of sm90): 2 * groups * bk clocks for 64 terms, and twice the rows of 128 bytes.
        """
        rounds = -(-self.tiles // multiprocessors(self.target))
        return 2 * rounds * max(self.groups * self.bk, self.groups * ROWS + self.bk)

    @property
    def operand_bytes(self) -> int:
        return ROW_BYTES * self.depth * (self.groups * ROWS + self.bk) + 4096

    @property
    def result_bytes(self) -> int:
        return 2 * self.groups * ROWS * self.bk if self.leaves_whole else 0

    def sensible(self) -> bool:
        """Whether no block has twice as many channels as there are."""
        return self.bk == 64 or self.bk // 2 < self.p.kg

    def spanned(self) -> bool:
        """Whether a row of a tile is within reach of a copy."""
        return self.wide * self.p.stride <= MOST_SPAN

    def whole(self) -> bool:
        """Whether the channels of a group are whole tiles."""
        return self.p.groups == 1 or self.p.kg % self.bk == 0

    rules: ClassVar[Mapping[str, Rule]] = {
        "shared": Tile.shared,
        "registers": lambda t: sums_fit(t.groups, 1, t.bk),
        "sensible": lambda t: t.sensible(),
        "spanned": lambda t: t.spanned(),
        "whole": lambda t: t.whole(),
        "line": lambda t: not t.in_line or t.wide == NO_WIDTH,
    }

    @classmethod
    def knobs(cls, p: Conv, target: Target) -> Knobs:
        return {**super().knobs(p, target), "pixels": ["box", "im2col"] if gone_through(p) else ["box"]}

    @property
    def of(self) -> Sums:
        """What is summed up."""
        return Sums("y", image_of(self.p), sums_axes(self.p), "n, p, q", "k", "c")

    @classmethod
    def needs(cls, p: Conv) -> str | None:
        return "sm_90a" if takes_warpgroups(p) else None

    def schedule(self, s: Schedule) -> Schedule:
        shape, m, of, own = self.p, instructions(self.p), self.of, ["g"] if self.p.groups > 1 else []
        y, size, rows = of.stage, shape.element_bytes, ""
        if self.in_line:
            as_rows(s, of, shape)
        image = f"{of.image}_packed" if self.in_line else view(s, shape)
        out = out_stage(s, y, "warp")
        if self.in_line and self.leaves_whole:
            rows, out = out, f"{out}.out"
            s.reindex(rows, f"{of.pixels}, {of.made} -> i = ({of.pixels}), k = {of.made}", name="rows", writes="i, k")
        *images, channels = s.loops(out)
        if self.in_line:
            first, wi, *pixels = s.split(s.fuse(*images, name="pixel"), [None, self.groups, ROWS])
            blocks, lead, inner = [first], own, ["i", "k"]
        else:
            pb, wi, p = s.split(images[1], [None, self.groups, self.high])
            qb, q = s.split(images[2], [None, self.wide])
            blocks, pixels, lead, inner = [images[0], pb, qb], [p, q], ["n", *own], ["p", "q", "k"]
        *group, channels = s.split(channels, [None, shape.kg]) if own else [channels]
        kb, k = s.split(channels, [None, self.bk])
        outer = [blocks[0], *group, *blocks[1:], kb]
        tile = s.reorder(*outer, wi, *pixels, k).fuse(*outer, name="tile")
        if self.resident and self.tiles > multiprocessors(self.target):
            _, tile = s.split(tile, [None, multiprocessors(self.target)])
        s.bind(tile, "block.x").bind(wi, "warpgroup")
        instruction = f"m{ROWS}" if self.in_line else f"m{self.high}x{self.wide}"
        if rows:
            leave_in_tiles(s, rows, wi, pixels[0], k, result_type(shape.dtype))
        elif self.leaves_whole:
            s.stage_out(out, at=wi, scope="shared", layout=f"n, p, x, c -> n, {_box(2)}", via="tma")
            store_rows(s, out, pixels, k, f"{instruction}.{result_kind(shape.dtype)}.n")
        s.compute_at(y, wi)
        cb, ci, cc = s.split(f"{y}.c", [None, ROW_BYTES // size // m.k, m.k])
        s.reorder(*(f"{y}.{v}" for v in (*lead, "r", "s")), cb, ci, *(f"{y}.{v}" for v in inner), cc)
        step = s.fuse(f"{y}.r", f"{y}.s", cb, name="step")
        taps, parts = _dims(*own, "u", "v"), _dims("n", *own, *("ab" if shape.stride > 1 else ""))
        of_rows = f"{taps}r, x -> {taps}{swizzled_rows(size)}"
        of_image = of_rows if self.in_line else f"{parts}p, x, c -> {parts}{_box(size)}"
        for name, layout in ((image, of_image), ("w_packed", of_rows)):
            s.stage_in(name, at=step, scope="shared", layout=layout, via="tma")
        order = f"n{of.order}" if self.in_line else "nt"
        s.tensorize(f"{y}.{inner[0]}", f"wgmma.{instruction}n{self.bk}k{m.k}.{m.name}.{order}").unroll(ci)
        for name in (image, "w_packed", of.image):
            if name in s.index.stages:
                s.compute_inline(name)  # where it is copied
        load, compute = REGISTERS[self.groups]
        return s.pipeline(step, self.depth, roles={"load": load, "compute": compute})

    @classmethod
    def start(cls, p: Conv, target: Target) -> Config:
        """Pixels in boxes, or in one line where that is expected to take less, or where there are no boxes."""
        first = cls(dict(groups=2, wide=16, bk=64, depth=4, resident=1, pixels="box"), p, target)
        parts = [n for n in (256, 128, 64) if (c := first.but(bk=n)).whole() and c.sensible()]
        boxes = first.boxes()
        if not gone_through(p) or not parts:
            return boxes.config
        sizes = itertools.product((2, 1), (NO_WIDTH,), parts)
        line = min((boxes.sized(*size).but(pixels="im2col") for size in sizes), key=lambda c: c.expectation)
        return line.config if cls is PanelTile or line.clocks * WORTH <= boxes.clocks else boxes.config

    def boxes(self) -> Self:
        """The boxes to start with."""
        p = self.p
        fitting = [n for n in WIDTHS if self.but(wide=n).spanned()]
        wide = min(fitting, key=lambda n: (self.but(wide=n).wasted, n != 16))
        alone = self.but(groups=1, wide=wide).wasted * 1.2 < self.but(wide=wide).wasted
        if p.stride == 1 and p.groups == 1:
            return self.sized(1 if alone else 2, wide, next((n for n in (256, 128, 64) if p.kg % n == 0), 64))
        # what these rules do not see: few pixels, narrow groups
        parts = [n for n in CHANNELS if (c := self.but(bk=n)).whole() and c.sensible()]
        parts = [n for n in parts if n % 64 == 0] or parts  # results leave in whole tiles
        return min(
            (self.sized(*size) for size in itertools.product((2, 1), fitting, parts)), key=lambda c: c.expectation
        )

    def sized(self, groups: int, wide: int, bk: int) -> Self:
        """The same for blocks of another size, and a ring that suits them."""
        return self.but(groups=groups, wide=wide, bk=bk, depth=3 if bk == 256 else 4)

    @property
    def wasted(self) -> float:
        """Pixels that are computed, of those that there are."""
        high, p, q = self.groups * ROWS // self.wide, self.p.p, self.p.q
        return -(-p // high) * high * -(-q // self.wide) * self.wide / (p * q)

    @property
    def expectation(self) -> tuple[int, int, bool]:
        """What a configuration takes, for comparison with others of the same shape."""
        return self.clocks, -self.bk, self.wide != 16


class PanelTile(PixelTile):
    """An image's gradient, of convolutions with stride 1 in 16 bits, whose filter is stored along the channels of the
    result: whole rows of 128 bytes of these are copied. There are pixels in one line only.
    """

    rules: ClassVar[Mapping[str, Rule]] = {"panels": lambda t: t.bk % STORED == 0, **PixelTile.rules}
    earlier: ClassVar[Config] = {}

    @classmethod
    def needs(cls, p: Conv) -> str | None:
        whole = p.kg % (STORED if p.groups > 1 else 8) == 0 and p.element_bytes == 2 and p.parts == 1
        return super().needs(p) if whole and gone_through(p) else None

    @property
    def of(self) -> Sums:
        return Sums("dx", "dy_spread", "n, h, w, c | k, -r, -s", "n, h, w", "c", "k", "n")

    @classmethod
    def knobs(cls, p: Conv, target: Target) -> Knobs:
        return {**PixelTile.knobs(p, target), "wide": [NO_WIDTH], "pixels": ["im2col"]}


def _dims(*names: str) -> str:
    return "".join(f"{v}, " for v in names)


def _box(size: int) -> str:
    """Storage of a box in rows of 128 bytes, a pixel each, whose pieces of 16 are permuted by its number."""
    row, piece = ROW_BYTES // size, 16 // size
    return f"c/{row}, p, x, c/{piece}%8 ^ x%8, c%{piece}"


def gone_through(shape: Conv) -> bool:
    """Whether a copy goes through these images: how far their borders, steps and taps may be (``intrin/pixels.py``).
    Where all that is read is before the image, nothing is.
    """
    before = shape.border
    reach = [(taps - 1) * shape.dilation for taps in (shape.r, shape.s)]
    starts = [out * shape.stride - n for out, n in zip((shape.p, shape.q), before, strict=True)]
    corners = [*(-n for n in before), starts[0] - shape.h, starts[1] - shape.w]
    seen = all(start - shape.stride + most >= 0 for start, most in zip(starts, reach, strict=True))
    near = max(reach) <= MOST_OFFSET and shape.stride <= MOST_PIXEL_STEP
    return seen and near and all(n in CORNERS for n in corners)


def takes_warpgroups(shape: Conv) -> bool:
    """Whether warpgroups multiply for a convolution: channels last, no stride beyond a tensor copy's steps. The
    channels of a group are whole tiles, since the next group's follow them.
    """
    m, size = conv_multiplication(shape), shape.element_bytes
    if m is None or m.name not in KINDS or shape.nchw or shape.stride > MOST_STEP:
        return False
    if shape.groups > 1:
        return shape.cg * size % ROW_BYTES == 0 and shape.kg % min(CHANNELS) == 0
    return shape.c * size % 16 == 0 and shape.k * size % 16 == 0
