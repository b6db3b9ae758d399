"""Polyphase decomposition: a sum over an image with zeros between its pixels, without the terms of these zeros.

    y[h] = sum over r of where((h - r) % 2 == 0, x[(h - r) // 2], 0) * w[r]
    ->
    y_phase_0[p] = sum over j of x[p - j] * w[2*j];   y_phase_1[p] = sum over j of x[p - j] * w[2*j + 1]
    y[h] = where(h % 2 == 0, y_phase_0[h // 2], y_phase_1[h // 2])

Transposed convolutions, gradients of strided ones and interpolating filters are such sums (Vaidyanathan, "Multirate
digital filters, filter banks, polyphase networks, and applications", 1990); each phase is a dense convolution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from tensorir.algorithms.registry import algorithm
from tensorir.arith.affine import Arith, same
from tensorir.arith.conditions import conjuncts
from tensorir.errors import Problem, ScheduleError
from tensorir.expr.program import computes_of
from tensorir.expr.reread import declared, with_other
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.build import as_int, binary, select
from tensorir.ir.tree import Binary, Buffer, Cast, Const, Expr, Load, PadLoad, Reduce, Select, Unary, Var
from tensorir.ir.visit import Rewriter, find, substitute

MOST_STAGES = 16
"""Phases that may have stages of their own."""
MOST_BORDERS, SMALL_COPY = 8, 1 << 16
"""Elements of a padded copy: at most so many times the array's, or so many."""


@algorithm("phases")
def phases(outputs: tuple[Tensor, ...], of: str | None = None) -> tuple[Tensor, ...]:
    """Return ``outputs`` with the sum S in phases, without terms that a condition on a remainder makes 0: one stage
    ``S_phase`` (phase, …) if all phases have as many terms, else stages ``S_phase_0``, ``S_phase_1``, ….

    Terms are 0 also where a factor next to the condition is infinite or NaN.
    of: name of the sum, if there are several
    Raises ScheduleError ``phases.stage`` if there is none, or more than ``MOST_STAGES`` stages would be.
    """
    found = [some for op in computes_of(outputs) if of in (None, op.name) and (some := spread_of(op))]
    if len(found) != 1:
        names = ", ".join(some.op.name for some in found) or "none"
        hint = f"of={found[0].op.name!r}" if found else "a sum of where((i - k) % 2 == 0, x[(i - k) // 2], 0) * w[k]"
        raise ScheduleError(Problem("phases.stage", f"phases are of one sum; {names} could have some", hint=hint))
    (spread,) = found
    return with_other(outputs, spread.op.outputs[0], spread.joined())


@dataclass(frozen=True)
class Remainder:
    """Terms of a sum are 0 unless ``(a*axis + b*term + c) % step == 0``; ``size``, ``taps``: extents of both axes."""

    axis: Var
    term: Var
    size: int
    taps: int
    a: int
    b: int
    c: int
    step: int

    def terms(self, phase: int) -> range:
        """Terms that are left where axis % step == phase."""
        apart = self.step // math.gcd(self.b, self.step)
        met = (t for t in range(min(apart, self.taps)) if (self.a * phase + self.b * t + self.c) % self.step == 0)
        first = next(met, self.taps)
        return range(first, self.taps, apart)

    @cached_property
    def even(self) -> bool:
        """True if all phases have as many results and terms, so that they are one stage."""
        counts = {len(self.terms(n)) for n in range(self.step)}
        return abs(self.b) == 1 and self.size % self.step == 0 and len(counts) == 1

    def first(self, phase: Expr) -> tuple[Var, Expr, Expr]:
        """(t, its value, the first term of ``phase`` in t): a*phase + b*term + c == step*t*b for |b| == 1."""
        t, m = Var(f"{self.term.name}_turn", "index"), binary("+", binary("*", phase, self.a), self.c)
        if self.b < 0:
            return t, binary("//", m, self.step), binary("-", m, binary("*", t, self.step))
        ceiled = binary("//", binary("+", m, self.step - 1), self.step)
        return t, ceiled, binary("-", binary("*", t, self.step), m)


