"""Analyzes how declarations use their inputs (index, divisor, shift count, bits), to choose test values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from tensorir.expr.bounds import Part, gathered, places
from tensorir.expr.program import computes_of, gathers, segments_of, unique_places
from tensorir.expr.segments import segments
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import BITS, SHIFTS, as_expr, as_int
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Call, Cast, Expr, Load, PadLoad, Reduce, Unary, Var
from tensorir.ir.visit import find, under


def gather_limits(outputs: Sequence[Tensor], padded: bool = True) -> dict[Tensor, int]:
    """{index tensor: extent that its values must stay below}, the least if it indexes several arrays.

    padded: True to include indices of padded reads, for which larger values would give padding
    """
    found: dict[Tensor, int] = {}
    for op in computes_of(outputs):
        pads = [x for body in op.bodies for x in find(body, PadLoad)] if padded else []
        for index, extents in (*((i, n) for i, n, _ in places(op)), *((x.index, x.buffer.dims) for x in pads)):
            for i, extent in zip(index, extents, strict=True):
                for inner in find(i, Load):
                    t = inner.buffer.origin
                    if DTYPES[t.dtype].kind in "iu":
                        most = as_int(as_expr(extent))
                        found[t] = min(most, found.get(t, most))
        for s in segments(op):
            found[s.tensor] = s.most + 1 if s.along < 0 else max(s.limit, 1)
    return found


def column_limits(outputs: Sequence[Tensor]) -> dict[Tensor, list[tuple[tuple[slice, ...], int]]]:
    """{index tensor: [(slices, extent)]}: values in the slices must stay below the extent. Only for tensors whose parts
    have limits of their own.
    """
    found: dict[Tensor, dict[Part, int]] = {}
    for t, limit, _, part in gathers(outputs):
        most = as_int(as_expr(limit))
        own = found.setdefault(t, {})
        own[part] = min(most, own.get(part, most))
    return {t: [(tuple(slice(*p) if p else slice(None) for p in part), n) for part, n in own.items()]
            for t, own in found.items() if () not in own and _apart(list(own))}  # fmt: skip


def _apart(parts: Sequence[Part]) -> bool:
    """True if each part is disjoint from every other one in some dimension."""
    return all(
        any(p and q and set(range(*p)).isdisjoint(range(*q)) for p, q in zip(one, other, strict=True))
        for n, one in enumerate(parts)
        for other in parts[:n]
    )


def pointer_steps(outputs: Sequence[Tensor]) -> dict[Tensor, Steps]:
    """{tensor of segment offsets: recipe for its test values} such that segments have varied lengths and stay in
    bounds.
    """
    found = {}
    for s in segments_of(outputs):
        rows = s.tensor.shape[s.along] - 1
        limit = s.limit if s.into else rows * s.most
        jitter = min(s.most // 2, limit // (rows + 1))
        step = jitter or int(limit >= rows)
        found[s.tensor] = Steps(jitter, step, prod(s.tensor.shape[s.along + 1 :]), rows + 1)
    return found


def distinct_places(outputs: Sequence[Tensor]) -> dict[Tensor, Steps]:
    """{input: recipe for its test values} for inputs that give a scatter's target indices, which must be distinct."""
    found = {}
    for _, domain, found_at, shape in unique_places(outputs):
        named = {at[0] for t, at in found_at if t is None}
        for (t, at), limit in zip(found_at, shape, strict=True):
            free = [n for n in range(len(domain)) if n not in named and domain[n] > 1]
            dims = [d for d, n in enumerate(at) if n in free]
            count = prod(domain[n] for n in free)
            neighbours = bool(dims) and dims == list(range(dims[0], dims[-1] + 1))
            if (
                t is not None
                and min(at, default=0) >= 0
                and [at[d] for d in dims] == free
                and neighbours
                and count <= limit
            ):
                step = limit // count
                found[t] = Steps(step - 1, step, prod(t.shape[dims[-1] + 1 :]), count)
                break
    return found


