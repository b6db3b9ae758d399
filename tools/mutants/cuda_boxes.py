"""A convolution by warpgroups whose tiles are boxes of an image, every second pixel of it: a schedule by hand.

The rules' templates take pixels in one line, which fill products better (docs/cuda-hopper.md). Boxes are what tensor
maps with steps are for, and products whose rows are those of an image.
"""

from __future__ import annotations

import tensorir as tir
from tensorir.engines.gemm_hopper import REGISTERS, ROW_BYTES, swizzled_rows
from tensorir.engines.gemm_tensor import KINDS, store_rows
from tensorir.engines.steps import out_stage
from tensorir.intrin.cuda import Multiplication
from tensorir.intrin.hopper import ROWS

COLUMNS = 64


def in_boxes(w: tir.Workload, m: Multiplication, target: str, groups: int = 1, wide: int = 8, depth: int = 2
             ) -> tir.Schedule:  # fmt: skip
    """A strided convolution, channels last: rows of ``wide`` pixels, 64 for each of so many warpgroups, by 64 channels;
    a step is a tap and 128 bytes of the image's channels.
    """
    s, size, made = tir.Schedule(w.outputs, target), 4 // m.word, w.outputs[0].dtype
    image, high = s.stages()[0].name, ROWS // wide
    if image == "y":  # no border: the image is read through a copy that is never made
        image = s.stage_in("x", at="root", scope="global").name
        s.set_scope(image, "auto")
    n, h, x, c = (str(loop).split(".", 1)[1] for loop in s.loops(image))
    view = f"{n}, {h}, {x}, {c} -> n = {n}, a = {h}%2, b = {x}%2, h = {h}/2, w = {x}/2, c = {c}"
    s.reindex(image, view, writes="n, a, b, h, w, c")
    s.reindex("y", "n, p, q, k | r, s, c -> n, p, q, k, r, s, c", reads={"w": "r, s, k, c"}, writes="n, p, q, k")
    out = out_stage(s, "y", "warp")
    first, rows, columns, channels = s.loops(out)
    pb, wi, p = s.split(rows, [None, groups, high])
    qb, q = s.split(columns, [None, wide])
    kb, k = s.split(channels, [None, COLUMNS])
    s.reorder(first, pb, qb, kb, wi, p, q, k)
    s.bind(s.fuse(first, pb, qb, kb, name="tile"), "block.x").bind(wi, "warpgroup")
    if made in ("float16", "bfloat16"):
        s.stage_out(out, at=wi, scope="shared", layout=f"n, p, x, c -> n, {_box(2)}", via="tma")
        store_rows(s, out, [p, q], k, f"m{high}x{wide}.{KINDS[made, '']}.n")
    s.compute_at("y", wi)
    cb, ci, cc = s.split("y.c", [None, ROW_BYTES // size // m.k, m.k])
    s.reorder("y.n", "y.r", "y.s", cb, ci, "y.p", "y.q", "y.k", cc)
    step = s.fuse("y.r", "y.s", cb, name="step")
    s.stage_in(image, at=step, scope="shared", layout=f"n, a, b, p, x, c -> n, a, b, {_box(size)}", via="tma")
    s.stage_in("w_packed", at=step, scope="shared", layout=f"u, v, r, x -> u, v, {swizzled_rows(size)}", via="tma")
    s.tensorize("y.p", f"wgmma.m{high}x{wide}n{COLUMNS}k{m.k}.{m.name}.nt").unroll(ci)
    s.compute_inline(image).compute_inline("w_packed")
    load, compute = REGISTERS[groups]
    return s.pipeline(step, depth, roles={"load": load, "compute": compute})


def _box(size: int) -> str:
    """Storage of a box in rows of 128 bytes, a pixel each, whose pieces of 16 are permuted by its number."""
    row, piece = ROW_BYTES // size, 16 // size
    return f"c/{row}, p, x, c/{piece}%8 ^ x%8, c%{piece}"
