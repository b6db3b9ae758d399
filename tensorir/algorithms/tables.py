"""Tables: what depends on few axes of a stage alone is computed once for each of their values.

    Y[i, j] = sum over u, v of X[row(i, u), column(j, v)] * weight(i, u) * weight(j, v)
    ->
    A[u, i], B[u, i] = row(i, u), weight(i, u);   C[v, j], D[v, j] = column(j, v), weight(j, v)
    Y[i, j] = sum over u, v of X[A[u, i], C[v, j]] * B[u, i] * D[v, j]

Resizing, warping along axes and positional encodings have such weights, which cost more than the sum.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorir.algorithms.registry import algorithm
from tensorir.arith.quotients import may_trap
from tensorir.errors import Problem, ScheduleError
from tensorir.expr.bounds import check_accesses
from tensorir.expr.program import computes_of
from tensorir.expr.reread import with_other
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.structure import structure
from tensorir.ir.tree import Binary, Call, Cast, Expr, Load, PadLoad, Reduce, Select, Unary, Var
from tensorir.ir.visit import Rewriter, find, substitute

LEAST_OPERATIONS = 9
"""Operations of an expression that is cheaper to look up than to compute; a function call counts as that many."""
LEAST_READS = 8
"""Reads of each entry of a table."""
KINDS = ("float32", "float64", "int32")
"""Element types of tables, which keep every digit of a value."""


@dataclass(frozen=True)
class TableEntry:
    """An expression that depends on ``axes`` alone, those of a reduction first: each value is read ``reads`` times."""

    value: Expr
    axes: tuple[Var, ...]
    extents: tuple[int, ...]
    reads: int

    @property
    def operations(self) -> int:
        """Operations of the expression; a function call counts ``LEAST_OPERATIONS``."""
        found = find(self.value, (Binary, Unary, Select, Call))
        return sum(LEAST_OPERATIONS if isinstance(x, Call) else 1 for x in found)


@algorithm("tables")
def tables(outputs: tuple[Tensor, ...], of: str | None = None) -> tuple[Tensor, ...]:
    """Return ``outputs`` with the entries of stage S (``entries_of``) in tables, ``S_table`` with numbers, one stage
    for each set of axes.

    of: name of the stage, if there are several
    Raises ScheduleError ``tables.stage`` if it has no entries.
    """
    found = {op: some for op in computes_of(outputs) if of in (None, op.name) and (some := entries_of(op))}
    if len(found) != 1:
        names = ", ".join(op.name for op in found) or "none"
        hint = (
            f"of={next(iter(found)).name!r}" if found else "stages whose expressions depend on all of their axes stay"
        )
        raise ScheduleError(Problem("tables.stage", f"tables are of one stage; {names} could have some", hint=hint))
    (op, entries), *_ = found.items()
    looked, groups = dict[Hashable, Expr](), dict[tuple[int, ...], dict[Hashable, TableEntry]]()
    for x, e in entries.items():
        groups.setdefault(tuple(map(id, e.axes)), {})[structure(x)] = e
    for number, mine in enumerate(groups.values()):
        made = _table(f"{op.name}_table{number}", [*mine.values()])
        looked |= {key: t[e.axes] for (key, e), t in zip(mine.items(), made, strict=True)}
    look = _Looked({x: looked[structure(x)] for x in entries})
    again = Compute(op.name, op.axes, op.extents, tuple(look(b) for b in op.bodies))
    check_accesses(again)
    again.outputs = tuple(Tensor(t.name, t.shape, t.dtype, again) for t in op.outputs)
    for old, new in zip(op.outputs, again.outputs, strict=True):
        outputs = with_other(outputs, old, new)
    return outputs


def entries_of(op: Compute) -> dict[Expr, TableEntry]:
    """Largest expressions of a stage that depend on few of its axes, read no arrays and are worth a table; {} for
    scans, scatters and symbolic extents.
    """
    axes = {v: n for b in op.bodies for v, n in _reduced(b).items()} | dict(zip(op.axes, op.extents, strict=True))
    parts = [b.part for b in op.bodies if isinstance(b, Reduce)]
    if any(p is not None for p in parts) or not all(isinstance(n, int) for n in axes.values()):
        return {}
    found, todo, seen = dict[Expr, TableEntry](), list[Expr](op.bodies), set[Expr]()
    while todo:
        e = todo.pop()
        if e in seen:
            continue
        seen.add(e)
        if (entry := _entry(e, axes)) is not None:
            found[e] = entry
        else:
            todo += (c for c in reversed(tuple(e.children())) if isinstance(c, Expr))
    return found


def _reduced(body: Expr) -> dict[Var, Any]:
    return {v: v.extent for v in body.axes} if isinstance(body, Reduce) else {}


def _entry(e: Expr, axes: Mapping[Var, int]) -> TableEntry | None:
    if e.dtype not in KINDS or isinstance(e, Reduce) or find(e, (Load, PadLoad)):
        return None
    used = set(find(e, Var))
    own = tuple(v for v in axes if v in used)
    extents = tuple(axes[v] for v in own)
    entry = TableEntry(e, own, extents, math.prod(axes.values()) // max(1, math.prod(extents)))
    known = own and used <= axes.keys() and entry.reads >= LEAST_READS
    return entry if known and entry.operations >= LEAST_OPERATIONS and not may_trap(e) else None


def _table(name: str, entries: Sequence[TableEntry]) -> tuple[Tensor, ...]:
    """Tensors of some entries over the same axes."""
    axes, extents = entries[0].axes, entries[0].extents
    own = {v: Var(v.name, "index") for v in axes}
    op = Compute(name, tuple(own.values()), extents, tuple(substitute(e.value, own) for e in entries))
    check_accesses(op)
    names = [name] if len(entries) == 1 else [f"{name}_{n}" for n in range(len(entries))]
    op.outputs = tuple(Tensor(n, extents, e.value.dtype, op) for n, e in zip(names, entries, strict=True))
    return op.outputs


class _Looked(Rewriter):
    """Rewriter: expressions, by identity, become reads of tables."""

    def __init__(self, swap: Mapping[Expr, Expr]) -> None:
        self.swap = swap

    def on_Binary(self, n: Binary) -> Expr:
        return self._look(n)

    def on_Unary(self, n: Unary) -> Expr:
        return self._look(n)

    def on_Select(self, n: Select) -> Expr:
        return self._look(n)

    def on_Call(self, n: Call) -> Expr:
        return self._look(n)

    def on_Cast(self, n: Cast) -> Expr:
        return self._look(n)

    def _look(self, n: Expr) -> Expr:
        return self.swap[n] if n in self.swap else self.children(n)
