"""Reduce axes whose extent data give: ``k = tir.reduce_axis(P[i + 1] - P[i], most=64)`` in a lambda.

Such an axis is one of ``most`` iterations, with a condition on what is combined. A launch checks that no extent is
negative or larger, and that terms are elements of what they are read from: loops may then end where the terms end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from tensorir.arith.affine import Arith, same
from tensorir.arith.conditions import conjuncts
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import shown
from tensorir.ir.build import as_expr, binary
from tensorir.ir.dims import plain
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.text import show
from tensorir.ir.tree import Binary, Cast, Expr, Load, Reduce, Select, Var
from tensorir.ir.visit import find

if TYPE_CHECKING:
    from tensorir.expr.tensor import Compute, Tensor


class Most(int):
    """The largest extent of a reduce axis whose extent data give; given: that extent, where the axis is declared."""

    given: Expr | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """An input whose elements say how many terms a reduction has.

    along: the dimension in which extents are differences of neighbours; -1: the elements are extents themselves
    most:  the largest extent;  axis: the reduce axis
    limit: of what is read at ``pointer + axis`` the extent, and its name; 0 where nothing is
    """

    tensor: Tensor
    along: int
    most: int
    axis: str
    limit: Any = 0
    into: str = ""


def data_axis(extent: object, most: int, name: str) -> Var:
    """Return the axis of a reduction of ``extent`` terms, at most ``most``; ``declare.data-extent``."""
    e = as_expr(extent)
    if DTYPES[e.dtype].kind not in "iu" or _extent(e) is None:
        raise refuse(DeclarationError, "declare.data-extent", f"the extent {show(e)} of reduce axis {name} is neither "
                     "an element of an input nor the difference of two neighbours, which a launch can check",
                     hint=f"{name} = tir.reduce_axis(P[i + 1] - P[i], most={most}) of an integer input P")  # fmt: skip
    bound = Most(most)
    bound.given = e
    return Var(name, "index", extent=bound)


def need_most(extent: object, name: str) -> NoReturn:
    """Refuse an extent of data without a bound."""
    raise refuse(DeclarationError, "declare.data-extent", f"the extent {shown(extent)} of reduce axis {name} is known "
                 "at launch, and has no bound", hint="most=64, the most terms that there may be")  # fmt: skip


def within(axes: Sequence[Var]) -> list[Expr]:
    """Return the conditions under which iterations of the axes are terms; none for axes of constant extent."""
    return [binary("<", v, v.extent.given) for v in axes if isinstance(v.extent, Most) and v.extent.given is not None]


def segments(op: Compute) -> Iterator[Segment]:
    """The inputs of a declaration whose elements say how many terms its reductions have."""
    for body in op.bodies:
        if not isinstance(body, Reduce):
            continue
        for v in body.axes:
            if isinstance(v.extent, Most):
                yield from _segments(body, v)


def _segments(body: Reduce, v: Var) -> Iterator[Segment]:
    conds = (c for s in find(body.values[0], Select) for c in conjuncts(s.cond))
    cond = next((c for c in conds if isinstance(c, Binary) and c.op == "<" and _plain(c.a) is v and _extent(c.b)), None)
    found = None if cond is None else _extent(cond.b)
    if cond is None or found is None:
        return
    load, along = found
    one = Segment(load.buffer.origin, along, int(v.extent), v.name)
    read = [(n, x.buffer.name) for value in body.values for x in find(value, Load)
            for i, n in zip(x.index, plain(x.buffer.shape), strict=True) if pointed(i, (cond,))]  # fmt: skip
    for limit, into in dict.fromkeys(read) or [(0, "")]:
        yield Segment(one.tensor, along, one.most, one.axis, limit, into)


def pointed(i: Expr, conditions: Sequence[Expr]) -> bool:
    """True when an index is ``P[j] + k`` where a condition says ``k < P[j + 1] - P[j]``."""
    i = _plain(i)
    if not isinstance(i, Binary) or i.op != "+":
        return False
    sides = (_plain(i.a), _plain(i.b))
    for c in (c for cond in conditions for c in conjuncts(cond)):
        if not isinstance(c, Binary) or c.op != "<":
            continue
        found = _extent(c.b)
        if found is None or found[1] < 0:
            continue
        if any(_plain(c.a) is k and same(p, found[0]) for k, p in (sides, sides[::-1])):
            return True
    return False


def _plain(e: Expr) -> Expr:
    """``e`` without conversions between integers."""
    while isinstance(e, Cast) and DTYPES[e.dtype].kind in "iu" and DTYPES[e.a.dtype].kind in "iu":
        e = e.a
    return e


def _extent(e: Expr) -> tuple[Load, int] | None:
    """The pointer ``P[j]`` of an extent ``P[j + 1] - P[j]`` and the dimension of j; an element and -1 for a length."""
    e = _plain(e)
    if isinstance(e, Load):
        return (e, -1) if _given(e) else None
    if not isinstance(e, Binary) or e.op != "-":
        return None
    end, start = _plain(e.a), _plain(e.b)
    if not isinstance(end, Load) or not isinstance(start, Load) or end.buffer is not start.buffer or not _given(start):
        return None
    arith = Arith()
    steps = [arith.linear(binary("-", a, b)) for a, b in zip(end.index, start.index, strict=True)]
    if any(s.terms for s in steps) or sorted(s.constant for s in steps) != [0] * (len(steps) - 1) + [1]:
        return None
    return start, [s.constant for s in steps].index(1)


def _given(e: Load) -> bool:
    """True when an element is of an input, which a launch can look at."""
    origin = e.buffer.origin
    return origin is not None and origin.op is None and e.buffer.data is None
