"""Expected values in a C text: numbers in a few characters each, as fine as their tolerance needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHARACTERS = "".join(chr(c) for c in range(35, 127) if chr(c) not in "?\\")
"""Digits: what a C string holds as it is, without a quotation mark and trigraphs."""
FINE = 16
"""Steps from one number to the next in a tolerance, at least."""
MOST = 8
"""Digits of a number, which a double still holds."""
_SPECIAL = 3
_LINE = 114

DECODE = """
/* Number n of a text: a multiple of the unit in base 90, from half of its range on; 0 to 2 are no finite numbers. */
static double decoded(const char *text, size_t n, size_t digits, double unit) {
  double code = 0, half = 0.5;
  for (size_t k = 0; k < digits; ++k, half *= 90) {
    const int c = text[n * digits + k];
    code = 90 * code + (c - 35 - (c > 63) - (c > 92));
  }
  if (code < 3) return code < 1 ? NAN : code < 2 ? -INFINITY : INFINITY;
  return (code - half) * unit;
}
"""


@dataclass(frozen=True)
class Numbers:
    """Several rows of numbers as texts: ``digits`` characters each, multiples of the row's unit."""

    digits: int
    units: tuple[float, ...]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, rows: Sequence[NDArray[np.float64]], allowed: Sequence[float]) -> Numbers:
        """allowed: the tolerance of each row, of which a unit is a ``FINE``-th at most."""
        most = [float(np.abs(r[np.isfinite(r)]).max(initial=0.0)) for r in rows]
        steps = max((FINE * m / a if a else float(np.inf) for m, a in zip(most, allowed, strict=True) if m), default=1)
        base = len(CHARACTERS)
        digits = next((d for d in range(1, MOST) if base**d // 2 - _SPECIAL - 1 >= steps), MOST)
        half = base**digits // 2
        units = tuple(m / (half - _SPECIAL - 1) if m else 1.0 for m in most)
        return cls(digits, units, tuple(_text(r, u, half, digits) for r, u in zip(rows, units, strict=True)))

    def literal(self, row: int) -> str:
        """The text of a row as a C string, in lines."""
        text = self.texts[row]
        lines = [text[k : k + _LINE] for k in range(0, len(text), _LINE)] or [""]
        return "\n".join(f'  "{line}"' for line in lines)


def _text(row: NDArray[np.float64], unit: float, half: int, digits: int) -> str:
    finite = np.isfinite(row)
    codes = np.where(finite, half + np.rint(np.where(finite, row, 0.0) / unit), 0).astype(np.int64)
    codes[np.isneginf(row)], codes[np.isposinf(row)] = 1, 2
    return "".join("".join(CHARACTERS[code // 90**k % 90] for k in reversed(range(digits))) for code in codes.tolist())
