"""Pass: turn tails into conditions, and drop conditions made unnecessary by staged copies.

A split may overshoot its extent, and a box placed by compute_at may overhang its tensor. Each stage gets the conditions
that cannot be proved. If a stage fills a buffer visible only to its block or thread, conditions in hot loops can be
avoided:

* a copy writes 0 beyond the end of its source instead of skipping (*fill*);
* a stage whose overshooting iterations only write outside the tensor may run them (*overrun*), if everything they read
  then exists;
* a sum may run overshooting iterations that add 0, because both factors come from filled copies (*neutral*).

Stores to global memory stay guarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorir.arith.affine import Arith
from tensorir.arith.conditions import conjunction, conjuncts, negate
from tensorir.arith.reads import conditional_loads
from tensorir.ir.build import binary, const, select
from tensorir.ir.dtypes import keeps_zero
from tensorir.ir.structure import among
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    If,
    IntrinCall,
    Kind,
    Let,
    Load,
    Loop,
    Program,
    Scope,
    Select,
    Stage,
    Stmt,
    Store,
    Unary,
    Update,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, has, reads, uses, writes
from tensorir.lower.boxes import LOCAL, Access, local_accesses, makers
from tensorir.lower.end_loops import early_end
from tensorir.lower.form import bound_loops, each_nest, fail, kernel_arith, lowering, rewrap
from tensorir.schedule.analysis import in_loops
from tensorir.target import Target

OWN = (Scope.REGISTER, Scope.WARP)
"""Scopes of buffers that only their writers read."""


@lowering
def emit_guards(program: Program, target: Target) -> Program:
    """Turn the guards of stages into conditions, dropping provable and unnecessary ones.

    gives: no stage has guards; every access that runs is inside its buffer's domain or its staged box

    Raises LoweringError ``lower.pad-global`` for a stage with ``tail="pad"`` that cannot run whole tiles.
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        made = {b for b in writes(body) if b.scope not in LOCAL}
        fed = _fed(body)
        arith = kernel_arith(program.known, axes, body)
        accesses = local_accesses(body) if any(v.bounds for v in program.scalars) else None
        return rewrap(axes, _Guards(arith, makers(body, axes, arith), made, fed, accesses)(body))

    return each_nest(program, kernel)


def _fed(body: Stmt) -> set[Buffer]:
    """Buffers that are operands of reducing instructions, and the shared arrays from which these are loaded."""
    stages = find(body, Stage)
    sums = [s for s in stages if s.intrin is not None and isinstance(s.body, Update)]
    fed = {b for s in sums for b in reads(s.body) if b not in writes(s.body)}
    loads = [s.body for s in stages if s.intrin is not None and isinstance(s.body, Store) and s.body.buffer in fed]
    return fed | {b for x in loads for b in reads(x) if b.scope is Scope.SHARED}


