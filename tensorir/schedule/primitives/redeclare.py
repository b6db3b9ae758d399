"""redeclare: replace the declared computation by another algorithm, as a scheduling step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tensorir.algorithms.registry import Algorithm, find_algorithm
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_text, plain_int, shown
from tensorir.expr.program import dims_of, inputs_of, program_of, scalars_of
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import no_constant
from tensorir.ir.dims import same_shape
from tensorir.ir.tree import Program, Var
from tensorir.schedule.analysis import index_of
from tensorir.schedule.history import S
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Declared, Rewrite
from tensorir.schedule.trace import Step


@primitive("Algorithms")
def redeclare(self: S, algorithm: str, /, **parameters: object) -> S:
    """Compute the outputs by another algorithm, ``s.redeclare("winograd", tile=4)``: one that ``tir.algorithm``
    registered, with parameters that JSON holds. ``s.outputs`` are then as it declares them, unscheduled;
    ``s.definition`` stays, and checks compare with it.

    It comes before all other steps, which rewrite what it replaces. "winograd" computes a convolution through tiles of
    ``tile`` x ``tile`` results, "stream_k" the last ``rest`` rows of a reduction as a stage of their own, "tiled_scan"
    a scan through independent scans of ``tile`` elements, "private_scatter" a scatter through cells of its own for each
    of ``parts`` of its domain, "split_softmax" sums of softmax weights in ``parts`` with maxima of their own, "tables"
    what depends on few axes of a stage alone once for each of their values, "phases" a sum without the terms that are
    zeros between elements of an image, "ranges" maxima over windows by those of 2**k elements, "horizontal" several
    maps over the same cells as one stage.

    Raises ScheduleError: ``redeclare.scheduled``, ``redeclare.parameters``, ``redeclare.outputs``,
    ``redeclare.arguments``, ``redeclare.raised``, ``trace.algorithm``, and what the algorithm refuses.
    """
    history = self._history
    name = need_text("algorithm", algorithm, ScheduleError)
    found, given = find_algorithm(name), {k: _json(k, v) for k, v in parameters.items()}
    steps, now = history.trace, history._versions[-1].declared
    history._apply("redeclare", (name,), given, lambda p: _redeclare(p, steps, now, found, given))
    return self


def _redeclare(
    program: Program, steps: Sequence[Step], now: Declared, algorithm: Algorithm, parameters: Mapping[str, Any]
) -> Rewrite:
    if others := [s for s in steps if s.primitive != "redeclare"]:
        count = f"{len(others)} step{'s have' if len(others) > 1 else ' has'}"
        message = f"{count} scheduled {now.outputs[0].name} already, the first {others[0]}: they are about other stages"
        raise ScheduleError(Problem("redeclare.scheduled", message, hint=f"s.undo({len(steps)}), and redeclare first"))
    if dims := dims_of(now.outputs):
        raise ScheduleError(no_constant(dims[0]).problems)
    made = algorithm.outputs(now.outputs, parameters)
    _need_alike(algorithm.name, now.outputs, made)
    bound = algorithm.bound(now.outputs, parameters)
    bounds = [e for e in (now.error, bound) if e is not None]
    exact = algorithm.exact and (now.exact or not steps)
    after = program_of(made, program.name)
    left = index_of(after).names()
    gone = dict.fromkeys(index_of(program).names() - left, f"it was replaced by algorithm {algorithm.name}")
    return Rewrite(after, gone=gone, declared=Declared(made, sum(bounds) if bounds else None, exact))


def _need_alike(name: str, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Raise ScheduleError if the new outputs differ from the old in type, shape or arguments."""
    if len(old) != len(new) or any(
        t.dtype != n.dtype or not same_shape(t.shape, n.shape) for t, n in zip(old, new, strict=True)
    ):
        told = [", ".join(f"{t.dtype}[{', '.join(map(str, t.shape))}]" for t in side) for side in (old, new)]
        message = f"algorithm {name!r} gives {told[1]}, the definition is {told[0]}"
        raise ScheduleError(Problem("redeclare.outputs", message, hint="outputs of the same shapes and types"))
    before, after = (_arguments(side) for side in (old, new))
    if list(map(id, before)) != list(map(id, after)):
        told = [", ".join(a.name for a in side) or "nothing" for side in (before, after)]
        message = f"what algorithm {name!r} gives is computed from {told[1]}, the definition from {told[0]}"
        raise ScheduleError(Problem("redeclare.arguments", message, hint="outputs that read the same tensors"))


def _arguments(outputs: Sequence[Tensor]) -> list[Tensor | Var]:
    return [*inputs_of(outputs), *scalars_of(outputs)]


def _json(name: str, value: Any) -> Any:
    """A parameter as it would be after writing and reading a trace; raises if JSON cannot hold it."""
    try:
        return json.loads(json.dumps(plain_int(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        message = f"{name}={shown(value)} is no parameter: JSON does not hold it"
        raise ScheduleError(
            Problem("redeclare.parameters", message, hint="ints, floats, texts, True, False, None, and lists of them")
        ) from None
