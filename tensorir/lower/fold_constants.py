"""Pass: unroll loops that index constant tensors, and fold the coefficients into straight-line code.

Zeros and ones of a small known matrix (Winograd transforms, filter banks) save work only if the code shows them;
``#pragma unroll`` keeps multiplications by them. Here each iteration of such a loop is emitted separately: coefficients
1 and -1 vanish, selects by coefficients are resolved, and the terms of one register's sum become one expression.
Floats keep their bits: 0 * x is NaN for infinite x, so a term vanishes only if declared so (``where=K[k] != 0``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

from tensorir.arith.access import even
from tensorir.arith.affine import Arith, Linear, same, structure
from tensorir.ir.build import as_int, binary, cast, const
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.identities import identity
from tensorir.ir.tree import (
    Alloc,
    Binary,
    Broadcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Kind,
    Load,
    Loop,
    Program,
    Ramp,
    Scope,
    Select,
    Seq,
    Stmt,
    Store,
    Unary,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Pruner, Rewriter, find, has, let_all, sequence, substitute, swap_buffers, uses
from tensorir.lower.form import bound_loops, each_nest, kernel_arith, lowering, rewrap
from tensorir.target import Target


@lowering
def fold_constants(program: Program, target: Target) -> Program:
    """Unroll loops that index constant tensors, and fold the constants.

    gives: no unrolled loop whose variable picks an element of a constant tensor
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        if not any(n.buffer.data is not None for n in find(body, Load)):
            return nest
        arith = kernel_arith(program.known, axes, body)
        joined = Joiner(arith, loops=target.kind == "cpu")
        body = _Expand(arith, joined, {})(body)
        return rewrap(axes, NameBases(arith, joined.several)(body) if joined.loops else body)

    return each_nest(program, kernel)


def _picks(body: Stmt, var: Var) -> bool:
    return any(n.buffer.data is not None and uses(n.index[0], {var}) for n in find(body, Load))


class _Expand(Pruner):
    """Rewriter: write out loops that index constants, with ``values`` for their variables, folded coefficients and
    simplified sums.

    One traversal handles all nested loops; sides of selects excluded by ``values`` are not visited.
    """

    def __init__(self, arith: Arith, joined: Joiner, values: Mapping[Var, Expr]) -> None:
        self.arith, self.joined, self.values = arith, joined, values

    def on_Loop(self, n: Loop) -> Stmt:
        once = isinstance(n.extent, Const) and n.extent.value == 1
        if not once and (n.kind is not Kind.UNROLL or not _picks(n.body, n.var)):
            return self.pruned(n)
        each = (_Expand(self.arith, self.joined, {**self.values, n.var: const(k)}) for k in range(as_int(n.extent)))
        return self.joined(iteration(_with_own_arrays(n.body)) for iteration in each)

    def on_Seq(self, n: Seq) -> Stmt:
        return self.joined(self(s) for s in n.stmts)

    def on_Store(self, n: Store) -> Stmt:
        if self.values:
            n = n.replace(index=(self._index(n.index[0]),), value=self(n.value))
        same_cell = isinstance(n.value, Load) and n.value.buffer is n.buffer and same(n.value.index[0], n.index[0])
        return Seq(()) if same_cell else n

    def on_Load(self, n: Load) -> Expr:
        if not self.values:
            return n
        index = self._index(n.index[0])
        if n.buffer.data is not None and isinstance(index, Const) and 0 <= as_int(index) < len(n.buffer.data):
            return const(n.buffer.data[as_int(index)], n.dtype)
        return n.replace(index=(index,))

    def _index(self, i: Expr) -> Expr:
        if isinstance(i, Ramp):
            return i.replace(base=self._index(i.base))
        form = self.arith.linear(i)  # of what all iterations share, found once
        inside = [t for t in form.terms if not isinstance(t, Var) and uses(t, self.values)]
        if inside:
            return self.arith.linear(self(i)).expr()
        known = [t for t in form.terms if isinstance(t, Var) and t in self.values]
        start = form.constant + sum(form.terms[t] * as_int(self.values[t]) for t in known)
        return Linear({t: c for t, c in form.terms.items() if t not in self.values}, start).expr()

    def on_Var(self, n: Var) -> Expr:
        return self.values.get(n, n)

    def on_Cast(self, n: Cast) -> Expr:
        a = self(n.a)
        return n if a is n.a else cast(a, n.dtype)

    def on_Select(self, n: Select) -> Expr:
        if not self.values:
            return n
        cond = self(n.cond)
        if isinstance(cond, Const):
            return cast(self(n.a if cond.value else n.b), n.dtype)
        return n.replace(cond=cond, a=self(n.a), b=self(n.b))

    def on_Binary(self, n: Binary) -> Expr:
        if not self.values:
            return n
        n, was = self.children(n), n
        if n.dtype == "bool" or (n.dtype == "index" and n is not was):
            return binary(n.op, n.a, n.b)
        if n.dtype == "index":
            return n
        if n.op == "*":
            return product(n)
        return sum_of(n) if n.op in ("+", "-") else n


