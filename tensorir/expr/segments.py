"""Reductions of data-dependent length: ``k = tir.reduce_axis(P[i + 1] - P[i], most=64)`` in a lambda.

The axis has ``most`` iterations, and a condition on the combined terms. A launch checks that every extent is between 0
and ``most`` and that all terms are inside the arrays read, so emitted loops may stop at the data-dependent end.
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
    """An int: the upper bound of a data-dependent reduce axis. ``given``: the expression of its extent"""

    given: Expr | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """An input whose elements determine the lengths of reductions.

    along: dimension in which neighbouring elements (offsets) differ by the length; -1: the elements are lengths
    most:  largest length;  axis: name of the reduce axis
    limit, into: extent and name of the array read at ``offset + axis``; 0 and "" if there is none
    """

    tensor: Tensor
    along: int
    most: int
    axis: str
    limit: Any = 0
    into: str = ""


def data_axis(extent: object, most: int, name: str) -> Var:
    """Return a reduce axis whose length is ``extent``, read from an integer input, and at most ``most``. Raises
    DeclarationError ``declare.data-extent`` for extents that a launch cannot check.
    """
    e = as_expr(extent)
    if DTYPES[e.dtype].kind not in "iu" or _extent(e) is None:
        raise refuse(DeclarationError, "declare.data-extent", f"the extent {show(e)} of reduce axis {name} is neither "
                     "an element of an input nor the difference of two neighbours, which a launch can check",
                     hint=f"{name} = tir.reduce_axis(P[i + 1] - P[i], most={most}) of an integer input P")  # fmt: skip
    bound = Most(most)
    bound.given = e
    return Var(name, "index", extent=bound)


def need_most(extent: object, name: str) -> NoReturn:
    """Raise DeclarationError ``declare.data-extent``: a data-dependent extent needs ``most``."""
    raise refuse(DeclarationError, "declare.data-extent", f"the extent {shown(extent)} of reduce axis {name} is known "
                 "at launch, and has no bound", hint="most=64, the most terms that there may be")  # fmt: skip


def within(axes: Sequence[Var]) -> list[Expr]:
    """Return the conditions ``axis < extent`` for those of ``axes`` with a data-dependent extent."""
    return [binary("<", v, v.extent.given) for v in axes if isinstance(v.extent, Most) and v.extent.given is not None]


def segments(op: Compute) -> Iterator[Segment]:
    """Yield the inputs of a declaration that determine lengths of its reductions."""
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
    """True if ``i`` is an index ``P[j] + k`` and one of ``conditions`` is ``k < P[j + 1] - P[j]``."""
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
    """``e`` without integer conversions."""
    while isinstance(e, Cast) and DTYPES[e.dtype].kind in "iu" and DTYPES[e.a.dtype].kind in "iu":
        e = e.a
    return e


def _extent(e: Expr) -> tuple[Load, int] | None:
    """(load ``P[j]``, dimension of j) for an extent ``P[j + 1] - P[j]``; (load, -1) for an extent that is one element;
    else None.
    """
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
    """True if the load reads an input, not a constant or computed tensor."""
    origin = e.buffer.origin
    return origin is not None and origin.op is None and e.buffer.data is None
