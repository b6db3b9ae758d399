"""Give a name to what several indices of one statement divide: it is computed once, and the text can be read."""

from __future__ import annotations

from collections import Counter

from tensorir.arith.affine import structure
from tensorir.ir.tree import Alloc, Barrier, Binary, Expr, If, Let, Loop, Program, Seq, Stmt, Var
from tensorir.ir.visit import Rewriter, find, walk
from tensorir.lower.form import bound_loops, each_nest, lowering, rewrap
from tensorir.target import Target


@lowering
def name_indices(program: Program, target: Target) -> Program:
    """gives: no sum stands under ``//`` or ``%`` twice in one innermost loop body."""

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        return rewrap(axes, _Name()(body))

    return each_nest(program, kernel)


class _Name(Rewriter):
    def on_Loop(self, n: Loop) -> Stmt:
        if find(n.body, Loop) or find(n.body, Barrier) or find(n.body, Alloc) or isinstance(n.body, Let):
            return self.children(n)
        return n.replace(body=_named(n.body, n.var.name))

    def on_If(self, n: If) -> Stmt:
        return self.children(n) if find(n.then, Loop) else _named(n, "")

    def on_Seq(self, n: Seq) -> Stmt:
        return self.children(n)


def _named(body: Stmt, loop: str) -> Stmt:
    """``body`` inside the lets of the sums that it divides more than once."""
    found: Counter[object] = Counter()
    first: dict[object, Expr] = {}
    for n in walk(body):
        if isinstance(n, Binary) and n.op in ("//", "%") and n.dtype == "index" and not isinstance(n.a, Var):
            key = structure(n.a)
            found[key] += 1
            first.setdefault(key, n.a)
    names: dict[object, Var] = {}
    lets: list[tuple[Var, Expr]] = []
    stem = loop.rsplit(".", 1)[0]
    shared = [key for key, count in found.items() if count > 1]
    for key in sorted(shared, key=lambda k: sum(1 for _ in walk(first[k]))):  # the smaller stand inside the larger
        suffix = str(len(names)) if names else ""
        value = _Use(names)(first[key])
        names[key] = Var(f"{stem}.e{suffix}" if stem else f"e{suffix}", "index")
        lets.append((names[key], value))
    out = _Use(names)(body) if names else body
    for v, value in reversed(lets):
        out = Let(v, value, out)
    return out


class _Use(Rewriter):
    def __init__(self, names: dict[object, Var]) -> None:
        self.names = names

    def on_Binary(self, n: Binary) -> Expr:
        if n.dtype == "index":
            found = self.names.get(structure(n))
            if found is not None:
                return found
        return self.children(n)
