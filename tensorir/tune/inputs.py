"""Test inputs of small integers on which a program's float results are exact, generated reproducibly.

The generator is tiny and must never change: exported self-tests contain a copy that generates the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.codec import travels
from tensorir.expr.program import inputs_of, scalars_of
from tensorir.expr.reread import at_largest
from tensorir.expr.tensor import Tensor
from tensorir.interp.distinct import scalar, table
from tensorir.interp.magnitude import is_exact
from tensorir.interp.numbers import numpy_dtype
from tensorir.interp.uses import (
    Steps,
    distinct_places,
    divisors,
    gather_limits,
    masked_gathers,
    masked_range,
    only_integers,
    pointer_steps,
    reads_bits,
    shift_amounts,
)
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Var

_AMPLITUDES = (1000, 300, 100, 40, 20, 10, 6, 4, 3, 2, 1)  # the widest exact one: neighbours should differ
_SCALAR_BITS = (13, 9, 0)  # of scalars: more than float16 has, than bfloat16 has, few
_TURN = 1
"""Variant of the values of scalars and index tables in exact inputs; ``random_arrays`` takes later ones."""


@travels
@dataclass(frozen=True)
class ArgumentRange:
    """One argument of a program, and integers ``low … high`` suited to fill it.

    scalar: passed by value; shape is () and ``low == high``
    table:  its elements are indices
    number: position among the scalars
    steps: (step, inner, extent): adds step * index along a dimension of that extent and element stride ``inner``
           (segment pointers); () for none
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: int
    high: int
    scalar: bool = False
    table: bool = False
    number: int = 0
    steps: tuple[int, ...] = ()


