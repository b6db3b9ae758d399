"""Sums of softmax weights in parts of their terms, each with a maximum of its own, and rescaled when they are combined.

Few queries over long sequences occupy all cores so (Dao et al., "Flash-Decoding for long-context inference", 2023).
Parts are contiguous; the grouping of terms depends on ``parts`` alone, and results are the same in each launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tensorir.algorithms.products import reduction_of
from tensorir.algorithms.registry import algorithm
from tensorir.arith.affine import structure
from tensorir.arith.repair import NoRepairError, Repair, repair_of
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import minimum, where
from tensorir.expr.program import computes_of
from tensorir.expr.reducers import max as largest_of
from tensorir.expr.reducers import sum as total
from tensorir.expr.reread import with_other
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.build import cast
from tensorir.ir.dims import same_shape
from tensorir.ir.structure import identical
from tensorir.ir.tree import Buffer, Expr, Load, Reduce, Var
from tensorir.ir.visit import Rewriter, find, substitute

At = Callable[[tuple[Expr, ...]], Expr]
"""Function of an index to what is read there."""


@algorithm("split_softmax")
def split_softmax(outputs: tuple[Tensor, ...], parts: int = 2, of: str | None = None) -> tuple[Tensor, ...]:
    """Return ``outputs`` with sums S of weights exp(x - m), m the maximum of x, in ``parts`` contiguous parts of the
    terms: ``S_part`` (parts, …) with maxima ``m_part`` of their own, stored as ``S_parts``, ``m_parts``; then rescaled
    and added in order.

    All sums of the same weights are split, as both are in a softmax times values, and elementwise computes and
    reductions that the scores are made of take the axis of the parts. Where all x are minus infinity S is 0, not NaN as
    declared, as in ``s.rolling``; ratios of such sums are NaN in both.
    of: name of one of the sums, if there are several reductions
    Raises ScheduleError ``split-softmax.stage`` if the terms have another form, ``redeclare.stage``.
    """
    softmax = _softmax_of(outputs, reduction_of(outputs, of, "split_softmax"))
    count = need_int("parts", parts, 1, error=ScheduleError)
    split = _Split(softmax, count)
    for old, new in split.combined().items():
        outputs = with_other(outputs, old, new)
    return outputs


@dataclass(frozen=True, eq=False)
class _Softmax:
    """Sums ``sums`` of terms that read ``weights`` (cells, key), which read ``score`` and its maximum ``largest``
    (cells).

    repairs: for each sum, the factor by which its terms change with the maximum
    """

    weights: Compute
    largest: Compute
    score: Compute
    sums: tuple[Compute, ...]
    repairs: tuple[Repair, ...]


def _softmax_of(outputs: Sequence[Tensor], op: Compute) -> _Softmax:
    """The softmax that reduction ``op`` sums up. Raises ScheduleError ``split-softmax.stage``."""
    for t in op.inputs:
        weights = t.op
        if weights is None or len(weights.bodies) != 1 or isinstance(weights.bodies[0], Reduce):
            continue
        for m in weights.inputs:
            score = _score_of(m.op, weights)
            if score is None or m.op is None:
                continue
            sums = tuple(s for s in computes_of(outputs) if _sums(s, t))
            if op in sums:
                repairs = tuple(_repair(s, weights, m.op, score) for s in sums)
                return _Softmax(weights, m.op, score, sums, repairs)
    raise _refused(f"{op.name} is no sum over weights that read scores and the maximum of these")


def _score_of(m: Compute | None, weights: Compute) -> Compute | None:
    """What ``m`` is the maximum of, over the last axis of ``weights``, which read both cell for cell; None if they do
    not.
    """
    body = m.bodies[0] if m is not None else None
    if m is None or not isinstance(body, Reduce) or body.combiner.name != "max" or body.part is not None:
        return None
    score = body.values[0]
    if len(m.bodies) != 1 or len(body.axes) != 1 or not isinstance(score, Load):
        return None
    if not identical(score.index, (*m.axes, *body.axes)) or len(m.axes) + 1 != len(weights.axes):
        return None
    whole = same_shape((body.axes[0].extent, *m.extents), (weights.extents[-1], *weights.extents[:-1]))
    if not whole or not _all_at(weights, m.outputs[0], weights.axes[:-1]):
        return None
    found = next((t.op for t in weights.inputs if t.buffer is score.buffer), None)
    if found is None or not same_shape(found.extents, weights.extents) or len(found.bodies) != 1:
        return None
    return found if _all_at(weights, found.outputs[0], weights.axes) else None


def _all_at(op: Compute, t: Tensor, index: Sequence[Expr]) -> bool:
    """True if ``op`` reads ``t`` at ``index`` alone."""
    loads = find(op.bodies[0], Load, lambda x: x.buffer is t.buffer)
    return bool(loads) and all(identical(x.index, tuple(index)) for x in loads)


def _sums(op: Compute, weights: Tensor) -> bool:
    """True if ``op`` is one sum over one axis that reads ``weights`` at axes of its own, the summed one last."""
    body = op.bodies[0]
    if len(op.bodies) != 1 or not isinstance(body, Reduce) or body.combiner.name != "sum" or body.part is not None:
        return False
    loads = find(body, Load, lambda x: x.buffer is weights.buffer)
    if not loads or len(body.axes) != 1 or not same_shape([body.axes[0].extent], weights.shape[-1:]):
        return False
    *cells, last = loads[0].index
    own = all(any(i is v for v in op.axes) for i in cells) and len({*cells}) == len(cells)
    return own and last is body.axes[0] and all(identical(x.index, loads[0].index) for x in loads)


def _repair(op: Compute, weights: Compute, m: Compute, score: Compute) -> Repair:
    """The factor by which the terms of sum ``op`` change with the maximum. Raises ScheduleError
    ``split-softmax.stage``.
    """
    body = op.bodies[0]
    assert isinstance(body, Reduce)
    at = next(x.index for x in find(body, Load) if x.buffer is weights.outputs[0].buffer)
    value = Var(m.name, m.outputs[0].dtype)
    inner = _Read({m.outputs[0].buffer: lambda _: value})(weights.bodies[0])
    inner = substitute(inner, dict(zip(weights.axes, at, strict=True)))
    terms = _Read({weights.outputs[0].buffer: lambda _: inner})(body.values[0])
    try:
        found = repair_of(terms, value, body.axes, "sum", score.outputs[0][tuple(at)])
    except NoRepairError as e:
        raise _refused(f"{op.name} cannot be rescaled to another {m.name}: {e}") from None
    return found


def _refused(message: str) -> ScheduleError:
    hint = "sums of exp(x - m), times what does not read m, where m is the maximum of x"
    return ScheduleError(Problem("split-softmax.stage", message, hint=hint))


class _Read(Rewriter):
    """Rewriter of loads: each load of a buffer in ``of`` becomes what its function makes of the index; ``axes`` maps
    variables.
    """

    def __init__(self, of: Mapping[Buffer, At], axes: Mapping[Var, Expr] | None = None) -> None:
        self.of, self.axes = of, axes or {}

    def on_Var(self, n: Var) -> Expr:
        return self.axes.get(n, n)

    def on_Load(self, n: Load) -> Expr:
        made = self.of.get(n.buffer)
        return made(n.index) if made else n.map(self)


@dataclass(frozen=True, eq=False)
class _Split:
    """A softmax whose terms are in ``count`` parts; ``made``: what ``cellwise`` has returned."""

    softmax: _Softmax
    count: int
    made: dict[Compute, Tensor] = field(default_factory=dict)

    @cached_property
    def length(self) -> int:
        """Number of terms."""
        return int(self.softmax.weights.extents[-1])

    @property
    def step(self) -> int:
        """Terms per part."""
        return -(-self.length // self.count)

    @property
    def ragged(self) -> bool:
        """True if the last parts have fewer terms."""
        return self.step * self.count > self.length

    def at(self, p: Expr, j: Expr) -> Expr:
        """Position of term ``j`` of part ``p``; beyond the end the last one, which is masked out."""
        place: Expr = p * self.step + j
        return minimum(place, self.length - 1) if self.ragged else place

    def cellwise(self, op: Compute) -> Tensor:
        """``op`` (cells, key) as (part, cells, key of the part), with what it reads cell for cell."""
        if op in self.made:
            return self.made[op]
        near = {t.buffer: self.cellwise(t.op) for t in op.inputs if t.op is not None and _is_near(op, t)}
        body = op.bodies[0]
        again = {v: reduce_axis(v.extent, v.name) for v in body.axes} if isinstance(body, Reduce) else {}

        def element(p: Expr, *at: Expr) -> Expr:
            swap: dict[Var, Expr] = dict(zip(op.axes, (*at[:-1], self.at(p, at[-1])), strict=True))
            read = {b: lambda _, t=t: t[(p, *at)] for b, t in near.items()}
            return _again(body, _Read(read, {**swap, **again}), again)

        self.made[op] = self._compute(op, element, (*op.extents[:-1], self.step))
        return self.made[op]

    def _compute(
        self, op: Compute, element: Callable[..., Expr], extents: Sequence[int], suffix: str = "part"
    ) -> Tensor:
        names = ["part", *(v.name for v in op.axes)]
        made: Tensor = compute((self.count, *extents), element, f"{op.name}_{suffix}", axes=names)
        return made

    @cached_property
    def score(self) -> Tensor:
        """Scores (part, cells, key), -inf for keys beyond the end."""
        op = self.softmax.score
        found = self.cellwise(op)
        if not self.ragged:
            return found

        def masked(p: Expr, *at: Expr) -> Expr:
            return where(p * self.step + at[-1] < self.length, found[(p, *at)], -math.inf)

        return self._compute(op, masked, (*op.extents[:-1], self.step), "masked")

    @cached_property
    def largest(self) -> Tensor:
        """Maxima (part, cells)."""
        op, k = self.softmax.largest, self._axis(self.softmax.largest)
        return self._compute(op, lambda p, *at: largest_of(self.score[(p, *at, k)], axis=k), op.extents)

    def _axis(self, op: Compute) -> Var:
        body = op.bodies[0]
        assert isinstance(body, Reduce)
        return reduce_axis(self.step, body.axes[0].name)

    @cached_property
    def weights(self) -> Tensor:
        """Weights (part, cells, key), relative to the maxima of their parts."""
        op, score, largest = self.softmax.weights, self.score, self.largest
        scores, maxima = self.softmax.score.outputs[0].buffer, self.softmax.largest.outputs[0].buffer

        def element(p: Expr, *at: Expr) -> Expr:
            swap: dict[Var, Expr] = dict(zip(op.axes, (*at[:-1], self.at(p, at[-1])), strict=True))
            read = {scores: lambda _: score[(p, *at)], maxima: lambda _: largest[(p, *at[:-1])]}
            return _again(op.bodies[0], _Read(read, swap), {})

        return self._compute(op, element, (*op.extents[:-1], self.step))

    def part(self, op: Compute) -> Tensor:
        """Partial sums (part, …) of ``op``."""
        weights, old, body = self.weights, self.softmax.weights.outputs[0].buffer, op.bodies[0]
        assert isinstance(body, Reduce)
        t, j = body.axes[0], self._axis(op)

        def element(p: Expr, *at: Expr) -> Expr:
            swap: dict[Var, Expr] = dict(zip(op.axes, at, strict=True))
            read = {old: lambda index: weights[(p, *(substitute(i, swap) for i in index[:-1]), j)]}
            return _again(body, _Read(read, {**swap, t: self.at(p, j)}), {t: j})

        return self._compute(op, element, op.extents)

    def kept(self, op: Compute) -> Tensor:
        """Partial sums of ``op`` for the kernel that combines them; 0 of a part without a finite score, whose weights
        are undefined.
        """
        part, largest = self.part(op), self.largest

        def element(p: Expr, *at: Expr) -> Expr:
            cell = largest[(p, *self._cell(op, at))]
            return where(cell > -math.inf, part[(p, *at)], 0.0)

        return self._compute(op, element, op.extents, "parts")

    def _cell(self, op: Compute, at: Sequence[Expr]) -> tuple[Expr, ...]:
        """Index of the maximum that belongs to element ``at`` of sum ``op``."""
        read = next(x for x in find(op.bodies[0], Load) if x.buffer is self.softmax.weights.outputs[0].buffer)
        swap: dict[Var, Expr] = dict(zip(op.axes, at, strict=True))
        return tuple(substitute(i, swap) for i in read.index[:-1])

    def combined(self) -> dict[Tensor, Tensor]:
        """Each sum, and the maximum, with the tensor that replaces it."""
        op = self.softmax.largest
        maxima = self._compute(op, lambda *at: self.largest[at], op.extents, "parts")
        name = [v.name for v in op.axes]
        p = reduce_axis(self.count, "part")
        largest = compute(op.extents, lambda *i: largest_of(maxima[(p, *i)], axis=p), op.name, axes=name)
        scales: dict[object, Tensor] = {}
        made: dict[Tensor, Tensor] = {}
        for s, repair in zip(self.softmax.sums, self.softmax.repairs, strict=True):
            key = structure(repair.of(maxima[(p, *op.axes)], largest[op.axes]))
            if key not in scales:
                scales[key] = self._scale(repair, maxima, largest)
            made[s.outputs[0]] = self._sum(s, scales[key])
        return {**made, op.outputs[0]: largest}

    def _scale(self, repair: Repair, maxima: Tensor, largest: Tensor) -> Tensor:
        """Factors (part, cells) from the maximum of a part to that of all; 0 without a finite score."""
        op = self.softmax.largest

        def element(p: Expr, *i: Expr) -> Expr:
            own = maxima[(p, *i)]
            return where(own > -math.inf, repair.of(own, largest[i]), 0.0)

        return self._compute(op, element, op.extents, "scale")

    def _sum(self, op: Compute, scale: Tensor) -> Tensor:
        """Sum ``op`` from its rescaled parts, which are read first: they come before the kernel that combines them."""
        parts, q = self.kept(op), reduce_axis(self.count, "part")

        def element(*at: Expr) -> Expr:
            term = parts[(q, *at)]
            return total(term * cast(scale[(q, *self._cell(op, at))], term.dtype), axis=q)

        made: Tensor = compute(op.extents, element, op.name, axes=[v.name for v in op.axes])
        return made


def _is_near(op: Compute, t: Tensor) -> bool:
    """True if ``op`` is elementwise and reads ``t`` cell for cell, and ``t`` is a reduction, or is made of some so."""
    if isinstance(op.bodies[0], Reduce) or t.op is None or len(t.op.bodies) != 1 or not _all_at(op, t, op.axes):
        return False
    body = t.op.bodies[0]
    if isinstance(body, Reduce):
        return body.part is None
    return any(_is_near(t.op, x) for x in t.op.inputs)


def _again(body: Expr, read: _Read, axes: Mapping[Var, Var]) -> Expr:
    """``body`` with its elements rewritten, a reduction with its axes replaced."""
    if not isinstance(body, Reduce):
        made: Expr = read(body)
        return made
    values = tuple(read(e) for e in body.values)
    return body.replace(axes=tuple(axes[v] for v in body.axes), values=values)
