"""Vectors made by shuffles of others: the text of a Shuffle, elements picked out of vector loads, transposed tiles.

    Shuffle(a, b, (0, 4, 1, 5))        ->   a.s0, b.s0, a.s1, b.s1
    0, X[2*i], X[2*i + 2], X[2*i + 4]  ->   lanes of one or two vector loads (``picked``)
    T[0][k], T[1][k], …, T[7][k]       ->   rows of an 8x8 tile that 24 shuffles transposed (``across``)

Each takes the place of a load and an insert per lane, which is slower at borders of padded tensors and for strided
rows, and takes four times as long where a register tile is written by rows and read by columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorir.arith.access import spaced
from tensorir.arith.affine import Arith, Linear
from tensorir.codegen.c_text import shuffle
from tensorir.codegen.dialect import OPENCL, C
from tensorir.ir.build import as_int, const
from tensorir.ir.dims import span
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.lanes import lanes_of
from tensorir.ir.tree import Buffer, Const, Expr, If, Kind, Load, Loop, Pack, Ramp, Scope, Shuffle, Stmt, Store
from tensorir.ir.visit import Rewriter, find
from tensorir.ir.words import SIDES

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


# --- elements of one array

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
    """``e`` as lanes of one or two vector loads within the buffer; None if it has no such form.

    Supported: 4 or 8 lanes of float32, three or more of them adjacent loads from one array in global or shared memory,
    1 or 2 elements apart, the others constant 0.
    """
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


# --- transposed tiles


@dataclass(frozen=True)
class Across:
    """A loop that reads columns of a register tile: ``rows`` rows of ``buffer``, ``pitch`` elements apart, first index
    ``form``.

    pack: vector of the loads of one column;  widest: elements of the largest vector
    """

    loop: Loop
    pack: Pack
    buffer: Buffer
    form: Linear
    pitch: int
    widest: int = SIDES[0]

    def start(self, row: int, column: int) -> Expr:
        """Index in ``buffer`` of the vector at ``row`` and ``column``."""
        return self.form.plus(Linear({}, row * self.pitch + column)).expr()

    @property
    def side(self) -> int:
        """Side of the square transposed at once, 8 or 4; 0 if it does not divide the rows, or iterations are fewer."""
        return next((n for n in SIDES if n <= self.widest and self.rows % n == 0 and as_int(self.loop.extent) >= n), 0)

    @property
    def rows(self) -> int:
        return len(self.pack.items)

    @property
    def columns(self) -> int:
        """Number of columns transposed: the loop's number of iterations rounded up to a multiple of ``side``."""
        return -(-as_int(self.loop.extent) // self.side) * self.side

    def reading(self, columns: Buffer) -> Stmt:
        """The loop's body, its vectors loaded from the transposed array ``columns``, in which they are contiguous."""
        at = Ramp(self.loop.var * self.rows, self.rows, "index")
        body: Stmt = _Replace(self.pack, Load(columns, (at,), self.pack.dtype))(self.loop.body)
        return body

    def made(self) -> Buffer:
        """A new register array for the transposed tile, from which ``reading`` loads."""
        size = const(self.rows * self.columns, "index")
        return Buffer(f"{self.buffer.name}_across", (size,), self.buffer.dtype, Scope.REGISTER)


class _Replace(Rewriter):
    def __init__(self, old: Pack, new: Load) -> None:
        self.old, self.new = old, new

    def on_Pack(self, n: Pack) -> Expr:
        return self.new if n is self.old else self.children(n)


def across(loop: Loop, arith: Arith, widest: int = SIDES[0]) -> Across | None:
    """The transposition for an unrolled loop whose iterations each store one column of a register tile; None for other
    loops.

    widest: elements of the largest vector
    """
    store = loop.body.then if isinstance(loop.body, If) else loop.body
    if loop.kind is not Kind.UNROLL or not isinstance(loop.extent, Const) or not isinstance(store, Store):
        return None
    packs = find(store.value, Pack)
    if len(packs) != 1 or not isinstance(store.index[0], Ramp):
        return None
    loads = [i for i in packs[0].items if isinstance(i, Load)]
    if len(loads) != len(packs[0].items) or len(loads) < SIDES[-1]:
        return None
    b = loads[0].buffer
    if b is store.buffer:
        return None  # an iteration may change what the next one reads
    if b.scope is not Scope.REGISTER or b.dtype != "float32" or b.lanes > 1 or any(i.buffer is not b for i in loads):
        return None
    pitch, first = spaced(loads, arith) or (0, Linear({}, 0))
    step, form = first.along(loop.var) or (0, first)
    if step != 1:
        return None
    found = Across(loop, packs[0], b, form, pitch, widest)
    if not found.side or pitch % found.side or not arith.is_multiple(form.expr(), found.side):
        return None
    # columns are turned that nobody asked for, or that a condition leaves out
    end = arith.range_of(form)[1] + (found.rows - 1) * pitch + found.columns
    return found if end <= as_int(b.shape[0]) else None


def _network(side: int, mix: _Mix, inline: str, long: str) -> str:
    """C function that transposes ``side`` rows of ``side`` floats by a shuffle network: pairs of lanes, pairs of pairs,
    halves.

    mix: function that prints a shuffle of two vectors
    """
    kind, rows = f"float{side}", [f"r{k}" for k in range(side)]
    lines = [f"const {kind} {r} = *(const {kind} *)(from + {k} * pitch);" for k, r in enumerate(rows)]
    pairs = [(k, k + 1) for k in range(0, side, 2)]

    def step(name: str, pairs: list[tuple[int, int]], picks: tuple[str, str]) -> list[str]:
        made = []
        for n, pair in enumerate(pairs):
            for k, pick in enumerate(picks):
                made.append(f"{name}{2 * n + k}")
                lines.append(f"const {kind} {made[-1]} = {mix(kind, [rows[p] for p in pair], pick)};")
        return made

    if side == 8:
        rows = step("a", pairs, ("0.0 1.0 0.1 1.1 0.4 1.4 0.5 1.5", "0.2 1.2 0.3 1.3 0.6 1.6 0.7 1.7"))
        rows = step("b", [(0, 2), (1, 3), (4, 6), (5, 7)], ("0.01 1.01 0.45 1.45", "0.23 1.23 0.67 1.67"))
    else:
        rows = step("a", pairs, ("0.0 1.0 0.1 1.1", "0.2 1.2 0.3 1.3"))
        rows = [rows[0], rows[2], rows[1], rows[3]]  # halves of the first two make columns 0 and 1
    for k in range(side):
        a, b, half = (k % 4, k % 4 + 4, k // 4) if side == 8 else (k // 2 * 2, k // 2 * 2 + 1, k % 2)
        joined = mix(kind, [rows[a], rows[b]], ("0.lo 1.lo", "0.hi 1.hi")[half])
        lines.append(f"*({kind} *)(to + {k} * rows) = {joined};")
    head = f"{inline} void tir_transpose_{side}x{side}("
    given = f"const float *from, {long} pitch, float *to, {long} rows)"
    return "\n".join([head + given, "{", *(f"  {line}" for line in lines), "}"])


_Mix = Callable[[str, Sequence[str], str], str]
"""The vector of a type that is made of two others; "0.45 1.lo": lanes 4 and 5 of the first, the lower half of the
second."""


def _swizzled(kind: str, pair: Sequence[str], pick: str) -> str:
    parts = (part.split(".") for part in pick.split())
    items = ", ".join(f"{pair[int(n)]}.{at if at in ('lo', 'hi') else f's{at}'}" for n, at in parts)
    return f"({kind})({items})"


def _shuffled(kind: str, pair: Sequence[str], pick: str) -> str:
    side = int(kind.removeprefix("float"))
    halves = {"lo": range(side // 2), "hi": range(side // 2, side)}
    parts = (part.split(".") for part in pick.split())
    return shuffle(pair, (int(n) * side + lane for n, at in parts for lane in halves.get(at, map(int, at))))


TRANSPOSE = {
    d.family: {side: _network(side, mix, d.lane_inline, d.types["int64"]) for side in SIDES}
    for d, mix in ((OPENCL, _swizzled), (C, _shuffled))
}
"""{language family: {side: C function}} that stores column k of a tile, its rows ``pitch`` apart, at to + k * rows."""
