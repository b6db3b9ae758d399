"""Horizontal fusion: maps over the same cells, without readers, as one stage of several results.

    P[i] = argmax(X[i, r]);  V[i] = X[i, P[i]];  Y[i, j] = where(P[i] == j, low, X[i, j]);  Q[i] = argmax(Y[i, r]);
    W[i] = X[i, Q[i]]
    ->
    P[i] = …;  Y[i, j] = …;  Q[i] = …;  V[i], W[i] = X[i, P[i]], X[i, Q[i]]

All stages upstream then lead to one stage, so that rows pass through one kernel. Elements are computed as declared:
results are the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.algorithms.registry import algorithm
from tensorir.errors import Problem, ScheduleError
from tensorir.expr.bounds import check_accesses
from tensorir.expr.program import computes_of
from tensorir.expr.reread import Reread
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.tree import Reduce


@algorithm("horizontal")
def horizontal(outputs: tuple[Tensor, ...], of: Sequence[str]) -> tuple[Tensor, ...]:
    """Return ``outputs`` with the stages ``of`` as one stage of their results, named as the last of them.

    Raises ScheduleError ``horizontal.stages`` unless they are two maps or more over the same cells, read by no stage.
    """
    ops = [op for op in ends_of(outputs) if op.name in of]
    if len(ops) < 2 or len(ops) != len(of) or len({op.extents for op in ops}) > 1:
        alike = next(iter(groups_of(outputs)), ())
        hint = f"of={[op.name for op in alike]}" if alike else "maps of equal shapes that no other stage reads"
        told = ", ".join(map(str, of)) or "nothing"
        message = f"{told}: these are no two maps or more over the same cells without readers"
        raise ScheduleError(Problem("horizontal.stages", message, hint=hint))
    axes = ops[-1].axes
    bodies = [Reread({}, dict(zip(op.axes, axes, strict=True)))(b) for op in ops for b in op.bodies]
    made = Compute(ops[-1].name, axes, ops[-1].extents, tuple(bodies))
    check_accesses(made)
    old = [t for op in ops for t in op.outputs]
    made.outputs = tuple(Tensor(t.name, t.shape, t.dtype, made) for t in old)
    new = dict(zip(old, made.outputs, strict=True))
    return tuple(new.get(t, t) for t in outputs)


def ends_of(outputs: Sequence[Tensor]) -> list[Compute]:
    """Maps that no stage reads."""
    ops = computes_of(outputs)
    read = {t for op in ops for t in op.inputs}
    return [op for op in ops if not read & {*op.outputs} and not any(isinstance(b, Reduce) for b in op.bodies)]


def groups_of(outputs: Sequence[Tensor]) -> list[tuple[Compute, ...]]:
    """Maps over the same cells that no stage reads, two or more each."""
    found: dict[object, list[Compute]] = {}
    for op in ends_of(outputs):
        found.setdefault(op.extents, []).append(op)
    return [tuple(ops) for ops in found.values() if len(ops) > 1]


def divide(ops: Sequence[Compute], outputs: Sequence[Tensor]) -> bool:
    """True if other stages read what ``ops`` read, so that no kernel of one of these has all its readers."""
    own, read = {*ops}, {t.op for op in ops for t in op.inputs if t.op is not None}
    return any(t.op in read for op in computes_of(outputs) if op not in own for t in op.inputs)