class _Allocate(Rewriter):
    def __init__(self, twins: dict[Buffer, Buffer]) -> None:
        self.twins = twins

    def on_Alloc(self, n: Alloc) -> Stmt:
        return self.within(n, lambda a, body: Alloc(self.twins[a.buffer], body))


def _with_own_arrays(s: Stmt) -> Stmt:
    """A copy of ``s`` with fresh buffers for its Allocs, ``s`` itself without Allocs."""
    twins = {a.buffer: a.buffer.replace(name=a.buffer.name) for a in find(s, Alloc)}
    return swap_buffers(_Allocate(twins)(s), twins) if twins else s


# Straight-line code that builds up registers, written as one would: a register's terms in one sum, loops over the
# same steps as one loop, and what the addresses of many terms have in common computed once.

REPEATED_ADDRESSES = 4
"""Addresses of one array that differ by a number, from which on their common part has a name."""
STEP_REGISTERS = 4
"""Register stores per iteration from which on ``NameBases`` treats a loop like several joined ones."""


class Joiner:
    """Merges statements: consecutive stores that accumulate into one register, and consecutive independent loops of
    register stores.

    loops: whether to join loops; compilers for GPUs make other code of it, not always better
    several: the variables of loops that were several
    """

    def __init__(self, arith: Arith, loops: bool) -> None:
        self.arith, self.loops = arith, loops
        self.several: set[Var] = set()

    def __call__(self, stmts: Iterable[Stmt]) -> Stmt:
        """``stmts`` in sequence, merged where possible."""
        out: list[Stmt] = []
        for s in _flat(stmts):
            last = out[-1] if out else None
            one: Stmt | None = None
            if isinstance(last, Store) and isinstance(s, Store):
                one = _sum(last, s)
            elif self.loops and isinstance(last, Loop) and isinstance(s, Loop):
                one = self._loop(last, s)
            if one is None:
                out.append(s)
            else:
                out[-1] = one
        return sequence(out)

    def _loop(self, first: Loop, then: Loop) -> Loop | None:
        """Fuse two loops whose steps are independent of each other; None if they are not."""
        if first.kind is not then.kind or not isinstance(first.extent, Const) or not same(first.extent, then.extent):
            return None
        mine, theirs = _stores(substitute(first.body, {first.var: then.var})), _stores(then.body)
        if not mine or not theirs or not _independent(mine, theirs, then.var, as_int(first.extent), self.arith):
            return None
        if then.var not in self.arith.ranges:
            self.arith.ranges[then.var] = (0, as_int(first.extent) - 1)
        self.several.add(then.var)
        return then.replace(body=self([*mine, *theirs]))


def _flat(stmts: Iterable[Stmt]) -> Iterable[Stmt]:
    for s in stmts:
        if isinstance(s, Seq):
            yield from _flat(s.stmts)
        else:
            yield s


