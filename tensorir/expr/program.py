"""Converts declarations to the unscheduled program: one loop nest with one stage per compute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tensorir.arith.affine import Knowing, same
from tensorir.arith.conditions import conjunction
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import shown
from tensorir.expr.bounds import Part, gathered, looked_up
from tensorir.expr.segments import Segment, segments
from tensorir.expr.tensor import Compute, Tensor
from tensorir.expr.values import arith_of
from tensorir.ir.build import as_expr, as_int, binary, cast, const, select
from tensorir.ir.dims import dims_in, most
from tensorir.ir.structure import among, place
from tensorir.ir.tree import (
    Axis,
    Buffer,
    Call,
    Expr,
    Iter,
    Load,
    Loop,
    PadLoad,
    Placed,
    Prefix,
    Program,
    Reduce,
    Scope,
    Select,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip
from tensorir.ir.visit import find, sequence, substitute, swap_buffers


def computes_of(outputs: Sequence[Tensor]) -> list[Compute]:
    """The computes that make ``outputs``, directly or through other tensors, producers before consumers."""
    done: dict[Compute, None] = {}

    def visit(op: Compute) -> None:
        if op not in done:
            for t in op.inputs:
                if t.op is not None:
                    visit(t.op)
            done[op] = None

    for t in outputs:
        if t.op is not None:
            visit(t.op)
    return list(done)


def calls_of(outputs: Sequence[Tensor]) -> list[Call]:
    """All calls of math functions in the declarations of ``outputs`` and in their combiners."""
    found = []
    for op in computes_of(outputs):
        for body in op.bodies:
            inside = body.combiner.result if isinstance(body, Reduce) else ()
            found += [c for e in (body, *inside) for c in find(e, Call)]
    return found


def terms_of(op: Compute, body: Expr) -> int:
    """Number of reduction terms that ``body`` of ``op`` combines over all its elements, at the largest dims. Without
    reduction, and for scans: the number of elements; for scatters: of elements and terms.
    """
    elements = math.prod(_largest(op.extents))
    if not isinstance(body, Reduce) or isinstance(body.part, Prefix):  # a scan has as many terms as elements
        return elements
    if isinstance(body.part, Placed):
        return elements + math.prod(_largest([v.extent for v in body.axes]))
    return elements * math.prod(_largest([v.extent for v in body.axes]))


def work_of(outputs: Sequence[Tensor]) -> int:
    """Number of elements and reduction terms of all computes together, a measure of cost; extents must be constant."""
    return sum(
        math.prod(op.extents) + sum(terms_of(op, b) for b in op.bodies if isinstance(b, Reduce))
        for op in computes_of(outputs)
    )


def _largest(extents: Sequence[Any]) -> list[int]:
    return [most(as_expr(n)) for n in extents]


def inputs_of(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Placeholders that ``outputs`` depend on, in order of declaration."""
    found = {t for op in computes_of(outputs) for t in op.inputs if t.op is None and t.buffer.data is None}
    return sorted(found, key=lambda t: t.order)


def scalars_of(outputs: Sequence[Tensor]) -> list[Var]:
    """Scalar parameters that ``outputs`` depend on, in order of declaration."""
    found = {v for op in computes_of(outputs) for b in op.bodies for v in find(b, Var) if v.order and v.bounds is None}
    return sorted(found, key=lambda v: v.order)


def dims_of(outputs: Sequence[Tensor]) -> list[Var]:
    """Dims that ``outputs`` depend on, in order of declaration."""
    found = dict.fromkeys(v for t in [*inputs_of(outputs), *outputs] for v in dims_in(*t.buffer.shape))
    for op in computes_of(outputs):
        reduced = [e.extent for b in op.bodies for e in getattr(b, "axes", ())]
        found.update(dict.fromkeys(dims_in(*op.extents, *reduced, *op.bodies)))
    return sorted(found, key=lambda v: v.order)


def gathers(outputs: Sequence[Tensor]) -> Iterator[tuple[Tensor, int | Expr, str, Part]]:
    """Yield (index tensor, limit, name of the indexed array, part) for data-dependent reads: a launch must check ``0 <=
    element < limit`` in the ``part`` of the index tensor.
    """
    for op in computes_of(outputs):
        for load, limit, name, part in looked_up(op):
            yield load.buffer.origin, limit, name, part
        for s in segments(op):
            if s.along < 0:
                yield s.tensor, s.most + 1, f"terms of {op.name}", ()
            elif s.into:
                yield s.tensor, s.limit + 1, s.into, ()


