"""Loops and grids that end at a dim: where all of a loop stands under a condition that ends it, the loop ends there.

Scheduling and the passes before this one see a loop over a dim as one of its largest extent, whose iterations beyond
the dim are guarded. Here ``i < n`` around all of a loop's body, or ``8 * io + ii < n`` for io, becomes the extent of
the loop, n or (n + 7) // 8, and of the grid where the loop is bound to blocks. A condition that says no more than the
extent goes; others stay, so that a loop that ends later than it could is slow, never wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorir.arith.affine import Arith, Linear, same
from tensorir.arith.conditions import conjunction, conjuncts
from tensorir.ir.build import as_int, binary
from tensorir.ir.dims import dims_in
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
    Loop,
    Prefetch,
    Scope,
    Seq,
    Stage,
    Stmt,
    Store,
    Var,
    WaitGroup,
)
from tensorir.ir.visit import Rewriter, find, uses

HARMLESS = (Barrier, CommitGroup, Fence, Prefetch, WaitGroup)
"""What may run in fewer iterations, the same ones for all threads, where no iteration left out does anything else."""


@dataclass(frozen=True, eq=False)
class End:
    """``var < at`` wherever conditions hold; exact: those that are the same as that."""

    at: Expr
    exact: tuple[Expr, ...] = ()


def early_end(x: Loop, arith: Arith) -> Expr | None:
    """Return where a serial loop over stages ends, as the axes of all that it drives do; None where it does not.

    For stages that may overrun: where a copy is 0 beyond the dim, or a term adds nothing, no condition stays that would
    end the loop. What it does not drive does the same in each iteration, of which there is one.
    """
    if x.kind is not Kind.SERIAL or not isinstance(x.extent, Const) or x.depth > 1 or x.roles or x.parts:
        return None
    ends: list[End | None] = []
    for s in find(x.body, Stage):
        if not any(uses(b, {x.var}) for b in s.binds):
            if any(uses(g, {x.var}) for g in s.guards):
                return None
            continue
        found = [_of_condition(binary("<", b, it.extent), x.var, arith)
                 for it, b in zip(s.iters, s.binds, strict=True) if dims_in(it.extent)]  # fmt: skip
        ends.append(_first([e for e in found if e is not None], arith))
    if find(x.body, If, lambda c: uses(c.cond, {x.var})):
        return None
    end = _last(ends, arith)
    if end is None or arith.range(end.at)[1] > as_int(x.extent) or arith.range(end.at)[0] < 1:
        return None
    return end.at


def _first(ends: list[End], arith: Arith) -> End | None:
    """One of several ends that all hold: the first known to be no more than any other, else any."""
    for e in ends:
        if all(_at_most(e.at, other.at, arith) for other in ends):
            return e
    return ends[0] if ends else None


def ended(axes: list[Loop], body: Stmt, arith: Arith) -> tuple[list[Loop], Stmt]:
    """Return block loops and the body inside them, loops no longer than dims ask for."""
    body = _Ended(arith)(body)
    out = []
    for x in axes:
        end = _Finder(arith, None).end(body, x.var) if x.kind.level == "block" else None
        if end is None or x.kind is Kind.CLUSTER or any(y.kind is Kind.CLUSTER for y in axes):
            out.append(x)
            continue
        extent = _shorter(x, binary("max", end.at, 1), arith)
        out.append(x.replace(extent=extent))
        if arith.range(end.at)[0] >= 1:
            body = _Without(end.exact)(body)
    return out, body


class _Ended(Rewriter):
    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def on_Loop(self, n: Loop) -> Loop:
        n = self.children(n)
        if n.kind is not Kind.SERIAL or not isinstance(n.extent, Const):
            return n
        own = {a.buffer for a in find(n.body, Alloc)}
        end = _Finder(self.arith, own).end(n.body, n.var)
        if end is None or (not end.exact and self.arith.range(end.at)[1] > as_int(n.extent)):
            return n  # the inner loop of a split is best as constant as it is
        return n.replace(extent=_shorter(n, binary("max", end.at, 0), self.arith), body=_Without(end.exact)(n.body))


def _shorter(x: Loop, end: Expr, arith: Arith) -> Expr:
    return arith.linear(binary("min", end, as_int(x.extent))).expr()


@dataclass(frozen=True)
class _Finder:
    """own: buffers of which each iteration has its own, None for all but those in global memory"""

    arith: Arith
    own: set[Buffer] | None

    def end(self, s: Stmt, var: Var) -> End | None:
        """Where iterations of ``var`` end that do anything in ``s``, in terms of dims alone; None where nothing says
        it.
        """
        if isinstance(s, If):
            for c in conjuncts(s.cond):
                if (found := _of_condition(c, var, self.arith)) is not None:
                    return found
            return self.end(s.then, var)
        if isinstance(s, Loop | Alloc | Let):
            return self.end(s.body, var)
        if isinstance(s, Seq):
            return _last([self.end(x, var) for x in s.stmts if not self._harmless(x)], self.arith)
        return None

    def _harmless(self, s: Stmt) -> bool:
        """Whether nobody would miss a statement where nothing else is done in an iteration."""
        if isinstance(s, Store):
            return s.buffer in self.own if self.own is not None else s.buffer.scope is not Scope.GLOBAL
        if isinstance(s, If):
            return self._harmless(s.then)
        if isinstance(s, Loop | Alloc | Let):
            return self._harmless(s.body)
        return all(map(self._harmless, s.stmts)) if isinstance(s, Seq) else isinstance(s, HARMLESS)


def _last(ends: list[End | None], arith: Arith) -> End | None:
    """The end of several statements, where one of theirs is known to be no less than any other."""
    known = [e for e in ends if e is not None]
    if not known or len(known) < len(ends):
        return None
    for e in known:
        if all(same(e.at, other.at) or _at_most(other.at, e.at, arith) for other in known):
            return End(e.at, tuple(c for other in known if same(e.at, other.at) for c in other.exact))
    return None


def _at_most(a: Expr, b: Expr, arith: Arith) -> bool:
    """Whether ``a <= b``; of quotients by one number, where what is divided says so."""
    (x, c), (y, d) = _quotient(a, arith), _quotient(b, arith)
    return arith.proves(binary("<=", a, b)) or (c == d and arith.proves(binary("<=", x, y)))


def _quotient(e: Expr, arith: Arith) -> tuple[Expr, int]:
    """``x`` and ``c`` of ``x // c``, to which a constant may be added."""
    form = arith.linear(e)
    atom = next(iter(form.terms), None)
    if form.terms == {atom: 1} and isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const):
        return binary("+", atom.a, form.constant * as_int(atom.b)), as_int(atom.b)
    return e, 1


