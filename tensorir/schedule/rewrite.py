"""``Rewrite``, the result of a primitive, and tree edits shared by primitives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tensorir.arith.affine import Arith, Interval, Linear, same
from tensorir.arith.box import Side, side_of, tiles, union
from tensorir.errors import Problem, ScheduleError
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import as_expr, as_int, binary, cast
from tensorir.ir.dims import dims_in, most, most_of
from tensorir.ir.dtypes import WIDENED
from tensorir.ir.marks import Partition
from tensorir.ir.places import Rewritten
from tensorir.ir.structure import among
from tensorir.ir.tree import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Kind,
    Load,
    Loop,
    Program,
    Scope,
    Select,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)
from tensorir.ir.visit import Rewriter, find, has, reads, replace, sequence, substitute, swap_buffers, uses, writes
from tensorir.schedule.analysis import Index, in_loops, index_of, ranges, shares, stages_of, statements, users


@dataclass(frozen=True, eq=False)
class Declared:
    """The tensors that a program computes, after ``redeclare``.

    error: bound on the additional rounding error relative to the largest result; None: none
    exact: true if the algorithm is equivalent in exact arithmetic
    """

    outputs: tuple[Tensor, ...]
    error: float | None = None
    exact: bool = False


@dataclass(frozen=True)
class Rewrite:
    """Result of a primitive: the rewritten program, and names made and removed.

    new:  names of the created loops (or the stage), in the order returned to the user
    gone: removed names, each with an explanation for later error messages
    declared: outputs now computed, if replaced by another declaration
    """

    program: Program
    new: tuple[str, ...] = ()
    gone: Mapping[str, str] = field(default_factory=dict)
    declared: Declared | None = None


def with_body(program: Program, body: Stmt) -> Program:
    """``program`` with ``body`` as its tree."""
    return program.replace(body=body)


def in_users(program: Program, buffers: Iterable[Buffer], f: Callable[[Stmt], Stmt]) -> Program:
    """``program`` with ``f`` applied to each kernel that accesses one of ``buffers``."""
    mine = set(users(program.body, buffers))
    return with_body(program, sequence([f(s) if s in mine else s for s in statements(program.body)]))


def with_buffers(program: Program, new: Mapping[Buffer, Buffer]) -> Program:
    """``program`` with buffers replaced as in ``new``."""
    return in_users(program, new, lambda s: swap_buffers(s, new))


def swap(program: Program, old: Stmt, new: Stmt | None) -> Program:
    """``program`` with statement ``old`` replaced by ``new``; None removes it and loops left empty."""
    index = index_of(program)
    gone = old
    if new is None:
        for above in reversed(index.paths[old]):
            if isinstance(above, Seq):
                break
            gone = above
    if old not in index.paths or isinstance(old, Seq):
        return with_body(program, replace(program.body, {gone: new}))
    top = index.root_of(gone)
    tops = [replace(s, {gone: new}) if s is top else s for s in statements(program.body)]
    return with_body(program, sequence(tops))


def nest(loops: Iterable[Loop], body: Stmt) -> Stmt:
    """``body`` nested in ``loops``, outermost first; the loops' old bodies are ignored."""
    for x in reversed(list(loops)):
        body = x.replace(body=body)
    return body


def footprint(index: Index, accesses: Iterable[tuple[Stage, tuple[Expr, ...]]], at: Loop | None, scope: Scope,
              shape: tuple[int, ...]) -> list[Side]:  # fmt: skip
    """Per dimension, the interval of indices that ``accesses`` touch during one iteration of ``at`` (None: the whole
    program).

    For shared memory, it is that of all threads of the block together. A dimension without a constant bound is taken
    whole.
    """
    boxes: list[list[Side | None]] = [[] for _ in shape]
    arith = Arith(ranges(index.loops.values()))
    for x in [] if at is None else [*index.above(at), at]:
        if (
            as_int(x.extent) == 1 and x.kind is Kind.SERIAL
        ):  # it stays in the index: a later split may make it overshoot
            arith.ranges[x.var] = (0, 1)
    for stage, where in accesses:
        above = index.above(stage)
        inner = above if at is None else index.between(at, stage)
        still = [] if at is None else [x for x in above if x not in inner and shares(scope, x)]
        moving: dict[Var, Interval] = ranges([*inner, *still])
        # each part of a cut loop gets a body in which these guards are decided, so that the box may rely on them: tiles
        # of two sizes reach no further than the loop that they were cut from
        cut = {x.var for x in above if Partition.of(x).at}
        known = arith.child(assume=[g for g in stage.guards if uses(g, cut)]) if cut else arith
        for d, i in enumerate(where):
            boxes[d].append(side_of(in_loops(i, stage), known, moving))
    out = []
    for sides, n in zip(boxes, shape, strict=True):
        box = union(sides)
        # a box that overhangs a ragged tensor keeps its size: the copy fills the rest, so that no reader needs a guard
        out.append(Side(arith.linear(as_expr(0)), n) if box is None else box)
    return out


