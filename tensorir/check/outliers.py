"""Test inputs with a few elements far from all others: peaks, infinities and NaNs.

A wrong maximum is invisible in softmax of moderate numbers, as the subtracted value cancels, until a lane, warp or tile
missed by the maximum holds a number whose ``exp`` overflows: one element of each row is a peak, at another position in
each, as equal maxima would hide the lanes after the first one. A read past a row, multiplied by 0, is invisible until
it finds an infinity: results are affected exactly where the declaration reads one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from tensorir.errors import Problem
from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Compute, Tensor
from tensorir.interp.reference import arguments_of, evaluate
from tensorir.interp.sizes import EXACT_CALLS
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Buffer, Call, Cast, Expr, Load, PadLoad, Reduce, Select, Var
from tensorir.ir.visit import find

# --- peaks

PEAK_HEIGHT = 200.0
"""Of a peak; exp(89) is beyond float32."""
PEAK_FACTOR = 64.0
"""Of a peak that is multiplied by another one, and then perhaps by the inverse root of a length."""
NEXT_PLACE = 37
"""From the place of a peak to that in the next row, or a little more: all places of a row have their turn."""
MOST_PEAK_RUNS = 4
"""Runs at most, where rows are few."""


def with_peaks(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield copies of ``arrays`` with a peak in each row that a maximum or minimum reduces, up to ``MOST_PEAK_RUNS``
    per reduction; then, if a single input reaches it, one with that input constant near its type's limit. Copies with
    infinite or NaN results are left out.

    Nothing unless the declaration calls a function or reduces otherwise than by min and max, such as argmax; nor if no
    input reaches the reduction by sums, products and copies.
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
    """[(input, axis, height)] by which ``b`` becomes large at one position along ``axis``; [] if no input can do it.

    Copies and maps pass ``height`` on. In a sum of products the factor indexed by ``axis`` has ``PEAK_FACTOR``, others
    0: zeros with one peak per row, so that one term of the sum is left.
    """
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


# --- infinities and NaNs


def with_infinities(outputs: tuple[Tensor, ...], arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield copies of ``arrays`` with infinities at the start of each float array's last row, then NaNs in its second
    and third rows (rows: entries along the first dimension).

    They expose kernels that read past a row, group or image and multiply by 0. Nothing without floats, or where
    infinities become integers.
    """
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    if any(DTYPES[e.dtype].kind != "f" and DTYPES[e.a.dtype].kind == "f" for b in bodies for e in find(b, Cast)):
        return
    far = far_inputs(outputs, arrays)
    if any(DTYPES[t.dtype].kind != "f" for t in outputs) or not any(far):
        return
    yield _with(np.inf, far, arrays, (-1,))
    if any(f and len(x) > 2 for x, f in zip(arrays, far, strict=True)):
        yield _with(np.nan, far, arrays, (1, 2))  # an odd and an even one: pipeline stages alternate


