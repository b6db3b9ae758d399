"""Analysis: loops whose iterations touch distinct elements, so the interpreter can run them at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tensorir.arith.affine import Arith, Interval, Linear
from tensorir.ir.build import as_int
from tensorir.ir.tree import (
    Alloc,
    Buffer,
    Const,
    Expr,
    If,
    Let,
    Load,
    Loop,
    Prefetch,
    Ramp,
    Scope,
    Seq,
    Stmt,
    Store,
    Var,
)  # fmt: skip
from tensorir.ir.visit import find, has, walk

PRIVATE_SCOPES = (Scope.WARP, Scope.REGISTER)
"""Each thread has a copy of its own."""


@dataclass(frozen=True)
class _Access:
    """Access to elements ``form`` to ``form + width - 1`` of a buffer under the facts ``arith``."""

    form: Linear
    width: int
    arith: Arith


class DistinctCells:
    """``DistinctCells(axes, body, alone)(loop)`` is True if no element is accessed by two iterations of the loop, apart
    from elements that are only read and arrays allocated in an iteration.

    alone: True if blocks have one thread, whose shared memory is private
    """

    def __init__(self, axes: Iterable[Loop], body: Stmt, alone: bool) -> None:
        self._alone = alone
        ranges: dict[Var, Interval] = {}
        for x in (*axes, *find(body, Loop)):  # several loops may have one variable
            last = as_int(x.extent) - 1 if isinstance(x.extent, Const) else math.inf
            ranges[x.var] = (0, max(last, ranges.get(x.var, (0, 0))[1]))
        self._arith = Arith(ranges)
        self._found: dict[Loop, bool] = {}

    def __call__(self, loop: Loop) -> bool:
        if loop not in self._found:
            self._found[loop] = self._holds(loop)
        return self._found[loop]

    def _holds(self, loop: Loop) -> bool:
        inside = list(walk(loop.body, statements=True))
        if not all(self._plain(s) for s in inside):
            return False
        own = {s.buffer for s in inside if isinstance(s, Alloc)}
        written = {s.buffer for s in inside if isinstance(s, Store)} - own
        accesses: dict[Buffer, list[_Access]] = {b: [] for b in written}
        for b, access in self._accesses(loop.body, self._arith, written, {}):
            accesses[b].append(access)
        inner = {s.var for s in inside if isinstance(s, Loop | Let)}
        return all(_distinct(found, loop, inner) for found in accesses.values())

    def _plain(self, s: object) -> bool:
        """True if ``s`` is a statement without barriers, atomics, asynchronous copies or other cooperation of
        threads.
        """
        if isinstance(s, Store):
            return not (s.adds or s.later)
        if isinstance(s, Alloc):
            return s.buffer.scope in PRIVATE_SCOPES or (self._alone and s.buffer.scope is Scope.SHARED)
        return isinstance(s, Loop | If | Let | Seq | Prefetch)

    def _accesses(
        self, s: Stmt, arith: Arith, wanted: set[Buffer], lets: dict[Var, Linear]
    ) -> Iterator[tuple[Buffer, _Access]]:
        """Yield (buffer, access) for accesses to ``wanted`` buffers under ``s``, with the facts that hold there.

        lets: values of the Let variables met so far, extended here
        """
        exprs: tuple[Expr, ...] = ()
        below: tuple[Stmt, ...] = ()
        inside = arith
        while isinstance(s, Let):  # there may be many, one inside the other
            exprs = (*exprs, s.value)
            if s.var.dtype == "index":  # others have values, such as infinity
                lets[s.var] = _said(arith.linear(s.value), lets)
            s = s.body
        if isinstance(s, Store):
            exprs = (*exprs, *s.index, s.value)
            if s.buffer in wanted:
                yield s.buffer, _access(s.buffer, s.index[0], arith, lets)
        elif isinstance(s, If):
            exprs, below, inside = (*exprs, s.cond), (s.then,), arith.child(assume=[s.cond])
        elif isinstance(s, Loop):
            exprs, below = (*exprs, s.extent), (s.body,)
        elif isinstance(s, Alloc):
            below = (s.body,)
        elif isinstance(s, Seq):
            below = s.stmts
        for load in (x for e in exprs for x in find(e, Load) if x.buffer in wanted):
            yield load.buffer, _access(load.buffer, load.index[0], arith, lets)
        for part in below:
            yield from self._accesses(part, inside, wanted, lets)


def _access(b: Buffer, index: Expr, arith: Arith, lets: dict[Var, Linear]) -> _Access:
    if isinstance(index, Ramp):
        return _Access(_said(arith.linear(index.base), lets), index.lanes, arith)
    return _Access(_said(arith.linear(index), lets).times(b.lanes), b.lanes, arith)


def _said(form: Linear, lets: dict[Var, Linear]) -> Linear:
    """``form`` with Let variables replaced by their values."""
    for v, c in form.terms.items():
        if isinstance(v, Var) and v in lets:
            form = form.plus(Linear({v: c}, 0), -1).plus(lets[v], c)
    return form


def _distinct(accesses: list[_Access], loop: Loop, inner: set[Var]) -> bool:
    """True if the elements accessed by one iteration of ``loop`` are disjoint from those of all other iterations.

    An index is ``outer + c * var + low + high``: ``outer`` equal for all accesses, ``high`` multiples of H, ``c * var +
    low`` at most H values, ``low`` at most c values. So the index determines ``var``.
    """
    var, times = loop.var, as_int(loop.extent)
    outer: dict[Expr, int] | None = None
    stride, whole = 0, 0
    lows: list[Interval] = []
    spans: list[Interval] = []
    for a in accesses:
        c = a.form.terms.get(var, 0)
        fixed, moving = _parts(a.form, var, inner)
        if not c or moving is None or (outer is not None and (fixed, c) != (outer, stride)):
            return False
        outer, stride = fixed, c
        further, near = _split(a.form.constant - accesses[0].form.constant, abs(c) * times)
        low = Linear({t: k for t, k in moving.items() if abs(k) < abs(c)}, near)
        whole = math.gcd(whole, further, *(k for t, k in moving.items() if t not in low.terms))
        for form, found in ((low, lows), (low.plus(Linear({var: c}, 0)), spans)):
            first, last = a.arith.bounds(form)
            found.append((first, last + a.width - 1))
    return _length(lows) <= abs(stride) and (not whole or _length(spans) <= whole)


def _split(offset: int, all_iterations: int) -> tuple[int, int]:
    """(multiple of ``all_iterations``, rest) whose sum is ``offset``, the distance of an access from the first one,
    such as that of the second half of a tile.
    """
    further = 0 if abs(offset) < all_iterations else offset // all_iterations * all_iterations
    return further, offset - further


def _length(spans: list[Interval]) -> float:
    return max(b for _, b in spans) - min(a for a, _ in spans) + 1


def _parts(form: Linear, var: Var, inner: set[Var]) -> tuple[dict[Expr, int], dict[Expr, int] | None]:
    """({term: coefficient} that the loops leave unchanged, {term: coefficient} that inner loops change) of an index
    without its ``var`` term; the second is None if a term is loaded or contains ``var`` otherwise.
    """
    fixed: dict[Expr, int] = {}
    moving: dict[Expr, int] = {}
    for t, c in form.terms.items():
        names = {t} if isinstance(t, Var) else set(find(t, Var))
        if t is var:
            continue
        if has(t, Load) or var in names:
            return fixed, None
        if names & inner:
            moving[t] = c
        else:
            fixed[t] = c
    return fixed, moving
