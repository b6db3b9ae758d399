"""Registers that values only pass through: they keep the bits of memory, whatever those mean."""

from __future__ import annotations

from tensorir.ir.dtypes import WIDENED
from tensorir.ir.tree import Broadcast, Buffer, Const, Expr, Load, Scope, Select, Stmt, Store
from tensorir.ir.visit import find


def moves(s: Store) -> bool:
    """Whether a store takes what it stores from memory of the same type, or stores 0."""
    sources = _sources(s.value)
    return bool(sources) and all(isinstance(x, Const) or x.buffer.dtype == s.buffer.dtype for x in sources)


def _sources(e: Expr) -> list[Load | Const]:
    """What a moved value is read from; nothing for one that is computed."""
    if isinstance(e, Select):
        a, b = _sources(e.a), _sources(e.b)
        return a + b if a and b else []
    if isinstance(e, Broadcast):
        return _sources(e.value)
    if isinstance(e, Const):
        return [e] if e.value == 0 else []
    return [e] if isinstance(e, Load) else []


def carriers(body: Stmt) -> set[Buffer]:
    """Register arrays of narrow floats that are only filled from memory and only copied to it."""
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
    return out - {x.buffer for x in find(body, Load) if id(x) not in moved}
