"""Bit-exact algebraic identities, such as x + 0 -> x, with the dtypes for which they hold.

``x op c -> x``, ``x op c -> c`` and their mirror images, for a constant c. ``ir.build`` folds by them while building
expressions, ``lower.fold_constants`` after constant tables are substituted. Identities that fail for -0, or that change
signs, are in ``SIGNS``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorir.ir.dtypes import DTYPES


@dataclass(frozen=True)
class Identity:
    """``x op c``, or ``c op x`` if ``left``, with constant c = ``number`` simplifies to ``gives``: "x", "c" or "0".

    kinds: dtype kinds for which it holds: "i", "u", "f"
    zero:  required sign of a float zero c; 0 for either
    """

    op: str
    number: int
    gives: str
    kinds: str
    left: bool = False
    zero: int = 0


IDENTITIES = (
    *(Identity(op, 0, "x", "iu") for op in ("+", "-", "^", "|", "<<", ">>")),
    *(Identity(op, 0, "x", "iu", left=True) for op in ("+", "^", "|")),
    Identity("+", 0, "x", "f", zero=-1),
    Identity("+", 0, "x", "f", left=True, zero=-1),
    Identity("-", 0, "x", "f", zero=1),
    Identity("*", 1, "x", "iuf"),
    Identity("*", 1, "x", "iuf", left=True),
    Identity("/", 1, "x", "f"),
    Identity("//", 1, "x", "iu"),
    *(Identity(op, 0, "c", "iu") for op in ("*", "&")),
    *(Identity(op, 0, "c", "iu", left=True) for op in ("*", "&", "<<", ">>")),
    Identity("%", 1, "0", "iu"),
)
SIGNS = {
    "x * -1 -> -x": "iuf", "x + -y -> x - y": "iuf", "x - -y -> x + y": "iuf", "x + c * y -> x - -c * y": "iuf",
    "x - c * y -> x + -c * y": "iuf", "0 - x -> -x": "iu", "x + 0 -> x, x no -0": "iuf",
}  # fmt: skip
"""Rewrites of sums and products by ``fold_constants`` -> kinds of dtypes; c is negative, and -c in range."""


def identity(op: str, number: object, dtype: str, left: bool) -> str:
    """Simplified form of ``x op number``, or of ``number op x`` if ``left``: "x", "c" (the constant), "0", or "" if no
    identity applies.
    """
    if not isinstance(number, int | float) and number not in (0, 1):  # a fraction
        return ""
    for one in _BY_OP.get((op, left), ()):
        if number == one.number and DTYPES[dtype].kind in one.kinds:
            sign = math.copysign(1, number)
            if not one.zero or sign == one.zero:
                return one.gives
    return ""


_BY_OP: dict[tuple[str, bool], tuple[Identity, ...]] = {}
for _one in IDENTITIES:
    _BY_OP[_one.op, _one.left] = (*_BY_OP.get((_one.op, _one.left), ()), _one)
