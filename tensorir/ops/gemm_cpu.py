"""The CPU algorithms of matmul: for each what it computes, and its schedule (``gemm_spaces``: where to start).

All keep a register tile of a few rows by some vectors of columns: per step of the reduction one broadcast a row, one
load a vector and a multiply-add for each pair. They differ in how the operands get there:

column: the whole reduction in registers; b in panels that are packed inside the block, by a kernel of its own, or once
strip:  the reduction in pieces and the sums of a strip of columns in block memory, so that b is read in long runs that
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir import nn
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.tree import Expr
from tensorir.ops.common import Config, accumulator, last_stage, result_type, unroll_by, vector_lanes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule

Given = Mapping[str, Any]
Shape = Mapping[str, Any]


# --- declarations ----------------------------------------------------------------------------------------------------


def _operands(given: Given, shape: Shape, pack_a: bool, padded_k: int) -> tuple[Any, Any]:
    """Functions ``left(*batch, i, k)`` and ``right(*batch, k, j)``: elements in the type of the sums, 0 outside."""
    a, b = given["a"], given["b"]
    wide = accumulator(a.dtype)

    def read(x: Tensor, at: Sequence[Expr], swapped: bool, outside: bool) -> Expr:
        where = (*at[:-2], at[-1], at[-2]) if swapped else tuple(at)
        value: Expr = x.get(*where, fill=0) if outside else x[where]
        return cast(value, wide) if wide else value

    def in_place(*at: Expr) -> Expr:
        return read(a, at, shape["ta"], padded_k > shape["k"])

    def right(*at: Expr, outside: bool = False) -> Expr:
        return read(b, at, shape["tb"], outside or padded_k > shape["k"])

    if not pack_a:
        return in_place, right
    rows = compute((*_lead(shape), shape["m"], padded_k), in_place, "rows", axes=(*_z(shape), "i", "k"))
    return (lambda *at: rows[at]), right


def column(given: Given, shape: Shape, c: Config) -> Tensor:
    """The product through packed panels.

    Intermediates: panels (n/width, k, n%width), sums (m, n rounded up to the width), with pack_a rows (m, k)
    """
    width, n = vector_lanes(shape) * c["vectors"], shape["n"]
    left, right = _operands(given, shape, bool(c["pack_a"]), shape["k"])
    count, kk = -(-n // width), reduce_axis(shape["k"], "k")

    def packed(*at: Expr) -> Expr:
        *z, jo, k, ji = at
        return right(*z, k, jo * width + ji, outside=n % width > 0)  # type: ignore[no-any-return]

    lead, z = _lead(shape), _z(shape)
    panels = compute((*lead, count, shape["k"], width), packed, "panels", axes=(*z, "jo", "k", "ji"))

    def product(*at: Expr) -> Expr:
        *z, i, j = at
        return total(left(*z, i, kk) * panels[(*z, j // width, kk, j % width)], axis=kk)

    sums = compute((*lead, shape["m"], count * width), product, "sums", axes=(*z, "i", "j"))
    return _epilogue(given, shape, sums)


def strip(given: Given, shape: Shape, c: Config) -> Tensor:
    """The product as sums over pieces of k.

    Intermediates: part (k/depth, m, n), sums (m, n), unless pack is "none" panels (k/depth, n/width, depth, n%width)
    """
    width, n, k, depth = vector_lanes(shape) * c["vectors"], shape["n"], shape["k"], c["depth"]
    pieces = -(-k // depth)
    left, right = _operands(given, shape, bool(c["pack_a"]), pieces * depth)
    lead, z = _lead(shape), _z(shape)
    inner, outer = reduce_axis(depth, "k"), reduce_axis(pieces, "q")
    columns = n if c["pack"] == "none" else -(-n // width) * width

    def packed(*at: Expr) -> Expr:
        *z, q, jo, k, ji = at
        return right(*z, q * depth + k, jo * width + ji, outside=n % width > 0)  # type: ignore[no-any-return]

    if c["pack"] != "none":
        shaped = (*lead, pieces, columns // width, depth, width)
        panels = compute(shaped, packed, "panels", axes=(*z, "q", "jo", "k", "ji"))

    def piece(*at: Expr) -> Expr:
        *z, q, i, j = at
        k = q * depth + inner
        b = right(*z, k, j) if c["pack"] == "none" else panels[(*z, q, j // width, inner, j % width)]
        return total(left(*z, i, k) * b, axis=inner)

    part = compute((*lead, pieces, shape["m"], columns), piece, "part", axes=(*z, "q", "i", "j"))

    def product(*at: Expr) -> Expr:
        *z, i, j = at
        return total(part[(*z, outer, i, j)], axis=outer)

    sums = compute((*lead, shape["m"], columns), product, "sums", axes=(*z, "i", "j"))
    return _epilogue(given, shape, sums)


def dot(given: Given, shape: Shape, c: Config) -> Tensor:
    """The product of rows of a and rows of a transposed b, summed in vectors along k.

    Intermediates: part (m, n, lanes), sums (m, n), with pack_a rows (m, k)
    """
    lanes, k = vector_lanes(shape), shape["k"]
    steps = -(-k // lanes)
    left, right = _operands(given, shape, bool(c["pack_a"]), steps * lanes)
    step, lane = reduce_axis(steps, "k"), reduce_axis(lanes, "l")
    lead, z = _lead(shape), _z(shape)

    def products(*at: Expr) -> Expr:
        *z, i, j, v = at
        return total(left(*z, i, step * lanes + v) * right(*z, step * lanes + v, j), axis=step)

    part = compute((*lead, shape["m"], shape["n"], lanes), products, "part", axes=(*z, "i", "j", "v"))
    whole = (*lead, shape["m"], shape["n"])
    sums = compute(whole, lambda *at: total(part[(*at, lane)], axis=lane), "sums", axes=(*z, "i", "j"))
    return _epilogue(given, shape, sums)


def _lead(shape: Shape) -> tuple[int, ...]:
    return (shape["batch"],) if shape["batch"] > 1 else ()


def _z(shape: Shape) -> tuple[str, ...]:
    return ("z",) if shape["batch"] > 1 else ()


def _epilogue(given: Given, shape: Shape, sums: Tensor) -> Tensor:
    """What ``matmul`` declares behind the product, under the same names."""
    whole = (*_lead(shape), shape["m"], shape["n"])
    c = compute(whole, lambda *at: sums[at], "c", axes=(*_z(shape), "i", "j"))
    return epilogue(given, shape, c)


def epilogue(given: Given, shape: Shape, c: Tensor) -> Tensor:
    """``act(alpha c + beta d + bias)`` in the type of the operands, integers in that of the sums."""
    out = nn.bias_act(c, given["bias"], shape["act"], axis=c.ndim - 1,
                      alpha=given["alpha"], d=given["d"], beta=given["beta"])  # fmt: skip
    return nn.convert(out, result_type(shape["dtype"])) if accumulator(shape["dtype"]) == "float32" else out


# --- schedules -------------------------------------------------------------------------------------------------------


def cpu_column(s: Schedule, c: Config, shape: Shape) -> Schedule:
    """c: ``panels`` and ``rows`` (0: all) of a block, register tile ``tile`` x ``vectors``, ``pack`` b in each block or
    in a kernel, ``pack_a`` first, ``unroll_k``
    """
    lanes, z = vector_lanes(shape), _z(shape)
    out = last_stage(s, "c")
    jb, jp, jh, jl = s.split(f"{out}.j", [None, c["panels"], c["vectors"], lanes])
    ib, i = _row_blocks(s, f"{out}.i", c["rows"])
    i0, i1 = s.split(i, [None, c["tile"]], tail="balanced")
    s.reorder(*(f"{out}.{v}" for v in z), jb, *ib, jp, i0, i1, jh, jl)
    _bind(s, out, z, jb, ib)
    s.compute_at("sums", i0)
    register_tile(s, "sums", "k", z, lanes, c["unroll_k"])
    s.unroll(i1).unroll(jh).vectorize(jl)
    _pack_b(s, c, shape, ib[0] if ib else jb)
    _pack_a(s, c, shape)
    return s


def cpu_strip(s: Schedule, c: Config, shape: Shape) -> Schedule:
    """c: ``columns`` and ``rows`` (0: all) of a block, ``depth`` of a piece of k, register tile ``tile`` x ``vectors``,
    ``pack`` b nowhere, per tile of columns ("panel") or in a kernel, ``pack_a`` first, ``unroll_k``
    """
    lanes, z = vector_lanes(shape), _z(shape)
    out = last_stage(s, "c")
    jb, j = s.split(f"{out}.j", [None, c["columns"]], tail="shift" if c["pack"] == "none" else "guard")
    jv, jl = s.split(j, [None, lanes])
    ib, i = _row_blocks(s, f"{out}.i", c["rows"])
    s.reorder(*(f"{out}.{v}" for v in z), jb, *ib, i, jv, jl)
    _bind(s, out, z, jb, ib)
    s.vectorize(jl)
    s.set_scope("sums", "shared")
    s.compute_at("sums", ib[0] if ib else jb)
    if shape["k"] % c["depth"] and shape["k"] > c["depth"] and not c["pack_a"]:
        s.partition("sums.q", [shape["k"] // c["depth"]])
    jt, jh, jl = s.split("sums.j", [None, c["vectors"], lanes])
    i0, i1 = s.split("sums.i", [None, c["tile"]], tail="balanced")
    s.reorder(*(f"sums.{v}" for v in z), "sums.q", jt, i0, i1, jh, jl)
    s.compute_at("part", i0)
    register_tile(s, "part", "k", z, lanes, c["unroll_k"])
    s.unroll(i1).unroll(jh).vectorize(jl)
    if c["pack"] != "none":
        _pack_b(s, c, shape, jt)
    _pack_a(s, c, shape)
    return s


def cpu_dot(s: Schedule, c: Config, shape: Shape) -> Schedule:
    """c: ``columns`` and ``rows`` (0: all) of a block, register tile of ``tile`` x ``outputs`` vectors of partial sums,
    ``pack_a`` first, ``unroll_k``
    """
    z = _z(shape)
    out = last_stage(s, "c")
    jb, j = s.split(f"{out}.j", [None, c["columns"]], tail="shift")
    j0, j1 = s.split(j, [None, c["outputs"]], tail="balanced")
    ib, i = _row_blocks(s, f"{out}.i", c["rows"])
    i0, i1 = s.split(i, [None, c["tile"]], tail="balanced")
    s.reorder(*(f"{out}.{v}" for v in z), jb, *ib, j0, i0, i1, j1)
    _bind(s, out, z, jb, ib)
    s.compute_at("sums", i0)
    s.compute_at("part", i0)
    s.reorder(*(f"part.{v}" for v in z), "part.k", "part.i", "part.j", "part.v")
    s.unroll("part.i").unroll("part.j").vectorize("part.v")
    if shape["k"] % vector_lanes(shape) and shape["k"] > vector_lanes(shape) and not c["pack_a"]:
        s.partition("part.k", [shape["k"] // vector_lanes(shape)])
    unroll_by(s, "part.k", c["unroll_k"])
    s.unroll("sums.i").unroll("sums.j").unroll("sums.l").unroll(i1).unroll(j1)
    _pack_a(s, c, shape)
    return s


def _row_blocks(s: Schedule, i: str, rows: int) -> tuple[list[Any], Any]:
    """The block loop over rows, if there is one, and the loop inside; the last block is moved back."""
    if not rows:
        return [], i
    ib, inside = s.split(i, [None, rows], tail="shift")
    return [ib], inside


def _bind(s: Schedule, out: str, z: Sequence[str], jb: Any, ib: Sequence[Any]) -> None:
    s.bind(jb, "block.x")
    for loop, axis in (*((b, "block.y") for b in ib), *((f"{out}.{v}", "block.z") for v in z)):
        s.bind(loop, axis)


def register_tile(s: Schedule, stage: str, k: str, z: Sequence[str], lanes: int, unroll: int) -> None:
    """A register tile with the reduction outside, rows and vectors written out."""
    half, lane = s.split(f"{stage}.j", [None, lanes])
    s.reorder(*(f"{stage}.{v}" for v in z), f"{stage}.{k}", f"{stage}.i", half, lane)
    s.unroll(f"{stage}.i").unroll(half).vectorize(lane)
    unroll_by(s, f"{stage}.{k}", unroll)


def _pack_b(s: Schedule, c: Config, shape: Shape, block: Any) -> None:
    """Panels in the memory of each block, by a kernel of their own, or by one that runs once."""
    if c["pack"] in ("block", "panel"):
        s.set_scope("panels", "shared")
        s.compute_at("panels", block)
    else:
        s.bind("panels.jo", "block.x")
        for v in _z(shape):
            s.bind(f"panels.{v}", "block.z")
        if shape["prepack"]:
            s.run_once("panels")
    half, lane = s.split("panels.ji", [None, vector_lanes(shape)])
    s.unroll(half).vectorize(lane)


def _pack_a(s: Schedule, c: Config, shape: Shape) -> None:
    """Rows of a in the type of the sums, by a kernel of their own."""
    if not c["pack_a"]:
        return
    block, inside = s.split("rows.i", [None, 8])
    if shape["ta"]:
        s.reorder("rows.k", inside)
    else:
        _, lane = s.split("rows.k", [None, vector_lanes(shape)])
        s.vectorize(lane)
    s.bind(block, "block.x")
    for v in _z(shape):
        s.bind(f"rows.{v}", "block.z")
