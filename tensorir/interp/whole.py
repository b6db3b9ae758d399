"""Exact integer arithmetic in doubles, for programs that rely on the order of numbers, which a prime field lacks.

min(a, b) + c = min(a + c, b + c) holds for numbers, not for field elements, as addition does not preserve their order.
If a reduction's combiner uses both operations (dynamic time warping, Viterbi, CUSUM), or a scheduling step moves one
across the other, programs are compared on integers small enough for exact doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.doubles import Doubles
from tensorir.interp.sizes import EXACT_CALLS
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.tree import Binary, Expr, Reduce
from tensorir.ir.visit import find

LARGEST_EXACT = 2.0**52
"""Sums and products below it are exact where they are whole."""
INPUT_SIZES = (1 << 20, 1 << 9, 16, 4)
"""Of inputs: the first with which nothing is rounded, and the least one, with which elements are often equal."""
_ORDER, _ARITHMETIC = ("min", "max", "<", "<="), ("+", "-", "*", "/")


class Whole(Doubles):
    """Arithmetic in doubles on inputs that are integers from ``-size`` to ``size``.

    exact_so_far: True while nothing was rounded
    """

    title = "whole numbers, whose order sums keep"

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self.exact_so_far = size, True

    def random(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if not is_float(dtype):
            return super().random(rng, shape, dtype)
        return rng.integers(-self._size, self._size, shape, endpoint=True).astype(np.float64)

    def float_binary(self, op: str, a: object, b: object, dtype: str) -> Any:
        out = super().float_binary(op, a, b, dtype)
        if op in ("+", "-", "*"):
            self._need_whole(out)
        elif op not in ("min", "max"):
            self.exact_so_far = False
        return out

    def call(self, fn: str, args: list[object], dtype: str, given: str) -> Any:
        if is_float(dtype) and fn not in EXACT_CALLS:
            self.exact_so_far = False
        return super().call(fn, args, dtype, given)

    def sum(self, x: np.ndarray, axis: tuple[int, ...], dtype: str) -> np.ndarray:
        out = super().sum(x, axis, dtype)
        if is_float(dtype):
            with np.errstate(invalid="ignore"):
                self._need_whole(np.abs(x).sum(axis=axis))
        return out

    def differ(self, got: np.ndarray, want: np.ndarray, dtype: str) -> np.ndarray:
        if not is_float(dtype):
            return super().differ(got, want, dtype)
        return np.asarray((got != want) & ~(np.isnan(got) & np.isnan(want)))

    def _need_whole(self, made: Any) -> None:
        """Clear ``exact_so_far`` if a value is not a multiple of 1/16, or too large."""
        some = np.asarray(made, np.float64)
        size = np.abs(np.where(np.isfinite(some), some, 0.0)) * 16
        if self.exact_so_far and size.size and (size.max() >= LARGEST_EXACT or (size != np.trunc(size)).any()):
            self.exact_so_far = False


def asks_order(outputs: Sequence[Tensor]) -> bool:
    """True if the declaration compares floats, or takes a minimum or maximum of floats."""
    return any(_ordered(b) for op in computes_of(outputs) for b in op.bodies) or any(map(_ordered, _joined(outputs)))


def joins_by_order(outputs: Sequence[Tensor]) -> tuple[str, ...]:
    """Names of computes whose combiner both compares floats and calculates with them."""
    names = [
        op.name
        for op in computes_of(outputs)
        for b in op.bodies
        if isinstance(b, Reduce)
        and any(map(_ordered, b.combiner.result))
        and any(_uses(r, _ARITHMETIC) for r in b.combiner.result)
    ]
    return tuple(dict.fromkeys(names))


def _joined(outputs: Sequence[Tensor]) -> list[Expr]:
    return [r for op in computes_of(outputs) for b in op.bodies for x in find(b, Reduce) for r in x.combiner.result]


def _ordered(e: Expr) -> bool:
    return _uses(e, _ORDER)


def _uses(e: Expr, ops: tuple[str, ...]) -> bool:
    return any(x.op in ops and DTYPES[x.a.dtype].kind == "f" for x in find(e, Binary))
