"""Pass: replace each stage by its body statement, axes substituted by loop variables."""

from __future__ import annotations

from tensorir.arith.affine import Knowing
from tensorir.arith.conditions import conjunction, conjuncts, weakest
from tensorir.arith.ends import of_data
from tensorir.ir.build import binary, const, select
from tensorir.ir.tree import (
    Binary,
    Expr,
    If,
    IntrinCall,
    Kind,
    Load,
    Loop,
    Prefetch,
    Program,
    Select,
    Seq,
    Stage,
    Stmt,
    Store,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, has, sequence, substitute, uses
from tensorir.lower.form import bound_loops, each_nest, fail, kernel_arith, lowering, rewrap
from tensorir.target import Target


@lowering
def expand_stages(program: Program, target: Target) -> Program:
    """Replace stages by their statements, axes by loop variables.

    gives: no Stage; indices and conditions simplified; each condition as far outside as possible
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        arith = kernel_arith(program.known, axes, body)
        return rewrap(axes, hoist_conditions(_Expand(arith)(body)))

    return each_nest(program, kernel)


class _Expand(Knowing):
    def on_Stage(self, n: Stage) -> Stmt:
        if n.guards or n.init is not None:
            raise fail(
                "lower.unexpanded", f"stage {n.name} still has {'guards' if n.guards else 'an init'}: a pass is missing"
            )
        at = dict(zip((it.var for it in n.iters), n.binds, strict=True))
        return self(substitute(n.body, at))  # type: ignore[no-any-return]

    def on_If(self, n: If) -> Stmt:
        cond = self._condition(n.cond)
        inside = _Expand(self.arith.child(assume=[cond]))
        return If(cond, inside(n.then))

    def _condition(self, cond: Expr) -> Expr:
        return self._weakest(self.arith.simplify(cond))

    def _weakest(self, cond: Expr) -> Expr:
        return conjunction(weakest(conjuncts(cond), self.arith))

    def on_Load(self, n: Load) -> Load:
        return Load(n.buffer, self._index(n.index), n.dtype)

    def _index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple([self.arith.simplify(_Inner(self)(i) if has(i, Load) else i) for i in index])

    def on_Store(self, n: Store) -> Store:
        return n.replace(index=self._index(n.index), value=self(n.value))

    def on_Prefetch(self, n: Prefetch) -> Prefetch:
        return n.replace(index=self._index(n.index))

    def on_Select(self, n: Select) -> Expr:
        cond = self._weakest(self.arith.decided(self(n.cond)))
        return select(cond, self.where(n, cond)(n.a), self(n.b))

    def on_IntrinCall(self, n: IntrinCall) -> IntrinCall:
        return n.replace(operands=tuple(r.replace(first=self._index(r.first)) for r in n.operands))


class _Inner(Rewriter):
    """Rewriter: expand loads nested in an index; the rest of the index stays."""

    def __init__(self, outer: _Expand) -> None:
        self.outer = outer

    def on_Load(self, n: Load) -> Load:
        return self.outer(n)  # type: ignore[no-any-return]


def hoist_conditions(s: Stmt) -> Stmt:
    """Move each conjunct of a condition out of loops that it does not depend on; data-dependent loop ends move to their
    loop.

    for i: for k in 64: if (i < 5 and k < P[i + 1] - P[i]) for lane …   ->   … if (k < P[i + 1] - P[i]) for lane …
    """
    return _HoistData()(_Hoist()(s))  # type: ignore[no-any-return]


class _Hoist(Rewriter):
    def on_Loop(self, n: Loop) -> Stmt:
        n = self.children(n)
        body = n.body
        if not isinstance(body, If):
            return n
        inner: list[Expr] = []
        outer: list[Expr] = []
        for c in _parts(body.cond):
            (inner if uses(c, {n.var}) or has(c, Load) else outer).append(c)
        if not outer:
            return n
        then = If(_all(inner), body.then) if inner else body.then
        return If(_all(outer), n.replace(body=then))

    def on_If(self, n: If) -> Stmt:
        n = self.children(n)
        if isinstance(n.then, If):
            return If(binary("and", n.cond, n.then.cond), n.then.then)
        return n

    def on_Seq(self, n: Seq) -> Stmt:
        return sequence(self.children(n).stmts)


_INNER = (Kind.SERIAL, Kind.UNROLL, Kind.VECTOR)


class _HoistData(Rewriter):
    """Rewriter: move conditions on loaded data that end a reduction outside loops that leave them unchanged, so that
    ``end_loops.ended_by_data`` can use them; around the inner loop of a split axis, test whether its first
    iteration has a term.
    """

    def on_Loop(self, n: Loop) -> Stmt:
        n = self.children(n)
        inside = n.body
        if isinstance(inside, If) and of_data(inside.cond):
            if n.kind in _INNER and not uses(inside.cond, {n.var}):
                return If(inside.cond, n.replace(body=inside.then))
        elif isinstance(inside, Loop) and inside.kind is Kind.SERIAL and isinstance(inside.body, If):
            cond = inside.body.cond
            if n.kind is Kind.SERIAL and of_data(cond, n.var) and of_data(cond, inside.var):
                return n.replace(body=If(substitute(cond, {inside.var: const(0)}), inside))
        return n


def _parts(cond: Expr) -> list[Expr]:
    return _parts(cond.a) + _parts(cond.b) if isinstance(cond, Binary) and cond.op == "and" else [cond]


def _all(conds: list[Expr]) -> Expr:
    out = conds[0]
    for c in conds[1:]:
        out = binary("and", out, c)
    return out