def _sum(first: Store, then: Store) -> Store | None:
    """``r = a; r = r + b`` as ``r = a + b``, where b does not read r; None for other pairs of stores."""
    if first.buffer is not then.buffer or first.buffer.scope is not Scope.REGISTER:
        return None
    if not same(first.index[0], then.index[0]):
        return None
    if len([n for n in find(then.value, Load) if n.buffer is first.buffer]) != 1:
        return None
    value = _continued(first, then.value)
    return None if value is None else then.replace(value=value)


def _continued(first: Store, e: Expr) -> Expr | None:
    """Sum ``e`` with ``first``'s stored value substituted for its first term; None unless that loads the register just
    stored.
    """
    if isinstance(e, Load):
        return first.value if e.buffer is first.buffer and same(e.index[0], first.index[0]) else None
    if not isinstance(e, Binary) or e.op not in ("+", "-"):
        return None
    a = _continued(first, e.a)
    return None if a is None else sum_of(Binary(e.op, a, e.b, e.dtype))


def _stores(body: Stmt) -> list[Store]:
    """Statements of ``body`` in order if all are register stores, else []."""
    found = list(_flat([body]))
    stores = [s for s in found if isinstance(s, Store) and s.buffer.scope is Scope.REGISTER]
    return stores if len(stores) == len(found) else []


def _independent(mine: list[Store], theirs: list[Store], var: Var, steps: int, arith: Arith) -> bool:
    """True if each stored value depends on no written element but its own old value, and different steps write
    different elements.
    """
    every = [*mine, *theirs]
    written = {s.buffer for s in every}
    for s in every:
        others = [n for n in find(s.value, Load) if n.buffer in written]
        if any(n.buffer is not s.buffer or not same(n.index[0], s.index[0]) for n in others):
            return False
    return all(_apart(a, b, var, steps, arith) for a in mine for b in theirs if a.buffer is b.buffer)


def _apart(a: Store, b: Store, var: Var, steps: int, arith: Arith) -> bool:
    """True if step i of ``a`` and step j of ``b`` write different elements for all i != j."""
    (one, lanes), (other, more) = _base(a), _base(b)
    found, there = even(one, var, arith), even(other, var, arith)
    if found is None or there is None or found[0] != there[0] or lanes != more:
        return False
    step, between = abs(found[0]), found[1].plus(there[1], -1)
    if between.terms:
        return False
    far = abs(int(between.constant))
    return step >= lanes and (far == 0 or far >= step * (steps - 1) + lanes)


def _base(s: Store | Load) -> tuple[Expr, int]:
    """(index of the first element, number of elements) of a vector or scalar access."""
    i = s.index[0]
    return (i.base, i.lanes) if isinstance(i, Ramp) else (i, 1)


class NameBases(Rewriter):
    """Rewriter: name the common part of addresses that differ by constants, in loops that store several registers per
    step.

    Only there: elsewhere compilers do this, and some kernels get slower.
    """

    def __init__(self, arith: Arith, several: set[Var]) -> None:
        self.arith, self.several = arith, several

    def on_Loop(self, n: Loop) -> Loop:
        if n.var not in self.several and len(_stores(n.body)) < STEP_REGISTERS:
            return self.children(n)
        count: Counter[object] = Counter()
        parts: dict[object, tuple[Buffer, Linear]] = {}
        for x in find(n.body, Load):
            if (part := self._part(x)) is not None:
                count[part[0]] += 1
                parts.setdefault(part[0], (x.buffer, part[1]))
        names = {key: Var(f"{parts[key][0].name}_at", "index") for key, k in count.items() if k >= REPEATED_ADDRESSES}
        body = _Based(self, names)(n.body) if names else n.body
        return n.replace(body=let_all([(name, parts[key][1].expr()) for key, name in names.items()], body))

    def _part(self, x: Load) -> tuple[object, Linear] | None:
        """(key, linear form) of an address's variable part; None if it is one term or loaded data, or a register's."""
        base, _ = _base(x)
        if x.buffer.scope is Scope.REGISTER or has(base, Load):
            return None
        form = self.arith.linear(base)
        moving = Linear(form.terms, 0)
        if len(moving.terms) < 2:
            return None
        return (x.buffer, frozenset((structure(t), c) for t, c in moving.terms.items())), moving


