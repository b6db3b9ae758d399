"""Intervals of array elements that an index covers while some loops run."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensorir.arith.affine import Arith, Interval, Linear, structure
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


# --- boxes that tile an array


class _Digit(NamedTuple):
    """The digit ``number // low % base``, base 0 without ``%``, whose values below ``needed`` are used.

    exact: True if values from ``needed`` on would be within the array
    """

    number: Expr
    low: int
    base: int
    needed: int
    exact: bool


def tiles(sides: Sequence[Side], shape: Sequence[int], extents: Mapping[Var, int]) -> bool:
    """True if each element of an array is provably in the box of exactly one iteration of some loops; iterations may
    overshoot its ends.

        for i in 4, j in 16:  A[16 * i + j, 0:n]                each row once
        for x in 21:          A[x // 7, x % 7]                  fused loops: both digits of x
        for i in 4, j in 16:  A[8 * i + j, 0:n]                 False: rows 8 to 15 twice

    sides: the box of one iteration;  extents: iterations of all loops that run the box, by their variable
    """
    digits: dict[Hashable, list[_Digit]] = {}
    for side, n in zip(sides, shape, strict=True):
        terms = [(t, c) for t, c in side.first.terms.items() if extents.get(t, 0) != 1]  # type: ignore[call-overload]
        terms.sort(key=lambda term: term[1])
        done = side.extent
        for at, (atom, c) in enumerate(terms):
            exact = at + 1 < len(terms)
            needed, rest = divmod(terms[at + 1][1], c) if exact else (-(-n // c), 0)
            if c != done or rest:
                return False
            digit = _digit(atom, needed, exact)
            digits.setdefault(structure(digit.number), []).append(digit)
            done = c * needed
        if done < n or side.first.constant:
            return False
    left = dict(extents)
    return all(_determined(found, left) for found in digits.values()) and all(n == 1 for n in left.values())


def _digit(atom: Expr, needed: int, exact: bool) -> _Digit:
    number, values = [atom], {"%": 0, "//": 1}
    for op in values:
        if isinstance(e := number[-1], Binary) and e.op == op and isinstance(e.b, Const):
            values[op] = as_int(e.b)
            number.append(e.a)
    return _Digit(number[-1], values["//"], values["%"], needed, exact)


def _determined(digits: list[_Digit], left: dict[Var, int]) -> bool:
    """True if some digits take each combination of their needed values for exactly one value of their number, a number
    in mixed radix of loops among ``left``, which are removed there.
    """
    form, size = Arith().linear(digits[0].number), 1
    for atom, c in sorted(form.terms.items(), key=lambda term: term[1]):
        if c != size or not isinstance(atom, Var) or atom not in left:
            return False
        size *= left.pop(atom)
    digits, low = sorted(digits, key=lambda d: d.low), 1
    for d in digits:
        top = d is digits[-1]
        count = d.base or -(-size // d.low)
        if d.low != low or (not d.base and not top) or count < d.needed or (d.exact and count > d.needed):
            return False
        low *= count
    return not form.constant and low >= size >= digits[-1].low * digits[-1].needed
