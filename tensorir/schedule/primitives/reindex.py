"""reindex: a bijective view of a stage's axes, with operands packed under the new ones.

The loops of ``n, p, q, k | r, s, c`` become those of a product, ``i = (n, p, q), j = k, t = (r, s, c)``, while the
stage keeps its domain: what it computes is what was declared. TVM's reindex, transform_layout and pad_einsum in one
(Feng et al., "TensorIR", ASPLOS 2023).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorir.arith.affine import Arith, Linear, conjunction, same
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int, need_mapping, need_text
from tensorir.ir.build import as_expr, binary, const, select
from tensorir.ir.layout import Piece, chain
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Axis,
    Binary,
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
from tensorir.ir.visit import Rewriter, find, substitute, uses
from tensorir.schedule.analysis import (
    Index,
    adds_atomically,
    caret,
    constant_extent,
    driven_by,
    in_loops,
    index_of,
    loads_of,
    need_serial,
    ranges,
    stages_writing,
    statements,
    unique,
)
from tensorir.schedule.history import AxisRef, Name, Scheduled
from tensorir.schedule.primitives.loops import Guard
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, nest, place_at_root, swap

TRIED = 64
"""Values of an axis among which a witness is looked for."""
_HINT = "'n, p, q, k | r, s, c -> i = (n, p, q), j = k, t = (r, s, c)'; parts of an axis as jo = j/16, ji = j%16"


@dataclass(frozen=True)
class Component:
    """One new axis: pieces (number of the old axis, divisor, extent or 0) of old ones, outermost first."""

    name: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class View:
    """What the text of a reindex says: old spatial axes, old reduce axes, and the new axes in their order."""

    text: str
    spatial: tuple[str, ...]
    reduced: tuple[str, ...]
    new: tuple[Component, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The old axes."""
        return self.spatial + self.reduced


def parse_view(text: str) -> View:
    """The view that ``text`` says. Raises ScheduleError ``reindex.syntax``."""
    left, arrow, right = text.partition("->")
    sides = [tuple(n.strip() for n in side.split(",") if n.strip()) for side in left.split("|")]
    names = tuple(itertools.chain(*sides))
    bad = [n for n in names if not re.fullmatch(r"[A-Za-z_][\w.&]*", n)]
    if not arrow or len(sides) > 2 or bad or len(set(names)) < len(names):
        many = "there is a second |" if len(sides) > 2 else "an axis stands twice on the left"
        raise _syntax(text, f"{bad[0]!r} is no name" if bad else many if arrow else "there is no ->")
    parts = [p.strip() for p in re.split(r",(?![^(]*\))", right)]
    new = tuple(_component(text, names, part) for part in parts)
    labels = [c.name for c in new]
    if twice := [n for n in labels if labels.count(n) > 1]:
        raise _syntax(text, f"{twice[0]} is made twice")
    return View(text, sides[0], sides[1] if len(sides) > 1 else (), new)


