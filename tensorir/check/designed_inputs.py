"""Test inputs for CUDA text without a lowered program to compare with, as after a user's edit.

Emitted text has the bits of its lowered program for any numbers (``same_bits.py``), so it runs on few of these inputs:
exact ones, and infinities. Other text is run on each kind, as each reveals faults hidden by moderate numbers::

    other magnitudes         values clamped, truncated or treated as 0; few exponents
    one peak in a row        a lane, warp or tile missed by a maximum (``outliers.py``)
    limits of types          sums in fewer bits than declared, limits, a maximum that loses a NaN

An edited text is also compared with the emitted one (``hard_inputs``). There, correct kernels may differ from the
declaration: a long sum cancels, a row of -inf has no largest element. The edited text fails if it is wrong where the
emitted one is right. All inputs are used::

    all equal                         a maximum that begins with -1e30, a sum in too few bits
    one different element             a reduction that skips a row's end, or one of its warps
    a NaN, an infinity, some -inf     reversed comparisons, missing guards
    far from 0, near 0, rising        lost significand bits, wrong limits
    one slightly larger element       terms and sums skipped as too small
    whole numbers around 2**k         comparisons in too few bits, or of halves
    constants of the definition, and numbers next to them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from tensorir.check.exact_inputs import (
    SCALAR_BITS,
    TextRun,
    all_finite,
    free_inputs,
    larger,
    longest,
    multiplies_tf32,
    short,
    thinned,
)
from tensorir.check.outliers import far_inputs, with_infinities, with_lone_peaks, with_peaks
from tensorir.codegen.source import Source
from tensorir.expr.program import computes_of, work_of
from tensorir.expr.reducers import BUILT_IN
from tensorir.expr.tensor import Tensor
from tensorir.interp.doubles import Doubles
from tensorir.interp.magnitude import is_continuous, rounds_last
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import arguments_of, evaluate, random_arguments
from tensorir.interp.rounding import rounding_of
from tensorir.interp.sizes import EXACT_CALLS
from tensorir.interp.uses import reads_bits
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Call, Cast, Const, Expr, Reduce, Var
from tensorir.ir.visit import find

_OF_ANY_SIZE = ("log", "log2", "sqrt", "rsqrt")
"""Functions that are numbers of few exponents for numbers of many."""
LARGEST_ON_THE_WAY = 2.0**110
"""Results beyond it may be infinite on the way: algorithms such as Winograd's make larger numbers of their inputs.
Those below its inverse may lose digits."""
_POWERS_OF_TOO_LARGE = (20, 14, 10, 7, 5)
_FAR_OFFSET = 128
"""More than the logarithm of the largest float32."""
TERMS_OF_ALL_RUNS = 1 << 22
"""Of the definition, in all runs of one edited text on hard inputs together."""
FEWEST_RUNS, MOST_RUNS = 16, 400
LONE_HEIGHT = 200.0
"""Of one element among others; exp(89) is beyond float32."""
WORD_ENDS = (7, 8, 15, 16, 24, 31, 32, 53)
"""Powers of two at which words, halves of words and digits of floats end."""
PLACES_IN_A_ROW = 64
"""Besides its ends and those of its tiles."""

Inputs = tuple[list[np.ndarray], str]


def runs(
    outputs: tuple[Tensor, ...], source: Source, conditions: Sequence[Expr], seed: int, turn: int, printed: bool
) -> Iterator[TextRun]:
    """Yield the test runs of one CUDA text at one shape: exact inputs, sparse ones, infinities; for ``printed`` False
    also tf32 operands and, at the first shape, other magnitudes.

    turn:    number of the shape; selects the input array with the largest numbers
    printed: True if the text is known to have the bits of its lowered program on any numbers: fewer runs then
    """
    few = random_arguments(outputs, seed + turn, conditions=conditions)
    twice = 1 if printed else 2
    # asynchronous tile copies land as late as they may, and in a second run at any time
    for n, eager in enumerate((False, True) if any(k.maps for k in source.kernels) else (False,) * twice):
        given = random_arguments(outputs, seed + turn + n, conditions=conditions) if n else few
        arrays = given if conditions else larger(outputs, source, given, seed, turn + n)
        yield TextRun(arrays, eager=eager)
    sparse = [short(outputs, source, conditions, seed + turn + 2 + n) for n in range(twice)]  # either sign
    yield from sparse
    if not printed:
        if not conditions and multiplies_tf32(source):
            yield from (longest(outputs, source, few, seed, turn + n) for n in range(twice))
        if not turn:  # what the text computes with; where it does so depends on the shape
            yield from _other_numbers(outputs, source, few, conditions, seed, sparse[0].exact)
    for far in with_infinities(outputs, few):
        yield TextRun(far, spread=True, about=", with infinities among its inputs")


def _other_numbers(outputs: tuple[Tensor, ...], source: Source, few: list[np.ndarray], conditions: Sequence[Expr],
                   seed: int, exact: bool | None) -> Iterator[TextRun]:  # fmt: skip
    """Yield test runs on very small, very large and special numbers.

    few:   inputs of small whole numbers
    exact: True if results on the sparse inputs (``short``) are bit-equal to the reference; more kinds are run otherwise
    """
    if not exact:
        for n in (3, 4):  # either sign
            yield TextRun(_finite_ones(outputs, conditions, seed + n), exact=False, about=", with long scalars")
        if (far := with_small_results(outputs, few)) is not None:
            yield TextRun(far, exact=False, about=", with results that are small compared to others")
    for far in with_peaks(outputs, few):
        yield TextRun(far, exact=False, about=", with one element far above the rest of its row")
    plain, large = (0.0, 2.0**-12, 1.0), (2.0**100, -(2.0**100))  # the first may have branches of their own
    for n in range(3):
        if (given := _with_scalars(outputs, few, conditions, (*plain[n:], *plain[:n]))) is not None:
            yield TextRun(given, about=", with scalars that are 0, 1 or small")
    for values in (large, large[::-1]):
        if (given := _with_scalars(outputs, few, conditions, values, zeros=True)) is not None:
            yield TextRun(given, about=", with zeros and very large scalars")
    for other in with_other_sizes(outputs, few):
        yield TextRun(other, about=", with small or large numbers")
    for most, about in (((100, 40, 20, 10), "large"), ((-100, -40, -20, -10), "small")):
        if long := with_all_digits(outputs, source, few, seed, most):
            yield TextRun(long, exact=False, about=f", with {about} numbers of all digits")
    for ends, about in at_the_ends(outputs, few, free_inputs(outputs, few, conditions), seed):
        yield TextRun(ends, exact=False, about=about)


def _with_scalars(
    outputs: tuple[Tensor, ...], arrays: list[np.ndarray], conditions: Sequence[Expr], values: Sequence[float],
    zeros: bool = False,
) -> list[np.ndarray] | None:  # fmt: skip
    """Copy of ``arrays`` with float scalars replaced cyclically by ``values``.

    None without float scalars, with ``conditions``, or if results become infinite or NaN.
    zeros: True for zeros as other floats: a sum that does not begin at 0 shows only if it is multiplied by a large
           scalar, where results have too few exponent bits for its start
    """
    given = arguments_of(outputs)
    floats = [DTYPES[a.dtype].kind == "f" for a in given]
    which = [n for n, a in enumerate(given) if isinstance(a, Var) and floats[n]]
    if not which or conditions:
        return None
    made = [np.zeros_like(x) if f and zeros else x for x, f in zip(arrays, floats, strict=True)]
    with np.errstate(all="ignore"):
        for k, n in enumerate(which):
            made[n] = np.asarray(values[k % len(values)], arrays[n].dtype)
        return made if all_finite(evaluate(outputs, made)) else None


def _finite_ones(outputs: tuple[Tensor, ...], conditions: Sequence[Expr], seed: int) -> list[np.ndarray]:
    """Sparse random inputs, with scalars of as many significand bits as keep results finite."""
    arrays = random_arguments(outputs, seed, conditions=conditions)
    free = free_inputs(outputs, arrays, conditions)
    for bits in SCALAR_BITS:
        found = random_arguments(outputs, seed, conditions=conditions, scalar_bits=bits)
        found = thinned(outputs, found, free, seed)
        if all_finite(evaluate(outputs, found)):
            return found
    return arrays


def with_other_sizes(outputs: tuple[Tensor, ...], arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield copies of ``arrays`` with floats scaled by 1/16, as ``erf`` or ``exp`` of integers is nearly 0, 1 or the
    argument. If an output has fewer exponent bits than float32: scaled so only if a function is called, then to
    denormals, and nearly to overflow if results are rounded only when stored.
    """
    calls = any(c.fn not in EXACT_CALLS for op in computes_of(outputs) for b in op.bodies for c in find(b, Call))
    given = arguments_of(outputs)
    narrow = [_few_exponents(t.dtype) for t in outputs]
    far = far_inputs(outputs, arrays)

    def scaled(factors: Sequence[float], scalars: float) -> list[np.ndarray]:
        sizes = [scalars if isinstance(a, Var) and DTYPES[a.dtype].kind == "f" else k if f else 0
                 for a, f, k in zip(given, far, factors, strict=True)]  # fmt: skip
        return [np.asarray(x * k, x.dtype) if k else x for x, k in zip(arrays, sizes, strict=True)]

    if calls or not any(narrow):
        yield scaled([1 / 16] * len(arrays), 1 / 8)
    if any(narrow):
        most = [64.0 if DTYPES[a.dtype].bits == 8 else 1024.0 for a in given]
        yield scaled([1 / m for m in most], 1 / 8)
        if rounds_last(outputs, scaled(most, 1)):  # else what is nearly too large may be so or not
            yield scaled(most, 1)


