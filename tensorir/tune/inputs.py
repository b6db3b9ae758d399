"""Inputs on which a program's result is exact: small integers, so that a right kernel is equal to the last bit.

The generator is fixed for ever and tiny: an exported self-test has its own copy and makes the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.expr.program import inputs_of, scalars_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.magnitude import is_exact
from tensorir.interp.numbers import numpy_dtype
from tensorir.interp.uses import (
    divisors,
    gather_limits,
    masked_gathers,
    masked_range,
    only_integers,
    reads_bits,
    shift_amounts,
)
from tensorir.ir.dtypes import DTYPES

_AMPLITUDES = (1000, 300, 100, 40, 20, 10, 6, 4, 3, 2, 1)  # the widest exact one: neighbours should differ


@dataclass(frozen=True)
class Argument:
    """One argument of a program and the integers ``low … high`` that are good for it.

    scalar: passed by value;  shape is () then
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: int
    high: int
    scalar: bool = False


def integers(count: int, low: int, high: int, seed: int) -> NDArray[np.int64]:
    """``count`` integers in ``low … high``: a mixed counter, the same on every machine and in every version."""
    x = np.arange(1, count + 1, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = (x ^ (x >> np.uint64(31))) >> np.uint64(1)
    return (x % np.uint64(high - low + 1)).astype(np.int64) + low


def arguments(outputs: Sequence[Tensor]) -> tuple[tuple[Argument, ...], bool]:
    """The arguments in order of declaration, and whether results on their integers are exact in every dtype."""
    limits, masked = gather_limits(outputs), masked_gathers(outputs)
    limits.update({t: masked_range(limits[t])[1] for t in masked})
    amplitude, exact = 1, False
    for amplitude in _AMPLITUDES:
        exact = is_exact(outputs, amplitude, limits)
        if exact:
            break
    else:
        amplitude = 4
    divide, amounts = divisors(outputs), shift_amounts(outputs)
    ranges = {
        t: _masked_range(t.dtype, limits[t]) if t in masked else _range(t.dtype, amplitude, limits.get(t), t in divide)
        for t in inputs_of(outputs)
    }
    if reads_bits(outputs) and only_integers(outputs):  # these are exact however large they are
        exact = True
        ranges |= {t: _any_bits(t.dtype, amounts.get(t)) for t in ranges if t not in limits and t not in divide}
    found = [(t.order, Argument(t.name, t.dtype, t.shape, *r)) for t, r in ranges.items()]
    found += [
        (v.order, Argument(v.name, v.dtype, (), *_scalar_range(v.dtype, amplitude), scalar=True))
        for v in scalars_of(outputs)
    ]
    return tuple(a for _, a in sorted(found, key=lambda x: x[0])), exact


def integer_arrays(given: Sequence[Argument], seed: int = 0) -> list[Any]:
    """Arrays (and NumPy scalars) of integers for these arguments."""
    made = []
    for n, a in enumerate(given):
        values = integers(prod(a.shape), a.low, a.high, seed * 1000 + n).reshape(a.shape)
        array = values.astype(numpy_dtype(a.dtype))
        made.append(array[()] if a.scalar else array)
    return made


def random_arrays(given: Sequence[Argument], seed: int = 0) -> list[Any]:
    """Arrays with every digit in use: normal floats, integers in range."""
    rng = np.random.default_rng(seed)
    made: list[Any] = []
    for a in given:
        if DTYPES[a.dtype].kind == "f":
            array = rng.standard_normal(a.shape, dtype=np.float32).astype(numpy_dtype(a.dtype))
        else:
            array = rng.integers(a.low, a.high, a.shape, endpoint=True).astype(numpy_dtype(a.dtype))
        made.append(np.asarray(array)[()] if a.scalar else array)
    return made


def _scalar_range(dtype: str, amplitude: int) -> tuple[int, int]:
    """Of what may be a factor: by 0 nobody would see what is multiplied, and by 1 not whether."""
    high = min(amplitude, DTYPES[dtype].high)
    return (0, 1) if dtype == "bool" else (min(2, high), high)


def _any_bits(dtype: str, amount: int | None) -> tuple[int, int]:
    """All values of a type, of 64 bits half of them; or a number of bits to shift by, and some that there are not."""
    kind = DTYPES[dtype]
    low, high = (kind.low, kind.high) if amount is None else (max(kind.low, -2), min(kind.high, amount + 1))
    return max(low, -(2**62)), min(high, 2**62 - 1)


def _masked_range(dtype: str, limit: int) -> tuple[int, int]:
    return max(DTYPES[dtype].low, -limit // 2), min(DTYPES[dtype].high, limit - 1)


def _range(dtype: str, amplitude: int, limit: int | None, divides: bool) -> tuple[int, int]:
    kind = DTYPES[dtype]
    if limit is not None:
        return 0, max(0, limit - 1)
    if divides:
        return 1, amplitude
    if kind.kind == "f":
        return -amplitude, amplitude
    return max(kind.low, -amplitude), min(kind.high, amplitude)
