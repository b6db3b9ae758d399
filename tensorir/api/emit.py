"""From a schedule to its text: lowered, printed, with what launches must check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorir.codegen.cfamily import emit
from tensorir.codegen.source import GatherRange, SegmentRange, Source, UniquePlaces
from tensorir.errors import LoweringError, refuse
from tensorir.expr.program import dims_of, gathers, segments_of, unique_places
from tensorir.ir.dims import dims_in
from tensorir.ir.extents import line, value
from tensorir.ir.structure import identical
from tensorir.ir.text import said
from tensorir.ir.tree import Buffer, Expr, Var
from tensorir.lower.lowered import lowered
from tensorir.schedule.primitives.assume import in_range
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target

MOST_TRIED = 4096
"""Extents of a dim among which two that give the same shape are looked for."""


def emit_source(s: Schedule, target: Target) -> Source:
    """Lower and print ``s`` for ``target``, which can hold its kernels."""
    need_told(s.program.inputs, dims_of(s.outputs))
    source = emit(lowered(s, target), target, str(s.trace).splitlines(), gathers_of(s))
    names = {b.origin: b.name for b in s.program.inputs}
    unique = tuple(
        UniquePlaces(
            into,
            tuple(map(said, domain)),
            tuple(("" if t is None else names[t], at) for t, at in index),
            tuple(map(said, shape)),
        )
        for into, domain, index, shape in unique_places(s.outputs)
    )
    segments = tuple(SegmentRange(names[g.tensor], g.along, g.most, g.axis) for g in segments_of(s.outputs))
    return replace(source, unique=unique, segments=segments) if unique or segments else source


def need_told(inputs: Sequence[Buffer], dims: Sequence[Var]) -> None:
    """Refuse dims that no shape of an argument tells a launch; ``dim.untold``."""
    places = [(e, f"{b.name}.shape[{d}]") for b in inputs for d, e in enumerate(b.shape)]
    lines = {solved[0] for e, _ in places if (solved := line(said(e))) is not None}
    for v in dims:
        if v.name not in lines:
            hint = f"an input of {v.name} elements, or an int in place of {v.name}"
            raise refuse(LoweringError, "dim.untold", _untold(v, places), hint=hint)


def _untold(v: Var, places: Sequence[tuple[Expr, str]]) -> str:
    """Why no shape tells a dim: none has it, or several of its values give the same shape."""
    have = [(said(e), where) for e, where in places if identical(dims_in(e), [v])]
    low, high = v.bounds or (0, 0)
    for text, where in have:
        seen: dict[int, int] = {}
        for n in range(low, min(high, low + MOST_TRIED) + 1):
            extent = value(text, {v.name: n})
            if (before := seen.setdefault(extent, n)) != n:
                return f"{where}, {text}, is {extent} for {v.name} = {before} and for {n}: a launch could not know it"
    for text, where in have:
        return f"{where}, {text}, is no multiple of {v.name} plus a constant, which a launch could solve"
    return f"no argument has a shape with {v.name}: a launch could not know it"


def gathers_of(s: Schedule) -> tuple[GatherRange, ...]:
    """The index inputs whose values must be checked at launch, by their names in the signature."""
    names = {b.origin: b.name for b in s.program.inputs}
    found = [x for x in gathers(s.outputs) if not isinstance(x[1], int) or not in_range(s.program, x[0], x[1])]
    return tuple(dict.fromkeys(GatherRange(names[t], said(limit), into, part) for t, limit, into, part in found))
