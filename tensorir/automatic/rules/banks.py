"""Banks of shared memory in which the lanes of a warp meet."""

from __future__ import annotations

from collections import Counter
from functools import cache

WARP, BANKS, WORD = 32, 32, 4
"""Lanes of a warp; banks of shared memory, and bytes of a word in one."""


@cache
def passes(lanes: tuple[tuple[int, int], ...], width: int) -> int:
    """Passes of shared memory that a warp takes to read ``width`` bytes a lane: words of one bank follow each other.

    lanes: how many there are along each axis and the bytes between two of them, fastest axis first
    """
    places = [0]
    for count, step in lanes:
        places = [place + n * step for n in range(min(count, WARP)) for place in places]
    together, found = min(WARP, BANKS * WORD // width), places[:WARP]
    return sum(_deepest(found[k : k + together], width) for k in range(0, len(found), together))


def least(lanes: int, width: int) -> int:
    """The fewest passes of so many lanes that read different words."""
    return -(-min(lanes, WARP) * max(width, WORD) // (BANKS * WORD))


def _deepest(places: list[int], width: int) -> int:
    """The largest number of words that the lanes ask of one bank."""
    words = {(place + byte) // WORD for place in places for byte in range(0, width, WORD)}
    return max(Counter(word % BANKS for word in words).values())
