"""rfactor, decompose_reduction: partial results of a reduction as a stage, its initialization as a stage."""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.arith.conditions import conjunction
from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import as_expr, as_int, binary, select
from tensorir.ir.dims import dims_in, most
from tensorir.ir.marks import Versions
from tensorir.ir.structure import among
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Axis,
    Buffer,
    Expr,
    If,
    Iter,
    Kind,
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
from tensorir.ir.visit import find, sequence, substitute, uses, writes
from tensorir.schedule.analysis import Index, accumulates, caret, commutes, driven_axes, drives, index_of, unique
from tensorir.schedule.history import H, Name, Scheduled
from tensorir.schedule.ownership import disjoint
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, nest, swap


@primitive("Reductions", word="decompose", moves=True)
def decompose_reduction(self: Scheduled[H], stage: Name, axis: Name) -> H:
    """Give the initialisation a stage ``<stage>.init`` before a loop that encloses the reduction; returns it."""
    history = self._history
    found, loop = history._stage(stage), history._loop_of(stage, axis)
    out = history._apply("decompose_reduction", (found, loop), {}, lambda p: _decompose_reduction(p, found, loop))
    return history._handle(out[0])


def _decompose_reduction(program: Program, stage: Stage, loop: Loop) -> Rewrite:
    index = index_of(program)
    if stage.init is None:
        started = any(it.axis is not Axis.SPATIAL for it in stage.iters)
        why = "starts in a stage of its own already" if started else "does not reduce"
        raise _refuse("decompose.no-reduction", f"{stage.name} {why}", stage)
    if loop not in index.above(stage):
        raise _refuse("decompose.encloses", f"{loop.var.name} is not a loop around {stage.name}", stage)
    for outer in index.above(loop):
        if accumulates(outer, stage):
            raise _refuse(
                "decompose.encloses",
                f"{outer.var.name}, outside {loop.var.name}, drives the reduction already",
                stage,
                hint=f"s.decompose_reduction({stage.name!r}, {outer.var.name!r})",
            )
    for x in [loop, *index.between(loop, stage)]:
        if accumulates(x, stage):
            continue
        if not drives(x, stage) or not disjoint(index, stage, x):
            raise _refuse(
                "decompose.repeats",
                f"{x.var.name} runs the reduction of {stage.name} again for the same cells, and each time must start "
                "from the initial value",
                stage,
                hint=f"give a loop of {stage.name} itself",
            )
    name = unique(f"{stage.name}.init", index.names())
    made = init_nest(index, stage, [loop, *index.between(loop, stage)], name, stage.init)
    stmts = sequence([made, loop])
    done = swap(program, loop, stmts)
    fresh = Index(done).stages[stage.name]
    return Rewrite(swap(done, fresh, fresh.replace(init=None)), (name,))


def has_axis_of(loop: Loop, stage: Stage, axis: Axis) -> bool:
    """True if an axis of ``stage`` of kind ``axis`` (spatial, reduce, ordered) depends on the variable of ``loop``."""
    return any(it.axis is axis for it in driven_axes(loop, stage))


def init_nest(index: Index, stage: Stage, inner: Sequence[Loop], name: str, init: Stmt,
              more: Sequence[tuple[Iter, Expr]] = ()) -> Stmt:  # fmt: skip
    """Nest of a new stage ``name`` that runs ``init`` for each element that ``stage`` accumulates in loops ``inner``;
    more: extra axes
    """
    spatial = [x for x in inner if drives(x, stage) and not accumulates(x, stage)]
    fresh: dict[Var, Var] = {}
    for x in spatial:
        taken = [v.name for v in fresh.values()]
        fresh[x.var] = Var(unique(f"{name}.{x.var.name.split('.', 1)[-1]}", taken), "index")
    # a guard on the reduction leaves out terms, and no cell
    reduce_vars = {x.var for x in index.above(stage) if accumulates(x, stage) or (x in inner and x not in spatial)}
    kept = [(it, b) for it, b in zip(stage.iters, stage.binds, strict=True) if it.axis is Axis.SPATIAL]
    kept += more
    guards = tuple(substitute(g, fresh) for g in stage.guards if not uses(g, reduce_vars))
    made: Stmt = Stage(
        name, tuple(it for it, _ in kept), tuple(substitute(b, fresh) for _, b in kept), init, None, guards
    )
    path = index.paths[stage]
    for around in reversed(path[path.index(inner[0]) :] if inner else ()):
        if isinstance(around, If):  # which threads run the stage, when lowering asks
            made = If(substitute(around.cond, fresh), made)
    return nest([x.replace(var=fresh[x.var], kind=_plain(x)).marked(Versions()) for x in spatial], made)


