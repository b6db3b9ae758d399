"""Every access is proved in range at declaration, or refused with a witness."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tensorir.arith.affine import Arith, Interval
from tensorir.arith.reads import conditional, conditional_loads
from tensorir.errors import DeclarationError, refuse
from tensorir.expr.point import NotExactError, evaluate
from tensorir.expr.segments import pointed
from tensorir.expr.tensor import Compute
from tensorir.ir.build import as_expr, binary, const
from tensorir.ir.dims import dims_in, most, plain, span
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.text import show
from tensorir.ir.tree import Binary, Cast, Const, Expr, Load, Placed, Reduce, Var
from tensorir.ir.visit import find, uses, walk

_SEARCH = 1 << 16  # axis values tried when looking for a witness


def ranges_of(op: Compute) -> dict[Var, Interval]:
    """The range of every axis of a declaration."""
    return {a: (0, most(as_expr(n)) - 1) for a, n in axes_of(op)}


def axes_of(op: Compute) -> list[tuple[Var, int | Expr]]:
    """The axes of a declaration, reduce axes included, with their extents."""
    reduced = [a for body in op.bodies if isinstance(body, Reduce) for a in body.axes]
    return [*zip(op.axes, op.extents, strict=True), *((a, a.extent) for a in reduced)]


def arith_of(op: Compute) -> Arith:
    """What is known of the axes of a declaration: their ranges, and which of them end at a dim."""
    return Arith(ranges_of(op), _ends(op))


def check_accesses(op: Compute) -> None:
    """Refuse the first access that can leave its tensor, and the first index that can be divided by 0.

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
            for load, conditions in conditional_loads(part):
                _check(op, load, conditions, arith, ranges)
        if isinstance(body, Reduce) and isinstance(body.part, Placed):
            _check_places(op, body.part, arith, ranges)


def places(op: Compute) -> Iterator[tuple[tuple[Expr, ...], tuple[int | Expr, ...], str]]:
    """Indices, extents and name of all that a declaration reads or sends terms to; padded reads are not among them."""
    for body in op.bodies:
        yield from ((x.index, plain(x.buffer.shape), x.buffer.name) for x in find(body, Load))
        if isinstance(body, Reduce) and isinstance(body.part, Placed):
            yield body.part.index, op.extents, op.name


def _check_places(op: Compute, part: Placed, arith: Arith, ranges: dict[Var, Interval]) -> None:
    """Refuse a scatter that can send a term outside of its result."""
    for d, (i, n) in enumerate(zip(part.index, op.extents, strict=True)):
        for load, conditions in conditional_loads(i):
            _check(op, load, conditions, arith, ranges)
        if arith.proves(_inside(i, n)) or _within(arith.range(i), n) or gathered(i) is not None:
            continue
        what = f"{op.name} has {_said(n)} cells in dimension {d}, and its terms go to {show(i)} there"
        if is_gather(i):
            raise refuse(DeclarationError, "scatter.computed", f"{what}, which is computed from data: neither this "
                         "declaration nor the launch can check it",
                         hint=f"tir.minimum(tir.maximum({show(i)}, 0), {_said(n - 1)}), "
                              "or the finished index")  # fmt: skip
        found = _witness(i, partial(_outside, n), _ends(op), ranges)
        if found is not False:
            at = " and ".join(f"{v.name} = {k}" for v, k in found[0].items()) if found else ""
            when = f", {found[1]} when {at}" if at else ""
            raise refuse(
                DeclarationError, "scatter.out-of-range", what + when, hint="a larger shape, or a smaller over"
            )


def is_gather(e: Expr) -> bool:
    """Whether an index depends on data, so that its range is known at launch only."""
    return bool(find(e, Load))


def gathered(i: Expr) -> Load | None:
    """The element of an input that an index is, perhaps widened; None when it is computed from data in another way."""
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


def _ends(op: Compute) -> tuple[Expr, ...]:
    """Where the axes of a declaration end that end at a dim."""
    return tuple([binary("<", a, n) for a, n in axes_of(op) if isinstance(n, Expr)])


def _check_divisor(e: Binary, conditions: tuple[Expr, ...], arith: Arith, ranges: dict[Var, Interval]) -> None:
    """Divisors that come from axes alone; what is read from memory is the launch's."""
    low, high = arith.child(assume=conditions).range(e.b)
    if low > 0 or high < 0 or is_gather(e.b):
        return
    if found := _witness(e.b, lambda divisor, _: divisor == 0, conditions, ranges):
        at = " and ".join(f"{v.name} = {k}" for v, k in found[0].items())
        raise refuse(DeclarationError, "declare.zero-division", f"{show(e)} divides by 0 when {at}",
                     hint=f"tir.where({show(e.b)} > 0, {show(e)}, 0)")  # fmt: skip


def _check(op: Compute, load: Load, conditions: tuple[Expr, ...], arith: Arith, ranges: dict[Var, Interval]) -> None:
    here = arith.child(assume=conditions)
    for d, (i, n) in enumerate(zip(load.index, plain(load.buffer.shape), strict=True)):
        if here.proves(_inside(i, n)) or _within(here.range(i), n):
            continue
        if is_gather(i):
            if gathered(i) is not None or pointed(i, conditions):
                continue  # checked at launch
            raise refuse(
                DeclarationError,
                "declare.gather-index",
                f"{show(load)}: the index {show(i)} is computed from data, "
                "so neither this declaration nor the launch can check it",
                hint=f"clamp it: tir.minimum(tir.maximum({show(i)}, 0), {_said(n - 1)}), or pass the finished index",
            )
        found = _witness(i, partial(_outside, n), (*conditions, *_ends(op)), ranges, dims_in(as_expr(n)))
        if found is False:
            continue  # every point was tried
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
    """Axis values, and dims, and the bad value that they give ``i``; False when none exists, None when the search gave
    up. more: dims that ``bad`` asks for
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
