"""Pass: give inner loops on CPUs versions without the conditions that their iterations do not change.

    for k in 64: for i in 6: s[i] += (inside(t + i) ? x[64*(t + i) + k] : 0) * w[k]
    ->   if (inside(t) and … and inside(t + 5)) for k in 64: for i in 6: s[i] += x[64*(t + i) + k] * w[k]
         if (not (…)) the loop as it was

    for i in 6: s[i] += u*u + v*v <= 9 ? x[i + u, v] : 0
    ->   if (u*u + v*v <= 9) for i in 6: s[i] += x[i + u, v]

Windows of an image meet its border seldom, and a test for each element takes longer than its multiply-add.
"""

from __future__ import annotations

import itertools
import math

from tensorir.arith.affine import Arith, same
from tensorir.arith.conditions import conjunction, conjuncts, contrary, negate, weakest
from tensorir.ir.build import as_int, const
from tensorir.ir.lanes import lanes_of
from tensorir.ir.structure import among, structure
from tensorir.ir.tree import (
    Alloc,
    Binary,
    Broadcast,
    Call,
    Const,
    Expr,
    If,
    IntrinCall,
    Kind,
    Let,
    Load,
    Loop,
    Pack,
    Program,
    Select,
    Stmt,
    Store,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, has, replace, sequence, substitute, uses, walk
from tensorir.lower.boxes import LOCAL
from tensorir.lower.form import bound_loops, each_nest, extent_of, kernel_arith, lowering, rewrap, thread_count
from tensorir.lower.partition_loops import Twin
from tensorir.target import Target

LEAST_ITERATIONS = 8
"""Iterations of a loop that pay for the test before it."""
IDENTITIES = {"+": 0, "max": -math.inf, "min": math.inf}
"""Operation -> number that changes nothing, of -0.0 aside, with which no register starts."""
MOST_TESTS, MOST_NODES = 64, 2000
"""Comparisons of the test, and IR nodes of a loop that is written twice."""


@lowering
def version_loops(program: Program, target: Target) -> Program:
    """Write inner loops with invariant conditions twice: for all conditions true, and as they were.

    gives: nothing that later passes need
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        if thread_count(axes) > 1 or not has(body, Select):
            return nest
        return rewrap(axes, _Version(kernel_arith(program.known, axes, body))(body))

    return each_nest(program, kernel) if target.kind == "cpu" else program


class _Version(Rewriter):
    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def on_Loop(self, n: Loop) -> Stmt:
        self.arith.ranges[n.var] = extent_of(n)
        if n.kind is Kind.UNROLL and (store := _alone(n)) is not None:
            return _unswitched(n, store) or (n if n.body is store else self.children(n))
        if n.kind is not Kind.SERIAL or find(n.body, Loop, lambda x: x.kind is not Kind.UNROLL):
            return self.children(n)
        known = isinstance(n.extent, Const) and as_int(n.extent) >= LEAST_ITERATIONS
        asked = _invariant(n) if known and not find(n.body, (If, IntrinCall)) else []
        tests = _tests(n, asked) if asked and sum(1 for _ in walk(n)) <= MOST_NODES else None
        if tests is None:
            return self.children(n)
        cond = self.arith.simplify(conjunction(weakest(tests, self.arith)))
        if isinstance(cond, Const):
            return n.replace(body=_Chosen(asked)(n.body)) if cond.value else n
        arrays = {a.buffer: a.buffer.replace(name=a.buffer.name) for a in find(n.body, Alloc)}
        plain = Twin({}, arrays)(n.replace(body=_Chosen(asked)(n.body)))
        return sequence([If(cond, plain), If(contrary(cond), n)])


def _invariant(n: Loop) -> list[Select]:
    """Choices between something and a number or single lanes by conditions that iterations of a loop do not change."""
    inside = {n.var, *(x.var for x in find(n.body, Let))}
    chosen = [x for x in find(n.body, Select) if isinstance(x.b, Const | Pack) and not isinstance(x.a, Const)]
    return [x for x in chosen if not x.cond.holds & Load.BIT and not inside & {*find(x.cond, Var)} and _scalar(x)]


def _scalar(x: Select) -> bool:
    return not isinstance(x.cond, Const) and all(lanes_of(c) == 1 for c in find(x.cond, Expr))


def _tests(n: Loop, asked: list[Select]) -> list[Expr] | None:
    """Conditions of all iterations of the unrolled loops inside, each once; None for too many."""
    loops, found = {x.var: as_int(x.extent) for x in find(n.body, Loop)}, list[Expr]()
    for x in asked:
        for c in conjuncts(x.cond):
            used = [v for v in dict.fromkeys(find(c, Var)) if v in loops]
            if math.prod(loops[v] for v in used) > MOST_TESTS:
                return None
            for at in itertools.product(*(range(loops[v]) for v in used)):
                made = substitute(c, {v: const(k) for v, k in zip(used, at, strict=True)})
                if not among(made, found):
                    found.append(made)
                if len(found) > MOST_TESTS:
                    return None
    return found


def _alone(n: Loop) -> Store | None:
    """The store that is all that unrolled loops, one directly in another, do; None if there is more."""
    body: Stmt = n
    while isinstance(body, Loop) and body.kind is Kind.UNROLL:
        body = body.body
    return body if isinstance(body, Store) else None


def _unswitched(loop: Loop, store: Store) -> Stmt | None:
    """Loop unswitching: ``for i: a[i] = where(c, x, y) + a[i]`` -> ``if c: for i: …`` and ``if not c: for i: …``; None
    without a condition that is the same for all iterations of ``loop`` and of those in it. A side that adds the
    identity of its combiner is left out.
    """
    inner = {x.var for x in find(loop, Loop)}
    choices = find(store.value, Select, lambda x: uses(x, inner))  # others are made once, without a branch
    known = [x.cond for x in choices if _scalar(x) and not has(x.cond, Load, Call)]
    cond = next((c for c in known if not uses(c, inner)), None)
    other = negate(cond) if cond is not None else None
    if cond is None or other is None:
        return None
    alike = find(store.value, Select, lambda x: structure(x.cond) == structure(cond))
    sides = [(c, _Chosen(alike, side)(store)) for c, side in ((cond, True), (other, False))]
    return sequence([If(c, replace(loop, {store: s})) for c, s in sides if not _adds_nothing(s)])


def _adds_nothing(store: Store) -> bool:
    """True if a register is combined with the identity of a sum, a maximum or a minimum."""
    value = store.value
    if not isinstance(value, Binary) or value.op not in IDENTITIES or store.buffer.scope not in LOCAL:
        return False
    old, new = value.a, value.b.value if isinstance(value.b, Broadcast) else value.b
    own = isinstance(old, Load) and old.buffer is store.buffer and all(map(same, old.index, store.index))
    return own and isinstance(new, Const) and new.value == IDENTITIES[value.op]


class _Chosen(Rewriter):
    """Rewriter: choices become what they are for true conditions, or for false ones."""

    def __init__(self, known: list[Select], value: bool = True) -> None:
        self.known, self.value = known, value

    def on_Select(self, n: Select) -> Expr:
        if any(n is x for x in self.known):
            return self(n.a if self.value else n.b)  # type: ignore[no-any-return]
        return self.children(n)
