"""Text of vector shuffles, and vectors of elements with stride 1 or 2, possibly padded with zeros, as shuffles of one
or two vector loads.

The latter are used at borders of padded tensors and for strided rows: one or two vector loads and a shuffle are
faster than a load and an insert per lane.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorir.arith.access import spaced
from tensorir.arith.affine import Arith, Linear
from tensorir.codegen.c_text import shuffle
from tensorir.ir.dims import span
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.lanes import lanes_of
from tensorir.ir.tree import Buffer, Const, Expr, Load, Pack, Scope, Shuffle

MOST_PICKED = 4
"""Elements that one part takes: swizzles have names for 1 to 4."""


@dataclass(frozen=True, eq=False)
class PickedPart:
    """Lanes ``elements`` of the vector load of ``width`` elements that starts at index ``base``."""

    base: Expr
    width: int
    elements: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Picked:
    """A vector described as ``before`` zeros, lanes of vector loads from ``buffer``, and ``after`` zeros."""

    buffer: Buffer
    before: int
    parts: tuple[PickedPart, ...]
    after: int


def picked(e: Pack, arith: Arith) -> Picked | None:
    """``e`` as lanes of one or two vector loads within the buffer; None if it has no such form."""
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
    """Lanes of one vector load of ``width`` elements, from the first of ``n`` elements on or up to the last; [] unless
    the load provably stays inside the buffer.
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
    """Lanes of two vector loads: one starts at the first of ``n`` elements, ``step`` apart, one ends at the last; [] if
    the elements span less than a vector.
    """
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


if TYPE_CHECKING:
    from tensorir.codegen.expressions import Expressions

_DIGITS = "0123456789abcdef"
_WHOLE_TYPES = {8: "char", 16: "short", 32: "int", 64: "long"}


def shuffled(to: Expressions, e: Shuffle) -> str:
    """C text of a Shuffle expression."""
    width, count = lanes_of(e.a), len(e.picks)
    texts = [to(x) if isinstance(x, Load) and x.buffer.lanes > 1 else f"({to(x)})" for x in (e.a, e.b)]
    if to.d.family == "c":
        if count == 1:
            return f"{texts[e.picks[0] // width]}[{e.picks[0] % width}]"
        to.vector_type(e.dtype, count)
        return shuffle(texts, e.picks)
    if width == count > 1 and all(k % width == n for n, k in enumerate(e.picks)) and max(e.picks) >= width:
        return _blend(texts, e)
    parts = [f"{texts[n]}.s{''.join(_DIGITS[k] for k in ks)}" for n, ks in _runs(e.picks, width)]
    return parts[0] if len(parts) == 1 else to.pack(e.dtype, count, parts)


def _blend(texts: Sequence[str], e: Shuffle) -> str:
    """C text of a select that takes each lane from the same lane of one of two vectors."""
    count = len(e.picks)
    second = ", ".join("-1" if k >= count else "0" for k in e.picks)
    return f"({_WHOLE_TYPES[DTYPES[e.dtype].bits]}{count})({second}) ? {texts[1]} : {texts[0]}"


def _runs(picks: Sequence[int], width: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield (which vector: 0 or 1, lanes in it) for runs of ``picks`` from one vector; their lengths are powers of two
    up to 16.

    picks: lane numbers over both vectors;  width: lanes of a vector
    """
    n = 0
    while n < len(picks):
        which = picks[n] // width
        same = next((k for k in range(n, len(picks)) if picks[k] // width != which), len(picks)) - n
        size = next(s for s in (16, 8, 4, 2, 1) if s <= same)
        yield which, [k % width for k in picks[n : n + size]]
        n += size
