"""Stores the result of a reindexed stage under the new axes, which become the stage's own axes.

Afterwards the stage is as if declared with the new axes, so tiles and accumulators are boxes of them. Readers are
rewritten; an output of the program is copied from the new array by a separate stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorir.arith.affine import Arith, same
from tensorir.arith.conditions import conjunction, conjuncts, weakest
from tensorir.ir.build import as_expr, binary, cast, const, select
from tensorir.ir.dims import most
from tensorir.ir.structure import among
from tensorir.ir.tree import (
    Axis,
    Buffer,
    Cast,
    Const,
    Expr,
    Iter,
    Load,
    Loop,
    Program,
    Scope,
    Select,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)
from tensorir.ir.visit import Rewriter, find, has, substitute, writes
from tensorir.schedule.analysis import Index, stages_writing, unique, users
from tensorir.schedule.primitives.reindex_view import Bijection
from tensorir.schedule.primitives.reindex_zeros import made_up
from tensorir.schedule.rewrite import nest, place_at_root, swap, written_index


@dataclass(frozen=True, eq=False)
class Domain:
    """The new axes that a view gives to a stage.

    stage:   before the view
    loops:   old axes of the view, as loop variables
    view:    new axes in terms of old ones
    axes:    new axes by name, as loop variables with extents
    reduced: names of the reduced new axes
    tails:   conditions on ``axes`` for iterations to count
    kept:    new axes, or parts of them, that index the stored result
    zeros:   packed operands, 0 where iterations do not count
    """

    stage: Stage
    loops: Sequence[Var]
    view: Bijection
    axes: Mapping[str, tuple[Var, int]]
    reduced: frozenset[str]
    tails: Sequence[Expr]
    kept: Bijection
    zeros: frozenset[Buffer]

    @cached_property
    def own(self) -> Mapping[str, Var]:
        """New spatial and reduce axes of the stage, by name."""
        return {name: Var(name, "index") for name in self.axes}


def unfit(d: Domain, program: Program, nested: Stage) -> str:
    """Reason why the result of stage ``nested`` cannot be stored under the new axes; "" if it can."""
    walked = [b for b in d.stage.binds if among(b, d.loops)]
    if len(walked) < len(d.stage.iters):
        left = next(it for it, b in zip(d.stage.iters, d.stage.binds, strict=True) if not among(b, d.loops))
        return f"{left.var.name} is not among the axes of the view, or is a part there: name all axes, each whole"
    if len(set(d.loops)) > len(walked):
        return f"other stages than {d.stage.name} run in its loops"
    made = writes(d.stage.body)
    for b in made:
        if any(w is not nested for w in stages_writing(program.body, b)):
            return f"{b.name} is written by several stages"
        if b.layout is not None:
            return f"{b.name} has a layout: writes= first, layout() of what is kept then"
    if any(not isinstance(i, Var) for i in written_index(d.stage)):
        return f"{d.stage.name} writes at a computed index"
    if d.stage.guards or d.stage.padded or d.stage.intrin is not None:
        return f"{d.stage.name} has been scheduled already"
    return ""


def kept_under(d: Domain, program: Program, nested: Stage, name: str | None, dtype: str | None) -> Program:
    """``program`` in which ``nested`` computes by the new axes and stores its result indexed by ``d.kept``.

    name: of the result's array; default: its own, or <output>_packed
    dtype: its type, if all readers convert to it
    """
    taken = Index(program).names()
    made = writes(d.stage.body)
    shape = tuple(as_expr(d.kept.size(c)) for c in d.kept.new)
    new: dict[Buffer, Buffer] = {}
    for b in made:
        output = b in program.outputs
        label = f"{b.name}_packed" if output else b.name
        label = unique(name if name and len(made) == 1 else label, taken if output else taken - {b.name})
        taken.add(label)
        new[b] = Buffer(label, shape, dtype or b.dtype, Scope.AUTO if output else b.scope, once=b.once)
    done = _with_readers(swap(program, nested, _domained(d, new)), d, new)
    for b in made:
        if b in program.outputs:
            done = _written_out(done, d, b, new[b])
    return done


def unconverted(program: Program, made: Sequence[Buffer]) -> list[Load]:
    """Reads of buffers ``made`` that remain because they are not converted to the stored type."""
    return [x for top in users(program.body, made) for x in find(top, Load, lambda x: x.buffer in made)]


def _domained(d: Domain, new: Mapping[Buffer, Buffer]) -> Stage:
    """Stage of ``d`` rewritten to iterate over the new axes. new: array -> array that replaces it."""
    back = dict(zip(d.loops, d.view.back(list(d.own.values())), strict=True))
    axis = {it.var: back[b] for it, b in zip(d.stage.iters, d.stage.binds, strict=True) if isinstance(b, Var)}
    at = tuple(d.kept.forward(c, [d.own[name] for name in d.kept.names]) for c in d.kept.new)
    there = {var: d.own[name] for name, (var, _) in d.axes.items()}
    conds = [substitute(cond, there) for cond in d.tails]
    iters = tuple(Iter(d.own[name], as_expr(extent), Axis.REDUCE if name in d.reduced else Axis.SPATIAL)
                  for name, (_, extent) in d.axes.items())  # fmt: skip
    again = _Again(axis, iters, new, at, conds, d.zeros)
    return d.stage.replace(
        iters=iters, binds=tuple(var for var, _ in d.axes.values()), body=again(d.stage.body),
        init=None if d.stage.init is None else again(d.stage.init), guards=())  # fmt: skip


class _Again(Rewriter):
    """Rewriter of a stage's body to the new axes: terms out of range become the identity, elements out of range become
    0 where their reads would not exist.
    """

    def __init__(self, axis: Mapping[Var, Expr], iters: Sequence[Iter], new: Mapping[Buffer, Buffer],
                 at: tuple[Expr, ...], conds: Sequence[Expr], zeros: frozenset[Buffer]) -> None:  # fmt: skip
        self.axis, self.new, self.at, self.conds, self.zeros = axis, new, at, conds, zeros
        self.arith, self.there = _whole(iters), Arith({it.var: (0, most(it.extent) - 1) for it in iters})
        self.reduced = {it.var for it in iters if it.axis is Axis.REDUCE}

    def on_Store(self, n: Store) -> Store:
        buffer, value = self.new.get(n.buffer, n.buffer), self._value(n.value)
        if isinstance(n.value, Const):  # an initial value is one wherever it stands
            return n.replace(buffer=buffer, index=self.at, value=value)
        zero = const(False if value.dtype == "bool" else 0, value.dtype)
        counted = value if self._exists(value) else self._counted(value, zero, self.conds)
        kept = counted if buffer.dtype == counted.dtype else cast(counted, buffer.dtype)
        return n.replace(buffer=buffer, index=self.at, value=kept)

    def on_Update(self, n: Update) -> Update:
        values = [self._value(v) for v in n.values]
        values = [self._counted(v, identity, self._needed(v, identity))
                  for v, identity in zip(values, n.combiner.identity, strict=True)]  # fmt: skip
        return n.replace(buffers=tuple(self.new.get(b, b) for b in n.buffers), index=self.at, values=tuple(values))

    def _exists(self, value: Expr) -> bool:
        """True if every read in ``value`` is in range for every element."""
        ends = (c for x in find(value, Load) for i, n in zip(x.index, x.buffer.shape, strict=True)
                for c in (binary("<=", 0, i), binary("<", i, n)))  # fmt: skip
        return all(map(self.there.proves, ends))

    def _value(self, e: Expr) -> Expr:
        return self.arith.simplify(substitute(e, self.axis))

    def _needed(self, value: Expr, identity: Const) -> list[Expr]:
        """Conditions of the view (``conds``) to keep on the term ``value``; [] if it needs none.

        All of them if a read may be out of range; else those on reduced axes beyond whose end the zeros of packed
        operands do not make ``value`` the ``identity``.
        """
        if not self._exists(value):
            return list(self.conds)
        about = ((cond, set(find(cond, Var))) for cond in self.conds)
        return [cond for cond, axes in about
                if axes & self.reduced and not made_up(value, identity, axes, self.zeros)]  # fmt: skip

    def _counted(self, value: Expr, other: Expr, conds: Sequence[Expr]) -> Expr:
        """``select(conds, value, other)``; if ``value`` is a select with the same ``other``, one select with the
        conditions of both.
        """
        wanted = list(conds)
        while wanted and isinstance(value, Select) and same(value.b, other) and not has(value.cond, Load):
            wanted, value = [*conjuncts(value.cond), *wanted], value.a
        return select(conjunction(weakest(wanted, self.arith)), value, other) if wanted else value


def _with_readers(program: Program, d: Domain, new: Mapping[Buffer, Buffer]) -> Program:
    """``program`` with readers redirected to the newly indexed result; outputs still unwritten."""
    for stage in (s for top in users(program.body, new) for s in find(top, Stage)):
        if any(x.buffer in new for x in find(stage.body, Load)):
            program = swap(program, stage, stage.replace(body=_Readers(d, new, _whole(stage.iters))(stage.body)))
    return program


def _whole(iters: Sequence[Iter]) -> Arith:
    """Facts about a stage's axes for computing where it reads; axes of one value are not folded away.

    Fused with other axes, such an axis is a quotient needed to rebuild the original index: i from i//28 * 28 + i%28.
    Tiles may overshoot to further values of it, which must stay distinct.
    """
    return Arith({it.var: (0, max(most(it.extent), 2) - 1) for it in iters})


class _Readers(Rewriter):
    """Rewriter: reads of the stage's result use the new axes; conversions to the stored type are dropped."""

    def __init__(self, d: Domain, new: Mapping[Buffer, Buffer], arith: Arith) -> None:
        self.d, self.new, self.arith = d, new, arith

    def on_Load(self, n: Load) -> Expr:
        return self._moved(self.children(n), n.dtype)

    def on_Cast(self, n: Cast) -> Expr:
        if isinstance(n.a, Load) and n.a.buffer in self.new and n.dtype == self.new[n.a.buffer].dtype:
            return self._moved(self.children(n.a), n.dtype)
        return self.children(n)

    def _moved(self, n: Load, dtype: str) -> Load:
        new = self.new.get(n.buffer)
        return Load(new, place(self.d, n.index, self.arith), dtype) if new and new.dtype == dtype else n


