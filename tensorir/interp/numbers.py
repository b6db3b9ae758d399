"""Arithmetics for the interpreter: the device's own, and a prime field in which floats are exact.

In the field of p = 2^31 - 1, sums, products and quotients of "floats" are exact, so results of two programs are equal
or not. By the Schwartz-Zippel lemma (Schwartz 1980, Zippel 1979), random inputs distinguish different polynomials with
probability at least 1 - degree / p. Functions such as exp become fixed pseudo-random functions of their argument;
comparisons order the representatives. Integers and booleans keep their usual arithmetic in both.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, MutableSet, Set
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorir.ir.dtypes import DTYPES, WIDENED, rounded

if TYPE_CHECKING:
    from tensorir.interp.tensor_cores import TensorCore
    from tensorir.ir.tree import IntrinCall

P = 2**31 - 1
_WIDE_TYPES = {**dict.fromkeys(WIDENED, "float32"), "index": "int64", "bool": "bool"}


class Numbers:
    """Operations on NumPy values by IR dtype names: an arithmetic for interpreters. This base class is the device's
    own.

    opaque: names of the functions whose values were pseudo-random so far
    """

    opaque: Set[str] = frozenset()

    def storage(self, dtype: str) -> np.dtype:
        """NumPy dtype of arrays with values of ``dtype`` in this arithmetic."""
        return np.dtype(_WIDE_TYPES.get(dtype, dtype))

    def const(self, value: Any, dtype: str) -> Any:
        """Value of the literal ``value`` of ``dtype`` in this arithmetic."""
        if DTYPES[dtype].kind == "f":
            return self.storage(dtype).type(rounded(value, dtype))
        return bool(value) if dtype == "bool" else int(value)

    def binary(self, op: str, a: Any, b: Any, dtype: str) -> Any:
        """``a op b`` elementwise; ``dtype`` is that of the operands."""
        if op in _COMPARE:
            return _COMPARE[op](a, b)
        if op in _BITS:
            return _bits(op, a, b, dtype)
        if DTYPES[dtype].kind in "iu":
            return self.wrap(_INTEGER[op](a, b), dtype)
        return self.float_binary(op, a, b, dtype)

    def operation(self, op: str, dtype: str) -> Callable[..., object]:
        """Function ``(a, b) -> a op b`` for operands of ``dtype``."""
        if dtype == "index" and op in _INTEGER:
            return _INTEGER[op]  # type: ignore[no-any-return]
        if dtype in ("index", "bool") and op in _COMPARE:
            return _COMPARE[op]
        return lambda a, b: self.binary(op, a, b, dtype)

    def wrap(self, x: Any, dtype: str) -> Any:
        """Integer ``x`` wrapped around to the range of ``dtype``; unchanged for "index"."""
        if dtype == "index":
            return x
        if not isinstance(x, np.ndarray | np.generic):  # of two literals
            kind = DTYPES[dtype]
            return (int(x) - kind.low) % (1 << kind.bits) + kind.low
        return x.astype(dtype, copy=False)

    def float_binary(self, op: str, a: object, b: object, dtype: str) -> Any:
        """``a op b`` elementwise, on floats of ``dtype``."""
        with np.errstate(all="ignore"):
            return _FLOAT[op](a, b)

    def unary(self, op: str, a: Any, dtype: str) -> Any:
        """``-a``, ``not a`` or ``~a`` elementwise, by ``op``."""
        if op == "not":
            return np.logical_not(a)
        if DTYPES[dtype].kind == "f":
            return np.negative(a)
        return self.wrap(np.negative(a) if op == "-" else np.invert(a), dtype)

    def call(self, fn: str, args: list[object], dtype: str, given: str) -> Any:
        """Result, of type ``dtype``, of the math function ``fn`` elementwise.

        given: dtype of the arguments
        """
        if fn == "bitcast":
            return self.bitcast(args[0], given, dtype)
        if fn == "power":
            return whole_power(*(np.asarray(a).astype(dtype, copy=False) for a in args))
        if fn == "mulhi":
            return upper_half(*(np.asarray(a).astype(dtype, copy=False) for a in args))
        with np.errstate(all="ignore"):
            out = _MATH[fn](*args)
        return out.astype(self.storage(dtype)) if hasattr(out, "astype") else out

    def bitcast(self, x: object, old: str, new: str) -> Any:
        """Bits of ``x``, of dtype ``old``, reinterpreted as values of ``new``."""
        bits = np.asarray(x).astype(numpy_dtype(old), copy=False).view(numpy_dtype(new))
        return bits.astype(self.storage(new), copy=False)

    def cast(self, x: Any, old: str, new: str) -> Any:
        """``x`` converted from dtype ``old`` to ``new`` as in C; to 16- or 8-bit floats with a single rounding."""
        if new == "bool":
            return np.not_equal(x, 0)
        x = np.asarray(x)
        if new in WIDENED:
            with np.errstate(all="ignore"):
                return odd_float32(x).astype(numpy_dtype(new)).astype(np.float32)
        with np.errstate(all="ignore"):
            return x.astype(self.storage(new))

    def to_memory(self, x: object, dtype: str) -> Any:
        """``x`` rounded to ``dtype``, as by a store."""
        return self.cast(x, dtype, dtype) if dtype in WIDENED else x

    def inputs(self, array: object, dtype: str) -> np.ndarray:
        """A user's array converted to the values of this arithmetic."""
        return np.asarray(array).astype(self.storage(dtype))

    def random(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Random small integers as values of this arithmetic, so that sums of products are exact: -4 to 4, 0 to 7 for
        unsigned types, 0 and 1 for "bool".
        """
        low, high = (0, 2) if dtype == "bool" else (0, 8) if DTYPES[dtype].kind == "u" else (-4, 5)
        return rng.integers(low, high, shape).astype(self.storage(dtype))

    def scalar(self, value: object, dtype: str) -> object:
        """A user's scalar converted to a value of this arithmetic."""
        return np.asarray(value).item()

    def tensor_core(self, call: IntrinCall) -> TensorCore | None:
        """Order and rounding of a matrix instruction's products; None: round each operation as its definition says."""
        return None

    def add_at(self, values: np.ndarray, at: np.ndarray, value: Any, dtype: str) -> None:
        """Add ``value`` in place to elements ``at`` of ``values``; an element that occurs several times in ``at`` is
        added to as often.
        """
        np.add.at(values, at, value)
        values[at] = self.binary("+", values[at], self.const(0, dtype), dtype)

    def differ(self, got: np.ndarray, want: np.ndarray, dtype: str) -> np.ndarray:
        """Boolean mask: True where results ``got`` differ from ``want`` (here also where both are NaN)."""
        return np.asarray(got != want)

    def exact(self, dtype: str) -> bool:
        """True if the result of summing values of ``dtype`` in this arithmetic does not depend on their order."""
        return DTYPES[dtype].kind in "iu"

    def sum(self, x: np.ndarray, axis: tuple[int, ...], dtype: str) -> np.ndarray:
        """Sum of ``x`` over the dimensions ``axis``."""
        out: np.ndarray = x.sum(axis=axis, dtype=self.storage(dtype) if dtype != "bool" else None)
        return out

    def running_sums(self, x: np.ndarray, dtype: str) -> np.ndarray | None:
        """Prefix sums of ``x`` along the last axis; None if this arithmetic has no shortcut, so that callers combine
        step by step.
        """
        return None

    def added_at(self, out: np.ndarray, cells: np.ndarray, x: np.ndarray, dtype: str) -> np.ndarray | None:
        """``out`` with ``x`` added at elements ``cells``; None if this arithmetic has no shortcut, so that callers
        combine step by step.
        """
        return None


class Field(Numbers):
    """Arithmetic in which floats are residues modulo the prime p, ordered as -p/2 … p/2; -2p and 2p stand for
    infinities.
    """

    title = "the field of 2^31 - 1"

    def __init__(self) -> None:
        self.opaque: MutableSet[str] = set()

    def binary(self, op: str, a: object, b: object, dtype: str) -> Any:
        if op in ("<", "<=") and DTYPES[dtype].kind == "f":
            return _COMPARE[op](_signed(a), _signed(b))
        return super().binary(op, a, b, dtype)

    def storage(self, dtype: str) -> np.dtype:
        return np.dtype(np.int64) if DTYPES[dtype].kind == "f" else super().storage(dtype)

    def const(self, value: Any, dtype: str) -> Any:
        if DTYPES[dtype].kind != "f":
            return super().const(value, dtype)
        if isinstance(value, float) and math.isinf(value):
            return 2 * P if value > 0 else -2 * P
        if isinstance(value, float) and math.isnan(value):
            return 0
        q = Fraction(value)
        return q.numerator * pow(q.denominator, P - 2, P) % P

    def float_binary(self, op: str, a: Any, b: Any, dtype: str) -> Any:
        if op == "/":
            return (np.asarray(a) * inverse(b)) % P
        if op in ("+", "-", "*"):
            return _FLOAT[op](a, b) % P
        if op in ("min", "max"):
            first = _signed(a) <= _signed(b)
            return np.where(first if op == "min" else ~first, a, b)
        return mixed(mixed(a, 17) + np.asarray(b), 29 if op == "//" else 31)

    def unary(self, op: str, a: Any, dtype: str) -> Any:
        if DTYPES[dtype].kind == "f" and op == "-":
            return np.negative(a) % P
        return super().unary(op, a, dtype)

    def call(self, fn: str, args: list[object], dtype: str, given: str) -> Any:
        if DTYPES[dtype].kind != "f" or fn == "bitcast":
            return super().call(fn, args, dtype, given)
        self.opaque.add(fn)
        out: Any = 0
        for a in args:
            out = mixed(np.asarray(a) + out, 1 + list(_MATH).index(fn))
        return out

    def bitcast(self, x: object, old: str, new: str) -> Any:
        """A pseudo-random function of ``x`` in place of its bits, as residues have no bits."""
        if DTYPES[new].kind == "f":
            low, high = (np.asarray(x).astype(np.int64) >> n & 0xFFFFFFFF for n in (0, 32))
            return mixed(mixed(low % P, 37) + mixed((low >> 31) + high % P, 41), 43)
        return ((mixed(x, 47) << 33) ^ (mixed(x, 53) << 8) ^ mixed(x, 59)).astype(self.storage(new))

    def cast(self, x: object, old: str, new: str) -> Any:
        to_float, from_float = DTYPES[new].kind == "f", DTYPES[old].kind == "f"
        if to_float:
            return x if from_float else _residue(x)
        if from_float and new != "bool":
            return self._whole(x, new)
        return super().cast(x, old, new)

    def _whole(self, x: Any, dtype: str) -> Any:
        """Conversion of a float to an integer: a pseudo-random function, mostly of small values, some with all bits."""
        y = mixed(x, 11)
        wide = (mixed(y, 61) << 33) ^ (mixed(y, 67) << 8) ^ y
        kind = np.dtype(np.int32) if dtype == "index" else self.storage(dtype)
        return np.where(y % 4 == 0, wide.astype(kind), (y % 97).astype(kind)).astype(self.storage(dtype))

    def to_memory(self, x: object, dtype: str) -> Any:
        return x

    def inputs(self, array: object, dtype: str) -> np.ndarray:
        return np.asarray(array).astype(self.storage(dtype))

    def random(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if DTYPES[dtype].kind == "f":
            return rng.integers(1, P, shape)
        small, kind = super().random(rng, shape, dtype), DTYPES[dtype]
        if kind.kind not in "iu":
            return small
        any_bits = rng.integers(kind.low, kind.high, shape, np.dtype(dtype), endpoint=True)
        return np.where(rng.random(shape) < 0.75, small, any_bits)

    def exact(self, dtype: str) -> bool:
        return DTYPES[dtype].kind in "iuf"

    def sum(self, x: np.ndarray, axis: tuple[int, ...], dtype: str) -> np.ndarray:
        out: np.ndarray = x.sum(axis=axis)
        return out % P if DTYPES[dtype].kind == "f" else out.astype(self.storage(dtype))


def numpy_dtype(name: str) -> np.dtype:
    """NumPy dtype of arrays of ``name`` in memory: int32 for "index", one of the package ml_dtypes for bfloat16 and
    8-bit floats.
    """
    if name in WIDENED and name != "float16":
        import ml_dtypes

        kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, DTYPES[name].numpy or name))
        return kind
    return np.dtype("int32" if name == "index" else name)


