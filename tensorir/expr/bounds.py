"""Proves every access of a declaration in range, or refuses it with a counterexample."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from tensorir.arith.affine import Arith, Interval
from tensorir.arith.point import NotExactError, evaluate
from tensorir.arith.reads import conditional, conditional_loads
from tensorir.errors import DeclarationError, refuse
from tensorir.expr.segments import pointed
from tensorir.expr.tensor import Compute
from tensorir.expr.values import arith_of, ends_of, ranges_of
from tensorir.ir.build import as_expr, binary, const
from tensorir.ir.dims import dims_in, most, plain, span
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.text import show
from tensorir.ir.tree import Binary, Cast, Const, Expr, Load, Placed, Reduce, Var
from tensorir.ir.visit import find, has, uses, walk

_SEARCH = 1 << 16  # axis values tried when looking for a witness


@dataclass(frozen=True)
class ReadPlace:
    """An index of a read, or of a scatter's target, that is not proved in range.

    index: expression in dimension ``d`` of the array named ``into``, whose extent is ``limit``
    load:  the read; None for a scatter's target
    conditions: hold where the index is evaluated;  arith: facts known there
    """

    index: Expr
    d: int
    limit: int | Expr
    into: str
    load: Load | None
    conditions: tuple[Expr, ...]
    arith: Arith


Part = tuple[tuple[int, ...], ...]
"""For each dimension start, stop and step of a slice, or () for all of it; () is the whole tensor."""


def check_accesses(op: Compute) -> None:
    """Raise an error for the first access of a declaration that is not proved inside its tensor, or the first integer
    division for which values of the axes are found that make the divisor 0.

    Indices that are elements of inputs, and ``P[j] + k`` of data-dependent lengths, are left to the launch. Nothing is
    checked if an axis is empty.

    Raises DeclarationError: ``declare.out-of-range``, ``declare.gather-index``, ``declare.zero-division``,
    ``scatter.out-of-range``, ``scatter.computed``.
    """
    ranges = ranges_of(op)
    if any(hi < lo for lo, hi in ranges.values()):
        return  # an empty domain reads nothing
    arith = arith_of(op)
    for body in op.bodies:
        for part in body.values if isinstance(body, Reduce) else (body,):
            for division, conditions in conditional(part, Binary):
                if division.op in ("//", "%") and DTYPES[division.dtype].kind in "iu":
                    _check_divisor(division, conditions, arith, ranges)
    for place in _unproven(op, arith):
        if gathered(place.index) is None and not pointed(place.index, place.conditions):
            _refuse(op, place, ranges)


def places(op: Compute) -> Iterator[tuple[tuple[Expr, ...], tuple[int | Expr, ...], str]]:
    """Yield (indices, extents, array name) of each read and scatter target; padded reads are left out."""
    for body in op.bodies:
        yield from ((x.index, plain(x.buffer.shape), x.buffer.name) for x in find(body, Load))
        if isinstance(body, Reduce) and isinstance(body.part, Placed):
            yield body.part.index, op.extents, op.name


def looked_up(op: Compute) -> Iterator[tuple[Load, int | Expr, str, Part]]:
    """Yield (load, limit, name, part) for each read of an input whose elements serve as indices of the array ``name``:
    a launch checks ``0 <= element < limit`` in the ``part`` of the input that is read.
    """
    if not any(is_gather(i) for index, _, _ in places(op) for i in index):
        return
    arith = arith_of(op)
    for place in _unproven(op, arith):
        if (load := gathered(place.index)) is not None:
            yield load, place.limit, place.into, _part(load, place.arith)


def _part(load: Load, arith: Arith) -> Part:
    """One (start, stop, step) per dimension, or () for a whole dimension: the smallest slices that contain all elements
    of a load; just () if they are the whole array.
    """
    return () if not any(found := tuple(map(_slice, load.index, load.buffer.shape, repeat(arith)))) else found


def _slice(i: Expr, extent: Expr, arith: Arith) -> tuple[int, ...]:
    form, size = arith.linear(i), most(extent)
    low, high = arith.range_of(form)
    if math.isinf(low) or math.isinf(high):
        return ()
    step = math.gcd(*form.terms.values()) or 1
    start, stop = int(low if low >= 0 else low % step), int(min(high + 1, size))
    return () if (start, stop, step) == (0, size, 1) else (start, stop, step)


def _unproven(op: Compute, arith: Arith) -> Iterator[ReadPlace]:
    """Yield the indices of a declaration that are not proved in range."""
    if any(hi < lo for lo, hi in arith.ranges.values()):
        return  # an empty domain reads nothing

    def of(index: Sequence[Expr], extents: Sequence[Any], into: str, load: Load | None, conditions: tuple[Expr, ...],
           here: Arith) -> Iterator[ReadPlace]:  # fmt: skip
        for d, (i, n) in enumerate(zip(index, extents, strict=True)):
            if not (here.proves(_inside(i, n)) or _within(here.range(i), n)):
                yield ReadPlace(i, d, n, into, load, conditions, here)

    for body in op.bodies:
        for part in body.values if isinstance(body, Reduce) else (body,):
            for load, conditions in conditional_loads(part):
                at = list(zip(load.index, plain(load.buffer.shape), strict=True))
                if all(arith.proves(_inside(i, n)) or _within(arith.range(i), n) for i, n in at):
                    continue  # wherever it is read
                here = arith.child(assume=conditions)
                yield from of(load.index, plain(load.buffer.shape), load.buffer.name, load, conditions, here)
        if isinstance(body, Reduce) and isinstance(body.part, Placed):
            for load, conditions in (x for i in body.part.index for x in conditional_loads(i)):
                here = arith.child(assume=conditions)
                yield from of(load.index, plain(load.buffer.shape), load.buffer.name, load, conditions, here)
            yield from of(body.part.index, op.extents, op.name, None, (), arith)


def _refuse(op: Compute, place: ReadPlace, ranges: dict[Var, Interval]) -> None:
    """Raise the error for an index that is not proved in range; return if trying all values finds none out of range."""
    if place.load is None:
        _refuse_cell(op, place.index, place.limit, place.d, ranges)
    else:
        _refuse_read(op, place.load, place, ranges)


def _refuse_cell(op: Compute, i: Expr, n: int | Expr, d: int, ranges: dict[Var, Interval]) -> None:
    what = f"{op.name} has {_said(n)} cells in dimension {d}, and its terms go to {show(i)} there"
    if is_gather(i):
        raise refuse(DeclarationError, "scatter.computed", f"{what}, which is computed from data: neither this "
                     "declaration nor the launch can check it",
                     hint=f"tir.minimum(tir.maximum({show(i)}, 0), {_said(n - 1)}), "
                          "or the finished index")  # fmt: skip
    found = _witness(i, partial(_outside, n), ends_of(op), ranges)
    if found is not False:
        at = " and ".join(f"{v.name} = {k}" for v, k in found[0].items()) if found else ""
        when = f", {found[1]} when {at}" if at else ""
        raise refuse(DeclarationError, "scatter.out-of-range", what + when, hint="a larger shape, or a smaller over")


def is_gather(e: Expr) -> bool:
    """True if the expression, an index, depends on loaded data."""
    return has(e, Load)


def gathered(i: Expr) -> Load | None:
    """The load from an input that the index ``i`` consists of, possibly widened; None for other indices."""
    while isinstance(i, Cast) and (i.dtype == "index" or DTYPES[i.dtype].bits >= DTYPES[i.a.dtype].bits):
        i = i.a
    if isinstance(i, Load) and i.buffer.origin is not None and i.buffer.origin.op is None and i.buffer.data is None:
        return i
    return None


def _outside(n: Any, index: int, at: Mapping[Var, int]) -> bool:
    return not 0 <= index < (n if isinstance(n, int) else int(evaluate(n, at)))


def _inside(i: Expr, n: Any) -> Expr:
    return binary("and", binary("<=", const(0), i), binary("<", i, n))


def _within(found: Interval, n: Any) -> bool:
    return found[0] >= 0 and found[1] < (n if isinstance(n, int) else span(n)[0])


def _said(n: Any) -> str:
    return show(as_expr(n))


def _check_divisor(e: Binary, conditions: tuple[Expr, ...], arith: Arith, ranges: dict[Var, Interval]) -> None:
    """Raise DeclarationError ``declare.zero-division`` if values of the axes are found that make the divisor of ``e``
    0; divisors read from tensors pass.
    """
    low, high = arith.child(assume=conditions).range(e.b)
    if low > 0 or high < 0 or is_gather(e.b):
        return
    if found := _witness(e.b, lambda divisor, _: divisor == 0, conditions, ranges):
        at = " and ".join(f"{v.name} = {k}" for v, k in found[0].items())
        raise refuse(DeclarationError, "declare.zero-division", f"{show(e)} divides by 0 when {at}",
                     hint=f"tir.where({show(e.b)} > 0, {show(e)}, 0)")  # fmt: skip


def _refuse_read(op: Compute, load: Load, place: ReadPlace, ranges: dict[Var, Interval]) -> None:
    i, n, d = place.index, place.limit, place.d
    if is_gather(i):
        raise refuse(
            DeclarationError,
            "declare.gather-index",
            f"{show(load)}: the index {show(i)} is computed from data, so neither this declaration nor the launch can "
            "check it",
            hint=f"clamp it: tir.minimum(tir.maximum({show(i)}, 0), {_said(n - 1)}), or pass the finished index",
        )
    found = _witness(i, partial(_outside, n), (*place.conditions, *ends_of(op)), ranges, dims_in(as_expr(n)))
    if found is False:
        return  # every point was tried
    what = f"{show(load)} may read outside dimension {d} of {load.buffer.name}, which has {_said(n)}"
    if found:
        at = " and ".join(f"{v.name} = {k}" for v, k in found[0].items())
        when = f" when {at}" if at else ""
        has = f"{load.buffer.name} has {_said(n)} rows in dimension {d}"
        what = f"{show(load)} reads index {found[1]}{when}, but {has}"
    index = ", ".join(show(j) for j in load.index)
    if isinstance(i, Const) and isinstance(n, int) and -n <= i.value < 0:  # counted from the end, as in NumPy
        last = [str(j.value + n) if j is i else show(j) for j in load.index]
        raise refuse(DeclarationError, "declare.out-of-range", what, hint=f"{load.buffer.name}[{', '.join(last)}]")
    raise refuse(DeclarationError, "declare.out-of-range", what,
                 hint=f"pad it: {load.buffer.name}.get({index}, fill=0), or restrict {op.name}")  # fmt: skip


def _witness(i: Expr, bad: Callable[[int, Mapping[Var, int]], bool], conditions: tuple[Expr, ...],
             ranges: dict[Var, Interval], more: Sequence[Var] = ()) -> Any:  # fmt: skip
    """({axis: value}, value of ``i``) as a counterexample, where ``bad`` is true of the value and ``conditions`` hold;
    False if there is none, None if the search gave up. Of more than 65,536 points only the ends of each axis are tried.

    more: dims to vary as well
    """
    ranges = {**ranges, **{v: v.bounds for v in dims_in(i, *conditions, *more) if v.bounds is not None}}
    axes = list(dict.fromkeys(v for e in (i, *conditions, *more) for v in find(e, Var) if v in ranges))
    if any(isinstance(v, Var) and v not in ranges for e in (i, *conditions) for v in walk(e)):
        return None
    if any(is_gather(c) for c in conditions):
        return None
    sides = [range(int(ranges[v][0]), int(ranges[v][1]) + 1) for v in axes]
    total = 1
    for s in sides:
        total *= len(s)
    whole = total <= _SEARCH
    points = itertools.product(*(s if whole else (s[0], s[-1]) for s in sides))
    shown = {v for e in (i, *more) for v in find(e, Var)}
    shown |= {v for c in conditions if uses(c, shown) for v in dims_in(c)}
    for point in itertools.islice(points, _SEARCH):
        env = dict(zip(axes, point, strict=True))
        try:
            if all(evaluate(c, env) for c in conditions):
                value = int(evaluate(i, env))
                if bad(value, env):
                    return {v: k for v, k in env.items() if v in shown}, value
        except NotExactError:
            return None
    return False if whole else None