def _plain(x: Loop) -> Kind:
    """Loop kind for initialization code: serial in place of tensorized."""
    return Kind.SERIAL if x.kind is Kind.INTRIN else x.kind


@primitive("Reductions", moves=True)
def rfactor(self: Scheduled[H], stage: Name, axis: Name) -> H:
    """Split a reduction into partial results per iteration of ``axis`` and their reduction; returns the former.

    axis: a loop over terms alone, such as a part of a split reduce axis
    The partial stage ``<stage>.rf`` keeps the scheduled loops, ``axis`` now spatial; its results ``<buffer>_rf`` have
    ``axis`` as their first dimension. The stage itself becomes their reduction, in a fresh nest after it.
    Raises ScheduleError, codes of ``rfactor``.
    """
    history = self._history
    found, loop = history._stage(stage), history._loop_of(stage, axis)
    out = history._apply("rfactor", (found, loop), {}, lambda p: _rfactor(p, found, loop))
    return history._handle(out[0])


def _guarded(program: Program, stage: Stage) -> Program:
    """``program`` with launch-time extents of a stage's reduce axes turned into guards, like split tails."""
    ends = [(it, b) for it, b in zip(stage.iters, stage.binds, strict=True)
            if it.axis is Axis.REDUCE and dims_in(it.extent)]  # fmt: skip
    whole = {it: it.replace(extent=as_expr(most(it.extent))) for it, _ in ends}
    guards = (*stage.guards, *(binary("<", b, it.extent) for it, b in ends))
    iters = tuple(whole.get(it, it) for it in stage.iters)
    return swap(program, stage, stage.replace(iters=iters, guards=guards)) if ends else program


def _rfactor(program: Program, stage: Stage, loop: Loop) -> Rewrite:
    program = _guarded(program, stage)
    index = index_of(program)
    stage, loop = index.stages[stage.name], index.loops[loop.var.name]
    if not isinstance(stage.body, Update) or stage.init is None:
        raise _refuse(
            "rfactor.one-update", f"{stage.name} is not a single reduction with its own initialisation", stage
        )
    others = [
        s.name for s in find(program.body, Stage) if s is not stage and set(writes(s.body)) & set(stage.body.buffers)
    ]
    if others:
        raise _refuse("rfactor.one-update", f"{others[0]} makes a part of what {stage.name} makes", stage,
                      hint="rfactor before cut")  # fmt: skip
    drive = driven_axes(loop, stage)
    if not drive or any(it.axis is not Axis.REDUCE for it in drive) or loop not in index.above(stage):
        raise _refuse("rfactor.reduce-loop", f"{loop.var.name} does not drive a reduction axis of {stage.name}", stage,
                      hint="split the reduction axis and give one of its parts")  # fmt: skip
    outer = [x for x in index.above(loop) if has_axis_of(x, stage, Axis.REDUCE)]
    if outer and not commutes(stage):
        raise _refuse(
            "rfactor.order",
            f"the combiner of {stage.name} does not commute, and partial results for each {loop.var.name} are of terms "
            f"that are not next to each other: {outer[0].var.name} is outside it",
            stage,
            hint=f"s.rfactor({stage.name!r}, {outer[0].var.name!r}), whose parts are contiguous",
        )
    top = _own_loops(index, stage)
    rf_name = unique(f"{stage.name}.rf", index.names())
    update = stage.body
    part = Iter(Var(_label(stage), "index"), loop.extent, Axis.SPATIAL)
    partial = tuple(
        Buffer(unique(f"{b.name}_rf", index.names()), (loop.extent, *b.shape), b.dtype, Scope.AUTO)
        for b in update.buffers
    )
    at = (part.var, *update.index)
    first = sequence([Store(b, at, i) for b, i in zip(partial, update.combiner.identity, strict=True)])
    iters, binds, values = _without(index, stage, loop, part)
    partials = [substitute(v, values) for v in update.values]
    several = {x.var for x in index.above(stage) if as_int(x.extent) > 1}
    guards, cond = _tails(stage, loop, (part, *iters), (loop.var, *binds), several)
    if cond is not None:
        partials = [select(cond, v, i) for v, i in zip(partials, update.combiner.identity, strict=True)]
    one = Stage(rf_name, (part, *iters), (loop.var, *binds),
                Update(partial, at, tuple(partials), update.combiner), first, guards)  # fmt: skip
    final = _final_nest(stage, update, partial, loop)
    renamed = _renamed(top, stage, one, rf_name)
    done = swap(program, top, sequence([renamed, final]))
    gone = {x.var.name: f"rfactor gave it to {rf_name}" for x in find(top, Loop)}
    return Rewrite(done, (rf_name,), gone)


