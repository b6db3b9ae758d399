"""Substitutes values for symbolic dims in schedules and lowered kernels, so that checks can run them at
several shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorir.check.different import PRIME_DIMS, reaching, values_apart
from tensorir.expr.program import computes_of, dims_of
from tensorir.expr.reread import with_dims
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import as_expr
from tensorir.ir.dims import dims_in
from tensorir.ir.tree import Buffer, Expr, Program, Reduce, Var
from tensorir.ir.visit import reads, substitute, swap_buffers, writes
from tensorir.lower.kernel import Kernel, Module
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target


@dataclass(frozen=True, eq=False)
class AtDims:
    """Fields of a schedule with constants in place of its symbolic dims, as checks read them."""

    outputs: tuple[Tensor, ...]
    began_with: tuple[Tensor, ...]
    allowed_error: float | None
    program: Program
    target: Target


def dim_values(outputs: Sequence[Tensor], extents: Mapping[Var, int]) -> dict[Var, int]:
    """Return {symbolic dim: value} that gives axes the wanted ``extents``, clipped to the dims' declared ranges.

    Dims without an axis in ``extents`` get small primes that vary with the shape. Dims with different wanted values get
    different ones if their ranges allow it.
    """
    wanted: dict[Var, int] = {}
    for op in computes_of(outputs):
        axes = [*zip(op.axes, op.extents, strict=True)]
        axes += [(v, v.extent) for b in op.bodies if isinstance(b, Reduce) for v in b.axes]
        for v, n in sorted(axes, key=lambda a: not isinstance(a[1], Var)):  # an axis as long as the dim says it best
            if v in extents and len(found := dims_in(n)) == 1:
                wanted.setdefault(found[0], extents[v] if n is found[0] else reaching(n, found[0], extents[v]))
    dims, turn = dims_of(outputs), sum(extents.values())
    return values_apart(dims, {d: wanted.get(d, PRIME_DIMS[(k + turn) % len(PRIME_DIMS)]) for k, d in enumerate(dims)})


def constant_extents(extents: Mapping[Var, int], axes: Mapping[str, tuple[Var, object]]) -> dict[Var, int]:
    """Return the entries of ``extents`` whose axes have a constant declared extent, no symbolic dim (``resize`` takes
    these).
    """
    open_axes = {v for v, n in axes.values() if isinstance(n, Expr)}
    return {v: n for v, n in extents.items() if v not in open_axes}


def module_at(module: Module, dims: Mapping[Var, int]) -> Module:
    """Copy of lowered kernels with symbolic dims replaced by constants, as in one launch."""
    if not dims:
        return module
    numbers: dict[Var, Expr] = {v: as_expr(n) for v, n in dims.items()}
    made: dict[Buffer, Buffer] = {}

    def fixed(b: Buffer) -> Buffer:
        if b not in made:
            made[b] = b.replace(shape=tuple(substitute(e, numbers) for e in b.shape))
        return made[b]

    def kernel(k: Kernel) -> Kernel:
        swap = {b: fixed(b) for b in (*k.params, *reads(k.body), *writes(k.body)) if b in known}
        return replace(
            k, params=tuple(map(fixed, k.params)), scalars=tuple(v for v in k.scalars if v not in dims),
            axes=tuple(x.replace(extent=substitute(x.extent, numbers)) for x in k.axes),
            body=swap_buffers(substitute(k.body, numbers), swap),
        )  # fmt: skip

    known = {*module.inputs, *module.outputs, *module.workspace}
    return replace(
        module, inputs=tuple(map(fixed, module.inputs)), outputs=tuple(map(fixed, module.outputs)),
        workspace=tuple(map(fixed, module.workspace)), kernels=tuple(map(kernel, module.kernels)),
        scalars=tuple(v for v in module.scalars if v not in dims),
        facts=tuple(f.replace(buffer=fixed(f.buffer)) for f in module.facts),
    )  # fmt: skip


def schedule_at(s: BaseSchedule, dims: Mapping[Var, int]) -> AtDims:
    """Fields of schedule ``s`` with its symbolic dims replaced by the constants ``dims``."""
    return AtDims(with_dims(s.outputs, dims), with_dims(s.began_with, dims), s.allowed_error, s.program, s.target)