def segments_of(outputs: Sequence[Tensor]) -> list[Segment]:
    """Inputs that hold segment offsets, each once, with the smallest of their bounds."""
    found: dict[Tensor, Segment] = {}
    for s in (s for op in computes_of(outputs) for s in segments(op) if s.along >= 0):
        old = found.get(s.tensor, s)
        known = [(x.limit, x.into) for x in (old, s) if isinstance(x.limit, int) and x.limit]
        limit, into = min(known, default=(old.limit, old.into))
        found[s.tensor] = replace(old, most=min(old.most, s.most), limit=limit, into=into)
    return list(found.values())


def as_outputs(given: object) -> tuple[Tensor, ...]:
    """``given``, a tensor or a list or tuple of them, as a tuple. Raises DeclarationError ``declare.output`` for
    tensors that are not computed, repeated ones, and none.
    """
    outputs = tuple(given) if isinstance(given, list | tuple) else (given,)
    for t in outputs:
        if not isinstance(t, Tensor) or t.op is None:
            raise refuse(
                DeclarationError,
                "declare.output",
                f"{shown(getattr(t, 'name', t))} is not computed: nothing to schedule",
                hint="pass the result of tir.compute",
            )
    if not outputs or len(set(outputs)) < len(outputs):
        twice = [t.name for n, t in enumerate(outputs) if among(t, outputs[:n])]
        message = f"{twice[0]} is given twice as an output" if twice else "there is no output: nothing to schedule"
        raise refuse(DeclarationError, "declare.output", message, hint="pass results of tir.compute, each once")
    return outputs


def program_of(outputs: Sequence[Tensor], name: str | None = None) -> Program:
    """The unscheduled program that computes ``outputs``; its name is that of the first output by default.

    Intermediate tensors have scope "auto". Raises DeclarationError: ``declare.output`` if an output is not computed or
    repeated, ``declare.name`` if two scalars or dims have one name.
    """
    outputs = as_outputs(outputs)
    names = _Names()
    names.reserve((*scalars_of(outputs), *dims_of(outputs)))
    buffers: dict[Buffer, Buffer] = {}
    for t in inputs_of(outputs):
        buffers[t.buffer] = t.buffer.replace(name=names.unique(t.name, given=True))
    body = [_nest(op, outputs, buffers, names) for op in computes_of(outputs)]
    result = tuple(buffers[t.buffer] for t in outputs)
    inputs = tuple(buffers[t.buffer] for t in inputs_of(outputs))
    return Program(name or outputs[0].name, inputs, result, sequence(body), (*scalars_of(outputs), *dims_of(outputs)))


class _Names:
    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.values: set[str] = set()

    def reserve(self, values: Iterable[Var]) -> None:
        """Reserve the names of scalars and dims, by which launches pass them. Raises DeclarationError ``declare.name``
        for equal ones.
        """
        for v in values:
            if v.name in self.values:
                message = f"two scalars or dims are called {v.name}, and a launch tells them apart by their names"
                raise refuse(DeclarationError, "declare.name", message, hint="another name for one of them")
            self.values.add(v.name)

    def unique(self, name: str, given: bool = False) -> str:
        """``name``, or ``name_1``, ``name_2`` … if it is taken; the result is taken from then on.

        given: True for arrays that launches pass by name: names of scalars and dims are avoided as well
        """
        base, n = name.replace(".", "_") or "T", 1
        name = base
        while name in self.taken or (given and name in self.values):
            name, n = f"{base}_{n}", n + 1
        self.taken.add(name)
        return name


def _nest(op: Compute, outputs: Sequence[Tensor], buffers: dict[Buffer, Buffer], names: _Names) -> Stmt:
    stage_name = names.unique(op.name, any(among(t, outputs) for t in op.outputs))
    for t in op.outputs:
        scope = Scope.GLOBAL if among(t, outputs) else Scope.AUTO
        label = stage_name if len(op.outputs) == 1 else names.unique(t.name, among(t, outputs))
        buffers[t.buffer] = t.buffer.replace(name=label, scope=scope)
    for t in op.inputs:
        if t.buffer.data is not None:
            buffers.setdefault(t.buffer, t.buffer.replace(name=names.unique(t.name)))
    part = op.bodies[0].part if isinstance(op.bodies[0], Reduce) else None
    if isinstance(part, Placed):
        return sequence([_looped(s) for s in _scatter(op, part, stage_name, buffers)])
    scanned = isinstance(part, Prefix)
    return _looped(_scan(op, stage_name, buffers, names) if scanned else _stage(op, stage_name, buffers, names))


