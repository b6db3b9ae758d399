"""reduce_in_lanes: vectorize a reduction with several partial results."""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int
from tensorir.ir.build import as_int
from tensorir.ir.dims import dims_in
from tensorir.ir.tree import Axis, Stage, Var
from tensorir.ir.visit import find
from tensorir.schedule.analysis import caret
from tensorir.schedule.history import H, History, Name, Scheduled
from tensorir.schedule.primitives.loops import LANES, partition, reorder, split, unroll, vectorize
from tensorir.schedule.primitives.placement import compute_at
from tensorir.schedule.primitives.reduction import rfactor
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import results_of


@primitive("Reductions", moves=True)
def reduce_in_lanes(self: Scheduled[H], stage: Name, axis: Name, lanes: int, vectors: int = 1, joined: int = 4,
                    at: Name | None = None) -> H:  # fmt: skip
    """Combine the terms of a reduction in vectors: ``vectors`` of ``lanes`` partial results each, which are joined
    vector by vector, then ``joined`` lanes at a time, then one by one; returns the stage of the first ones.

    ``s.reduce_in_lanes("S", "S.k", lanes=8, vectors=2)``, where S[i] adds up X[i, k]::

        for i in m: for k in n: S[i] += X[i, k]
        ->
        for i in m:
          for k in n/16: P[0:16] += X[i, k*16 : k*16 + 16]    # two vectors
          Q[0:8] = P[0:8] + P[8:16];  R[0:4] = Q[0:4] + Q[4:8];  S[i] = R[0] + R[1] + R[2] + R[3]

    axis:    loop over the terms, the innermost one of the reduction;  lanes, joined: 2, 4, 8 or 16
    vectors: of partial results, so that a sum need not wait for the one before
    at:      a loop of what reads the result, in which all this is computed, the result in registers if it is no output;
             without it the partial results are computed where the result is, a cell at a time

    With constant extents, terms past the last whole step have a separate body (``partition``). Composed of ``rfactor``,
    ``compute_at``, ``split``, ``vectorize`` and others; raises their errors, and ScheduleError
    ``reduce-in-lanes.lanes``, ``reduce-in-lanes.one-cell``.
    """
    history = self._history
    found, term = history._stage(stage), history._loop_of(stage, axis)
    place = None if at is None else self._loop(at)
    given = (("lanes", lanes), ("vectors", vectors), ("joined", joined))
    sizes = {n: need_int(n, v, low=1, error=ScheduleError) for n, v in given}
    if bad := [n for n in ("lanes", "joined") if sizes[n] not in LANES]:
        message = f"{bad[0]}={sizes[bad[0]]}: vectors have {', '.join(map(str, LANES))} lanes"
        raise _refuse("reduce-in-lanes.lanes", message, found, f"{bad[0]}=4")
    if place is None and all(it.axis is not Axis.SPATIAL for it in found.iters):
        message = f"{found.name} is one cell, and no loop is there for its partial results to be computed in"
        raise _refuse(
            "reduce-in-lanes.one-cell", message, found, f"at= a loop of what reads {found.name}, or s.rfactor"
        )
    options = {"vectors": vectors, "joined": joined, "at": place}
    names = found.name, term.var.name, None if place is None else place.var.name

    def act(s: History[H]) -> list[str]:
        return [_made(s, *names, sizes["lanes"], sizes["vectors"], sizes["joined"])]

    return history._handle(history._compose("reduce_in_lanes", (found, term, lanes), options, act)[0])


def _made(s: History[H], stage: str, term: str, at: str | None, lanes: int, vectors: int, joined: int) -> str:
    length, whole = as_int(s.index.loops[term].extent), _constant(s.index.stages[stage])
    parts: list[str] = []
    for width in dict.fromkeys((lanes * vectors, lanes, min(lanes, joined))):
        parts.append(_rfactored(s, stage, term, width))
        term = _loops(s, stage)[-1]
    place = at or _loops(s, stage)[-2]
    if at is not None:
        output = any(b in s.program.outputs for b in results_of(s.index.stages[stage]))
        compute_at(s, stage, at, scope=None if output else "register")
    for part in reversed(parts):  # the last one first: it reads the others
        compute_at(s, part, place, scope="register")
    _first(s, parts[0], length if whole else 0, lanes, vectors)
    for part in parts[1:]:
        lane, rest = _lane_and_terms(s, part)
        reorder(s, rest, lane)
        unroll(s, rest)
        vectorize(s, lane)
    unroll(s, _loops(s, stage)[-1])
    return parts[0]


def _rfactored(s: History[H], stage: str, term: str, width: int) -> str:
    """Factor a reduction into ``width`` partial results; return the name of their stage."""
    before = set(s.index.stages)
    rfactor(s, stage, split(s, term, [None, width])[1])
    return next(name for name in s.index.stages if name not in before)


def _first(s: History[H], part: str, length: int, lanes: int, vectors: int) -> None:
    """Schedule the stage of partial results: vectors over them, incomplete steps apart.

    length: number of terms, 0 if not constant
    """
    lane, rest = _lane_and_terms(s, part)
    _apart(s, rest, length, lanes * vectors)
    if vectors == 1:
        reorder(s, rest, lane)
    else:
        group, lane = split(s, lane, [vectors, lanes])
        reorder(s, rest, group, lane)
        _apart(s, group, length % (lanes * vectors), lanes)
        unroll(s, group)
    vectorize(s, lane)


def _apart(s: History[H], loop: str, length: int, step: int) -> None:
    """Cut ``loop``, of ``step`` terms per iteration, before its incomplete one: ``partition`` at length // step.

    length: terms in all, 0 if unknown. No cut if ``step`` divides it, or if no iteration is complete
    """
    if length % step and length > step:
        partition(s, loop, [length // step])


def _constant(stage: Stage) -> bool:
    return not dims_in(*(it.extent for it in stage.iters))


def _loops(s: History[H], stage: str) -> list[str]:
    return [x.var.name for x in s.index.above(s.index.stages[stage])]


def _lane_and_terms(s: History[H], part: str) -> tuple[str, str]:
    """(loop over the partial results of a stage, innermost loop over terms)."""
    own = _loops(s, part)
    lane = next(v.name for v in find(s.index.stages[part].binds[0], Var) if v.name in own)
    return lane, next(x for x in reversed(own) if x != lane)


def _refuse(code: str, message: str, stage: Stage, hint: str) -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(stage), hint=hint))