class _Based(Rewriter):
    def __init__(self, name: NameBases, names: dict[object, Var]) -> None:
        self.name, self.names = name, names

    def on_Load(self, n: Load) -> Load:
        part = self.name._part(n)
        if part is None or part[0] not in self.names:
            return n
        i = n.index[0]
        form = self.name.arith.linear(i.base if isinstance(i, Ramp) else i)
        start = Linear({self.names[part[0]]: 1}, form.constant).expr()
        return n.replace(index=(i.replace(base=start) if isinstance(i, Ramp) else start,))


# --- sums


def value_of(e: Expr) -> object:
    """The constant that ``e`` equals in all lanes, else None."""
    e = e.value if isinstance(e, Broadcast) else e
    return e.value if isinstance(e, Const) else None


def product(n: Binary) -> Expr:
    """Simplified product: ``1 * x -> x``, ``-1 * x -> -x``; ``0 * x -> 0`` for integers only (0 * infinity is NaN)."""
    for a, b, left in ((n.a, n.b, True), (n.b, n.a, False)):
        value = value_of(a)
        if gives := identity("*", value, n.dtype, left):
            return b if gives == "x" else a
        if value == -1:
            return Unary("-", b, n.dtype)
    return n


def sum_of(n: Binary) -> Expr:
    """Simplified sum or difference: drops zero terms, ``a + -b -> a - b``; of integers ``0 - x -> -x``.

    A float zero is dropped only if the other term cannot be -0, as -0 + 0 is 0.
    """
    for a, b, left in ((n.a, n.b, True), (n.b, n.a, False)):
        value = value_of(a)
        if identity(n.op, value, n.dtype, left) or (value == 0 and not (left and n.op == "-") and _no_negative_zero(b)):
            return b
    if value_of(n.a) == 0 and n.op == "-" and not is_float(n.dtype):
        return _minus(n.b)
    opposite = _opposite(n.b)
    if opposite is not None:
        return Binary("-" if n.op == "+" else "+", n.a, opposite, n.dtype)
    return n


def _no_negative_zero(e: Expr) -> bool:
    """True for a float that is provably not -0 (a sum is -0 only if both terms are)."""
    value = value_of(e)
    if isinstance(value, int | float | Fraction):
        return value != 0 or math.copysign(1, value) > 0
    if isinstance(e, Binary) and e.op == "+":
        return _no_negative_zero(e.a) or _no_negative_zero(e.b)
    return isinstance(e, Binary) and e.op == "-" and _no_negative_zero(e.a)


def _minus(e: Expr) -> Expr:
    if isinstance(e, Binary) and e.op == "*":
        for a, b, first in ((e.a, e.b, True), (e.b, e.a, False)):
            value = value_of(a)
            if isinstance(value, int | float | Fraction) and _has(e.dtype, -value):
                c = _like(a, -value)
                return Binary("*", *((c, b) if first else (b, c)), e.dtype)
    return _opposite(e) or Unary("-", e, e.dtype)


def _has(dtype: str, value: int | float | Fraction) -> bool:
    """True if ``value`` is in the range of ``dtype``, always for floats; int8 has no 128."""
    kind = DTYPES[dtype]
    return kind.kind == "f" or kind.low <= value <= kind.high


def _like(e: Expr, value: int | float | Fraction) -> Expr:
    """Constant ``value`` with the dtype and lanes of ``e``."""
    c = const(value, e.dtype)
    return Broadcast(c, e.lanes, e.dtype) if isinstance(e, Broadcast) else c


def _opposite(e: Expr) -> Expr | None:
    """``-e`` if simpler than ``e``, else None."""
    if isinstance(e, Unary) and e.op == "-":
        return e.a
    if isinstance(e, Binary) and e.op == "*":
        for a, b, first in ((e.a, e.b, True), (e.b, e.a, False)):
            value = value_of(a)
            if isinstance(value, int | float | Fraction) and value < 0 and _has(e.dtype, -value):
                c = _like(a, -value)
                return Binary("*", *((c, b) if first else (b, c)), e.dtype)
    return None