def infinities_spread(
    outputs: tuple[Tensor, ...], got: Sequence[np.ndarray], arrays: Sequence[np.ndarray]
) -> Problem | None:
    """Problem ``check.infinity-spreads`` if a result in ``got`` is not finite where the declaration reads no infinity
    or NaN of ``arrays``, ``check.wrong-result`` if finite where the declaration reads one and is not; else None. The
    second is not tested with reductions other than sum and prod.
    """
    far = far_inputs(outputs, arrays)
    with np.errstate(all="ignore"):  # 256: of every type, and more than sums of small numbers that a relu hides
        tried = [evaluate(outputs, _instead(x, far, arrays)) for x in (0.0, 256.0, -256.0, np.inf)]
        made = [np.asarray(w, np.float64) for w in evaluate(outputs, arrays)]
    everywhere = reads_all_as_is(outputs)
    for n, (t, g) in enumerate(zip(outputs, got, strict=True)):
        want, *others = (np.asarray(w[n], np.float64) for w in tried)
        apart = np.isfinite(want) & np.all([want == w for w in others], axis=0)
        # what is clipped is the same for all of these, and NaN where infinities meet: the declaration says so then
        wrong = apart & np.isfinite(made[n]) & ~np.isfinite(np.asarray(g, np.float64))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return Problem(
                "check.infinity-spreads",
                f"{t.name}{list(at)} is {np.asarray(g)[at]}, the declaration says {want[at]:g}: it depends on an "
                f"infinite element of an input that the declaration does not read there ({int(wrong.sum())} of "
                f"{want.size} do)",
            )
        depends = ~np.all([want == w for w in others[:2]], axis=0)
        lost = (depends | bool(everywhere)) & ~np.isfinite(made[n]) & np.isfinite(np.asarray(g, np.float64))
        if everywhere is not None and lost.any():
            at = tuple(int(i) for i in np.argwhere(lost)[0])
            return Problem(
                "check.wrong-result",
                f"{t.name}{list(at)} is {np.asarray(g)[at]}, the declaration says {made[n][at]:g}, for it reads an "
                f"infinity or a NaN of an input there ({int(lost.sum())} of {want.size} are numbers)",
            )
    return None


def where_skipped(
    outputs: tuple[Tensor, ...], got: Sequence[np.ndarray], want: Sequence[np.ndarray], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The reference results ``want`` for a kernel under ``s.skip``: where NaNs in ``arrays`` are only multiplied by 0,
    ``want`` is replaced by the finite value without the term, if ``got`` is not NaN there.
    """
    far = far_inputs(outputs, arrays)
    if not any(f and np.isnan(np.asarray(x, np.float64)).any() for x, f in zip(arrays, far, strict=True)):
        return list(want)
    with np.errstate(all="ignore"):
        tried = [evaluate(outputs, _instead(x, far, arrays)) for x in (0.0, 256.0, -256.0)]
    out = []
    for n, (g, w) in enumerate(zip(got, want, strict=True)):
        same = np.all([np.equal(tried[0][n], other[n]) for other in tried[1:]], axis=0)
        kept = same & np.isnan(np.asarray(w, np.float64)) & ~np.isnan(np.asarray(g, np.float64))
        out.append(np.where(kept, tried[0][n], w))
    return out


def reads_all_as_is(outputs: Sequence[Tensor]) -> bool | None:
    """True if the declaration has no padding and no selects, so that 0 * inf is NaN everywhere and no kernel may skip
    zero factors; else False. None with reductions other than sum and prod.
    """
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    if any(r.combiner.name not in ("sum", "prod") for b in bodies for r in find(b, Reduce)):
        return None
    return not any(True for b in bodies for kind in (PadLoad, Select) for _ in find(b, kind))


def far_inputs(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> list[bool]:
    """One boolean per input: true for float arrays of several elements."""
    return [np.size(x) > 1 and DTYPES[a.dtype].kind == "f" for x, a in zip(arrays, arguments_of(outputs), strict=True)]


def _with(value: float, far: Sequence[bool], arrays: Sequence[np.ndarray], places: Sequence[int]) -> list[np.ndarray]:
    """Copies of ``arrays``, float ones with ``value`` at ``[p, 0]`` for each p of ``places``; half of their other
    elements are 0.
    """
    rng = np.random.default_rng(0)
    out = [np.where(rng.random(x.shape) < 0.5, x, np.zeros_like(x)) if f else np.array(x)
           for x, f in zip(arrays, far, strict=True)]  # fmt: skip
    for x, f in zip(out, far, strict=True):
        if f:
            for part in places:
                x[(min(part, len(x) - 1), 0)[: x.ndim]] = value
    return out


def _instead(value: float, far: Sequence[bool], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Copies of ``arrays`` with infinities and NaNs of float arrays replaced by ``value``."""
    return [
        np.where(np.isfinite(x), x, np.asarray(value, x.dtype)) if f else x for x, f in zip(arrays, far, strict=True)
    ]