def odd_float32(x: np.ndarray) -> np.ndarray:
    """``x`` in float32 by rounding to odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008): a
    further rounding to at least two fewer bits gives the correctly rounded result.
    """
    if x.dtype.itemsize < 4 or x.dtype == np.float32:
        return x
    if x.dtype.kind in "iu":  # of large ones the lowest bits are one, so that float64 holds the rest
        wide = x.astype(np.uint64 if x.dtype.kind == "u" else np.int64)
        low = wide.dtype.type(4095)
        cut = (wide & ~low) | ((wide & low != 0).astype(wide.dtype) << wide.dtype.type(11))
        x = np.where(np.abs(wide.astype(np.float64)) > 2.0**40, cut, wide).astype(np.float64)
    near = x.astype(np.float32)
    bits, back = near.view(np.int32), near.astype(np.float64)
    odd = (bits - (np.abs(back) > np.abs(x))) | 1
    return np.where((back == x) | np.isnan(x), bits, odd).astype(np.int32).view(np.float32)


def mixed(x: Any, salt: int) -> Any:
    """Pseudo-random function of residues ``x``, elementwise, with residues as values; another function for each
    ``salt``.
    """
    y = (np.asarray(x) + 0x9E3779B1 * salt) % P
    y = y * y % P
    y = (y + 0x85EBCA6B * salt) % P
    return y * ((y + salt) % P) % P