def _looped(stage: Stage) -> Stmt:
    """The stage inside one loop per axis, the first axis outermost."""
    loops = [Var(f"{stage.name}.{label}", "index") for label in _axis_labels(stage.iters)]
    made: Stmt = stage.replace(binds=tuple(loops))
    for v, it in reversed(list(zip(loops, stage.iters, strict=True))):
        made = Loop(v, as_expr(most(it.extent)), made)  # what is beyond a dim is outside the extent of the axis
    return made


def _stage(op: Compute, name: str, buffers: dict[Buffer, Buffer], names: _Names) -> Stage:
    """Stage of a compute that is no scan or scatter: stores of elements, or reduction updates."""
    expand = _ExpandPads(arith_of(op))
    reduces = [b for b in op.bodies if isinstance(b, Reduce)]
    axes = reduces[0].axes if reduces else ()
    iters = [Iter(v, as_expr(n), Axis.SPATIAL) for v, n in zip(op.axes, op.extents, strict=True)]
    iters += [Iter(v, as_expr(v.extent), Axis.REDUCE) for v in axes]
    index = op.axes
    writes: list[Stmt] = []
    inits: list[Stmt] = []
    groups: list[Reduce] = []
    for t, b in zip(op.outputs, op.bodies, strict=True):
        if not isinstance(b, Reduce):
            writes.append(Store(buffers[t.buffer], index, swap_buffers(expand(b), buffers)))
            continue
        if any(_alike(b, g) for g in groups):
            continue
        groups.append(b)
        states = _states(op, b, buffers, names)
        values = tuple(swap_buffers(expand(v), buffers) for v in b.values)
        writes.append(Update(states, index, values, b.combiner))
        inits += [Store(s, index, i) for s, i in zip(states, b.combiner.identity, strict=True)]
    return Stage(name, tuple(iters), (), sequence(writes), sequence(inits) if inits else None, ())


def _scan(op: Compute, name: str, buffers: dict[Buffer, Buffer], names: _Names) -> Stage:
    """Stage of a scan: a running state per row, carried along the innermost, ordered axis and stored for each
    element.
    """
    body = op.bodies[0]
    assert isinstance(body, Reduce)
    assert isinstance(body.part, Prefix)
    expand, along = _ExpandPads(arith_of(op)), body.part.at
    others = [(v, n) for v, n in zip(op.axes, op.extents, strict=True) if v is not along]
    extent = op.extents[place(along, op.axes)]
    at = binary("-", extent - 1, along) if body.part.reverse else along
    states = tuple(
        Buffer(names.unique(f"{name}_carry{n if len(body.values) > 1 else ''}"), tuple(as_expr(n) for _, n in others),
               v.dtype, Scope.AUTO) for n, v in enumerate(body.values)
    )  # fmt: skip
    here, index = tuple(v for v, _ in others), tuple(at if v is along else v for v in op.axes)
    values = tuple(substitute(swap_buffers(expand(v), buffers), {body.axes[0]: at}) for v in body.values)
    joined: list[Stmt] = [Update(states, here, values, body.combiner)]
    stored: list[Stmt] = []
    for t, b in zip(op.outputs, op.bodies, strict=True):
        assert isinstance(b, Reduce)
        stored.append(Store(buffers[t.buffer], index, Load(states[b.which], here, b.dtype)))
    inits = [Store(s, here, i) for s, i in zip(states, body.combiner.identity, strict=True)]
    iters = [Iter(v, as_expr(n), Axis.SPATIAL) for v, n in others] + [Iter(along, as_expr(extent), Axis.ORDERED)]
    steps = stored + joined if body.part.exclusive else joined + stored
    return Stage(name, tuple(iters), (), sequence(steps), sequence(inits), ())


