"""rolling: online update of reductions (as in online softmax) that depend on a running maximum over the same axis."""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.arith.affine import structure
from tensorir.arith.box import Side
from tensorir.errors import ScheduleError
from tensorir.errors.needs import need_list, wrong
from tensorir.ir.build import as_expr, binary, cast, const, select
from tensorir.ir.dims import most
from tensorir.ir.tree import Axis, Buffer, Expr, Iter, Load, Loop, Program, Scope, Stage, Stmt, Store, Update, Var
from tensorir.ir.visit import replace, swap_buffers
from tensorir.schedule.analysis import index_of, unique
from tensorir.schedule.history import H, Name, Scheduled
from tensorir.schedule.primitives.loops import _reorder
from tensorir.schedule.primitives.placement import _compute_at
from tensorir.schedule.primitives.reduction import _decompose_reduction, init_nest
from tensorir.schedule.primitives.reopen import closing, numbered, pieces_around
from tensorir.schedule.primitives.rolling_plan import (
    RollingPlan,
    RollingTarget,
    alone,
    identity_of,
    own_statement,
    plan_of,
    reduced,
)
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, axis_labels, nest, place_before, swap


@primitive("Reductions", moves=True)
def rolling(self: Scheduled[H], stage: Name, into: Name | Sequence[Name], at: Name) -> H:
    """Update later reductions online, ``s.rolling("m", into=("l", "O"), at=ko)``: one pass over the axis that ``m`` and
    the reductions ``into`` share, in pieces; returns ``m``.

    into: reductions over the same axis whose terms read ``m``, at their own indices or through stages between
    at:   the loop over the pieces, in the nest of one of ``into``; the nests of the others, and of ``m``, are as they
          were made

    In each iteration of ``at`` the stages follow one another: ``m.old`` keeps the running ``m``, ``m`` combines it with
    the piece, ``m.ref`` is what terms read (any number where m is still the identity), ``m.scale`` the repair, and for
    each of ``into`` ``<stage>.rescale`` repairs its partial results, to which the stage itself then adds the terms of
    the piece. Serial loops around ``at`` that have nothing to do with ``m`` move inside. What ``m`` reads stays where
    it is: ``compute_at`` places it at ``at`` as well, so that pieces alone are stored. Readers of results before
    that nest move after it.

    The repair is derived, for sums, maxima and minima of terms that read ``m`` in exp(c (x - m)) or exp2 alone, c > 0,
    where ``m`` is the maximum of x, and for maxima and minima of c (x - m) + y. Where no x is finite, and a declaration
    gives -inf - -inf, which is NaN, exp of it counts as 0, and the difference as -inf.

    Raises ScheduleError: ``rolling.repair`` for other terms, and the other codes of ``rolling``.
    """
    history = self._history
    several = (
        (into,) if isinstance(into, str) or hasattr(into, "name") else need_list("into", into, "stages", ScheduleError)
    )
    if not several:
        raise wrong(
            "into", into, "a stage, or a list of stages", ScheduleError, "into=[stage, …], reductions that read it"
        )
    first, loop = history._stage(stage), self._loop(at)
    later = [history._stage(x) for x in several]
    out = history._apply(
        "rolling", (first,), {"into": later, "at": loop}, lambda p: _rolling(p, first, later, loop)
    )  # fmt: skip
    return history._handle(out[0])


def _rolling(program: Program, m: Stage, into: Sequence[Stage], at: Loop) -> Rewrite:
    plan = plan_of(program, m, into, at)
    led = next(t for t in plan.targets if t.stage is plan.leader)
    outside = alone(plan.index.above(at), plan.leader, dict.fromkeys(led.cells))
    if outside:
        program = _reorder(program, at, *outside).program
        at = index_of(program).loops[at.var.name]
        plan = plan_of(program, m, into, at)
    return _Online(plan).rewrite()


