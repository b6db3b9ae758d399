"""stage_in, stage_out: copies of operands and results in faster memory."""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.arith.affine import Linear
from tensorir.arith.box import Side
from tensorir.arith.conditions import conjunction
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.habits import meant
from tensorir.errors.needs import need_bool, need_int, need_ints, need_text
from tensorir.ir.build import as_expr, as_int, binary, const, select
from tensorir.ir.dims import dims_in, most, most_of
from tensorir.ir.layout import whole_blocks
from tensorir.ir.tree import Axis, Buffer, Expr, Iter, Kind, Load, Loop, Program, Scope, Stage, Stmt, Store, Var
from tensorir.ir.visit import find, replace, sequence, substitute, swap_buffers, writes
from tensorir.schedule.analysis import (
    Index,
    caret,
    context,
    index_of,
    need_room,
    reopens,
    stages_reading,
    stages_writing,
    statements,
    unique,
)
from tensorir.schedule.history import H, Name, Scheduled
from tensorir.schedule.primitives.buffers import layout_of, need_map
from tensorir.schedule.primitives.loops import LANES
from tensorir.schedule.primitives.once import need_run
from tensorir.schedule.primitives.placement import carried, tile_nest
from tensorir.schedule.primitives.reopen import closing, continues, numbered, opening, pieces_around
from tensorir.schedule.primitives.tile_copies import need_mechanism, tile_copies
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import (
    Rewrite,
    accesses_to,
    box_nest,
    footprint,
    nest,
    place_after,
    place_at_root,
    place_before,
    swap,
    where_gathered,
    with_body,
    written_index,
)  # fmt: skip
from tensorir.target import Target

STAGING = {s.value: s for s in (Scope.SHARED, Scope.WARP, Scope.REGISTER, Scope.GLOBAL)}


@primitive("Copies and memory", moves=True)
def stage_in(self: Scheduled[H], tensor: Name, at: Name = "root", scope: str = "shared", vector: int | None = None,
             pad: int = 0, order: Sequence[int] | None = None, cooperative: bool = True, run: str = "each",
             layout: str | None = None, via: str = "threads") -> H:  # fmt: skip
    """Copy what one iteration of ``at`` reads of ``tensor``, and read the copy there; returns the copying stage.

    at:     a loop, or "root" (a kernel of its own that copies everything, scope="global" only)
    scope:  "shared" (distributed to the threads of the block unless cooperative=False), "register", "warp" (registers
            of a warp, in the order that its instructions want) or "global"
    vector: lanes of the copy along the last dimension; 1 as None for one element at a time
    pad:    spare elements per row of the copy;  order: storage order of its dimensions, outermost first
    layout: where the copy keeps what, as an index map: "k, j -> j/16, k, j%16" (see ``buffers.layout``)
    run:    "each": with every launch;  "once": a copy of an input at the root may be made ahead of time, when the
            input is bound (``bind``, ``time``) or fixed (``prepack``)
    via:    "threads", or "tma": one thread issues asynchronous copies of whole tiles (sm_90, ``pipeline`` with
            roles)
    """
    history = self._history
    buffer, loop = history._buffer(tensor), self._place(at)
    need_text("scope", scope, ScheduleError)
    need_bool("cooperative", cooperative, ScheduleError)
    vector = None if vector is None else need_int("vector", vector, error=ScheduleError)
    order = None if order is None else need_ints("order", order, ScheduleError)
    how = {"vector": vector, "pad": pad, "order": order, "cooperative": cooperative, "run": run,
           "layout": need_map(layout), "via": need_text("via", via, ScheduleError)}  # fmt: skip
    out = history._apply(
        "stage_in", (buffer, loop or at, scope), how,
        lambda p: _stage_in(p, buffer, loop, scope, vector, pad, order, cooperative, run, layout, via, history.target),
    )  # fmt: skip
    return history._handle(out[0])


