"""Analysis for ``rolling``: stages, element boxes, pieces and repairs of an online update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorir.arith.box import Side
from tensorir.arith.repair import EXTREMES, NoRepairError, Repair, repair_of
from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import as_int
from tensorir.ir.dims import most, same_shape
from tensorir.ir.once import nests
from tensorir.ir.structure import identical
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Axis,
    Binary,
    Buffer,
    Const,
    Expr,
    Iter,
    Load,
    Loop,
    Program,
    Scope,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)
from tensorir.ir.visit import Rewriter, find, reads, sequence, substitute, uses, writes
from tensorir.schedule.analysis import (
    Index,
    caret,
    commutes,
    context,
    drives,
    index_of,
    stages_reading,
    stages_writing,
)
from tensorir.schedule.primitives.reduction import has_axis_of
from tensorir.schedule.rewrite import footprint, own_nest


@dataclass(frozen=True)
class RollingTarget:
    """A later reduction: the repair of its partial results, and its axis for each dimension of m."""

    stage: Stage
    repair: Repair
    cells: tuple[Iter, ...]


@dataclass(frozen=True)
class RollingPlan:
    """Plan of ``rolling``: reductions ``targets`` are updated online in loop ``at``, by the running values of reduction
    ``m``.

    leader:  the target whose nest contains ``at``
    through: intermediate stages, in order, that compute values read by targets from m
    cells:   box of m's dimensions in one iteration of ``at``;  piece: box of its reduced axes
    """

    index: Index
    m: Stage
    at: Loop
    leader: Stage
    targets: tuple[RollingTarget, ...]
    through: tuple[Stage, ...]
    cells: tuple[Side, ...]
    piece: tuple[Side, ...]


def plan_of(program: Program, m: Stage, into: Sequence[Stage], at: Loop) -> RollingPlan:
    """Return the plan of ``s.rolling``, of a program in which readers of results come after the leader if they can;
    raises ScheduleError, codes of ``rolling``, if it is not legal.
    """
    plan = _plan(program, m, into, at)
    if (later := _readers_after(plan)) is not program:
        plan = _plan(later, m, into, at)
    _need_readers(plan)
    return plan


def _plan(program: Program, m: Stage, into: Sequence[Stage], at: Loop) -> RollingPlan:
    index = index_of(program)
    for s in (m, *into):
        _need_reduction(index, s)
    leader = _leader(index, m, into, at)
    piece = _piece(index, leader, at)
    body = m.body
    assert isinstance(body, Update)
    found = _Through(index, body.buffers[0])
    targets = tuple(_target(m, s, into, found) for s in into)
    led = next(t for t in targets if t.stage is leader)
    cells = _boxes(index, leader, at, led.cells)
    return RollingPlan(index, m, at, leader, targets, found.stages(), cells, piece)


def _readers_after(plan: RollingPlan) -> Program:
    """The program with nests before the leader's that read results, directly or not, after it; the same program if
    there are none, if a reduction reads results, or if others between need what they write.
    """
    index, program = plan.index, plan.index.program
    root, tops = index.root_of(plan.leader), nests(program)
    results = {b for s in (plan.m, *(t.stage for t in plan.targets)) for b in writes(s.body)}
    own = [index.root_of(s) for s in (plan.m, *(t.stage for t in plan.targets), *plan.through)]
    made, late = set(results), list[Stmt]()
    end = tops.index(root)
    for n in tops[:end]:
        if n not in own and made & {*reads(n)}:
            if results & {*reads(n)} and find(n, Update):  # it would go through the terms once more
                return program
            late.append(n)
            made |= {*writes(n)}
    if not late:
        return program
    passed = [n for n in tops[tops.index(late[0]) : end + 1] if n not in late]
    moved = {b for n in late for b in writes(n)}
    needed = {b for n in late for b in reads(n)} - results
    if any(moved & {*reads(n), *writes(n)} or needed & {*writes(n)} for n in passed):
        return program
    order = [*(n for n in tops[: end + 1] if n not in late), *late, *tops[end + 1 :]]
    return program.replace(body=sequence(order))


def _need_reduction(index: Index, stage: Stage) -> None:
    body = stage.body
    if not isinstance(body, Update) or stage.init is None or len(body.buffers) != 1 or body.atomic:
        message = f"{stage.name} is not one reduction of one value with its own initialisation"
        raise refuse("rolling.reduction", message, stage, "tir.max(…) and tir.sum(…), as they were declared")
    if others := [s.name for s in stages_writing(index.program.body, body.buffers[0]) if s is not stage]:
        hint = f"s.rolling before the primitive that made {others[0]}"
        raise refuse("rolling.reduction", f"{others[0]} makes a part of what {stage.name} makes", stage, hint)
    if not commutes(stage):
        message = f"the combiner of {stage.name} does not commute: partial results cannot be repaired in between"
        raise refuse("rolling.order", message, stage, f"leave {stage.name} out, and reduce it in its own nest")


def _leader(index: Index, m: Stage, into: Sequence[Stage], at: Loop) -> Stage:
    """The stage whose nest contains ``at``; raises unless the others are unscheduled nests."""
    leaders = [s for s in into if at in index.above(s) and has_axis_of(at, s, Axis.REDUCE)]
    if not leaders:
        names = " or ".join(s.name for s in into)
        hint = f"s.split({into[-1].name!r}'s reduced axis, [None, 64])[0], and give that loop"
        raise refuse("rolling.axis", f"{at.var.name} drives no reduction of {names}", at, hint)
    extents = [it.extent for it in reduced(m)]
    if other := next((s for s in into if not same_shape([it.extent for it in reduced(s)], extents)), None):
        told = [" x ".join(show(it.extent) for it in reduced(s)) for s in (m, other)]
        message = f"{m.name} reduces {told[0]} terms, {other.name} {told[1]}: they are not over the same axis"
        raise refuse("rolling.axis", message, other, f"declare {other.name} over {told[0]} terms, or leave it out")
    for s in (m, *into):
        if s is not leaders[0] and len(find(own_nest(index, s, "rolling", dealt=False), Stage)) > 1:
            raise refuse("rolling.scheduled", f"other stages run in the loops of {s.name}", s, "s.rolling before that")
    return leaders[0]


def reduced(stage: Stage) -> list[Iter]:
    """Reduce axes of a stage."""
    return [it for it in stage.iters if it.axis is Axis.REDUCE]


def _piece(index: Index, leader: Stage, at: Loop) -> tuple[Side, ...]:
    """Intervals of the leader's reduce axes in one iteration of ``at``; they partition the terms."""
    inner, axes = index.between(at, leader), reduced(leader)
    boxes = _boxes(index, leader, at, axes)
    arith, binds = context(index, at, inside=True), dict(zip(leader.iters, leader.binds, strict=True))
    for it, side in zip(axes, boxes, strict=True):
        bind = binds[it]
        if side.extent != math.prod([as_int(x.extent) for x in inner if uses(bind, {x.var})]):
            message = f"the terms {show(bind)} of {it.var.name} in one iteration of {at.var.name} are not contiguous"
            raise refuse("rolling.axis", message, at, "the outer part of a split")
        form, loops = arith.linear(bind), set(find(bind, Var))
        for g in leader.guards:
            left = arith.linear(g.a) if isinstance(g, Binary) else None
            if uses(g, loops) and (left is None or left.plus(form, -1).terms):
                message = f"the tail {show(g)} leaves out terms in the middle of {it.var.name}"
                raise refuse("rolling.tail", message, leader, "tail='exact' for the inner of the splits")
    return boxes