def _component(text: str, names: Sequence[str], part: str) -> Component:
    label, is_, said = (x.strip() for x in part.partition("="))
    if not is_ or not re.fullmatch(r"[A-Za-z_]\w*", label):
        raise _syntax(text, f"{part!r} is no new axis with what it is made of")
    inner = said[1:-1] if said.startswith("(") and said.endswith(")") else said
    pieces = []
    for item in inner.split(","):
        found = re.fullmatch(r"\s*([A-Za-z_][\w.&]*)((?:\s*[/%]\s*[1-9]\d*)*)\s*", item)
        if not found or found[1] not in names:
            raise _syntax(text, f"{item.strip() or 'nothing'!r} is none of {', '.join(names) or 'no axes'}")
        divisor, extent = 1, 0
        for op, digits in re.findall(r"([/%])\s*(\d+)", found[2]):
            n = int(digits)
            if extent % n:
                raise _syntax(text, f"in {item.strip()} {n} does not divide {extent}")
            divisor, extent = (divisor, n) if op == "%" else (divisor * n, extent // n)
        pieces.append((names.index(found[1]), divisor, extent))
    return Component(label, tuple(pieces))


def _syntax(text: str, what: str) -> ScheduleError:
    return ScheduleError(Problem("reindex.syntax", f"{text!r}: {what}", hint=_HINT))


@primitive("Loops", moves=True)
def reindex(self: Scheduled[Any], stage: Name, view: str, pad: Mapping[str, int] | None = None,
            reads: Mapping[str, str] | None = None, name: str | None = None) -> tuple[AxisRef, ...]:  # fmt: skip
    """Walk a stage by other axes of the same domain, "n, p, q, k | r, s, c -> i = (n, p, q), j = k, t = (r, s, c)",
    and pack what it reads under them, ``reads={"x": "i, t"}``; returns the new axes.

    view:  short names of the stage's axes, those of its reduction behind the bar; they are serial and in one perfect
           nest, other loops of which move inside
    pad:   new axes whose extent is rounded up to a multiple: what is beyond the end is not computed, and packed
           operands have zeros there
    reads: buffers that the stage reads, each with the new axes under which a copy of what it reads is made ahead;
           ``name``: what to call that copy, where there is one

    Raises ScheduleError: ``reindex.not-bijective``, ``reindex.axes``, ``reindex.nest``, ``reindex.names``,
    ``reindex.pad``, ``reindex.pad-identity``, ``reindex.reads``, ``reindex.serial``, ``reindex.symbolic-extent``.
    """
    history = self._history
    found, said = history._stage(stage), parse_view(need_text("view", view, ScheduleError))
    loops = [history._found_loop(history._axis_of(found.name, n)) for n in said.names]
    multiples = need_mapping("pad", {} if pad is None else pad, ScheduleError)
    padding = {k: need_int("pad", n, 1, error=ScheduleError) for k, n in multiples.items()}
    operands = need_mapping("reads", {} if reads is None else reads, ScheduleError)
    packed = {k: need_text("reads", v, ScheduleError) for k, v in operands.items()}
    buffers = {k: (history._buffer(k), [d.strip() for d in v.split(",") if d.strip()]) for k, v in packed.items()}
    label = None if name is None else need_text("name", name, ScheduleError)
    out = history._apply("reindex", (found, view), {"pad": padding or None, "reads": packed or None, "name": label},
                         lambda p: _reindex(p, found, said, loops, padding, buffers, label))  # fmt: skip
    return tuple(map(AxisRef, out))


def _reindex(program: Program, stage: Stage, view: View, loops: Sequence[Loop], pad: Mapping[str, int] | None = None,
            reads: Mapping[str, tuple[Buffer, Sequence[str]]] | None = None,
            name: str | None = None) -> Rewrite:  # fmt: skip
    made = _Reindex(program, stage, view, loops, dict(pad or {}))
    return made.rewrite(dict(reads or {}), name)


class _Reindex:
    """The new loops in terms of the old ones, and back.

    axes: the new loop variables;  sizes: their extents before padding;  values: old loop variables in terms of ``axes``
    tails: conditions under which iterations count, each with the old loops that it is about
    """

    def __init__(self, program: Program, stage: Stage, view: View, loops: Sequence[Loop], pad: dict[str, int]) -> None:
        self.program, self.stage, self.view, self.loops = program, stage, view, loops
        self.index = index_of(program)
        for x in loops:
            need_serial(x, "reindex")
        self.extents = [constant_extent(x, "reindex.symbolic-extent") for x in loops]
        self._need_bijective()
        self._need_axes()
        labels = [f"{stage.name}.{c.name}" for c in view.new]
        taken = self.index.names() - {x.var.name for x in loops}
        if clash := [n for n in labels if n in taken]:
            raise self._refuse("reindex.names", f"the name {clash[0]} is taken", "another name on the right of ->")
        self.axes = {c.name: Var(label, "index") for c, label in zip(view.new, labels, strict=True)}
        self.sizes = {c.name: math.prod(self._extent(p) for p in c.pieces) for c in view.new}
        for label, n in pad.items():
            if label not in self.axes:
                raise self._refuse("reindex.pad", f"pad={{{label!r}: {n}}}: {label} is no new axis",
                                   f"pad={{{view.new[0].name!r}: 16}}")  # fmt: skip
        self.padded = {label: -(-size // pad.get(label, 1)) * pad.get(label, 1) for label, size in self.sizes.items()}
        self.values = self._inverse()
        self.tails = list(self._tails())

    def _extent(self, piece: Piece) -> int:
        number, divisor, extent = piece
        return extent or -(-self.extents[number] // divisor)

    def _inverse(self) -> dict[Var, Expr]:
        """Old loop variables in terms of the new ones, by mixed radix."""
        out: dict[Var, Expr] = {x.var: const(0) for x in self.loops}
        for c in self.view.new:
            rest = self.sizes[c.name]
            for n, piece in enumerate(c.pieces):
                rest //= self._extent(piece)
                part = binary("//", self.axes[c.name], rest)
                part = part if n == 0 else binary("%", part, self._extent(piece))
                var = self.loops[piece[0]].var
                out[var] = binary("+", out[var], binary("*", part, piece[1]))
        return out

    def forward(self, c: Component, of: Sequence[Expr]) -> Expr:
        """A new axis in terms of the old ones ``of``."""
        out: Expr = const(0)
        for number, divisor, extent in c.pieces:
            part = binary("//", of[number], divisor)
            part = binary("%", part, extent) if extent else part
            out = binary("+", binary("*", out, self._extent((number, divisor, extent))), part)
        return out

    def _tails(self) -> Iterator[tuple[Expr, list[Loop]]]:
        for n, (x, extent) in enumerate(zip(self.loops, self.extents, strict=True)):
            covered = math.prod(self._extent(p) for c in self.view.new for p in c.pieces if p[0] == n)
            if covered > extent:
                yield binary("<", self.values[x.var], extent), [x]
        for c in self.view.new:
            if self.padded[c.name] > self.sizes[c.name]:
                yield binary("<", self.axes[c.name], self.sizes[c.name]), [self.loops[p[0]] for p in c.pieces]

    # --- what must hold

    def _need_bijective(self) -> None:
        for n, (name, extent) in enumerate(zip(self.view.names, self.extents, strict=True)):
            pieces = [p for c in self.view.new for p in c.pieces if p[0] == n]
            if not chain(pieces):
                raise self._refuse(
                    "reindex.not-bijective",
                    f"{self.view.text!r}: {_witness(name, extent, pieces)}",
                    f"each old axis whole, or in parts that make it up: {name}/4 and {name}%4",
                )

    def proved(self) -> bool:
        """Whether arithmetic agrees that the new axes of the old ones of the new axes are these."""
        arith = Arith({v: (0, self.sizes[label] - 1) for label, v in self.axes.items()})
        old = [self.values[x.var] for x in self.loops]
        off = [arith.linear(self.forward(c, old)).plus(Linear({self.axes[c.name]: 1}, 0), -1) for c in self.view.new]
        return all(arith.range_of(d) == (0, 0) for d in off)

    def _need_axes(self) -> None:
        """The bar tells spatial axes from reduce axes, and no new axis is made of both."""
        for n, x in enumerate(self.loops):
            kinds = {it.axis for s, it in driven_by(x) if s is self.stage}
            wanted = Axis.SPATIAL if n < len(self.view.spatial) else Axis.REDUCE
            if kinds - {wanted} and not adds_atomically(self.stage):
                is_ = " and ".join(sorted(k.value for k in kinds))
                raise self._refuse(
                    "reindex.axes", f"{x.var.name} drives a {is_} axis of {self.stage.name}: spatial axes stand before "
                    "the |, reduce axes behind it", _HINT)  # fmt: skip
        first_reduced = len(self.view.spatial)
        for c in self.view.new:
            if len({p[0] < first_reduced for p in c.pieces}) > 1 and not adds_atomically(self.stage):
                raise self._refuse(
                    "reindex.axes", f"{c.name} is made of spatial and of reduce axes: one loop cannot do both", _HINT
                )

    def _chain(self) -> list[Loop]:
        """The perfect nest from the first to the last of the loops."""
        outermost = min(self.loops, key=lambda x: len(self.index.paths[x]))
        nested = [outermost]
        while not set(self.loops) <= set(nested):
            below = nested[-1].body
            if not isinstance(below, Loop):
                missing = next(x for x in self.loops if x not in nested)
                raise self._refuse(
                    "reindex.nest", f"{missing.var.name} is not in one perfect nest with {outermost.var.name}",
                    "reindex before other stages are placed in these loops")  # fmt: skip
            nested.append(below)
        return nested

    # --- the new tree

    def rewrite(self, reads: dict[str, tuple[Buffer, Sequence[str]]], name: str | None) -> Rewrite:
        if not self.proved():
            raise self._refuse("reindex.not-bijective", f"{self.view.text!r} cannot be proved to be bijective", _HINT)
        nested = self._chain()
        body: Stmt = substitute(nested[-1].body, self.values)
        for cond, about in self.tails:
            body = Guard(about, cond)(body)
        inner = [x for x in nested if x not in self.loops]
        new = [Loop(self.axes[c.name], as_expr(self.padded[c.name]), body) for c in self.view.new]
        done = swap(self.program, nested[0], nest([*new, *inner], body))
        labels = tuple(x.var.name for x in new)
        gone = {x.var.name: f"it was reindexed into {', '.join(labels)}" for x in self.loops}
        copies: set[Buffer] = set()
        for buffer, dims in reads.values():
            done = self._packed(done, buffer, dims, name if len(reads) == 1 else None, copies)
        self._need_identities(done, copies)
        return Rewrite(done, labels, gone)

    def _packed(self, program: Program, buffer: Buffer, dims: Sequence[str], name: str | None,
                copies: set[Buffer]) -> Program:  # fmt: skip
        """The program in which the stage reads a copy of what it reads of ``buffer``, indexed by the new axes."""
        index = Index(program)
        stage = index.stages[self.stage.name]
        load, own = self._one_read(index, stage, buffer), self._own_axes(dims)
        arith = Arith(ranges(index.above(stage)))
        at = [arith.linear(in_loops(i, stage)).expr() for i in load.index]
        wanted = [self.axes[d] for d in dims]
        if loose := [v for i in at for v in find(i, Var) if v not in wanted]:
            axis = loose[0].name
            raise self._refuse(
                "reindex.reads", f"{show(load)} moves with {axis}: {axis} = 0 and {axis} = 1 read different elements "
                f"for the same {', '.join(dims) or 'cell'}",
                f"reads={{{buffer.name!r}: {', '.join([*dims, axis.split('.', 1)[-1]])!r}}}")  # fmt: skip
        copy = Buffer(unique(name or f"{buffer.name}_packed", index.names()),
                      tuple(as_expr(self.padded[d]) for d in dims), buffer.dtype, Scope.GLOBAL)  # fmt: skip
        fresh: dict[Var, Expr] = {self.axes[d]: Var(d, "index") for d in dims}
        conds = [c for c, _ in self.tails if set(find(c, Var)) <= set(wanted)]
        for i, n in zip(at, buffer.shape, strict=True):
            conds += [c for c in (binary("<=", const(0), i), binary("<", i, n)) if not arith.proves(c)]
        zero = const(False if buffer.dtype == "bool" else 0, buffer.dtype)
        value = select(conjunction(conds), Load(buffer, tuple(at), buffer.dtype), zero) if conds else Load(
            buffer, tuple(at), buffer.dtype)  # fmt: skip
        axes = tuple(fresh[v] for v in wanted)
        iters = tuple(Iter(v, n, Axis.SPATIAL) for v, n in zip(axes, copy.shape, strict=True) if isinstance(v, Var))
        walks = [Loop(Var(f"{copy.name}.{d}", "index"), n, stage) for d, n in zip(dims, copy.shape, strict=True)]
        store = Store(copy, axes, substitute(value, fresh))
        made = nest(walks, Stage(copy.name, iters, tuple(x.var for x in walks), store))
        new = Load(copy, own, buffer.dtype)
        copies.add(copy)
        reader = stage.replace(body=_Instead(buffer, new)(stage.body))
        return place_at_root(swap(program, stage, reader), made, before=[reader])

    def _one_read(self, index: Index, stage: Stage, buffer: Buffer) -> Load:
        """The one read of ``buffer``, which is whole before the nest of the stage begins."""
        loads = loads_of(stage, buffer)
        told = ""
        if not loads:
            read = ", ".join(dict.fromkeys(x.buffer.name for x in find(stage.body, Load)))
            told = f"{stage.name} does not read {buffer.name}, but {read}"
        elif any(not all(map(same, x.index, loads[0].index)) for x in loads):
            told = f"{stage.name} reads {buffer.name} at several places: {show(loads[0])}, {show(loads[-1])}"
        elif any(stages_writing(x, buffer) for x in statements(index.program.body) if index.root_of(stage) is x):
            told = f"{buffer.name} is made in the nest of {stage.name}"
        if told:
            raise self._refuse("reindex.reads", told, "stage_in near the reader")
        return loads[0]

    def _own_axes(self, dims: Sequence[str]) -> tuple[Expr, ...]:
        """New axes in terms of the axes of the stage's domain, which loops must walk whole."""
        if unknown := [d for d in dims if d not in self.axes]:
            raise self._refuse("reindex.reads", f"{unknown[0]!r} is no new axis", f"those are {', '.join(self.axes)}")
        walked = {b: it.var for it, b in zip(self.stage.iters, self.stage.binds, strict=True) if isinstance(b, Var)}
        by = {c.name: c for c in self.view.new}
        for x in (self.loops[p[0]] for d in dims for p in by[d].pieces):
            if x.var not in walked:
                raise self._refuse("reindex.reads", f"{x.var.name} is a part of an axis of {self.stage.name}",
                                   "reindex the whole axis, before it is split")  # fmt: skip
        old = [walked.get(x.var, x.var) for x in self.loops]
        return tuple(self.forward(by[d], old) for d in dims)

    def _need_identities(self, program: Program, copies: set[Buffer]) -> None:
        """Where all that moves beyond the end of a padded reduction is packed, the zeros there must not count."""
        stage = Index(program).stages[self.stage.name]
        if not isinstance(stage.body, Update):
            return
        for cond, about in self.tails:
            moved = set(find(cond, Var))
            reads = [x for x in find(stage.body, Load) if any(uses(in_loops(i, stage), moved) for i in x.index)]
            reduces = all(it.axis is Axis.REDUCE for x in about for s, it in driven_by(x) if s is self.stage)
            if reduces and reads and all(x.buffer in copies for x in reads):
                self._need_identity(stage.body, {x.buffer for x in reads}, ", ".join(sorted(v.name for v in moved)))

    def _need_identity(self, update: Update, zeros: set[Buffer], axis: str) -> None:
        for value, identity in zip(update.values, update.combiner.identity, strict=True):
            if _at_zero(value, zeros) != identity.value:
                said = show(_Zeros(zeros)(value))
                raise self._refuse(
                    "reindex.pad-identity", f"beyond the end of {axis} a term is {said} with the zeros of what is "
                    f"packed, and only {show(identity)} leaves a {update.combiner.name} as it is",
                    "without reads=: terms beyond the end are left out then")  # fmt: skip

    def _refuse(self, code: str, message: str, hint: str = "") -> ScheduleError:
        return ScheduleError(Problem(code, message, at=caret(self.stage), hint=hint))


class _Instead(Rewriter):
    """Reads of one buffer as another read."""

    def __init__(self, buffer: Buffer, new: Load) -> None:
        self.buffer, self.new = buffer, new

    def on_Load(self, n: Load) -> Load:
        return self.new if n.buffer is self.buffer else n


class _Zeros(Rewriter):
    """Reads of some buffers as zeros, for a message."""

    def __init__(self, buffers: set[Buffer]) -> None:
        self.buffers = buffers

    def on_Load(self, n: Load) -> Expr:
        return const(0, n.dtype) if n.buffer in self.buffers else n


def _at_zero(e: Expr, zeros: set[Buffer]) -> object:
    """The value of a term where reads of ``zeros`` are 0, in exact arithmetic; None where it depends on others."""
    if isinstance(e, Load):
        return 0 if e.buffer in zeros else None
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Cast):
        return _at_zero(e.a, zeros)
    if isinstance(e, Select):
        a, b = _at_zero(e.a, zeros), _at_zero(e.b, zeros)
        return a if a == b else None
    if isinstance(e, Binary) and e.op in ("+", "-", "*"):
        a, b = _at_zero(e.a, zeros), _at_zero(e.b, zeros)
        if e.op == "*" and (a == 0 or b == 0):
            return 0
        if isinstance(a, int | float) and isinstance(b, int | float):
            return a + b if e.op == "+" else a - b if e.op == "-" else a * b
    return None


def _witness(name: str, extent: int, pieces: Sequence[Piece]) -> str:
    """Two values of an axis that the pieces do not tell apart, or values of the pieces that no value of it has."""
    if not pieces:
        return f"{name} is nowhere on the right: {name} = 0 and {name} = 1 would be one iteration"
    said = [f"{name}{f'/{d}' if d > 1 else ''}{f'%{e}' if e else ''}" for _, d, e in pieces]
    seen: dict[tuple[int, ...], int] = {}
    for v in range(min(extent, TRIED)):
        place = tuple(v // d % e if e else v // d for _, d, e in pieces)
        if place in seen:
            return (
                f"{name} = {seen[place]} and {name} = {v} would be one iteration: both have {', '.join(said)} = {place}"
            )
        seen[place] = v
    sizes = [min(e or -(-extent // d), TRIED) for _, d, e in pieces]
    for place in itertools.product(*map(range, sizes)):
        if place not in seen and not all(p == 0 for p in place):
            return f"no {name} has {', '.join(said)} = {', '.join(map(str, place))}, which the new axes would run"
    return f"{', '.join(said)} do not make up {name} exactly once"