def _stage_in(program: Program, buffer: Buffer, at: Loop | None, scope: str, vector: int | None = None,
             pad: int = 0, order: Sequence[int] | None = None, cooperative: bool = True,
             run: str = "each", layout: str | None = None, via: str = "threads", target: Target | None = None,
             ) -> Rewrite:  # fmt: skip
    kind = _scope(scope)
    tiles = need_mechanism(via, "stage-in")
    index = index_of(program)
    _need_source(index, buffer, at, kind)
    once = need_run(index, buffer, at, run)
    name = unique(f"{buffer.name}_{scope}", index.names())
    place = layout_of(buffer, layout, pad, order, kind)
    # readers of packed blocks may overshoot as far as the blocks go: the copy has zeros there
    shape = whole_blocks(buffer.shape, place) if at is None else buffer.shape
    copy = Buffer(name, shape, buffer.dtype, kind, place, once=once)
    deal = Kind.COOPERATIVE if kind is Scope.SHARED and cooperative else Kind.SERIAL
    made = _copy_nest(index, buffer, copy, at, deal)
    if tiles and target is not None:
        made = tile_copies(made, buffer, copy, target, "stage-in")
    elif vector is not None:
        made = _vector_copy(made, vector, f"{name}.ax{len(buffer.shape) - 1}", "stage-in")
    if at is None:  # the statement that makes the buffer keeps making it
        parts = statements(program.body)
        body = sequence([x if stages_writing(x, buffer) else swap_buffers(x, {buffer: copy}) for x in parts])
        return Rewrite(place_at_root(with_body(program, body), made, before=stages_reading(body, copy)), (name,))
    loop = swap_buffers(at, {buffer: copy})
    return Rewrite(swap(program, at, place_before(loop, made, stages_reading(loop, copy))), (name,))


def _need_source(index: Index, buffer: Buffer, at: Loop | None, kind: Scope) -> None:
    """Raise ScheduleError for a copy that is unread, invisible to its readers, or made before its source."""
    body = index.program.body
    where: Stmt = body if at is None else at
    if not stages_reading(where, buffer):
        read = ", ".join(sorted({n.buffer.name for n in find(where, Load)})) or "nothing"
        raise ScheduleError(
            Problem("stage-in.not-read", f"{buffer.name} is not read inside {_place(at)}", hint=f"read there: {read}")
        )
    if pieces := [r for r in stages_reading(where, buffer) if reopens(r)]:
        raise ScheduleError(
            Problem(
                "stage-in.ordered",
                f"{pieces[0].name} reads {buffer.name} only after the first piece of a reduction: before that a copy "
                "would read what nobody has written",
                at=caret(pieces[0]),
                hint="undo the stage_out inside the reduction, and stage_out outside of it first: that copy is near",
            )
        )
    if at is not None:
        need_room(index, at, "stage-in")
        if stages_writing(at, buffer):
            raise ScheduleError(
                Problem("stage-in.written", f"{buffer.name} is written inside {at.var.name} as well", at=caret(at))
            )
        return
    if kind is not Scope.GLOBAL:
        raise ScheduleError(
            Problem(
                "stage-in.root-scope",
                f"a copy at the root is shared by all blocks: scope={kind.value!r} cannot hold it",
                hint="scope='global', or at=<a loop>",
            )
        )
    if both := [x for x in statements(body) if stages_reading(x, buffer) and stages_writing(x, buffer)]:
        raise ScheduleError(
            Problem(
                "stage-in.written",
                f"{buffer.name} is made in the nest that reads it: no copy at the root could hold it",
                at=caret(stages_writing(both[0], buffer)[0]),
                hint="at=<a loop after its producer>",
            )
        )