def _boxes(index: Index, stage: Stage, at: Loop, axes: Sequence[Iter]) -> tuple[Side, ...]:
    """Per axis of ``axes``, the interval of its values in one iteration of ``at``."""
    place = tuple(it.var for it in axes)
    return tuple(footprint(index, [(stage, place)], at, Scope.REGISTER, tuple(most(it.extent) for it in axes)))


class _Through:
    """Expressions that targets compute from m, intermediate stages inlined."""

    def __init__(self, index: Index, buffer: Buffer) -> None:
        self.index, self.buffer = index, buffer
        self.between: dict[Buffer, Stage | None] = {}

    def value(self, stage: Stage) -> Expr:
        """Term of reduction ``stage``, with the stages between it and m inlined."""
        assert isinstance(stage.body, Update)
        return _Inline(self)(stage.body.values[0])  # type: ignore[no-any-return]

    def maker(self, buffer: Buffer) -> Stage | None:
        """The elementwise stage that computes ``buffer`` from m; None if there is none."""
        if buffer is self.buffer or buffer in self.between:
            return self.between.get(buffer)
        makers = stages_writing(self.index.program.body, buffer)
        self.between[buffer] = None
        if len(makers) == 1 and isinstance(makers[0].body, Store) and self._depends(makers[0]):
            s = makers[0]
            if all(it.axis is Axis.SPATIAL for it in s.iters) and identical(s.body.index, [it.var for it in s.iters]):  # type: ignore[attr-defined]
                self.between[buffer] = s
        return self.between[buffer]

    def _depends(self, stage: Stage) -> bool:
        return any(b is self.buffer or self.maker(b) is not None for b in reads(stage.body))

    def stages(self) -> tuple[Stage, ...]:
        """Elementwise stages between m and the targets, in program order: those that ``value`` and ``maker`` found so
        far.
        """
        found = [s for s in self.between.values() if s is not None]
        return tuple(s for s in find(self.index.program.body, Stage) if s in found)


