"""From a schedule to its text: lowered, printed, with what launches must check."""

from __future__ import annotations

from dataclasses import replace

from tensorir.codegen.cfamily import emit
from tensorir.codegen.extents import said
from tensorir.codegen.source import GatherRange, Source, UniquePlaces
from tensorir.expr.program import gathers, unique_places
from tensorir.lower.pipeline import lower
from tensorir.schedule.primitives.assume import in_range
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target


def emit_source(s: Schedule, target: Target) -> Source:
    """Lower and print ``s`` for ``target``."""
    source = emit(lower(s.program, target), target, str(s.trace).splitlines(), gathers_of(s))
    names = {b.origin: b.name for b in s.program.inputs}
    unique = tuple(
        UniquePlaces(into, tuple(map(said, domain)), tuple(("" if t is None else names[t], at) for t, at in index))
        for into, domain, index in unique_places(s.outputs)
    )
    return replace(source, unique=unique) if unique else source


def gathers_of(s: Schedule) -> tuple[GatherRange, ...]:
    """The index inputs whose values must be checked at launch, by their names in the signature."""
    names = {b.origin: b.name for b in s.program.inputs}
    found = [x for x in gathers(s.outputs) if not isinstance(x[1], int) or not in_range(s.program, *x[:2])]
    return tuple(dict.fromkeys(GatherRange(names[t], said(limit), into) for t, limit, into in found))
