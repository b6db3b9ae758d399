"""Pass: vector loops become vector loads, stores and arithmetic, or unrolled scalar code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from tensorir.arith.access import even
from tensorir.arith.affine import Arith, Linear, same
from tensorir.arith.conditions import conjunction, conjuncts, weakest
from tensorir.arith.quotients import without_division
from tensorir.ir.build import SHIFTS, as_expr, as_int, binary, cast, const, select
from tensorir.ir.dtypes import DTYPES, WIDENED
from tensorir.ir.lanes import lanes_of
from tensorir.ir.marks import Remark
from tensorir.ir.shared import once
from tensorir.ir.tree import (
    Alloc,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    If,
    Kind,
    Let,
    Load,
    Loop,
    Pack,
    Program,
    Ramp,
    Region,
    Scope,
    Select,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Unary,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, has, sequence, substitute, uses, walk, with_own_names
from tensorir.lower import lane_conditions
from tensorir.lower.boxes import without_unread
from tensorir.lower.form import bound_loops, each_nest, kernel_arith, lowering, rewrap
from tensorir.lower.lane_conditions import NoMask, added_where, ending, is_monotonic, mask, speculable
from tensorir.lower.lane_orders import Permuted, permuted, steps_of
from tensorir.lower.moves import carriers, moves
from tensorir.lower.scan_lanes import InLanes, scan_of
from tensorir.target import Target

CONVERTED = (*sorted(WIDENED), "bool")
"""Element types that are converted one by one on their way between memory and registers; CUDA moves narrow floats from
one array to another as they are."""
HALVES = ("float16", "bfloat16")
"""Element types of which CPUs convert a vector at once between memory and float32."""
_PAIR_SCOPES = (Scope.WARP,)
"""Where 16-bit floats are pairs in registers as well, since instructions read them there."""


class _Scalar(Exception):
    """The body has no vector form on this target; the message gives the reason if a user can change it."""


@lowering
def vectorize(program: Program, target: Target) -> Program:
    """Replace vector loops by vector operations, or unroll them where the target has none.

    gives: no VECTOR loop; register tiles that are only touched in whole aligned vectors hold vectors

    CUDA has vector loads and stores of up to 16 bytes but no vector arithmetic: only copies keep their vectors there.
    A condition must be the same for all lanes, or on CPUs known in each once unrolled loops around it are written out;
    where it is not, the vector loop is unrolled instead.
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        body = without_unread(body)  # arrays of one element, which would keep their stages scalar
        arith = kernel_arith(program.known, axes, body)
        raw = carriers(body) if target.family == "cuda" else set()
        return rewrap(axes, _vector_tiles(_Vectorize(arith, target, raw, _partly(body))(body), arith))

    return each_nest(program, kernel)


def _partly(body: Stmt) -> set[Buffer]:
    """Buffers written under a condition without a previous read: elements may keep old values."""
    stores = [s for n in find(body, If) for s in find(n.then, Store)]
    return {s.buffer for s in stores if not any(x.buffer is s.buffer for x in find(s.value, Load))}


