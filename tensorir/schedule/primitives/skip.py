"""skip: omit iterations of a reduction loop whose terms are all masked, as in causal attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Self

from tensorir.arith.affine import Arith, Interval, Linear, same, structure
from tensorir.arith.box import Side, side_of, union
from tensorir.arith.conditions import conjunction, conjuncts, contrary
from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import as_int, binary, call, cast, const, select, unary
from tensorir.ir.dims import dims_in
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.marks import Pipelined, Skipped
from tensorir.ir.shared import once
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Axis,
    Binary,
    Buffer,
    Call,
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
    Stmt,
    Store,
    Unary,
    Update,
    Var,
)
from tensorir.ir.visit import Rewriter, find, reads, substitute, uses, writes
from tensorir.schedule.analysis import (
    Index,
    accumulates,
    caret,
    driven_axes,
    in_loops,
    index_of,
    need_serial,
    ranges,
    statements,
)
from tensorir.schedule.history import Name, S
from tensorir.schedule.registry import mark, primitive
from tensorir.schedule.rewrite import Rewrite, swap

_LANES = (Kind.VECTOR, Kind.COOPERATIVE, Kind.INTRIN)


@primitive("Reductions")
def skip(self: S, axis: Name) -> S:
    """Run no iteration of a reduction's loop without terms: tiles that a mask leaves out, or past the end of a dim.

    axis: a serial loop, inside of which reductions have terms such as ``where(j <= i, x, 0)``: the identity of their
          combiner where the mask's condition fails; past the end of a dim they need no mask. They are initialised
          before the loop (``decompose_reduction``; ``rolling`` has done it), and all else that an iteration writes is
          read in the same iteration alone

    The condition under which an iteration is run follows from the bounds of both sides of the mask's comparisons over
    the tile, and over the threads of a block: ``j <= i`` in tiles of 64 x 64 is ``jo <= io``. Past the end of a dim
    there is no term either: ``64*jo < n``. So a tile may be run needlessly, and none is left out that has a term.
    Nothing changes where every tile has one. Exponentials of minus infinity are 0, and 0 times an element is 0: where a
    mask leaves out an element that is infinite or NaN, it does not reach the result by a tile that is not run.

    Raises ScheduleError: ``skip.identity`` for terms that are neither the identity nor past a dim's end,
    ``skip.condition`` for a mask that says nothing of whole tiles, and the other codes of ``skip``.
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
    """Problem if ``primitive`` could make ``skip`` omit iterations with terms, else None."""
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
    """Analysis of one iteration of a loop whose reduction terms are all masked."""

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
        """Return a condition necessary for an iteration to have terms; None if all have. Raises if nothing can be
        derived.
        """
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
        """Explanation if an iteration skipped by ``said`` might have terms according to ``found``; "" if none."""
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
        """True if every read element of ``b`` was written in the same iteration."""
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
        """True if the footprint of ``written`` provably contains that of ``read``, per dimension."""
        for w, r in zip(written, read, strict=True):
            a, b = self._side(writer, w), self._side(reader, r)
            whole = None if a is None or b is None else union([a, b])
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
        past = (x for x in driven_axes(self.loop, stage) if x.axis is not Axis.SPATIAL and dims_in(x.extent))
        ends = [binary("<", it.var, it.extent) for it in past]  # where one fails, there is no term
        for v, i in zip(update.values, update.combiner.identity, strict=True):
            known = self.masked.known(self._forward(v))
            if i.value not in known:
                if ends:
                    mask = const(True, "bool")
                    continue
                if own:
                    self.values.update(dict.fromkeys(own))
                    return
                raise self._no_identity(stage, v, i, update.combiner.name, known)
            mask = binary("or", mask, known[i.value])
        self.masks.append((stage, conjunction([*ends, mask])))
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
        """True if multiplying partial sums by ``e`` (a repair factor of ``s.rolling``) leaves them unchanged when no
        term counts.
        """
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
        """``e`` with values stored earlier in the iteration substituted."""
        return _Forward(self.values)(e)  # type: ignore[no-any-return]

    def _legal(self, e: Expr) -> bool:
        """True if ``e`` can be evaluated before the iteration: it loads only inputs, in range."""
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
    """True if adding ``e`` changes nothing when no term counts (a repair of ``s.rolling``)."""
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


# --- the places that indices reach


Ends = tuple[Expr, Expr]