class _Guards(Rewriter):
    """Rewriter from guards of stages to conditions, in program order: producers before their readers."""

    def __init__(
        self,
        arith: Arith,
        makers: Mapping[tuple[Buffer, str], Sequence[Sequence[set[str]]]],
        made: set[Buffer],
        fed: set[Buffer],
        accesses: Mapping[Buffer, Sequence[Access]] | None,
    ) -> None:
        self.arith = arith
        self.makers = makers
        self.made = made  # in global memory by this very kernel: a cell exists once its own iteration has run
        self.facts: list[Expr] = []
        self._here: Arith | None = None  # both, once somebody has asked
        self.fed = fed  # read by instructions that run whole: a part of a tile that does not count must be 0
        self.inside: set[Var] = set()  # loops that an instruction performs
        self.total: dict[Buffer, dict[str, list[Expr]]] = {}  # writers that fill their box where these conditions hold
        self.accesses = accesses  # of a kernel with dims
        self.zero: dict[Buffer, set[int]] = {}  # dimensions beyond whose end all writers so far left 0

    def _known(self, *more: Expr) -> Arith:
        """Arithmetic facts at the current statement: loop ranges and conditions around it, and assumptions ``more``."""
        if self._here is None:
            self._here = self.arith.child(assume=self.facts)
        return self._here.child(assume=more) if more else self._here

    def on_Loop(self, n: Loop) -> Stmt:
        if self._own(n) and (end := early_end(n, self.arith)) is not None:
            self.facts.append(binary("<", n.var, end))
            self._here = None
            n = self.children(n).replace(extent=end)
            self.facts.pop()
            self._here = None
            return n
        if n.kind is not Kind.INTRIN:
            return self.children(n)
        self.inside.add(n.var)
        n = self.children(n)
        self.inside.discard(n.var)
        return n

    def _own(self, n: Loop) -> bool:
        """True if skipping iterations past a dim leaves no needed element of a local buffer unwritten: each iteration
        uses the buffer alone, or only accumulates onto it.
        """
        if self.accesses is None:
            return False
        inside = local_accesses(n.body)
        own = {b for b, found in inside.items() if len(found) == len(self.accesses[b])}
        return all(
            b in own or (isinstance(a.stage.body, Update) and not any(uses(i, {n.var}) for i in _cell(a)))
            for b, found in inside.items() for a in found if a.writes
        )  # fmt: skip

    def on_If(self, n: If) -> Stmt:
        self.facts.append(n.cond)
        self._here = None
        total, zero = {b: dict(by) for b, by in self.total.items()}, set(self.zero)
        n = self.children(n)
        self.facts.pop()
        self._here = None
        if not isinstance(n.then, Stage):  # a version of a body: after it, the other one may have run
            self.total = total
            self.zero = {b: dims for b, dims in self.zero.items() if b in zero}
        return n

    def on_Stage(self, n: Stage) -> Stage:
        arith = self._known()
        conds, must = self._conditions(n, arith)
        made = writes(n.body)
        local = all(b.scope in LOCAL for b in made)
        wanted = conds
        filled: set[int] = set()  # dimensions beyond whose end the stage leaves 0
        if n.intrin is not None and n.intrin.maps:
            left = self._clipped(n, conds)
            n = n.replace(body=_Placed(n, self._known())(n.body))
            filled = set() if left else self._fills_zero(n, conds)
            conds = left if n.intrin.stores or not left else conds
        if local and conds:
            relaxed = self._relax(n, conds)
            if n.intrin is not None or not self._fed_otherwise(n, [g for g in conds if not among(g, relaxed)], conds):
                conds = relaxed
            if n.intrin is not None and n.intrin.by_warp and isinstance(n.body, Store) and self._cut(n, conds):
                n = n.replace(intrin=None)  # there is no whole tile to bring near: element by element, with zeros
            if n.intrin is None:  # the body of an instruction stays what it is
                n, conds = self._clamp(n, conds)
        body = n.body
        before = {b: self.zero.pop(b) for b in made if b in self.zero}
        if local and wanted and not conds and isinstance(body, Store):
            filled |= self._zero_dims(n, wanted, [])
        if local and conds and n.intrin is None and isinstance(body, Store):
            ends = [g for g in conds if self._outside(n, g)]
            if len(ends) == len(conds):
                dropped = [g for g in wanted if not among(g, conds)]
                filled |= self._zero_dims(n, dropped, ends)
            if ends and (len(ends) == len(conds) or body.buffer.scope is Scope.WARP):  # instructions want whole tiles
                body = body.replace(value=_filled(body, ends))
                conds = [g for g in conds if not among(g, ends)]
        if n.intrin is None and (must := [c for c in must if among(c, conds)]):
            n, conds = self._padded(n, conds, must)
            body = n.body
        self.zero |= {b: filled & before.get(b, filled) if local else set() for b in made}
        for b in made:
            if not conds or b.scope in OWN:
                self.total.setdefault(b, {})[n.name] = conds
        return n.replace(guards=(), padded=(), body=If(conjunction(conds), body) if conds else body)

    def _cut(self, n: Stage, conds: list[Expr]) -> bool:
        """True if the conditions cut an instruction's tile, or leave some of its registers unfilled."""
        return bool(conds) and (writes(n.body)[0].scope is not Scope.SHARED or any(uses(g, self.inside) for g in conds))

    def _padded(self, n: Stage, conds: list[Expr], must: list[Expr]) -> tuple[Stage, list[Expr]]:
        """(the stage, conditions that remain), with conditions ``must`` dropped and made safe: reads are clamped,
        writes past the end stay in its private copy, reduction terms past the end are replaced by the initial value.

        Raises LoweringError ``lower.pad-global`` if that is impossible.
        """
        held = self._held(n)
        body = n.body if held is None else held.body
        if held is None or not isinstance(body, Update) or any(b.scope not in LOCAL for b in body.buffers):
            made = ", ".join(b.name for b in writes(n.body))
            raise fail(
                "lower.pad-global",
                f"{n.name} cannot run whole tiles beyond {show(must[0])}: {made} has no room for them, or not all that "
                "they read can be held inside its tensor",
                f"s.stage_out({n.name!r}, …) first, or tail='guard'",
            )
        ends = conjunction([g for g in must if not self._outside(n, g)])
        values = zip(body.values, body.combiner.identity, strict=True)
        body = body.replace(values=tuple(select(ends, v, i) for v, i in values))
        return n.replace(body=body), [c for c in conds if not among(c, must)]

    def _conditions(self, n: Stage, arith: Arith) -> tuple[list[Expr], list[Expr]]:
        """(conditions of a stage that are not provable here, those of them to be removed by padding)."""
        padded = {show(g) for g in n.padded}
        wanted, must = list(n.guards), []
        for it, bind in zip(n.iters, n.binds, strict=True):
            wanted += [binary("<=", const(0), bind), binary("<", bind, it.extent)]
        kept: list[Expr] = []
        here = arith
        for g in wanted:
            if not here.proves(g):
                kept.append(here.simplify(g))
                must += kept[-1:] if padded and show(g) in padded else []
                here = arith.child(assume=kept)
        return kept, must

    def _relax(self, n: Stage, conds: list[Expr]) -> list[Expr]:
        """Return ``conds`` without the conditions whose failure would change no result: no read out of bounds, no wrong
        term.
        """
        if self._reads_exist(n, []) and not self._clipped(n, conds):
            return []
        kept = list(conds)
        for g in conds:
            others = [c for c in kept if c is not g]
            if self._reads_exist(n, others) and (self._outside(n, g, others) or self._neutral(n, g)):
                kept = others
        return kept

    def _fed_otherwise(self, n: Stage, dropped: list[Expr], conds: list[Expr]) -> bool:
        """True if an instruction's operands would be nonzero where the ``dropped`` conditions fail, and filling with 0
        is possible.
        """
        fed = isinstance(n.body, Store) and n.body.buffer in self.fed
        return fed and not self._copies_zero(n, dropped) and all(self._outside(n, g) for g in conds)

    def _clamp(self, n: Stage, conds: list[Expr]) -> tuple[Stage, list[Expr]]:
        """A reduction with out-of-range reads clamped to existing elements, and no condition; stage and conditions as
        they are where that may change a result.

        Its wrong sums land outside the tensor only; the reduction loop needs no branch.
        """
        if not isinstance(n.body, Update) or not all(self._outside(n, g) for g in conds):
            return n, conds
        held = self._held(n)
        return (n, conds) if held is None else (held, [])

    def _held(self, n: Stage) -> Stage | None:
        """``n`` with its read indices clamped into their tensors; None if some read may still be out of range."""
        clamped = _Clamp(n, self._known())
        held = n.replace(body=clamped(n.body))
        return None if clamped.failed or not self._reads_exist(held, []) else held

    def _reads_exist(self, n: Stage, conds: list[Expr]) -> bool:
        """True if every element that the stage reads exists and is initialized under ``conds`` alone."""
        if has(n.body, IntrinCall, Let):
            return False
        sums = writes(n.body) if has(n.body, Update) else []
        if not all(self._filled(b, n, Arith()) for b in sums):
            return False  # an iteration too many would add to a cell that was never initialised
        arith = self._known(*conds)
        return all(self._exists(load, n, arith.child(assume=under)) for load, under in conditional_loads(n.body))

    def _exists(self, load: Load, n: Stage, arith: Arith) -> bool:
        if load.buffer.scope in LOCAL:
            return self._filled(load.buffer, n, arith)
        return load.buffer not in self.made and all(
            arith.proves(binary("<=", const(0), i)) and arith.proves(binary("<", i, extent))
            for i, extent in zip((in_loops(i, n) for i in load.index), load.buffer.shape, strict=True)
        )

    def _filled(self, b: Buffer, n: Stage, arith: Arith) -> bool:
        """True if every element of local buffer ``b`` that stage ``n`` may read was written before, by stages whose
        conditions ``arith`` proves.
        """
        by = self.total.get(b, {})
        filled = {name for name, conds in by.items() if all(map(arith.proves, conds))}
        return all(any(names <= filled for names in ways) for ways in self.makers.get((b, n.name), [[]]))

    def _clipped(self, n: Stage, conds: list[Expr]) -> list[Expr]:
        """The subset of ``conds`` needed for more than keeping writes inside the tensor.

        A tile copied as a whole (TMA) needs none for that: reads past its array give 0, writes there are dropped.
        """
        left: list[Expr] = []
        held: list[Expr] = []  # an iteration that counts not violates one of the conditions as the first
        for g in conds:
            if not self._outside(n, g, held):
                left.append(g)
            held.append(g)
        return left

    def _outside(self, n: Stage, g: Expr, held: Sequence[Expr] = ()) -> bool:
        """True if iterations that violate ``g`` but satisfy ``held`` touch only elements outside the tensor."""
        opposite = negate(g)
        if opposite is None:
            return False
        arith = self._known(*held, opposite)
        return any(
            arith.proves(binary("<=", it.extent, bind)) or arith.proves(binary("<", bind, const(0)))
            for it, bind in zip(n.iters, n.binds, strict=True)
            if it.axis is Axis.SPATIAL
        )

    def _fills_zero(self, n: Stage, conds: list[Expr]) -> set[int]:
        """Dimensions of a TMA-copied tile that are 0 past the stage's end, as the array ends there as well.

        The array may be longer than the stage's part of it, if a slicing definition was inlined; TMA then copies its
        elements.
        """
        held: list[Expr] = []
        for g in conds:
            opposite = negate(g)
            if opposite is None or not self._all_beyond(n, [*held, opposite]):
                break
            held.append(g)
        else:
            return _all_dims(writes(n.body)[0])
        ends = [(binary("<=", it.extent, i), binary("<", i, const(0))) for it, i in zip(n.iters, n.binds, strict=True)]
        return {d for d, both in enumerate(ends) if all(self._all_beyond(n, [end]) for end in both)}

    def _all_beyond(self, n: Stage, conds: list[Expr]) -> bool:
        """True if, under ``conds``, every read of the stage is outside its buffer's shape."""
        arith = self._known(*conds)
        return all(_beyond(load, n, arith) for load in _copied(n))

    def _copies_zero(self, n: Stage, conds: list[Expr]) -> bool:
        """True if iterations that violate one of ``conds`` store exactly 0, as a zero-filled copy does."""
        for g in conds:
            opposite = negate(g)
            if opposite is None or not isinstance(n.body, Store) or not has(n.body.value, Load):
                return False  # a start that updates follow is no copy
            if not _is_zero(n.body.value, self.zero, n, self._known(opposite)):
                return False
        return True

    def _zero_dims(self, n: Stage, dropped: list[Expr], ends: list[Expr]) -> set[int]:
        """Numbers of the dimensions in which a copy stores only 0, or nothing, outside of its array's extent; all
        dimensions if violating ``dropped`` always stores 0.

        ends: conditions whose violation stores 0
        """
        if self._copies_zero(n, dropped):
            return _all_dims(writes(n.body)[0])
        if not isinstance(n.body, Store) or not has(n.body.value, Load):
            return set()
        places = ((in_loops(i, n), extent) for i, extent in zip(n.body.index, n.body.buffer.shape, strict=True))
        sides = [(binary("<=", extent, i), binary("<", i, const(0))) for i, extent in places]
        return {d for d, both in enumerate(sides) if all(self._zero_where(n, side, ends) for side in both)}

    def _zero_where(self, n: Stage, beyond: Expr, ends: list[Expr]) -> bool:
        """True if iterations with ``beyond`` do not occur, or store 0."""
        inside = negate(beyond)
        if inside is not None and self._known().proves(inside):
            return True
        arith = self._known(beyond)
        violated = (negate(g) for g in ends)
        return any(v is not None and arith.proves(v) for v in violated) or (
            isinstance(n.body, Store) and _is_zero(n.body.value, self.zero, n, arith)
        )

    def _neutral(self, n: Stage, g: Expr) -> bool:
        """True if iterations that violate ``g`` add exactly 0."""
        opposite = negate(g)
        if opposite is None or not isinstance(n.body, Update) or n.body.combiner.name != "sum":
            return False
        arith = self._known(opposite)
        return _is_zero(n.body.values[0], self.zero, n, arith)