def integers(count: int, low: int, high: int, seed: int) -> NDArray[np.int64]:
    """``count`` pseudo-random integers in ``low … high`` from a hashed counter, equal on all machines and versions."""
    x = np.arange(1, count + 1, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = (x ^ (x >> np.uint64(31))) >> np.uint64(1)
    return (x % np.uint64(high - low + 1)).astype(np.int64) + low


def arguments(outputs: Sequence[Tensor]) -> tuple[tuple[ArgumentRange, ...], bool]:
    """(arguments in order of declaration, True if results on their integers are exact in every dtype). Dims have their
    largest values.
    """
    outputs = at_largest(outputs)
    limits, masked = gather_limits(outputs), masked_gathers(outputs)
    limits.update({t: masked_range(limits[t])[1] for t in masked})
    scalars, pointers = scalars_of(outputs), {**distinct_places(outputs), **pointer_steps(outputs)}
    amplitude, bits, exact = _widest(outputs, scalars, limits)
    divide, amounts = divisors(outputs), shift_amounts(outputs)
    wild = reads_bits(outputs) and only_integers(outputs)  # these are exact however large they are
    found = []
    for t in inputs_of(outputs):
        if t in pointers:
            most, *steps = pointers[t]
            made = ArgumentRange(t.name, t.dtype, t.shape, 0, most, steps=tuple(steps))
        elif t in masked:
            made = ArgumentRange(t.name, t.dtype, t.shape, *_masked_range(t.dtype, limits[t]))
        elif t in limits:  # in range: where rows are skipped no time is measured
            made = ArgumentRange(t.name, t.dtype, t.shape, 0, max(0, limits[t] - 1), table=True)
        elif wild and t not in divide:
            made = ArgumentRange(t.name, t.dtype, t.shape, *_any_bits(t.dtype, amounts.get(t)))
        else:
            made = ArgumentRange(t.name, t.dtype, t.shape, *_range(t.dtype, amplitude, t in divide))
        found.append((t.order, made))
    for n, v in enumerate(scalars):
        value = _scalar(n, v.dtype, bits)
        found.append((v.order, ArgumentRange(v.name, v.dtype, (), value, value, scalar=True, number=n)))
    exact = exact or wild
    return tuple(a for _, a in sorted(found, key=lambda x: x[0])), exact


def _widest(outputs: Sequence[Tensor], scalars: Sequence[Var], limits: dict[Tensor, int]) -> tuple[int, int, bool]:
    """(largest magnitude of inputs, significand bits of scalars, True if results are exact), as large as exactness
    allows.
    """
    for bits in _SCALAR_BITS if scalars else (0,):
        sizes: dict[Any, int] = {**limits, **{v: abs(_scalar(n, v.dtype, bits)) for n, v in enumerate(scalars)}}
        for amplitude in _AMPLITUDES:
            if (amplitude > 2 or not bits) and is_exact(outputs, amplitude, sizes):
                return amplitude, bits, True
    return 4, 0, False


def _scalar(number: int, dtype: str, bits: int) -> int:
    """Value of scalar ``number`` with ``bits`` significand bits: never 0 or 1, which hide faults in multiplications."""
    return scalar(number, dtype, _TURN, bits if DTYPES[dtype].kind == "f" else 0)


def integer_arrays(given: Sequence[ArgumentRange], seed: int = 0) -> list[np.ndarray]:
    """Arrays and NumPy scalars of small integers for arguments ``given``."""
    made = []
    for n, a in enumerate(given):
        values = integers(prod(a.shape), a.low, a.high, seed * 1000 + n).reshape(a.shape)
        array = (values + _added(a)).astype(numpy_dtype(a.dtype))
        made.append(array[()] if a.scalar else array)
    return made


def dealt_arrays(given: Sequence[ArgumentRange], seed: int = 0) -> list[np.ndarray]:
    """Arrays and NumPy scalars like those of ``integer_arrays``, but with index tables that contain every index as far
    as they are long enough.
    """
    made = integer_arrays(given, seed)
    return [_dealt(a, seed, _TURN) if a.table else x for a, x in zip(given, made, strict=True)]


def _dealt(a: ArgumentRange, seed: int, turn: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    found = table(rng, a.shape, a.high + 1, False, turn)
    return np.asarray(found).astype(numpy_dtype(a.dtype))


def random_arrays(given: Sequence[ArgumentRange], seed: int = 0) -> list[np.ndarray]:
    """Arrays and NumPy scalars for arguments ``given``: standard normal floats, integers in the argument's range, index
    tables that contain every index as far as they are long enough, and distinct float scalars with many significant
    bits. The same for the same seed.
    """
    rng = np.random.default_rng(seed)
    made: list[Any] = []
    for a in given:
        if a.table:
            array = _dealt(a, seed, seed + _TURN + 1)
        elif a.scalar and DTYPES[a.dtype].kind == "f":
            array = np.asarray(scalar(a.number, "float32", seed + _TURN + 1, 24) / 2**23, numpy_dtype(a.dtype))
        elif DTYPES[a.dtype].kind == "f":
            array = rng.standard_normal(a.shape, dtype=np.float32).astype(numpy_dtype(a.dtype))
        else:
            array = (rng.integers(a.low, a.high, a.shape, endpoint=True) + _added(a)).astype(numpy_dtype(a.dtype))
        made.append(np.asarray(array)[()] if a.scalar else array)
    return made


def _added(a: ArgumentRange) -> NDArray[np.int64] | int:
    return Steps(0, *a.steps).added(a.shape) if a.steps else 0


def _any_bits(dtype: str, amount: int | None) -> tuple[int, int]:
    """(low, high) of a dtype's values (half of the range for 64 bits), or of shift counts beyond ``amount``."""
    kind = DTYPES[dtype]
    low, high = (kind.low, kind.high) if amount is None else (max(kind.low, -2), min(kind.high, amount + 1))
    return max(low, -(2**62)), min(high, 2**62 - 1)


def _masked_range(dtype: str, limit: int) -> tuple[int, int]:
    return max(DTYPES[dtype].low, -limit // 2), min(DTYPES[dtype].high, limit - 1)


def _range(dtype: str, amplitude: int, divides: bool) -> tuple[int, int]:
    kind = DTYPES[dtype]
    if divides:
        return 1, amplitude
    if kind.kind == "f":
        return -amplitude, amplitude
    return max(kind.low, -amplitude), min(kind.high, amplitude)
