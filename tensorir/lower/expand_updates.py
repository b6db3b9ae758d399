"""Pass: expand reduction updates into load, combine, store."""

from __future__ import annotations

from tensorir.arith.affine import same
from tensorir.arith.ends import of_data
from tensorir.ir.tree import (
    Const,
    Expr,
    If,
    Kind,
    Load,
    Loop,
    Program,
    Select,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, let_all, sequence, substitute, uses
from tensorir.lower.form import lowering
from tensorir.schedule.analysis import reduces_in_order, scans
from tensorir.target import Target


@lowering
def expand_updates(program: Program, target: Target) -> Program:
    """Replace reduction updates by stores: ``C += x   ->   C = C + x``.

    gives: no Update. With several values, all old and new ones are read before any is written; a scan in vector lanes
           names them; atomic updates are stores that add
    """
    return program.replace(body=_Expand()(program.body))


class _Expand(Rewriter):
    """Rewriter from Update to stores; terms replaced by the identity past a data-dependent extent become conditions, so
    that loops can end there.
    """

    named = False  # states and terms have names where ``lower.scan_lanes`` looks for them

    def __init__(self) -> None:
        self.lanes: list[Var] = []

    def on_Loop(self, n: Loop) -> Stmt:
        lanes = [n.var] if n.kind is Kind.VECTOR else []
        self.lanes += lanes
        self.named = n.kind is Kind.VECTOR and (scans(n) or reduces_in_order(n))
        n, self.named = self.children(n), False
        del self.lanes[len(self.lanes) - len(lanes) :]
        return n

    def on_Update(self, n: Update) -> Stmt:
        terms, conds = [], []
        for v, i in zip(n.values, n.combiner.identity, strict=True):
            if isinstance(v, Select) and of_data(v.cond) and isinstance(v.b, Const) and v.b.value == i.value:
                terms.append(v.a)
                conds.append(v.cond)
        whole = len(terms) == len(n.values) and all(same(c, conds[0]) for c in conds)
        if not whole or n.atomic or uses(conds[0], set(self.lanes)):
            return self._expanded(n)
        return If(conds[0], self._expanded(n.replace(values=tuple(terms))))

    def _expanded(self, n: Update) -> Stmt:
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
        return let_all(lets, sequence([Store(b, n.index, substitute(r, swap)) for b, r in stores]))