def with_small_results(outputs: tuple[Tensor, ...], arrays: list[np.ndarray]) -> list[np.ndarray] | None:
    """Copy of ``arrays`` with floats times 8 or 4, so that some results are accurate although tiny relative to others,
    as quotients of exponentials are. None if no function is called, or no results become that small.
    """
    if not any(c.fn not in EXACT_CALLS for op in computes_of(outputs) for b in op.bodies for c in find(b, Call)):
        return None
    far = far_inputs(outputs, arrays)
    for factor in (8, 4):
        tried = [np.asarray(x * factor, x.dtype) if f else x for x, f in zip(arrays, far, strict=True)]
        with np.errstate(all="ignore"):
            made = [np.abs(np.asarray(w, np.float64)) for w in evaluate(outputs, tried)]
        if not all_finite(made) or (bounds := rounding_of(outputs, tried)) is None:
            continue
        known = [(w > 0) & (e < w / 64) & (w < 2.0**-20 * w.max()) for w, e in zip(made, bounds, strict=True) if w.size]
        if any(map(np.any, known)):
            return tried
    return None


def with_all_digits(
    outputs: tuple[Tensor, ...],
    source: Source,
    arrays: list[np.ndarray],
    seed: int,
    powers: Sequence[int] = (40, 20, 10),
) -> list[np.ndarray] | None:
    """Copy of ``arrays`` with floats of full significands and many exponents, as large or small as results allow, to
    expose clamping, truncation and flushing to 0.

    None if right kernels may differ by more than rounding (tf32, float-to-integer casts, discontinuous bodies), if
    functions other than logarithms and roots are called, no input array has float32's exponent range, or a computed
    tensor has less.

    powers: exponents of two to scale whole numbers by; the first with finite results, the largest of them between
            2**-110 and 2**110, is used; None if there is none
    """
    wide = [
        f and not _few_exponents(a.dtype)
        for f, a in zip(far_inputs(outputs, arrays), arguments_of(outputs), strict=True)
    ]
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    rounds = any("tf32" in name and "3xtf32" not in name for name in source.instructions)
    whole = any(DTYPES[e.dtype].kind != "f" and DTYPES[e.a.dtype].kind == "f" for b in bodies for e in find(b, Cast))
    calls = any(c.fn not in (*EXACT_CALLS, *_OF_ANY_SIZE) for b in bodies for c in find(b, Call))
    if rounds or whole or calls or not any(wide) or not is_continuous(outputs):
        return None
    if any(_few_exponents(t.dtype) for op in computes_of(outputs) for t in op.outputs):
        return None
    rng = np.random.default_rng(seed)
    long = [x * rng.uniform(0.75, 1.25, x.shape) if w else x for x, w in zip(arrays, wide, strict=True)]
    for power in powers:
        tried = [np.asarray(x * 2.0**power, a.dtype) if w else a for x, a, w in zip(long, arrays, wide, strict=True)]
        with np.errstate(all="ignore"):
            made = evaluate(outputs, tried)
        largest = max(float(np.abs(np.asarray(w, np.float64)).max(initial=0.0)) for w in made)
        if all_finite(made) and 1 / LARGEST_ON_THE_WAY < largest < LARGEST_ON_THE_WAY:
            return tried
    return None


