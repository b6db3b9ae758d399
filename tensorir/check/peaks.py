"""Test inputs with one element far above the rest of its row, at another position in each row.

A wrong maximum is invisible in softmax of moderate numbers, as the subtracted value cancels, until a lane, warp or tile
missed by the maximum holds a number whose ``exp`` overflows. Equal maxima would hide the lanes after the first one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Compute, Tensor
from tensorir.interp.reference import arguments_of, evaluate
from tensorir.interp.sizes import EXACT_CALLS
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Buffer, Call, Expr, Load, PadLoad, Reduce, Var
from tensorir.ir.visit import find

PEAK_HEIGHT = 200.0
"""Of a peak; exp(89) is beyond float32."""
PEAK_FACTOR = 64.0
"""Of a peak that is multiplied by another one, and then perhaps by the inverse root of a length."""
NEXT_PLACE = 37
"""From the place of a peak to that in the next row, or a little more: all places of a row have their turn."""
MOST_PEAK_RUNS = 4
"""Runs at most, where rows are few."""


def with_peaks(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield copies of ``arrays`` with a peak in each row that a maximum or minimum reduces, if the declaration also
    calls a function or uses argmax or argmin. Nothing if no input reaches the reduction by sums, products and copies.
    """
    for places, up in _peaks_of(outputs):
        yield from _runs(outputs, arrays, places, up)
        if len(places) == 1:
            yield from _all_far(outputs, arrays, places[0][0], -up)


def with_lone_peaks(
    outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]
) -> Iterator[tuple[list[np.ndarray], str]]:
    """Yield (inputs with rows of zeros except for one peak, description); by peaks::

    another position, another height in each row  find limits below which a term or an old sum is omitted
    one position in all rows, high                find conditions such as j <= i that skip it
    one position, all other inputs 0              find results that consist of the small terms alone
    """
    for places, up in _peaks_of(outputs):
        along = next(n for n, (_, _, height) in enumerate(places) if height)
        rest = next((n for n, (_, _, height) in enumerate(places) if not height), along)
        length = arrays[_place_of(outputs, places[along][0])].shape[places[along][1]]

        def made(heights: Sequence[float], turn: int, together: bool, places: Any = places, at: Any = (along, rest),
                 up: float = up) -> list[np.ndarray]:  # fmt: skip
            out = list(arrays)
            for k, (b, d, high) in enumerate(places):
                n, sign = _place_of(outputs, b), up if high else 1.0
                # what is multiplied by a peak has more rows than the peak's own array
                own = heights if k == at[not together] else (1.0,)
                out[n] = _lone(out[n], d, [sign * h for h in own], turn, together and high != 0)
            return out

        apart = (made(_some_limits(n), n, False) for n in range(len(LONE_HEIGHTS)))
        joint = (
            made((PEAK_HEIGHT * PEAK_FACTOR,), n, True)
            for n in range(min(length, SHARED_PLACES) if len(places) > 1 else 0)
        )
        used = [_place_of(outputs, b) for b, _, _ in places]
        drowned = (
            _drowned(made((h,), n, True), used, length, NEXT_PLACE * n % length) for n, h in enumerate(SMALL_HEIGHTS)
        )
        for one, other, third in zip_longest(apart, joint, drowned):
            if one is not None:
                yield one, ", with rows of 0 and one other number"
            if third is not None:
                yield third, ", with rows of 0 and one number that is multiplied by 0"
            if other is not None:
                yield other, f", with 0 and one {PEAK_HEIGHT * PEAK_FACTOR * up:g} in all rows"


def _drowned(arrays: list[np.ndarray], used: Sequence[int], length: int, place: int) -> list[np.ndarray]:
    """Copy of ``arrays``: float arrays whose positions are not in ``used`` become ones, with 0 at index ``place`` of
    axes that have ``length`` elements.
    """
    out = list(arrays)
    for n, x in enumerate(arrays):
        if n not in used and x.dtype.kind not in "biu":
            out[n] = np.ones_like(x)
            for d in (d for d, size in enumerate(x.shape) if size == length):
                np.moveaxis(out[n], d, 0)[place] = 0
    return out