class Reach:
    """Computes conditions on loop-invariant values, necessary for a condition to hold somewhere in a box of iterations.

    arith:  ranges of all variables
    moving: {variable: range} in the box
    legal:  tells if a loop-invariant expression may be evaluated before the box

    ``lost`` collects (condition, reason) of unsupported parts.
    """

    def __init__(self, arith: Arith, moving: Mapping[Var, Interval], legal: Callable[[Expr], bool]) -> None:
        self.arith, self.moving, self.legal = arith, dict(moving), legal
        self.lost: list[str] = []

    def of(self, cond: Expr) -> Expr:
        """Return a loop-invariant condition that holds whenever ``cond`` holds somewhere in the box."""
        return self.arith.simplify(self._of(cond))

    def _of(self, cond: Expr) -> Expr:
        if isinstance(cond, Const):
            return const(bool(cond.value), "bool")
        if isinstance(cond, Binary) and cond.op in ("and", "or"):
            return binary(cond.op, self._of(cond.a), self._of(cond.b))
        if not uses(cond, self.moving):
            return cond if self.legal(cond) else self._unknown(cond, "it reads what the kernel computes")
        if isinstance(cond, Unary) and cond.op == "not":
            inner = contrary(cond.a)
            if not (isinstance(inner, Unary) and inner.op == "not"):
                return self._of(inner)
        if isinstance(cond, Binary) and cond.op in ("<", "<=", "==") and DTYPES[cond.a.dtype].kind in "iu":
            return self._compared(cond)
        return self._unknown(cond, "it is no comparison of whole numbers by their order")

    def _compared(self, cond: Binary) -> Expr:
        pairs = ((cond.a, cond.b),) if cond.op != "==" else ((cond.a, cond.b), (cond.b, cond.a))
        op = cond.op if cond.op != "==" else "<="
        out: Expr = const(True, "bool")
        for a, b in pairs:
            if a.dtype == b.dtype == "index":  # one form, in which what both have cancels
                ends = self._form(self.arith.linear(a).plus(self.arith.linear(b), -1))
                part = None if ends is None else binary(op, ends[0].expr(), const(0))
            else:
                low, high = self._ends(a), self._ends(b)
                part = None if low is None or high is None else binary(op, low[0], high[1])
            if part is None or not self.legal(part):
                return self._unknown(cond, "its sides have no bounds that loops around the tile give")
            out = binary("and", out, part)
        return out

    def _unknown(self, cond: Expr, why: str) -> Expr:
        self.lost.append(f"{show(cond)}: {why}")
        return const(True, "bool")

    def _ends(self, e: Expr) -> Ends | None:
        """(minimum, maximum) of an operand over the box; None if unknown."""
        if not uses(e, self.moving):
            return e, e
        if e.dtype == "index":
            ends = self._form(self.arith.linear(e))
            return None if ends is None else (ends[0].expr(), ends[1].expr())
        if isinstance(e, Cast) and e.a.dtype == "index" and DTYPES[e.dtype].kind in "iu":
            low, high = self.arith.range(e.a)
            kind, ends2 = DTYPES[e.dtype], self._ends(e.a)
            if ends2 is not None and kind.low <= low and high <= kind.high:
                return cast(ends2[0], e.dtype), cast(ends2[1], e.dtype)
        return None

    def _form(self, form: Linear) -> tuple[Linear, Linear] | None:
        """(minimum, maximum) of a linear form over the box; None if unknown."""
        low = high = Linear({}, form.constant)
        for atom, c in form.terms.items():
            ends = self._atom(atom)
            if ends is None:
                return None
            low, high = low.plus(ends[c < 0], c), high.plus(ends[c > 0], c)
        return low, high

    def _atom(self, atom: Expr) -> tuple[Linear, Linear] | None:
        if not uses(atom, self.moving):
            return Linear({atom: 1}, 0), Linear({atom: 1}, 0)
        if isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const) and as_int(atom.b) > 0:
            inner = self._form(self.arith.linear(atom.a))
            if inner is not None and self.arith.range_of(inner[0])[0] >= 0:
                low, high = (self.arith.linear(binary("//", x.expr(), atom.b)) for x in inner)
                return low, high
        if isinstance(atom, Binary) and atom.op in ("min", "max"):
            a, b = self._form(self.arith.linear(atom.a)), self._form(self.arith.linear(atom.b))
            if a is not None and b is not None:
                low, high = (self.arith.linear(binary(atom.op, x.expr(), y.expr())) for x, y in zip(a, b, strict=True))
                return low, high
        least, most = self.moving[atom] if isinstance(atom, Var) else self.arith.range_of(Linear({atom: 1}, 0))
        if math.isinf(least) or math.isinf(most):
            return None
        if not isinstance(atom, Var):
            self.lost.append(f"{show(atom)}: its bounds are those in all tiles")
        return Linear({}, int(least)), Linear({}, int(most))


# --- values of expressions where the conditions of masks fail


Known = dict[float, Expr]
"""Values that an expression is known to have, each with the condition that holds wherever it may have another one."""

