"""Intervals of array elements that an index covers while some loops run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorir.arith.affine import Arith, Interval, Linear
from tensorir.ir.build import as_int
from tensorir.ir.tree import Binary, Const, Expr, Var
from tensorir.ir.visit import uses


@dataclass(frozen=True)
class Side:
    """The interval ``[first, first + extent)`` of array indices in one dimension: ``first`` is loop-invariant,
    ``extent`` constant.
    """

    first: Linear
    extent: int


def side_of(e: Expr, arith: Arith, moving: Mapping[Var, Interval]) -> Side | None:
    """The interval ``[first, first + extent)`` that contains ``e`` while ``moving`` variables run over their ranges.

    ``arith`` knows the ranges of all variables. None if no constant extent is known.
    """
    return _side(arith.linear(e), arith, moving)


def _side(form: Linear, arith: Arith, moving: Mapping[Var, Interval]) -> Side | None:
    stay: dict[Expr, int] = {}
    move: dict[Expr, int] = {}
    parts: list[Linear] = []
    spare = 0
    for atom, c in form.terms.items():
        if not uses(atom, moving):
            stay[atom] = c
            continue
        mixed = _mixed(atom, c, arith, moving)
        if mixed is not None:
            lo, hi = arith.range_of(Linear({atom: c}, 0))
            if mixed.extent - 1 < hi - lo:
                parts.append(mixed.first)
                spare += mixed.extent - 1
                continue
        move[atom] = c
    still, walked = Linear(stay, form.constant), Linear(move, 0)
    for part in parts:
        still = still.plus(part)
    low, high = arith.bounds(walked)
    if arith.facts:
        high = min(high, _most(walked, arith))
    if math.isinf(low) or math.isinf(high):
        return None
    return Side(Linear(still.terms, still.constant + int(low)), int(high - low) + spare + 1)


def _most(form: Linear, arith: Arith) -> float:
    """Upper bound of ``form``, tighter for quotients by ``d * (x // d) <= x`` and the facts of ``arith``."""
    whole, scale = Linear({}, form.constant), 1
    for atom, c in form.terms.items():
        if c > 0 and isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const) and as_int(atom.b) > 0:
            d = as_int(atom.b)
            whole, scale = whole.times(d).plus(arith.linear(atom.a), c * scale), scale * d
        else:
            whole = whole.plus(Linear({atom: c * scale}, 0))
    most = math.inf
    for f in arith.facts:  # f <= 0
        for atom, c in f.terms.items():
            times, rest = divmod(whole.terms.get(atom, 0), c)
            if times > 0 and not rest:
                high = arith.range_of(whole.plus(f, -times))[1]
                most = min(most, high if math.isinf(high) else int(high) // scale)
    return most


def _mixed(atom: Expr, c: int, arith: Arith, moving: Mapping[Var, Interval]) -> Side | None:
    """Interval that contains ``c * atom`` for an atom ``(s + m) // d``, s invariant and m moving: a few values from ``s
    // d`` on; None for other atoms.
    """
    if c <= 0 or not isinstance(atom, Binary) or atom.op != "//" or not isinstance(atom.b, Const):
        return None
    inner = side_of(atom.a, arith, moving)
    if inner is None or not inner.first.terms:
        return None
    d = as_int(atom.b)
    if d <= 0:
        return None
    first = arith._divide(inner.first, d, "//")
    offset = math.gcd(d, *inner.first.terms.values(), inner.first.constant)  # s is a multiple of this
    steps = (d - offset + inner.extent - 1) // d
    return Side(first.times(c), c * steps + 1)


def union(sides: Iterable[Side | None]) -> Side | None:
    """The smallest interval that contains all ``sides``; None if starts differ by more than constants, one is None, or
    there are none.
    """
    out: Side | None = None
    for s in sides:
        if s is None:
            return None
        if out is None:
            out = s
            continue
        apart = s.first.plus(out.first, -1)
        if apart.terms:
            return None
        first = s.first if apart.constant < 0 else out.first
        end = max(out.extent, apart.constant + s.extent)
        out = Side(first, end - min(0, apart.constant))
    return out
