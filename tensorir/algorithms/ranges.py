"""Largest or smallest elements of windows: each range of a window is two overlapping ranges of 2**k elements.

    Y[i, j] = max over u, v of X[i + u, j + v], where (u, v) is in a disc
    ->
    X2[p] = max(X[p], X[p + 1]);  X4[p] = max(X2[p], X2[p + 2]);  X8[p] = max(X4[p], X4[p + 4]), ...
    X7[p] = max(X4[p], X4[p + 3]) and so on for each length of a range in the disc
    Y[i, j] = max over columns v of the disc, n rows from a on, of Xn[i + a, j + v]

An element may count twice, which changes no maximum: results are the same bits. It takes an operation for each power of
two and each length, for each element of X, and one for each range of a window.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorir.algorithms.products import reduction_of
from tensorir.algorithms.registry import algorithm
from tensorir.arith.access import slope
from tensorir.arith.point import NotExactError, evaluate
from tensorir.errors import Problem, ScheduleError
from tensorir.expr.reread import declared, with_other
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.build import binary, const
from tensorir.ir.tree import Binary, Const, Expr, Load, Reduce, Select, Var
from tensorir.ir.visit import find, has, substitute, uses

MAX_RANGES = 128
"""Maximum ranges of a window, which are written out."""


@dataclass(frozen=True)
class WindowRanges:
    """A reduction of windows of one array, by ranges along its dimension ``along``.

    load:  the element that a term reads;  axis: the reduce axis along the ranges
    found: (values of the other reduce axes, first and last value of ``axis``) of each range
    """

    op: Compute
    source: Tensor
    load: Load
    axis: Var
    along: int
    found: tuple[tuple[Mapping[Var, int], int, int], ...]

    @property
    def terms(self) -> int:
        """Terms of a window."""
        return sum(last - first + 1 for _, first, last in self.found)

    @property
    def levels(self) -> int:
        """Levels of ranges: 2**levels elements in the longest one."""
        return max(last - first + 1 for _, first, last in self.found).bit_length() - 1

    @property
    def lengths(self) -> int:
        """Lengths of ranges that are no powers of two."""
        return len({n for _, a, b in self.found if (n := b - a + 1) & (n - 1)})


@algorithm("ranges")
def ranges(outputs: tuple[Tensor, ...], of: str | None = None) -> tuple[Tensor, ...]:
    """Return ``outputs`` with a maximum or minimum over windows of X by ranges: stages ``S_2``, ``S_4``, … of X, the
    largest of so many elements from each one on, of all lengths that occur, and S, which reads one for each range.

    of: name of the reduction, if there are several
    Raises ScheduleError ``ranges.stage`` if the stage is none of windows of one array, ``redeclare.stage``.
    """
    op = reduction_of(outputs, of, "ranges")
    if (r := ranges_of(op)) is None:
        hint = "tir.max(X[i + u, j + v], axis=(u, v), where=...) with ranges of v for each u"
        raise ScheduleError(Problem("ranges.stage", f"{op.name} is no maximum or minimum over windows", hint=hint))
    levels = [r.source]
    for n in range(r.levels):
        levels.append(_later(r, levels[-1], 1 << n, f"{op.name}_{2 << n}"))
    body = op.bodies[0]
    assert isinstance(body, Reduce)
    whole, reads = dict[int, Tensor](), list[Expr]()
    for others, first, last in r.found:
        length = last + 1 - first
        if length not in whole:
            whole[length] = _joined(r, levels, length)
        index = substitute(r.load, {v: const(k) for v, k in {**others, r.axis: first}.items()}).index
        reads.append(whole[length][index])
    while len(reads) > 1:  # in pairs, which do not wait for each other
        pairs = [binary(body.combiner.name, *reads[n : n + 2]) for n in range(0, len(reads) - 1, 2)]
        reads = pairs + reads[len(pairs) * 2 :]
    again = declared(op.name, op.axes, op.extents, reads[0])
    return with_other(outputs, op.outputs[0], again)


def _later(r: WindowRanges, below: Tensor, by: int, name: str) -> Tensor:
    """The larger of each element of ``below`` and the one ``by`` later."""
    body = r.op.bodies[0]
    assert isinstance(body, Reduce)
    extents = tuple(size - by * (d == r.along) for d, size in enumerate(below.shape))
    axes = tuple(Var(f"d{d}", "index") for d in range(len(extents)))
    further = tuple(binary("+", v, by) if d == r.along else v for d, v in enumerate(axes))
    return declared(name, axes, extents, binary(body.combiner.name, below[axes], below[further]))


def _joined(r: WindowRanges, levels: Sequence[Tensor], length: int) -> Tensor:
    """The largest of ``length`` elements from each one on."""
    n = length.bit_length() - 1
    if length == 1 << n:
        return levels[n]
    return _later(r, levels[n], length - (1 << n), f"{r.op.name}_{length}")


def ranges_of(op: Compute) -> WindowRanges | None:
    """The ranges of a maximum or minimum over windows, along the axis with the fewest; None for other stages."""
    body = op.bodies[0]
    if len(op.bodies) > 1 or not isinstance(body, Reduce) or body.combiner.name not in ("max", "min"):
        return None
    extents = {v: v.extent for v in body.axes}
    if body.part is not None or not all(isinstance(n, int | Const) for n in (*extents.values(), *op.extents)):
        return None
    term, least = body.values[0], body.combiner.identity[0].value
    masked = isinstance(term, Select) and isinstance(term.b, Const) and term.b.value == least
    value, mask = (term.a, term.cond) if isinstance(term, Select) and masked else (term, None)
    source = next((t for t in op.inputs if isinstance(value, Load) and t.buffer is value.buffer), None)
    if source is None or not isinstance(value, Load) or (mask is not None and uses(mask, {*op.axes})):
        return None
    if any(has(i, Load) for i in value.index) or not all(isinstance(n, int) for n in source.shape):
        return None
    sizes = {v: int(n.value) if isinstance(n, Const) else int(n) for v, n in extents.items()}
    found = [r for v in body.axes if (r := _along(op, source, value, mask, v, sizes)) is not None]
    return min(found, key=lambda r: (len(r.found), r.along), default=None)


def _along(
    op: Compute, source: Tensor, load: Load, mask: Expr | None, axis: Var, sizes: Mapping[Var, int]
) -> WindowRanges | None:
    """Ranges along one reduce axis; None if it moves along several dimensions, or has gaps."""
    along = [d for d, i in enumerate(load.index) if uses(i, {axis})]
    if len(along) != 1 or slope(load.index[along[0]], axis) != 1 or _clamps(load.index[along[0]]):
        return None
    others = [v for v in sizes if v is not axis]
    found = []
    for at in itertools.product(*(range(sizes[v]) for v in others)):
        point = dict(zip(others, at, strict=True))
        try:
            inside = [k for k in range(sizes[axis]) if mask is None or evaluate(mask, {**point, axis: k})]
        except NotExactError:
            return None
        if inside and inside[-1] - inside[0] + 1 != len(inside):
            return None
        found += [(point, inside[0], inside[-1])] if inside else []
        if len(found) > MAX_RANGES:
            return None
    return WindowRanges(op, source, load, axis, along[0], tuple(found)) if found else None


def _clamps(index: Expr) -> bool:
    """True if an index has a minimum or maximum, so that ranges of it are no ranges of elements."""
    return bool(find(index, Binary, lambda x: x.op in ("min", "max")))