def _tails(
    stage: Stage, loop: Loop, iters: tuple[Iter, ...], binds: tuple[Expr, ...], several: set[Var]
) -> tuple[tuple[Expr, ...], Expr | None]:
    """(guards of the partial stage, condition under which a term counts or None).

    A guard on reduction axes that no remaining reduction loop moves would skip a partial result entirely, though it
    must become the identity; it turns into a select between term and identity.
    """
    # loops of one iteration may be folded out of the condition later, so they do not count
    reduces = {v for it, b in zip(iters, binds, strict=True) if it.axis is Axis.REDUCE for v in find(b, Var)} & several
    tails = [g for g in stage.guards if uses(g, {loop.var}) and not uses(g, reduces)]
    axes: dict[Var, Expr] = {b: it.var for it, b in zip(iters, binds, strict=True) if isinstance(b, Var)}
    if loose := [g for g in tails if any(v not in axes and v.bounds is None for v in find(g, Var))]:
        raise _refuse("rfactor.tail", f"the tail {show(loose[0])} of {stage.name} cannot be said in the axes of its "
                      "partial results", stage, hint="split the reduction exactly (tail='exact')")  # fmt: skip
    kept = tuple(g for g in stage.guards if not among(g, tails))
    return kept, conjunction([substitute(g, axes) for g in tails]) if tails else None


def _without(index: Index, stage: Stage, loop: Loop, part: Iter) -> tuple[list[Iter], list[Expr], dict[Var, Expr]]:
    """(new axes of the partial stage, their bindings, old axes in terms of new ones) once ``loop`` drives only
    ``part``.

    An old axis driven by ``loop`` and other loops becomes one axis per loop.
    """
    others = {
        x.var: Iter(Var(x.var.name.split(".", 1)[-1], "index"), x.extent, Axis.REDUCE) for x in index.above(stage)
    }
    said: dict[Var, Expr] = {loop.var: part.var, **{v: it.var for v, it in others.items() if v is not loop.var}}
    iters: list[Iter] = []
    binds: list[Expr] = []
    values: dict[Var, Expr] = {}
    for it, bind in zip(stage.iters, stage.binds, strict=True):
        if not uses(bind, {loop.var}):
            iters.append(it)
            binds.append(bind)
            continue
        values[it.var] = substitute(bind, said)
        for v in dict.fromkeys(v for v in find(bind, Var) if v in others and v is not loop.var and not among(v, binds)):
            iters.append(others[v])
            binds.append(v)
    return iters, binds, values


def _own_loops(index: Index, stage: Stage) -> Loop:
    path = index.paths[stage]
    loops = index.above(stage)
    top = loops[0]
    for x, below in zip(loops, [*loops[1:], stage], strict=True):
        if x.body is not below:
            raise _refuse("rfactor.own-nest", f"other stages live in the loops of {stage.name}", stage,
                          hint="rfactor before staging or placing other stages in its loops")  # fmt: skip
    if any(not isinstance(p, Loop) and p is not index.program.body for p in path):
        raise _refuse("rfactor.own-nest", f"other stages live in the loops of {stage.name}", stage)
    return top


def _renamed(top: Loop, stage: Stage, one: Stage, rf_name: str) -> Stmt:
    """The scheduled nest around partial stage ``one``, its loops renamed after ``rf_name``."""
    loops = find(top, Loop)
    fresh = {x.var: Var(f"{rf_name}.{x.var.name.split('.', 1)[-1]}", "index") for x in loops}
    body: Stmt = substitute(one, fresh)
    return nest([x.replace(var=fresh[x.var]) for x in loops], body)


def _label(stage: Stage) -> str:
    """Name of the axis over partial results: "rf", or "rf_1" … if the stage has one of that name."""
    return unique("rf", [it.var.name for it in stage.iters])


def _final_nest(stage: Stage, update: Update, partial: tuple[Buffer, ...], loop: Loop) -> Stmt:
    rf = Iter(Var(_label(stage), "index"), loop.extent, Axis.REDUCE)
    iters = (*(it for it in stage.iters if it.axis is Axis.SPATIAL), rf)
    index: tuple[Expr, ...] = (rf.var, *update.index)
    values = tuple(Load(b, index, b.dtype) for b in partial)
    final = Stage(stage.name, iters, (), Update(update.buffers, update.index, values, update.combiner), stage.init)
    loops = [Loop(Var(f"{stage.name}.{it.var.name}", "index"), as_expr(most(it.extent)), final) for it in iters]
    return nest(loops, final.replace(binds=tuple(x.var for x in loops)))


def _refuse(code: str, message: str, stage: Stage, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(stage), hint=hint))