def _few_exponents(dtype: str) -> bool:
    kind = DTYPES[dtype]
    return kind.kind == "f" and kind.bits - kind.digits < DTYPES["float32"].bits - DTYPES["float32"].digits


def at_the_ends(
    outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], free: Sequence[bool], seed: int
) -> Iterator[tuple[list[np.ndarray], str]]:
    """Yield (inputs at the limits of their types, description); right kernels equal the reference on them, up to
    rounding.

    arrays: inputs of small whole numbers;  free: one boolean per input, true if it may hold any numbers
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
    """Copy of ``arrays`` with random integers of all bits in half of the elements and type limits in some, so that
    arithmetic wraps around. None without integer inputs, if results would depend on rounding, or if bits are read by
    the declaration (inputs already have all bits then).
    """
    rng = np.random.default_rng(seed)
    wide = [f and DTYPES[a.dtype].kind in "iu" for a, f in zip(arguments_of(outputs), free, strict=True)]
    if not any(wide) or reads_bits(outputs):
        return None
    made = [any_bits(rng, x) if w else x for x, w in zip(arrays, wide, strict=True)]
    return made if _is_steady(outputs, made) else None


def any_bits(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Integers shaped like ``x``: random bits in half of the elements, the type's limits in an eighth, ``x``
    elsewhere.
    """
    kind = np.iinfo(x.dtype)
    wild = rng.integers(kind.min, kind.max, x.shape, x.dtype, endpoint=True)
    ends = np.where(rng.random(x.shape) < 0.5, x.dtype.type(kind.min), x.dtype.type(kind.max))
    which = rng.random(x.shape)
    return np.where(which < 0.375, x, np.where(which < 0.875, wild, ends))


