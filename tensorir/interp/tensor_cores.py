"""Order and rounding inside a product of tensor cores on floats, for the interpreter and the emulator alike::

    d = (D)(((double)d + a0 b0) + a1 b1 + …)      in double precision by ascending k, rounded once at the end

The PTX ISA leaves both open, so these are bits of the emulator and of no GPU. ``emulator/instructions.h`` and
``emulator/wgmma.h`` do in C++ what stands here. An operand of tf32 loses the digits beyond its 11 first; 3xtf32 is
three such products, each with a rounding of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Rounding = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TensorCore:
    """One instruction: for each of its products the rounding of operands by name, others as they are."""

    products: tuple[Mapping[str, Rounding], ...]


PLAIN_PRODUCT = TensorCore(({},))


def tf32(a: Rounding, b: Rounding) -> TensorCore:
    """A product whose operands are rounded."""
    return TensorCore(({"a": a, "b": b},))


def nearest(x: np.ndarray) -> np.ndarray:
    """tf32 by cvt.rna: to the nearest, halves away from 0."""
    return _kept(x, _bits(x) + np.uint32(0x1000))


def nearest_even(x: np.ndarray) -> np.ndarray:
    """tf32 as a tensor copy rounds: to the nearest, halves to even."""
    bits = _bits(x)
    return _kept(x, bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)))


def cut(x: np.ndarray) -> np.ndarray:
    """tf32 as ``wgmma`` reads it: the lower bits are not looked at."""
    return _kept(x, _bits(x))


def rest(x: np.ndarray) -> np.ndarray:
    """The rest of a number that tf32 leaves, in tf32."""
    with np.errstate(all="ignore"):
        return nearest(x.astype(np.float32) - nearest(x).astype(np.float32))


THREE_TF32 = TensorCore(({"a": rest, "b": nearest}, {"a": nearest, "b": rest}, {"a": nearest, "b": nearest}))


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def _kept(x: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The upper 19 bits as a number; infinities and NaNs as they are."""
    out = (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return np.asarray(np.where(np.isfinite(x), out, x), np.float32)
