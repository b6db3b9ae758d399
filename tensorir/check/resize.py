"""Declarations, schedules and lowered kernels at other extents.

    A[i, j], i < 64, j < 48   ->   i < 9, j < 5      ``resize``: tensors are as large as what is read of them
    B[i], i < n               ->   i < 7             ``schedule_at``, ``module_at``: values for symbolic dims

So checks run one kernel at several awkward shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorir.arith.affine import Arith
from tensorir.check.different import PRIME_DIMS, reaching, values_apart
from tensorir.expr.bounds import check_accesses, is_gather
from tensorir.expr.program import computes_of, dims_of
from tensorir.expr.reread import Reread, with_dims
from tensorir.expr.tensor import Compute, Tensor
from tensorir.expr.values import ranges_of
from tensorir.ir.build import as_expr
from tensorir.ir.dims import dims_in, most
from tensorir.ir.structure import among, place
from tensorir.ir.tree import Buffer, Expr, Load, PadLoad, Prefix, Program, Reduce, Var
from tensorir.ir.visit import find, reads, substitute, swap_buffers, writes
from tensorir.lower.kernel import Kernel, Module
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

# --- axes of declarations


def resize(outputs: Sequence[Tensor], extents: Mapping[Var, int]) -> tuple[Tensor, ...]:
    """Copies of ``outputs`` over other axis extents; tensors that they read grow or shrink to what is read of them.

    extents: {axis: new extent}, for axes of the computes that make outputs and reduce axes anywhere; other axes keep
             their extents, except those of intermediate tensors, which follow their readers
    Extents that depend on dims stay. If no extent changes, ``outputs`` themselves are returned.
    Raises DeclarationError if some access can no longer be proved in range.
    """
    ops = computes_of(outputs)
    now = {v: n for op in ops for v, n in zip(op.axes, op.extents, strict=True)}
    if all(isinstance(old := now.get(v, v.extent), int) and old == n for v, n in extents.items()):
        return tuple(outputs)
    new_reduce = {
        v: v.replace(extent=type(v.extent)(extents[v]))
        for op in ops
        for b in op.bodies
        for v in getattr(b, "axes", ())
        if v in extents
    }
    sizes: dict[Tensor, tuple[int, ...]] = {}
    new_ranges: dict[Compute, dict[Var, tuple[float, float]]] = {}
    for op in reversed(ops):
        out = op.extents
        final = any(among(t, outputs) for t in op.outputs)
        if final:
            out = tuple(extents.get(a, n) for a, n in zip(op.axes, out, strict=True))
        needs = [_needed(t, ops, new_ranges) for t in op.outputs]
        if any(not among(t, outputs) for t in op.outputs) and any(n is not None for n in needs):
            given = [n for n in needs if n is not None]
            shape = tuple(map(_longest, zip(*given, strict=True)))
            out = tuple(map(_longest, zip(shape, out, strict=True))) if final else shape
        for t in op.outputs:
            sizes[t] = out
        for b in op.bodies:
            if isinstance(b, Reduce) and isinstance(b.part, Prefix) and b.axes[0] not in new_reduce:
                # it has as many terms as elements, of each of its values
                new_reduce[b.axes[0]] = b.axes[0].replace(extent=out[place(b.part.at, op.axes)])
        ranges = ranges_of(op)
        ranges.update({a: (0, most(as_expr(n)) - 1) for a, n in zip(op.axes, out, strict=True)})
        ranges.update({v: (0, most(as_expr(n.extent)) - 1) for v, n in new_reduce.items() if v in ranges})
        new_ranges[op] = ranges
    return _rebuild(outputs, ops, sizes, new_ranges, new_reduce)


def _needed(
    t: Tensor, ops: Sequence[Compute], new_ranges: Mapping[Compute, Mapping[Var, tuple[float, float]]]
) -> tuple[int, ...] | None:
    """Smallest shape of ``t`` that suffices for its readers at their new extents; None if no resized compute reads
    it.
    """
    sides = list(t.shape)
    found: list[list[int]] = [[] for _ in sides]
    for op in ops:
        if op not in new_ranges:
            continue
        before, after = Arith(ranges_of(op)), Arith(new_ranges[op])
        for body in op.bodies:
            for load in find(body, Expr):
                if isinstance(load, Load | PadLoad) and load.buffer is t.buffer:
                    for d, i in enumerate(load.index):
                        found[d].append(_side(i, t.shape[d], before, after))
    if not any(found):
        return None
    return tuple(map(_longest, found))


def _longest(sides: Sequence[Any]) -> Any:
    """The largest of several extents; the first one that depends on dims, if any does."""
    open_ones = [n for n in sides if isinstance(n, Expr)]
    return open_ones[0] if open_ones else max(sides)


def _side(i: Expr, n: Any, before: Arith, after: Arith) -> Any:
    if isinstance(n, Expr):
        return n
    old, new = before.range(i)[1], after.range(i)[1]
    if is_gather(i) or math.isinf(old) or math.isinf(new):
        return n
    return max(1, int(new) + 1 if old < n else n + int(new - old))  # padded and guarded reads keep their overhang


def _rebuild(
    outputs: Sequence[Tensor],
    ops: Sequence[Compute],
    sizes: Mapping[Tensor, tuple[int, ...]],
    new_ranges: Mapping[Compute, Mapping[Var, tuple[float, float]]],
    axes: Mapping[Var, Var],
) -> tuple[Tensor, ...]:
    tensors: dict[Tensor, Tensor] = {}
    for op in ops:
        given = [t for t in op.inputs if t.op is None and t not in tensors]
        for t in sorted(given, key=lambda t: t.order):
            shape = t.shape if t.buffer.data is not None else _needed(t, ops, new_ranges)
            tensors[t] = Tensor(t.name, shape or t.shape, t.dtype, data=t.buffer.data)
            tensors[t].order = t.order
        swap = Reread({old.buffer: new.buffer for old, new in tensors.items()}, axes)
        made = Compute(op.name, op.axes, sizes[op.outputs[0]], tuple(swap(b) for b in op.bodies))
        check_accesses(made)
        made.outputs = tuple(Tensor(t.name, sizes[t], t.dtype, made) for t in op.outputs)
        tensors.update(zip(op.outputs, made.outputs, strict=True))
    return tuple(tensors[t] for t in outputs)


# --- symbolic dims


@dataclass(frozen=True, eq=False)
class AtDims:
    """Fields of a schedule as checks read them: declarations with constants in place of symbolic dims, ``program`` and
    ``target`` unchanged.
    """

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
    """Copy of lowered kernels with symbolic dims replaced by constants, as in one launch; ``module`` itself if ``dims``
    is empty.
    """
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
    """Fields of schedule ``s``, its declarations with symbolic dims replaced by the constants ``dims``; its program
    keeps them.
    """
    return AtDims(with_dims(s.outputs, dims), with_dims(s.began_with, dims), s.allowed_error, s.program, s.target)