def _copy_nest(index: Index, buffer: Buffer, copy: Buffer, at: Loop | None, deal: Kind) -> Stmt:
    """Loop nest that copies to ``copy`` the box of ``buffer`` read in one iteration of ``at``; all of it for None.

    Zeros, or False, past the extents of ``buffer``. deal: kind of the loops
    """
    shape = most_of(copy)
    sides = [Side(Linear({}, 0), n) for n in shape]
    if at is not None:
        sides = footprint(index, accesses_to(at, buffer), at, copy.scope, shape)
    axes = tuple(Var(f"ax{d}", "index") for d in range(len(shape)))
    iters = tuple(Iter(v, n, Axis.SPATIAL) for v, n in zip(axes, copy.shape, strict=True))
    there = conjunction(
        binary("<", v, n) for v, n, m in zip(axes, buffer.shape, copy.shape, strict=True) if _shorter(n, m)
    )
    value = select(there, Load(buffer, axes, buffer.dtype), const(False if buffer.dtype == "bool" else 0, buffer.dtype))
    stage = Stage(copy.name, iters, (), Store(copy, axes, value))
    made = box_nest(stage, sides, [f"{copy.name}.{v.name}" for v in axes], deal)
    if at is not None and (limits := _limits(index, buffer, at, find(made, Stage)[0], sides)):
        made = replace(made, {s: s.replace(guards=limits) for s in find(made, Stage)})
    return made


def _shorter(n: Expr, m: Expr) -> bool:
    """True if extent ``n`` may be less than ``m`` at launch."""
    return n is not m and (bool(dims_in(n)) or as_int(n) < as_int(m))


def _limits(index: Index, buffer: Buffer, at: Loop, copy: Stage, sides: list[Side]) -> tuple[Expr, ...]:
    """Conditions under which the copied elements exist, if a stage in the same kernel computes them: its own guards and
    box.

    As ``expression < constant``, like split guards.
    """
    around = [*index.above(at), at]
    out = where_gathered(stages_reading(at, buffer), sides)
    makers = stages_writing(around[0], buffer)
    for w in makers if len(makers) == 1 else ():
        common = [x for x in index.above(w) if x in around]
        arith = context(index, at, inside=True)
        boxes = footprint(index, [(w, written_index(w))], common[-1], buffer.scope, most_of(buffer))
        axes = tuple(it.var for it in copy.iters)
        tails = carried(
            index, copy, w, written_index(w), axes, dict(zip(axes, boxes, strict=True)), common[-1], "stage-in"
        )
        tile = {v: binary("-", i, b.first.expr()) for v, i, b in zip(axes, copy.binds, boxes, strict=True)}
        out += [substitute(g, tile) for g in tails]
        for bind, mine, box in zip(copy.binds, sides, boxes, strict=True):
            low, high = arith.range_of(mine.first.plus(box.first, -1))
            if low < 0:
                out.append(binary("<", binary("-", box.first.expr(), bind), 1))
            if high + mine.extent > box.extent:
                out.append(binary("<", binary("-", bind, box.first.expr()), box.extent))
    return tuple(out)