NEVER_HOLDS, ALWAYS_HOLDS = const(False, "bool"), const(True, "bool")
_FINITE = frozenset({"abs", "ceil", "cos", "erf", "exp", "exp2", "floor", "mulhi", "power", "round", "sin", "tanh"})
"""Functions of what is finite that are finite, where nothing overflows."""
_POWERS: dict[str, Callable[[float], float]] = {"exp": math.exp, "exp2": lambda x: 2.0**x}
_LARGEST_FLOATS = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "bfloat16": 3.3895e38,
    "float16": 65504,
}
"""The largest finite float of each type, rounded down; of 8 bits 448 and more."""
SMALL_WHOLE = 16
"""Whole numbers up to this one are in all types of floats, those of 8 bits too."""
_ABSORBING = {"min": -math.inf, "max": math.inf, "and": 0, "or": 1}


class Masked:
    """Evaluator of expressions under masks that all fail; ``unbounded``: buffers that may hold infinities although no
    input does.
    """

    def __init__(self, unbounded: Callable[[Buffer], bool]) -> None:
        self.unbounded = unbounded

    @once
    def known(self, e: Expr) -> Known:
        """{value: condition} for values that ``e`` has if all masks fail; the condition holds wherever it may have
        another one. {} if nothing is known.
        """
        if isinstance(e, Const):
            return {v: NEVER_HOLDS} if _holds(e.dtype, v := _number(e.value)) else {}
        if isinstance(e, Cast):
            return {v: c for v, c in self.known(e.a).items() if _holds(e.dtype, v)}
        if isinstance(e, Unary) and e.op == "-" and is_float(e.dtype):
            return {-v: c for v, c in self.known(e.a).items()}
        if isinstance(e, Call) and e.fn in _POWERS:
            return {_POWERS[e.fn](v): c for v, c in self.known(e.args[0]).items() if v in (0, -math.inf)}
        if isinstance(e, Select):
            return self._chosen(e)
        return _first_of(self._combined(e)) if isinstance(e, Binary) and e.op not in ("//", "%") else {}

    def _chosen(self, e: Select) -> Known:
        a, b, other = self.known(e.a), self.known(e.b), contrary(e.cond)
        out: Known = {}
        for v in dict.fromkeys((*a, *b)):
            if v in a and v in b:
                out[v] = binary("or", binary("and", e.cond, a[v]), binary("and", other, b[v]))
            else:
                out[v] = binary("or", other, a[v]) if v in a else binary("or", e.cond, b[v])
        return out

    def _combined(self, e: Binary) -> Iterator[tuple[float, Expr]]:
        a, b = self.known(e.a), self.known(e.b)
        for v, c in a.items():
            if (made := _absorbed(e.op, v, left=True)) is not None and not self.may_be_infinite(e.b):
                yield made, c
        for w, d in b.items():
            if (made := _absorbed(e.op, w, left=False)) is not None and not self.may_be_infinite(e.a):
                yield made, d
        for v, c in a.items():
            for w, d in b.items():
                made = _folded(e.op, v, w)
                if made is not None and _holds(e.dtype, made):
                    yield made, binary("or", c, d)

    @once
    def may_be_infinite(self, e: Expr) -> bool:
        """True if ``e`` may be infinite with finite inputs and no overflow."""
        if isinstance(e, Const):
            return is_float(e.dtype) and abs(_number(e.value)) > _LARGEST_FLOATS.get(e.dtype, 448)
        if isinstance(e, Load):
            return self.unbounded(e.buffer)
        if isinstance(e, Call) and e.fn in _POWERS:
            return False
        if (isinstance(e, Call) and e.fn not in _FINITE) or _divides(e):
            return True  # log(0), 1 / 0, sqrt(-1): no infinity of the inputs, but one of the program's own
        if isinstance(e, Select):
            left_out = _excluded(e)
            return any(self.may_be_infinite(x) for x in (e.a, e.b) if x is not left_out)
        return any(self.may_be_infinite(x) for x in e.children() if isinstance(x, Expr))


def _divides(e: Expr) -> bool:
    """True if ``e`` divides floats by a possible 0."""
    if not isinstance(e, Binary) or e.op not in ("/", "%") or not is_float(e.dtype):
        return False
    return not isinstance(e.b, Const) or e.b.value == 0


def settled(e: Expr, held: dict[Hashable, bool] | None = None) -> Expr:
    """``e`` with selects resolved whose condition is known, and x - x = 0, 0 * c = 0, exp(0) = 1 applied.

    held: {structure of a condition: its value}
    """
    return _Settle(held or {})(e)  # type: ignore[no-any-return]


