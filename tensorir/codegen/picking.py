"""Vectors of elements with stride 1 or 2, possibly padded with zeros, as shuffles of one or two vector loads.

Used at borders of padded tensors and for strided rows: one or two vector loads and a shuffle are faster than a load and
an insert per lane.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorir.arith.access import spaced
from tensorir.arith.affine import Arith, Linear
from tensorir.ir.dims import span
from tensorir.ir.tree import Buffer, Const, Expr, Load, Pack, Scope

MOST_PICKED = 4
"""Elements that one part takes: swizzles have names for 1 to 4."""


@dataclass(frozen=True, eq=False)
class PickedPart:
    """Lanes ``elements`` of the ``width``-wide vector load at ``base``."""

    base: Expr
    width: int
    elements: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Picked:
    """A vector as leading zeros, lanes of vector loads from ``buffer``, and trailing zeros."""

    buffer: Buffer
    before: int
    parts: tuple[PickedPart, ...]
    after: int


def picked(e: Pack, arith: Arith) -> Picked | None:
    """``e`` as lanes of vector loads within the buffer; None if impossible."""
    count, used = len(e.items), [k for k, i in enumerate(e.items) if isinstance(i, Load)]
    loads = [i for i in e.items if isinstance(i, Load)]
    if count not in (4, 8) or len(loads) < 3 or used != list(range(used[0], used[-1] + 1)):
        return None
    b = loads[0].buffer
    if b.scope not in (Scope.GLOBAL, Scope.SHARED) or b.lanes > 1 or b.dtype != "float32":
        return None
    if any(i.buffer is not b for i in loads) or not all(isinstance(i, Load) or _zero(i) for i in e.items):
        return None
    step, first = spaced(loads, arith) or (0, Linear({}, 0))
    if step not in (1, 2):
        return None
    found = [_one(first, len(loads), count, b, arith)] if step == 1 else []
    parts = next((p for p in found if p), None) or _two(first, step, len(loads), used[0], count)
    return Picked(b, used[0], tuple(parts), count - used[-1] - 1) if parts else None


def _zero(e: Expr) -> bool:
    return isinstance(e, Const) and bool(e.value == 0)


def _one(first: Linear, n: int, width: int, b: Buffer, arith: Arith) -> list[PickedPart]:
    """Lanes of one vector load that starts at the first element or ends at the last; [] unless it provably stays in the
    buffer.
    """
    start = None
    if arith.range_of(first)[1] + width <= math.prod(span(e)[0] for e in b.shape):  # of dims the least
        start = 0
    elif arith.range_of(first)[0] + n - width >= 0:
        start = n - width
    if start is None:
        return []
    base = first.plus(Linear({}, start)).expr()
    return [PickedPart(base, width, tuple(k - start for k in ks)) for ks in _in_fours(range(n))]


def _in_fours(ks: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ks[k : k + MOST_PICKED] for k in range(0, len(ks), MOST_PICKED))


def _two(first: Linear, step: int, n: int, lane: int, count: int) -> list[PickedPart]:
    """Lanes of two vector loads: one starting at the first element, one ending at the last."""
    last = (n - 1) * step
    width = min(count, 8 if last >= 7 else 4)
    late = last - width + 1
    if late < 0:
        return []
    # the upper half from the second vector where it can be: halves of vectors need no shuffle across
    high = [k for k in range(n) if k * step >= (late if 2 * (lane + k) >= count else width)]
    low = [k for k in range(n) if k not in high]
    return [
        PickedPart(first.plus(Linear({}, start)).expr(), width, tuple(k * step - start for k in ks))
        for start, ks in ((0, low), (late, high))
        if ks
    ]
