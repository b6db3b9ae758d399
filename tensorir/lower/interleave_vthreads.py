"""Pass: interleave virtual threads in one real thread, statement by statement, sharing work that does not differ.

In the schedule, iterations of a loop bound to ``vthread`` are threads with common shared memory, own registers, and
barriers. This pass turns them into iterations of one thread, executed in lockstep (as virtual threads in TVM: Chen et
al., OSDI 2018). The loop moves inward, past loops and into each statement, until it encloses single stages, and is
unrolled there. Stages equal in all iterations, such as copies into shared memory, run once. A register buffer filled
differently by each gets one copy per iteration, as a new leading dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorir.arith.affine import Arith, Linear
from tensorir.errors import LoweringError
from tensorir.ir.build import as_expr, binary
from tensorir.ir.marks import Versions
from tensorir.ir.tree import (
    Axis,
    Buffer,
    Expr,
    Iter,
    Kind,
    Load,
    Loop,
    Program,
    Scope,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, reads, replace, sequence, substitute, uses, writes
from tensorir.lower.form import each_nest, fail, kernel_arith, lowering
from tensorir.schedule.analysis import in_loops
from tensorir.target import Target

WHOLE_LOOPS = (Kind.VECTOR, Kind.INTRIN)
"""Loops that are one statement with what is inside them."""


@lowering
def interleave_vthreads(program: Program, target: Target) -> Program:
    """Interleave the iterations of virtual-thread loops in one real thread.

    needs: buffers have their scopes;  gives: no loop is bound to virtual threads

    Raises LoweringError ``lower.vthread`` where their iterations cannot go in step.
    """
    if not find(program.body, Loop, _is_virtual):
        return program
    return each_nest(program, _kernel)


def _is_virtual(x: Loop) -> bool:
    return x.kind is Kind.VTHREAD


def _kernel(nest: Stmt) -> Stmt:
    counts: dict[Buffer, int] = {}
    while loops := find(nest, Loop, _is_virtual):
        nest = replace(nest, {loops[0]: _interleaved(nest, loops[0], counts)})
    # several statements, still one kernel
    return Loop(Var("once", "index"), as_expr(1), nest) if isinstance(nest, Seq) else nest


def _interleaved(nest: Stmt, whole: Loop, counts: dict[Buffer, int]) -> Stmt:
    """The body of virtual-thread loop ``whole`` with its iterations interleaved.

    counts: for buffers replicated so far, the number of replica dimensions
    """
    loop = whole
    for x in find(loop, Loop, lambda x: any(uses(c, {whole.var}) for c in Versions.of(x).where)):
        raise _fail(loop, "the versions of its body are for some of its iterations only" if x is loop
                    else f"the versions of {x.var.name} differ between its iterations")  # fmt: skip
    if (kept := Versions.of(loop)).where:  # versions of all that it holds; a loop of one iteration keeps them
        versions = Loop(Var("once", "index"), as_expr(1), loop.body, marks=(kept,))
        loop = loop.replace(body=versions).marked(Versions())
    own, private = _apart(loop)
    inside = set(find(loop, Stage))
    for s in find(nest, Stage):
        if s not in inside and (b := next((b for b in _touched(s) if b in private), None)):
            raise _fail(loop, f"{s.name} touches {b.name} outside of it, of which each iteration has its own")
    arith = kernel_arith(Arith(), [], nest)
    still = {x.var for x in find(nest, Loop) if whole in find(x, Loop) or x.kind.level != "sequential"}
    copies = {}
    for b in private:
        at, extra = counts.get(b, 0), loop.extent
        shape = (*b.shape[:at], extra, *b.shape[at:])
        copies[b] = _Copy(b.replace(shape=shape), at, _offsets(loop, b, arith, still))
        counts[copies[b].buffer] = at + 1
    extents = {x.var: x.extent for x in find(nest, Loop)}
    return _Inward(loop, own, _ToCopies(loop, copies, extents)).inside(loop.body)


@dataclass(frozen=True)
class _Copy:
    """A buffer replicated per virtual thread: position ``at`` of the replica dimension, and offsets subtracted from the
    other indices.

    An offset is the distance of an iteration's elements from the first iteration's, so that each replica stays as small
    as one.
    """

    buffer: Buffer
    at: int
    offsets: Sequence[Linear]

    def index(self, var: Var, index: tuple[Expr, ...], axes: Mapping[Var, Var]) -> tuple[Expr, ...]:
        """Index in the replicated buffer for ``index`` in the original; axes: a stage's axis for each loop variable"""
        moved = [binary("-", i, substitute(o.expr(), axes)) if o.terms else i
                 for i, o in zip(index, self.offsets, strict=True)]  # fmt: skip
        return (*moved[: self.at], axes[var], *moved[self.at :])

    def loops(self, var: Var) -> list[Var]:
        """Loop variables on which the index in a replica depends: the virtual thread's and those of the offsets."""
        return [var, *(v for o in self.offsets for t in o.terms for v in find(t, Var))]