def _cell(a: Access) -> list[Expr]:
    return [in_loops(i, a.stage) for i in a.index]


def _filled(body: Store, conds: list[Expr]) -> Expr:
    """``cond ? value : 0`` for a store's value under ``conds``, merged with an existing zero-padding select."""
    zero = const(False if body.buffer.dtype == "bool" else 0, body.buffer.dtype)
    value = body.value
    if isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == 0:
        conds, value = [*conds, *conjuncts(value.cond)], value.a
    return select(conjunction(conds), value, zero)


class _Clamp(Rewriter):
    """Rewriter: clamp indices of global-memory reads that may leave their dimension."""

    def __init__(self, n: Stage, arith: Arith) -> None:
        self.n, self.arith, self.failed = n, arith, False

    def on_Load(self, load: Load) -> Load:
        if find(load, Load)[1:] or load.buffer.scope in LOCAL:
            self.failed |= load.buffer.scope not in LOCAL
            return load
        index = []
        for i, extent in zip(load.index, load.buffer.shape, strict=True):
            where = in_loops(i, self.n)
            if not self.arith.proves(binary("<", where, extent)):
                i = binary("min", i, binary("-", extent, 1))
            if not self.arith.proves(binary("<=", const(0), where)):
                i = binary("max", i, const(0))
            index.append(i)
        return load.replace(index=tuple(index))

    def on_Select(self, n: Select) -> Select:
        self.failed = True  # its sides are only valid where its condition holds
        return n


