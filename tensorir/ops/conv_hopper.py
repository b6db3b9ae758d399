"""conv2d by warpgroups (CUDA, sm_90a): implicit GEMM whose operands are tiles of the image and of the filter.

A tile of the image is a box of pixels by a run of channels, wherever a tap of the filter moves it: tensor copies find
it and fill with zeros what is beyond the image, so that nothing is gathered and padding costs nothing. With a stride
the tile is every stride-th pixel of a box, which one copy brings as if they were neighbours (a tensor map's steps).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.intrin.cuda import Multiplication
from tensorir.intrin.hopper import KINDS, ROWS
from tensorir.intrin.match import MOST_SPAN, MOST_STEP
from tensorir.ops.common import Config, out_stage
from tensorir.ops.conv_im2col import STORED, gone_through, in_line, tiles_in_line
from tensorir.ops.conv_tensor import conv_multiplication, leading_names, view
from tensorir.ops.gemm_blocks import multiprocessors
from tensorir.ops.gemm_hopper import REGISTERS, ROW_BYTES, sums_fit
from tensorir.ops.gemm_tensor import result_kind, store_rows
from tensorir.ops.problems import Conv

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space


GROUPS = [2, 1, 3]
WIDTHS = (8, 16, 32, 64)
"""Pixels of a row that a product may have."""
CHANNELS = (64, 128, 256, 192, 96, 32)
"""That a block may compute."""
NO_WIDTH = WIDTHS[0]
"""What ``wide`` is where it says nothing: pixels in one line."""
WORTH = 1.05
"""How much longer boxes must be expected to take for a search to start with pixels in one line."""


def conv_warpgroups(shape: Conv) -> Multiplication | None:
    """The products of warpgroups for a convolution, None where there are none: channels last, no stride beyond a tensor
    copy's steps. The channels of a group are whole tiles, since the next group's follow them.
    """
    m = conv_multiplication(shape)
    if m is None or m.name not in KINDS or shape.layout != "NHWC" or shape.stride > MOST_STEP:
        return None
    size, groups = 4 // m.word, shape.groups
    if groups > 1:
        return m if shape.cg * size % ROW_BYTES == 0 and shape.k // groups % min(CHANNELS) == 0 else None
    return m if shape.c * size % 16 == 0 and shape.k * size % 16 == 0 else None


def gpu_hopper(s: Schedule, c: Config, shape: Conv, target: Target) -> Schedule:
    """A block of ``groups`` warpgroups computes 64 pixels each, ``wide`` of a row, by ``bk`` channels; a step is a tap
    of the filter and 128 bytes of input channels.

    c: those, ``depth`` of the ring; ``resident``: no more blocks than run at once, each of which walks several tiles;
       ``pixels``: "box", or "im2col" for all pixels in one line (``conv_im2col``), which has no use for ``wide``
    """
    if c["pixels"] == "im2col":
        return in_line(s, c, shape, target, stored_whole(c, shape))
    m, own, y = conv_warpgroups(shape), leading_names(shape), "y"
    assert m is not None
    image = view(s, shape)
    out = out_stage(s, y, "warp")
    size, high = 4 // m.word, ROWS // c["wide"]
    pb, wi, p = s.split(f"{out}.p", [None, c["groups"], high])
    qb, q = s.split(f"{out}.q", [None, c["wide"]])
    *group, channels = s.split(f"{out}.k", [None, shape.kg]) if own else [f"{out}.k"]
    kb, k = s.split(channels, [None, c["bk"]])
    s.reorder(f"{out}.n", *group, pb, qb, kb, wi, p, q, k)
    tile = s.fuse(f"{out}.n", *group, pb, qb, kb, name="tile")
    if c["resident"] and tiles(c, shape) > multiprocessors(target):
        _, tile = s.split(tile, [None, multiprocessors(target)])
    s.bind(tile, "block.x").bind(wi, "warpgroup")
    if stored_whole(c, shape):
        s.stage_out(out, at=wi, scope="shared", layout=f"n, p, x, c -> n, {_pixels(2)}", via="tma")
        store_rows(s, out, [p, q], k, f"m{high}x{c['wide']}.{result_kind(shape.dtype)}.n")
    s.compute_at(y, wi)
    cb, ci, cc = s.split(f"{y}.c", [None, ROW_BYTES // size // m.k, m.k])
    s.reorder(f"{y}.n", *(f"{y}.{v}" for v in own), f"{y}.r", f"{y}.s", cb, ci, f"{y}.p", f"{y}.q", f"{y}.k", cc)
    step = s.fuse(f"{y}.r", f"{y}.s", cb, name="step")
    parts = ["a", "b"] if shape.stride > 1 else []  # the rows and columns that a tap reads with a stride
    pixels, taps = ("".join(f"{v}, " for v in names) for names in (["n", *own, *parts], [*own, "r", "s"]))
    for name, layout in ((image, f"{pixels}p, x, c -> {pixels}{_pixels(size)}"),
                         ("w_packed", f"{taps}x, c -> {taps}{_pixels(size, False)}")):  # fmt: skip
        s.stage_in(name, at=step, scope="shared", layout=layout, via="tma")
    s.tensorize(f"{y}.p", f"wgmma.m{high}x{c['wide']}n{c['bk']}k{m.k}.{m.name}.nt").unroll(ci)
    for name in ("w_packed",) if image == "x" else (image, "w_packed"):
        s.compute_inline(name)
    load, compute = REGISTERS[c["groups"]]
    return s.pipeline(step, c["depth"], roles={"load": load, "compute": compute})


def _pixels(size: int, rows: bool = True) -> str:
    """Storage in rows of 128 bytes, of a pixel or an output channel, whose pieces of 16 are permuted by its number."""
    row, piece = ROW_BYTES // size, 16 // size
    return f"c/{row}, {'p, ' if rows else ''}x, c/{piece}%8 ^ x%8, c%{piece}"


def stored_whole(c: Mapping[str, Any], shape: Conv) -> bool:
    """Whether results leave in whole tiles: those of 16 bits, which a warp would write in halves of sectors."""
    return bool(shape.leaves_in_halves and c["bk"] % 64 == 0)


def tiles(c: Mapping[str, Any], shape: Conv) -> int:
    """Of all blocks."""
    if c.get("pixels") == "im2col":
        return tiles_in_line(c, shape)
    rows = -(-shape.p // (c["groups"] * ROWS // c["wide"]))
    return int(shape.n * rows * -(-shape.q // c["wide"]) * -(-shape.k // c["bk"]))


def _expected(c: Mapping[str, Any], shape: Conv, target: Target) -> tuple[float, ...]:
    """What a configuration takes, for comparison with others of the same shape."""
    return clocks_of_a_step(c, shape, target), -c["bk"], c["wide"] != 16


def clocks_of_a_step(c: Mapping[str, Any], shape: Conv, target: Target) -> int:
    """What all blocks take for 128 bytes of input channels under one tap: rounds of blocks, times the longer of its
    products and its copies.

    A multiprocessor of Hopper does 2048 multiply-adds of 16 bits in a clock, and has 64 bytes from the L2 cache (as
    DeepGEMM reckons, heuristics of sm90): 2 * groups * bk clocks for 64 terms, and twice the rows of 128 bytes.
    """
    rounds = -(-tiles(c, shape) // multiprocessors(target))
    return int(2 * rounds * max(c["groups"] * c["bk"], c["groups"] * ROWS + c["bk"]))


def hopper_space(shape: Conv, target: Target, panels: bool = False) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block.

    panels: the filter is stored along the channels of the result, of which whole rows of 128 bytes are copied; then
            there are pixels in one line only
    """
    from tensorir.tune.space import Space

    room = target.shared_optin_bytes

    def shared(c: Mapping[str, Any]) -> bool:
        pixels = c["groups"] * ROWS
        results = 2 * pixels * c["bk"] if stored_whole(c, shape) else 0
        return bool(ROW_BYTES * c["depth"] * (pixels + c["bk"]) + results + 4096 <= room)

    def registers(c: Mapping[str, Any]) -> bool:
        return sums_fit(c["groups"], 1, c["bk"])

    def line(c: Mapping[str, Any]) -> bool:
        return bool(c["pixels"] == "box" or c["wide"] == NO_WIDTH)

    def rows(c: Mapping[str, Any]) -> bool:
        return not panels or c["bk"] % STORED == 0

    lines = ["im2col"] if gone_through(shape) else []
    where = {"panels": rows} if panels else {}
    return Space(
        where={
            **where,
            "shared": shared,
            "registers": registers,
            "sensible": lambda c: _sensible(c, shape),
            "spanned": lambda c: _spanned(c, shape),
            "whole": lambda c: _whole(c, shape),
            "line": line,
        },
        default=_default(shape, target, panels),
        groups=GROUPS,
        wide=[NO_WIDTH] if panels else list(WIDTHS),
        bk=list(CHANNELS),
        depth=[4, 3, 5, 6, 2, 8],
        resident=[1, 0],
        pixels=lines if panels else ["box", *lines],
    ).since({} if panels else {"pixels": "box"})


