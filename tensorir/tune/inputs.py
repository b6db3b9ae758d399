"""Inputs on which a program's result is exact: small integers, so that a right kernel is equal to the last bit.

The generator is fixed for ever and tiny: an exported self-test has its own copy and makes the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.expr.program import computes_of, inputs_of, scalars_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.numbers import numpy_dtype
from tensorir.interp.reference import divisors, gather_limits
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Call, Cast, Const, Expr, Load, PadLoad, Reduce, Select, Unary, Var

_AMPLITUDES = (1000, 300, 100, 40, 20, 10, 6, 4, 3, 2, 1)  # the widest exact one: neighbours should differ
_LIMIT = 2.0**200  # beyond any dtype


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
    limits = gather_limits(outputs)
    amplitude, exact = 1, False
    for amplitude in _AMPLITUDES:
        exact = _is_exact(outputs, amplitude, limits)
        if exact:
            break
    else:
        amplitude = 4
    divide = divisors(outputs)
    found = [
        (t.order, Argument(t.name, t.dtype, t.shape, *_range(t.dtype, amplitude, limits.get(t), t in divide)))
        for t in inputs_of(outputs)
    ]
    found += [
        (v.order, Argument(v.name, v.dtype, (), *_range(v.dtype, amplitude, None, v in divide), scalar=True))
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


def _range(dtype: str, amplitude: int, limit: int | None, divides: bool) -> tuple[int, int]:
    kind = DTYPES[dtype]
    if limit is not None:
        return 0, max(0, limit - 1)
    if divides:
        return 1, amplitude
    if kind.kind == "f":
        return -amplitude, amplitude
    return max(kind.low, -amplitude), min(kind.high, amplitude)


class _InexactError(Exception):
    """Some operation rounds, whatever its operands."""


def _is_exact(outputs: Sequence[Tensor], amplitude: int, limits: dict[Any, int]) -> bool:
    """Whether no intermediate value can round or overflow when every input is an integer of at most ``amplitude``."""
    bounds: dict[Any, float] = {}
    try:
        for op in computes_of(outputs):
            made = [_Magnitude(amplitude, limits, bounds)(body) for body in op.bodies]
            bounds.update(zip(op.outputs, made, strict=True))
    except _InexactError:
        return False
    return True


class _Magnitude:
    """The largest absolute value that an expression can take; every node is held against its dtype."""

    def __init__(self, amplitude: int, limits: dict[Any, int], bounds: dict[Any, float]) -> None:
        self.amplitude, self.limits, self.bounds = amplitude, limits, bounds

    def __call__(self, e: Expr) -> float:
        size = self._of(e)
        kind = DTYPES[e.dtype]
        most = 2.0**kind.digits if kind.kind == "f" else float(max(kind.high, 1))
        if size > most and e.dtype != "index":
            raise _InexactError
        return size

    def _of(self, e: Expr) -> float:
        match e:
            case Const():
                return self._const(float(e.value))
            case Var():
                return float(max(abs(e.extent or 0), 2**15)) if e.order == 0 else float(self.amplitude)
            case Load() | PadLoad():
                return max(self._tensor(e), self(e.fill) if isinstance(e, PadLoad) else 0.0)
            case Binary():
                return self._binary(e)
            case Unary():
                return self(e.a)
            case Select():
                return max(self(e.a), self(e.b))
            case Cast():
                return self(e.a)
            case Call(fn="abs" | "floor" | "ceil" | "round"):
                return max(map(self, e.args))
            case Reduce():
                return self._reduce(e)
        raise _InexactError

    @staticmethod
    def _const(value: float) -> float:
        if not isfinite(value):
            return 0.0  # an identity of min and max
        if value != int(value):
            raise _InexactError
        return min(abs(value), _LIMIT)

    def _tensor(self, e: Load | PadLoad) -> float:
        owner = e.buffer.origin
        if e.buffer.data is not None:
            return max((self._const(float(v)) for v in e.buffer.data), default=0.0)
        if owner in self.bounds:
            return float(self.bounds[owner])
        if e.buffer.dtype == "bool":
            return 1.0
        return float(self.limits.get(owner, self.amplitude))

    def _binary(self, e: Binary) -> float:
        if e.op in ("==", "!=", "<", "<=", "and", "or"):
            return 1.0
        a, b = self(e.a), self(e.b)
        if e.op in "+-":
            return min(a + b, _LIMIT)
        if e.op == "*":
            return min(a * b, _LIMIT)
        if e.op in ("min", "max"):
            return max(a, b)
        if e.op in ("//", "%") and DTYPES[e.dtype].kind in "iu":
            return max(a, b)
        raise _InexactError

    def _reduce(self, e: Reduce) -> float:
        size = max(map(self, e.values))
        if e.combiner.name in ("min", "max", "any", "all", "argmin", "argmax"):
            return max(size, float(max(a.extent for a in e.axes)) if "arg" in e.combiner.name else 0.0)
        if e.combiner.name == "sum":
            return min(size * float(prod(a.extent for a in e.axes)), _LIMIT)
        raise _InexactError