class _Settle(Rewriter):
    def __init__(self, held: dict[Hashable, bool]) -> None:
        self.held = held

    def on_Select(self, n: Select) -> Expr:
        cond, key = self(n.cond), structure(n.cond)
        if key in self.held:
            return self(n.a if self.held[key] else n.b)  # type: ignore[no-any-return]
        a, b = self._where(n, key, True)(n.a), self._where(n, key, False)(n.b)
        return a if same(a, b) else select(cond, a, b)

    def _where(self, n: Select, key: Hashable, value: bool) -> Self:
        def learn(inside: Self) -> None:
            inside.held = {**self.held, key: value}

        return self.on_side(n.cond, not value, learn)

    def on_Binary(self, n: Binary) -> Expr:
        a, b = self(n.a), self(n.b)
        if n.op == "-" and is_float(n.dtype) and same(a, b):
            return const(0, n.dtype)
        if n.op in ("*", "/") and is_float(n.dtype) and isinstance(a, Const) and a.value == 0 and isinstance(b, Const):
            return a
        if n.op == "*" and is_float(n.dtype) and isinstance(b, Const) and b.value == 0 and isinstance(a, Const):
            return b
        return binary(n.op, a, b)

    def on_Unary(self, n: Unary) -> Expr:
        a = self(n.a)
        return const(0, n.dtype) if n.op == "-" and isinstance(a, Const) and a.value == 0 else unary(n.op, a)

    def on_Cast(self, n: Cast) -> Expr:
        a = self(n.a)
        return const(a.value, n.dtype) if isinstance(a, Const) and a.value in (0, 1) else cast(a, n.dtype)

    def on_Call(self, n: Call) -> Expr:
        args = [self(a) for a in n.args]
        zero = n.fn in _POWERS and isinstance(args[0], Const) and args[0].value == 0
        return const(1, n.dtype) if zero else call(n.fn, *args)


def unbounded_in(body: Stmt) -> Callable[[Buffer], bool]:
    """Return a predicate on buffers: may hold an infinity that is in no input, as identities of min and max."""
    found: dict[Buffer, bool] = {}
    makers: dict[Buffer, list[Expr]] = {}
    for s in find(body, (Store, Update)):
        if isinstance(s, Store):
            makers.setdefault(s.buffer, []).append(s.value)
        elif isinstance(s, Update):
            for b, v, i in zip(s.buffers, s.values, s.combiner.identity, strict=True):
                makers.setdefault(b, []).extend((v, i))

    def unbounded(b: Buffer) -> bool:
        if b not in found:
            found[b] = False  # what is made of itself adds nothing
            found[b] = any(map(Masked(unbounded).may_be_infinite, makers.get(b, ())))
        return found[b]

    return unbounded


def _excluded(e: Select) -> Expr | None:
    """``x`` of ``where(x == c, a, x)`` with c infinite: never infinite itself; None for other selects."""
    cond = e.cond
    if isinstance(cond, Binary) and cond.op in ("==", "!="):
        for x, c in ((cond.a, cond.b), (cond.b, cond.a)):
            side = e.b if cond.op == "==" else e.a
            if isinstance(c, Const) and isinstance(c.value, float) and math.isinf(c.value) and same(x, side):
                return side
    return None


def _first_of(pairs: Iterable[tuple[float, Expr]]) -> Known:
    out: Known = {}
    for v, c in pairs:
        out.setdefault(v, c)
    return out


def _number(value: object) -> float:
    assert isinstance(value, int | float | Fraction)
    return float(value) if isinstance(value, Fraction) else value


def _holds(dtype: str, value: float) -> bool:
    """True if ``dtype`` surely represents ``value`` exactly: whole numbers in range, for floats of small magnitude, and
    infinities.
    """
    if is_float(dtype):
        return math.isinf(value) or dtype == "float64" or (value == int(value) and abs(value) <= SMALL_WHOLE)
    whole = dtype != "bool" and math.isfinite(value) and value == int(value)
    return whole and DTYPES[dtype].low <= value <= DTYPES[dtype].high


def _folded(op: str, v: float, w: float) -> float | None:
    """``v op w`` of two constants; None if undefined or inexact."""
    if op == "/":
        return v / w if w and not (math.isinf(v) and math.isinf(w)) else None
    done: dict[str, Callable[[], float]] = {
        "+": lambda: v + w, "-": lambda: v - w, "*": lambda: v * w, "min": lambda: min(v, w), "max": lambda: max(v, w),
    }  # fmt: skip
    made = done[op]() if op in done else math.nan
    return None if math.isnan(made) else made


def _absorbed(op: str, v: float, left: bool) -> float | None:
    """Value of ``v op x`` (``x op v`` unless ``left``) if equal for all finite x, as 0 * x; None if it depends on x."""
    if op in ("+", "-") and math.isinf(v):
        return v if left or op == "+" else -v
    if op == "*" and v == 0:
        return v
    return v if _ABSORBING.get(op) == v else None
