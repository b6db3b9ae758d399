"""Registers that values only pass through: they keep the bits of memory, whatever those mean."""

from __future__ import annotations

import math

from tensorir.ir.build import as_int
from tensorir.ir.dtypes import WIDENED
from tensorir.ir.tree import Alloc, Broadcast, Buffer, Const, Expr, Kind, Load, Loop, Ramp, Scope, Select, Stmt, Store
from tensorir.ir.visit import find


def moves(s: Store) -> bool:
    """True when a store takes what it stores from memory of the same type, or stores 0."""
    sources = _sources(s.value)
    return bool(sources) and all(isinstance(x, Const) or x.buffer.dtype == s.buffer.dtype for x in sources)


def _sources(e: Expr) -> list[Load | Const]:
    """Loads, or constants, of a moved value; nothing for one that is computed."""
    if isinstance(e, Select):
        a, b = _sources(e.a), _sources(e.b)
        return a + b if a and b else []
    if isinstance(e, Broadcast):
        return _sources(e.value)
    if isinstance(e, Const):
        return [e] if e.value == 0 else []
    return [e] if isinstance(e, Load) else []


def carriers(body: Stmt) -> set[Buffer]:
    """Register arrays of narrow floats that are only filled from memory and only copied to it; and those filled in
    vectors that are read elsewhere, each element once: it is converted there instead of on its way.
    """
    out = {
        s.buffer for s in find(body, Store)
        if s.buffer.scope is Scope.REGISTER and s.buffer.dtype in WIDENED
    }  # fmt: skip
    if not out:
        return out
    moved: set[int] = set()
    for s in find(body, Store):
        if moves(s):
            moved |= {id(x) for x in _sources(s.value)}
        else:
            out.discard(s.buffer)
    used = out & {x.buffer for x in find(body, Load) if id(x) not in moved}
    return (out - used) | {b for b in used if _in_vectors(body, b)}


def _in_vectors(body: Stmt, b: Buffer) -> bool:
    """True when vectors fill an array, or will by its loops, and no more elements are read of it than they bring."""
    within = next((a.body for a in find(body, Alloc) if a.buffer is b), body)  # else it is allocated around that
    stores = [s for s in find(within, Store) if s.buffer is b]
    if any(isinstance(s.index[0], Ramp) for s in stores):
        return True
    loads, loops = [x for x in find(within, Load) if x.buffer is b], find(within, Loop)
    around = [[x for x in loops if any(y is n for y in find(x.body, type(n)))] for n in (*stores, *loads)]
    if not all(any(x.kind is Kind.VECTOR for x in of) for of in around[: len(stores)]):
        return False
    if not all(isinstance(x.extent, Const) for of in around for x in of):
        return False
    counts = [math.prod(as_int(x.extent) for x in of) for of in around]
    return sum(counts[len(stores) :]) <= sum(counts[: len(stores)])