def shared_by(index: Index, stage: Stage, loop: Loop, buffer: Buffer) -> bool:
    """True if each element of an array that ``stage`` writes is provably written in exactly one iteration of ``loop``
    and the loops around it, but for elements that the stage's guards leave out.
    """
    around = [*index.above(loop), loop]
    if not all(isinstance(x.extent, Const) for x in index.above(stage)):
        return False
    inside = ranges(index.between(loop, stage))
    arith = Arith({**ranges(around), **inside})
    sides = [side_of(in_loops(i, stage), arith, inside) for i in written_index(stage)]
    extents = {x.var: as_int(x.extent) for x in around}
    plain = all(isinstance(x, Loop | Seq) for x in index.paths[loop])
    return plain and None not in sides and tiles([s for s in sides if s], most_of(buffer), extents)


def where_gathered(readers: Sequence[Stage], sides: Iterable[Side]) -> list[Expr]:
    """Guards and launch-time ends common to all readers on the axes of a loaded index that locates a box: only where
    they hold does the box exist. [] if no box is located by a loaded index.
    """
    gathers = [x for side in sides for term in side.first.terms for x in find(term, Load)]
    axes = {v for x in gathers for v in find(x, Var)}
    shared = [g for g in readers[0].guards if set(find(g, Var)) <= axes and all(among(g, r.guards) for r in readers)]
    ends = (
        [g for g in ends_at_dims(readers[0]) if {v for v in find(g, Var) if v.bounds is None} <= axes] if axes else []
    )
    return [*shared, *(g for g in ends if all(any(same(g, h) for h in ends_at_dims(r)) for r in readers))]


def ends_at_dims(stage: Stage) -> list[Expr]:
    """Conditions ``loop expression < extent`` for the axes of a stage whose extents are known only at launch."""
    return [binary("<", b, it.extent) for it, b in zip(stage.iters, stage.binds, strict=True) if dims_in(it.extent)]


def place_before(loop: Loop, nest_: Stmt, readers: Iterable[Stage]) -> Loop:
    """``loop`` with ``nest_`` inserted before the first statement that contains one of ``readers``."""
    wanted = set(readers)
    stmts = list(statements(loop.body))
    for n, s in enumerate(stmts):
        if any(x in wanted for x in stages_of(s)):
            return loop.replace(body=sequence([*stmts[:n], nest_, *stmts[n:]]))
    raise AssertionError("no reader inside the loop")


def place_after(loop: Loop, nest_: Stmt, writers: Iterable[Stage]) -> Loop:
    """``loop`` with ``nest_`` inserted after the last statement that contains one of ``writers``."""
    wanted = set(writers)
    stmts = list(statements(loop.body))
    last = max(n for n, s in enumerate(stmts) if any(x in wanted for x in stages_of(s)))
    return loop.replace(body=sequence([*stmts[: last + 1], nest_, *stmts[last + 1 :]]))


def place_at_root(program: Program, nest_: Stmt, before: Iterable[Stage] = (), after: Iterable[Stage] = ()) -> Program:
    """``program`` with a new top-level nest before the first of ``before``, or after the last of ``after``."""
    whole = Loop(Var("", "index"), as_expr(1), program.body)
    done = place_before(whole, nest_, before) if before else place_after(whole, nest_, after)
    return with_body(program, done.body)


