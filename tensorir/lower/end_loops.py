"""Pass: shorten loops and grids to the end implied by a condition around the body, saving a test per iteration.

    for k in 8: if (k < 5) …       ->   for k in 5: …
    for io in 16: if (8*io + ii < n) …   ->   for io in min((n + 7) // 8, 16): if (8*io + ii < n) …

In scheduling and earlier passes, a loop over a dim has the dim's largest extent, and guards. A condition implied by the
new extent is removed; others stay, so a missed shortening costs time but no correctness. Passes that need a stage's
ends earlier call ``stage_end`` and ``early_end``. Ends that depend on data, or on enclosing loops of a CPU, are applied
while printing (``ended_by_data``, ``ended_by_place``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorir.arith.affine import Arith, structure
from tensorir.arith.conditions import conjunction, conjuncts
from tensorir.arith.ends import End, constant_end, data_end, dim_end, first, last, of_data
from tensorir.ir.build import as_expr, as_int, binary
from tensorir.ir.dims import dims_in
from tensorir.ir.marks import Partition, Pipelined
from tensorir.ir.tree import (
    Alloc,
    Barrier,
    Binary,
    Buffer,
    CommitGroup,
    Const,
    Expr,
    Fence,
    If,
    Kind,
    Let,
    Load,
    Loop,
    Prefetch,
    Program,
    Scope,
    Seq,
    Stage,
    Stmt,
    Store,
    Var,
    WaitGroup,
)
from tensorir.ir.visit import Rewriter, find, uses, writes
from tensorir.lower.form import bound_loops, each_nest, kernel_arith, lowering, rewrap
from tensorir.target import Target

LEAST_ENDED = 16
"""Iterations of a loop for which each execution pays to compute an end."""
HARMLESS = (Barrier, CommitGroup, Fence, Prefetch, WaitGroup)
"""Statements that iterations may leave out, the same ones for all threads, if these do nothing else."""


@lowering
def end_loops(program: Program, target: Target) -> Program:
    """Shorten loops and grids: ``for k in 8: if (k < 5) …   ->   for k in 5: …``.

    gives: no loop has a condition around its whole body that ends it at a constant; serial loops and blocks end at dims
           where conditions say so
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        dims = bool(dims_in(body))
        if not dims and not any(isinstance(x.body, If) for x in find(body, Loop)):
            return nest
        arith = kernel_arith(program.known, axes, body)
        body = _Ends(arith, dims)(body)
        return rewrap(*_grid(axes, body, arith)) if dims else rewrap(axes, body)

    return each_nest(program, kernel)


def _grid(axes: list[Loop], body: Stmt, arith: Arith) -> tuple[list[Loop], Stmt]:
    """Block loops shortened to extents in dims, and the body inside."""
    if any(x.kind is Kind.CLUSTER for x in axes):
        return axes, body
    out = []
    for x in axes:
        end = _Finder(arith, None).end(body, x.var) if x.kind.level == "block" and as_int(x.extent) != 1 else None
        if end is None:
            out.append(x)
            continue
        out.append(x.replace(extent=_shorter(x, binary("max", end.at, 1), arith)))
        if arith.range(end.at)[0] >= 1:
            body = _Without(end.exact)(body)
    return out, body


class _Ends(Rewriter):
    """Rewriter: shorten loops to constant ends, outermost first, then to ends in dims (if ``dims``), innermost
    first.
    """

    def __init__(self, arith: Arith, dims: bool) -> None:
        self.arith, self.dims = arith, dims

    def on_Loop(self, n: Loop) -> Loop:
        n = self.children(self._at_constant(n))
        return self._at_dim(n) if self.dims and n.kind is Kind.SERIAL and isinstance(n.extent, Const) else n

    def _at_constant(self, n: Loop) -> Loop:
        if not isinstance(n.body, If) or not isinstance(n.extent, Const):
            return n
        extent, kept, conds = as_int(n.extent), [], conjuncts(n.body.cond)
        for c in conds:
            end = constant_end(c, n.var, self.arith)
            if end is None:
                kept.append(c)
            else:
                extent = min(extent, max(end, 0))
        if len(kept) == len(conds):
            return n
        self.arith.ranges[n.var] = (0, extent - 1)
        return n.replace(extent=as_expr(extent), body=_where(kept, n.body.then))

    def _at_dim(self, n: Loop) -> Loop:
        own = {a.buffer for a in find(n.body, Alloc)}
        end = _Finder(self.arith, own).end(n.body, n.var)
        if end is None or (not end.exact and self.arith.range(end.at)[1] > as_int(n.extent)):
            return n  # the inner loop of a split is best as constant as it is
        return n.replace(extent=_shorter(n, binary("max", end.at, 0), self.arith), body=_Without(end.exact)(n.body))


def _where(conds: list[Expr], body: Stmt) -> Stmt:
    return If(conjunction(conds), body) if conds else body


def _shorter(x: Loop, end: Expr, arith: Arith) -> Expr:
    return arith.linear(binary("min", end, as_int(x.extent))).expr()


