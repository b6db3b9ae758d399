"""Encodes tensor maps (CUtensorMap descriptors for TMA) through the CUDA driver.

A copy of this file is in every exported folder that needs it: it imports NumPy and nothing of this package.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

TENSOR_MAP_TYPES = {
    "bool": (0, 1), "int8": (0, 1), "uint8": (0, 1), "int16": (1, 2), "uint16": (1, 2), "uint32": (2, 4),
    "int32": (3, 4), "uint64": (4, 8), "int64": (5, 8), "float16": (6, 2), "float32": (7, 4), "float64": (8, 8),
    "bfloat16": (9, 2), "float8_e4m3": (0, 1), "float8_e5m2": (0, 1), "tfloat32": (11, 4),
}  # fmt: skip
"""{dtype: (CUtensorMapDataType, bytes of an element)}. Copying does not ask for a sign. "tfloat32" is float32 in the
array, whose elements are rounded to 10 bits of mantissa as they are copied."""

SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""{bytes of the swizzle, 0 for none: CUtensorMapSwizzle}."""

MOST_STEP = 8
"""Largest step, in elements, between neighbouring elements of a tile, in any dimension but the innermost."""

MOST_PIXELS, MOST_CHANNELS, CORNERS = 1024, 256, range(-128, 128)
"""Limits of im2col maps of images (n, h, w, c): pixels and channels of a box, and coordinates of its corners."""

_NO_INTERLEAVE, _L2_256_BYTES, _ZEROS_OUTSIDE = 0, 3, 0
SMALL_ARRAY_BYTES, _LAST_WRONG_DRIVER = 128 << 10, 13010


class TensorMapError(ValueError):
    """A map that violates the driver's limits; args: reasons as sentences"""


def encoded(
    address: int,
    *,
    name: str,
    array: str,
    dtype: str,
    shape: Sequence[int],
    box: Sequence[int],
    swizzle: int,
    steps: Sequence[int] = (),
    lower: Sequence[int] = (),
    upper: Sequence[int] = (),
) -> object:
    """The CUtensorMap of a row-major contiguous array, as an argument for CuPy; a context must be current.

    It is an array of one element of 128 bytes, which CuPy passes by value.

    shape, box: outermost dimension first;  swizzle: in bytes, 0 for none
    steps: of a box of N elements with a step in a dimension, ceil(N / step) are copied, the first one and every
           step-th after it (so cuTensorMapEncodeTiled's elementStrides; they want N = step * copied). () for all of
           them. What is beyond the array is zero element by element, the corner itself included. The innermost
           dimension has none: without interleave the driver ignores that one
    lower, upper: of an image (n, h, w, c) that is gone through pixel by pixel (cuTensorMapEncodeIm2col): row and
           column of its first pixel, and how far from its last ones the last pixel may be. ``box`` is so many pixels
           and channels then. The driver is given columns first, as CUTLASS does; its header says rows first

    Raises TensorMapError: limits that are broken, no driver with tensor maps, or its refusal.
    """
    if wrong := broken_limits(address, array, dtype, shape, box, swizzle, steps, lower, upper):
        raise TensorMapError(*wrong)
    kind, size = TENSOR_MAP_TYPES[dtype]
    raw = np.zeros(192, np.uint8)
    start = -raw.ctypes.data % 64  # the driver asks for this alignment
    made = raw[start : start + 128].view("V128")
    driver, version = _driver()
    encode, tile = driver.cuTensorMapEncodeTiled, [_inner_first(ctypes.c_uint32, box)]
    if lower:
        encode = driver.cuTensorMapEncodeIm2col
        corners = [_inner_first(ctypes.c_int, corner) for corner in (lower, upper)]
        tile = [*corners, ctypes.c_uint32(box[1]), ctypes.c_uint32(box[0])]
    status = encode(
        ctypes.c_void_p(made.ctypes.data),
        kind,
        len(shape),
        ctypes.c_void_p(address),
        _inner_first(ctypes.c_uint64, shape),
        _inner_first(ctypes.c_uint64, _strides(shape, size)),
        *tile,
        _inner_first(ctypes.c_uint32, steps or [1] * len(shape)),
        _NO_INTERLEAVE,
        SWIZZLES[swizzle],
        _L2_256_BYTES,
        _ZEROS_OUTSIDE,
    )
    if status:
        raise TensorMapError(f"{array}: the driver refuses the tensor map {name} (CUDA error {status})")
    if version <= _LAST_WRONG_DRIVER and prod(shape) * size < SMALL_ARRAY_BYTES:
        # drivers up to 13.1 set a bit that is wrong for small arrays; CUTLASS clears it likewise
        made.view(np.uint64)[1] &= ~np.uint64(1 << 21)
    return made


