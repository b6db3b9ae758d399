"""Bank conflicts of a warp's accesses to shared memory."""

from __future__ import annotations

from collections import Counter
from functools import cache

from tensorir.ir.layout import LANES_OF_WARP

BANKS, WORD = 32, 4
"""Banks of shared memory; bytes of a bank's word."""


@cache
def passes(lanes: tuple[tuple[int, int], ...], width: int) -> int:
    """Shared-memory wavefronts for a warp to read ``width`` bytes per lane; different words of one bank are serialized.

    lanes: (count, byte stride) of the lanes along each axis, fastest axis first
    """
    places = [0]
    for count, step in lanes:
        places = [place + n * step for n in range(min(count, LANES_OF_WARP)) for place in places]
    together, found = min(LANES_OF_WARP, BANKS * WORD // width), places[:LANES_OF_WARP]
    return sum(_deepest(found[k : k + together], width) for k in range(0, len(found), together))


def least(lanes: int, width: int) -> int:
    """Wavefronts without bank conflicts for ``lanes`` lanes that read ``width`` bytes of different words each."""
    return -(-min(lanes, LANES_OF_WARP) * max(width, WORD) // (BANKS * WORD))


def _deepest(places: list[int], width: int) -> int:
    """Maximum number of different words in one bank, for reads of ``width`` bytes at the byte addresses ``places``."""
    words = {(place + byte) // WORD for place in places for byte in range(0, width, WORD)}
    return max(Counter(word % BANKS for word in words).values())
