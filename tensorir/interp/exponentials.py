"""Exact modular arithmetic with exp(a + b) = exp(a) exp(b): each float is a pair of residues modulo two primes.

A value is a pair (v mod p, w mod q) with p = 2 q + 1, both prime. What is computed by sums, products and quotients is
computed in both, so that the pair stands for one rational number. The numbers mod p other than 0 have a subgroup of q
elements, and the powers of one of these, g, repeat with period q: ``exp`` is w -> g^w, from the second field into the
first (Wu et al., "Mirage: A Multi-Level Superoptimizer for Tensor Programs", arXiv 2405.05751, section 5). So
exp(a - b) exp(b - c) = exp(a - c) holds, and the states of an online softmax join in any order. A power has no second
part: what is made of it has none, and ``exp`` of that is a fixed pseudo-random function of the first, as all other
functions are of theirs. Comparisons look at the first part alone.

Infinities are numbers of their own here: exp(-inf) is 0, what is added to one changes nothing, inf - inf is NaN, and
1 / 0 is infinite. Field elements have no sign: a factor of an infinity is taken for positive, but for small negative
numbers such as -1 and -0.5.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tensorir.expr.program import calls_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.numbers import Field, inverse, mixed
from tensorir.ir.dtypes import DTYPES

Q = 1073741789
P = 2 * Q + 1
NO_SECOND_PART = Q
"""In place of w: what is made of a power has no second part."""
INF, MINUS_INF, NAN = P, P + 1, P + 2
"""In place of v."""
LOW_HALF = 0xFFFFFFFF
BASES = {"exp": 1299709**2 % P, "exp2": 15485863**2 % P}
"""Squares, so that their powers repeat with period q."""
_HALF_BITS = 15
"""Bits of an exponent that one table of powers is asked for."""


def field_of(outputs: Sequence[Tensor]) -> Field:
    """Field for comparing declarations: pairs if one calls ``exp`` or ``exp2``, else a single prime."""
    return ExpField() if any(c.fn in BASES for c in calls_of(outputs)) else Field()


class ExpField(Field):
    """Field of pairs in int64: v in the lower half, w in the upper."""

    title = f"the fields of {P} and {Q}, where exp(a) exp(b) = exp(a + b)"

    def const(self, value: Any, dtype: str) -> object:
        if DTYPES[dtype].kind != "f":
            return super().const(value, dtype)
        if isinstance(value, float) and not math.isfinite(value):
            return NAN if math.isnan(value) else INF if value > 0 else MINUS_INF
        n = Fraction(value)
        v, w = (n.numerator * pow(n.denominator, m - 2, m) % m for m in (P, Q))
        return v | w << 32

    def binary(self, op: str, a: object, b: object, dtype: str) -> object:
        if DTYPES[dtype].kind == "f" and op in ("<", "<=", "==", "!="):
            x, y = _ordered(a), _ordered(b)
            none = (np.asarray(a) & LOW_HALF == NAN) | (np.asarray(b) & LOW_HALF == NAN)
            return np.where(none, op == "!=", _COMPARE[op](x, y))
        return super().binary(op, a, b, dtype)

    def float_binary(self, op: str, a: object, b: object, dtype: str) -> object:
        if op in ("min", "max"):
            first = _ordered(a) <= _ordered(b)
            return np.where(first if op == "min" else ~first, np.asarray(a), np.asarray(b))
        if op not in _EXACT:
            v, _ = _parts(a)
            u, _ = _parts(b)
            return _opaque(mixed(mixed(v, 17) + u, 29 if op == "//" else 31))
        (v, w), (u, t) = _parts(a), _parts(b)
        exact, special = _EXACT[op], (v >= P) | (u >= P) | ((u == 0) if op == "/" else False)
        first, second = exact(v, u, P), exact(w, t, Q)
        none = (w == NO_SECOND_PART) | (t == NO_SECOND_PART)
        if none.any():
            zero = (op in "*/") & ((np.asarray(a) == 0) | ((np.asarray(b) == 0) & (op == "*")))
            second = np.where(none, np.where(zero, 0, NO_SECOND_PART), second)
        out = first | second << 32
        return np.where(special, _with_infinities(op, v, u), out) if special.any() else out

    def unary(self, op: str, a: object, dtype: str) -> object:
        if DTYPES[dtype].kind == "f" and op == "-":
            return self.float_binary("-", 0, a, dtype)
        return super().unary(op, a, dtype)

    def call(self, fn: str, args: list[object], dtype: str, given: str) -> object:
        if DTYPES[dtype].kind != "f" or fn == "bitcast":
            return super().call(fn, args, dtype, given)
        if fn not in BASES:
            return _opaque(super().call(fn, [_parts(a)[0] for a in args], dtype, given))
        v, w = _parts(args[0])
        power = _power(BASES[fn], np.where(w == NO_SECOND_PART, 0, w))
        if (w == NO_SECOND_PART).any():
            self.opaque.add(fn)
            power = np.where(w == NO_SECOND_PART, mixed(v, 71) % P, power)
        power = np.where(v >= P, np.where(v == MINUS_INF, 0, v), power)
        return power | np.where((v >= P), 0, NO_SECOND_PART) << 32

    def bitcast(self, x: object, old: str, new: str) -> object:
        if DTYPES[new].kind == "f":
            return _opaque(super().bitcast(x, old, new))
        return super().bitcast(_parts(x)[0], old, new)

    def cast(self, x: object, old: str, new: str) -> object:
        to_float, from_float = DTYPES[new].kind == "f", DTYPES[old].kind == "f"
        if from_float and not to_float:
            v = _parts(x)[0]
            return np.not_equal(v, 0) if new == "bool" else super().cast(v, old, new)
        if to_float and not from_float:
            x = np.asarray(x)
            wide = x.astype(np.uint64) if x.dtype == np.uint64 else x.astype(np.int64)
            v, w = ((wide % wide.dtype.type(m)).astype(np.int64) for m in (P, Q))
            return v | w << 32
        return super().cast(x, old, new)

    def random(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if DTYPES[dtype].kind != "f":
            return super().random(rng, shape, dtype)
        return np.asarray(rng.integers(1, P, shape) | rng.integers(1, Q, shape) << 32)

    def sum(self, x: np.ndarray, axis: tuple[int, ...], dtype: str) -> np.ndarray:
        if DTYPES[dtype].kind != "f":
            return super().sum(x, axis, dtype)
        v, w = _parts(x)
        return _joined(v, w, lambda part: np.asarray(part.sum(axis=axis)), lambda some: np.asarray(some.any(axis=axis)))

    def add_at(self, values: np.ndarray, at: np.ndarray, value: object, dtype: str) -> None:
        if DTYPES[dtype].kind != "f":
            super().add_at(values, at, value, dtype)
            return
        cells, where = np.unique(at, return_inverse=True)
        added, mine = np.broadcast_to(np.asarray(value), at.shape).reshape(-1), where.reshape(-1)
        v, w = _parts(np.concatenate([values[cells], added]))
        place = np.concatenate([np.arange(len(cells)), mine])

        def total(part: np.ndarray) -> np.ndarray:
            out = np.zeros(len(cells), np.int64)
            np.add.at(out, place, part)
            return out

        values[cells] = _joined(v, w, total, lambda some: total(some.astype(np.int64)) > 0)

    def differ(self, got: np.ndarray, want: np.ndarray, dtype: str) -> np.ndarray:
        if DTYPES[dtype].kind != "f":
            return super().differ(got, want, dtype)
        (v, w), (u, t) = _parts(got), _parts(want)
        return np.asarray((v != u) | ((w != t) & (w != NO_SECOND_PART) & (t != NO_SECOND_PART)))


def _parts(x: object) -> tuple[Any, Any]:
    """Residues (v, w) of packed values."""
    x = np.asarray(x, np.int64)
    return x & LOW_HALF, x >> 32


def _opaque(v: Any) -> Any:
    """Packed pair for the result ``v`` of a pseudo-random function; w derived from v."""
    v = np.asarray(v) % P
    return v | (mixed(v, 73) % Q) << 32


def _joined(v: np.ndarray, w: np.ndarray, total: Any, some: Any) -> np.ndarray:
    """Sum of residue pairs, packed again. total: adds up an array;  some: true where any element is (for INF, NAN, no
    w).
    """
    special, none = v >= P, some(w == NO_SECOND_PART)
    first, second = total(np.where(special, 0, v)) % P, total(np.where(w == NO_SECOND_PART, 0, w)) % Q
    out = first | np.where(none, NO_SECOND_PART, second) << 32
    if special.any():
        above, below, lost = (some(v == x) for x in (INF, MINUS_INF, NAN))
        out = np.where(above, INF, np.where(below, MINUS_INF, out))
        out = np.where(lost | (above & below), NAN, out)
    return np.asarray(out)


def _ordered(x: object) -> Any:
    """Ranks for comparisons: v in -p/2 … p/2, infinities at both ends."""
    v = _parts(x)[0]
    return np.where(v > P // 2, np.where(v >= P, np.where(v == MINUS_INF, -2 * P, 2 * P), v - P), v)


def _with_infinities(op: str, v: Any, u: Any) -> Any:
    """``v op u`` if one is infinite or NaN, or for division by 0."""
    if op in "+-":
        right = np.where((op == "-") & ((u == INF) | (u == MINUS_INF)), INF + MINUS_INF - u, u)
        clash = (v >= P) & (right >= P) & (v != right)
        return np.where((v == NAN) | (u == NAN) | clash, NAN, np.where(v >= P, v, right))
    negative = _is_negative(v) != _is_negative(u)
    out = np.where(negative, MINUS_INF, INF)
    if op == "/":
        small = np.where((u >= P) & (v < P), 0, out)
        return np.where((v == NAN) | (u == NAN) | ((v >= P) & (u >= P)) | ((v == 0) & (u == 0)), NAN, small)
    return np.where((v == NAN) | (u == NAN) | (v == 0) | (u == 0), NAN, out)


def _is_negative(v: Any) -> Any:
    """Boolean array, True where ``v`` encodes -inf or ``-k / 2**n`` with 0 < k < 1024 and n <= 6."""
    small = [v * (1 << n) % P > P - 1024 for n in range(7)]
    return np.where(v >= P, v == MINUS_INF, np.any(np.broadcast_arrays(*small), axis=0))


@functools.cache
def _powers(base: int, step: int) -> np.ndarray:
    """Table of ``base ** (step * n)`` mod p for n below 2 ** 15 or 2 ** 16."""
    one, out = pow(base, step, P), [1]
    for _ in range((1 << (_HALF_BITS + 1)) - 1):
        out.append(out[-1] * one % P)
    return np.array(out, np.int64)


def _power(base: int, w: Any) -> Any:
    """``base ** w`` mod p, by tables."""
    low, high = np.asarray(w) & ((1 << _HALF_BITS) - 1), np.asarray(w) >> _HALF_BITS
    return _powers(base, 1)[low] * _powers(base, 1 << _HALF_BITS)[high] % P


_COMPARE = {"<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal}
_EXACT: dict[str, Any] = {
    "+": lambda a, b, m: (a + b) % m,
    "-": lambda a, b, m: (a - b) % m,
    "*": lambda a, b, m: a * b % m,
    "/": lambda a, b, m: a * inverse(b, m) % m,
}
"""Operators that hold in both fields, of elements and a modulus."""