class Steps(NamedTuple):
    """Recipe for test values: a random number from 0 to ``jitter`` plus ``step`` times the position along one
    dimension.

    inner: distance in memory of neighbours along the dimension, in elements;  extent: of the dimension
    """

    jitter: int
    step: int
    inner: int
    extent: int

    def added(self, shape: tuple[int, ...]) -> np.ndarray:
        """Array of ``shape`` with the position-dependent part of the values."""
        places = np.arange(prod(shape), dtype=np.int64) // self.inner % self.extent
        return (places * self.step).reshape(shape)


def masked_gathers(outputs: Sequence[Tensor]) -> set[Tensor]:
    """Index tensors whose values may be arbitrary, because the declaration maps them into range (``A[B[i] & 7]``)."""
    plain = {t for t, *_ in gathers(outputs)} | {s.tensor for s in segments_of(outputs)}
    for op in computes_of(outputs):
        for x in (x for body in op.bodies for x in find(body, PadLoad)):
            plain.update(source.buffer.origin for i in x.index if (source := gathered(i)) is not None)
    return set(gather_limits(outputs)) - plain


def masked_range(limit: int) -> tuple[int, int]:
    """(lowest test value, highest + 1) for an index tensor whose values the declaration maps into 0 … ``limit - 1``."""
    return -limit - 1, 2 * limit + 2


def divisors(outputs: Sequence[Tensor]) -> set[Tensor | Var]:
    """Integer inputs and scalars used as divisors, which must not be 0."""
    found: set[Tensor | Var] = set()
    for op in computes_of(outputs):
        divisions = [n for body in op.bodies for n in find(body, Binary) if n.op in ("//", "%")]
        by = [n.b for n in divisions if DTYPES[n.b.dtype].kind in "iu"]
        reads: list[Load | PadLoad] = [*under(by, Load), *under(by, PadLoad)]
        found.update(r.buffer.origin for r in reads if r.buffer.origin is not None)
        found.update(under(by, Var))
    return found


def reads_bits(outputs: Sequence[Tensor]) -> bool:
    """True if bitwise operations on integers occur, so that small numbers alone test too little."""
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    bodies += [e for b in bodies if isinstance(b, Reduce) for e in b.combiner.result]
    return any(_on_bits(e) for b in bodies for e in find(b, (Binary, Unary, Call)))


def _on_bits(e: object) -> bool:
    match e:
        case Binary():
            return (e.op in BITS or e.op in SHIFTS) and e.dtype not in ("index", "bool")
        case Unary():
            return e.op == "~"
        case Call():
            return e.fn in ("bitcast", "mulhi", "power")
    return False


def only_integers(outputs: Sequence[Tensor]) -> bool:
    """True if the declaration computes no float."""
    return all(
        DTYPES[e.dtype].kind != "f" for op in computes_of(outputs) for b in op.bodies for e in (b, *find(b, Expr))
    )


def shift_amounts(outputs: Sequence[Tensor]) -> dict[Tensor | Var, int]:
    """{input or scalar used as shift count: bits of the widest type that it shifts}."""
    found: dict[Tensor | Var, int] = {}
    for op in computes_of(outputs):
        for e in (e for b in op.bodies for e in find(b, Binary) if e.op in SHIFTS):
            by = e.b
            while isinstance(by, Cast):
                by = by.a
            source = by.buffer.origin if isinstance(by, Load | PadLoad) else by if isinstance(by, Var) else None
            if source is not None:
                found[source] = max(DTYPES[e.dtype].bits, found.get(source, 0))
    return found


def bitcast_floats(outputs: Sequence[Tensor]) -> set[Tensor | Var]:
    """Float inputs and scalars whose bits are reinterpreted; the empty set if bits of computed floats are reinterpreted
    as well.
    """
    found: set[Tensor | Var] = set()
    for op in computes_of(outputs):
        for c in (c for b in op.bodies for c in find(b, Call) if c.fn == "bitcast" and DTYPES[c.dtype].kind != "f"):
            x = c.args[0]
            source = x.buffer.origin if isinstance(x, Load) else x if isinstance(x, Var) else None
            if source is None or (isinstance(source, Tensor) and source.op is not None):
                return set()
            found.add(source)
    return found
