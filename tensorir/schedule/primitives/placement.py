"""compute_at, reverse_compute_at, compute_inline: places of stages in the loop tree."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tensorir.arith.affine import Arith, Linear, structure
from tensorir.arith.box import Side, side_of
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_text
from tensorir.ir.build import as_int, binary
from tensorir.ir.dims import most, most_of
from tensorir.ir.text import show
from tensorir.ir.tree import Axis, Buffer, Expr, Load, Loop, Program, Scope, Stage, Stmt, Store, Var
from tensorir.ir.visit import Rewriter, find, reads, substitute, uses, writes
from tensorir.schedule.analysis import (  # fmt: skip
    Index,
    caret,
    context,
    drives,
    in_loops,
    index_of,
    loads_of,
    need_room,
    ranges,
    stages_reading,
    stages_writing,
)
from tensorir.schedule.history import Name, S
from tensorir.schedule.primitives.buffers import scoped
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import (
    InPlace,
    Rewrite,
    accesses_to,
    axis_labels,
    box_nest,
    footprint,
    in_users,
    own_nest,
    place_after,
    place_before,
    results_of,
    shared_by,
    shared_out,
    swap,
    tails_of,
    where_gathered,
    written_index,
)  # fmt: skip


@primitive("Where a stage runs", moves=True)
def compute_at(self: S, stage: Name, consumer: Name, axis: Name | None = None, scope: str | None = None) -> S:
    """Move a producer into a loop of its consumer, ``s.compute_at("P", "C.i.0")`` or ``(P, C, "i.0")``: each iteration
    computes just the box read there.

    The producer gets a fresh nest over that box (its reduction axes in full); schedule it afterwards. If it was placed
    before, and its operands were staged for its former box, iterations beyond that box do not run: nobody has written
    their operands, and nobody reads their results.

    scope: memory of its results, as in ``set_scope``; None: as it is
    """
    history = self._history
    found, loop = history._stage(stage), history._loop_of(consumer, axis)
    if scope is not None:
        need_text("scope", scope, ScheduleError)
    history._apply("compute_at", (found, loop), {"scope": scope}, lambda p: _kept_at(p, found, loop, scope))
    return self


def _kept_at(program: Program, stage: Stage, loop: Loop, scope: str | None) -> Rewrite:
    """``program`` with ``stage`` computed at ``loop`` and its result kept in memory ``scope``; None: where it is.

    The scope is set first, as the box in shared memory is that of all threads.
    """
    if scope is None:
        return _compute_at(program, stage, loop)
    for b in results_of(stage):
        program = scoped(program, b, scope)
    index = index_of(program)
    return _compute_at(program, index.stages[stage.name], index.loops[loop.var.name])


def _compute_at(program: Program, stage: Stage, loop: Loop) -> Rewrite:
    index = index_of(program)
    if loop in index.above(stage):
        raise _refuse("compute-at.self", f"{loop.var.name} is a loop of {stage.name} itself", stage,
                      hint="give a loop of a stage that reads it")  # fmt: skip
    need_room(index, loop, "compute-at")
    if find(loop, Stage, lambda s: s.name == stage.name):
        raise _refuse("compute-at.self", f"{stage.name} already runs inside {loop.var.name}", stage)
    made = results_of(stage)
    top = own_nest(index, stage, "compute-at", tails=True)
    if len(find(top, Stage)) > 1:
        raise _refuse("compute-at.nest-shared", f"other stages live in the loops of {stage.name}", stage)
    inside = [s for b in made for s in stages_reading(loop, b)]
    outside = [s for b in made for s in stages_reading(program.body, b) if s not in inside and s is not stage]
    if not inside:
        raise _refuse("compute-at.not-read", f"nothing inside {loop.var.name} reads {stage.name}", stage,
                      hint="give a loop of a stage that reads it")  # fmt: skip
    if outside:
        raise _refuse(
            "compute-at.other-readers",
            f"{outside[0].name} reads {stage.name} outside {loop.var.name}",
            stage,
            hint=f"move {outside[0].name} first, or s.compute_inline({stage.name!r})",
        )
    if any(len(stages_writing(program.body, b)) > 1 for b in made):
        raise _refuse("compute-at.several-writers", f"{made[0].name} is written by several stages", stage)
    nest_ = shared_out(_boxed(index, stage, top, loop, made), top)
    without = swap(program, top, None)
    fresh = Index(without).loops[loop.var.name]
    done = swap(without, fresh, place_before(fresh, nest_, inside))
    if output := next((b for b in made if b in program.outputs), None):
        placed = index_of(done)
        _need_all(placed, placed.stages[stage.name], placed.loops[loop.var.name], output)
    return Rewrite(done)


def _need_all(index: Index, stage: Stage, loop: Loop, output: Buffer) -> None:
    """Raise ScheduleError unless the iterations of ``loop`` share out the elements of ``output``, which ``stage``
    writes in it.
    """
    if stage.guards or not shared_by(index, stage, loop, output):
        raise _refuse(
            "compute-at.output",
            f"{output.name} is an output of the program: each of its elements is written once, and the iterations of "
            f"{loop.var.name} do not provably share them out",
            stage,
            hint=f"a loop whose iterations read disjoint parts, or s.clone({stage.name!r}) to compute it twice",
        )


def _boxed(index: Index, stage: Stage, top: Stmt, loop: Loop, made: list[Buffer]) -> Stmt:
    scope = made[0].scope
    accesses = [a for b in made for a in accesses_to(loop, b)]
    sides = footprint(index, accesses, loop, scope, most_of(made[0]))
    where = where_gathered([s for s, _ in accesses], sides)
    _need_place(stage, loop, sides, context(index, loop, inside=True).child(assume=where))
    # written_index gives, per buffer dimension, the axis that walks it: boxes are wanted per axis
    per_axis = dict(zip(written_index(stage), sides, strict=True))
    boxes = [
        per_axis.get(it.var, Side(Linear({}, 0), most(it.extent))) for it in stage.iters if it.axis is Axis.SPATIAL
    ]
    nest_ = box_nest(stage, boxes, [f"{stage.name}.{label}" for label in axis_labels(stage)])
    inner = find(nest_, Stage)[0]
    at = {it.var: bind for it, bind in zip(inner.iters, inner.binds, strict=True)}
    guards = [*where, *(substitute(g, at) for g in tails_of(index, stage, top) or ())]
    if any(stages_writing(index.root_of(stage), b) for b in reads(stage.body) if b not in made):
        guards += _within(index, stage, top, loop, boxes, inner)
    return _Guarded(stage.name, tuple(guards))(nest_)  # type: ignore[no-any-return]


def _need_place(stage: Stage, loop: Loop, sides: list[Side], known: Arith) -> None:
    """Raise ScheduleError for a box located by a loaded index that readers load under a condition only."""
    for x in (x for side in sides for t in side.first.terms for x in find(t, Load)):
        ends = [(binary("<=", 0, i), binary("<", i, n)) for i, n in zip(x.index, x.buffer.shape, strict=True)]
        if not all(known.proves(c) for pair in ends for c in pair):
            raise _refuse(
                "compute-at.guard",
                f"which part of {stage.name} an iteration of {loop.var.name} reads is said by {show(x)}, and not in "
                "all iterations is there such an element",
                stage,
                hint="give a loop further out, or leave it where it is",
            )


def _within(index: Index, stage: Stage, top: Stmt, loop: Loop, boxes: list[Side], inner: Stage) -> list[Expr]:
    """Guards, as ``expression < constant``, that keep ``stage`` in its old box when it moves from ``top`` into
    ``loop``; [] if the new box is provably inside.
    """
    arith, moving = context(index, loop, inside=True), ranges(find(top, Loop))
    before = Arith({**ranges(index.above(top)), **moving})
    sides = iter(boxes)
    out: list[Expr] = []
    for it, old, new in zip(stage.iters, stage.binds, inner.binds, strict=True):
        if it.axis is not Axis.SPATIAL:
            continue
        side, box = next(sides), side_of(old, before, moving)
        if box is None or (not box.first.terms and box.first.constant <= 0 and box.extent >= most(it.extent)):
            continue  # all of the axis, which no iteration leaves in any case
        low, high = arith.range_of(side.first.plus(box.first, -1))
        if low < 0:
            out.append(binary("<", box.first.plus(arith.linear(new), -1).expr(), 1))
        if high + side.extent > box.extent:
            out.append(binary("<", arith.linear(new).plus(box.first, -1).expr(), box.extent))
    return out


@primitive("Where a stage runs", moves=True)
def reverse_compute_at(self: S, stage: Name, producer: Name, axis: Name | None = None) -> S:
    """Move a consumer after its producer inside a loop: each iteration consumes the tile just made.

    axis: the producer's loop; None: ``producer`` is the loop's full name, such as "C.i"

    The consumer must read it element by element and reduce nothing; the tile must be complete, so the loop is outside
    all reduction loops of the producer. Raises ScheduleError, codes of ``reverse-compute-at``.
    """
    history = self._history
    found, loop = history._stage(stage), history._loop_of(producer, axis)
    history._apply("reverse_compute_at", (found, loop), {}, lambda p: _reverse_compute_at(p, found, loop))
    return self


def _reverse_compute_at(program: Program, stage: Stage, loop: Loop) -> Rewrite:
    index = index_of(program)
    if loop in index.above(stage):
        raise _refuse("reverse-compute-at.self", f"{loop.var.name} is a loop of {stage.name} itself", stage)
    need_room(index, loop, "reverse-compute-at")
    sources = [b for b in reads(stage.body) if stages_writing(loop, b)]
    if not sources:
        raise _refuse(
            "reverse-compute-at.not-written", f"nothing inside {loop.var.name} computes what {stage.name} reads", stage
        )
    if stage.init is not None or any(it.axis is not Axis.SPATIAL for it in stage.iters):
        raise _refuse(
            "reverse-compute-at.reduction", f"{stage.name} reduces: its result needs more than one tile", stage
        )
    top = own_nest(index, stage, "reverse-compute-at")
    if len(find(top, Stage)) > 1:
        raise _refuse("reverse-compute-at.nest-shared", f"other stages live in the loops of {stage.name}", stage)
    producers = [p for b in sources for p in stages_writing(loop, b)]
    is_made_before(program, stage, producers, "reverse-compute-at")
    nest_ = shared_out(tile_nest(index, stage, producers, loop, "reverse-compute-at"), top)
    without = swap(program, top, None)
    fresh = Index(without).loops[loop.var.name]
    return Rewrite(swap(without, fresh, place_after(fresh, nest_, producers)))


def is_made_before(program: Program, stage: Stage, producers: list[Stage], primitive: str) -> None:
    """Raise ScheduleError unless everything ``stage`` reads is complete when ``producers`` have run."""
    order = find(program.body, Stage)
    for b in reads(stage.body):
        for s in stages_writing(program.body, b):
            if s not in producers and order.index(s) > order.index(producers[0]):
                raise _refuse(
                    f"{primitive}.made-later",
                    f"{stage.name} reads {b.name}, which {s.name} makes after {producers[0].name}",
                    stage,
                    hint=f"move {s.name} first, or give a loop around both",
                )


def tile_nest(index: Index, stage: Stage, producers: list[Stage], loop: Loop, primitive: str,
              partial: bool = False) -> Stmt:  # fmt: skip
    """Loop nest of ``stage`` over the tile that ``producers`` complete in one iteration of ``loop``.

    partial: the tile may hold incomplete sums
    """
    boxes: dict[Var, Side] = {}
    guards: list[Expr] = []
    for p in producers:
        for outer in [] if partial else [*index.above(loop), loop]:
            if any(uses(b, {outer.var}) for it, b in zip(p.iters, p.binds, strict=True) if it.axis is not Axis.SPATIAL):
                raise _refuse(
                    f"{primitive}.partial-reduction",
                    f"inside {loop.var.name} the sums of {p.name} are not complete: "
                    f"{outer.var.name} drives its reduction",
                    p,
                    hint="give a loop outside all reduction loops",
                )
        target = next(b for b in writes(p.body) if loads_of(stage, b))
        where = written_index(p)
        sides = footprint(index, [(p, where)], loop, Scope.REGISTER, most_of(target))
        _is_tile(index, p, loop, sides, primitive)
        for load in loads_of(stage, target):
            for axis, side in zip(load.index, sides, strict=True):
                if not isinstance(axis, Var):
                    raise _refuse(
                        f"{primitive}.not-elementwise", f"{stage.name} reads {target.name} at a computed index", stage
                    )
                known = boxes.setdefault(axis, side)
                if known.extent != side.extent or not known.first.same(side.first):
                    raise _refuse(
                        f"{primitive}.not-elementwise",
                        f"{stage.name} reads several tiles along its axis {axis.name}",
                        stage,
                    )
        guards += carried(index, stage, p, where, load.index, boxes, loop, primitive)
    missing = [it.var.name for it in stage.iters if it.var not in boxes]
    if missing:
        raise _refuse(
            f"{primitive}.whole-axis", f"axis {missing[0]} of {stage.name} is not an axis of what it reads", stage
        )
    order = [boxes[it.var] for it in stage.iters]
    names = [f"{stage.name}.{label}" for label in axis_labels(stage)]
    made = box_nest(stage, order, names)
    tile = {it.var: Var(n, "index") for it, n in zip(stage.iters, names, strict=True)}
    loops = {x.var.name: x.var for x in find(made, Loop)}
    local = {v: loops[tile[it.var].name] for it in stage.iters for v in [it.var]}
    return _Guarded(stage.name, tuple(substitute(g, local) for g in guards))(made)  # type: ignore[no-any-return]


def _is_tile(index: Index, p: Stage, loop: Loop, sides: list[Side], primitive: str) -> None:
    """Raise ScheduleError unless one iteration of ``loop`` computes every element of the box."""
    reduces = {v for it, b in zip(p.iters, p.binds, strict=True) if it.axis is not Axis.SPATIAL for v in find(b, Var)}
    inner = [x for x in index.between(loop, p) if drives(x, p) and x.var not in reduces]
    if math.prod(as_int(x.extent) for x in inner) != math.prod(s.extent for s in sides):
        raise _refuse(
            f"{primitive}.scattered",
            f"one iteration of {loop.var.name} does not compute a whole tile of what {p.name} writes",
            p,
            hint="reorder so that the inner part of each split is inside",
        )


def carried(
    index: Index,
    stage: Stage,
    p: Stage,
    where: tuple[Expr, ...],
    axes: tuple[Expr, ...],
    boxes: Mapping[Var, Side],
    loop: Loop,
    primitive: str,
) -> list[Expr]:
    """Guards of producer ``p`` as conditions on the axes of the consumer's tile, without those on its reduction only;
    raises ScheduleError for one that cannot be expressed.
    """
    arith = Arith(ranges(index.loops.values()))
    inner = {x.var: None for x in index.between(loop, p)}
    reduces = {
        v for it, b in zip(p.iters, p.binds, strict=True) if it.axis is Axis.REDUCE for v in find(b, Var)
    }  # fmt: skip
    out: list[Expr] = []
    for g in p.guards:
        if uses(g, reduces):
            continue  # it leaves out terms of a sum, and no cell
        if not uses(g, inner):
            out.append(g)
            continue
        assert hasattr(g, "a")
        left = arith.linear(g.a)  # guards are ``expression < extent``
        moving = {t: c for t, c in left.terms.items() if uses(t, inner)}
        for i, axis in zip(where, axes, strict=True):
            form = arith.linear(in_loops(i, p))
            if {t: c for t, c in form.terms.items() if uses(t, inner)} == moving and isinstance(axis, Var):
                # the moving part is the axis minus what stands still
                rest = Linear({t: c for t, c in left.terms.items() if t not in moving}, left.constant)
                still = Linear({t: c for t, c in form.terms.items() if t not in moving}, form.constant)
                offset = boxes[axis].first.plus(still, -1).plus(rest)
                out.append(binary("<", binary("+", offset.expr(), axis), g.b))  # type: ignore[attr-defined]
                break
        else:
            raise _refuse(f"{primitive}.guard", f"the tail of {p.name} cannot be said in the tile of {stage.name}", p,
                          hint="use exact splits, or place it further out")  # fmt: skip
    return out


class _Guarded(Rewriter):
    def __init__(self, name: str, guards: tuple[Expr, ...]) -> None:
        self.name, self.guards = name, guards

    def on_Stage(self, n: Stage) -> Stage:
        return n.replace(guards=(*n.guards, *self.guards)) if n.name == self.name and self.guards else n


@primitive("Where a stage runs", word="inline")
def compute_inline(self: S, stage: Name) -> S:
    """Replace reads of a producer by its expression; the producer and its buffer vanish.

    Refused for outputs, reductions, and stages already scheduled, of several buffers or written at computed indices
    (ScheduleError, codes ``inline.*``).
    """
    found = self._history._stage(stage)
    self._history._apply("compute_inline", (found,), {}, lambda p: _compute_inline(p, found))
    return self


def _compute_inline(program: Program, stage: Stage) -> Rewrite:
    made = writes(stage.body)
    if any(b in program.outputs for b in made):
        raise _refuse("inline.output", f"{made[0].name} is an output of the program", stage)
    if not isinstance(stage.body, Store) or stage.init is not None:
        raise _refuse(
            "inline.pure",
            f"{stage.name} reduces or writes several buffers: there is no one expression to inline",
            stage,
            hint="compute_at places it at its reader instead",
        )
    if len(stages_writing(program.body, made[0])) > 1:
        raise _refuse("inline.several-writers", f"{made[0].name} is written by several stages", stage)
    index = index_of(program)
    top = own_nest(index, stage, "inline", dealt=False)
    if len(find(top, Stage)) > 1:
        raise _refuse("inline.nest-shared", f"other stages live in the loops of {stage.name}", stage)
    if isinstance(stage.body, Store) and not all(isinstance(i, Var) for i in stage.body.index):
        raise _refuse("inline.index", f"{stage.name} is kept by parts of its axes, or by several joined", stage,
                      hint="compute_inline before reindex(writes=…), or compute_at")  # fmt: skip
    without = swap(program, top, None)
    return Rewrite(in_users(without, made, _Inline(stage)), (), _inlined(top, stage))


def _inlined(top: Stmt, stage: Stage) -> dict[str, str]:
    """For each removed name of an inlined stage, a note on its fate for error messages."""
    into = "it was inlined"
    return {
        stage.name: into,
        **{b.name: into for b in writes(stage.body)},
        **{x.var.name: into for x in find(top, Loop)},
    }


class _Inline(InPlace):
    def __init__(self, stage: Stage) -> None:
        assert isinstance(stage.body, Store)
        self.buffer, self.index, self.value = stage.body.buffer, stage.body.index, stage.body.value

    def on_Load(self, n: Load) -> Expr:
        n = self.children(n)
        if n.buffer is not self.buffer:
            return n
        at = {v: i for v, i in zip(self.index, n.index, strict=True) if isinstance(v, Var)}
        return self.once(tuple(map(structure, n.index)), lambda: self.put(substitute(self.value, at)))


def _refuse(code: str, message: str, stage: Stage, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(stage), hint=hint))
