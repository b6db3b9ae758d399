"""From a schedule to its text: lowered, printed, with what launches must check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorir.codegen.cfamily import emit
from tensorir.codegen.source import GatherRange, SegmentRange, Source, UniquePlaces
from tensorir.errors import LoweringError, refuse
from tensorir.expr.program import dims_of, gathers, segments_of, unique_places
from tensorir.ir.dims import dims_in
from tensorir.ir.text import said
from tensorir.ir.tree import Buffer, Var
from tensorir.lower.pipeline import lower
from tensorir.schedule.primitives.assume import in_range
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target


def emit_source(s: Schedule, target: Target) -> Source:
    """Lower and print ``s`` for ``target``."""
    need_told(s.program.inputs, dims_of(s.outputs))
    source = emit(lower(s.program, target), target, str(s.trace).splitlines(), gathers_of(s))
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
    told = {v for b in inputs for e in b.shape if len(found := dims_in(e)) == 1 for v in found}
    for v in dims:
        if v not in told:
            message = f"no argument has a shape with {v.name}: a launch could not know it"
            hint = f"an input of {v.name} elements, or an int in place of {v.name}"
            raise refuse(LoweringError, "dim.untold", message, hint=hint)


def gathers_of(s: Schedule) -> tuple[GatherRange, ...]:
    """The index inputs whose values must be checked at launch, by their names in the signature."""
    names = {b.origin: b.name for b in s.program.inputs}
    found = [x for x in gathers(s.outputs) if not isinstance(x[1], int) or not in_range(s.program, x[0], x[1])]
    return tuple(dict.fromkeys(GatherRange(names[t], said(limit), into) for t, limit, into in found))