def _of_condition(c: Expr, var: Var, arith: Arith) -> End | None:
    """The end that one condition gives: of ``k * var + others - dims < 0``, at the least of the others."""
    form = arith._at_most_zero(c)
    step = 0 if form is None else form.terms.get(var, 0)
    if form is None or step <= 0:
        return None
    rest = form.without(var)
    fixed = {t: k for t, k in rest.terms.items() if dims_in(t) and all(v.bounds for v in find(t, Var))}
    moving = Linear({t: k for t, k in rest.terms.items() if t not in fixed}, 0)
    low = arith.range_of(moving)[0]
    if not fixed or math.isinf(low):
        return None
    room = Linear({t: -k for t, k in fixed.items()}, step - rest.constant - int(low))
    at = room.expr() if step == 1 else arith.linear(binary("//", binary("max", room.expr(), 0), step)).expr()
    return End(at, () if moving.terms else (c,))


class _Without(Rewriter):
    """Conditions that hold are gone."""

    def __init__(self, held: tuple[Expr, ...]) -> None:
        self.held = held

    def on_If(self, n: If) -> Stmt:
        n = self.children(n)
        kept = [c for c in conjuncts(n.cond) if not any(c is h for h in self.held)]
        if len(kept) == len(conjuncts(n.cond)):
            return n
        return If(conjunction(kept), n.then) if kept else n.then
