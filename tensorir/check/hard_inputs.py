"""Inputs on which a text that someone has edited is compared with the one that was emitted.

Right kernels may differ from the declaration here: a sum of many digits cancels, a row of nothing but -inf has no
largest element. What is asked is whether the edited text is wrong where the emitted one is right, and all inputs do::

    all the same                      a maximum that begins with -1e30, a sum in too few bits
    one element unlike the others     a reduction that leaves out a row's end, or one warp of it
    a NaN, an infinity, a part of -inf    comparisons the other way round, guards that are gone
    far from 0, near it, rising       digits that are lost, limits that are wrong
    one a little above the others     terms and sums that are left out as too small
    whole numbers next to 2**k        comparisons in too few bits, or of halves
    at the constants of the definition, and next to them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from tensorir.check.peaks import with_lone_peaks
from tensorir.expr.program import computes_of, work_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.reference import arguments_of
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Const
from tensorir.ir.visit import find

WORK = 1 << 22
"""Terms of the definition in all runs of one text together."""
FEWEST, MOST = 16, 400
"""Runs."""
HIGH = 200.0
"""Of one element among others; exp(89) is beyond float32."""
NEXT = (7, 8, 15, 16, 24, 31, 32, 53)
"""Powers of two at which words, halves of words and digits of floats end."""
PLACES = 64
"""In a row, besides its ends and those of its tiles."""

Inputs = tuple[list[np.ndarray], str]


def hard_inputs(
    outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], free: Sequence[bool], seed: int
) -> Iterator[Inputs]:
    """Inputs and what is special about them, those that see most kinds of faults first, as many as ``WORK`` allows.

    arrays: few whole numbers;  free: which of them may be any numbers
    """
    open_ = [n for n, f in enumerate(free) if f and arrays[n].size > 1]
    rngs = (np.random.default_rng([seed, n]) for n in count())  # what one kind draws is no matter of the others
    left = min(MOST, max(FEWEST, WORK // max(1, work_of(outputs))))
    sizes = _sizes(arrays, open_, next(rngs))  # see most: they have two turns
    kinds = [
        _uniform(outputs, arrays, open_),
        sizes,
        _few_digits(outputs, arrays, open_, next(rngs)),
        _neighbours(arrays, open_, next(rngs)),
        _peaks(outputs, arrays, open_),
        sizes,
        _spoiled(arrays, open_, next(rngs)),
        _alone(outputs, arrays, open_, next(rngs)),
    ]
    while left and kinds:  # in turn: a long definition has time for some of each
        for kind in [*kinds]:
            if (made := next(kind, None)) is None:
                kinds.remove(kind)
            elif left:
                left -= 1
                yield made


def _instead(arrays: Sequence[np.ndarray], n: int, made: Any) -> list[np.ndarray]:
    out = list(arrays)
    with np.errstate(all="ignore"):
        out[n] = np.asarray(made).astype(arrays[n].dtype)
    return out


def _instead_of_each(arrays: Sequence[np.ndarray], which: Sequence[int], f: Any) -> list[np.ndarray]:
    out = list(arrays)
    for n in which:
        out = _instead(out, n, f(arrays[n]))
    return out


def _kind(x: np.ndarray) -> str:
    return x.dtype.kind if x.dtype.kind in "biu" else "f"


def _ends(x: np.ndarray) -> tuple[float, float]:
    """The least and the largest number of an array's type."""
    if x.dtype.kind in "iu":
        return int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)
    return (-np.inf, np.inf) if _kind(x) == "f" else (0, 1)


def _constants(outputs: Sequence[Tensor], x: np.ndarray) -> list[float]:
    """Numbers in the definition that the type of an array has, a few of them."""
    low, high = _ends(x)
    constants = [c for op in computes_of(outputs) for b in op.bodies for c in find(b, Const)]
    found = {c.value for c in constants if DTYPES[c.dtype].kind in ("fiu" if _kind(x) == "f" else "iu")}
    return sorted((v for v in found if np.isfinite(v) and low <= v <= high), key=abs)[-4:]


