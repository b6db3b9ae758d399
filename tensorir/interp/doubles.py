"""Double-precision arithmetic for comparisons that arithmetic modulo a prime cannot decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.numbers import Numbers
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.tree import Call, Reduce
from tensorir.ir.visit import find

TOLERANCE = 1e-9
"""Largest difference, relative to an element of a result or to the median one, that rounding in double precision
explains: sums of the few thousand terms of a check's shapes, functions with errors of some units in the last place,
cancellation."""


class Doubles(Numbers):
    """Arithmetic with all floats as float64, without rounding to narrower types; random inputs are normally
    distributed.

    positive: True for inputs >= 0, as logarithms and roots need
    """

    def __init__(self, positive: bool = False) -> None:
        self._positive = positive

    def storage(self, dtype: str) -> np.dtype:
        return np.dtype(np.float64) if is_float(dtype) else super().storage(dtype)

    def cast(self, x: object, old: str, new: str) -> Any:
        return np.asarray(x).astype(np.float64) if is_float(new) else super().cast(x, old, new)

    def to_memory(self, x: object, dtype: str) -> Any:
        return x

    def random(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if not is_float(dtype):
            return super().random(rng, shape, dtype)
        x = np.asarray(rng.standard_normal(shape))
        return np.abs(x) if self._positive else x


NOT_OF_NEGATIVES = frozenset({"log", "log2", "sqrt", "rsqrt", "pow"})
"""Functions that are no numbers of what is negative."""


def opaque_combiners(outputs: Sequence[Tensor]) -> dict[str, tuple[str, ...]]:
    """{name of a compute: math functions that its combiner calls}, for computes whose combiner calls any.

    In the field a function has pseudo-random values, so combiners that call one are not associative there: the field
    lacks exp(a - b) exp(b - c) = exp(a - c), by which states of an online softmax combine in any order.
    """
    found: dict[str, tuple[str, ...]] = {}
    for op in computes_of(outputs):
        calls = {c.fn for b in op.bodies if isinstance(b, Reduce) for r in b.combiner.result for c in find(r, Call)
                 if DTYPES[c.dtype].kind == "f"}  # fmt: skip
        if calls:
            found[op.name] = tuple(sorted(calls))
    return found


def apart(got: np.ndarray, want: np.ndarray, most: float | None = None) -> np.ndarray:
    """Boolean mask: True where floats differ by more than double-precision rounding; with ``most``, by more than
    ``most`` times the largest finite value. Two NaNs are equal.

    The scale for rounding is the larger of the element's own magnitude and the median magnitude, not the largest: a
    -1e30 that stands for a row without keys would hide all other differences.
    """
    size = np.abs(np.where(np.isfinite(want), want, 0.0))
    if most is None:
        magnitudes = np.unique(size[size > 0])
        median = magnitudes[(len(magnitudes) - 1) // 2] if len(magnitudes) else 0.0
        allowed = TOLERANCE * np.maximum(size, median)
    else:
        allowed = most * size.max(initial=0.0)
    with np.errstate(invalid="ignore"):
        near = np.abs(got - want) <= allowed
    differs: np.ndarray = ~(near | (got == want) | (np.isnan(got) & np.isnan(want)))
    return differs
