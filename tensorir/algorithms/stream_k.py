"""Stream-K: a reduction whose last rows are declared as a separate stage, which can be split along the reduction.

Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP
2023: tiles of whole waves are computed as they are, those of the last, partial wave in parts of their reduction.
"""

from __future__ import annotations

from tensorir.algorithms.products import reduction_of
from tensorir.algorithms.registry import algorithm
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import where
from tensorir.expr.reread import with_other
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.tree import Expr, Reduce
from tensorir.ir.visit import substitute


@algorithm("stream_k")
def stream_k(outputs: tuple[Tensor, ...], rest: int, of: str | None = None) -> tuple[Tensor, ...]:
    """Return ``outputs`` with a reduction in two stages: ``head``, and ``rest`` with the last ``rest`` rows of its
    first axis.

    rest: from 1 to the number of rows minus 1;  of: name of the reduction, if there are several
    Raises ScheduleError ``stream-k.rows``, ``redeclare.stage``.
    """
    op = reduction_of(outputs, of, "stream_k")
    rows, last = op.extents[0] if op.extents else 0, need_int("rest", rest, error=ScheduleError)
    if not 0 < last < rows:
        message = f"{last} of {rows} rows of {op.name} leave one of the two parts empty"
        raise ScheduleError(Problem("stream-k.rows", message, hint=f"rest=1 to {rows - 1}" if rows > 1 else ""))
    first = rows - last
    head, tail = _rows(op, 0, first, "head"), _rows(op, first, rows, "rest")

    def whole(i: Expr, *j: Expr) -> Expr:
        return where(i < first, head[(i, *j)], tail[(i - first, *j)])

    names = [v.name for v in op.axes]
    return with_other(outputs, op.outputs[0], compute(op.extents, whole, op.name, axes=names))


def _rows(op: Compute, start: int, end: int, name: str) -> Tensor:
    """Rows ``start`` to ``end`` (exclusive) of a reduction, as a separate tensor."""
    body = op.bodies[0]
    assert isinstance(body, Reduce)
    again = {v: reduce_axis(int(v.extent), v.name) for v in body.axes}

    def element(i: Expr, *j: Expr) -> Expr:
        at = dict(zip(op.axes, (i + start if start else i, *j), strict=True))
        values = tuple(substitute(e, {**at, **again}) for e in body.values)
        return body.replace(axes=tuple(again.values()), values=values)

    return compute((end - start, *op.extents[1:]), element, name, axes=[v.name for v in op.axes])
