"""Declarations that read other tensors in place of those that they were made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorir.expr.bounds import check_accesses
from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.tree import Buffer, Expr, Load, PadLoad, Var
from tensorir.ir.visit import Rewriter


class Reread(Rewriter):
    """An expression with other buffers read, and other reduce axes."""

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


def with_other(outputs: Sequence[Tensor], old: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    """Return ``outputs`` with tensor ``new``, of the same shape, wherever ``old`` is read or is one of them."""
    made = {old: new}
    for op in computes_of(outputs):
        if old in op.outputs or not any(t in made for t in op.inputs):
            continue
        swap = Reread({t.buffer: other.buffer for t, other in made.items()})
        again = Compute(op.name, op.axes, op.extents, tuple(swap(b) for b in op.bodies))
        check_accesses(again)
        again.outputs = tuple(Tensor(t.name, t.shape, t.dtype, again) for t in op.outputs)
        made.update(zip(op.outputs, again.outputs, strict=True))
    return tuple(made.get(t, t) for t in outputs)
