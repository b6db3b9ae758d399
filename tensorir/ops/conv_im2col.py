"""conv2d, and its image's gradient, by warpgroups (CUDA, sm_90a) over all pixels in one line, whatever rows and images
they are of.

The rows of a product are 64 pixels of the results, one after another, so that none is idle but behind the last one of
all: images of 7x7 or 14x14 pixels fill boxes badly. The pixels under a tap are copied by the im2col mode of tensor
maps, which goes through an image by itself, and beyond its border brings zeros; those of a 1x1 filter are rows of a
matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir import nn
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.intrin.hopper import ROWS
from tensorir.intrin.pixels import CORNERS, MOST_OFFSET, MOST_PIXEL_STEP
from tensorir.ir.tree import Expr
from tensorir.ops.blocks import extent_of
from tensorir.ops.common import Config, accumulator, result_type, written_by
from tensorir.ops.conv_tensor import conv_multiplication, turned
from tensorir.ops.gemm_blocks import multiprocessors
from tensorir.ops.gemm_hopper import REGISTERS, ROW_BYTES, swizzled_rows
from tensorir.ops.gemm_tensor import result_kind, store_rows

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target

Shape = Mapping[str, Any]

STORED = 64
"""Channels that one copy brings to the result: 128 bytes of 16 bits each."""


def declared_in_line(operands: Mapping[str, Tensor | None], shape: Shape) -> Tensor:
    """``nn.conv2d`` with its pixels as rows: columns ([g,] r, s, pixel, c), w_turned ([g,] r, s, k, c), sums
    ([g,] pixel, k), rows (pixel, k) with the epilogue, and y (n, p, q, k), which is the same in memory.
    """
    x, w = operands["x"], operands["w"]
    assert x is not None
    assert w is not None
    return in_images(_epilogue(sums(columns(x, shape), turned(w, shape), shape), operands, shape), shape, "y")


def columns(x: Tensor, shape: Shape) -> Tensor:
    """The pixels under each tap, zero beyond the border."""
    stride, dilation, groups = (shape[v] for v in ("stride", "dilation", "groups"))
    p, q, (above, left) = shape["p"], shape["q"], border(shape)

    def pixel(*given: Expr) -> Expr:
        g, (r, s, i, c) = given[:-4], given[-4:]
        row, column = i // q % p * stride + (r * dilation - above), i % q * stride + (s * dilation - left)
        return x.get(i // (p * q), row, column, g[0] * shape["cg"] + c if g else c, fill=0)

    size = (shape["r"], shape["s"], pixels(shape), shape["cg"])
    axes = ["r", "s", "i", "c"]
    if groups > 1:
        size, axes = (groups, *size), ["g", *axes]  # type: ignore[assignment]
    return compute(size, pixel, name="columns", axes=axes)  # type: ignore[no-any-return]


def border(shape: Shape) -> tuple[int, int]:
    """Rows above the image and columns left of it where the first results begin to read."""
    above, left = shape.get("border", (shape["pad"], shape["pad"]))
    return int(above), int(left)


def sums(columns: Tensor, filters: Tensor, shape: Shape, order: str = "t") -> Tensor:
    """``filters`` are ([g,] r, s, k, c), or ([g,] r, s, c, k) with the order "n"."""
    m, groups = conv_multiplication(shape), shape["groups"]
    assert m is not None
    rr, rs, rc = (reduce_axis(shape[v], name) for v, name in (("r", "r"), ("s", "s"), ("cg", "c")))

    def value(*given: Expr) -> Expr:
        *g, i, k = given
        tap = filters[(*g, rr, rs, *((k, rc) if order == "t" else (rc, k)))]
        return total(cast(columns[(*g, rr, rs, i, rc)], m.sums) * cast(tap, m.sums), axis=(rr, rs, rc))

    own = ([groups], ["g"]) if groups > 1 else ([], [])
    size = (*own[0], pixels(shape), shape["k"] // groups)
    return compute(size, value, name="sums", axes=[*own[1], "i", "k"])  # type: ignore[no-any-return]


def _epilogue(sums: Tensor, operands: Mapping[str, Tensor | None], shape: Shape) -> Tensor:
    """Bias, residual and activation, pixel by pixel."""
    p, q, d = shape["p"], shape["q"], operands["d"]
    size, added = (pixels(shape), shape["k"]), None
    if d is not None:
        added = compute(size, lambda i, k: d[i // (p * q), i // q % p, i % q, k], name="added", axes=("i", "k"))
    return converted(nn.bias_act(joined(sums, shape), operands["b"], shape["act"], axis=1, d=added), shape)


def joined(sums: Tensor, shape: Shape) -> Tensor:
    """The sums of all groups beside each other: (pixel, k)."""
    kg = shape["k"] // shape["groups"]
    if shape["groups"] == 1:
        return sums
    size = (pixels(shape), shape["k"])
    return compute(size, lambda i, k: sums[k // kg, i, k % kg], name="joined", axes=("i", "k"))  # type: ignore[no-any-return]


def converted(done: Tensor, shape: Shape) -> Tensor:
    """rows (pixel, k), in the type of results."""
    if accumulator(shape["dtype"]) == "float32":
        done = nn.convert(done, result_type(shape["dtype"]))
    return compute((pixels(shape), shape["k"]), lambda i, k: done[i, k], name="rows", axes=("i", "k"))  # type: ignore[no-any-return]


def in_images(rows: Tensor, shape: Shape, name: str) -> Tensor:
    """The same in memory as (n, p, q, k)."""
    p, q = shape["p"], shape["q"]
    size = (shape["n"], p, q, shape["k"])
    return compute(size, lambda n, p_, q_, k: rows[(n * p + p_) * q + q_, k], name=name, axes=("n", "p", "q", "k"))  # type: ignore[no-any-return]


def pixels(shape: Shape) -> int:
    """Of all results."""
    return int(shape["n"] * shape["p"] * shape["q"])


def in_line(s: Schedule, c: Config, shape: Shape, target: Target, whole: bool, order: str = "t") -> Schedule:
    """A block of ``groups`` warpgroups computes 64 pixels each by ``bk`` channels; a step is a tap of the filter and
    128 bytes of input channels.

    c: those, ``depth`` of the ring, ``resident`` as in ``gpu_hopper``;  whole: results leave in whole tiles
    order: how the filter is stored, as in ``sums``
    """
    m, own = conv_multiplication(shape), ["g"] if shape["groups"] > 1 else []
    assert m is not None
    size = 4 // m.word
    names = [st.name for st in s.stages()]
    out = names[-1]
    for name in names[names.index("sums") + 1 : -2 if whole else -1]:
        s.compute_inline(name)
    ib, wi, i = s.split(s.fuse(f"{out}.n", f"{out}.p", f"{out}.q", name="pixel"), [None, c["groups"], ROWS])
    *group, channels = s.split(f"{out}.k", [None, shape["k"] // shape["groups"]]) if own else [f"{out}.k"]
    kb, k = s.split(channels, [None, c["bk"]])
    s.reorder(ib, *group, kb, wi, i, k)
    tile = s.fuse(ib, *group, kb, name="tile")
    if c["resident"] and tiles_in_line(c, shape) > multiprocessors(target):
        _, tile = s.split(tile, [None, multiprocessors(target)])
    s.bind(tile, "block.x").bind(wi, "warpgroup")
    if whole:
        leave_in_tiles(s, "rows", wi, i, k, shape["dtype"])
    s.compute_at("sums", wi)
    cb, ci, cc = s.split("sums.c", [None, ROW_BYTES // size // m.k, m.k])
    s.reorder(*(f"sums.{v}" for v in own), "sums.r", "sums.s", cb, ci, "sums.i", "sums.k", cc)
    step = s.fuse("sums.r", "sums.s", cb, name="step")
    lead = "".join(f"{v}, " for v in [*own, "u", "v"])
    for name in ("columns", "w_turned"):
        s.stage_in(name, at=step, scope="shared", layout=f"{lead}r, x -> {lead}{swizzled_rows(size)}", via="tma")
    s.tensorize("sums.i", f"wgmma.m{ROWS}n{c['bk']}k{m.k}.{m.name}.n{order}").unroll(ci)
    for name in ("columns", "w_turned"):
        s.compute_inline(name)
    load, compute_ = REGISTERS[c["groups"]]
    return s.pipeline(step, c["depth"], roles={"load": load, "compute": compute_})


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
    store_rows(s, rows, of_rows[:-1], of_rows[-1], f"m{ROWS}.{result_kind({'dtype': dtype})}.n")


def gone_through(shape: Shape) -> bool:
    """Whether a copy goes through these images: how far their borders, steps and taps may be (``intrin/pixels.py``).
    Where all that is read lies before the image, nothing is.
    """
    reach = [(shape[taps] - 1) * shape["dilation"] for taps in "rs"]
    starts = [shape[out] * shape["stride"] - before for out, before in zip("pq", border(shape), strict=True)]
    corners = [*(-n for n in border(shape)), *(start - shape[size] for start, size in zip(starts, "hw", strict=True))]
    seen = all(start - shape["stride"] + most >= 0 for start, most in zip(starts, reach, strict=True))
    near = max(reach) <= MOST_OFFSET and shape["stride"] <= MOST_PIXEL_STEP
    return bool(seen and near and all(n in CORNERS for n in corners))


def tiles_in_line(c: Mapping[str, Any], shape: Shape) -> int:
    """Of all blocks."""
    channels = -(-shape["k"] // shape["groups"] // c["bk"])
    return int(-(-pixels(shape) // (c["groups"] * ROWS)) * shape["groups"] * channels)
