"""Pass: final cleanup before printing. Remove one-iteration loops, hoist loop-invariant conditions, turn index
divisions into ones correct in C.
"""

from __future__ import annotations

import math

from tensorir.arith.affine import Arith, Linear, same
from tensorir.arith.conditions import conjunction, conjuncts
from tensorir.ir.build import as_expr, binary, cast, const
from tensorir.ir.structure import among
from tensorir.ir.tree import (
    Alloc,
    Binary,
    Const,
    Expr,
    If,
    Kind,
    Load,
    Loop,
    Program,
    Seq,
    Stmt,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, has, sequence, substitute, uses
from tensorir.lower.boxes import without_unread
from tensorir.lower.form import bound_loops, each_nest, extent_of, kernel_arith, lowering, rewrap, thread_count
from tensorir.target import Target


@lowering
def finish(program: Program, target: Target) -> Program:
    """Remove one-iteration loops, hoist conditions, and make index divisions correct in C.

    gives: no loop of one iteration; ``//`` and ``%`` of indices only on operands proved >= 0, where C agrees with
           Python. Others become bit operations for powers of two, and data divisions for possibly negative divisors
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        arith = kernel_arith(program.known, axes, body)
        kept = [x for x in axes if not _trivial(x)]
        ones: dict[Var, Expr] = {x.var: const(0) for x in axes if _trivial(x)}
        done = without_unread(_Finish(arith)(substitute(body, ones)))
        if thread_count(axes) == 1:  # work-items with neighbours predicate instructions, and do not branch
            done = _Hoist(arith)(done)
        if not kept and isinstance(done, Seq):
            kept = axes[:1] or [Loop(Var("once", "index"), as_expr(1), done, Kind.BLOCK_X)]  # still one kernel
        return rewrap(kept, done)

    return each_nest(program, kernel)


def _trivial(x: Loop) -> bool:
    return isinstance(x.extent, Const) and x.extent.value == 1


LARGEST_DIVIDEND = 2**29
"""Size up to which a possibly negative dividend stays an index, with a multiple of the divisor added; else int64."""


class _Finish(Rewriter):
    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def on_Loop(self, n: Loop) -> Stmt:
        if isinstance(n.extent, Const) and n.extent.value == 0:
            return Seq(())
        if _trivial(n):
            return self(substitute(n.body, {n.var: const(0)}))  # type: ignore[no-any-return]
        return self.children(n)

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
            if isinstance(b, Const) and b.value < 0:  # a // -b is -a // b, and a % -b is -(-a % b)
                made = self(Binary(n.op, binary("-", const(0), a), const(-b.value), "index"))
                return made if n.op == "//" else binary("-", const(0), made)
            low, high = self.arith.range(a)
            if low < 0 and isinstance(b, Const) and b.value > 0 and b.value & (b.value - 1) == 0:
                by = int(b.value)  # bits round as // and % do: down
                return binary("&", a, by - 1) if n.op == "%" else Binary(">>", a, const(by.bit_length() - 1), "index")
            if -LARGEST_DIVIDEND < low < 0 and high < LARGEST_DIVIDEND and isinstance(b, Const) and b.value > 0:
                more = -(int(low) // int(b.value))  # C rounds toward zero: with so many more there is nothing below it
                up = binary(n.op, binary("+", a, more * int(b.value)), b)
                return binary("-", up, more) if n.op == "//" else up
            if low < 0 or self.arith.range(b)[0] < 0:  # as of elements, which are rounded down whatever their signs
                return cast(Binary(n.op, cast(a, "int64"), cast(b, "int64"), "int64"), "index")
        return n if a is n.a and b is n.b else binary(n.op, a, b)


class _Hoist(Rewriter):
    """Rewriter: hoist loop-invariant index conditions out of loops, and merge equal ones of adjacent statements.
    Compilers emit a branch per step for conditions inside unrolled loops.
    """

    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def on_If(self, n: If) -> If:
        n = self.children(n)
        return n.replace(cond=conjunction(_in_whole_steps(c, self.arith) for c in conjuncts(n.cond)))

    def on_Loop(self, n: Loop) -> Stmt:
        self.arith.ranges[n.var] = extent_of(n)
        n = self.children(n)
        if not isinstance(n.body, If):
            return n
        conds = conjuncts(n.body.cond)
        stays = [c for c in conds if not has(c, Load) and not uses(c, {n.var})]
        if not stays:
            return n
        kept = [c for c in conds if not among(c, stays)]
        return If(conjunction(stays), n.replace(body=If(conjunction(kept), n.body.then) if kept else n.body.then))

    def on_Alloc(self, n: Alloc) -> Stmt:
        return self.within(n, _allocated)

    def on_Seq(self, n: Seq) -> Stmt:
        done: list[Stmt] = []
        for s in self.children(n).stmts:
            last = done[-1] if done else None
            if isinstance(s, If) and isinstance(last, If) and not has(s.cond, Load) and same(s.cond, last.cond):
                done[-1] = last.replace(then=sequence([last.then, s.then]))
            else:
                done.append(s)
        return sequence(done)


def _allocated(n: Alloc, body: Stmt) -> Stmt:
    """``n`` around ``body``, or within its condition."""
    if not isinstance(body, If) or has(body.cond, Load):
        return n.replace(body=body)
    return body.replace(then=n.replace(body=body.then))


def _in_whole_steps(cond: Expr, arith: Arith) -> Expr:
    """An equivalent condition with fewer variables: ``8*i + r < 24`` with 0 <= r < 8   ->   ``i < 3``.

    g*x + r <= 0 iff x <= floor(-r / g); r is dropped if the right side is equal for all values of r.
    """
    if not isinstance(cond, Binary) or cond.op not in ("<", "<=") or cond.a.dtype != "index":
        return cond
    form = arith.linear(binary("-", cond.a, cond.b)).plus(Linear({}, int(cond.op == "<")))  # <= 0
    for g in sorted({abs(k) for k in form.terms.values() if abs(k) > 1}, reverse=True):
        fine = Linear({t: k for t, k in form.terms.items() if k % g}, form.constant)
        low, high = arith.range_of(fine)
        if fine.terms and math.isfinite(low) and math.isfinite(high) and -low // g == -high // g:
            whole = Linear({t: k // g for t, k in form.terms.items() if k % g == 0}, 0)
            return _in_whole_steps(binary("<", whole.expr(), const(int(-low // g) + 1)), arith)
    return cond
