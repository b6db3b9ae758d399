"""conv2d, and its image's gradient, by warpgroups (CUDA, sm_90a) over all pixels in one line, whatever rows and images
they are of.

The rows of a product are 64 pixels of the results, one after another, so that none is idle but behind the last one of
all: images of 7x7 or 14x14 pixels fill boxes badly. The pixels under a tap are copied by the im2col mode of tensor
maps, which walks an image, and beyond its border brings zeros; those of a 1x1 filter are rows of a
matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorir.intrin.hopper import ROWS
from tensorir.intrin.pixels import CORNERS, MOST_OFFSET, MOST_PIXEL_STEP
from tensorir.ops.blocks import extent_of
from tensorir.ops.common import Config, out_stage, written_by
from tensorir.ops.conv_tensor import conv_multiplication
from tensorir.ops.gemm_blocks import multiprocessors
from tensorir.ops.gemm_hopper import REGISTERS, ROW_BYTES, swizzled_rows
from tensorir.ops.gemm_tensor import result_kind, store_rows
from tensorir.ops.problems import Conv, result_type
from tensorir.ops.views import image_of, sums_axes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target

STORED = 64
"""Channels that one copy brings to the result: 128 bytes of 16 bits each."""


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


def forward(shape: Conv) -> Sums:
    """Those of ``nn.conv2d``."""
    return Sums("y", image_of(shape), sums_axes(shape), "n, p, q", "k", "c")


def as_rows(s: Schedule, of: Sums, shape: Conv) -> None:
    """Walk sums with all pixels as rows: ([g,] i, k).

    Operands: what each tap reads for each pixel ([g,] r, s, i, c), and w_packed ([g,] r, s, k, c), or with the order
    "n" ([g,] r, s, c, k); k and c count channels of one group.
    """
    kg = shape.kg
    group, lead, made = ("", "", of.made) if shape.groups == 1 else (
        f"g = {of.made}/{kg}, ", "g, ", f"{of.made}%{kg}")  # fmt: skip
    view = f"{of.axes} -> {group}i = ({of.pixels}), k = {made}, r, s, c = {of.summed}"
    reads = {of.image: f"{lead}r, s, i, c", "w": f"{lead}r, s, {'k, c' if of.order == 't' else 'c, k'}"}
    s.reindex(of.stage, view, reads=reads, writes=f"{lead}i, k")


def border(shape: Conv) -> tuple[int, int]:
    """Rows above the image and columns left of it where the first results begin to read."""
    return shape.border or (shape.pad, shape.pad)


def pixels(shape: Conv) -> int:
    """Of all results."""
    return int(shape.n * shape.p * shape.q)


def in_line(s: Schedule, c: Config, shape: Conv, target: Target, whole: bool, of: Sums | None = None) -> Schedule:
    """A block of ``groups`` warpgroups computes 64 pixels each by ``bk`` channels; a step is a tap of the filter and
    128 bytes of input channels.

    c: those, ``depth`` of the ring, ``resident`` as in ``gpu_hopper``;  whole: results leave in whole tiles
    of: the sums, those of a convolution unless told
    """
    m, own, of = conv_multiplication(shape), ["g"] if shape.groups > 1 else [], of or forward(shape)
    assert m is not None
    size, y, operands = 4 // m.word, of.stage, (f"{of.image}_packed", "w_packed")
    as_rows(s, of, shape)
    rows, out = "", out_stage(s, y, "warp")
    if whole:
        rows, out = out, f"{out}.out"
        s.reindex(rows, f"{of.pixels}, {of.made} -> i = ({of.pixels}), k = {of.made}", name="rows", writes="i, k")
    ib, wi, i = s.split(s.fuse(*s.loops(out)[:3], name="pixel"), [None, c["groups"], ROWS])
    channels = s.loops(out)[-1]
    *group, channels = s.split(channels, [None, shape.kg]) if own else [channels]
    kb, k = s.split(channels, [None, c["bk"]])
    s.reorder(ib, *group, kb, wi, i, k)
    tile = s.fuse(ib, *group, kb, name="tile")
    if c["resident"] and tiles_in_line(c, shape) > multiprocessors(target):
        _, tile = s.split(tile, [None, multiprocessors(target)])
    s.bind(tile, "block.x").bind(wi, "warpgroup")
    if whole:
        leave_in_tiles(s, rows, wi, i, k, shape.dtype)
    s.compute_at(y, wi)
    cb, ci, cc = s.split(f"{y}.c", [None, ROW_BYTES // size // m.k, m.k])
    s.reorder(*(f"{y}.{v}" for v in [*own, "r", "s"]), cb, ci, f"{y}.i", f"{y}.k", cc)
    step = s.fuse(f"{y}.r", f"{y}.s", cb, name="step")
    lead = "".join(f"{v}, " for v in [*own, "u", "v"])
    for name in operands:
        s.stage_in(name, at=step, scope="shared", layout=f"{lead}r, x -> {lead}{swizzled_rows(size)}", via="tma")
    s.tensorize(f"{y}.i", f"wgmma.m{ROWS}n{c['bk']}k{m.k}.{m.name}.n{of.order}").unroll(ci)
    for name in (*operands, of.image):
        if name in s.index.stages:
            s.compute_inline(name)  # where it is copied
    load, compute = REGISTERS[c["groups"]]
    return s.pipeline(step, c["depth"], roles={"load": load, "compute": compute})


def leave_in_tiles(s: Schedule, rows: str, wi: Any, i: Any, k: Any, dtype: str) -> None:
    """Results of the stage ``rows`` pass through shared memory, from where copies bring whole tiles to an array of more
    dimensions.

    i, k: the loops over the rows and columns of one warpgroup of ``wi``;  dtype: of the operands
    """
    of_rows, array = list(s.loops(rows)), written_by(s, rows)
    s.set_scope(array, "register").compute_at(rows, wi)  # each warpgroup its own
    s.set_scope(array, "shared").layout(array, f"r, x -> {swizzled_rows(2)}")
    if extent_of(s, i) > ROWS:
        several, i = s.split(i, [None, ROWS])
        s.unroll(several)
    panel, k = s.split(k, [None, STORED])
    s.reorder(panel, i, k).unroll(panel)
    s.tensorize(i, f"tma.store.{result_type(dtype)}.{ROWS}x{STORED}")
    store_rows(s, rows, of_rows[:-1], of_rows[-1], f"m{ROWS}.{result_kind(dtype)}.n")


def gone_through(shape: Conv) -> bool:
    """Whether a copy goes through these images: how far their borders, steps and taps may be (``intrin/pixels.py``).
    Where all that is read is before the image, nothing is.
    """
    reach = [(taps - 1) * shape.dilation for taps in (shape.r, shape.s)]
    starts = [out * shape.stride - before for out, before in zip((shape.p, shape.q), border(shape), strict=True)]
    corners = [*(-n for n in border(shape)), starts[0] - shape.h, starts[1] - shape.w]
    seen = all(start - shape.stride + most >= 0 for start, most in zip(starts, reach, strict=True))
    near = max(reach) <= MOST_OFFSET and shape.stride <= MOST_PIXEL_STEP
    return bool(seen and near and all(n in CORNERS for n in corners))


def tiles_in_line(c: Mapping[str, Any], shape: Conv) -> int:
    """Of all blocks."""
    channels = -(-shape.kg // c["bk"])
    return int(-(-pixels(shape) // (c["groups"] * ROWS)) * shape.groups * channels)
