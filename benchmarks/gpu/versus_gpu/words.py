"""Narrow floats as the words that hold their bits, so that a first contact with a GPU needs NumPy and CuPy alone.

NumPy has no bfloat16 and no floats of 8 bits. A kernel sees bytes, so its arrays are declared as integers here, and
results are compared word by word.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from tensorir.codegen.source import Source
from tensorir.ir.dtypes import DTYPES, WIDENED

_EXPONENTS = {"bfloat16": (8, True), "float8_e4m3": (4, False), "float8_e5m2": (5, True)}
"""Bits of the exponent, and whether its largest value stands for infinities and what is no number (IEEE 754); of
float8_e4m3 only the largest word is no number (Open Compute Project, OFP8 1.0, table 1)."""


def held_in_words(dtype: str) -> bool:
    """Whether NumPy lacks the type by itself."""
    return dtype in _EXPONENTS


def word_of(dtype: str) -> str:
    """The integer type whose arrays hold elements of ``dtype``, which is itself where NumPy has it."""
    return f"int{DTYPES[dtype].bits}" if held_in_words(dtype) else dtype


def words_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """The words of numbers rounded to ``dtype``, to nearest, halves to even; beyond its range is refused."""
    numbers = _numbers(dtype)
    magnitude = np.abs(np.asarray(values, np.float64))
    if not np.all(magnitude <= numbers[-1]):
        raise ValueError(f"{dtype} holds numbers up to {numbers[-1]:g}, not {magnitude.max():g}")
    above = np.searchsorted(numbers, magnitude)
    below = np.maximum(above - 1, 0)
    up, down = numbers[above] - magnitude, magnitude - numbers[below]
    word = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    sign = np.signbit(values).astype(np.int64) << DTYPES[dtype].bits - 1
    return (word | sign).astype(f"u{DTYPES[dtype].bits // 8}").view(word_of(dtype))


@cache
def _numbers(dtype: str) -> np.ndarray:
    """The finite numbers from 0 on, in the order of their words."""
    exponent, ieee = _EXPONENTS[dtype]
    digits = DTYPES[dtype].bits - 1 - exponent
    word = np.arange((((1 << exponent) - 1) << digits) if ieee else (1 << exponent + digits) - 1)
    power, fraction = word >> digits, word & (1 << digits) - 1
    bias = (1 << exponent - 1) - 1
    return np.ldexp(np.where(power > 0, fraction + (1 << digits), fraction).astype(np.float64),
                    np.maximum(power, 1) - bias - digits)  # fmt: skip


def in_words(source: Source) -> Source:
    """The same kernels with arrays of words; scalars of narrow types are floats, as kernels take them anyway."""

    def kind(dtype: str, role: str) -> str:
        return "float32" if role == "scalar" and dtype in WIDENED else word_of(dtype)

    return replace(source, params=tuple(replace(p, dtype=kind(p.dtype, p.role)) for p in source.params))
