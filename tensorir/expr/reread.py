"""Copies declarations with tensors replaced, or dims replaced by numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorir.expr.bounds import check_accesses
from tensorir.expr.program import computes_of, dims_of
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.build import as_expr
from tensorir.ir.dims import at
from tensorir.ir.structure import among
from tensorir.ir.tree import Buffer, Expr, Load, PadLoad, Var
from tensorir.ir.visit import Rewriter, substitute


class Reread(Rewriter):
    """Rewriter of expressions: ``buffers`` and ``axes`` map buffers that are read, and variables, to others; what they
    lack stays.
    """

    def __init__(self, buffers: Mapping[Buffer, Buffer], axes: Mapping[Var, Var] | None = None) -> None:
        self.buffers, self.axes = buffers, axes or {}

    def on_Var(self, n: Var) -> Var:
        return self.axes.get(n, n)

    def on_Load(self, n: Load) -> Load:
        return n.map(self).replace(buffer=self.buffers.get(n.buffer, n.buffer))

    def on_PadLoad(self, n: PadLoad) -> PadLoad:
        return n.map(self).replace(buffer=self.buffers.get(n.buffer, n.buffer))

    def on_Reduce(self, n: Expr) -> Expr:
        axes = tuple(self.axes.get(a, a) for a in n.axes)  # type: ignore[attr-defined]
        return n.map(self).replace(axes=axes)


def with_dims(outputs: Sequence[Tensor], dims: Mapping[Var, int]) -> tuple[Tensor, ...]:
    """Return copies of ``outputs`` declared with the constants ``dims`` in place of symbolic dims; arguments keep their
    order.
    """
    if not dims:
        return tuple(outputs)
    ops, made = computes_of(outputs), dict[Tensor, Tensor]()
    numbers = {v: as_expr(n) for v, n in dims.items()}

    def shaped(t: Tensor, op: Compute | None) -> Tensor:
        new = Tensor(t.name, tuple(at(n, dims) for n in t.shape), t.dtype, op, data=t.buffer.data)
        new.order = t.order
        return new

    for op in ops:
        made.update({t: shaped(t, None) for t in op.inputs if t.op is None and t not in made})
        axes = [v for b in op.bodies for v in getattr(b, "axes", ()) if isinstance(v.extent, Expr)]
        reduced = {v: v.replace(extent=at(v.extent, dims)) for v in axes}
        swap = Reread({old.buffer: new.buffer for old, new in made.items()}, reduced)
        bodies = tuple(substitute(swap(b), numbers) for b in op.bodies)
        again = Compute(op.name, op.axes, tuple(at(n, dims) for n in op.extents), bodies)
        again.outputs = tuple(shaped(t, again) for t in op.outputs)
        made.update(zip(op.outputs, again.outputs, strict=True))
    return tuple(made[t] for t in outputs)


def at_largest(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return copies of ``outputs`` with each symbolic dim replaced by its largest value."""
    return with_dims(outputs, {v: v.bounds[1] for v in dims_of(outputs) if v.bounds is not None})


def declared(name: str, axes: Sequence[Var], extents: Sequence[Any], body: Expr) -> Tensor:
    """The tensor of a new compute with one result. Raises DeclarationError as ``compute`` does."""
    op = Compute(name, tuple(axes), tuple(extents), (body,))
    check_accesses(op)
    op.outputs = (Tensor(name, op.extents, body.dtype, op),)
    return op.outputs[0]


def with_other(outputs: Sequence[Tensor], old: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    """Return ``outputs`` with every use of tensor ``old`` replaced by ``new``, of the same shape: computes that depend
    on ``old`` are declared again, other outputs are returned as they are. Raises DeclarationError as ``compute`` does.
    """
    made = {old: new}
    for op in computes_of(outputs):
        if among(old, op.outputs) or not any(t in made for t in op.inputs):
            continue
        swap = Reread({t.buffer: other.buffer for t, other in made.items()})
        again = Compute(op.name, op.axes, op.extents, tuple(swap(b) for b in op.bodies))
        check_accesses(again)
        again.outputs = tuple(Tensor(t.name, t.shape, t.dtype, again) for t in op.outputs)
        made.update(zip(op.outputs, again.outputs, strict=True))
    return tuple(made.get(t, t) for t in outputs)