def _uniform(outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], open_: Sequence[int]) -> Iterator[Inputs]:
    """One number everywhere in an input."""
    for n in open_:
        x = arrays[n]
        low, high = _ends(x)
        values: list[float] = [low, high, 0, 1]
        if _kind(x) == "f":
            values += [np.nan, HIGH, -HIGH, 2.0**15, -(2.0**15), 2.0**100, -(2.0**100), 2.0**-20, -10.01]
            most = DTYPES[arguments_of(outputs)[n].dtype].largest
            values += [sign * part * most for part in (1, 0.95) for sign in (1, -1)]
        elif _kind(x) != "b":
            values += [low + 1, high - 1, 90, high // 2 + 1]
        for c in _constants(outputs, x):
            if _kind(x) == "f":
                values += [c, *(np.nextafter(np.float32(c), np.float32(far)) for far in (-np.inf, np.inf))]
            values += [v for v in (c, c - 1, c + 1) if low <= v <= high]
        for v in dict.fromkeys(values):
            yield _instead(arrays, n, np.full(x.shape, v)), f", with {v:g} everywhere in an input"


def _sizes(arrays: Sequence[np.ndarray], open_: Sequence[int], rng: np.random.Generator) -> Iterator[Inputs]:
    """Floats of all digits: far from 0, near it, of two sizes, and rising or falling along each axis."""
    floats = [n for n in open_ if _kind(arrays[n]) == "f"]
    if not floats:
        return
    each = partial(_instead_of_each, arrays, floats)
    for size in (1.0, 3e-4, 1e-3, 0.05, 10.0, 1e3, 1e5, 1e12, 2.0**-40, 2.0**-70, 2.0**-126):
        yield each(lambda x, k=size: k * rng.standard_normal(x.shape)), f", with numbers of the size of {size:g}"
    for span in (20, 45):
        made = each(lambda x, k=span: rng.choice((-1.0, 1.0), x.shape) * 2.0 ** rng.uniform(-k, k, x.shape))
        yield made, f", with numbers of all sizes between 2**-{span} and 2**{span}"
    for other in (1e-21, 2.0**-60, 2.0**60):
        made = each(lambda x, k=other: np.where(rng.random(x.shape) < 1 / max(x.shape), k, 1.0))
        yield made, f", with numbers that are 1, hardly any {other:g}"
    for far in (40.0, 2.0**10, 1e5, 2.0**20):
        for sign in (1, -1):
            made = each(lambda x, k=sign * far: k + rng.standard_normal(x.shape))
            yield made, f", with numbers near {sign * far:g}"
    for other in (-7.8, -10.01, 30.0, 2.0**12):
        for share in (0.5, 0.25, 0.75):
            made = each(lambda x, k=other, part=share: np.where(rng.random(x.shape) < part, k, 0.0))
            yield made, f", with numbers that are 0 or {other:g}"
        made = each(lambda x, k=other: np.where(_early(x), 0.0, k))
        yield made, f", with numbers that are 0, then {other:g}"
        made = each(lambda x, k=other: np.where(rng.random(x.shape) < 4 / max(x.shape), 0.0, k))
        yield made, f", with numbers that are {other:g}, hardly any 0"
    for d in range(max(arrays[n].ndim for n in floats)):
        for step in (1e-5, 3e-5, 1e-3, -1e-3, 0.1):
            made = each(lambda x, d=d, k=step: _along(x, min(d, x.ndim - 1)) * k)
            yield made, f", with numbers that {'rise' if step > 0 else 'fall'} by {abs(step):g}"


def _neighbours(arrays: Sequence[np.ndarray], open_: Sequence[int], rng: np.random.Generator) -> Iterator[Inputs]:
    """Whole numbers next to a power of two, all alike in their upper bits, some or hardly any of them larger."""
    whole = [n for n in open_ if _kind(arrays[n]) in "iu"]
    for k in NEXT:
        wide = [n for n in whole if 2**k < _ends(arrays[n])[1]]
        if not wide:
            continue
        for share in (0.5, 0.04):
            made = _instead_of_each(arrays, wide, lambda x, k=k, part=share: (
                np.array(2**k, x.dtype) + (rng.random(x.shape) < part) - (rng.random(x.shape) < 0.5)
            ))  # fmt: skip
            yield made, f", with numbers next to 2**{k}"


def _peaks(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], open_: Sequence[int]) -> Iterator[Inputs]:
    """One number above the zeros of each row of what a maximum goes over."""
    for made, about in with_lone_peaks(outputs, arrays):
        if all(made[n] is arrays[n] for n in range(len(arrays)) if n not in open_):
            yield made, about


def _few_digits(
    outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], open_: Sequence[int], rng: np.random.Generator
) -> Iterator[Inputs]:
    """Floats of a few digits more than narrow results have: many are in the middle of two of these, or beyond them."""
    narrow = [DTYPES[t.dtype] for t in outputs if DTYPES[t.dtype].kind == "f" and DTYPES[t.dtype].bits < 32]
    floats = [n for n in open_ if _kind(arrays[n]) == "f"]
    if not narrow or not floats:
        return
    digits = min(kind.digits for kind in narrow)
    for power in (-6, -2, 1, 4, 7, 10, 16, -2, 1, 4):
        for bits in (digits + 2, digits + 6):
            made = _instead_of_each(arrays, floats, lambda x, b=bits, unit=2.0 ** (power - bits): (
                rng.integers(-(1 << b), 1 << b, x.shape, endpoint=True) * unit
            ))  # fmt: skip
            yield made, f", with numbers up to {2.0**power:g} of {bits} digits"


def _early(x: np.ndarray) -> np.ndarray:
    """Whether an element is among the first eighth of its row, or up to three eighths, other parts in other rows."""
    row = np.arange(x.size).reshape(x.shape) // x.shape[-1]
    return _along(x, x.ndim - 1) < x.shape[-1] * (2 + row % 5) / 16  # type: ignore[no-any-return]