def with_too_large_floats(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Copy of ``arrays`` with floats times the largest of some powers of two, up to 2**20, that float-to-integer
    conversions in the declaration allow, or 2**60 if it only calls ``floor``, ``ceil`` or ``round``. None without any
    of these, or if no power gives finite results independent of rounding.
    """
    far = far_inputs(outputs, arrays)
    rounds = any(
        c.fn in ("floor", "ceil", "round") for op in computes_of(outputs) for b in op.bodies for c in find(b, Call)
    )
    if not any(far) or not (rounds or _makes_whole(outputs)):
        return None
    for power in _POWERS_OF_TOO_LARGE if _makes_whole(outputs) else (60, *_POWERS_OF_TOO_LARGE):
        with np.errstate(over="ignore"):
            tried = [np.asarray(x * 2.0**power, x.dtype) if f else x for x, f in zip(arrays, far, strict=True)]
        if all_finite(tried) and _is_steady(outputs, tried):
            return tried
    return None


def with_no_numbers(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], seed: int) -> Iterator[list[np.ndarray]]:
    """Yield copies of ``arrays``: with some NaNs, if the declaration compares floats or takes minima or maxima; all
    infinite, if it reduces by min or max and has no sums, rounded functions or comparisons, to test initial values.

    Yields nothing for integer results, or with a user's combiner, which may be associative for finite numbers only.
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
    """Yield copies of ``arrays`` with all floats shifted by +128, then by -128, if functions are called: without
    subtraction of the maximum, ``exp`` overflows. Copies with inaccurate results are left out.
    """
    far = far_inputs(outputs, arrays)
    calls = [c for op in computes_of(outputs) for b in op.bodies for c in find(b, Call) if c.fn not in EXACT_CALLS]
    if not any(far) or not calls or not is_continuous(outputs) or any(_is_whole(t.dtype) for t in outputs):
        return
    for offset in (_FAR_OFFSET, -_FAR_OFFSET):
        tried = [np.asarray(x + x.dtype.type(offset), x.dtype) if f else x for x, f in zip(arrays, far, strict=True)]
        made, exact = evaluate(outputs, tried), evaluate(outputs, tried, Doubles())
        if all_finite([*tried, *made]) and all(map(_as_exact, outputs, made, exact)):
            yield tried


def _as_exact(t: Tensor, made: np.ndarray, exact: np.ndarray) -> bool:
    """True if ``made`` is close to ``exact``, the results in double precision, and ``exact`` is not all 0."""
    size = float(np.abs(exact).max(initial=0.0))
    lost = 2.0 ** -(8 if DTYPES[t.dtype].widened else 16) * size
    return size > 0 and bool(np.all(np.abs(np.asarray(made, np.float64) - exact) <= lost))


def _picks(e: Expr) -> bool:
    """True if ``e`` is a min or max of floats, binary or a reduction."""
    named = e.op if isinstance(e, Binary) else e.combiner.name if isinstance(e, Reduce) else ""
    return named in ("min", "max") and DTYPES[e.dtype].kind == "f"


def _makes_whole(outputs: Sequence[Tensor]) -> bool:
    """True if the declaration converts a float to an integer."""
    casts = [e for op in computes_of(outputs) for b in op.bodies for e in find(b, Cast)]
    return any(_is_whole(e.dtype) and DTYPES[e.a.dtype].kind == "f" for e in casts)


def _is_whole(dtype: str) -> bool:
    return DTYPES[dtype].kind in "iu"


def _is_steady(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> bool:
    """True if results are finite and nearly independent of rounding: where rounding might change an integer, results
    equal those in double precision.
    """
    try:
        found = evaluate(outputs, arrays, _Checked())
        made = evaluate(outputs, arrays)
        if not all_finite([*found, *made]):
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


class _OutOfRangeError(Exception):
    """Raised if a float is converted to an integer type that cannot hold it."""


def _need_range(x: Any, old: str, new: str) -> None:
    if _is_whole(new) and DTYPES[old].kind == "f":
        with np.errstate(invalid="ignore"):
            whole = np.trunc(np.asarray(x, np.float64))
            if not np.all((whole >= DTYPES[new].low) & (whole <= DTYPES[new].high)):
                raise _OutOfRangeError


class _Checked(Numbers):
    """The device's arithmetic on declarations; raises _OutOfRangeError where a conversion is undefined."""

    def cast(self, x: object, old: str, new: str) -> Any:
        _need_range(x, old, new)
        return super().cast(x, old, new)


class _CheckedDoubles(Doubles):
    """Double-precision arithmetic on declarations; raises _OutOfRangeError where a conversion is undefined."""

    def cast(self, x: object, old: str, new: str) -> Any:
        _need_range(x, old, new)
        return super().cast(x, old, new)


# --- an edited text next to the emitted one


def hard_inputs(
    outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], free: Sequence[bool], seed: int
) -> Iterator[Inputs]:
    """Yield (inputs, description), most revealing kinds first; in all about ``TERMS_OF_ALL_RUNS`` terms, from
    ``FEWEST_RUNS`` to ``MOST_RUNS`` inputs.

    arrays: inputs of small whole numbers;  free: one boolean per input, true if it may hold any numbers
    """
    open_ = [n for n, f in enumerate(free) if f and arrays[n].size > 1]
    rngs = (np.random.default_rng([seed, n]) for n in count())  # what one kind draws is no matter of the others
    left = min(MOST_RUNS, max(FEWEST_RUNS, TERMS_OF_ALL_RUNS // max(1, work_of(outputs))))
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
    """(smallest, largest) value of an array's dtype; infinities for floats, 0 and 1 for booleans."""
    if x.dtype.kind in "iu":
        return int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)
    return (-np.inf, np.inf) if _kind(x) == "f" else (0, 1)


def _constants(outputs: Sequence[Tensor], x: np.ndarray) -> list[float]:
    """Up to four constants of the declaration, the largest in absolute value, that the dtype of ``x`` can hold."""
    low, high = _ends(x)
    constants = [c for op in computes_of(outputs) for b in op.bodies for c in find(b, Const)]
    found = {c.value for c in constants if DTYPES[c.dtype].kind in ("fiu" if _kind(x) == "f" else "iu")}
    return sorted((v for v in found if np.isfinite(v) and low <= v <= high), key=abs)[-4:]


def _uniform(outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], open_: Sequence[int]) -> Iterator[Inputs]:
    """Yield (inputs with one array constant, description); constants are type limits, 0, 1, NaN, large and small
    floats, and constants of the declaration.
    """
    for n in open_:
        x = arrays[n]
        low, high = _ends(x)
        values: list[float] = [low, high, 0, 1]
        if _kind(x) == "f":
            values += [np.nan, LONE_HEIGHT, -LONE_HEIGHT, 2.0**15, -(2.0**15), 2.0**100, -(2.0**100), 2.0**-20, -10.01]
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
    """Yield (inputs with floats of full significands, description): one magnitude, mixed magnitudes, rising or falling
    along an axis. Nothing without floats.
    """
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
    """Yield (inputs, description): integers around a power of two, so equal in their upper bits; a few or half of them
    larger.
    """
    whole = [n for n in open_ if _kind(arrays[n]) in "iu"]
    for k in WORD_ENDS:
        wide = [n for n in whole if 2**k < _ends(arrays[n])[1]]
        if not wide:
            continue
        for share in (0.5, 0.04):
            made = _instead_of_each(arrays, wide, lambda x, k=k, part=share: (
                np.array(2**k, x.dtype) + (rng.random(x.shape) < part) - (rng.random(x.shape) < 0.5)
            ))  # fmt: skip
            yield made, f", with numbers next to 2**{k}"


def _peaks(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray], open_: Sequence[int]) -> Iterator[Inputs]:
    """Yield (inputs, description): for each maximum or minimum of the declaration, rows of zeros with one large
    number.
    """
    for made, about in with_lone_peaks(outputs, arrays):
        if all(made[n] is arrays[n] for n in range(len(arrays)) if n not in open_):
            yield made, about