def _apart(loop: Loop) -> tuple[set[Stage], list[Buffer]]:
    """(stages that differ between iterations, register buffers that need a replica each)."""
    stages = find(loop, Stage)
    own = {s for s in stages if uses(s, {loop.var})}
    while True:
        private = {b: None for s in stages if s in own for b in writes(s.body) if b.scope is Scope.REGISTER}
        more = {s for s in stages if s not in own and any(b in private for b in _touched(s))}
        if not more:
            # the cells of a state next to others that all threads see are told apart as theirs are
            seen = {b for s in stages for u in find(s, Update) if not set(u.buffers) <= set(private) for b in u.buffers}
            return own, [b for b in private if b not in seen]
        own |= more


def _touched(s: Stage) -> list[Buffer]:
    return [*reads(s), *writes(s.body)]


def _offsets(loop: Loop, b: Buffer, arith: Arith, still: set[Var]) -> list[Linear]:
    """Per dimension, the distance of an iteration's elements from the first iteration's; must be equal for all elements
    and constant in the loops ``still``.
    """
    if b.layout is not None:
        raise _fail(loop, f"{b.name} has a layout, and would be stored once for each of its iterations",
                    f"leave registers without a layout, or unroll {loop.var.name}")  # fmt: skip
    found: list[list[Linear]] = []
    for s in find(loop, Stage):
        for index in _indices(s, b):
            forms = [arith.linear(in_loops(i, s)) for i in index]
            found.append([Linear({t: c for t, c in f.terms.items() if uses(t, {loop.var})}, 0) for f in forms])
    for offsets in found:
        moving = any(set(find(t, Var)) - still for o in offsets for t in o.terms)
        if moving or not all(o.same(first) for o, first in zip(offsets, found[0], strict=True)):
            raise _fail(loop, f"where {b.name} is touched in one of its iterations does not tell where in the next",
                        f"exact splits around {loop.var.name}, or unroll it")  # fmt: skip
    return found[0]


def _indices(s: Stage, b: Buffer) -> Iterator[tuple[Expr, ...]]:
    for n in find(s, (Load, Store, Update)):
        if (isinstance(n, Load | Store) and n.buffer is b) or (isinstance(n, Update) and b in n.buffers):
            yield n.index


class _Inward:
    """Rewriter: move the virtual-thread loop inward to the stages that differ between its iterations."""

    def __init__(self, loop: Loop, own: set[Stage], to_copies: _ToCopies) -> None:
        self.loop, self.own, self.to_copies = loop, own, to_copies

    def inside(self, s: Stmt) -> Stmt:
        if not self.own.intersection(find(s, Stage)):
            return s
        if isinstance(s, Seq):
            return sequence([self.inside(x) for x in s.stmts])
        if isinstance(s, Loop) and s.kind not in WHOLE_LOOPS:
            if uses(s.extent, {self.loop.var}) or s.kind is Kind.COOPERATIVE:
                raise _fail(self.loop, f"its iterations want loops over {s.var.name} of their own")
            return s.replace(body=self.inside(s.body))
        var = Var(self.loop.var.name, "index")
        body = substitute(self.to_copies(s), {self.loop.var: var})
        return Loop(var, self.loop.extent, body, Kind.UNROLL)


class _ToCopies(Rewriter):
    """Rewriter: each iteration accesses its replica of a buffer; the replica loops become axes of its stages."""

    def __init__(self, loop: Loop, copies: Mapping[Buffer, _Copy], extents: Mapping[Var, Expr]) -> None:
        self.var, self.copies, self.extents = loop.var, copies, extents
        self.axes: dict[Var, Var] = {}

    def on_Stage(self, n: Stage) -> Stage:
        found = [c for b in _touched(n) if (c := self.copies.get(b)) is not None]
        self.axes = {v: Var(v.name, "index") for c in found for v in c.loops(self.var)}
        iters = tuple(Iter(axis, self.extents[v], Axis.SPATIAL) for v, axis in self.axes.items())
        n = self.children(n)
        return n.replace(iters=(*n.iters, *iters), binds=(*n.binds, *self.axes))

    def on_Load(self, n: Load) -> Load:
        n = self.children(n)
        if (c := self.copies.get(n.buffer)) is None:
            return n
        return n.replace(buffer=c.buffer, index=c.index(self.var, n.index, self.axes))

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        if (c := self.copies.get(n.buffer)) is None:
            return n
        return n.replace(buffer=c.buffer, index=c.index(self.var, n.index, self.axes))

    def on_Update(self, n: Update) -> Update:
        n = self.children(n)
        found = [self.copies[b] for b in n.buffers if b in self.copies]
        if not found:
            return n
        # states of one reduction are parallel: their indices are the same, and so are their offsets
        buffers = tuple(self.copies[b].buffer for b in n.buffers)
        return n.replace(buffers=buffers, index=found[0].index(self.var, n.index, self.axes))


def _fail(loop: Loop, message: str, hint: str = "") -> LoweringError:
    return fail("lower.vthread", f"{loop.var.name} is bound to vthread: {message}", hint or f"unroll {loop.var.name}")
