"""skip: tiles of a reduction that a mask leaves out whole are not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorir.arith.affine import Arith, same
from tensorir.arith.box import Side, side_of, union
from tensorir.arith.conditions import conjuncts
from tensorir.arith.reach import Reach
from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import binary, const
from tensorir.ir.marks import Pipelined, Skipped
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Kind,
    Load,
    Loop,
    Prefetch,
    Program,
    Select,
    Stage,
    Store,
    Update,
    Var,
)
from tensorir.ir.visit import Rewriter, find, reads, substitute, writes
from tensorir.schedule.analysis import Index, accumulates, caret, in_loops, index_of, need_serial, ranges, statements
from tensorir.schedule.history import Name, S
from tensorir.schedule.masked import Masked, settled, unbounded_in
from tensorir.schedule.registry import mark, primitive
from tensorir.schedule.rewrite import Rewrite, swap

_LANES = (Kind.VECTOR, Kind.COOPERATIVE, Kind.INTRIN)


@primitive("Reductions")
def skip(self: S, axis: Name) -> S:
    """Run no iteration of a reduction's loop in which a mask leaves out every term: tiles of causal attention.

    axis: a serial loop, inside of which reductions have terms such as ``where(j <= i, x, 0)``: the identity of their
          combiner where the mask's condition fails. They are initialised before the loop (``decompose_reduction``;
          ``rolling`` has done it), and all else that an iteration writes is read in the same iteration alone

    The condition under which an iteration is run follows from the bounds of both sides of the mask's comparisons over
    the tile, and over the threads of a block: ``j <= i`` in tiles of 64 x 64 is ``jo <= io``. So a tile may be run
    needlessly, and none is left out that has a term. Nothing changes where every tile has one. Exponentials of minus
    infinity are 0, and 0 times an element is 0: where a mask leaves out an element that is infinite or NaN, it does not
    reach the result by a tile that is not run.

    Raises ScheduleError: ``skip.identity`` for terms that are not the identity, ``skip.condition`` for a mask that says
    nothing of whole tiles, and the other codes of ``skip``.
    """
    loop = self._loop(axis)
    self._history._apply("skip", (loop,), {}, lambda p: _skip(p, loop))
    return self


def _skip(program: Program, loop: Loop) -> Rewrite:
    need_serial(loop, "skip")
    if Pipelined.of(loop).depth > 1:
        raise _refuse("skip.pipeline", f"copies of {loop.var.name} run ahead, for iterations that would be skipped",
                      loop, "s.skip without s.pipeline")  # fmt: skip
    cond = _Tile(index_of(program), loop).condition()
    return Rewrite(program if cond is None else swap(program, loop, loop.marked(Skipped((cond,)))))


@mark("skip")
def unfit(before: Program, after: Program, primitive: str) -> Problem | None:
    """Why a primitive that was called after skip may not do what it did: an iteration with terms might not be run."""
    return next(_problems(after, primitive), None)


def _problems(program: Program, primitive: str) -> Iterator[Problem]:
    index = index_of(program)
    for loop in index.loops.values():
        if not (unless := Skipped.of(loop).unless):
            continue
        why = ""
        if loop.kind is not Kind.SERIAL or Pipelined.of(loop).depth > 1:
            why = f"{loop.var.name} is no plain loop then"
        else:
            tile = _Tile(index, loop)
            try:
                why = tile.unlike(unless[0], tile.condition())
            except ScheduleError as e:
                why = e.problems[0].message
        if why:
            message = f"{primitive} changes what is known of the iterations of {loop.var.name} that are skipped: {why}"
            yield Problem("skip.lost", message, at=caret(loop), hint=f"{primitive} before skip")


class _Tile:
    """One iteration of a loop: what its stages do where masks leave out all of their terms."""

    def __init__(self, index: Index, loop: Loop) -> None:
        self.index, self.loop, self.stages = index, loop, find(loop, Stage)
        lanes = [x for x in index.above(loop) if x.kind.level == "thread" or x.kind in _LANES]
        inner = find(loop.body, Loop)
        self.moving = ranges([*lanes, *inner])
        self.arith = Arith({**ranges([*index.above(loop), loop]), **self.moving})
        self.own = {b for b in writes(loop) if self._is_own(b)}
        self.masked = Masked(unbounded_in(index.program.body))
        self.values: dict[Buffer, tuple[tuple[Var, ...], Expr] | None] = {}
        self.extremes: dict[Buffer, Const] = {}
        self.masks: list[tuple[Stage, Expr]] = []

    def condition(self) -> Expr | None:
        """Return the condition under which an iteration may have a term; None where each one has, or refuse."""
        if not any(accumulates(self.loop, s) and isinstance(s.body, Update) for s in self.stages):
            raise _refuse("skip.reduce-loop", f"{self.loop.var.name} drives no reduction", self.loop,
                          "the outer part of a split of a reduced axis")  # fmt: skip
        for s in self.stages:
            self._walk(s)
        reach = Reach(self.arith, self.moving, self._legal)
        found: list[Expr] = []
        for s, mask in self.masks:
            one = reach.of(in_loops(mask, s))
            if not any(same(one, other) for other in found):
                found.append(one)
        cond: Expr = const(False, "bool")
        for one in found:
            cond = binary("or", cond, one)
        if not (isinstance(cond, Const) and cond.value):
            return cond
        if reach.lost:
            raise _refuse("skip.condition", f"the mask says of no iteration of {self.loop.var.name} that it has no "
                          f"term; {reach.lost[0]}", self.loop, "comparisons of sums of axes, of axes // n, or of "
                          "elements of inputs that are the same for the whole tile")  # fmt: skip
        return None

    def unlike(self, said: Expr, found: Expr | None) -> str:
        """Why iterations in which ``said`` fails might have terms, where ``found`` says which may; empty if not."""
        still = {x.var for x in [*self.index.above(self.loop), self.loop] if x.var not in self.moving}
        if gone := [v for v in find(said, Var) if v not in still and v.bounds is None]:
            return f"{gone[0].name} is no loop around it with one value for all threads of a block"
        if isinstance(found, Const):  # no iteration has a term
            return ""
        known = self.arith.child(assume=[] if found is None else [found])
        same_ = [] if found is None else conjuncts(found)
        parts = [c for c in conjuncts(known.simplify(said)) if not any(same(c, d) for d in same_)]
        if open_ := [c for c in parts if not known.proves(c)]:
            return f"{show(open_[0])} may fail where there is a term"
        return ""

    # --- what stays inside an iteration

    def _is_own(self, b: Buffer) -> bool:
        """True when all that is read of a buffer was written in the same iteration."""
        touching = [s for s in find(self.index.program.body, Stage) if b in reads(s) or b in writes(s)]
        first = touching[0]
        if b in self.index.program.params or any(s not in self.stages for s in touching):
            return False
        around = [*self.index.above(self.loop), self.loop]
        if isinstance(first.body, Update):
            fresh = first.init is not None and not any(accumulates(x, first) for x in around)
        else:
            fresh = b not in reads(first)
        written = [x.index for x in find(first.body, (Store, Update)) if b in writes(x)]  # type: ignore[attr-defined]
        return fresh and all(self._covers(first, written[0], s, x.index) for s in touching
                             for x in find(s, Load) if x.buffer is b)  # fmt: skip

    def _covers(self, writer: Stage, written: Sequence[Expr], reader: Stage, read: Sequence[Expr]) -> bool:
        """True when the box that one stage writes in an iteration holds that which another reads."""
        for w, r in zip(written, read, strict=True):
            a, b = self._side(writer, w), self._side(reader, r)
            whole = None if a is None or b is None else union([a, b], self.arith)
            if a is None or whole is None or whole.extent > a.extent:
                return False
        return True

    def _side(self, stage: Stage, i: Expr) -> Side | None:
        return side_of(in_loops(i, stage), self.arith, self.moving)

    # --- what is there after it

    def _walk(self, stage: Stage) -> None:
        for body in statements(stage.body):
            if isinstance(body, Update):
                self._updated(stage, body)
            elif isinstance(body, Store):
                self._stored(stage, body)
            elif not isinstance(body, Prefetch):
                raise self._left(stage, f"{stage.name} is no reduction and no copy")

    def _updated(self, stage: Stage, update: Update) -> None:
        own = [b for b in update.buffers if b in self.own]
        if own and (stage.init is not None or any(self.values.get(b) is None for b in own)):
            self.values.update(dict.fromkeys(own))
            return
        if stage.init is not None:
            raise _refuse("skip.init", f"{stage.name} starts in its first iteration of {self.loop.var.name}, which may "
                          "be one that is skipped", self.loop,
                          f"s.decompose_reduction({stage.name!r}, {self.loop.var.name!r}) first")  # fmt: skip
        mask: Expr = const(False, "bool")
        for v, i in zip(update.values, update.combiner.identity, strict=True):
            known = self.masked.known(self._forward(v))
            if i.value not in known:
                if own:
                    self.values.update(dict.fromkeys(own))
                    return
                raise self._no_identity(stage, v, i, update.combiner.name, known)
            mask = binary("or", mask, known[i.value])
        self.masks.append((stage, mask))
        if len(update.buffers) == 1 and not own:
            self.extremes[update.buffers[0]] = update.combiner.identity[0]

    def _stored(self, stage: Stage, store: Store) -> None:
        value, buffer = self._forward(store.value), store.buffer
        if buffer in self.own:
            axes = tuple(i for i in store.index if isinstance(i, Var))
            others = {v for v in find(value, Var) if v in {it.var for it in stage.iters}} - set(axes)
            plain = len(set(axes)) == len(store.index) and not others and buffer not in self.values
            self.values[buffer] = (axes, value) if plain else None
            return
        value, cell = settled(value), Load(buffer, store.index, buffer.dtype)
        kept = same(value, cell) or (
            isinstance(value, Binary) and value.op in ("*", "+")
            and any(same(x, cell) and (self._is_one(f) if value.op == "*" else _is_zero(f))
                    for x, f in ((value.a, value.b), (value.b, value.a)))
        )  # fmt: skip
        if store.adds or not kept:
            raise self._left(stage, f"{stage.name} stores {show(store.value)}")

    def _is_one(self, e: Expr) -> bool:
        """True when a partial sum times ``e`` is that sum: a repair of ``s.rolling``, with sums of 0 where it is 0."""
        while isinstance(e, Cast):
            e = e.a
        if isinstance(e, Const):
            return bool(e.value == 1)
        if not isinstance(e, Select) or not isinstance(e.cond, Binary) or e.cond.op != "==":
            return False
        m, start = e.cond.a, e.cond.b
        known = isinstance(m, Load) and isinstance(start, Const) and m.buffer in self.extremes
        return (
            known and self.extremes[m.buffer].value == start.value  # type: ignore[attr-defined]
            and isinstance(e.a, Const) and e.a.value == 0 and self._is_one(e.b)
        )  # fmt: skip

    def _forward(self, e: Expr) -> Expr:
        """``e`` with the values of what the iteration has stored so far in its place."""
        return _Forward(self.values)(e)  # type: ignore[no-any-return]

    def _legal(self, e: Expr) -> bool:
        """True when ``e`` may be evaluated before an iteration: it reads inputs inside their bounds, if any data."""
        for n in find(e, Load):
            inside = (c for i, extent in zip(n.index, n.buffer.shape, strict=True)
                      for c in (binary("<=", const(0), i), binary("<", i, extent)))  # fmt: skip
            if n.buffer not in self.index.program.inputs or not all(map(self.arith.proves, inside)):
                return False
        return all(self.arith.range(d.a)[0] >= 0 for d in find(e, Binary, lambda b: b.op in ("//", "%")))

    # --- refusals

    def _left(self, stage: Stage, what: str) -> ScheduleError:
        name = self.loop.var.name
        message = f"{what}, in iterations of {name} without a term as well, and it is read after them"
        return _refuse("skip.result", message, self.loop, "a loop around reductions and what they alone read")

    def _no_identity(self, stage: Stage, v: Expr, i: Const, name: str, known: dict[float, Expr]) -> ScheduleError:
        told = [f"where {show(c)} fails, it is {x:g}" for x, c in known.items() if not isinstance(c, Const)]
        why = told[0] if told else "no mask chooses it, or what it adds to minus infinity may be infinite as well"
        return _refuse("skip.identity", f"the term {show(v)} of {stage.name} is nowhere known to be {i.value}, the "
                       f"identity of {name}: {why}", self.loop,
                       f"a term declared as tir.where(cond, …, {i.value})")  # fmt: skip


def _is_zero(e: Expr) -> bool:
    """True when adding ``e`` changes nothing: a repair of ``s.rolling`` of a maximum of differences."""
    while isinstance(e, Cast):
        e = e.a
    return isinstance(e, Const) and e.value == 0


class _Forward(Rewriter):
    def __init__(self, values: dict[Buffer, tuple[tuple[Var, ...], Expr] | None]) -> None:
        self.values = values

    def on_Load(self, n: Load) -> Expr:
        n = self.children(n)
        found = self.values.get(n.buffer)
        return n if found is None else substitute(found[1], dict(zip(found[0], n.index, strict=True)))


def _refuse(code: str, message: str, loop: Loop, hint: str) -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(loop), hint=hint))
