"""``lanes_of``: vector width of an expression."""

from __future__ import annotations

from tensorir.ir.node import STEP
from tensorir.ir.shared import children_first
from tensorir.ir.tree import Binary, Broadcast, Call, Cast, Expr, Load, Pack, Ramp, Select, Shuffle, Unary, Var


def lanes_of(e: Expr) -> int:
    """The number of lanes of an expression (1 for scalars)."""
    if not e.width:
        if e.height > STEP:  # too tall for a function that calls itself
            for x in children_first([e], lambda n: [c for c in n.children() if not c.width]):
                _set(x, "width", _lanes(x))
        else:
            _set(e, "width", _lanes(e))
    return e.width


_set = object.__setattr__  # nodes may be frozen, and this changes none


def _lanes(e: Expr) -> int:
    match e:
        case Var():
            return e.lanes
        case Ramp() | Broadcast():
            return e.lanes
        case Pack():
            return len(e.items)
        case Shuffle():
            return len(e.picks)
        case Load():
            return max([e.buffer.lanes, *map(lanes_of, e.index[:1])])  # numbers of rank 0 have no index
        case Select():
            return lanes_of(e.a)
        case Binary() | Unary() | Cast():
            return lanes_of(e.a)
        case Call():
            return max([1, *map(lanes_of, e.args)])
    return 1
