"""Lists of values that knobs often have."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_int, need_list, shown

LONGEST = 8
"""Things whose orders are listed: 40,320 of eight."""


@answers()
def powers_of_two(low: int, high: int) -> list[int]:
    """The powers of two from ``low`` to ``high``, both included: ``powers_of_two(4, 40)`` is ``[4, 8, 16, 32]``.

    Raises DeclarationError where there are none.
    """
    first, last = need_int("low", low, 1, 2**62), need_int("high", high, 1, 2**62)
    found = [2**n for n in range(63) if first <= 2**n <= last]
    if not found:
        message = f"there is no power of two from {first} to {last}"
        raise refuse(DeclarationError, "space.knob-values", message, hint=f"powers_of_two(1, {max(first, last)})")
    return found


@answers()
def divisors(extent: int, low: int = 1, high: int | None = None) -> list[int]:
    """The divisors of ``extent`` from ``low`` to ``high`` (``extent`` itself when None), in order.

    Tiles of these sizes leave no rest: ``divisors(28, high=14)`` is ``[1, 2, 4, 7, 14]``. Raises DeclarationError where
    there are none.
    """
    n, first = need_int("extent", extent, 1, 2**40), need_int("low", low, 1, 2**40)
    last = n if high is None else need_int("high", high, 1, 2**40)
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    found = [d for d in sorted({*small, *(n // d for d in small)}) if first <= d <= last]
    if not found:
        message = f"no divisor of {n} is from {first} to {last}"
        raise refuse(DeclarationError, "space.knob-values", message, hint=f"divisors({n}, high={n})")
    return found


@answers()
def permutations(things: Sequence[object]) -> list[tuple[object, ...]]:
    """All orders of up to eight different words or numbers, as tuples; a word is taken letter by letter.

    ``permutations("ij")`` is ``[("i", "j"), ("j", "i")]``. A search places orders by where they have each thing.
    Raises DeclarationError for more, and for things that are there twice.
    """
    given = tuple(things) if isinstance(things, str) else need_list("things", things, "words or numbers")
    plain = all(isinstance(x, (str, int, float)) for x in given)
    if not plain or not given or len(given) > LONGEST or len(set(given)) < len(given):
        message = f"the orders of {shown(things)} cannot be listed: one to {LONGEST} different words or numbers"
        raise refuse(DeclarationError, "space.knob-values", message, hint='permutations(["i", "j", "k"])')
    return list(itertools.permutations(given))
