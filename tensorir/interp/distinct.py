"""Test values for scalars and index tables, drawn without replacement so that swapped ones are noticed.

Drawn independently from a few integers, alpha and beta would be equal in a fifth of all runs, and a table of three
entries would hardly ever hold two different ones, or one that is out of range on purpose.
"""

from __future__ import annotations

import numpy as np

from tensorir.ir.dtypes import DTYPES

_SMALL_VALUES = (3, 5, 2, 7, 4, 6)
_MANY_INDICES = 4096
_DIGITS_BEHIND = 0b0110110110110110  # the first 8 digits: to round these, or 11, leaves almost half of the last place


def scalar(number: int, dtype: str, turn: int = 0, bits: int = 0) -> int:
    """Test value for the scalar parameter ``number``; neighbouring parameters get different values, with opposite signs
    unless ``dtype`` is unsigned. For "bool" 0 and 1 alternate.

    turn: run number; consecutive runs differ in value and sign
    bits: significand bits of the value, the last one set, at most as many as the dtype has; below 6: a number from 2
          to 7
    """
    kind = DTYPES[dtype]
    if dtype == "bool":
        return (number + turn) % 2
    size = _SMALL_VALUES[(number + turn) % len(_SMALL_VALUES)]
    bits = min(bits, kind.digits if kind.kind == "f" else kind.high.bit_length())
    if bits > 8:
        size = (128 + (37 * number + 23 * turn + 11) % 128 << bits - 8) | _DIGITS_BEHIND >> 16 - (bits - 8) | 1
    elif bits > 5:
        size = (1 << bits - 1) | 2 * (5 * number + 3 * turn) % (1 << bits - 1) | 1
    return -size if kind.kind != "u" and (number + turn) % 2 else size


def table(rng: np.random.Generator, shape: tuple[int, ...], limit: int, beyond: bool, turn: int = 0) -> np.ndarray:
    """Int64 index table in random order, values from 0 to ``limit - 1``: every index if it has space for all, else
    extremes and some others. Above a limit of 4096 extremes and random indices, whatever the space.

    beyond: True to include -1 and ``limit``, for programs that define their effect
    turn:   run number; without space for all indices, runs cycle through them
    """
    count, most = int(np.prod(shape, dtype=np.int64)), max(1, limit)
    outside = [-1, limit] if beyond else []
    deck = [most - 1, *outside[:1], 0, *outside[1:]] if most > 1 else [0, *outside]
    always = np.random.default_rng(most)
    others = always.permutation(most) if most <= _MANY_INDICES else always.integers(0, most, _MANY_INDICES)
    deck = [*deck, *(v for v in others.tolist() if v not in deck)]
    if count <= len(deck):
        dealt = np.take(deck, np.arange(turn * count, (turn + 1) * count), mode="wrap")
    else:
        dealt = np.concatenate([deck, rng.integers(-int(beyond), most + int(beyond), count - len(deck))])
    return rng.permutation(dealt.astype(np.int64)).reshape(shape)