def _spanned(c: Mapping[str, Any], shape: Conv) -> bool:
    """Whether a row of a tile is within reach of a copy."""
    return bool(c["wide"] * shape.stride <= MOST_SPAN)


def _whole(c: Mapping[str, Any], shape: Conv) -> bool:
    """Whether the channels of a group are whole tiles."""
    return bool(shape.groups == 1 or shape.kg % c["bk"] == 0)


def _sensible(c: Mapping[str, Any], shape: Conv) -> bool:
    return bool(c["bk"] == 64 or c["bk"] // 2 < shape.kg)


def _default(shape: Conv, target: Target, panels: bool) -> Config:
    """What a search starts with: pixels in boxes, or in one line where that is expected to take less."""
    boxes = _default_boxes(shape, target)
    parts = [n for n in (256, 128, 64) if _whole({"bk": n}, shape) and _sensible({"bk": n}, shape)]
    if not gone_through(shape) or not parts:
        return boxes
    tried = (
        {**boxes, "pixels": "im2col", "wide": NO_WIDTH, "groups": g, "bk": n, "depth": _depth(n)}
        for g, n in itertools.product(GROUPS[:2], parts)
    )
    line = min(tried, key=lambda c: _expected(c, shape, target))
    return line if panels or _expected(line, shape, target)[0] * WORTH <= _expected(boxes, shape, target)[0] else boxes


def _default_boxes(shape: Conv, target: Target) -> Config:
    def wasted(c: Mapping[str, Any]) -> float:
        """Pixels that are computed, of those that there are."""
        high = c["groups"] * ROWS // c["wide"]
        p, q = shape.p, shape.q
        return float(-(-p // high) * high * -(-q // c["wide"]) * c["wide"] / (p * q))

    fitting = [n for n in WIDTHS if _spanned({"wide": n}, shape)]
    wide = min(fitting, key=lambda n: (wasted({"groups": 2, "wide": n}), n != 16))
    alone = wasted({"groups": 1, "wide": wide}) * 1.2 < wasted({"groups": 2, "wide": wide})
    bk = next((n for n in (256, 128, 64) if shape.kg % n == 0), 64)
    default: dict[str, Any] = dict(groups=1 if alone else 2, wide=wide, bk=bk, depth=_depth(bk), resident=1)
    default["pixels"] = "box"
    if shape.stride == 1 and shape.groups == 1:
        return default
    # what the rules above do not see: few pixels, narrow groups
    parts = [n for n in CHANNELS if _whole({"bk": n}, shape) and _sensible({"bk": n}, shape)]
    parts = [n for n in parts if n % 64 == 0] or parts  # results leave in whole tiles
    tried = (
        {**default, "groups": g, "wide": n, "bk": k, "depth": _depth(k)}
        for g, n, k in itertools.product(GROUPS[:2], fitting, parts)
    )
    return min(tried, key=lambda c: _expected(c, shape, target))


def _depth(bk: int) -> int:
    return 3 if bk == 256 else 4
