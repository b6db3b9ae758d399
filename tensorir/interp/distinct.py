"""Distinct scalars and index tables for runs that are compared with a reference, drawn without replacement.

That leaves fewer of them equal by chance.

Drawn from a few whole numbers, alpha and beta would be equal in a fifth of all runs, and a table of three entries would
hardly ever hold two different ones, or one that is out of range on purpose.
"""

from __future__ import annotations

import numpy as np

from tensorir.ir.dtypes import DTYPES

_SMALL_VALUES = (3, 5, 2, 7, 4, 6)
_MANY_INDICES = 4096
_DIGITS_BEHIND = 0b0110110110110110  # the first 8 digits: to round these, or 11, leaves almost half of the last place


def scalar(number: int, dtype: str, turn: int = 0, bits: int = 0) -> int:
    """The value of a program's scalar: another one for each ``number``, with another sign than its neighbour's.

    turn: of one scalar, those of two turns that follow each other differ too, and in their signs
    bits: so many digits, the last one odd, as far as the dtype has them; 0 for a small number
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
    """Indices below ``limit`` in an order of ``rng``: each of them, as far as there is room, and the extremes before
    the others.

    beyond: -1 and ``limit`` are among them, where a program says what it does then
    turn:   where there is no room for all, the next ones come in the next turn
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