def _few_digits(
    outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], open_: Sequence[int], rng: np.random.Generator
) -> Iterator[Inputs]:
    """Yield (inputs, description): floats with 2 or 6 significand bits more than the narrowest float output, so that
    many results are rounding ties or overflow. Nothing if no output is narrower than float32.
    """
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
    """Boolean mask like ``x``: true in the first 1/8 to 3/8 of each row, the length varying by row."""
    row = np.arange(x.size).reshape(x.shape) // x.shape[-1]
    return _along(x, x.ndim - 1) < x.shape[-1] * (2 + row % 5) / 16  # type: ignore[no-any-return]


def _along(x: np.ndarray, d: int) -> Any:
    """Float array shaped like ``x``: the index of each element along dimension ``d``."""
    shape = [1] * x.ndim
    shape[d] = -1
    return np.broadcast_to(np.arange(x.shape[d], dtype=np.float64).reshape(shape), x.shape)


def _spoiled(arrays: Sequence[np.ndarray], open_: Sequence[int], rng: np.random.Generator) -> Iterator[Inputs]:
    """Yield (inputs, description): with one NaN, two NaNs, an infinity, zeros of both signs, or rows that begin or end
    with -inf.
    """
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
    """Yield (inputs, description): one deviating element per row, at each position where a tile, warp or thread may
    begin or end.
    """
    turns = []
    for n in open_:
        x = arrays[n]
        low, high = _ends(x)
        pairs: list[tuple[Any, Any]] = (
            [(0, LONE_HEIGHT), (0, -LONE_HEIGHT)] if _kind(x) == "f" else [(low, high), (high, low)]
        )
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
    """(dimension, length) of each dimension longer than 1, the last dimension first."""
    return [(d, x.shape[d]) for d in reversed(range(x.ndim)) if x.shape[d] > 1]