@dataclass(frozen=True)
class _Finder:
    """Finds loop ends.

    own:    buffers private to an iteration; None: all but those in global memory
    around: variables of enclosing loops that ends may depend on
    """

    arith: Arith
    own: set[Buffer] | None
    around: frozenset[Var] = frozenset()

    def end(self, s: Stmt, var: Var) -> End | None:
        """Expression of dims at which the iterations of ``var`` that have an effect in ``s`` end; None if no condition
        implies one.
        """
        if isinstance(s, If):
            for c in conjuncts(s.cond):
                if (found := dim_end(c, var, self.arith, self.around)) is not None:
                    return found
            return self.end(s.then, var)
        if isinstance(s, Loop | Alloc | Let):
            return self.end(s.body, var)
        if isinstance(s, Seq):
            return last([self.end(x, var) for x in s.stmts if not self._harmless(x)], self.arith)
        return None

    def _harmless(self, s: Stmt) -> bool:
        """True for a statement with no effect outside its iteration."""
        if isinstance(s, Store):
            return s.buffer in self.own if self.own is not None else s.buffer.scope is not Scope.GLOBAL
        if isinstance(s, If):
            return self._harmless(s.then)
        if isinstance(s, Loop | Alloc | Let):
            return self._harmless(s.body)
        return all(map(self._harmless, s.stmts)) if isinstance(s, Seq) else isinstance(s, HARMLESS)


class _Without(Rewriter):
    """Rewriter: remove conditions already implied by loop ends."""

    def __init__(self, held: tuple[Expr, ...]) -> None:
        self.held = {structure(c) for c in held}

    def on_If(self, n: If) -> Stmt:
        n = self.children(n)
        conds = conjuncts(n.cond)
        kept = [c for c in conds if structure(c) not in self.held]
        return n if len(kept) == len(conds) else _where(kept, n.then)


# --- loops over stages, for passes that need to know their ends


def stage_end(x: Loop, arith: Arith) -> int | None:
    """Constant end of a loop implied by the guards of all its stages; None if there is none."""
    ends = []
    for s in find(x.body, Stage):
        found = [e for g in s.guards if (e := constant_end(g, x.var, arith)) is not None]
        if not found:
            return None
        ends.append(min(found))
    return max(ends, default=None)


def early_end(x: Loop, arith: Arith) -> Expr | None:
    """Dim expression at which a serial loop over stages ends, like the axes that it iterates; None if none.

    Needed for stages whose guards are dropped (zero-filled copies, zero terms), as no condition remains to end the
    loop. Stages independent of the loop repeat the same work in each iteration, and there is one iteration at least.
    """
    if x.kind is not Kind.SERIAL or not isinstance(x.extent, Const) or Pipelined.of(x).depth > 1 or Partition.of(x).at:
        return None
    ends: list[End | None] = []
    for s in find(x.body, Stage):
        if not any(uses(b, {x.var}) for b in s.binds):
            if any(uses(g, {x.var}) for g in s.guards):
                return None
            continue
        found = [dim_end(binary("<", b, it.extent), x.var, arith)
                 for it, b in zip(s.iters, s.binds, strict=True) if dims_in(it.extent)]  # fmt: skip
        found += [dim_end(g, x.var, arith) for g in s.guards]
        ends.append(first([e for e in found if e is not None], arith))
    if find(x.body, If, lambda c: uses(c.cond, {x.var})):
        return None
    end = last(ends, arith)
    if end is None or arith.range(end.at)[1] > as_int(x.extent) or arith.range(end.at)[0] < 1:
        return None
    return end.at


# --- loops that end as text prints them, at what is known when they begin


def ended_by_place(s: Loop, arith: Arith) -> Stmt | None:
    """``for i in 4096: if (65536*b + 16*i < n)`` as a loop up to the smaller of 4096 and what block ``b`` has of n;
    None for shorter loops, and without such a condition. For blocks of one thread: others share copies and barriers.
    """
    if not isinstance(s.extent, Const) or as_int(s.extent) < LEAST_ENDED:
        return None
    conds = [c for x in find(s.body, If) for c in conjuncts(x.cond) if dims_in(c) and uses(c, {s.var})]
    inside = {s.var, *(x.var for x in find(s.body, Loop)), *(x.var for x in find(s.body, Let))}
    around = frozenset({v for c in conds for v in find(c, Var) if v.bounds is None} - inside)
    own = {a.buffer for a in find(s.body, Alloc)}
    found = _Finder(arith, own, around).end(s.body, s.var) if around else None
    if found is None:
        return None
    end = Var(f"{s.var.name}_end", "index")
    body = _Without(found.exact)(s.body)
    return Let(end, binary("min", found.at, s.extent), s.replace(extent=end, body=body))


def ended_by_data(s: Loop, arith: Arith) -> Stmt | None:
    """``for k in 64: if (k < P[i + 1] - P[i])`` as a loop up to the smaller of the two; None if no loaded value ends
    the loop.

    Loop-invariant conditions are tested before the load: they may keep its index in range.
    """
    if not isinstance(s.body, If):
        return None
    conds = conjuncts(s.body.cond)
    cond = next((c for c in conds if of_data(c, s.var)), None)
    if not isinstance(cond, Binary) or set(writes(s.body.then)) & {x.buffer for x in find(cond.b, Load)}:
        return None
    count = data_end(cond, s.var, arith)
    if count is None:
        return None
    kept = [c for c in conds if c is not cond]
    inside = _where([c for c in kept if uses(c, {s.var})], s.body.then)
    end = Var(f"{s.var.name}_end", "index")
    loop = Let(end, binary("min", count, s.extent), s.replace(extent=end, body=inside))
    return _where([c for c in kept if not uses(c, {s.var})], loop)