class _Placed(Rewriter):
    """Rewriter for a TMA copy whose position is loaded from an array: past that array's end the position is out of
    range, so the copied tile is 0.
    """

    def __init__(self, n: Stage, arith: Arith) -> None:
        self.n, self.arith, self.copied = n, arith, _copied(n)

    def on_Load(self, load: Load) -> Expr:
        if among(load, self.copied):
            return self.children(load)
        needed = [
            c for i, extent in zip(load.index, load.buffer.shape, strict=True)
            for c in (binary("<=", const(0), i), binary("<", i, extent)) if not self.arith.proves(in_loops(c, self.n))
        ]  # fmt: skip
        return select(conjunction(needed), load, const(-1, load.dtype)) if needed else load


def _copied(n: Stage) -> list[Load]:
    """Loads of a tile copy's data, excluding the loads of its position."""
    (store,) = find(n.body, Store)
    value = store.value
    while isinstance(value, Select):  # 0 elsewhere
        value = value.a
    return [value] if isinstance(value, Load) else []


def _all_dims(b: Buffer) -> set[int]:
    return set(range(len(b.shape)))


def _beyond(load: Load, n: Stage, arith: Arith) -> bool:
    """True if the load's index is provably outside the buffer's shape."""
    return any(_beyond_dim(load, d, n, arith) for d in _all_dims(load.buffer))


