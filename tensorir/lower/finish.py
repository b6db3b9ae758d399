"""Last touches before printing: loops no longer than their guards allow, trivial ones gone, divisions that C can do."""

from __future__ import annotations

from collections import Counter

from tensorir.arith.affine import Arith, conjunction, conjuncts
from tensorir.ir.build import as_expr, as_int, binary, const
from tensorir.ir.tree import (
    Alloc,
    Binary,
    Buffer,
    Const,
    Expr,
    If,
    Kind,
    Load,
    Loop,
    Program,
    Region,
    Seq,
    Stmt,
    Store,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Pruner, Rewriter, find, sequence, substitute
from tensorir.lower.boxes import LOCAL
from tensorir.lower.form import bound_loops, each_nest, fail, kernel_arith, lowering, rewrap
from tensorir.target import Target


@lowering
def finish(program: Program, target: Target) -> Program:
    """gives: no loop of one iteration; ``//`` and ``%`` of indices only on operands proved >= 0, so that C's agree."""

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        arith = kernel_arith(axes, body)
        kept = [x for x in axes if as_int(x.extent) != 1]
        ones: dict[Var, Expr] = {x.var: const(0) for x in axes if as_int(x.extent) == 1}
        done = _without_unread(_Finish(arith)(substitute(body, ones)))
        if not kept and isinstance(done, Seq):
            kept = axes[:1] or [Loop(Var("once", "index"), as_expr(1), done, Kind.BLOCK_X)]  # still one kernel
        return rewrap(kept, done)

    return each_nest(program, kernel)


def _without_unread(body: Stmt) -> Stmt:
    """``body`` without what only fills local memory that nobody reads: in a version of a body, what others need."""
    while True:
        stores = find(body, Store)
        own = Counter(n.buffer for s in stores for n in find(s, Load) if n.buffer is s.buffer)
        loads = Counter(n.buffer for n in find(body, Load))
        used = {b for b, n in loads.items() if n > own[b]} | {r.buffer for r in find(body, Region)}
        dead = {s.buffer for s in stores if s.buffer.scope in LOCAL} - used
        if not dead:
            return body
        body = _Without(dead)(body)


class _Without(Pruner):
    def __init__(self, dead: set[Buffer]) -> None:
        self.dead = dead

    def on_Store(self, n: Store) -> Stmt:
        return Seq(()) if n.buffer in self.dead else n

    def on_Alloc(self, n: Alloc) -> Stmt:
        body = self(n.body)
        return body if n.buffer in self.dead else n.replace(body=body)


class _Finish(Rewriter):
    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def on_Loop(self, n: Loop) -> Stmt:
        n = self._cut(n)
        if isinstance(n.extent, Const) and n.extent.value == 0:
            return Seq(())
        if isinstance(n.extent, Const) and n.extent.value == 1:
            return self(substitute(n.body, {n.var: const(0)}))  # type: ignore[no-any-return]
        return self.children(n)

    def _cut(self, n: Loop) -> Loop:
        """``n`` ending where the condition around its whole body ends it."""
        if not isinstance(n.body, If) or not isinstance(n.extent, Const):
            return n
        extent, kept = as_int(n.extent), []
        for c in conjuncts(n.body.cond):
            end = self.arith.end(c, n.var)
            if end is None:
                kept.append(c)
            else:
                extent = min(extent, max(end, 0))
        if len(kept) == len(conjuncts(n.body.cond)):
            return n
        self.arith.ranges[n.var] = (0, extent - 1)
        body = If(conjunction(kept), n.body.then) if kept else n.body.then
        return n.replace(extent=as_expr(extent), body=body)

    def on_Seq(self, n: Seq) -> Stmt:
        return sequence([self(s) for s in n.stmts])

    def on_If(self, n: If) -> Stmt | None:
        cond = self(n.cond)
        if isinstance(cond, Const):
            return self(n.then) if cond.value else Seq(())
        inside = _Finish(self.arith.child(assume=[cond]))
        return If(cond, inside(n.then))

    def on_Binary(self, n: Binary) -> Expr:
        a, b = self(n.a), self(n.b)
        if n.op in ("//", "%") and n.dtype == "index":
            low, _ = self.arith.range(a)
            if low < 0:
                raise fail(
                    "lower.negative-division",
                    "an index divides a value that may be negative: C rounds toward zero",
                    "add a multiple of the divisor inside, and subtract the quotient outside",
                )
        return n if a is n.a and b is n.b else binary(n.op, a, b)
