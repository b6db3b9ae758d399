"""In-register transposition (8x8 in 24 shuffles, or 4x4) of tiles written by rows and read by columns.

Without it, compilers extract and insert lanes one by one, which takes four times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorir.arith.access import spaced
from tensorir.arith.affine import Arith, Linear
from tensorir.codegen.c_text import shuffle
from tensorir.codegen.dialect import OPENCL, C
from tensorir.ir.build import as_int, const
from tensorir.ir.tree import Buffer, Const, Expr, If, Kind, Load, Loop, Pack, Ramp, Scope, Stmt, Store
from tensorir.ir.visit import Rewriter, find
from tensorir.ir.words import SIDES


@dataclass(frozen=True)
class Across:
    """A loop that reads columns of a register tile: ``rows`` rows of ``buffer``, ``pitch`` elements apart, first index
    ``form``.
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
        """Side of the square transposed at once, 8 or 4; 0 if there are too few rows."""
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
"""``to`` receives the columns of some rows, ``pitch`` elements apart, as rows that are ``rows`` elements apart."""
