"""Rigorous rounding error bounds per result element, for any summation order, by running error analysis (Wilkinson;
Higham, "Accuracy and Stability of Numerical Algorithms", 3.3).

Per-element bounds detect wrong small results that a bound from the largest result would accept: a quotient of sums of
positive numbers has a small relative error however small it is, a difference of large numbers has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorir.expr.program import computes_of
from tensorir.expr.reducers import BUILT_IN
from tensorir.expr.tensor import Tensor
from tensorir.interp.magnitude import is_continuous
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import evaluate
from tensorir.interp.ulps import LIBRARY_ULPS, ulps_of
from tensorir.ir.dtypes import DTYPES, rounded
from tensorir.ir.tree import Reduce
from tensorir.ir.visit import find
from tensorir.target import Target

_SLACK = 4
"""Of a bound: two executors differ by two errors, and simplified terms have a few more roundings."""


def rounding_of(
    outputs: Sequence[Tensor], arrays: Sequence[object], target: Target | None = None
) -> tuple[np.ndarray, ...] | None:
    """Per output, an array of allowed absolute differences from results of another executor; inf where unknown. None if
    rounding decides a branch, or a user's combiner joins states.

    target: of the executor, which may use fast functions (``FAST_ULPS``)
    """
    reduced = [r for op in computes_of(outputs) for b in op.bodies for r in find(b, Reduce)]
    if not is_continuous(outputs) or any(r.combiner.name not in (*BUILT_IN, "set") for r in reduced):
        return None
    found = evaluate(outputs, arrays, _Bounded(target))
    return tuple(
        np.nan_to_num(_SLACK * x.imag, nan=np.inf, posinf=np.inf) if np.iscomplexobj(x) else np.full(x.shape, np.inf)
        for x in found
    )


def _least(dtype: str) -> float:
    """Least normal number of the type in which ``dtype`` is computed."""
    return float(np.finfo(np.float64 if dtype == "float64" else np.float32).tiny)


def _unit(dtype: str) -> float:
    """Unit roundoff of the type in which ``dtype`` is computed."""
    return 2.0**-53 if dtype == "float64" else 2.0**-24


def _stored(dtype: str) -> float:
    """Unit roundoff of values of ``dtype`` that are rounded to it, as between terms of a sum."""
    return 2.0 ** -DTYPES[dtype].digits if DTYPES[dtype].widened else _unit(dtype)


def _size(x: Any, dtype: str) -> Any:
    """``x``, a magnitude, raised to at least the least normal number for types narrower than float32."""
    return np.maximum(x, DTYPES[dtype].normal) if DTYPES[dtype].widened else x


class _Bounded(Numbers):
    """Arithmetic on complex numbers: real part the value, imaginary part a bound on its rounding error (inf or NaN if
    unknown).
    """

    def __init__(self, target: Target | None = None) -> None:
        self.target = target

    def storage(self, dtype: str) -> np.dtype:
        return np.dtype(np.complex128) if DTYPES[dtype].kind == "f" else super().storage(dtype)

    def const(self, value: Any, dtype: str) -> Any:
        if DTYPES[dtype].kind != "f":
            return super().const(value, dtype)
        number = rounded(value, dtype)
        exact = not np.isfinite(number) or number == int(number)
        return _pair(number, 0.0 if exact else _unit(dtype) * abs(number))[()]

    def binary(self, op: str, a: Any, b: Any, dtype: str) -> Any:
        if DTYPES[dtype].kind == "f" and op in ("==", "!=", "<", "<="):
            return super().binary(op, np.real(a), np.real(b), dtype)
        return super().binary(op, a, b, dtype)

    @np.errstate(all="ignore")
    def float_binary(self, op: str, a: object, b: object, dtype: str) -> Any:
        a, b = np.asarray(a), np.asarray(b)
        x, y, dx, dy, u = a.real, b.real, a.imag, b.imag, _unit(dtype)
        made = super().float_binary(op, x, y, dtype)
        if op in ("+", "-"):
            return _pair(made, dx + dy + u * np.where(np.isinf(made), 0.0, np.abs(x) + np.abs(y)))
        if op in ("min", "max"):
            return _pair(made, np.maximum(dx, dy))
        if op == "*":
            return _pair(made, np.where(dx == 0, 0, np.abs(y) * dx) + np.where(dy == 0, 0, (np.abs(x) + dx) * dy)
                         + 2 * u * np.abs(made) + _least(dtype))  # fmt: skip
        if op == "/":
            left = np.abs(y) - dy
            return _pair(made, np.where(left > 0, (dx + np.abs(made) * dy) / left, np.inf) + 4 * u * np.abs(made)
                         + _least(dtype))  # fmt: skip
        return _pair(made, np.where((dx == 0) & (dy == 0), u * np.abs(made), np.inf))

    def unary(self, op: str, a: Any, dtype: str) -> Any:
        return _pair(-np.real(a), np.imag(a)) if DTYPES[dtype].kind == "f" else super().unary(op, a, dtype)

    @np.errstate(all="ignore")
    def call(self, fn: str, args: list[Any], dtype: str, given: str) -> Any:
        if DTYPES[given].kind != "f":
            made = super().call(fn, args, dtype, given)
            return made if DTYPES[dtype].kind != "f" else _pair(np.asarray(made, np.complex128).real, 0.0)
        values, errors = [np.real(a) for a in args], [np.imag(a) for a in args]
        made = np.asarray(Numbers.call(_WIDE_NUMBERS, fn, values, "float64", "float64"))
        if DTYPES[dtype].kind != "f":
            return super().call(fn, [v.astype(np.float32) for v in values], dtype, given)
        moved = np.zeros(made.shape)
        for n, e in enumerate(errors):  # functions here are monotone between, or move by no more than their arguments
            ends = [[*values[:n], values[n] + sign * e, *values[n + 1 :]] for sign in (-1, 1)]
            apart = [np.abs(Numbers.call(_WIDE_NUMBERS, fn, there, "float64", "float64") - made) for there in ends]
            most = np.maximum(*apart)
            moved = moved + np.where(np.isnan(most), np.inf, most)  # it leaves what it is defined for
        if fn in ("sin", "cos"):
            moved = errors[0] + LIBRARY_ULPS * _unit(dtype)
        exact = fn in ("abs", "floor", "ceil", "round")
        ulps = LIBRARY_ULPS if dtype == "float64" else ulps_of(fn, values[0], self.target)
        return _pair(made, moved + (0.0 if exact else ulps * _unit(dtype) * np.abs(made) + _least(dtype)))

    @np.errstate(all="ignore")
    def cast(self, x: Any, old: str, new: str) -> Any:
        if DTYPES[new].kind != "f":
            return super().cast(np.real(x) if DTYPES[old].kind == "f" else x, old, new)
        real = np.real(x).astype(np.float64)
        kind = DTYPES[new]
        whole = DTYPES[old].kind != "f"
        step = 2.0**-kind.digits * _size(np.abs(real), new)
        given = super().cast(real, "float64", new).astype(np.float64) if kind.widened else real
        error = 0.0 if whole else np.imag(x)
        return _pair(np.where(np.isfinite(given), real, given), error + np.where(np.isinf(real), 0, step + _least(new)))

    def to_memory(self, x: object, dtype: str) -> Any:
        return self.cast(x, dtype, dtype) if DTYPES[dtype].widened else x

    def inputs(self, array: object, dtype: str) -> np.ndarray:
        if DTYPES[dtype].kind != "f":
            return super().inputs(array, dtype)
        return _pair(np.asarray(array).astype(np.float64), 0.0)

    @np.errstate(all="ignore")
    def sum(self, x: np.ndarray, axis: tuple[int, ...], dtype: str) -> np.ndarray:
        if DTYPES[dtype].kind != "f":
            return super().sum(x, axis, dtype)
        terms = np.prod([x.shape[d] for d in axis], dtype=np.float64)
        made = np.sum(x.real, axis=axis)
        return _pair(
            made, np.sum(x.imag, axis=axis) + terms * _stored(dtype) * _size(np.sum(np.abs(x.real), axis=axis), dtype)
        )

    @np.errstate(all="ignore")
    def running_sums(self, x: np.ndarray, dtype: str) -> np.ndarray | None:
        if DTYPES[dtype].kind != "f":
            return None
        terms = np.arange(x.shape[-1])
        moved = np.cumsum(x.imag, axis=-1) + terms * _stored(dtype) * _size(np.cumsum(np.abs(x.real), axis=-1), dtype)
        return _pair(np.cumsum(x.real, axis=-1), moved)

    @np.errstate(all="ignore")
    def added_at(self, out: np.ndarray, cells: np.ndarray, x: np.ndarray, dtype: str) -> np.ndarray | None:
        if DTYPES[dtype].kind != "f":
            return None
        total, size, moved, terms = out.real.copy(), np.abs(out.real), out.imag.copy(), np.zeros(out.shape)
        for to, of in ((total, x.real), (size, np.abs(x.real)), (moved, x.imag), (terms, np.ones(x.shape))):
            np.add.at(to, cells, of)
        return _pair(total, moved + terms * _stored(dtype) * _size(size, dtype))


_WIDE_NUMBERS = Numbers()


def _pair(value: Any, error: Any) -> np.ndarray:
    """``value + 1j * error``."""
    out = np.empty(np.broadcast_shapes(np.shape(value), np.shape(error)), np.complex128)
    out.real, out.imag = value, error
    return out