class _Vectorize(Rewriter):
    def __init__(self, arith: Arith, target: Target, raw: set[Buffer], partly: set[Buffer]) -> None:
        self.arith, self.target, self.raw, self.partly = arith, target, raw, partly

    def on_Loop(self, n: Loop) -> Stmt:
        if n.kind is not Kind.VECTOR:
            if n.kind is Kind.UNROLL and self.target.kind == "cpu" and _decides_lanes(n):
                times = range(as_int(n.extent))
                return sequence([self(substitute(with_own_names(n.body), {n.var: const(k)})) for k in times])
            return self.children(n)
        lanes = as_int(n.extent)
        if self.target.family == "cuda":
            moving = [x for x in find(n, (Load, Store)) if isinstance(x, Load | Store) and uses(x, {n.var})]
            widest = 16 // max([DTYPES[x.buffer.dtype].bits // 8 for x in moving], default=4)
            if lanes > widest > 1:
                return self._in_parts(n, lanes, widest)
        elif self.target.family == "c":
            widest = max(1, self.target.vector_bytes // _lane_bytes(n))
            if lanes > widest and lanes % widest == 0:  # compilers lower wider ones through memory
                return self._in_parts(n, lanes, widest)
        elif self.target.kind != "cpu" and lanes > 8:
            return self._in_parts(n, lanes, 8)  # vload16 and vstore16 are broken in a widely used runtime
        wide = _Lanes(n.var, lanes, self.arith, self.target, self.raw, self.partly)
        try:
            return wide.whole(n.body)
        except _Scalar as why:
            if (parts := wide.value_ending(n)) is not None:
                return parts
            said = self.target.family != "cuda" or any(_moved(s) for s in find(n.body, Store))
            return n.replace(kind=Kind.UNROLL).marked(Remark(f"not in vectors: {why}" if said else ""))

    def _in_parts(self, n: Loop, lanes: int, widest: int) -> Stmt:
        outer, inner = Var(f"{n.var.name}.v", "index"), Var(n.var.name, "index")
        self.arith.ranges[outer], self.arith.ranges[inner] = (0, lanes // widest - 1), (0, widest - 1)
        body = _Linear(self.arith)(substitute(n.body, {n.var: outer * widest + inner}))
        part = self.on_Loop(Loop(inner, as_expr(widest), body, Kind.VECTOR))
        if isinstance(part, Loop):
            return n.replace(kind=Kind.UNROLL).marked(Remark.of(part))
        return Loop(outer, as_expr(lanes // widest), part, Kind.UNROLL)


def _lane_bytes(n: Loop) -> int:
    """Bytes of the widest element in the vectors of loop ``n``; 4 for narrow floats, which are computed in float32."""
    moving = [x for x in walk(n) if isinstance(x, Expr | Store) and uses(x, {n.var})]
    kinds = {x.buffer.dtype if isinstance(x, Store) else x.dtype for x in moving} - {"index", "bool"}
    return max((4 if k in WIDENED else DTYPES[k].bits // 8 for k in kinds), default=4)


def _decides_lanes(n: Loop) -> bool:
    """True if a select in an inner vector loop compares its lane with the variable of loop ``n``."""
    for vector in find(n.body, Loop, lambda x: x.kind is Kind.VECTOR):
        for choice in find(vector.body, Select):
            if any(uses(c, {n.var}) and uses(c, {vector.var}) for c in conjuncts(choice.cond)):
                return True
    return False


class _Linear(Rewriter):
    """Rewriter: normalize indices after a substitution."""

    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def on_Load(self, n: Load) -> Load:
        return n.replace(index=(self.arith.linear(self(n.index[0])).expr(),))

    def on_Store(self, n: Store) -> Store:
        return n.replace(index=(self.arith.linear(self(n.index[0])).expr(),), value=self(n.value))


class _Lanes:
    """Vectorizer of one loop: translates statements and expressions to all lanes at once."""

    def __init__(
        self, var: Var, lanes: int, arith: Arith, target: Target, raw: set[Buffer], partly: set[Buffer]
    ) -> None:
        self.var, self.lanes, self.arith, self.target, self.raw, self.partly = var, lanes, arith, target, raw, partly
        self.copies_only, self.stored = target.family == "cuda", dict[Expr, Scope]()

    def whole(self, body: Stmt) -> Stmt:
        """Vector form of a loop body, for all lanes; raises _Scalar if it has none."""
        if isinstance(body, If) and scan_of(body.then, self.var) is not None:
            return self._ending(body, self.whole, Loop(self.var, as_expr(self.lanes), body, Kind.SERIAL))
        scan = scan_of(body, self.var)
        if scan is None:
            return self.stmt(body)
        if self.target.kind != "cpu" or any(c.dtype in CONVERTED for c in scan.carries):
            raise _Scalar("lanes of a scan are combined one by one")
        return InLanes(scan, self.var, self.lanes, lambda e: self._wide(self.expr(e)), self._store).result()

    def value_ending(self, n: Loop) -> Stmt | None:
        """A value ending inside a vector: vectorized if all lanes satisfy the condition, else a scalar loop; None for
        other stores.
        """
        s = n.body
        if self.target.kind != "cpu" or not isinstance(s, Store) or s.buffer.scope is Scope.REGISTER:
            return None
        if not isinstance(s.value, Select) or not isinstance(s.value.b, Const):
            return None
        cond = s.value.cond
        if not all(is_monotonic(c, self.var, self.arith) for c in conjuncts(cond)):
            return None
        inside, every = ending(If(cond, s.replace(value=s.value.a)), self.var, self.lanes, self.arith)
        rest: Stmt = n.replace(kind=Kind.SERIAL)
        try:
            whole = If(every, self.stmt(inside))
            if (none := lane_conditions.beyond(cond, self.var, self.lanes, self.arith)) is not None:
                rest = sequence([If(none, self.stmt(s.replace(value=s.value.b))), If(Unary("not", none, "bool"), rest)])
        except _Scalar:
            return None
        return sequence([whole, If(Unary("not", every, "bool"), rest)])

    def stmt(self, s: Stmt) -> Stmt:
        if isinstance(s, Seq):
            return sequence([self.stmt(x) for x in s.stmts])
        if isinstance(s, If):
            return self._if(s)
        if isinstance(s, Store):
            return self._store(s)
        if isinstance(s, Let) and not self.copies_only:
            if uses(s.value, {self.var}):
                return self.stmt(_in_memory(s, self.var, self.lanes))
            return s.replace(body=self.stmt(s.body))
        if isinstance(s, Alloc) and not self.copies_only:
            return s.replace(body=self.stmt(s.body))
        raise _Scalar("there is more in the loop than stores")

    def _if(self, s: If) -> Stmt:
        """Vector form of a conditional statement; raises _Scalar if it has none.

        Under one scalar condition; in vectors of the first lanes, if these alone satisfy it; else with a test that all
        lanes do, and without vectors (or with masked terms, in an accumulation) where some do not.
        """
        try:
            cond = self._same_for_all(s.cond)
        except _Scalar:
            if self.target.kind != "cpu":
                raise
            if (first := self._first_lanes(s.cond)) is not None:
                return self._of_first(s, first)
            parts = conjuncts(s.cond)
            mine = s.replace(cond=conjunction(c for c in parts if uses(c, {self.var})))
            rest = self._lane_by_lane_where(mine)
            return If(conjunction(c for c in parts if not uses(c, {self.var})), self._ending(mine, self.stmt, rest))
        return If(cond, self.stmt(s.then))

    def _lane_by_lane_where(self, s: If) -> Stmt:
        """A conditional statement whose lanes disagree: masked terms in an accumulation, else a scalar loop."""
        added = added_where(s.cond, s.then, self.var)
        if added is not None and added.buffer not in self.partly:  # else lanes beyond add to what nobody has written
            with suppress(_Scalar):
                return self._store(added)
        held = any(
            isinstance(x, Load | Store) and x.buffer.scope is Scope.REGISTER for x in find(s.then, (Load, Store))
        )
        return Loop(self.var, as_expr(self.lanes), s, Kind.UNROLL if held else Kind.SERIAL)  # registers have no numbers

    def _ending(self, s: If, form: Callable[[Stmt], Stmt], rest: Stmt) -> Stmt:
        """``if (c in all lanes) form(s) else rest``, for a condition that ends inside a vector; ``rest`` alone if it
        holds vectors and the condition ends elsewhere.
        """
        serial = isinstance(rest, Loop)
        monotonic = all(is_monotonic(c, self.var, self.arith) for c in conjuncts(s.cond))
        inside, every = ending(s, self.var, self.lanes, self.arith) if monotonic else (s, const(False, "bool"))
        if isinstance(every, Const) and not every.value:
            if serial:
                raise _Scalar("its condition differs from lane to lane")
            return rest
        return sequence([If(every, form(inside)), If(Unary("not", every, "bool"), rest)])

    def _of_first(self, s: If, first: int) -> Stmt:
        """``s.then`` in the first lanes only: in one vector, or in vectors of 8, 4 and 2 lanes and single elements."""
        if first in (4, 8, 16) and self.lanes % first == 0:
            return _Lanes(self.var, first, self.arith, self.target, self.raw, self.partly).stmt(s.then)
        added = added_where(s.cond, s.then, self.var)
        if added is not None and added.buffer not in self.partly:
            return self._store(added)
        parts, start = list[Stmt](), 0
        while start < first:
            wide = min(8, 1 << (first - start).bit_length() - 1)
            parts.append(self._part(s.then, start, wide))
            start += wide
        return sequence(parts)

    def _part(self, s: Stmt, start: int, lanes: int) -> Stmt:
        """``s`` in ``lanes`` lanes from ``start`` on."""
        if lanes == 1:
            return _Linear(self.arith)(substitute(s, {self.var: const(start)}))  # type: ignore[no-any-return]
        lane = Var(self.var.name, "index")
        self.arith.ranges[lane] = (0, lanes - 1)
        part = _Linear(self.arith)(substitute(s, {self.var: lane + start}))
        return _Lanes(lane, lanes, self.arith, self.target, self.raw, self.partly).stmt(part)

    def _first_lanes(self, cond: Expr) -> int | None:
        """n if ``cond`` provably holds in the first n >= 1 lanes and in no other, else None."""
        decided = [self.arith.simplify(substitute(cond, {self.var: const(k)})) for k in range(self.lanes)]
        held = [bool(d.value) for d in decided if isinstance(d, Const)]
        first = sum(held)
        return first if len(held) == self.lanes and first and all(held[:first]) else None

    def _permuted(self, i: Expr) -> Permuted | None:
        """The elements of a vector in memory that lanes access in another order; None if they do not."""
        return permuted(i, self.var, self.lanes, self.arith) if self.target.kind == "cpu" else None

    def _store(self, s: Store) -> Stmt:
        if self._converted(s.buffer):
            raise _Scalar(f"elements of {s.buffer.name} ({s.buffer.dtype}) are converted one by one")
        if s.adds:
            raise _Scalar(f"lanes add to {s.buffer.name} atomically, one by one")
        if s.buffer.dtype not in CONVERTED and (place := self._permuted(s.index[0])) is not None:
            return s.replace(index=(place.at,), value=place.stored(self._wide(self.expr(s.value))))
        try:
            index = self._index(s.index[0])
        except _Scalar as why:
            raise _Scalar(f"what lanes write of {s.buffer.name} {why}") from None
        if not isinstance(index, Ramp):
            raise _Scalar(f"all lanes write the same element of {s.buffer.name}")
        if self.copies_only and (not _is_copy(s.value) or (s.buffer.dtype in CONVERTED and not moves(s))):
            return self._computed(s, index)
        self.stored[s.value] = s.buffer.scope
        value = self._wide(self._rounded(s) if s.buffer.dtype in HALVES else self.expr(s.value))
        if self.copies_only and s.buffer.dtype in CONVERTED and not _as_it_is(value):  # it is held in floats
            return self._computed(s, index)
        if self.copies_only and self.lanes > 4 and not _as_it_is(value):
            raise _Scalar("elements are put together one by one")  # such vectors are printed as words
        return s.replace(index=(index,), value=value)

    def _rounded(self, s: Store) -> Expr:
        """Value of a store to halves over all lanes: the store rounds what is converted last."""
        x = s.value
        if self.copies_only or not isinstance(x, Cast) or x.a.dtype not in ("float32", *HALVES) or x.dtype == x.a.dtype:
            return self.expr(x)
        return Cast(self._wide(self.expr(x.a)), x.dtype)

    def _computed(self, s: Store, index: Ramp) -> Stmt:
        """A vector store of elements computed one by one; consecutive loads for them become vector loads. Raises
        _Scalar if the target has no such vector.
        """
        words = s.buffer.dtype in CONVERTED
        if s.buffer.dtype == "bool" or s.buffer.scope not in (
            Scope.GLOBAL,
            Scope.SHARED,
            *(_PAIR_SCOPES if words else ()),
        ):
            raise _Scalar(f"elements of {s.buffer.name} are computed one by one")
        if (self.lanes > 4 and not words) or DTYPES[s.buffer.dtype].bits * self.lanes < 32:
            raise _Scalar(f"there is no vector of {self.lanes} elements of {s.buffer.name} ({s.buffer.dtype})")
        value, filled = self._read_ahead(s.value)
        packed = Pack(tuple(self._lane(value, k) for k in range(self.lanes)), s.buffer.dtype)
        done: Stmt = sequence([*filled, s.replace(index=(index,), value=packed)])
        for fill in filled:
            done = Alloc(fill.buffer, done)
        return done

    def _read_ahead(self, value: Expr) -> tuple[Expr, list[Store]]:
        """(``value`` reading registers, stores that fill them by vector loads) for consecutive loads."""
        ahead, filled = _Ahead(), list[Store]()
        for x in _always_read(value):
            if ahead.held(x) is None and (first := self._read_at_once(x)) is not None:
                b = Buffer(f"{x.buffer.name}_lanes", (as_expr(self.lanes),), x.dtype, Scope.REGISTER)
                ahead.known[x] = Load(b, (self.var,), x.dtype)
                filled.append(Store(b, (Ramp(const(0), self.lanes, "index"),), Load(x.buffer, (first,), x.dtype)))
        return (ahead(value) if filled else value), filled

    def _read_at_once(self, x: Load) -> Ramp | None:
        """Ramp of a load's index if lanes read one aligned vector from memory, else None."""
        bits = DTYPES[x.dtype].bits * self.lanes
        if x.buffer.scope not in (Scope.GLOBAL, Scope.SHARED) or x.dtype == "bool" or bits not in (32, 64, 128):
            return None
        try:
            index = self._index(x.index[0])
        except _Scalar:
            return None
        return index if isinstance(index, Ramp) else None

    def _converted(self, b: Buffer) -> bool:
        """True if elements of ``b`` are stored in another type than they are computed in."""
        as_bits = self.copies_only and b.dtype != "bool" and (b.scope is not Scope.REGISTER or b in self.raw)
        at_once = self.target.kind == "cpu" and b.dtype in HALVES and b.scope is Scope.GLOBAL
        return b.dtype in CONVERTED and not as_bits and not at_once

    def _index(self, i: Expr) -> Expr:
        """Index over all lanes: a Ramp if consecutive, a scalar if constant; raises _Scalar for others."""
        found = even(i, self.var, self.arith)
        if found is None or found[0] not in (0, 1):
            raise _Scalar("is not side by side")
        step, base = found
        if step == 0:
            return base.expr()
        start = base.expr()
        if self.copies_only and not self.arith.is_multiple(start, self.lanes):
            raise _Scalar("is not known to be aligned")  # CUDA has no other vectors
        return Ramp(start, self.lanes, "index")

    def _same_for_all(self, cond: Expr) -> Expr:
        """``cond`` rewritten without the lane; raises _Scalar unless all lanes provably agree."""
        out: Expr = const(True, "bool")
        for c in conjuncts(cond):
            if isinstance(c, Binary) and c.a.dtype == "bool":  # bits of a vector's place decide, not those of a lane
                c = self.arith.simplify(c)
            if not uses(c, {self.var}):
                out = binary("and", out, c)
                continue
            # comparisons are monotonic in the lane: equal at both ends is equal everywhere
            if not isinstance(c, Binary) or not is_monotonic(c, self.var, self.arith):
                raise _Scalar("its condition differs from lane to lane")
            first, last = (substitute(c, {self.var: const(k)}) for k in (0, self.lanes - 1))
            ranges = {v: r for v, r in self.arith.ranges.items() if v is not self.var}
            rounded = lane_conditions.aligned(c, self.var, self.lanes, self.arith)
            if rounded is not None:
                out = binary("and", out, rounded)
                continue
            if not (Arith(ranges, [first]).proves(last) and Arith(ranges, [last]).proves(first)):
                raise _Scalar("its condition differs from lane to lane")
            out = binary("and", out, first)
        return self.arith.simplify(out)

    @once
    def expr(self, e: Expr) -> Expr:
        """``e`` over all lanes: a vector, or a scalar common to them; raises _Scalar if it has no such form."""
        if not uses(e, {self.var}):
            return e
        match e:
            case Load():
                try:
                    index = self._index(e.index[0])
                except _Scalar as why:
                    place = None if e.buffer.dtype in CONVERTED else self._permuted(e.index[0])
                    if place is None:
                        return self._gather(e, str(why))
                    return place.loaded(Load(e.buffer, (place.at,), e.dtype))
                if self._converted(e.buffer):
                    return self._gather(e, "is converted")
                return Load(e.buffer, (index,), e.dtype)
            case Select():
                return self._select(e)
            case Cast() if e.a.dtype == "bool":
                return self.expr(select(e.a, const(1, e.dtype), const(0, e.dtype)))
            case Cast() if e.a.dtype == "index" and (numbers := self._numbers(e.a, e.dtype)) is not None:
                return numbers
            case Cast():
                if e.dtype in WIDENED and e.dtype != e.a.dtype:
                    raise _Scalar(f"numbers are rounded to {e.dtype} one by one")
                return Cast(self._wide(self.expr(e.a)), e.dtype)
            case Unary():
                if e.dtype == "bool":
                    raise _Scalar("a condition is no number in vectors")
                return Unary(e.op, self._wide(self.expr(e.a)), e.dtype)
            case Binary():
                if e.dtype == "bool":
                    raise _Scalar("a condition is no number in vectors")
                if e.op in ("//", "%"):
                    if self.target.kind != "cpu" or (other := without_division(e)) is None:
                        raise _Scalar("integers are divided one by one")
                    return self.expr(other)
                if e.op in SHIFTS and not self.arith.shifts_plainly(e):
                    raise _Scalar("a helper shifts by a number of bits that may be any")
                return Binary(e.op, self._wide(self.expr(e.a)), self._wide(self.expr(e.b)), e.dtype)
            case Call():
                if e.fn == "power":
                    raise _Scalar("integers are raised to powers one by one")
                if e.fn == "bitcast" and (e.dtype in WIDENED or e.args[0].dtype in WIDENED):
                    raise _Scalar("a helper takes narrow floats for bits, one by one")
                return Call(e.fn, tuple(self._wide(self.expr(a)) for a in e.args), e.dtype)
        return Pack(tuple(self._lane(e, k) for k in range(self.lanes)), e.dtype)

    def _numbers(self, e: Expr, dtype: str) -> Expr | None:
        """An index as a vector of at most 32 bits; None if it may exceed ``dtype``, or lanes differ by no constants."""
        kind, (low, high) = DTYPES[dtype], self.arith.range(e)
        found = steps_of(self.arith.linear(e), self.var, self.lanes)
        if found is None or kind.kind not in "iu" or kind.bits > 32 or low < kind.low or high > kind.high:
            return None
        rest, steps = found
        if not rest.terms:
            return Pack(tuple(const(rest.constant + k, dtype) for k in steps), dtype)
        first = Broadcast(cast(rest.expr(), dtype), self.lanes, dtype)
        return Binary("+", first, Pack(tuple(const(k, dtype) for k in steps), dtype), dtype)

    def _select(self, e: Select) -> Expr:
        try:
            cond, chosen = self._same_for_all(e.cond), self._wide(self.expr(e.a))
        except _Scalar:
            if self.target.kind != "cpu":
                raise
            if not _is_copy(e.a):  # what is computed lane by lane is in no vector
                with suppress(_Scalar):
                    return self._masked(e)
            try:
                cond, chosen = self._lane_by_lane(e)
            except _Scalar:
                return self._masked(e)
        return select_wide(cond, chosen, self._wide(self.expr(e.b)))

    def _masked(self, e: Select) -> Expr:
        """A select over vectors: both sides are computed in all lanes and blended by a mask; raises _Scalar if
        computing the unselected side is unsafe.
        """
        if e.dtype in CONVERTED or not (speculable(e.a, self.arith) and speculable(e.b, self.arith)):
            return self._all_or_each(e)
        try:
            chosen = mask(e.cond, self.var, self.lanes, self.arith, lambda x: self._wide(self.expr(x)))
        except NoMask:
            raise _Scalar("a condition has no form in vectors") from None
        return Select(chosen, self._wide(self.expr(e.a)), self._wide(self.expr(e.b)), e.dtype)

    def _all_or_each(self, e: Select) -> Expr:
        """A read with a border that moves with a loop: one vector where all lanes are within, else lane by lane."""
        asked = [c for c in conjuncts(e.cond) if uses(c, {self.var})]
        if not isinstance(e.a, Load) or not all(is_monotonic(c, self.var, self.arith) for c in asked):
            raise _Scalar("one side of a choice may not be computed where the other is chosen")
        if self.stored.get(e, Scope.REGISTER) is not Scope.REGISTER:  # each lane is stored sooner than put in a vector
            raise _Scalar("not all lanes of a copy are within its border")
        ends = [substitute(c, {self.var: const(k)}) for c in asked for k in (0, self.lanes - 1)]
        same_for_all = [c for c in conjuncts(e.cond) if not uses(c, {self.var})]
        return self._or_each(conjunction([*same_for_all, *weakest(ends, self.arith)]), e.a, e)

    def _or_each(self, inside: Expr, plain: Load, e: Expr) -> Expr:
        """One vector, of ``plain``, where all lanes are ``inside``, else lane by lane."""
        if not isinstance(together := self.expr(plain), Load):
            raise _Scalar(f"what lanes read of {plain.buffer.name} is not side by side")
        each = Pack(tuple(self._lane(e, k) for k in range(self.lanes)), e.dtype)
        return Select(self.arith.simplify(inside), together, each, e.dtype)

    def _lane_by_lane(self, e: Select) -> tuple[Expr, Expr]:
        """(scalar condition common to all lanes, the select decided per lane at compile time); raises _Scalar if loaded
        data decide.
        """
        shared: Expr = const(True, "bool")
        picked = [True] * self.lanes
        for c in conjuncts(e.cond):
            try:
                shared = binary("and", shared, self._same_for_all(c))
            except _Scalar:
                if c.holds & Load.BIT:  # what data decide no lane knows
                    raise
                decided = [self.arith.simplify(substitute(c, {self.var: const(k)})) for k in range(self.lanes)]
                if not all(isinstance(d, Const) for d in decided):
                    raise
                picked = [p and bool(d.value) for p, d in zip(picked, decided, strict=True) if isinstance(d, Const)]
        return shared, Pack(tuple(self._lane(e.a if p else e.b, k) for k, p in enumerate(picked)), e.dtype)

    def _gather(self, e: Load, why: str) -> Expr:
        if self.copies_only and e.buffer.scope is Scope.GLOBAL:
            raise _Scalar(f"what lanes read of {e.buffer.name} {why}")
        found = None if has(e.index[0], Load) else self.arith.linear(e.index[0]).along(self.var)
        if found is None:
            if (
                self.target.kind == "cpu"
                and (inside := lane_conditions.unclamped(e, self.var, self.lanes, self.arith)) is not None
            ):
                with suppress(_Scalar):
                    return self._or_each(*inside, e)
            numbers = self._places(e.index[0]) if self.target.kind == "cpu" else {}
            picked = _Swap(numbers)(e) if numbers else e
            taken = [{v: Shuffle(x, x, (k,), v.dtype) for v, x in numbers.values()} for k in range(self.lanes)]
            return Pack(tuple(substitute(self._lane(picked, k), taken[k]) for k in range(self.lanes)), e.dtype)
        index = [Linear(found[1].terms, found[1].constant + found[0] * k).expr() for k in range(self.lanes)]
        return Pack(tuple(Load(e.buffer, (i,), e.dtype) for i in index), e.dtype)

    def _places(self, index: Expr) -> dict[Expr, tuple[Var, Expr]]:
        """(variable, vector) for each number in a gather's index that takes operations on data: lanes pick theirs."""
        found: dict[Expr, tuple[Var, Expr]] = {}
        for x in find(index, Cast, lambda c: c.dtype == "index" and c.a.dtype != "index" and uses(c.a, {self.var})):
            inner = [y for y in find(x.a, Expr) if isinstance(y, Binary | Call) and y.dtype not in ("index", "bool")]
            if x.a not in found and len(inner) > 1:
                with suppress(_Scalar):
                    found[x.a] = Var("place", x.a.dtype), self._wide(self.expr(x.a))
        return found

    def _lane(self, e: Expr, k: int) -> Expr:
        return _Linear(self.arith)(substitute(e, {self.var: const(k)}))  # type: ignore[no-any-return]

    def _wide(self, e: Expr) -> Expr:
        return e if lanes_of(e) > 1 else Broadcast(e, self.lanes, e.dtype)


class _Swap(Rewriter):
    """Rewriter: numbers that are cast to indices become variables."""

    def __init__(self, swap: Mapping[Expr, tuple[Var, Expr]]) -> None:
        self.swap = swap

    def on_Cast(self, n: Cast) -> Expr:
        return n.replace(a=self.swap[n.a][0]) if n.a in self.swap else self.children(n)


def _in_memory(s: Let, var: Var, lanes: int) -> Stmt:
    """A per-lane Let as a register array with one element per lane."""
    buffer = Buffer(s.var.name, (as_expr(lanes),), s.var.dtype, Scope.REGISTER)
    kept = Load(buffer, (var,), s.var.dtype)
    return Alloc(buffer, Seq((Store(buffer, (var,), s.value), substitute(s.body, {s.var: kept}))))


# --- loads ahead


class _Ahead(Rewriter):
    """Rewriter: loads from memory become loads from prefetched registers."""

    def __init__(self) -> None:
        self.known: dict[Load, Load] = {}

    def held(self, x: Load) -> Load | None:
        """The register load that replaces load ``x``, None if ``x`` was not prefetched."""
        return next((held for read, held in self.known.items() if same(read, x)), None)

    def on_Load(self, n: Load) -> Load:
        found = self.held(n)
        return self.children(n) if found is None else found


def _always_read(e: Expr) -> list[Load]:
    """Loads that ``e`` executes whatever the conditions of its selects are."""
    found: list[Load] = []
    todo, seen = [e], set[Expr]()
    while todo:
        x = todo.pop()
        if x in seen:
            continue
        seen.add(x)
        if isinstance(x, Load):
            found.append(x)
        if isinstance(x, Select):
            todo.append(x.cond)
        elif isinstance(x, Binary) and x.op in ("and", "or"):
            todo.append(x.a)
        else:
            todo += (c for c in x.backwards() if isinstance(c, Expr))
    return found


def select_wide(cond: Expr, a: Expr, b: Expr) -> Expr:
    """A vector select by one scalar condition; ``a`` or ``b`` itself if that is constant."""
    if isinstance(cond, Const):
        return a if cond.value else b
    return Select(cond, a, b, a.dtype)


@once
def _is_copy(e: Expr) -> bool:
    if isinstance(e, Select):
        return _is_copy(e.a) and _is_copy(e.b)
    return isinstance(e, Load | Const)


def _moved(s: Store) -> bool:
    """True for stores to memory, and for plain copies from it: the vector operations that CUDA has."""
    return s.buffer.scope is not Scope.REGISTER or (
        _is_copy(s.value) and any(x.buffer.scope is not Scope.REGISTER for x in find(s.value, Load))
    )


@once
def _as_it_is(e: Expr) -> bool:
    """True for a whole-vector load, or 0."""
    if isinstance(e, Select):
        return _as_it_is(e.a) and _as_it_is(e.b)
    if isinstance(e, Broadcast):
        return isinstance(e.value, Const) and e.value.value == 0
    return isinstance(e, Load)


def _vector_tiles(body: Stmt, arith: Arith) -> Stmt:
    """``body`` with register arrays accessed only as whole aligned vectors of one width turned into arrays of
    vectors.
    """
    widths: dict[Buffer, set[int]] = {}
    for n in find(body, (Load, Store, Region)):
        if isinstance(n, Load | Store) and n.buffer.scope is Scope.REGISTER:
            i = n.index[0]
            aligned = isinstance(i, Ramp) and arith.is_multiple(i.base, i.lanes)
            widths.setdefault(n.buffer, set()).add(i.lanes if isinstance(i, Ramp) and aligned else 0)
        elif isinstance(n, Region):  # instructions address single elements
            widths.setdefault(n.buffer, set()).add(0)
    swap: dict[Buffer, Buffer] = {}
    for b, found in widths.items():
        if len(found) == 1 and (lanes := next(iter(found))):
            size = -(-as_int(b.shape[0]) // lanes)
            swap[b] = b.replace(shape=(as_expr(size),), lanes=lanes)
    return _Tiles(swap, arith)(body) if swap else body


class _Tiles(Rewriter):
    def __init__(self, swap: dict[Buffer, Buffer], arith: Arith) -> None:
        self.swap, self.arith = swap, arith

    def _index(self, i: Expr) -> tuple[Expr]:
        assert isinstance(i, Ramp)
        form = self.arith.linear(i.base)
        return (Linear({t: c // i.lanes for t, c in form.terms.items()}, form.constant // i.lanes).expr(),)

    def on_Load(self, n: Load) -> Load:
        if n.buffer in self.swap:
            return Load(self.swap[n.buffer], self._index(n.index[0]), n.dtype)
        return self.children(n)

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        if n.buffer in self.swap:
            return n.replace(buffer=self.swap[n.buffer], index=self._index(n.index[0]))
        return n

    def on_Alloc(self, n: Alloc) -> Stmt:
        return self.within(n, lambda a, body: Alloc(self.swap.get(a.buffer, a.buffer), body))
