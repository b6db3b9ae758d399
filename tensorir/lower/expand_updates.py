"""Reductions become what they do: read the state, combine, write it."""

from __future__ import annotations

from tensorir.ir.tree import Expr, Kind, Let, Load, Loop, Program, Stmt, Store, Update, Var
from tensorir.ir.visit import Rewriter, sequence, substitute
from tensorir.lower.form import lowering
from tensorir.schedule.analysis import scans
from tensorir.target import Target


@lowering
def expand_updates(program: Program, target: Target) -> Program:
    """gives: no Update; of several values, all old and new ones are read before any is written, and so of a scan in
    vector lanes, where they have names; atomic ones are stores that add."""
    return program.replace(body=_Expand()(program.body))


class _Expand(Rewriter):
    named = False  # states and terms have names where ``lower.scan_lanes`` looks for them

    def on_Loop(self, n: Loop) -> Stmt:
        self.named = n.kind is Kind.VECTOR and scans(n)
        n, self.named = self.children(n), False
        return n

    def on_Update(self, n: Update) -> Stmt:
        if n.atomic:  # of a result that another kernel has started, so that it is in global memory
            return Store(n.buffers[0], n.index, n.values[0], adds=True)
        olds = tuple(Load(b, n.index, b.dtype) for b in n.buffers)
        swap: dict[Var, Expr] = {}
        if len(n.values) == 1 and not self.named:
            swap = {n.combiner.old[0]: olds[0], n.combiner.new[0]: n.values[0]}
            return Store(n.buffers[0], n.index, substitute(n.combiner.result[0], swap))
        lets: list[tuple[Var, Expr]] = []
        for kind, names, given in (("old", n.combiner.old, olds), ("new", n.combiner.new, n.values)):
            for v, e, b in zip(names, given, n.buffers, strict=True):
                swap[v] = Var(f"{b.name}_{kind}", v.dtype)
                lets.append((swap[v], e))  # type: ignore[arg-type]
        stores = zip(n.buffers, n.combiner.result, strict=True)
        out = sequence([Store(b, n.index, substitute(r, swap)) for b, r in stores])
        for var, e in reversed(lets):
            out = Let(var, e, out)
        return out
