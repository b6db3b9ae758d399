"""Register tiles that are written by rows and read by columns: eight by eight elements in 24 shuffles.

A compiler given one lane of each of many vectors extracts and inserts them one by one, which takes four times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorir.arith.affine import Arith, Linear
from tensorir.ir.build import as_int, const
from tensorir.ir.tree import Buffer, Expr, Kind, Load, Loop, Pack, Ramp, Scope, Stmt, Store
from tensorir.ir.visit import Rewriter, find

SIDE = 8
"""Rows and columns that are transposed at a time."""


@dataclass(frozen=True)
class Across:
    """Columns of ``rows`` rows of ``buffer``, ``pitch`` elements apart from ``form`` on: vectors of ``loop``."""

    loop: Loop
    pack: Pack
    buffer: Buffer
    form: Linear
    pitch: int

    def start(self, row: int, column: int) -> Expr:
        """Where the vector that begins there lies in ``buffer``."""
        return self.form.plus(Linear({}, row * self.pitch + column)).expr()

    @property
    def rows(self) -> int:
        return len(self.pack.items)

    @property
    def columns(self) -> int:
        return as_int(self.loop.extent)

    def reading(self, columns: Buffer) -> Stmt:
        """The loop's body, the vectors read from ``columns``, where each lies in one piece."""
        at = Ramp(self.loop.var * self.rows, self.rows, "index")
        body: Stmt = _Replace(self.pack, Load(columns, (at,), self.pack.dtype))(self.loop.body)
        return body

    def made(self) -> Buffer:
        """The buffer for ``reading``."""
        size = const(self.rows * self.columns, "index")
        return Buffer(f"{self.buffer.name}_across", (size,), self.buffer.dtype, Scope.REGISTER)


class _Replace(Rewriter):
    def __init__(self, old: Pack, new: Load) -> None:
        self.old, self.new = old, new

    def on_Pack(self, n: Pack) -> Expr:
        return self.new if n is self.old else self.children(n)


def across(loop: Loop, arith: Arith) -> Across | None:
    """The transposition in a loop that is written out, whose iterations each store one column of a register tile."""
    if loop.kind is not Kind.UNROLL or as_int(loop.extent) % SIDE or not isinstance(loop.body, Store):
        return None
    packs = find(loop.body.value, Pack)
    if len(packs) != 1 or not isinstance(loop.body.index[0], Ramp):
        return None
    loads = [i for i in packs[0].items if isinstance(i, Load)]
    if len(loads) != len(packs[0].items) or len(loads) % SIDE:
        return None
    b = loads[0].buffer
    if b.scope is not Scope.REGISTER or b.dtype != "float32" or b.lanes > 1 or any(i.buffer is not b for i in loads):
        return None
    forms = [arith.linear(i.index[0]) for i in loads]
    away = [f.plus(forms[0], -1) for f in forms]
    pitch = away[1].constant
    if any(d.terms or d.constant != r * pitch for r, d in enumerate(away)) or forms[0].terms.get(loop.var) != 1:
        return None
    form = Linear({t: c for t, c in forms[0].terms.items() if t is not loop.var}, forms[0].constant)
    if pitch % SIDE or not arith.is_multiple(form.expr(), SIDE):
        return None
    return Across(loop, packs[0], b, form, pitch)


def _network() -> str:
    """The function that transposes eight rows: pairs of lanes, pairs of pairs, halves."""
    rows = [f"r{k}" for k in range(SIDE)]
    lines = [f"const float8 {r} = *(const float8 *)(from + {k} * pitch);" for k, r in enumerate(rows)]
    pairs = [(k, k + 1) for k in range(0, SIDE, 2)]
    rows = _step(lines, "a", rows, pairs, ("0.0 1.0 0.1 1.1 0.4 1.4 0.5 1.5", "0.2 1.2 0.3 1.3 0.6 1.6 0.7 1.7"))
    twos = [(0, 2), (1, 3), (4, 6), (5, 7)]
    rows = _step(lines, "b", rows, twos, ("0.01 1.01 0.45 1.45", "0.23 1.23 0.67 1.67"))
    for k in range(SIDE):
        half = "lo" if k < SIDE // 2 else "hi"
        lines.append(f"*(float8 *)(to + {k} * rows) = (float8)({rows[k % 4]}.{half}, {rows[k % 4 + 4]}.{half});")
    head = "__attribute__((always_inline)) inline void tir_transpose_8x8("
    given = "const float *from, long pitch, float *to, long rows)"
    return "\n".join([head + given, "{", *(f"  {line}" for line in lines), "}"])


def _step(
    lines: list[str], name: str, rows: list[str], pairs: list[tuple[int, int]], picks: tuple[str, str]
) -> list[str]:
    """From each pair of vectors two that mix them, whose names it returns.

    picks: "0.45 1.45": lanes 4 and 5 of the pair's first, then of its second
    """
    made = []
    for n, pair in enumerate(pairs):
        for k, pick in enumerate(picks):
            parts = (part.split(".") for part in pick.split())
            items = ", ".join(f"{rows[pair[int(which)]]}.s{lanes}" for which, lanes in parts)
            made.append(f"{name}{2 * n + k}")
            lines.append(f"const float8 {made[-1]} = (float8)({items});")
    return made


TRANSPOSE = _network()
"""``to`` receives the columns of eight rows, ``pitch`` elements apart, as rows that are ``rows`` elements apart."""