@dataclass(frozen=True, eq=False)
class SpreadSum:
    """A sum ``op`` with the conditions ``sides`` on its terms; ``body``: the sum that reads what was spread.

    apart: True if a stage of its own puts zeros between elements
    """

    op: Compute
    body: Reduce
    sides: tuple[Remainder, ...]
    apart: bool

    @property
    def terms(self) -> int:
        """Terms of each result as declared."""
        return math.prod(v.extent or 0 for v in self.body.axes)

    @property
    def share(self) -> float:
        """Fraction of all terms that is left."""
        kept = (sum(len(s.terms(n)) for n in range(s.step)) / (s.step * s.taps) for s in self.sides)
        return math.prod(kept)

    @cached_property
    def even(self) -> bool:
        """True if all phases are one stage."""
        return all(s.even for s in self.sides)

    @property
    def stages(self) -> int:
        """Number of stages of the phases."""
        return 1 if self.even else math.prod(s.step for s in self.sides)

    def joined(self) -> Tensor:
        """The sum, read from its phases."""
        op = self.op
        own = tuple(Var(v.name, "index") for v in op.axes)
        by = dict(zip(op.axes, own, strict=True))
        rests = [binary("%", by[s.axis], s.step) for s in self.sides]
        inner = {s.axis: binary("//", by[s.axis], s.step) for s in self.sides}
        at = tuple(inner.get(v, by[v]) for v in op.axes)
        if self.even:
            body: Expr = self._made[()][(*rests, *at)]
        else:
            body = self._chosen(rests, at, ())
        return declared(op.name, own, op.extents, body)

    def _chosen(self, rests: Sequence[Expr], at: tuple[Expr, ...], phase: tuple[int, ...]) -> Expr:
        """What is read where the first remainders are ``phase``."""
        if len(phase) == len(self.sides):
            made, zero = self._made.get(phase), self.body.combiner.identity[0]
            ragged = any(s.size % s.step for s in self.sides)
            if made is None:
                return zero
            return PadLoad(made.buffer, at, zero, made.dtype) if ragged else made[at]
        steps = range(self.sides[len(phase)].step)
        *sides, last = (self._chosen(rests, at, (*phase, n)) for n in steps)
        tests = [binary("==", rests[len(phase)], n) for n in steps]
        return reduce(lambda b, a: select(a[0], a[1], b), zip(tests[-2::-1], sides[::-1], strict=True), last)

    @cached_property
    def _made(self) -> dict[tuple[int, ...], Tensor]:
        """The stages of all phases with terms, which read arrays with borders from one padded copy."""
        every = [*itertools.product(*(range(s.step) for s in self.sides))] if not self.even else []
        found = [self._together()] if self.even else [p for phase in every if (p := self._alone(phase))]
        borders = dict[Buffer, list[tuple[PadLoad, Arith]]]()
        for p in found:
            for x in find(p.value, PadLoad):
                borders.setdefault(x.buffer, []).append((x, p.arith))
        read = [t for t in self._inputs if t.buffer in borders]
        near = {t.buffer: c for t in read if (c := _padded(self.op.name, t, borders[t.buffer])) is not None}
        return {p.phase: p.stage(f"{self.op.name}_phase", self.body, near) for p in found}

    @property
    def _inputs(self) -> list[Tensor]:
        """Tensors that the sum reads, and its maps."""
        return [*self.op.inputs, *(x for t in self.op.inputs if t.op for x in t.op.inputs)]

    def _alone(self, phase: tuple[int, ...]) -> Phase | None:
        """One phase alone; None if it has no results or no terms."""
        left = [s.terms(n) for s, n in zip(self.sides, phase, strict=True) if n < s.size]
        if len(left) < len(phase) or not all(left):
            return None
        swap, extents, counts = dict[Var, Expr](), dict(zip(self.op.axes, self.op.extents, strict=True)), self._counts
        for s, n, terms in zip(self.sides, phase, left, strict=True):
            extents[s.axis], counts[s.term] = -(-(s.size - n) // s.step), len(terms)
            swap[s.axis] = binary("+", binary("*", s.axis, s.step), n)
            swap[s.term] = binary("+", binary("*", s.term, terms.step), terms.start)
        return Phase.of(phase, extents, counts, substitute(self.body.values[0], swap), {})

    def _together(self) -> Phase:
        """All phases, whose numbers are the first axes."""
        swap, last, counts = dict[Var, Expr](), dict[Var, Expr](), self._counts
        outer = {Var(f"{s.axis.name}_phase", "index"): s.step for s in self.sides}
        extents = dict(zip(self.op.axes, self.op.extents, strict=True))
        for s, phase in zip(self.sides, outer, strict=True):
            extents[s.axis], counts[s.term] = s.size // s.step, s.taps // s.step
            turn, value, first = s.first(phase)
            last[turn] = value
            swap[s.axis] = binary("+", binary("*", s.axis, s.step), phase)
            swap[s.term] = binary("+", binary("*", s.term, s.step), first)
        return Phase.of((), {**outer, **extents}, counts, substitute(self.body.values[0], swap), last)

    @property
    def _counts(self) -> dict[Var, int]:
        return {v: int(v.extent or 0) for v in self.body.axes}


@dataclass(frozen=True, eq=False)
class Phase:
    """Results of one phase, or of all: extents of their axes, ``counts`` of terms, the value of a term."""

    phase: tuple[int, ...]
    extents: dict[Var, int]
    counts: dict[Var, int]
    value: Expr
    arith: Arith

    @classmethod
    def of(cls, phase: tuple[int, ...], extents: dict[Var, int], counts: dict[Var, int], value: Expr,
           last: Mapping[Var, Expr]) -> Phase:  # fmt: skip
        """A phase from a value that is simplified first; then variables become ``last``."""
        arith = Arith({v: (0, n - 1) for v, n in (*extents.items(), *counts.items())})
        return cls(phase, extents, counts, substitute(arith.simplify(value), last), arith)

    def stage(self, name: str, body: Reduce, near: Mapping[Buffer, Padded]) -> Tensor:
        """The sum of the terms as a stage, which reads arrays ``near`` from their padded copies."""
        own = {v: Var(v.name, "index") for v in self.extents}
        own |= {v: Var(v.name, "index", extent=n) for v, n in self.counts.items()}
        value = substitute(_Near(near)(self.value), own)
        terms = tuple(own[v] for v in self.counts)
        return declared("_".join((name, *map(str, self.phase))), tuple(own[v] for v in self.extents),
                         tuple(self.extents.values()),
                         Reduce(body.combiner, terms, (value,), 0, body.dtype))  # fmt: skip


@dataclass(frozen=True, eq=False)
class Padded:
    """A copy of an array with borders: element ``i`` of the array is ``i - low`` of the copy."""

    copy: Tensor
    low: tuple[int, ...]


def _padded(name: str, t: Tensor, reads: Sequence[tuple[PadLoad, Arith]]) -> Padded | None:
    """The copy of ``t`` with the borders that ``reads`` reach; itself if none does. None if their borders differ, data
    say how far they reach, or the copy would be much larger.
    """
    first, _ = reads[0]
    ends = [[arith.range(i) for i in x.index] for x, arith in reads]
    if not all(same(x.fill, first.fill) for x, _ in reads) or any(math.isinf(n) for e in ends for r in e for n in r):
        return None
    low = tuple(int(min(0, *(e[d][0] for e in ends))) for d in range(t.ndim))
    high = [int(max(n - 1, *(e[d][1] for e in ends))) for d, n in enumerate(t.shape)]
    if not any(low) and all(h < int(n) for h, n in zip(high, t.shape, strict=True)):
        return Padded(t, low)
    shape = [h - n + 1 for h, n in zip(high, low, strict=True)]
    if math.prod(shape) > max(MOST_BORDERS * math.prod(map(int, t.shape)), SMALL_COPY):
        return None
    own = tuple(Var(f"i{d}", "index") for d in range(t.ndim))
    at = tuple(binary("+", v, n) for v, n in zip(own, low, strict=True))
    return Padded(declared(f"{name}_{t.name}", own, shape, PadLoad(t.buffer, at, first.fill, first.dtype)), low)


def spread_of(op: Compute) -> SpreadSum | None:
    """The sum with conditions on remainders that ``op`` is; None if it is none, or has symbolic extents."""
    body = op.bodies[0]
    if len(op.bodies) != 1 or not isinstance(body, Reduce) or body.combiner.name != "sum" or body.part is not None:
        return None
    if not all(isinstance(n, int) for n in (*op.extents, *(v.extent for v in body.axes))):
        return None
    near = {t.buffer: t.op for t in op.inputs if t.op is not None and _spreads(t.op)}
    whole = _Inlined(near)(body)
    assert isinstance(whole, Reduce)
    sides = dict[Var, Remainder]()
    for e in _tests(whole.values[0]):
        side = _side(op, whole, e)
        if side is not None and side.step > 1 and all(side.term is not s.term for s in sides.values()):
            sides.setdefault(side.axis, side)
    found = SpreadSum(op, whole, tuple(sides.values()), bool(near))
    some = all(any(s.terms(n) for n in range(min(s.step, s.size))) for s in found.sides)
    return found if sides and some and found.stages <= MOST_STAGES else None


def _spreads(op: Compute) -> bool:
    """True if ``op`` puts zeros between elements: a map with a condition on a remainder."""
    body = op.bodies[0]
    return len(op.bodies) == 1 and not isinstance(body, Reduce) and any(_remainders(s.cond) for s in find(body, Select))


def _remainders(cond: Expr) -> Iterator[tuple[Expr, int, int]]:
    """(place, step, rest) of each conjunct ``place % step == rest`` of a condition on indices."""
    for c in conjuncts(cond):
        if isinstance(c, Binary) and c.op == "==" and isinstance(c.b, Const) and c.a.dtype == "index":
            rest, found = c.a, as_int(c.b)
            if isinstance(rest, Binary) and rest.op == "%" and isinstance(rest.b, Const) and 0 <= found < rest.b.value:
                yield rest.a, as_int(rest.b), found


def _tests(value: Expr) -> Iterator[tuple[Expr, int, int]]:
    """``_remainders`` of the conditions without which a term is 0: of factors, and of what is chosen there."""
    if isinstance(value, Binary) and value.op == "*":
        yield from (x for side in (value.a, value.b) for x in _tests(side))
    elif isinstance(value, Cast) or (isinstance(value, Unary) and value.op == "-"):
        yield from _tests(value.a)
    elif isinstance(value, Select) and isinstance(value.b, Const) and not value.b.value:
        yield from _remainders(value.cond)
        yield from _tests(value.a)


def _side(op: Compute, body: Reduce, test: tuple[Expr, int, int]) -> Remainder | None:
    """The side that a condition on a remainder is about; None unless it names one axis of the results and one of the
    terms.
    """
    place, step, rest = test
    form = Arith().linear(place)
    extents = dict(zip(op.axes, op.extents, strict=True))
    axes, terms = ([v for v in form.terms if v in among] for among in (extents, set(body.axes)))
    if len(axes) != 1 or len(terms) != 1 or len(form.terms) != 2:
        return None
    (axis,), (term,) = axes, terms
    assert isinstance(axis, Var)
    assert isinstance(term, Var)
    return Remainder(axis, term, extents[axis], int(term.extent or 0), form.terms[axis], form.terms[term],
                form.constant - rest, step)  # fmt: skip


class _Inlined(Rewriter):
    """Rewriter: reads of tensors become what their maps compute."""

    def __init__(self, of: Mapping[Buffer, Compute]) -> None:
        self.of = of

    def on_Load(self, n: Load) -> Expr:
        op = self.of.get(n.buffer)
        return n.map(self) if op is None else substitute(op.bodies[0], dict(zip(op.axes, n.index, strict=True)))


class _Near(Rewriter):
    """Rewriter: reads beyond the ends of arrays become reads of their padded copies."""

    def __init__(self, of: Mapping[Buffer, Padded]) -> None:
        self.of = of

    def on_PadLoad(self, n: PadLoad) -> Expr:
        found = self.of.get(n.buffer)
        if found is None:
            return n.map(self)
        return found.copy[tuple(binary("-", i, k) for i, k in zip(n.index, found.low, strict=True))]