def _scatter(op: Compute, part: Placed, name: str, buffers: dict[Buffer, Buffer]) -> list[Stage]:
    """Stages of a scatter: initialization of the result, then updates in the order of the domain. A domain axis that is
    itself an index of the target is spatial.
    """
    body = op.bodies[0]
    assert isinstance(body, Reduce)
    target = buffers[op.outputs[0].buffer]
    expand = _ExpandPads(arith_of(op))
    fill = Store(target, op.axes, swap_buffers(part.fill, buffers))
    cells = tuple(Iter(v, as_expr(n), Axis.SPATIAL) for v, n in zip(op.axes, op.extents, strict=True))
    own = {v: Var(v.name, "index") for v in body.axes}
    index = tuple(substitute(swap_buffers(expand(i), buffers), own) for i in part.index)
    values = tuple(substitute(swap_buffers(expand(v), buffers), own) for v in body.values)
    domain = tuple(
        Iter(own[v], as_expr(v.extent), Axis.SPATIAL if any(i is own[v] for i in index) else Axis.ORDERED)
        for v in body.axes
    )
    return [
        Stage(f"{name}.init", cells, (), fill),
        Stage(name, domain, (), Update((target,), index, values, body.combiner)),
    ]


Places = tuple[tuple[Tensor | None, tuple[int, ...]], ...]
"""For each index of a place: an input, or None for the axis itself, and the numbers of the axes at which it is read."""


def unique_places(outputs: Sequence[Tensor]) -> Iterator[tuple[str, tuple[int, ...], Places, tuple[int, ...]]]:
    """Yield (name, extents of the domain, target indices, extents of the result) of every scatter with operator "set",
    whose terms must have distinct targets.

    Target indices: (None, (n,)) for axis n of the domain, (None, (-1, c)) for the constant c, (input, numbers of its
    indices' axes) for an element of an input, where a constant index c counts as -1 - c.
    """
    for op in computes_of(outputs):
        body = op.bodies[0]
        if isinstance(body, Reduce) and isinstance(body.part, Placed) and body.combiner.name == "set":
            made: list[tuple[Tensor | None, tuple[int, ...]]] = []
            for i in body.part.index:
                load = gathered(i)
                at = (
                    ()
                    if load is None
                    else tuple(place(j, body.axes) if isinstance(j, Var) else -1 - as_int(j) for j in load.index)
                )
                if load is not None:
                    made.append((load.buffer.origin, at))
                else:  # a constant is the same for all terms
                    made.append((None, (place(i, body.axes),) if isinstance(i, Var) else (-1, as_int(i))))
            yield op.name, tuple(v.extent for v in body.axes), tuple(made), op.extents


def _axis_labels(iters: Sequence[Iter]) -> list[str]:
    names = _Names()
    return [names.unique(it.var.name) for it in iters]


def _alike(a: Reduce, b: Reduce) -> bool:
    """True if two reductions share one combiner object and have structurally equal terms, thus one state to compute.

    Equal combiners made by separate calls count as different.
    """
    return a.combiner is b.combiner and all(same(x, y) for x, y in zip(a.values, b.values, strict=True))


def _states(op: Compute, b: Reduce, buffers: dict[Buffer, Buffer], names: _Names) -> tuple[Buffer, ...]:
    """One buffer per component of the reduction's state: that of the output that takes the component, or a hidden
    one.
    """
    shape = tuple(as_expr(n) for n in op.extents)
    out: list[Buffer] = []
    for n, identity in enumerate(b.combiner.identity):
        taken = [
            t for t, other in zip(op.outputs, op.bodies, strict=True)
            if isinstance(other, Reduce) and other.which == n and _alike(other, b)
        ]  # fmt: skip
        if taken:
            out.append(buffers[taken[0].buffer])
        else:
            out.append(Buffer(names.unique(f"{op.name}_state{n}"), shape, identity.dtype, Scope.AUTO))
    return tuple(out)


class _ExpandPads(Knowing):
    """Rewriter that turns padded reads into selects between read and fill value, on the bounds that are not proved."""

    def on_Select(self, n: Select) -> Expr:
        cond = self(n.cond)
        return select(cond, self.where(n, cond)(n.a), self(n.b))

    def on_PadLoad(self, n: PadLoad) -> Expr:
        n = self.children(n)
        needed: list[Expr] = []
        for i, extent in zip(n.index, n.buffer.shape, strict=True):
            needed += [cond for cond in (const(0) <= i, i < extent) if not self.arith.proves(cond)]
        index = tuple(cast(i, "index") for i in n.index)  # in range here, whatever the type it was computed in
        return select(conjunction(needed), Load(n.buffer, index, n.dtype), n.fill)