def _beyond_dim(load: Load, d: int, n: Stage, arith: Arith) -> bool:
    i = in_loops(load.index[d], n)
    i = arith.simplify(i) if has(i, Select) else i
    return arith.proves(binary("<=", load.buffer.shape[d], i)) or arith.proves(binary("<", i, const(0)))


def _is_zero(e: Expr, zero: Mapping[Buffer, set[int]], n: Stage, arith: Arith) -> bool:
    """True when ``e`` is exactly 0: only 0 * 0 counts, since 0 * x is not 0 for an infinite x."""
    if isinstance(e, Const):
        return bool(e.value == 0)
    if isinstance(e, Load):
        return any(_beyond_dim(e, d, n, arith) for d in zero.get(e.buffer, ()))
    if isinstance(e, Binary) and e.op in ("+", "-", "*", "min", "max"):
        return _is_zero(e.a, zero, n, arith) and _is_zero(e.b, zero, n, arith)
    if isinstance(e, Select):
        return _is_zero(e.a, zero, n, arith) and _is_zero(e.b, zero, n, arith)
    if (isinstance(e, Cast) and keeps_zero(e.a.dtype, e.dtype)) or (isinstance(e, Unary) and e.op == "-"):
        return _is_zero(e.a, zero, n, arith)
    return False
