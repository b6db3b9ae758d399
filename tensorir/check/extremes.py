"""Inputs at the ends of their types: integers of all bits, floats beyond every whole number, NaNs and infinities.

Numbers of a middling size do not show that sums are made in fewer bits than declared, that a limit is missing or one
too many, that a maximum loses a NaN, or that it begins with a number and not with -inf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensorir.check.infinities import far_inputs
from tensorir.expr.program import computes_of
from tensorir.expr.reducers import BUILT_IN
from tensorir.expr.tensor import Tensor
from tensorir.interp.doubles import Doubles
from tensorir.interp.magnitude import is_continuous
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import arguments_of, evaluate
from tensorir.interp.sizes import EXACT_CALLS
from tensorir.interp.uses import reads_bits
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Call, Cast, Expr, Reduce
from tensorir.ir.visit import find

_POWERS = (20, 14, 10, 7, 5)
_OFFSET = 128
"""More than the logarithm of the largest float32."""


def at_the_ends(
    outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], free: Sequence[bool], seed: int
) -> Iterator[tuple[list[np.ndarray], str]]:
    """Inputs whose results every right kernel has, up to rounding, and what is special about them.

    free: which inputs may be any numbers
    """
    if made := with_any_integers(outputs, arrays, free, seed):
        yield made, ", with integers of all bits"
    if made := with_too_large_floats(outputs, arrays):
        yield made, ", with floats that are limited where they are made whole"
    for made in with_no_numbers(outputs, arrays, seed):
        yield made, ", with NaNs or infinities alone"
    for made in with_offsets(outputs, arrays):
        yield made, ", with numbers all far from 0"


def with_any_integers(
    outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], free: Sequence[bool], seed: int
) -> list[np.ndarray] | None:
    """The inputs with integers of all bits in half of the places, and the ends of their types in some: arithmetic on
    them wraps around. None where there are none, or bits are read and so drawn already.
    """
    rng = np.random.default_rng(seed)
    wide = [f and DTYPES[a.dtype].kind in "iu" for a, f in zip(arguments_of(outputs), free, strict=True)]
    if not any(wide) or reads_bits(outputs):
        return None
    made = [_any_bits(rng, x) if w else x for x, w in zip(arrays, wide, strict=True)]
    return made if _is_steady(outputs, made) else None


def _any_bits(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    kind = np.iinfo(x.dtype)
    wild = rng.integers(kind.min, kind.max, x.shape, x.dtype, endpoint=True)
    ends = np.where(rng.random(x.shape) < 0.5, x.dtype.type(kind.min), x.dtype.type(kind.max))
    which = rng.random(x.shape)
    return np.where(which < 0.375, x, np.where(which < 0.875, wild, ends))


def with_too_large_floats(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The inputs with floats as large as conversions to integers allow, where floats are converted or rounded to whole
    numbers: the declaration limits what it converts. None where nothing is, or nothing larger can be.
    """
    far = far_inputs(outputs, arrays)
    rounds = any(
        c.fn in ("floor", "ceil", "round") for op in computes_of(outputs) for b in op.bodies for c in find(b, Call)
    )
    if not any(far) or not (rounds or _makes_whole(outputs)):
        return None
    for power in _POWERS if _makes_whole(outputs) else (60, *_POWERS):
        with np.errstate(over="ignore"):
            tried = [np.asarray(x * 2.0**power, x.dtype) if f else x for x, f in zip(arrays, far, strict=True)]
        if _all_finite(tried) and _is_steady(outputs, tried):
            return tried
    return None


def with_no_numbers(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], seed: int) -> Iterator[list[np.ndarray]]:
    """The inputs with NaNs in some places, where something compares two floats or picks the larger or the smaller one;
    and with nothing but infinities, where it picks one of many: what that begins with is none of them. Nothing where a
    user's reduction joins states: it may be associative for numbers alone.
    """
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    if any(r.combiner.name not in (*BUILT_IN, "set") for b in bodies for r in find(b, Reduce)):
        return
    picks = [e for b in bodies for e in (*find(b, Binary), *find(b, Reduce)) if _picks(e)]
    decides = any(
        e.op in ("==", "!=", "<", "<=") and DTYPES[e.a.dtype].kind == "f" for b in bodies for e in find(b, Binary)
    )
    far = far_inputs(outputs, arrays)
    if not (picks or decides) or not any(far) or _makes_whole(outputs) or any(_is_whole(t.dtype) for t in outputs):
        return
    rng = np.random.default_rng(seed)
    yield [np.where(rng.random(x.shape) < 1 / 16, np.asarray(np.nan, x.dtype), x) if f else x
           for x, f in zip(arrays, far, strict=True)]  # fmt: skip
    sums = any(isinstance(e, Reduce) and not _picks(e) for b in bodies for e in find(b, Reduce))
    calls = any(c.fn not in EXACT_CALLS for b in bodies for c in find(b, Call))
    if not sums and not calls and not decides and any(isinstance(e, Reduce) for e in picks):
        for value in (-np.inf, np.inf):
            yield [np.full_like(x, value) if f else x for x, f in zip(arrays, far, strict=True)]


