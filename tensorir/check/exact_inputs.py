"""What texts are run on: inputs on which a right kernel's results are known to the last bit, each for what others hide.

Whole numbers as large as they may be show what is rounded on the way. Small ones with zeros among them, and scalars of
many digits, show what is added to a sum and how scalars are taken. Scalars and index tables change from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tensorir.check.infinities import far_inputs, with_infinities
from tensorir.check.peaks import with_peaks
from tensorir.codegen.source import Source
from tensorir.expr.program import computes_of
from tensorir.expr.reducers import BUILT_IN
from tensorir.expr.tensor import Tensor
from tensorir.interp.doubles import Doubles
from tensorir.interp.magnitude import is_continuous, rounds_last
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import arguments_of, evaluate, random_arguments
from tensorir.interp.rounding import rounding_of
from tensorir.interp.sizes import EXACT_CALLS, tensors_read
from tensorir.interp.uses import bitcast_floats, divisors, gather_limits, reads_bits, shift_amounts
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Call, Cast, Expr, Reduce, Var
from tensorir.ir.visit import find

SCALAR_BITS = (20, 16, 13, 11, 9)
"""Digits of scalars that are tried: bfloat16 has 8, float16 and tf32 have 11."""
_ROUNDED_BITS = 13
"""Digits of what tf32 rounds to 11, to its nearest neighbour and never half way."""


_OF_ANY_SIZE = ("log", "log2", "sqrt", "rsqrt")
"""Functions that are numbers of few exponents for numbers of many."""
HUGE = 2.0**110
"""Results beyond it may be infinite on the way: algorithms such as Winograd's make larger numbers of their inputs.
Those below its inverse may lose digits."""


@dataclass(frozen=True)
class Run:
    """One run of a text on ``arrays``, and what it is compared with.

    exact:  results are those of the declaration to the last bit; None: nobody has looked
    read:   the arrays as the instructions round them before they use them, where that is not the same
    eager:  copies may land before anyone must wait for them
    packed: arrays begin at the least multiples that the kernels are told of
    spread: they hold infinities: it is only asked whether these stay where the declaration reads them
    about:  what is special about the inputs, for the verdict
    """

    arrays: list[np.ndarray]
    exact: bool | None = None
    read: list[np.ndarray] | None = None
    eager: bool = False
    packed: bool = False
    spread: bool = False
    about: str = ""


def runs(outputs: tuple[Tensor, ...], source: Source, conditions: Sequence[Expr], seed: int, turn: int, alone: bool,
         printed: bool) -> Iterator[Run]:  # fmt: skip
    """The runs of one text.

    turn:    the shape's number: which input has its turn to be the largest
    alone:   no other shape of the kernel is run
    printed: its bits are compared with those of a lowered program, on any numbers
    """
    few = random_arguments(outputs, seed + turn, conditions=conditions)
    # asynchronous tile copies land as late as they may, and in a second run at any time
    for n, eager in enumerate((False, True) if any(k.maps for k in source.kernels) else (False,) * (1 + alone)):
        given = random_arguments(outputs, seed + turn + n, conditions=conditions) if n else few
        arrays = given if conditions else larger(outputs, source, given, seed, turn + n)
        yield Run(arrays, eager=eager)
    sparse = [short(outputs, source, conditions, seed + turn + 2 + n) for n in range(1 + alone)]  # either sign
    yield from sparse
    if not conditions:
        yield from (longest(outputs, source, few, seed, turn + n) for n in range(1 + alone) if _tf32(source))
    if not turn and not printed:  # what the text computes with; where it does so depends on the shape
        yield from _other_numbers(outputs, source, few, conditions, seed, alone, sparse[0].exact)
    for far in with_infinities(outputs, few):
        yield Run(far, spread=True, about=", with infinities among its inputs")


def _other_numbers(outputs: tuple[Tensor, ...], source: Source, few: list[np.ndarray], conditions: Sequence[Expr],
                   seed: int, alone: bool, exact: bool | None) -> Iterator[Run]:  # fmt: skip
    """Runs on numbers that are not of a middling size.

    exact: whether those on few numbers are
    """
    if not exact:
        for n in (3, 4):  # either sign
            yield Run(_finite_ones(outputs, conditions, seed + n), exact=False, about=", with long scalars")
        if (far := with_small_results(outputs, few)) is not None:
            yield Run(far, exact=False, about=", with results that are small compared to others")
    for far in with_peaks(outputs, few):
        yield Run(far, exact=False, about=", with one element far above the rest of its row")
    for n in range(3 * alone):
        if (plain := _with_plain_scalars(outputs, few, conditions, n)) is not None:
            yield Run(plain, about=", with scalars that are 0, 1 or small")
    for other in with_other_sizes(outputs, few):
        yield Run(other, about=", with small or large numbers")
    for most, about in (((100, 40, 20, 10), "large"), ((-100, -40, -20, -10), "small")):
        if long := with_all_digits(outputs, source, few, seed, most):
            yield Run(long, exact=False, about=f", with {about} numbers of all digits")
    for ends, about in at_the_ends(outputs, few, free_inputs(outputs, few, conditions), seed):
        yield Run(ends, exact=False, about=about)


def exactly(outputs: tuple[Tensor, ...], source: Source, arrays: Sequence[object], each: bool = False) -> bool:
    """Whether a right kernel gives the reference's results to the last bit: its instructions do not round terms.

    each: by every element, which takes as long as the reference, and not by the largest
    """
    kinds = {kind for name in source.instructions for kind in name.split(".")}
    digits = (11, 11) if "tf32" in kinds else (21, 11) if "3xtf32" in kinds else (24, 24)
    return rounds_last(outputs, arrays, digits, each)


def _tf32(source: Source) -> bool:
    return any("tf32" in name for name in source.instructions)


# --- small numbers, zeros and long scalars


def short(outputs: tuple[Tensor, ...], source: Source, conditions: Sequence[Expr], seed: int) -> Run:
    """Few numbers that are not zero, none at the ends of an axis, and scalars of as many digits as leave results exact.

    Where none are exact, zeros alone: what is added to a sum of nothing is seen whatever is rounded.
    """
    arrays = random_arguments(outputs, seed, conditions=conditions)
    free = free_inputs(outputs, arrays, conditions)
    for bits in SCALAR_BITS:
        arrays = random_arguments(outputs, seed, conditions=conditions, scalar_bits=bits)
        arrays = _thinned(outputs, arrays, free, seed)
        if exactly(outputs, source, arrays, each=True) and _finite(evaluate(outputs, arrays)):
            return Run(arrays, exact=True, packed=True, about=", with zeros and long scalars among its inputs")
    nothing = [np.zeros_like(x) if f else x for x, f in zip(arrays, free, strict=True)]
    return Run(nothing, packed=True, about=", with nothing but zeros for its inputs")


def _with_plain_scalars(
    outputs: tuple[Tensor, ...], arrays: list[np.ndarray], conditions: Sequence[Expr], turn: int
) -> list[np.ndarray] | None:
    """The inputs with 0, 1 and a small number, cyclically, for scalars of floats, for which some text goes another way;
    None without any, and where results are no numbers then.
    """
    which = [n for n, a in enumerate(arguments_of(outputs)) if isinstance(a, Var) and DTYPES[a.dtype].kind == "f"]
    if not which or conditions:
        return None
    made = list(arrays)
    for k, n in enumerate(which):
        made[n] = np.asarray((0, 2.0**-12, 1)[(k + turn) % 3], arrays[n].dtype)  # small ones next to 0 and 1
    with np.errstate(all="ignore"):
        return made if _finite(evaluate(outputs, made)) else None


def _finite_ones(outputs: tuple[Tensor, ...], conditions: Sequence[Expr], seed: int) -> list[np.ndarray]:
    """Few numbers that are not zero, and scalars of as many digits as leave results finite."""
    arrays = random_arguments(outputs, seed, conditions=conditions)
    free = free_inputs(outputs, arrays, conditions)
    for bits in SCALAR_BITS:
        found = random_arguments(outputs, seed, conditions=conditions, scalar_bits=bits)
        found = _thinned(outputs, found, free, seed)
        if _finite(evaluate(outputs, found)):
            return found
    return arrays


def _thinned(
    outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], free: Sequence[bool], seed: int
) -> list[np.ndarray]:
    """Inputs with zeros at the ends of their axes; what sums are made of has few numbers besides."""
    terms, summed = longest_sum(outputs), _multiplied(outputs)
    return [
        _thin(x, terms if a in summed else 1, seed + n) if f else x
        for n, (x, a, f) in enumerate(zip(arrays, arguments_of(outputs), free, strict=True))
    ]


def longest_sum(outputs: Sequence[Tensor]) -> int:
    """Terms of the longest sum."""
    sums = [r for op in computes_of(outputs) for b in op.bodies for r in find(b, Reduce)]
    return max((prod(int(a.extent or 1) for a in r.axes) for r in sums), default=1)


def _thin(x: np.ndarray, terms: int, seed: int) -> np.ndarray:
    """Mostly zeros, so that of ``terms`` products a few are not zero; 0 at both ends of each axis that has room."""
    rng = np.random.default_rng(seed)
    x = np.clip(x.astype(np.float64), -2, 2).astype(x.dtype) if terms > 4 else x
    kept = np.where(rng.random(x.shape) < min(1.0, (8 / terms) ** 0.5), x, np.zeros_like(x))
    for d, n in enumerate(x.shape):
        if n >= 4:
            kept[(slice(None),) * d + ([0, n - 1],)] = 0
    return kept


def free_inputs(outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], conditions: Sequence[Expr]) -> list[bool]:
    """Which inputs may be any whole numbers: no scalars, tables, divisors, bits to shift by, bits of a float, or
    what kernels are specialised for.
    """
    fixed = {*gather_limits(outputs), *divisors(outputs), *shift_amounts(outputs), *bitcast_floats(outputs)}
    asked = {t for c in conditions for t in tensors_read(c)}
    return [
        np.ndim(x) > 0 and a not in fixed and a not in asked and DTYPES[a.dtype].kind in "fiu"
        for x, a in zip(arrays, arguments_of(outputs), strict=True)
    ]


# --- large numbers


def larger(
    outputs: tuple[Tensor, ...], source: Source, arrays: list[np.ndarray], seed: int = 0, turn: int = 0
) -> list[np.ndarray]:
    """Inputs of whole numbers, in one as large as they can be with results that are rounded once and finite: what is
    rounded on the way, or another way, is seen. ``arrays`` where there are none.

    turn: which input it is
    """
    rng = np.random.default_rng(seed)
    free = [n for n, f in enumerate(free_inputs(outputs, arrays, ())) if f and np.size(arrays[n]) > 1]
    whole = _all_whole(outputs)  # these wrap around
    if whole and reads_bits(outputs):
        return arrays  # all bits are there
    for most in (1 << n for n in range(10 if whole else 15, 3, -1)) if free else ():
        tried = list(arrays)
        for n in free:
            tried[n] = _whole(rng, arrays[n], most if n == free[turn % len(free)] else 8)
        if whole or (exactly(outputs, source, tried) and _finite(evaluate(outputs, tried))):
            return tried
    return arrays


def longest(outputs: tuple[Tensor, ...], source: Source, arrays: list[np.ndarray], seed: int, turn: int) -> Run:
    """For products that round what they multiply: one operand at a time has more digits than they keep, the others are
    mostly zero. tf32 keeps 11, which ``read`` has; two of these keep 21, and results are exact.
    """
    about, rng, operands = ", with operands of many digits", np.random.default_rng(seed), _multiplied(outputs)
    free = free_inputs(outputs, arrays, ())
    given = [n for n, (f, a) in enumerate(zip(free, arguments_of(outputs), strict=True)) if f and a in operands]
    rounds = not any("3xtf32" in name for name in source.instructions)
    for bits in ((_ROUNDED_BITS,) if rounds else (20, 17, 14)) if given else ():
        tried = _thinned(outputs, arrays, free, seed)
        which = given[turn % len(given)]
        shape, dtype = tried[which].shape, tried[which].dtype
        long = _off_the_middle(rng, shape) if rounds else rng.integers(-(1 << bits), 1 << bits, shape)
        tried[which] = long.astype(dtype)
        read = [(np.rint(long / 4) * 4).astype(dtype) if rounds and n == which else x for n, x in enumerate(tried)]
        if rounds_last(outputs, read, (24 if rounds else 21, 11), each=True) and _finite(evaluate(outputs, read)):
            return Run(tried, True, read if rounds else None, about=about)
    return Run(arrays, about=about)


def _off_the_middle(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Whole numbers of ``_ROUNDED_BITS`` digits that are nearer to one multiple of 4 than to the other."""
    size = 4 * rng.integers(1 << _ROUNDED_BITS - 3, 1 << _ROUNDED_BITS - 2, shape) + rng.choice([1, 3], shape)
    return np.where(rng.random(shape) < 0.5, -size, size)