def box_nest(stage: Stage, sides: Iterable[Side], names: Iterable[str], kind: Kind = Kind.SERIAL) -> Stmt:
    """``stage``, without its guards, in a new loop nest over the box ``sides`` of its spatial axes and the whole of its
    other axes.

    names: of the loops, one per axis;  kind: of the loops over spatial axes; others are serial
    """
    loops: list[Loop] = []
    binds: list[Expr] = []
    boxes = iter(sides)
    for it, name in zip(stage.iters, names, strict=True):
        var = Var(name, "index")
        if it.axis is Axis.SPATIAL:
            side = next(boxes)
            loops.append(Loop(var, as_expr(side.extent), stage, kind))
            binds.append(binary("+", side.first.expr(), var))
        else:
            loops.append(Loop(var, as_expr(most(it.extent)), stage))
            binds.append(var)
    return nest(loops, stage.replace(binds=tuple(binds), guards=()))


def shared_out(nest_: Stmt, as_in: Stmt) -> Stmt:
    """``nest_`` with those loops distributed to the block's threads that are so, by name, in nest ``as_in``."""
    dealt = {x.var.name for x in find(as_in, Loop) if x.kind is Kind.COOPERATIVE}
    for name in dealt:
        loop = next(x for x in find(nest_, Loop) if x.var.name == name)
        nest_ = replace(nest_, {loop: loop.replace(kind=Kind.COOPERATIVE)})
    return nest_


def own_nest(index: Index, stage: Stage, primitive: str, tails: bool = False, dealt: bool = True) -> Stmt:
    """The nest of ``stage`` as it was declared, by its outermost loop; ``stage`` itself without loops. Other stages may
    be in it: callers check. Raises ScheduleError ``<primitive>.scheduled`` if its loops were split, fused or bound.

    tails: it may have guards expressible in its axes (``tails_of``)
    dealt: its iterations may be distributed to the block's threads
    """
    top: Stmt = stage
    made = {f"{stage.name}.{label}" for label in axis_labels(stage)}
    made |= {x.var.name for x in _walks(index, stage) if _named_after(index, stage, x)}
    for above in reversed(
        index.above(stage)
    ):  # through a Seq too: other stages in these loops are the caller's to refuse
        if above.var.name not in made:
            if _named_after(index, stage, above):
                raise ScheduleError(
                    Problem(
                        f"{primitive}.scheduled",
                        f"the loops of {stage.name} have been scheduled already ({above.var.name})",
                        hint=f"call {primitive.replace('-', '_')} before "
                        f"splitting or binding the loops of {stage.name}",
                    )
                )
            break
        top = above
    legal = (Kind.SERIAL, Kind.COOPERATIVE) if dealt else (Kind.SERIAL,)
    kinds = [x for x in find(top, Loop) if x.kind not in legal]
    if kinds or (stage.guards and (not tails or tails_of(index, stage, top) is None)):
        what = kinds[0].var.name if kinds else stage.name
        raise ScheduleError(Problem(
            f"{primitive}.scheduled", f"the loops of {stage.name} have been scheduled already ({what})",
            hint=f"call {primitive.replace('-', '_')} before splitting or binding the loops of {stage.name}",
        ))  # fmt: skip
    return top


def _named_after(index: Index, stage: Stage, loop: Loop) -> bool:
    """True if a loop is named after ``stage``, not after a stage with a longer name (``C`` and ``C.out``)."""
    prefix, name = f"{stage.name}.", loop.var.name
    longer = (other for other in index.stages if other.startswith(prefix))
    return name.startswith(prefix) and not any(name.startswith(f"{other}.") for other in longer)


def _walks(index: Index, stage: Stage) -> dict[Loop, Var]:
    """{loop: axis} of loops that iterate one whole axis of the stage each."""
    axes = {b: it for it, b in zip(stage.iters, stage.binds, strict=True) if isinstance(b, Var)}
    loops = [x for x in index.above(stage) if x.var in axes]
    return {x: axes[x.var].var for x in loops if as_int(x.extent) == most(axes[x.var].extent)}


