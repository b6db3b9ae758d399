"""Order and rounding inside a product of tensor cores on floats, for the interpreter and the emulator alike::

    d = (D)(((double)d + a0 b0) + a1 b1 + …)      in double precision by ascending k, rounded once at the end

The PTX ISA specifies neither, so these bits are the emulator's, not a GPU's. ``emulator/instructions.h`` and
``emulator/wgmma.h`` compute the same in C++. tf32 operands keep 11 significand bits; 3xtf32 is three such products,
each rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Rounding = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TensorCore:
    """Hardware products that make up one matrix instruction (three in 3xTF32), each with functions that round its
    operands.

    products: per hardware product, {operand name: rounding function}; operands not named stay exact
    """

    products: tuple[Mapping[str, Rounding], ...]


PLAIN_PRODUCT = TensorCore(({},))


def tf32(a: Rounding, b: Rounding) -> TensorCore:
    """An instruction of one product whose operands are rounded by the functions ``a`` and ``b``."""
    return TensorCore(({"a": a, "b": b},))


def nearest(x: np.ndarray) -> np.ndarray:
    """``x`` rounded to tf32 to nearest, ties away from 0 (cvt.rna)."""
    return _kept(x, _bits(x) + np.uint32(0x1000))


def nearest_even(x: np.ndarray) -> np.ndarray:
    """``x`` rounded to tf32 to nearest even, as a TMA copy does."""
    bits = _bits(x)
    return _kept(x, bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)))


def cut(x: np.ndarray) -> np.ndarray:
    """``x`` truncated to tf32, as ``wgmma`` reads it."""
    return _kept(x, _bits(x))


def rest(x: np.ndarray) -> np.ndarray:
    """``x`` minus its tf32 rounding, itself rounded to tf32: the low part of 3xTF32."""
    with np.errstate(all="ignore"):
        return nearest(x.astype(np.float32) - nearest(x).astype(np.float32))


THREE_TF32 = TensorCore(({"a": rest, "b": nearest}, {"a": nearest, "b": rest}, {"a": nearest, "b": nearest}))


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def _kept(x: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The upper 19 of ``bits`` as float32; infinities and NaNs of ``x`` unchanged."""
    out = (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return np.asarray(np.where(np.isfinite(x), out, x), np.float32)