def _along(x: np.ndarray, d: int) -> Any:
    """The position along one dimension, at each element."""
    shape = [1] * x.ndim
    shape[d] = -1
    return np.broadcast_to(np.arange(x.shape[d], dtype=np.float64).reshape(shape), x.shape)


def _spoiled(arrays: Sequence[np.ndarray], open_: Sequence[int], rng: np.random.Generator) -> Iterator[Inputs]:
    """A NaN, two, an infinity, zeros of both signs, or rows that begin or end with -inf."""
    for n in open_:
        x = arrays[n]
        if _kind(x) != "f":
            continue
        yield _instead(arrays, n, np.where(rng.random(x.shape) < 0.5, -0.0, 0.0)), ", with zeros of both signs"
        bits = np.full(x.shape, (1 << 8 * x.itemsize - 1) - 1, f"u{x.itemsize}").view(x.dtype)
        yield [*arrays[:n], bits, *arrays[n + 1 :]], ", with NaNs of all bits"
        for d, length in _axes(x):
            at, along = _places(length, rng), _along(x, d)
            turns = range(4 if x.size < 4 * length else 2)
            for value in (np.nan, -np.inf, np.inf):
                for turn in turns:
                    made = _one_each(x, x, d, at, turn, value)
                    yield _instead(arrays, n, made), f", with one {value:g} in each row"
                if len(open_) > 1:  # which 0 times it, or it less itself, does not hide
                    ones = [np.ones_like(y) if k in open_ else y for k, y in enumerate(arrays)]
                    for turn in turns:
                        alone = _one_each(x, ones[n], d, at, turn, value)
                        yield _instead(ones, n, alone), f", with one {value:g} in each row of 1"
            for first, second in ((5, 9), (0, 40), (2, 17), (30, 61)):
                two = _one_each(x, _one_each(x, x, d, at, first, np.nan), d, at, second, np.nan)
                yield _instead(arrays, n, two), ", with two NaNs in each row"
            for part in sorted({1, 16, length // 2, length - 1} & set(range(1, length))):
                for where, which in (("begin", along < part), ("end", along >= length - part)):
                    made = np.where(which, -np.inf, x.astype(np.float64))
                    yield _instead(arrays, n, made), f", with rows that {where} with {part} of -inf"


def _alone(
    outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], open_: Sequence[int], rng: np.random.Generator
) -> Iterator[Inputs]:
    """One element of each row unlike the others, in all places that a tile, a warp or a thread may begin or end at."""
    turns = []
    for n in open_:
        x = arrays[n]
        low, high = _ends(x)
        pairs: list[tuple[Any, Any]] = [(0, HIGH), (0, -HIGH)] if _kind(x) == "f" else [(low, high), (high, low)]
        if _kind(x) in "iu" and low < 0:
            pairs.append((0, low))
        for c in _constants(outputs, x):
            pairs += [p for p in ((c - 1, c + 1), (c + 1, c - 1)) if min(p) >= low and max(p) <= high]
        for d, length in _axes(x):
            at, rows = _places(length, rng), x.size // length
            for turn in range(-(-len(at) // rows)):
                turns += [(turn, k, n, d, base, value, at) for k, (base, value) in enumerate(pairs)]
    for turn, _, n, d, base, value, at in sorted(turns, key=lambda t: t[:2]):
        x = arrays[n]
        made = _one_each(x, np.full(x.shape, base, x.dtype), d, at, turn * (x.size // x.shape[d]), value)
        yield _instead(arrays, n, made), f", with one {value:g} in each row of {base:g}"


def _axes(x: np.ndarray) -> list[tuple[int, int]]:
    """Dimensions with several elements, the last first, and their lengths."""
    return [(d, x.shape[d]) for d in reversed(range(x.ndim)) if x.shape[d] > 1]


def _one_each(like: np.ndarray, base: Any, d: int, places: Sequence[int], first: int, value: float) -> Any:
    """``base`` with a value in each row along ``d``, in the row after at the place after."""
    out = np.array(np.moveaxis(base, d, -1), like.dtype)
    flat = out.reshape(-1, like.shape[d])
    rows = np.arange(len(flat))
    flat[rows, np.asarray(places)[(rows + first) % len(places)]] = np.asarray(value).astype(like.dtype)
    return np.moveaxis(flat.reshape(out.shape), -1, d)


def _places(length: int, rng: np.random.Generator) -> list[int]:
    """Places in a row, its ends first: of its tiles of powers of two as well, and some of each part."""
    ends = [length - 1, 0, length - 2, 1]
    for k in range(1, 12):
        whole = length - length % (1 << k)
        ends += [whole, whole - 1, (1 << k) - 1, 1 << k]
    parts = (np.arange(PLACES) + rng.random(PLACES)) * length / PLACES
    return [p for p in dict.fromkeys([*ends, *rng.permutation(parts.astype(int)).tolist()]) if 0 <= p < length]
