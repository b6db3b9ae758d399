"""Privatized scatter: each part of the domain updates a private copy of all cells; copies are combined at the end.

Histograms on several cores or blocks use it (Podlozhnyuk, "Histogram calculation in CUDA", 2007). Parts are contiguous
and combined in order, so that terms keep the domain's order; their grouping depends on ``parts`` alone, and results are
the same in each launch.
"""

from __future__ import annotations

from tensorir.algorithms.registry import algorithm
from tensorir.arith.affine import same
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int
from tensorir.expr.program import computes_of
from tensorir.expr.reread import declared, with_other
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.build import binary, select
from tensorir.ir.tree import Expr, Placed, Reduce, Var
from tensorir.ir.visit import substitute


@algorithm("private_scatter")
def private_scatter(outputs: tuple[Tensor, ...], parts: int = 2, of: str | None = None) -> tuple[Tensor, ...]:
    """Return ``outputs`` with scatter B in two stages: ``B_part`` (parts, …) combines each of ``parts`` contiguous
    parts of the domain into private cells; B combines the copies in order with the initial values.

    B's initial values, if not the identity, are combined last, with the copies joined in ``B_joined``. Unchanged if the
    domain is empty.
    of: name of the scatter, if there are several
    Raises ScheduleError ``private-scatter.stage`` unless there is one such scatter, which combines (not "set").
    """
    op, count = _scatter_of(outputs, of), need_int("parts", parts, 1, error=ScheduleError)
    if any(v.extent == 0 for b in op.bodies if isinstance(b, Reduce) for v in b.axes):
        return outputs
    return with_other(outputs, op.outputs[0], _joined(op, _parts(op, count), count))


def _placed(op: Compute) -> Placed | None:
    body = op.bodies[0]
    return body.part if isinstance(body, Reduce) and isinstance(body.part, Placed) else None


def _scatter_of(outputs: tuple[Tensor, ...], of: str | None) -> Compute:
    found = [op for op in computes_of(outputs) if _placed(op) is not None]
    taken = [op for op in found if of in (None, op.name)]
    if len(taken) != 1:
        names = ", ".join(op.name for op in found) or "none"
        hint = f"of={found[0].name!r}" if found else "tir.scatter declares one"
        raise ScheduleError(
            Problem("private-scatter.stage", f"private_scatter takes one scatter; there are {names}", hint=hint)
        )
    op, body = taken[0], taken[0].bodies[0]
    assert isinstance(body, Reduce)
    if body.combiner.name == "set":
        message = f'terms of {op.name} go to different cells, and op="set" combines none of them'
        raise ScheduleError(Problem("private-scatter.stage", message, hint="bind its loops to blocks as they are"))
    return op


def _parts(op: Compute, count: int) -> Tensor:
    """The private copies (part, …): the first domain axis that is not itself a cell index is split, else the first
    axis.
    """
    body, placed = op.bodies[0], _placed(op)
    assert isinstance(body, Reduce)
    assert placed is not None
    old = next((v for v in body.axes if all(i is not v for i in placed.index)), body.axes[0])
    extent = int(old.extent or 0)
    length = -(-extent // count)
    part, inner = Var("part", "index", extent=count), Var(old.name, "index", extent=length)
    at: Expr = binary("+", binary("*", part, length), inner)
    term = body.values[0]
    swap: dict[Var, Expr] = {old: at}
    if length * count > extent:
        swap = {old: binary("min", at, extent - 1)}
        term = select(binary("<", at, extent), substitute(term, swap), body.combiner.identity[0])
    else:
        term = substitute(term, swap)
    axes = (part, *(inner if v is old else v for v in body.axes))
    own = Var("part", "index")
    place = Placed((part, *(substitute(i, swap) for i in placed.index)), body.combiner.identity[0])
    return declared(f"{op.name}_part", (own, *op.axes), (count, *op.extents),
                    Reduce(body.combiner, axes, (term,), 0, body.dtype, place))  # fmt: skip


def _joined(op: Compute, part: Tensor, count: int) -> Tensor:
    """All copies combined in order, onto the initial values of the cells."""
    body, placed = op.bodies[0], _placed(op)
    assert isinstance(body, Reduce)
    assert placed is not None
    c, k = body.combiner, Var("part", "index", extent=count)
    own = tuple(Var(v.name, "index") for v in op.axes)
    blank = same(placed.fill, c.identity[0])
    name = op.name if blank else f"{op.name}_joined"
    joined = declared(name, own, op.extents, Reduce(c, (k,), (part[(k, *own)],), 0, body.dtype))
    if blank:
        return joined
    both: dict[Var, Expr] = {c.old[0]: placed.fill, c.new[0]: joined[op.axes]}
    return declared(op.name, op.axes, op.extents, substitute(c.result[0], both))
