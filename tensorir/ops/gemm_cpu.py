"""The CPU schedules of matmul's definition (``gemm_spaces``: where to start).

All keep a register tile of a few rows by some vectors of columns: per step of the reduction one broadcast a row, one
load a vector and a multiply-add for each pair. They differ in how the operands get there:

column: the whole reduction in registers; b in panels that are packed inside the block, by a kernel of its own, or once
strip:  the reduction in pieces and the sums of a strip of columns in block memory, so that b is read in long runs that
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir import nn
from tensorir.expr.tensor import Tensor
from tensorir.ops.common import Config, out_stage, unroll_by
from tensorir.ops.problems import Gemm, result_type

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule

Given = Mapping[str, Any]


def epilogue(given: Given, shape: Gemm, c: Tensor) -> Tensor:
    """``act(alpha c + beta d + bias)`` in the type of the operands, integers in that of the sums."""
    converts = shape.wide == "float32"
    out = nn.bias_act(c, given["bias"], shape.act, axis=c.ndim - 1, alpha=given["alpha"], d=given["d"],
                      beta=given["beta"], name="epilogue" if converts else "out")  # fmt: skip
    return nn.convert(out, result_type(shape.dtype), name="out") if converts else out


def cpu_column(s: Schedule, c: Config, shape: Gemm) -> Schedule:
    """c: ``panels`` and ``rows`` (0: all) of a block, register tile ``tile`` x ``vectors``, ``pack`` b in each block or
    in a kernel, ``pack_a`` first, ``unroll_k``
    """
    lanes, z = shape.vector_lanes, _z(shape)
    width = lanes * c["vectors"]
    _pack(s, shape, ({"a": "i, k"} if c["pack_a"] else {}) | {"b": f"jo = j/{width}, k, ji = j%{width}"})
    out = out_stage(s, "c")
    jb, jp, jh, jl = s.split(f"{out}.j", [None, c["panels"], c["vectors"], lanes])
    ib, i = _row_blocks(s, f"{out}.i", c["rows"])
    i0, i1 = s.split(i, [None, c["tile"]], tail="balanced")
    s.reorder(*(f"{out}.{v}" for v in z), jb, *ib, jp, i0, i1, jh, jl)
    _bind(s, out, z, jb, ib)
    s.compute_at("c", i0)
    register_tile(s, "c", "k", z, lanes, c["unroll_k"])
    s.unroll(i1).unroll(jh).vectorize(jl)
    _pack_b(s, c, shape, ib[0] if ib else jb)
    _pack_a(s, c, shape)
    return s


def cpu_strip(s: Schedule, c: Config, shape: Gemm) -> Schedule:
    """c: ``columns`` and ``rows`` (0: all) of a block, ``depth`` of a piece of k, register tile ``tile`` x ``vectors``,
    ``pack`` b nowhere, per tile of columns ("panel") or in a kernel, ``pack_a`` first, ``unroll_k``
    """
    lanes, z, depth = shape.vector_lanes, _z(shape), c["depth"]
    width = lanes * c["vectors"]
    packed = {"a": "i, k = (q, k)"} if c["pack_a"] else {}
    packed |= {} if c["pack"] == "none" else {"b": f"q, jo = j/{width}, k, ji = j%{width}"}
    _pack(s, shape, packed, f"q = k/{depth}, k = k%{depth}")
    s.rfactor("c", "c.q")
    out = out_stage(s, "c", "shared")
    if out != "c.out":  # an epilogue
        s.set_scope("c", "shared")
    jb, j = s.split(f"{out}.j", [None, c["columns"]], tail="shift" if c["pack"] == "none" else "guard")
    jv, jl = s.split(j, [None, lanes])
    ib, i = _row_blocks(s, f"{out}.i", c["rows"])
    s.reorder(*(f"{out}.{v}" for v in z), jb, *ib, i, jv, jl)
    _bind(s, out, z, jb, ib)
    s.vectorize(jl)
    s.compute_at("c", ib[0] if ib else jb)
    if shape.k % depth and shape.k > depth and not c["pack_a"]:
        s.partition("c.rf", [shape.k // depth])
    jt, jh, jl = s.split("c.j", [None, c["vectors"], lanes])
    i0, i1 = s.split("c.i", [None, c["tile"]], tail="balanced")
    s.reorder(*(f"c.{v}" for v in z), "c.rf", jt, i0, i1, jh, jl)
    s.compute_at("c.rf", i0)
    register_tile(s, "c.rf", "k", z, lanes, c["unroll_k"])
    s.unroll(i1).unroll(jh).vectorize(jl)
    if c["pack"] != "none":
        _pack_b(s, c, shape, jt)
    _pack_a(s, c, shape)
    return s


def cpu_dot(s: Schedule, c: Config, shape: Gemm) -> Schedule:
    """c: ``columns`` and ``rows`` (0: all) of a block, register tile of ``tile`` x ``outputs`` vectors of partial sums,
    ``pack_a`` first, ``unroll_k``
    """
    z, lanes = _z(shape), shape.vector_lanes
    _pack(s, shape, {"a": "i, k = (k, l)"} if c["pack_a"] else {}, f"k = k/{lanes}, l = k%{lanes}")
    s.rfactor("c", "c.l")
    out = out_stage(s, "c")
    jb, j = s.split(f"{out}.j", [None, c["columns"]], tail="shift")
    j0, j1 = s.split(j, [None, c["outputs"]], tail="balanced")
    ib, i = _row_blocks(s, f"{out}.i", c["rows"])
    i0, i1 = s.split(i, [None, c["tile"]], tail="balanced")
    s.reorder(*(f"{out}.{v}" for v in z), jb, *ib, j0, i0, i1, j1)
    _bind(s, out, z, jb, ib)
    s.compute_at("c", i0)
    s.compute_at("c.rf", i0)
    s.reorder(*(f"c.rf.{v}" for v in z), "c.rf.k", "c.rf.i", "c.rf.j", "c.rf.rf")
    s.unroll("c.rf.i").unroll("c.rf.j").vectorize("c.rf.rf")
    if shape.k % lanes and shape.k > lanes and not c["pack_a"]:
        s.partition("c.rf.k", [shape.k // lanes])
    unroll_by(s, "c.rf.k", c["unroll_k"])
    s.unroll("c.i").unroll("c.j").unroll("c.rf").unroll(i1).unroll(j1)
    _pack_a(s, c, shape)
    return s


def _pack(s: Schedule, shape: Gemm, packed: Mapping[str, str], k: str = "k") -> None:
    """Walk the reduction by ``k``, and copies of operands in the type of the sums, ``packed`` as name -> axes."""
    lead = "z, " if _z(shape) else ""
    view = f"{lead}i, j | k -> {lead}i, j, {k}"
    s.reindex("c", view, reads={x: lead + axes for x, axes in packed.items()}, dtype=shape.wide)


def _z(shape: Gemm) -> tuple[str, ...]:
    return ("z",) if shape.batch > 1 else ()


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


def _pack_b(s: Schedule, c: Config, shape: Gemm, block: Any) -> None:
    """Panels in the memory of each block, by a kernel of their own, or by one that runs once."""
    if c["pack"] in ("block", "panel"):
        s.set_scope("b_packed", "shared")
        s.compute_at("b_packed", block)
    else:
        s.bind("b_packed.jo", "block.x")
        for v in _z(shape):
            s.bind(f"b_packed.{v}", "block.z")
        if shape.prepack:
            s.run_once("b_packed")
    half, lane = s.split("b_packed.ji", [None, shape.vector_lanes])
    s.unroll(half).vectorize(lane)


def _pack_a(s: Schedule, c: Config, shape: Gemm) -> None:
    """Rows of a in the type of the sums, by a kernel of their own."""
    if not c["pack_a"]:
        return
    block, inside = s.split("a_packed.i", [None, 8])
    if shape.ta:
        s.reorder("a_packed.k", inside)
    else:
        _, lane = s.split("a_packed.k", [None, shape.vector_lanes])
        s.vectorize(lane)
    s.bind(block, "block.x")
    for v in _z(shape):
        s.bind(f"a_packed.{v}", "block.z")