class _Inline(Rewriter):
    def __init__(self, found: _Through) -> None:
        self.found = found

    def on_Load(self, n: Load) -> Expr:
        maker = self.found.maker(n.buffer)
        if maker is None:
            return n
        assert isinstance(maker.body, Store)
        at = dict(zip((it.var for it in maker.iters), n.index, strict=True))
        return self(substitute(maker.body.value, at))  # type: ignore[no-any-return]


def _target(m: Stage, stage: Stage, into: Sequence[Stage], found: _Through) -> RollingTarget:
    """The RollingTarget of a later reduction, with the repair derived from its terms."""
    update = m.body
    assert isinstance(update, Update)
    assert isinstance(stage.body, Update)
    body, buffer = found.value(stage), found.buffer
    loads = find(body, Load, lambda x: x.buffer is buffer)
    others = {b: s for s in into for b in writes(s.body)}
    if not loads:
        raise refuse("rolling.reads", f"the terms of {stage.name} do not read {m.name}", stage, "leave it out of into")
    if early := [x for x in find(body, Load) if x.buffer in others]:
        message = f"{stage.name} reads {early[0].buffer.name}, which is complete only after the last piece"
        raise refuse(
            "rolling.reads", message, stage, f"use {early[0].buffer.name} after the reduction, as in O[i] / l[i]"
        )
    spatial = {it.var: it for it in stage.iters if it.axis is Axis.SPATIAL}
    at = loads[0].index
    if not all(isinstance(i, Var) and i in spatial for i in at) or len(set(at)) < len(at):
        message = f"{stage.name} reads {show(loads[0])}, which is not at axes of its own result"
        raise refuse("rolling.cells", message, stage)
    if other := [x for x in loads if any(a is not b for a, b in zip(x.index, at, strict=True))]:
        message = f"{stage.name} reads {m.name} at two places, {show(loads[0])} and {show(other[0])}"
        raise refuse("rolling.cells", message, stage)
    value = Var(buffer.name, buffer.dtype)
    axes = [it.var for it in reduced(stage)]
    terms = _Value(buffer, value)(body)
    try:
        repair = repair_of(terms, value, axes, _combiner(stage), _maximum(m, stage, at))
    except NoRepairError as e:
        message = f"{stage.name} cannot continue with another {m.name}: {e}"
        hint = f"sums of exp(x - {m.name}), times what does not read {m.name}, where {m.name} is the maximum of x"
        if _combiner(stage) in EXTREMES:
            hint = f"exp(x - {m.name}) times, or x - {m.name} plus, what does not read {m.name}, the maximum of x"
        raise refuse("rolling.repair", message, stage, hint) from None
    return RollingTarget(stage, repair, tuple(spatial[i] for i in at if isinstance(i, Var)))


