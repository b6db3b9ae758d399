"""Unrolled loops over constant tensors become straight-line code with the numbers in it.

A transform by a small known matrix (Winograd's, a filter bank) is worth its zeros and ones only where they are seen:
``#pragma unroll`` leaves multiplications by them. Here each iteration of such a loop is written out, coefficients 1 and
-1 vanish, choices by coefficients are made, and the terms of one register's sum become one expression. Floats keep
their bits: 0 * x is NaN where x is infinite; a term vanishes only where the declaration says so (``where=K[k] != 0``).
"""

from __future__ import annotations

from tensorir.arith.affine import Arith, same
from tensorir.ir.build import as_int, binary, cast, const
from tensorir.ir.tree import (
    Alloc,
    Binary,
    Buffer,
    Const,
    Expr,
    Kind,
    Load,
    Loop,
    Program,
    Ramp,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Pruner, Rewriter, find, substitute, swap_buffers, uses
from tensorir.lower.form import bound_loops, each_nest, kernel_arith, lowering, rewrap
from tensorir.lower.joined import Joiner, NameBases
from tensorir.lower.sums import product, sum_of
from tensorir.target import Target


@lowering
def fold_constants(program: Program, target: Target) -> Program:
    """gives: no unrolled loop whose variable picks an element of a constant tensor."""

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        if not any(n.buffer.data is not None for n in find(body, Load)):
            return nest
        arith = kernel_arith(axes, body)
        joined = Joiner(arith, loops=target.kind == "cpu")
        body = _Expand(arith, joined)(body)
        return rewrap(axes, NameBases(arith, joined.several)(body) if joined.loops else body)

    return each_nest(program, kernel)


def _picks(body: Stmt, var: Var) -> bool:
    return any(n.buffer.data is not None and uses(n.index[0], {var}) for n in find(body, Load))


class _Expand(Pruner):
    def __init__(self, arith: Arith, joined: Joiner) -> None:
        self.arith, self.joined = arith, joined
        self.fold = _Fold(arith)

    def on_Loop(self, n: Loop) -> Stmt:
        once = isinstance(n.extent, Const) and n.extent.value == 1
        if not once and (n.kind is not Kind.UNROLL or not _picks(n.body, n.var)):
            return self.pruned(n)
        copies = (_with_own_arrays(substitute(n.body, {n.var: const(k)})) for k in range(as_int(n.extent)))
        return self.joined(self(self.fold(c)) for c in copies)

    def on_Seq(self, n: Seq) -> Stmt:
        return self.joined(self(s) for s in n.stmts)

    def on_Store(self, n: Store) -> Stmt:
        same_cell = isinstance(n.value, Load) and n.value.buffer is n.buffer and same(n.value.index[0], n.index[0])
        return Seq(()) if same_cell else n


class _Allocate(Rewriter):
    def __init__(self, twins: dict[Buffer, Buffer]) -> None:
        self.twins = twins

    def on_Alloc(self, n: Alloc) -> Alloc:
        return Alloc(self.twins[n.buffer], self(n.body))


def _with_own_arrays(s: Stmt) -> Stmt:
    """A copy of a statement whose arrays are not those of other copies."""
    twins = {a.buffer: a.buffer.replace(name=a.buffer.name) for a in find(s, Alloc)}
    return swap_buffers(_Allocate(twins)(s), twins) if twins else s


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

    def on_Select(self, n: Select) -> Expr:
        cond = self(n.cond)
        if isinstance(cond, Const):
            return cast(self(n.a if cond.value else n.b), n.dtype)
        return n.replace(cond=cond, a=self(n.a), b=self(n.b))

    def on_Binary(self, n: Binary) -> Expr:
        n = self.children(n)
        if n.dtype == "bool":
            return binary(n.op, n.a, n.b)
        if n.dtype == "index":
            return n
        if n.op == "*":
            return product(n)
        return sum_of(n) if n.op in ("+", "-") else n