def _vector_copy(made: Stmt, lanes: int, last: str, primitive: str) -> Stmt:
    """Split the innermost copy loop by ``lanes`` and vectorize it; unchanged for 1."""
    loop = next(x for x in find(made, Loop) if x.var.name == last)
    extent = as_int(loop.extent)
    if lanes == 1:
        return made
    if lanes not in LANES or extent % lanes:
        why = f"vector={lanes} does not divide the {extent} elements of a row of the copy ({last})"
        if lanes not in LANES:
            why = f"vectors have {', '.join(map(str, LANES))} lanes, not {lanes}"
        hint = f"vector={next((n for n in reversed(LANES) if extent % n == 0), 1)}"
        raise ScheduleError(Problem(f"{primitive}.vector", why, hint=hint))
    outer, inner = Var(f"{last}.0", "index"), Var(f"{last}.1", "index")

    body = substitute(loop.body, {loop.var: outer * lanes + inner})
    vec = Loop(inner, as_expr(lanes), body, Kind.VECTOR)
    return replace(made, {loop: Loop(outer, as_expr(extent // lanes), vec, loop.kind)})


@primitive("Copies and memory", moves=True)
def stage_out(self: Scheduled[H], stage: Name, at: Name = "root", scope: str = "register", layout: str | None = None,
              via: str = "threads", vector: int | None = None) -> H:  # fmt: skip
    """Let a stage compute into a copy, written out once per iteration of ``at``; returns the copying stage.

    The computing stage keeps its name and loops; the copying one is called ``<stage>.out``.
    at:     a loop around the stage, or "root" (a nest of its own). Inside a loop of the stage's reduction
            the copy is opened again: ``<stage>.init`` starts it from the initial value in the first piece of the
            reduction and from what the piece before wrote out in all others
    scope:  memory of the copy: "register", "shared", "warp" or "global"
    layout: where the copy keeps what, as an index map (see ``buffers.layout``)
    via:    "threads", or "tma": a copy in shared memory leaves in whole tiles, asynchronously (sm_90)
    vector: lanes along the last dimension with which all threads of the block write a copy in shared memory out
    """
    history = self._history
    found, loop = history._stage(stage), self._place(at)
    need_text("scope", scope, ScheduleError)
    lanes = None if vector is None else need_int("vector", vector, error=ScheduleError)
    how = {"layout": need_map(layout), "via": need_text("via", via, ScheduleError), "vector": lanes}
    out = history._apply("stage_out", (found, loop or at, scope), how,
                         lambda p: _stage_out(p, found, loop, scope, layout, via, history.target, lanes))  # fmt: skip
    return history._handle(out[0])


def _stage_out(program: Program, stage: Stage, at: Loop | None, scope: str, layout: str | None = None,
              via: str = "threads", target: Target | None = None, vector: int | None = None) -> Rewrite:  # fmt: skip
    kind, tiles = _scope(scope), need_mechanism(via, "stage-out")
    index = index_of(program)
    buffer = _one_output(index, stage, at)
    taken = index.names()
    name, place = unique(f"{buffer.name}_{scope}", taken), layout_of(buffer, layout, scope=kind)
    local = Buffer(name, buffer.shape, buffer.dtype, kind, place, once=buffer.once)
    out_name = unique(f"{stage.name}.out", taken)
    axes = tuple(_axis_of(n, stage) for n in written_index(stage))
    iters = tuple(Iter(v, n, Axis.SPATIAL) for v, n in zip(axes, buffer.shape, strict=True))
    repeats = any(x.repeats for x in find(stage.body, Store))
    copy = Stage(out_name, iters, axes, Store(buffer, axes, Load(local, axes, buffer.dtype), repeats))
    pieces = pieces_around(index, stage, at)
    piece = numbered(stage, pieces) if pieces else None
    inner = stage.replace(body=swap_buffers(stage.body, {buffer: local}),
                          init=None if piece else stage.init and swap_buffers(stage.init, {buffer: local}))  # fmt: skip
    moved = swap(program, stage, inner)
    fresh = Index(moved)
    new_stage = fresh.stages[stage.name]
    if at is None:
        loops = [
            Loop(Var(f"{out_name}.{v.name}", "index"), as_expr(most(n)), copy)
            for v, n in zip(axes, buffer.shape, strict=True)
        ]
        body = nest(loops, copy.replace(binds=tuple(x.var for x in loops)))
        _precedes_readers(moved.body, new_stage, buffer, at)
        return Rewrite(place_at_root(moved, body, after=[new_stage]), (out_name,))
    loop = fresh.loops[at.var.name]
    need_room(fresh, loop, "stage-out")
    _precedes_readers(loop.body, new_stage, buffer, at)
    made = tile_nest(fresh, copy, [new_stage], loop, "stage-out", partial=piece is not None)
    if tiles and target is not None:
        made = tile_copies(made, buffer, local, target, "stage-out")
    elif vector is not None:
        made = _dealt_out(made, kind, vector)
    around = place_after(loop, made if piece is None else closing(made, piece), [new_stage])
    if piece is not None:
        around = place_before(around, opening(index, stage, at, piece, buffer, local), [new_stage])
    return Rewrite(swap(moved, loop, around), (out_name,))


def _dealt_out(made: Stmt, kind: Scope, vector: int) -> Stmt:
    """Copy nest ``made`` with its loops distributed to the block's threads and its rows in vectors of ``vector``
    elements; raises ScheduleError unless the copy is in shared memory.
    """
    if kind is not Scope.SHARED:
        message = f"each thread writes its own copy in {kind.value} memory out"
        raise ScheduleError(Problem("stage-out.vector", message, hint="scope='shared', or vectorize the copy's loop"))
    loops = find(made, Loop)
    made = replace(made, {loops[-1]: loops[-1].replace(kind=Kind.COOPERATIVE)})
    for x in reversed(loops[:-1]):
        at = next(y for y in find(made, Loop) if y.var is x.var)
        made = replace(made, {at: at.replace(kind=Kind.COOPERATIVE)})
    return _vector_copy(made, vector, loops[-1].var.name, "stage-out")


def _one_output(index: Index, stage: Stage, at: Loop | None) -> Buffer:
    """The buffer that ``stage`` alone writes inside ``at``; raises if there are other writers."""
    if at is not None and at not in index.above(stage):
        raise ScheduleError(
            Problem(
                "stage-out.encloses",
                f"{at.var.name} is not a loop around {stage.name}",
                at=caret(at),
                hint=f"one of {', '.join(x.var.name for x in index.above(stage))}",
            )
        )
    buffers = writes(stage.body)
    if len(buffers) != 1:
        raise ScheduleError(
            Problem(
                "stage-out.one-buffer",
                f"{stage.name} writes {len(buffers)} buffers; stage_out takes stages that write one",
                at=caret(stage),
            )
        )
    if not _makes_its_own(index, stage, buffers[0], at):
        raise ScheduleError(
            Problem("stage-out.several-writers", f"{buffers[0].name} is written by several stages", at=caret(stage))
        )
    if reopens(stage):
        raise ScheduleError(
            Problem(
                "stage-out.ordered",
                f"{stage.name} closes a copy that is opened again in each piece of a reduction",
                at=caret(stage),
                hint="stage_out the sums at a loop outside the reduction first, then inside it",
            )
        )
    return buffers[0]


def _makes_its_own(index: Index, stage: Stage, buffer: Buffer, at: Loop | None) -> bool:
    """True if other writers of the buffer write other elements, in other kernels, or earlier pieces."""
    others = [w for w in stages_writing(index.program.body, buffer) if w is not stage]
    if not others or (at is not None and continues(index, stage, at, others)):
        return True
    starts = stage.init is not None or isinstance(stage.body, Store)
    return at is not None and starts and all(index.root_of(w) is not index.root_of(stage) for w in others)


def _precedes_readers(body: Stmt, stage: Stage, buffer: Buffer, at: Loop | None) -> None:
    """Raise ScheduleError if the top-level statement (of ``body``) that contains ``stage`` also has readers of
    ``buffer``: the copy out of it follows that statement.
    """
    holder = next(x for x in statements(body) if stage in find(x, Stage))
    if readers := stages_reading(holder, buffer):
        raise ScheduleError(
            Problem(
                "stage-out.read-before",
                f"{readers[0].name} reads {buffer.name} inside {_place(at)} before the copy would be written out",
                at=caret(stage),
                hint=f"stage_out further in, or compute_at {stage.name} elsewhere first",
            )
        )


def _axis_of(e: object, stage: Stage) -> Var:
    if isinstance(e, Var):
        return Var(e.name, "index")
    raise ScheduleError(Problem("stage-out.index", f"{stage.name} writes at a computed index", at=caret(stage)))


def _scope(scope: str) -> Scope:
    if scope in STAGING:
        return STAGING[scope]
    raise ScheduleError(
        Problem("scope.unknown", f"there is no scope {scope} to stage in", hint=meant("scope", scope, STAGING))
    )


def _place(at: Loop | None) -> str:
    return "the program" if at is None else at.var.name
