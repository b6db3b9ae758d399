"""Gradients of conv2d: with respect to its image, and to its filter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorir import nn
from tensorir.api.workload import Template, Workload
from tensorir.errors.needs import plain_ints
from tensorir.expr.compute import placeholder
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import dtype_of, is_float
from tensorir.ops.blocks import ALIGNED, bind_grid, groups_met, has_room, start, within_group
from tensorir.ops.common import Config, need_precision, out_dtype, out_stage, positive
from tensorir.ops.conv_backward_tensor import data_templates
from tensorir.ops.conv_weight_hopper import is_narrow, weight_warpgroups
from tensorir.ops.conv_weight_tensor import weight_templates
from tensorir.ops.operators import OPERATORS
from tensorir.ops.problems import Conv, accumulator, result_type

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

LANES = 8
PARAMETERS = ("n", "c", "h", "w", "k", "r", "s", "stride", "pad", "dilation", "groups", "layout", "dtype", "precision")
"""What a gradient is recorded by."""


@plain_ints
def conv2d_backward_data(n: int = 1, c: int = 64, h: int = 56, w: int = 56, k: int = 64, r: int = 3, s: int = 3,
                         stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1, layout: str = "NCHW",
                         dtype: str = "float32", precision: str = "fp32") -> Workload:  # fmt: skip
    """The gradient of a convolution with respect to its image; the parameters are those of ``conv2d``.

    Arguments: dy, w; see ``nn.conv2d_backward_data``. Raises DeclarationError naming the parameter that does not fit.
    """
    dtype = dtype_of(dtype).name
    need_precision("conv2d", precision, dtype)
    shape = _shape(n=n, c=c, h=h, w=w, k=k, r=r, s=s, stride=stride, pad=pad, dilation=dilation, groups=groups,
                   layout=layout, dtype=dtype, precision=precision)  # fmt: skip
    dy, weights = _tensor("dy", shape, "nkpq"), _filter(shape)
    dx = nn.conv2d_backward_data(dy, weights, (h, w), accumulate=accumulator(dy.dtype), **_how(shape))
    last = "w" if layout == "NCHW" else "c"
    nest = Nest(
        "dx", ("n", "h"), "c" if last == "w" else "w", last, (), "k", ("r", "s"), ("dy_spread", "w"), "dy_spread"
    )
    return _workload("conv2d_backward_data", dx, shape, nest, reference_data, data_templates(shape))


@plain_ints
def conv2d_backward_weight(n: int = 1, c: int = 64, h: int = 56, w: int = 56, k: int = 64, r: int = 3, s: int = 3,
                           stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1, layout: str = "NCHW",
                           dtype: str = "float32", precision: str = "fp32") -> Workload:  # fmt: skip
    """The gradient of a convolution with respect to its filter; the parameters are those of ``conv2d``.

    Arguments: x, dy; see ``nn.conv2d_backward_weight``. Raises DeclarationError naming the parameter that does not fit.
    """
    dtype = dtype_of(dtype).name
    need_precision("conv2d", precision, dtype)
    shape = _shape(n=n, c=c, h=h, w=w, k=k, r=r, s=s, stride=stride, pad=pad, dilation=dilation, groups=groups,
                   layout=layout, dtype=dtype, precision=precision)  # fmt: skip
    x, dy = _tensor("x", shape, "nchw"), _tensor("dy", shape, "nkpq")
    dw = nn.conv2d_backward_weight(x, dy, (r, s), accumulate=accumulator(x.dtype), **_how(shape))
    padded = "x_pad" if pad else ""
    nest = Nest("dw", ("r", "s"), "k", "c", ("n", "p"), "q", (), ("dy", padded or "x"), padded)
    first, second = weight_warpgroups(shape), weight_templates(shape)
    templates = {**second, **first} if is_narrow(shape) else {**first, **second}
    return _workload("conv2d_backward_weight", dw, shape, nest, reference_weight, templates)


def _shape(**params: Any) -> Conv:
    """Checked parameters, and what follows from them: extents of the result, channels of a group."""
    positive(params, ("n", "c", "h", "w", "k", "r", "s"))
    groups = params["groups"]
    counts = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
    whole = counts and params["c"] % groups == 0
    shape = Conv(**{**params, "groups": groups if whole else 1}, p=1, q=1)
    y = nn.conv2d(_tensor("x", shape, "nchw"), _filter(shape), **{**_how(shape), "groups": groups})
    p, q = y.shape[2:] if shape.nchw else y.shape[1:3]
    return replace(shape, p=p, q=q)


def _how(shape: Conv) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in ("stride", "pad", "dilation", "groups", "layout")}


def _tensor(name: str, shape: Conv, dims: str) -> Tensor:
    """A placeholder of an image, its dimensions named in the order of NCHW."""
    order = dims if shape.nchw else (dims[0], dims[2], dims[3], dims[1])
    return placeholder(tuple(getattr(shape, d) for d in order), shape.dtype, name=name)


def _filter(shape: Conv) -> Tensor:
    k, cg, r, s = shape.k, shape.cg, shape.r, shape.s
    return placeholder((k, cg, r, s) if shape.nchw else (k, r, s, cg), shape.dtype, name="w")


@dataclass(frozen=True)
class Nest:
    """The loops of a gradient, by what the schedules do with them.

    lead: every one of them in a block of its own;  row, column: tiled;  around, split, taps: the reduction, of which
    ``split`` is staged piece by piece;  padded: what only rearranges an operand, if anything does
    """

    main: str
    lead: tuple[str, str]
    row: str
    column: str
    around: tuple[str, ...]
    split: str
    taps: tuple[str, ...]
    operands: tuple[str, str]
    padded: str


def _workload(name: str, out: Tensor, shape: Conv, nest: Nest, reference: Any,
              on_tensor_cores: dict[str, Template]) -> Workload:  # fmt: skip
    params = {v: getattr(shape, v) for v in PARAMETERS if (v, getattr(shape, v)) != ("precision", "fp32")}
    if shape.wide == "float32":
        out = nn.convert(out, result_type(shape.dtype), name="out")
    return Workload(
        name, out,
        templates={
            "cpu_rows": Template(lambda sch, c: cpu_rows(sch, c, nest), lambda _: _cpu_space(nest, shape), ("cpu",)),
            **on_tensor_cores,
            "gpu_tile": Template(lambda sch, c: gpu_tile(sch, c, nest), lambda t: _gpu_space(nest, shape, t), ("gpu",)),
        },
        reference=lambda *arrays: reference(shape, *arrays),
        flops=shape.flops,
        origin=("ops", name, params),
        operator=OPERATORS[name],
    )  # fmt: skip


def cpu_rows(s: Schedule, c: Config, nest: Nest) -> Schedule:
    """A work-item a block: ``rows`` by ``columns`` sums in registers, in vectors where these are neighbours in memory;
    the rearranged operand by a kernel of its own.
    """
    y = nest.main
    out = out_stage(s, y)
    if nest.padded:
        s.bind(f"{nest.padded}.n", "block.y").bind(s.loops(nest.padded)[1], "block.x")
    rb, rl = s.split(f"{out}.{nest.row}", [None, c["rows"]])
    cb, cl = s.split(f"{out}.{nest.column}", [None, c["columns"]])
    lead = [f"{out}.{v}" for v in nest.lead]
    s.reorder(*lead, rb, cb, rl, cl)
    s.bind(lead[0], "block.z").bind(s.fuse(lead[1], rb), "block.y").bind(cb, "block.x")
    s.compute_at(y, cb)
    around = [f"{y}.{v}" for v in (*nest.lead, *nest.around, nest.split, *nest.taps)]
    s.reorder(*around, f"{y}.{nest.row}", f"{y}.{nest.column}")
    s.unroll(f"{y}.{nest.row}").unroll(rl)
    _in_vectors(s, f"{y}.{nest.column}", c)
    _in_vectors(s, cl, c)
    return s


def _in_vectors(s: Schedule, loop: Any, c: Config) -> None:
    if c["lanes"] == 1:
        s.unroll(loop)
        return
    whole, lanes = s.split(loop, [None, c["lanes"]])
    s.unroll(whole).vectorize(lanes)


def gpu_tile(s: Schedule, c: Config, nest: Nest) -> Schedule:
    """A block computes ``tr * rr`` rows by ``tc * rc`` columns, from ``depth`` elements of the reduction at a time, of
    which both operands are staged.
    """
    y = nest.main
    out = out_stage(s, y)
    rb, rt, rl = s.split(f"{out}.{nest.row}", [None, c["tr"], c["rr"]])
    cb, ct, cl = s.split(f"{out}.{nest.column}", [None, c["tc"], c["rc"]])
    lead = [f"{out}.{v}" for v in nest.lead]
    s.reorder(*lead, rb, cb, rt, ct, rl, cl)
    bind_grid(s, [lead[0]], [lead[1], rb], [cb])
    s.bind(rt, "thread.y").bind(ct, "thread.x")
    s.compute_at(y, ct)
    so, si = s.split(f"{y}.{nest.split}", [None, c["depth"]])
    taps = [f"{y}.{v}" for v in nest.taps]
    around = [f"{y}.{v}" for v in (*nest.lead, *nest.around)]
    s.reorder(*around, so, si, *taps, f"{y}.{nest.row}", f"{y}.{nest.column}")
    s.unroll(f"{y}.{nest.row}").unroll(f"{y}.{nest.column}")
    for operand in nest.operands:
        s.stage_in(operand, at=so, scope="shared")
    if nest.padded:
        s.compute_inline(nest.padded)
    return s


def _cpu_space(nest: Nest, shape: Conv) -> Space:
    from tensorir.tune.space import Space

    neighbours = nest.column == ("w" if shape.nchw else "c")
    lanes = [LANES, 4, 1] if neighbours else [1]

    def vectors(c: Mapping[str, Any]) -> bool:
        return bool(c["columns"] % c["lanes"] == 0)

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["rows"] * c["columns"] // c["lanes"] <= 12)

    columns = [2 * LANES, LANES, 3 * LANES, 4, 1] if neighbours else [2, 1, 3, 4]
    where = {"vectors": vectors, "registers": registers}
    return Space(rows=[4, 2, 6, 1, 3], columns=columns, lanes=lanes, where=where)


def tile_bytes(v: Config, nest: Nest, shape: Conv) -> int:
    """Shared memory that ``gpu_tile`` stages: of all groups that the tile's channels may belong to."""
    rows, columns = v["tr"] * v["rr"], v["tc"] * v["rc"]
    if not nest.taps:
        cells = _of_filter(shape, rows, columns, v["depth"])
    else:
        cells = _of_image(shape, *((rows, columns) if nest.row == "c" else (columns, rows)), v["depth"])
    return shape.element_bytes * cells + 2 * ALIGNED