class _Online:
    """Builder of an online update's stages as nests inside the loop over pieces."""

    def __init__(self, plan: RollingPlan) -> None:
        self.plan, self.m = plan, plan.m
        self.taken = plan.index.names()
        assert isinstance(plan.m.body, Update)
        self.buffer, self.index = plan.m.body.buffers[0], plan.m.body.index
        self.start = identity_of(plan.m)
        self.piece = numbered(plan.m, pieces_around(plan.index, plan.leader, plan.at))
        self.old, self.ref = self._kept("old"), self._kept("ref")
        self.scales: dict[object, Buffer] = {}

    def _kept(self, what: str, dtype: str = "") -> Buffer:
        name = unique(f"{self.buffer.name}_{what}", self.taken)
        self.taken.add(name)
        return Buffer(name, self.buffer.shape, dtype or self.buffer.dtype, Scope.AUTO)

    def rewrite(self) -> Rewrite:
        """Rewrite to the program after the online update; its only new name is that of stage ``m``."""
        plan, read = self.plan, {self.buffer: self.ref}
        reductions = (self.m, *(t.stage for t in plan.targets))
        pieces = self._inside(read)
        program = swap(plan.index.program, plan.at, pieces)
        for s in reductions:
            if s is not plan.leader:
                program = swap(program, own_statement(plan.index, s), None)
        for s in reductions:  # initialised before the first piece, so that each piece begins with what is there
            found = index_of(program)
            program = _decompose_reduction(program, found.stages[s.name], found.loops[plan.at.var.name]).program
        for s in reversed(plan.through):
            program = swap(program, index_of(program).stages[s.name], swap_buffers(s, read))
            found = index_of(program)
            program = _compute_at(program, found.stages[s.name], found.loops[plan.at.var.name]).program
        return Rewrite(program, (self.m.name,))

    def _inside(self, read: dict[Buffer, Buffer]) -> Loop:
        """The loop over pieces, with the update stages placed before the leader."""
        plan = self.plan
        nests = [
            self._cellwise("old", self.old, self._value()),
            self._nest(self.m),
            self._cellwise("ref", self.ref, self._defined(self._value())),
        ]
        updates: list[Stmt] = []
        for t in plan.targets:
            scale = self._scale(t, nests)
            updates.append(self._rescale(t, scale))
            if t.stage is not plan.leader:
                updates.append(self._nest(t.stage, t.cells, swap_buffers(t.stage.body, read)))
        leader = plan.leader.replace(body=swap_buffers(plan.leader.body, read))
        inside = replace(plan.at, {plan.leader: leader})
        for one in [*nests, *updates]:
            inside = place_before(inside, one, [leader])
        return inside

    def _value(self) -> Expr:
        return Load(self.buffer, self.index, self.buffer.dtype)

    def _defined(self, value: Expr) -> Expr:
        """``value`` with a finite substitute while ``m`` is still the identity (terms are exp(-inf) then)."""
        return select(binary("==", value, self.start), const(1, value.dtype), value)

    def _scale(self, target: RollingTarget, nests: list[Stmt]) -> Expr:
        """Load of the correction factor for each element of m; the stage that computes it is appended to ``nests`` if
        new.
        """
        old = Load(self.old, self.index, self.old.dtype)
        value = target.repair.of(old, Load(self.ref, self.index, self.ref.dtype))
        value = select(binary("==", old, self.start), const(target.repair.start, value.dtype), value)
        key = structure(value)
        if key not in self.scales:
            self.scales[key] = self._kept("scale", value.dtype)
            nests.append(self._cellwise("scale", self.scales[key], value))
        return Load(self.scales[key], tuple(it.var for it in target.cells), value.dtype)

    def _rescale(self, target: RollingTarget, scale: Expr) -> Stmt:
        """Nest that multiplies (or shifts) a target's partial results by the repair."""
        so_far = _result(target.stage)
        return self._on_cells(target, "rescale", binary(target.repair.op, so_far, cast(scale, so_far.dtype)))

    def _on_cells(self, target: RollingTarget, what: str, value: Expr) -> Stmt:
        """Nest ``<stage>.<what>`` that stores ``value`` in each element of a target, once per piece."""
        piece, stage, at = self.piece, target.stage, self.plan.at
        so_far = _result(stage)
        store, name = Store(so_far.buffer, so_far.index, value), self._named(f"{stage.name}.{what}")
        if stage is self.plan.leader:
            inner = self.plan.index.between(at, stage)
            return init_nest(self.plan.index, stage, inner, name, store, [piece])
        iters = tuple(it for it in stage.iters if it.axis is Axis.SPATIAL)
        return closing(self._nest(Stage(name, iters, (), store), target.cells), piece)

    def _cellwise(self, what: str, buffer: Buffer, value: Expr) -> Stmt:
        """Nest of a stage that stores ``value`` for each element of m."""
        iters = tuple(it for it in self.m.iters if it.axis is Axis.SPATIAL)
        name = self._named(f"{self.m.name}.{what}")
        return closing(self._nest(Stage(name, iters, (), Store(buffer, self.index, value))), self.piece)

    def _cells_of_m(self) -> tuple[Iter, ...]:
        axes = {it.var: it for it in self.m.iters}
        return tuple(axes[i] for i in self.index if isinstance(i, Var))

    def _named(self, name: str) -> str:
        name = unique(name, self.taken)
        self.taken.add(name)
        return name

    def _nest(self, stage: Stage, cells: Sequence[Iter] | None = None, body: Stmt | None = None) -> Stmt:
        """``stage`` in a new nest over its elements ``cells`` (default: those of m) in one iteration, its part of the
        piece, and other axes in full.

        body: replaces the stage's body unless None
        """
        boxes: dict[Var, Side] = dict(zip((it.var for it in cells or self._cells_of_m()), self.plan.cells, strict=True))
        boxes.update(zip((it.var for it in reduced(stage)), self.plan.piece, strict=False))
        loops, binds = [], []
        for it, label in zip(stage.iters, axis_labels(stage), strict=True):
            side, var = boxes.get(it.var), Var(f"{stage.name}.{label}", "index")
            loops.append(Loop(var, as_expr(most(it.extent) if side is None else side.extent), stage))
            binds.append(var if side is None else binary("+", side.first.expr(), var))
        return nest(loops, stage.replace(binds=tuple(binds), guards=(), body=body or stage.body))


def _result(stage: Stage) -> Load:
    """Load of the element that a reduction updates."""
    assert isinstance(stage.body, Update)
    return Load(stage.body.buffers[0], stage.body.index, stage.body.buffers[0].dtype)