def _one_each(like: np.ndarray, base: Any, d: int, places: Sequence[int], first: int, value: float) -> Any:
    """Copy of ``base``, in the dtype of ``like``, with ``value`` once in each row along ``d``: row r has it at
    ``places[(r + first) % len(places)]``.
    """
    out = np.array(np.moveaxis(base, d, -1), like.dtype)
    flat = out.reshape(-1, like.shape[d])
    rows = np.arange(len(flat))
    flat[rows, np.asarray(places)[(rows + first) % len(places)]] = np.asarray(value).astype(like.dtype)
    return np.moveaxis(flat.reshape(out.shape), -1, d)


def _places(length: int, rng: np.random.Generator) -> list[int]:
    """Positions to test in a row of ``length``: its first and last two, edges of power-of-two tiles, and random
    ones.
    """
    ends = [length - 1, 0, length - 2, 1]
    for k in range(1, 12):
        whole = length - length % (1 << k)
        ends += [whole, whole - 1, (1 << k) - 1, 1 << k]
    parts = (np.arange(PLACES_IN_A_ROW) + rng.random(PLACES_IN_A_ROW)) * length / PLACES_IN_A_ROW
    return [p for p in dict.fromkeys([*ends, *rng.permutation(parts.astype(int)).tolist()]) if 0 <= p < length]
