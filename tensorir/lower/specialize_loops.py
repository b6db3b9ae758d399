"""Pass: duplicate loop bodies into two versions, under a condition and its negation.

Later passes use each version's condition to remove guards, bounds and selects. Both versions keep the loops' names; the
second has new stages and local buffers.
"""

from __future__ import annotations

from tensorir.arith.conditions import conjuncts, contrary
from tensorir.ir.build import as_expr
from tensorir.ir.marks import Skipped, Versions
from tensorir.ir.tree import Binary, Const, Expr, If, Loop, Program, Stage, Stmt, Var
from tensorir.ir.visit import find, sequence, substitute
from tensorir.lower.form import bound_loops, each_nest, lowering, rewrap
from tensorir.lower.partition_loops import Copies
from tensorir.target import Target


@lowering
def specialize_loops(program: Program, target: Target) -> Program:
    """Duplicate bodies of specialized loops: ``if (cond) body else body'``; put skipped iterations under a condition.

    gives: no loop has cases or skipped iterations; each version of a body is a one-iteration loop under a condition
    """
    if not find(program.body, Loop, _has_versions):
        return program
    taken = {s.name for s in find(program.body, Stage)}

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        if not find(body, Loop, _has_versions):
            return nest
        return rewrap(axes, _Specialize(body, taken)(body))

    return each_nest(program, kernel)


def _has_versions(x: Loop) -> bool:
    return bool(Versions.of(x).where or Skipped.of(x).unless)


class _Specialize(Copies):
    def on_Loop(self, n: Loop) -> Loop:
        if not _has_versions(n):
            return self.children(n)
        body = self._versions(n.body, Versions.of(n).where)
        for cond in Skipped.of(n).unless:
            body = _version(cond, body)
        return n.replace(body=body).marked(Versions(), Skipped())

    def _versions(self, body: Stmt, cases: tuple[Expr, ...]) -> Stmt:
        if not cases:
            return self(body)  # type: ignore[no-any-return]
        other = self.copied(body, body)  # of the tree as it was: what lives inside is told by the number of accesses
        first = _version(cases[0], self._versions(body, cases[1:]))
        return sequence([first, _version(contrary(cases[0]), self._versions(other, cases[1:]))])


def _version(cond: Expr, body: Stmt) -> If:
    known: dict[Var, Expr] = {}
    for c in conjuncts(cond):
        if isinstance(c, Binary) and c.op == "==":
            known.update((a, b) for a, b in ((c.a, c.b), (c.b, c.a)) if isinstance(a, Var) and isinstance(b, Const))
    # a loop of its own: what is allocated for a version lives in it, and passes see that it is no condition of a stage
    return If(cond, Loop(Var("version", "index"), as_expr(1), substitute(body, known)))