def place(d: Domain, cell: Sequence[Expr], arith: Arith) -> tuple[Expr, ...]:
    """Indices at which element ``cell`` (its indices as declared) of the stage's result is stored after the change."""
    axis_of = {it.var: b for it, b in zip(d.stage.iters, d.stage.binds, strict=True)}
    at = {axis_of[v]: i for v, i in zip(written_index(d.stage), cell, strict=True) if isinstance(v, Var)}
    old = [at.get(v, as_expr(0)) for v in d.loops]
    by_name = {c.name: d.view.forward(c, old) for c in d.view.new if c.name not in d.reduced}
    new = [by_name[name] for name in d.kept.names]
    return tuple(arith.linear(d.kept.forward(c, new)).expr() for c in d.kept.new)


def _written_out(program: Program, d: Domain, buffer: Buffer, kept: Buffer) -> Program:
    """``program`` with a stage that copies the result from ``kept`` to the output ``buffer``."""
    index = Index(program)
    name = unique(f"{d.stage.name}.out", index.names())
    axes = tuple(Var(v.name, "index") for v in written_index(d.stage) if isinstance(v, Var))
    iters = tuple(Iter(v, n, Axis.SPATIAL) for v, n in zip(axes, buffer.shape, strict=True))
    value: Expr = Load(kept, place(d, axes, _whole(iters)), kept.dtype)
    repeats = any(x.repeats for x in find(d.stage.body, Store))
    copy = Stage(name, iters, (), Store(buffer, axes, value, repeats))
    loops = [
        Loop(Var(f"{name}.{v.name}", "index"), as_expr(most(n)), copy) for v, n in zip(axes, buffer.shape, strict=True)
    ]
    made: Stmt = nest(loops, copy.replace(binds=tuple(x.var for x in loops)))
    return place_at_root(program, made, after=[index.stages[d.stage.name]])