def _of_image(shape: Conv, channels: int, pixels: int, depth: int) -> int:
    """Elements that ``channels`` of an image's gradient by so many ``pixels`` of a row need."""
    groups, per_group, c, cg = shape.groups, shape.kg, shape.c, shape.cg
    read, inner = depth, channels
    if groups > 1:
        read += (groups_met(c, cg, channels) - 1) * per_group
        inner = within_group(c, cg, channels)
    rows, columns = 1 + (shape.r - 1) * shape.dilation, pixels + (shape.s - 1) * shape.dilation
    return int(read * (rows * columns + shape.taps * inner))


def _of_filter(shape: Conv, outputs: int, channels: int, depth: int) -> int:
    """Elements that ``outputs`` by ``channels`` of a filter's gradient need."""
    groups, k = shape.groups, shape.k
    read = channels + ((groups_met(k, k // groups, outputs) - 1) * shape.cg if groups > 1 else 0)
    return int(depth * outputs + ((depth - 1) * shape.stride + 1) * read)


def _gpu_space(nest: Nest, shape: Conv, target: Target) -> Space:
    from tensorir.tune.space import Space

    def shared(v: Config) -> bool:
        return tile_bytes(v, nest, shape) <= target.shared_optin_bytes

    def threads(v: Config) -> bool:
        return bool(32 <= v["tr"] * v["tc"] <= 256)

    # single channels as well, since of groups of 43 any four may belong to two, and both are staged whole then
    one, many = ([1], [1, 32]) if shape.groups > 1 else ([], [])
    knobs = dict(tr=[8, 4, 16, *many], tc=[8, 16, 4, 32, *one], rr=[4, 2, 1, 8], rc=[4, 2, 1], depth=[8, 4, 16, 2, 1])
    where = {"shared": shared, "threads": threads}
    extents = {
        v: getattr(shape, "cg" if v == "c" and not nest.taps else v) for v in (*nest.lead, nest.row, nest.column)
    }

    def grid(v: Config) -> bool:
        first, second = (extents[x] for x in nest.lead)
        rows, columns = -(-extents[nest.row] // (v["tr"] * v["rr"])), -(-extents[nest.column] // (v["tc"] * v["rc"]))
        return has_room(target, first, second * rows, columns)

    if math.prod(extents.values()) > target.max_grid[0]:
        where["grid"] = grid
    default = start(knobs, where, lambda v: tile_bytes(v, nest, shape))
    return Space(where=where, default=default, **knobs)


def reference_data(shape: Conv, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The gradient of the image in float64 (integers exactly), tap by tap."""
    nchw, kind = shape.nchw, np.float64 if is_float(shape.dtype) else np.int64
    y, f = np.asarray(dy).astype(kind), np.asarray(w).astype(kind)
    if not nchw:
        y, f = y.transpose(0, 3, 1, 2), f.transpose(0, 3, 1, 2)
    pad, groups, h, wd = shape.pad, shape.groups, shape.h, shape.w
    kg, cg = shape.k // groups, shape.cg
    dx = np.zeros((shape.n, shape.c, h + 2 * pad, wd + 2 * pad), kind)
    for i in range(groups):
        mine = slice(i * kg, (i + 1) * kg)
        for r, s, rows, columns in _taps(shape):
            part = np.einsum("nkpq,kc->ncpq", y[:, mine], f[mine, :, r, s])
            dx[:, i * cg : (i + 1) * cg, rows, columns] += part
    dx = dx[:, :, pad : pad + h, pad : pad + wd]
    return np.ascontiguousarray(dx if nchw else dx.transpose(0, 2, 3, 1)).astype(out_dtype(shape.dtype))


def reference_weight(shape: Conv, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The gradient of the filter in float64 (integers exactly), tap by tap."""
    nchw, kind = shape.nchw, np.float64 if is_float(shape.dtype) else np.int64
    a, y = np.asarray(x).astype(kind), np.asarray(dy).astype(kind)
    if not nchw:
        a, y = a.transpose(0, 3, 1, 2), y.transpose(0, 3, 1, 2)
    pad, groups = shape.pad, shape.groups
    a = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    kg, cg = shape.k // groups, shape.cg
    dw = np.zeros((shape.k, cg, shape.r, shape.s), kind)
    for i in range(groups):
        mine = slice(i * kg, (i + 1) * kg)
        for r, s, rows, columns in _taps(shape):
            dw[mine, :, r, s] = np.einsum("nkpq,ncpq->kc", y[:, mine], a[:, i * cg : (i + 1) * cg, rows, columns])
    return np.ascontiguousarray(dw if nchw else dw.transpose(0, 2, 3, 1)).astype(out_dtype(shape.dtype))


def _taps(shape: Conv) -> list[tuple[int, int, slice, slice]]:
    """Each tap with the rows and columns of the padded image that it meets."""
    st, d = shape.stride, shape.dilation

    def met(tap: int, results: int) -> slice:
        return slice(tap * d, tap * d + (results - 1) * st + 1, st)

    return [(r, s, met(r, shape.p), met(s, shape.q)) for r in range(shape.r) for s in range(shape.s)]
