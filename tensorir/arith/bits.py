"""Interval bounds of bitwise operators and shifts."""

from __future__ import annotations

import math

from tensorir.ir.dtypes import DTYPES

Interval = tuple[float, float]
"""Inclusive bounds; infinite where nothing is known."""


def within_bits(op: str, a: Interval, b: Interval, dtype: str) -> Interval:
    """Inclusive bounds of ``a op b`` of ``dtype``, for an operator of ``& | ^ << >>`` and bounds of its operands."""
    if op in ("<<", ">>"):
        return _shifted(op, a, b, dtype)
    low, high = _signed(a, b)
    if op == "&" and max(a[0], b[0]) >= 0:  # no more than an operand that is not negative
        return 0, min(x[1] for x in (a, b) if x[0] >= 0)
    if op == "|" and min(a[0], b[0]) >= 0:
        return max(a[0], b[0]), high
    if op == "|" and min(a[1], b[1]) < 0:  # no less than an operand that is negative
        return max(x[0] for x in (a, b) if x[1] < 0), -1
    return (0, high) if min(a[0], b[0]) >= 0 else (low, high)


def _signed(a: Interval, b: Interval) -> Interval:
    """Range of signed integers as wide as the operands."""
    ends = (*a, *b)
    if any(map(math.isinf, ends)):
        return -math.inf, math.inf
    bits = max(int(e if e >= 0 else -1 - e).bit_length() for e in ends)
    return -(1 << bits), (1 << bits) - 1


def _shifted(op: str, a: Interval, b: Interval, dtype: str) -> Interval:
    """Bounds of a shift; counts beyond the width give 0, or -1 for negative right shifts."""
    kind = DTYPES[dtype]
    index = dtype == "index"
    own, bits = ((-math.inf, math.inf), 63) if index else ((float(kind.low), float(kind.high)), kind.bits)
    low, high = max(a[0], own[0]), min(a[1], own[1])
    if math.isinf(low) or math.isinf(high):
        return own
    least, most = max(b[0], 0.0), min(b[1], bits - 1.0)
    beyond = b[0] < 0 or b[1] > bits - 1
    ends = [] if least > most else [_one(op, int(x), int(n)) for x in (low, high) for n in (least, most)]
    if beyond:
        ends += [0, -1] if op == ">>" and low < 0 else [0]
    if min(ends) < own[0] or max(ends) > own[1]:
        return own  # bits are lost
    return float(min(ends)), float(max(ends))


def _one(op: str, x: int, n: int) -> int:
    return x << n if op == "<<" else x >> n