def _multiplied(outputs: Sequence[Tensor]) -> set[Any]:
    """Inputs that are multiplied in sums and copied before at most, so that a product may round them."""
    ops = computes_of(outputs)
    made = {t for op in ops for t in op.outputs}
    summed, touched = set[Any](), set[Any]()
    for op in reversed(ops):
        for b in op.bodies:
            read = tensors_read(b)
            copies = not any(DTYPES[x.a.dtype].kind == "f" for x in find(b, Binary)) and not find(b, Call)
            if isinstance(b, Reduce) or (copies and not summed.isdisjoint(op.outputs)):
                summed |= read
            else:
                touched |= read
    return summed - touched - made


def _all_whole(outputs: Sequence[Tensor]) -> bool:
    return all(DTYPES[a.dtype].kind != "f" for a in (*arguments_of(outputs), *outputs))


def _finite(results: Sequence[np.ndarray]) -> bool:
    return all(np.isfinite(np.asarray(w, np.float64)).all() for w in results)


def _whole(rng: np.random.Generator, like: np.ndarray, most: int) -> np.ndarray:
    """Whole numbers up to ``most`` of the type of ``like``, as many; some as they are where they may be lengths."""
    kind = np.dtype(like.dtype)
    if kind.kind in "iu":
        most = min(most, int(np.iinfo(kind).max))
    made = rng.integers(0 if kind.kind == "u" else -most, most + 1, like.shape).astype(kind)
    return np.where(rng.random(like.shape) < 0.5, like, made) if kind.kind in "iu" and kind.itemsize > 1 else made