def with_offsets(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The inputs with floats that are all far above 0, and all far below, where functions are called: what a
    declaration subtracts before ``exp``, so that it leaves a number, is missed. Nothing where results lose digits.
    """
    far = far_inputs(outputs, arrays)
    calls = [c for op in computes_of(outputs) for b in op.bodies for c in find(b, Call) if c.fn not in EXACT_CALLS]
    if not any(far) or not calls or not is_continuous(outputs) or any(_is_whole(t.dtype) for t in outputs):
        return
    for offset in (_OFFSET, -_OFFSET):
        tried = [np.asarray(x + x.dtype.type(offset), x.dtype) if f else x for x, f in zip(arrays, far, strict=True)]
        made, exact = evaluate(outputs, tried), evaluate(outputs, tried, Doubles())
        if _all_finite([*tried, *made]) and all(map(_as_exact, outputs, made, exact)):
            yield tried


def _as_exact(t: Tensor, made: np.ndarray, exact: np.ndarray) -> bool:
    """Whether results are nearly as good as those of double precision, and not all of them 0."""
    size = float(np.abs(exact).max(initial=0.0))
    lost = 2.0 ** -(8 if DTYPES[t.dtype].widened else 16) * size
    return size > 0 and bool(np.all(np.abs(np.asarray(made, np.float64) - exact) <= lost))


def _picks(e: Expr) -> bool:
    """Whether an expression is the largest or the smallest one of floats."""
    named = e.op if isinstance(e, Binary) else e.combiner.name if isinstance(e, Reduce) else ""
    return named in ("min", "max") and DTYPES[e.dtype].kind == "f"


# --- whether results are sure


def _makes_whole(outputs: Sequence[Tensor]) -> bool:
    """Whether a float is converted to an integer."""
    casts = [e for op in computes_of(outputs) for b in op.bodies for e in find(b, Cast)]
    return any(_is_whole(e.dtype) and DTYPES[e.a.dtype].kind == "f" for e in casts)


def _is_whole(dtype: str) -> bool:
    return DTYPES[dtype].kind in "iu"


def _is_steady(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> bool:
    """Whether results are numbers that rounding leaves as they are, nearly: where it might decide between integers,
    they are those of double precision.
    """
    try:
        found = evaluate(outputs, arrays, _Checked())
        made = evaluate(outputs, arrays)
        if not _all_finite([*found, *made]):
            return False
        if is_continuous(outputs):
            return True
        exact = evaluate(outputs, arrays, _CheckedDoubles())
    except _OutOfRangeError:
        return False
    return all(
        np.array_equal(a, b) if _is_whole(t.dtype) else np.allclose(np.asarray(a, np.float64), b, rtol=1e-2)
        for t, a, b in zip(outputs, made, exact, strict=True)
    )


def _all_finite(arrays: Sequence[np.ndarray]) -> bool:
    return all(np.isfinite(np.asarray(x, np.float64)).all() for x in arrays)


class _OutOfRangeError(Exception):
    """A float was converted to an integer that its type does not have."""


def _need_range(x: Any, old: str, new: str) -> None:
    if _is_whole(new) and DTYPES[old].kind == "f":
        with np.errstate(invalid="ignore"):
            whole = np.trunc(np.asarray(x, np.float64))
            if not np.all((whole >= DTYPES[new].low) & (whole <= DTYPES[new].high)):
                raise _OutOfRangeError


class _Checked(Numbers):
    """The device's numbers; raises _OutOfRangeError where a conversion is undefined."""

    def cast(self, x: object, old: str, new: str) -> Any:
        _need_range(x, old, new)
        return super().cast(x, old, new)


class _CheckedDoubles(Doubles):
    """The same in double precision."""

    def cast(self, x: object, old: str, new: str) -> Any:
        _need_range(x, old, new)
        return super().cast(x, old, new)