def tails_of(index: Index, stage: Stage, top: Stmt) -> tuple[Expr, ...] | None:
    """Guards of a stage in terms of its axes and the loops outside its nest ``top``; () if it has none, None if
    impossible.

    They come from ``rfactor`` (the last partial results have fewer terms) or from placing a stage twice
    (``compute_at``).
    """
    walks, around = _walks(index, stage), {x.var for x in index.above(top)}
    axes: dict[Var, Expr] = {x.var: v for x, v in walks.items()}
    arith = Arith(ranges(index.above(stage)))
    for it, bind in zip(stage.iters, stage.binds, strict=True):
        form = arith.linear(bind)
        own = [t for t in form.terms if not set(find(t, Var)) <= around]
        if len(own) == 1 and isinstance(own[0], Var) and form.terms[own[0]] == 1:
            axes.setdefault(own[0], Linear({it.var: 1}, 0).plus(form, -1).plus(Linear({own[0]: 1}, 0)).expr())
    if any(v not in axes and v not in around and v.bounds is None for g in stage.guards for v in find(g, Var)):
        return None
    return tuple(substitute(g, dict(axes)) for g in stage.guards)


def axis_labels(stage: Stage) -> list[str]:
    """Loop names of a stage's default nest without the stage's name: axis names, made distinct by ``_1`` …."""
    out: list[str] = []
    for it in stage.iters:
        label, n = it.var.name, 1
        while label in out:
            label, n = f"{it.var.name}_{n}", n + 1
        out.append(label)
    return out


def written_index(stage: Stage) -> tuple[Expr, ...]:
    """Index at which the stage stores its results, the same for all its stores."""
    found: list[Store] | list[Update] = find(stage.body, Store)
    if not found:
        found = find(stage.body, Update)
    if not found:
        raise AssertionError(f"stage {stage.name} writes nothing")
    return found[0].index


def results_of(stage: Stage) -> list[Buffer]:
    """Buffers that the stage writes for others, without states carried by a scan."""
    carried = reads(stage.body) if has(stage.body, Update) else ()
    return [b for b in writes(stage.body) if b not in carried]


def accesses_to(root: Stmt, buffer: Buffer) -> list[tuple[Stage, tuple[Expr, ...]]]:
    """(stage, index) of every read of ``buffer`` under ``root``."""
    return [(s, n.index) for s in find(root, Stage) for n in find(s, Load) if n.buffer is buffer]


class InPlace(Rewriter):
    """Rewriter: replace loads of an array by the expressions stored to it. Narrow floats are rounded in between if
    converted or compared, as the store did, since they are computed in float32.
    """

    rounds = False
    """True when digits that the array did not have would be seen."""

    def on_Cast(self, n: Cast) -> Expr:
        a = self._seen(n.a, n.a.dtype in WIDENED)
        return n if a is n.a else cast(a, n.dtype)

    def on_Binary(self, n: Binary) -> Expr:
        if n.dtype != "bool" or n.a.dtype not in WIDENED:
            return self.children(n)
        a, b = self._seen(n.a), self._seen(n.b)
        return n if a is n.a and b is n.b else Binary(n.op, a, b, n.dtype)

    def _seen(self, e: Expr, rounds: bool = True) -> Expr:
        if rounds == self.rounds or self.memo is None:
            return self(e)  # type: ignore[no-any-return]
        other = self.memo.sides.get("other")
        if other is None:  # what is rewritten for one kind of reader is not for the other
            other = self.memo.sides["other"] = copy.copy(self)
            other.rounds, other.memo = rounds, Rewritten(self.memo.root, level=self.memo.level)
            other.memo.sides["other"] = self
        return other(e)  # type: ignore[no-any-return]

    def once(self, key: object, made: Callable[[], Expr]) -> Expr:
        """Expression made by ``made``, memoized by ``key`` within a statement, so that equal reads share one object."""
        kept = self.memo.sides if self.memo is not None else {}
        if key not in kept:
            kept[key] = made()
        return kept[key]  # type: ignore[no-any-return]

    def put(self, value: Expr) -> Expr:
        """``value``, which replaces a load; rounded to its type if that is narrow and the value is computed (in
        float32).
        """
        narrow = self.rounds and value.dtype in WIDENED and _computed(value)
        return Cast(Cast(value, "float32"), value.dtype) if narrow else value


def _computed(e: Expr) -> bool:
    """True if the value may have more precision than its type."""
    if isinstance(e, Select):
        return _computed(e.a) or _computed(e.b)
    if isinstance(e, Binary) and e.op in ("min", "max"):
        return _computed(e.a) or _computed(e.b)
    return not isinstance(e, Load | Const | Cast)
