"""Finds words similar to a misspelled one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: object, legal: Iterable[str], n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Up to ``n`` words of ``legal`` most similar to ``word``.

    First choice: words one typing error away, of any length, ignoring case. If there are none: words with a difflib
    similarity of at least ``cutoff``.
    """
    from difflib import get_close_matches

    if not isinstance(word, str):
        return []
    words, typed = list(legal), word
    low = typed.lower()
    slips = [w for w in words if one_slip(low, w.lower())]
    return slips[:n] or get_close_matches(typed, words, n, cutoff)


def one_slip(a: str, b: str) -> bool:
    """True if ``a`` and ``b`` are equal or one typing error apart (insertion, deletion, replacement, transposition)."""
    if abs(len(a) - len(b)) > 1:
        return False
    low = 0
    while low < min(len(a), len(b)) and a[low] == b[low]:
        low += 1
    while len(a) > low and len(b) > low and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    x, y = a[low:], b[low:]
    return max(len(x), len(y)) <= 1 or (len(x) == 2 and x == y[::-1])
