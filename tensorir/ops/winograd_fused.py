"""Winograd convolution F(2 x 2, 3 x 3) on GPUs (CUDA) in one kernel, next to that of the filter.

Yan, Wang and Chu, "Optimizing Batched Winograd Convolution on GPUs", PPoPP 2020: a block makes the products of all 16
places of a tile, for some tiles and output channels, so that nothing but the image, the transformed filter and the
result goes through global memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.ops.common import Config, last_stage
from tensorir.ops.problems import Conv
from tensorir.ops.winograd_gpu import transform_weights, way_back, written_out

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

SIZE = 2
"""Rows and columns of outputs of a tile."""
PLACES = 16
ROWS, COLUMNS = 16, 32
"""Of the sums that a warp brings to shared memory at once."""
TILES = 32
"""Of a block: the lanes of a warp that read a row of pixels, and eight quads that are in different banks."""


def gpu_winograd_fused(s: Schedule, c: Config, shape: Conv) -> Schedule:
    """A block makes ``TILES`` tiles of ``bk`` output channels, in steps of ``bc`` input channels.

    A step's filter is copied, and its tiles are transformed on their way from the image, into shared memory; each warp
    then multiplies ``places`` of the 16 places, 8 x 8 sums a lane and place. In the end 16 x 32 sums of all places at a
    time go to shared memory, and from there threads take them back to outputs.
    c: those, and ``depth``: 2 to load the next step's filter and pixels while this one is multiplied
    """
    nchw = shape.nchw
    s.redeclare("winograd", tile=SIZE, whole=[TILES, c["bk"]])
    transform_weights(s, shape)
    block, part, mine = _output(s, c, shape)
    s.set_scope("M", "shared")
    s.stage_out("M", "root", "warp", layout="z, i, j -> i/4%4, j/4%8 | z, i/16, j/32, i%4, j%4")
    s.compute_at("M.out", part).compute_at("M", block)
    out, _ = s.split("M.out.z", [None, c["places"]])
    warp, places = s.split("M.z", [None, c["places"]])
    ko, ki = s.split("M.k", [None, c["bc"]])
    s.reorder(warp, ko, ki, places, "M.i", "M.j")
    s.bind(out, "warp.x").bind(warp, "warp.x")
    tile = _input(s, c, ko, nchw)
    s.stage_in("U", at=ko, scope="shared", vector=4)
    for name, axis, order in (("V", "j", "k, j") if nchw else ("V", "i", "i, k"),
                              ("U_shared", "i", "k, i") if nchw else ("U_shared", "j", "k, j")):  # fmt: skip
        held, strip = ("i/4%4, *8", "i/16, i%4") if axis == "i" else ("*4, j/4%8", "j/32, j%4")
        s.stage_in(name, at=ki, scope="warp", layout=f"z, {order} -> {held} | z, k, {strip}")
    s.unroll(ki)
    s.bind(tile, "threads").bind(mine, "threads")
    if c["depth"] > 1:
        s.pipeline(ko, c["depth"])
    return s


def _output(s: Schedule, c: Config, shape: Conv) -> tuple[Any, Any, Any]:
    """The innermost loop over blocks, that over parts of a block's sums, and that over those of a part, which threads
    will share.
    """
    nchw, out = shape.nchw, last_stage(s, "y")
    high, p = s.split(f"{out}.p", [None, SIZE])
    wide, q = s.split(f"{out}.q", [None, SIZE])
    s.reorder(f"{out}.n", high, wide, f"{out}.k", p, q)
    flat = s.fuse(f"{out}.n", high, wide, name="tile")
    tiles, channels = (COLUMNS, ROWS) if nchw else (ROWS, COLUMNS)
    tb, tp, t = s.split(flat, [None, TILES // tiles, tiles])
    kb, kp, k = s.split(f"{out}.k", [None, c["bk"] // channels, channels])
    own = (k, t) if nchw else (t, k)
    s.reorder(tb, kb, tp, kp, *own, p, q)
    s.bind(tb, "block.x").bind(kb, "block.y").unroll(tp).unroll(kp)
    mine = s.fuse(*own, name="mine")
    way_back(s, mine, p, q, shape, SIZE)
    return kb, kp, mine


def _input(s: Schedule, c: Config, step: Any, nchw: bool) -> Any:
    """Transformed tiles of a step in shared memory; returns the loop over tiles and channels, which threads will
    share.
    """
    s.set_scope("V", "shared").compute_at("V", step)
    if not nchw:  # threads are at neighbouring channels, and write to other groups of four banks each
        s.layout("V", f"z, i, k -> z, k, i/4 ^ k%{c['bc']}*{8 // c['bc']}, i%4")
    own = ("V.c", "V.t") if nchw else ("V.t", "V.c")
    s.reorder(*own, "V.z", "V.x")
    tile = s.fuse(*own, name="tile")
    s.stage_out("V", at=tile, scope="register")
    s.compute_at("T", tile)
    written_out(s, "V", ("z", "x"))
    written_out(s, "T", ("t", "x", "c", "u", "y"))
    s.unroll("V.out.z")
    pixels = s.stage_in("x_pad", at=tile, scope="register").name
    s.compute_inline("x_pad")
    s.unroll(f"{pixels}.ax1").unroll(f"{pixels}.ax2")
    return tile


def fused_space(shape: Conv, target: Target) -> Space:
    """The blocks that fit: whole warps, shared memory, registers of a thread."""
    from tensorir.tune.space import Space

    def shared(c: Mapping[str, Any]) -> bool:
        steps = c["depth"] * c["bc"] * (TILES + c["bk"])
        return bool(4 * PLACES * (steps + ROWS * COLUMNS) <= target.shared_optin_bytes)

    def sensible(c: Mapping[str, Any]) -> bool:
        return bool(c["bk"] == 32 or c["bk"] // 2 < shape.k)

    def busy(c: Mapping[str, Any]) -> bool:  # fewer tiles and channels than threads: a channel a warp is kept room for
        return bool(not shape.nchw or TILES * c["bc"] >= 32 * PLACES // c["places"])

    where = {"shared": shared, "sensible": sensible, "busy": busy}
    # 64 channels are what the paper takes; compilers spill some registers then, by the shape
    return Space(where=where, bk=[32, 64], depth=[2, 1], bc=[8, 4], places=[2, 1])
