"""Unrolled loops over constant tensors become straight-line code with the numbers in it.

A transform by a small known matrix (Winograd's, a filter bank) is worth its zeros and ones only where they are seen:
``#pragma unroll`` leaves multiplications by 0, which C may not drop. Here each iteration of such a loop is written out,
coefficients 0, 1 and -1 vanish, and the terms of one register's sum become one expression. 0 * x is taken as 0, as the
declaration means it, also where x is infinite.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from tensorir.arith.affine import Arith, same
from tensorir.ir.build import as_int, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import (
    Binary,
    Broadcast,
    Const,
    Expr,
    Kind,
    Load,
    Loop,
    Program,
    Ramp,
    Scope,
    Seq,
    Stmt,
    Store,
    Unary,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Pruner, Rewriter, find, sequence, substitute, uses
from tensorir.lower.form import bound_loops, each_nest, kernel_arith, lowering, rewrap
from tensorir.target import Target


@lowering
def fold_constants(program: Program, target: Target) -> Program:
    """gives: no unrolled loop whose variable picks an element of a constant tensor."""

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        if not any(n.buffer.data is not None for n in find(body, Load)):
            return nest
        return rewrap(axes, _Expand(kernel_arith(axes, body))(body))

    return each_nest(program, kernel)


def _picks(body: Stmt, var: Var) -> bool:
    return any(n.buffer.data is not None and uses(n.index[0], {var}) for n in find(body, Load))


class _Expand(Pruner):
    def __init__(self, arith: Arith) -> None:
        self.arith = arith
        self.fold = _Fold(arith)

    def on_Loop(self, n: Loop) -> Stmt:
        once = isinstance(n.extent, Const) and n.extent.value == 1
        if not once and (n.kind is not Kind.UNROLL or not _picks(n.body, n.var)):
            return self.pruned(n)
        copies = (substitute(n.body, {n.var: const(k)}) for k in range(as_int(n.extent)))
        return joined(self(self.fold(c)) for c in copies)

    def on_Seq(self, n: Seq) -> Stmt:
        return joined(self(s) for s in n.stmts)

    def on_Store(self, n: Store) -> Stmt:
        same_cell = isinstance(n.value, Load) and n.value.buffer is n.buffer and same(n.value.index[0], n.index[0])
        return Seq(()) if same_cell else n


class _Fold(Rewriter):
    """Indices in normal form, constants by value, sums without what adds nothing."""

    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def _index(self, i: Expr) -> Expr:
        if isinstance(i, Ramp):
            return i.replace(base=self.arith.linear(i.base).expr())
        return self.arith.linear(i).expr()

    def on_Load(self, n: Load) -> Expr:
        n = self.children(n)
        index = self._index(n.index[0])
        if n.buffer.data is not None and isinstance(index, Const) and 0 <= as_int(index) < len(n.buffer.data):
            return const(n.buffer.data[as_int(index)], n.dtype)
        return n.replace(index=(index,))

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        return n.replace(index=(self._index(n.index[0]),))

    def on_Binary(self, n: Binary) -> Expr:
        n = self.children(n)
        if n.dtype in ("index", "bool"):
            return n
        if n.op == "*":
            return _product(n)
        return _sum(n) if n.op in ("+", "-") else n


def _value(e: Expr) -> object:
    """The number that ``e`` is in all lanes, else None."""
    e = e.value if isinstance(e, Broadcast) else e
    return e.value if isinstance(e, Const) else None


def _product(n: Binary) -> Expr:
    for a, b in ((n.a, n.b), (n.b, n.a)):
        value = _value(a)
        if value == 0:
            return a
        if value == 1:
            return b
        if value == -1:
            return Unary("-", b, n.dtype)
    return n


def _sum(n: Binary) -> Expr:
    if _value(n.b) == 0:
        return n.a
    if _value(n.a) == 0:
        return n.b if n.op == "+" else _minus(n.b)
    opposite = _opposite(n.b)
    if opposite is not None:
        return Binary("-" if n.op == "+" else "+", n.a, opposite, n.dtype)
    return n


def _minus(e: Expr) -> Expr:
    if isinstance(e, Binary) and e.op == "*":
        for a, b, first in ((e.a, e.b, True), (e.b, e.a, False)):
            value = _value(a)
            if isinstance(value, int | float | Fraction) and _has(e.dtype, -value):
                c = _like(a, -value)
                return Binary("*", *((c, b) if first else (b, c)), e.dtype)
    return _opposite(e) or Unary("-", e, e.dtype)


def _has(dtype: str, value: int | float | Fraction) -> bool:
    """Whether the type has this number: the lowest integer has no opposite, unsigned ones have none at all."""
    kind = DTYPES[dtype]
    return kind.kind == "f" or kind.low <= value <= kind.high


def _like(e: Expr, value: int | float | Fraction) -> Expr:
    """A number in as many lanes as ``e``."""
    c = const(value, e.dtype)
    return Broadcast(c, e.lanes, e.dtype) if isinstance(e, Broadcast) else c


def _opposite(e: Expr) -> Expr | None:
    """``-e`` where that is simpler than ``e``."""
    if isinstance(e, Unary) and e.op == "-":
        return e.a
    if isinstance(e, Binary) and e.op == "*":
        for a, b, first in ((e.a, e.b, True), (e.b, e.a, False)):
            value = _value(a)
            if isinstance(value, int | float | Fraction) and value < 0 and _has(e.dtype, -value):
                c = _like(a, -value)
                return Binary("*", *((c, b) if first else (b, c)), e.dtype)
    return None


def joined(stmts: Iterable[Stmt]) -> Stmt:
    """Statements in order; successive stores that build up one register become one."""
    out: list[Stmt] = []
    for s in _flat(stmts):
        if out and (one := _together(out[-1], s)) is not None:
            out[-1] = one
        else:
            out.append(s)
    return sequence(out)


def _flat(stmts: Iterable[Stmt]) -> Iterable[Stmt]:
    for s in stmts:
        if isinstance(s, Seq):
            yield from _flat(s.stmts)
        else:
            yield s


def _together(first: Stmt, then: Stmt) -> Store | None:
    """``r = a; r = r + b`` as ``r = a + b``, where b does not read r."""
    if not (isinstance(first, Store) and isinstance(then, Store) and first.buffer is then.buffer):
        return None
    if first.buffer.scope is not Scope.REGISTER or not same(first.index[0], then.index[0]):
        return None
    if len([n for n in find(then.value, Load) if n.buffer is first.buffer]) != 1:
        return None
    value = _continued(first, then.value)
    return None if value is None else then.replace(value=value)


def _continued(first: Store, e: Expr) -> Expr | None:
    """The sum ``e`` with what ``first`` stores as its first term, if that is the register's old value."""
    if isinstance(e, Load):
        return first.value if e.buffer is first.buffer and same(e.index[0], first.index[0]) else None
    if not isinstance(e, Binary) or e.op not in ("+", "-"):
        return None
    a = _continued(first, e.a)
    return None if a is None else _sum(Binary(e.op, a, e.b, e.dtype))
