"""Conditions under which data end a reduction, in front of the loops in which they do not change, so that text can end
loops there (``codegen/cfamily.py``).
"""

from __future__ import annotations

from tensorir.expr.segments import ends_by_data
from tensorir.ir.build import const
from tensorir.ir.tree import If, Kind, Loop, Program, Stmt
from tensorir.ir.visit import Rewriter, substitute, uses
from tensorir.lower.form import lowering
from tensorir.target import Target

_INNER = (Kind.SERIAL, Kind.UNROLL, Kind.VECTOR)


@lowering
def end_loops(program: Program, target: Target) -> Program:
    """gives: ``if (k < P[i + 1] - P[i])`` around loops that do not change it; around a loop that counts the inner part
    of k, whether its first iteration has a term."""
    return program.replace(body=_End()(program.body))


class _End(Rewriter):
    def on_Loop(self, n: Loop) -> Stmt:
        n = self.children(n)
        inside = n.body
        if isinstance(inside, If) and ends_by_data(inside.cond):
            if n.kind in _INNER and not uses(inside.cond, {n.var}):
                return If(inside.cond, n.replace(body=inside.then))
        elif isinstance(inside, Loop) and inside.kind is Kind.SERIAL and isinstance(inside.body, If):
            cond = inside.body.cond
            if n.kind is Kind.SERIAL and ends_by_data(cond, n.var) and ends_by_data(cond, inside.var):
                return n.replace(body=If(substitute(cond, {inside.var: const(0)}), inside))
        return n