def _combiner(stage: Stage) -> str:
    """Name of a target's combiner; "max from 0" (or min) for an extreme that does not begin at infinity, of which no
    repair is known.
    """
    assert isinstance(stage.body, Update)
    combiner, start = stage.body.combiner, identity_of(stage).value
    infinite = isinstance(start, float) and math.isinf(start)
    return f"{combiner.name} from {start}" if combiner.name in EXTREMES and not infinite else combiner.name


class _Value(Rewriter):
    def __init__(self, buffer: Buffer, value: Var) -> None:
        self.buffer, self.value = buffer, value

    def on_Load(self, n: Load) -> Expr:
        return self.value if n.buffer is self.buffer else n


def _maximum(m: Stage, stage: Stage, at: Sequence[Expr]) -> Expr | None:
    """Terms whose maximum is m, in the target's axes; None if m is no maximum."""
    update = m.body
    assert isinstance(update, Update)
    identity = update.combiner.identity[0]
    if update.combiner.name != "max" or identity.value != -math.inf:
        return None
    own: dict[Var, Expr] = dict(zip((i for i in update.index if isinstance(i, Var)), at, strict=True))
    own.update(zip((it.var for it in reduced(m)), (it.var for it in reduced(stage)), strict=True))
    return substitute(update.values[0], own)


def _need_readers(plan: RollingPlan) -> None:
    """Raise ScheduleError for stages that read running values, or results before the last piece."""
    index, body = plan.index, plan.index.program.body
    moved = {plan.m, *(t.stage for t in plan.targets), *plan.through}
    order = find(body, Stage)
    last = max(order.index(s) for s in find(index.root_of(plan.leader), Stage))
    for s in moved:
        for b in writes(s.body):
            for r in stages_reading(body, b):
                if r in moved or (order.index(r) > last and s not in plan.through):
                    continue
                why = "which would be those of one piece" if s in plan.through else "which are not yet final there"
                hint = f"give it to into, or declare it as computed from {plan.leader.name}"
                raise refuse("rolling.readers", f"{r.name} reads values of {s.name}, {why}", r, hint)


def alone(plan_loops: Sequence[Loop], leader: Stage, cells: Mapping[Iter, object]) -> list[Loop]:
    """Serial loops among ``plan_loops`` that drive spatial axes of the leader, none of which indexes m."""
    keep = {v for it, b in zip(leader.iters, leader.binds, strict=True) if it in cells or it.axis is not Axis.SPATIAL
            for v in find(b, Var)}  # fmt: skip
    return [x for x in plan_loops if x.kind.level == "sequential" and x.var not in keep and drives(x, leader)]


def refuse(code: str, message: str, at: Stage | Loop, hint: str = "") -> ScheduleError:
    """The ScheduleError of ``rolling`` with ``code``."""
    return ScheduleError(Problem(code, message, at=caret(at), hint=hint))


def identity_of(stage: Stage) -> Const:
    """Identity constant of a stage's reduction."""
    assert isinstance(stage.body, Update)
    return stage.body.combiner.identity[0]


def own_statement(index: Index, stage: Stage) -> Stmt:
    """The nest of ``stage`` as it was declared; raises ScheduleError ``rolling.scheduled`` if it has been scheduled."""
    return own_nest(index, stage, "rolling", dealt=False)
