"""Finds registers that only carry values between memory locations: their bits need no conversion to a wider float."""

from __future__ import annotations

import math

from tensorir.ir.build import as_int
from tensorir.ir.dtypes import WIDENED
from tensorir.ir.tree import Alloc, Broadcast, Buffer, Const, Expr, Kind, Load, Loop, Ramp, Scope, Select, Stmt, Store
from tensorir.ir.visit import find


def moves(s: Store) -> bool:
    """True if a store's value is loaded from memory of the same type, or is constant 0."""
    sources = _sources(s.value)
    return bool(sources) and all(isinstance(x, Const) or x.buffer.dtype == s.buffer.dtype for x in sources)


def _sources(e: Expr) -> list[Load | Const]:
    """Loads and zeros that a copied value may come from, through selects and broadcasts; [] for a computed one."""
    if isinstance(e, Select):
        a, b = _sources(e.a), _sources(e.b)
        return a + b if a and b else []
    if isinstance(e, Broadcast):
        return _sources(e.value)
    if isinstance(e, Const):
        return [e] if e.value == 0 else []
    return [e] if isinstance(e, Load) else []


def carriers(body: Stmt) -> set[Buffer]:
    """Register arrays of narrow floats kept unconverted: only copied from memory to memory; or filled by vectors and
    converted when read (filled by loops to be vectorized: if read once per element at most).
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
    """True if ``b`` is filled by vector stores; or by loops to be vectorized, and each filled element is read at most
    once.
    """
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
