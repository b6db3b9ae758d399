"""Value ranges of axes and tensor elements in declarations."""

from __future__ import annotations

import math

from tensorir.arith.affine import UNKNOWN, Arith, Interval
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.build import as_expr, binary
from tensorir.ir.dims import most, span
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, Expr, Placed, Reduce, Var

_STATE = {"min": 0, "max": 0, "argmin": 1, "argmax": 1}
"""The value of a combiner's state that is always one of the terms', if there is a term."""


def axes_of(op: Compute) -> list[tuple[Var, int | Expr]]:
    """[(axis, extent)] of a declaration, its reduce axes included."""
    reduced = [a for body in op.bodies if isinstance(body, Reduce) for a in body.axes]
    return [*zip(op.axes, op.extents, strict=True), *((a, a.extent) for a in reduced)]


def ranges_of(op: Compute) -> dict[Var, Interval]:
    """{axis: (0, largest value)} of a declaration, reduce axes included, at the largest dims; (0, -1) for an empty
    axis.
    """
    return {a: (0, most(as_expr(n)) - 1) for a, n in axes_of(op)}


def ends_of(op: Compute) -> tuple[Expr, ...]:
    """Conditions ``axis < extent`` for the axes whose extent depends on dims."""
    return tuple([binary("<", a, n) for a, n in axes_of(op) if isinstance(n, Expr)])


def arith_of(op: Compute) -> Arith:
    """An Arith that knows the ranges of a declaration's axes and of the elements that it reads."""
    arith = Arith(ranges_of(op))
    arith.elements = element_range
    for end in ends_of(op):
        arith.assume(end)
    return arith


def element_range(b: Buffer) -> Interval:
    """(lowest, highest) value of a tensor's elements, for integers and booleans; unbounded for floats.

    That of the values for constants, of the dtype for inputs; derived from the definition for computed tensors, and
    cached in ``Compute.ranges``.
    """
    kind, t = DTYPES[b.dtype], b.origin
    if kind.kind not in "iu":
        return (0, 1) if kind.kind == "b" else UNKNOWN
    own = float(kind.low), float(kind.high)
    if b.data:
        return float(min(b.data)), float(max(b.data))
    if not isinstance(t, Tensor) or t.op is None or t.buffer is not b:
        return own
    if t not in t.op.ranges:
        t.op.ranges[t] = own  # of what it reads itself nothing else is known meanwhile
        low, high = _computed(t.op, next(x for x, o in zip(t.op.bodies, t.op.outputs, strict=True) if o is t))
        t.op.ranges[t] = (low, high) if own[0] <= low and high <= own[1] else own
    return t.op.ranges[t]


def _computed(op: Compute, body: Expr) -> Interval:
    """(lowest, highest) value of ``body`` before wrap-around; unbounded if unknown."""
    if any(high < low for low, high in ranges_of(op).values() if not isinstance(body, Reduce)):
        return UNKNOWN
    arith = arith_of(op)
    if not isinstance(body, Reduce):
        return arith.range(body)
    name, terms = body.combiner.name, math.prod(most(as_expr(v.extent)) for v in body.axes)
    if isinstance(body.part, Placed) or name not in ("sum", *_STATE):
        return UNKNOWN
    low, high = arith.range(body.values[body.which])
    if name == "sum":
        return min(0, terms * low), max(0, terms * high)
    if _STATE[name] != body.which:
        return UNKNOWN
    if body.part is None and all(span(as_expr(v.extent))[0] > 0 for v in body.axes):
        return low, high
    start = float(body.combiner.identity[body.which].value)  # there may be no term
    return min(low, start), max(high, start)