def broken_limits(
    address: int,
    array: str,
    dtype: str,
    shape: Sequence[int],
    box: Sequence[int],
    swizzle: int,
    steps: Sequence[int] = (),
    lower: Sequence[int] = (),
    upper: Sequence[int] = (),
) -> list[str]:
    """Violated limits of cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col, as sentences (the driver only reports
    failure); [] if there are none. Arguments as of ``encoded``.
    """
    if dtype not in TENSOR_MAP_TYPES:
        return [f"{array}: tensor maps take no {dtype}"]
    image = bool(lower or upper)
    if image and not (len(shape) == 4 and len(box) == len(lower) == len(upper) == 2):
        given = f"{len(shape)} dimensions, a box of {len(box)}, corners of {len(lower)} and {len(upper)}"
        return [f"{array}: pixels of {given}; a tensor map takes (n, h, w, c), and two of each"]
    if not image and (not 1 <= len(shape) <= 5 or len(box) != len(shape)):
        return [f"{array}: {len(shape)} dimensions with a box of {len(box)}; tensor maps take 1 to 5, and as many"]
    size = TENSOR_MAP_TYPES[dtype][1]
    row = box[-1] * size
    wrong = []
    if address % 16:
        wrong.append(f"{array}: it starts {address % 16} bytes past a multiple of 16, where a tensor map has to")
    for d, n in enumerate(shape):
        if not 1 <= n <= 1 << 31:  # (2**32 to drivers before 13, but coordinates have a sign)
            wrong.append(f"{array}: dimension {d} has {n} elements; a tensor map takes 1 to 2**31")
    for d, stride in enumerate(_strides(shape, size)):
        if stride % 16 or stride >= 1 << 40:
            wrong.append(f"{array}: dimension {d} has a stride of {stride} bytes, not a multiple of 16 below 2**40")
    for d, n in enumerate(box):
        most = (MOST_PIXELS, MOST_CHANNELS)[d] if image else 256
        if not 1 <= n <= most:
            wrong.append(f"{array}: a box has {n} elements in dimension {d}; a tensor map takes 1 to {most}")
    wrong += [f"{array}: a corner of {n} pixels; a tensor map takes {CORNERS[0]} to {CORNERS[-1]}"
              for n in (*lower, *upper) if n not in CORNERS]  # fmt: skip
    wrong += _broken_steps(array, len(shape), steps)
    if row % 16:
        wrong.append(f"{array}: a row of a box has {row} bytes, not a multiple of 16")
    if swizzle not in SWIZZLES:
        wrong.append(f"{array}: a swizzle of {swizzle} bytes; there are 0, 32, 64 and 128")
    elif swizzle and row > swizzle:
        wrong.append(f"{array}: a row of a box has {row} bytes, more than the {swizzle} of its swizzle")
    return wrong


def _broken_steps(array: str, rank: int, steps: Sequence[int]) -> list[str]:
    if steps and len(steps) != rank:
        return [f"{array}: {len(steps)} steps for {rank} dimensions; tensor maps take as many, or none"]
    wrong = [
        f"{array}: a step of {step} elements in dimension {d}; a tensor map takes 1 to {MOST_STEP}"
        for d, step in enumerate(steps[:-1])
        if not 1 <= step <= MOST_STEP
    ]
    if steps and steps[-1] != 1:
        wrong.append(f"{array}: a step of {steps[-1]} in the last dimension, whose elements are copied side by side")
    return wrong


def _strides(shape: Sequence[int], size: int) -> list[int]:
    """Byte strides of all dimensions but the innermost, outermost first."""
    return [size * prod(shape[d + 1 :]) for d in range(len(shape) - 1)]


def _inner_first(kind: Any, values: Sequence[int]) -> Any:
    """ctypes array of ``values`` in the driver's order, innermost first."""
    return (kind * len(values))(*reversed(values))


@cache
def _driver() -> tuple[Any, int]:
    """(driver library, newest CUDA version it supports: 13010 for 13.1); raises TensorMapError without a suitable
    driver.
    """
    version = ctypes.c_int()
    try:
        library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        library.cuTensorMapEncodeTiled.restype = ctypes.c_int
        library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:  # no driver, or one older than tensor maps
        raise TensorMapError(f"the CUDA driver makes no tensor maps: {error}") from None
    return library, version.value