def _residue(x: Any) -> Any:
    """Integers ``x`` modulo p, as int64."""
    x = np.asarray(x)
    return (x % np.uint64(P)).astype(np.int64) if x.dtype == np.uint64 else x.astype(np.int64) % P


def _signed(x: Any) -> Any:
    """Residues mapped to -p/2 … p/2, so that relu and comparisons with 0 have two sides."""
    x = np.asarray(x)
    return np.where((x > P // 2) & (x < P), x - P, x)


def inverse(b: object, modulus: int = P) -> np.ndarray:
    """Modular inverse ``b ** (modulus - 2)`` elementwise; 0 for 0."""
    base, out, e = np.asarray(np.asarray(b) % modulus), np.ones_like(np.asarray(b)), modulus - 2
    while e:
        if e & 1:
            out = out * base % modulus
        base = base * base % modulus
        e >>= 1
    return np.asarray(out)


def _bits(op: str, a: Any, b: Any, dtype: str) -> Any:
    """Result of a bitwise operator or shift, with NumPy's semantics."""
    kind = np.dtype(np.int64 if dtype == "index" else dtype)
    return _BITS[op](np.asarray(a).astype(kind, copy=False), np.asarray(b).astype(kind, copy=False))


def upper_half(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Upper half of the bits of the integer product ``a * b``, elementwise."""
    kind, bits = a.dtype, 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.int64 if kind.kind == "i" else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(bits)).astype(kind)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    middle = (x >> half) * (y & low) + ((x & low) * (y & low) >> half)
    other = (x & low) * (y >> half) + (middle & low)
    out = (x >> half) * (y >> half) + (middle >> half) + (other >> half)
    if kind.kind == "i":  # each negative factor counts as 2**64 more than it is
        out = out - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return np.asarray(out).astype(kind)


def whole_power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integer powers ``a ** b`` with wrap-around; for negative exponents the exact power is rounded toward zero."""
    made = np.power(a, np.maximum(b, b.dtype.type(0)))
    if a.dtype.kind == "u":
        return np.asarray(made)
    fraction = np.where(a == 1, 1, np.where(a == -1, np.where(b & 1, -1, 1), 0))
    return np.where(b < 0, fraction, made).astype(a.dtype)


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _extreme(which: Any, sign: int) -> Callable[[Any, Any], Any]:
    """Function for minimum or maximum with -0 < 0, so that operand order does not matter; NaN if either is.

    which: ``np.minimum`` or ``np.maximum``;  sign: -1 or 1
    """

    def function(a: Any, b: Any) -> Any:
        found = which(a, b)
        if np.all(found):
            return found
        return np.where((a == 0) & (b == 0), sign * (sign * a + sign * b), found)

    return function


def _quotient(a: Any, b: Any) -> Any:
    """Integer quotient ``a // b`` without warnings; 0 for division by 0, as both sides of a select are evaluated."""
    if type(b) is int and b > 0:
        return a // b
    with np.errstate(divide="ignore", over="ignore"):
        return a // b if type(b) is not int or b else a * 0


def _remainder(a: Any, b: Any) -> Any:
    if type(b) is int and b > 0:
        return a % b
    with np.errstate(divide="ignore"):
        return a % b if type(b) is not int or b else a * 0


_COMPARE = {
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
}
_BITS: dict[str, Any] = {
    "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor, "<<": np.left_shift, ">>": np.right_shift,
}  # fmt: skip
_INTEGER: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": _quotient,
    "%": _remainder, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_FLOAT: dict[str, Any] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide, "%": np.mod,
    "min": _extreme(np.minimum, -1), "max": _extreme(np.maximum, 1),
}  # fmt: skip
_MATH: dict[str, Any] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "erf": _erf,
    "sin": np.sin, "cos": np.cos, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "pow": np.power,
    "exp2": np.exp2, "log2": np.log2,
}  # fmt: skip
