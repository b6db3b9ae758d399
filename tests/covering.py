"""Fewer cases than all combinations that have the same in them."""

from collections.abc import Iterable
from typing import Any


def some_of_each(
    first: Iterable[Any], second: Iterable[Any], offsets: Iterable[int] = (0, 1, 3)
) -> list[tuple[Any, Any]]:
    """Pairs of both: each of the first is there with as many of the second as there are ``offsets``, evenly."""
    others, wanted = list(second), set(offsets)
    return [(a, b) for i, a in enumerate(first) for j, b in enumerate(others) if (i + j) % len(others) in wanted]


def spread_over(space: Any, most: int) -> list[dict[str, Any]]:
    """Legal configurations of a space at even distances, the first and the last among them; at most so many."""
    last = len(space.legal) - 1
    steps = max(1, min(most - 1, last))
    return [space.config(row) for row in dict.fromkeys(last * n // steps for n in range(steps + 1))]