# --- numbers of other sizes


def with_other_sizes(outputs: tuple[Tensor, ...], arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The inputs with floats of another size, where whole numbers of a middling size do not show what becomes of them:
    sixteenths, which are not whole, and for which functions such as ``erf`` and ``exp`` are neither 0, 1 nor their
    argument; for types of few exponents what is too small for normal numbers, and too large for any.
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
    """The inputs with floats so far apart that functions of them are very small compared to others, and known to some
    digits: quotients of exponentials are. None where no function is called, or none does that.
    """
    if not any(c.fn not in EXACT_CALLS for op in computes_of(outputs) for b in op.bodies for c in find(b, Call)):
        return None
    far = far_inputs(outputs, arrays)
    for factor in (8, 4):
        tried = [np.asarray(x * factor, x.dtype) if f else x for x, f in zip(arrays, far, strict=True)]
        with np.errstate(all="ignore"):
            made = [np.abs(np.asarray(w, np.float64)) for w in evaluate(outputs, tried)]
        if not _finite(made) or (bounds := rounding_of(outputs, tried)) is None:
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
    """The inputs with floats of many exponents, of as many digits as there are, as large or small as leaves results
    numbers of many digits: what is limited or shortened on the way, or taken for 0, is seen. None where right kernels
    may differ by more than rounding, where functions leave their range, and where no float has many exponents.

    powers: of two, by which they are larger than small whole numbers: the first of these that can be
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
        if _finite(made) and 1 / HUGE < largest < HUGE:
            return tried
    return None


def _few_exponents(dtype: str) -> bool:
    kind = DTYPES[dtype]
    return kind.kind == "f" and kind.bits - kind.digits < DTYPES["float32"].bits - DTYPES["float32"].digits


# Inputs at the ends of their types: integers of all bits, floats beyond every whole number, NaNs and infinities.
#
# Numbers of a middling size do not show that sums are made in fewer bits than declared, that a limit is missing or one
# too many, that a maximum loses a NaN, or that it begins with a number and not with -inf.

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
    made = [any_bits(rng, x) if w else x for x, w in zip(arrays, wide, strict=True)]
    return made if _is_steady(outputs, made) else None


def any_bits(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Integers like ``x`` with any bits in half of the places, and the ends of their type in an eighth."""
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
