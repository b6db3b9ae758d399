"""Reductions inside larger expressions: each becomes a compute of its own, which the expression reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.structure import among
from tensorir.ir.tree import Expr, Reduce, Var
from tensorir.ir.visit import Rewriter, find, substitute


def epilogue(
    body: Expr, name: str, axes: Sequence[Var], extents: Sequence[int], check: Callable[[Compute], None]
) -> Expr:
    """``body`` with every reduction inside it read from a compute of its own, which is named after it, ``C_sum``.

    That compute has the axes alone on which the reduction depends: a mean of rows is computed once for each row.
    check: refuses a compute whose accesses are not in range
    """
    inside = _Apart(name, dict(zip(axes, extents, strict=True)), check)
    return body.map(inside) if isinstance(body, Reduce) else inside(body)


class _Apart(Rewriter):
    def __init__(self, name: str, axes: dict[Var, int], check: Callable[[Compute], None]) -> None:
        self.name, self.axes, self.check = name, axes, check
        self.made: dict[tuple[int, ...], tuple[tuple[Tensor, ...], tuple[Var, ...]]] = {}
        self.kept: list[Reduce] = []  # whose ids are keys

    def on_Reduce(self, n: Reduce) -> Expr:
        key = (id(n.combiner), *map(id, n.axes), *map(id, n.values))
        if key not in self.made:
            self.kept.append(n)
            self.made[key] = self._compute(n.map(self))
        tensors, used = self.made[key]
        return tensors[n.which][used]

    def _compute(self, n: Reduce) -> tuple[tuple[Tensor, ...], tuple[Var, ...]]:
        within = {v for e in n.values for v in find(e, Var)}
        outer = [v for v in within if v.extent is not None and not among(v, n.axes)]
        used = (*(v for v in self.axes if v in within), *sorted(outer, key=lambda v: v.name))
        own = tuple(Var(v.name, "index") for v in used)
        sizes = tuple(self.axes[v] if v in self.axes else int(v.extent) for v in used)
        values = tuple(substitute(e, dict(zip(used, own, strict=True))) for e in n.values)
        bodies = tuple(n.replace(values=values, which=w, dtype=e.dtype) for w, e in enumerate(values))
        op = Compute(f"{self.name}_{n.combiner.name}", own, sizes, bodies)
        self.check(op)
        labels = [op.name] if len(bodies) == 1 else [f"{op.name}_{w}" for w in range(len(bodies))]
        op.outputs = tuple(Tensor(label, sizes, b.dtype, op) for label, b in zip(labels, bodies, strict=True))
        return op.outputs, used