def _some_limits(turn: int) -> Sequence[float]:
    """A third of ``LONE_HEIGHTS``, by ``turn % 3``, rotated by ``turn // 3``: one run cannot have all heights, as small
    results drown in the rounding of the largest.
    """
    first = len(LONE_HEIGHTS) // 3 * (turn % 3)
    some, n = LONE_HEIGHTS[first : first + len(LONE_HEIGHTS) // 3], turn // 3
    return *some[n:], *some[:n]


LONE_HEIGHTS = tuple(9.01 * 1.12**n for n in range(30))
"""Heights of which one is a little above any limit between 9 and 200, or up to 25 where they are divided by eight."""
SMALL_HEIGHTS = (40.0, 28.0, 85.0, 14.0, 20.0, 10.0, 57.0)
"""Heights of which one is a little above 10 where they are divided by 1 to 8, as by the root of a length: exponentials
that halves have with fewer digits.
"""
SHARED_PLACES = 48
"""Places at which all rows have their peak."""


def _peaks_of(outputs: tuple[Tensor, ...]) -> Iterator[tuple[list[Place], float]]:
    """Yield ([(input, axis, height)], sign): inputs that reach a max or min reduction, sign 1 for a maximum, -1 for a
    minimum.
    """
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    calls = any(c.fn not in EXACT_CALLS for b in bodies for c in find(b, Call)) or any(
        c.fn not in EXACT_CALLS for r in _reduces(bodies) for e in r.combiner.result for c in find(e, Call)
    )
    done = set[Any]()
    for r in _reduces(bodies):
        up = _direction(r)
        if not up or not (calls or r.combiner.name not in ("min", "max")):
            continue
        for load, axis in _reads(r.values[0], r.axes):
            key = load.buffer, axis
            if key not in done and (places := _places(load.buffer, axis, PEAK_HEIGHT)):
                yield places, up
            done.add(key)


Place = tuple[Buffer, int, float]
"""An input, the dimension along which it has peaks, and how high they are; 0: they are all that is not 0."""


def _runs(
    outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], places: Sequence[Place], up: float
) -> Iterator[list[np.ndarray]]:
    along = next(n for n, (_, _, height) in enumerate(places) if height)
    at = _place_of(outputs, places[along][0])
    length = arrays[at].shape[places[along][1]]
    rows = max(1, arrays[at].size // max(length, 1))
    for turn in range(min(MOST_PEAK_RUNS, -(-length // rows))):
        made = list(arrays)
        for b, d, height in places:
            n = _place_of(outputs, b)
            made[n] = _peaked(made[n], d, height * up, turn * rows)
        with np.errstate(all="ignore"):
            want = evaluate(outputs, made)
        if all(np.isfinite(np.asarray(w, np.float64)).all() for w in want):
            yield made


def _place_of(outputs: tuple[Tensor, ...], b: Buffer) -> int:
    """Position of the array ``b`` among the arguments."""
    return next(n for n, a in enumerate(arguments_of(outputs)) if not isinstance(a, Var) and a.buffer is b)


def _all_far(
    outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], b: Buffer, sign: float
) -> Iterator[list[np.ndarray]]:
    """Yield copies of ``arrays`` with ``b`` constant near its type's limit, with the given sign: exposes a maximum
    initialized with -1e30 instead of -inf. At most one copy, none if results are not finite.
    """
    made = list(arrays)
    n = _place_of(outputs, b)
    with np.errstate(all="ignore"):
        for size in (2.0**126, 2.0**15, 2.0**8):
            made[n] = np.full_like(arrays[n], sign * size)
            if np.isfinite(np.asarray(made[n], np.float64)).all():
                break
        want = evaluate(outputs, made)
    if all(np.isfinite(np.asarray(w, np.float64)).all() for w in want):
        yield made


def _peaked(x: np.ndarray, d: int, height: float, first: int) -> np.ndarray:
    """Copy of ``x`` with a peak of ``height`` in each row along ``d``, at another position from row to row; other
    elements are kept for ``PEAK_HEIGHT``, else replaced by their signs. Height 0: zeros with one ``PEAK_FACTOR`` per
    row.
    """
    rows = np.moveaxis(np.array(x, copy=True), d, -1)
    flat = rows.reshape(-1, x.shape[d])
    low = flat if abs(height) == PEAK_HEIGHT else np.sign(flat) * (abs(height) > 0)
    out = np.array(low, x.dtype)
    at = np.arange(len(flat))
    step = next(n for n in range(NEXT_PLACE, NEXT_PLACE + x.shape[d] + 1) if math.gcd(n, x.shape[d]) == 1)
    out[at, step * (at + first) % x.shape[d]] += np.asarray(height or PEAK_FACTOR, x.dtype)
    return np.ascontiguousarray(np.moveaxis(out.reshape(rows.shape), -1, d))


def _lone(x: np.ndarray, d: int, heights: Sequence[float], turn: int, together: bool) -> np.ndarray:
    """Zeros like ``x`` with one number per row along ``d``, cycling through ``heights``; its position is the same in
    all rows if ``together``, else varies. turn: moves the positions.
    """
    out = np.zeros_like(np.moveaxis(x, d, -1))
    flat = out.reshape(-1, x.shape[d])
    at = np.arange(len(flat))
    places = NEXT_PLACE * (turn if together else at + turn * len(flat)) % x.shape[d]
    flat[at, places] = np.resize(np.asarray(heights), len(flat)).astype(x.dtype)
    return np.ascontiguousarray(np.moveaxis(flat.reshape(out.shape), -1, d))


def _places(b: Buffer, axis: int, height: float) -> list[Place]:
    """[(input, axis, height)] of inputs whose peaks make ``b`` large at one position along ``axis``; [] if none can."""
    op = b.origin.op if isinstance(b.origin, Tensor) else None
    if op is None:
        free = b.origin is not None and b.data is None and DTYPES[b.dtype].kind == "f"
        return [(b, axis, height)] if free else []
    body = op.bodies[_which(op, b)]
    v = op.axes[axis]
    if not isinstance(body, Reduce):
        return next((some for x, d in _reads(body, (v,)) if (some := _places(x.buffer, d, height))), [])
    if body.combiner.name != "sum":
        return []
    found: list[Place] = []
    for x, d in _reads(body.values[0], (v,)):  # a factor that is high there
        if not found and (found := _places(x.buffer, d, PEAK_FACTOR)):
            used = {p[0] for p in found}
            for y, k in _reads(body.values[0], body.axes):  # times another one of which one term is left
                if not any(isinstance(i, Var) and i is v for i in y.index):
                    found += [p for p in _places(y.buffer, k, 0.0) if p[0] not in used]
    return found


def _which(op: Compute, b: Buffer) -> int:
    return next(n for n, t in enumerate(op.outputs) if t.buffer is b)


def _reads(e: Expr, axes: Sequence[Var]) -> Iterator[tuple[Load | PadLoad, int]]:
    """Yield (load, dimension) of float loads in ``e`` that are indexed by exactly one of ``axes`` in that dimension."""
    for x in find(e, (Load, PadLoad)):
        assert isinstance(x, Load | PadLoad)
        if DTYPES[x.buffer.dtype].kind == "f":
            yield from ((x, d) for d, i in enumerate(x.index) if any(i is v for v in axes))


def _reduces(bodies: Sequence[Expr]) -> Iterator[Reduce]:
    for b in bodies:
        yield from find(b, Reduce)


def _direction(r: Reduce) -> float:
    """1 for a reduction that selects the largest float, -1 the smallest, 0 neither."""
    if r.combiner.name in ("max", "argmax"):
        return float(DTYPES[r.values[0].dtype].kind == "f")
    if r.combiner.name in ("min", "argmin"):
        return -float(DTYPES[r.values[0].dtype].kind == "f")
    ops = [x.op for e in r.combiner.result for x in find(e, Binary) if DTYPES[x.a.dtype].kind == "f"]
    return -1.0 if "min" in ops else 1.0 if {"max", "<", "<="} & set(ops) else 0.0
