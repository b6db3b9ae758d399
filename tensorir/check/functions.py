"""The table of functions that the emulator links (``emulator/functions.cpp``), for whole arrays."""

from __future__ import annotations

import ctypes
import functools

import numpy as np

from tensorir.check.emulate import table_library

TABLE = frozenset({"exp", "exp2", "log", "log2", "tanh", "erf", "sin", "cos", "rsqrt", "pow"})
"""Functions that no operation of C stands for."""


@functools.cache
def _loaded() -> tuple[ctypes.CDLL, object]:
    file = table_library()
    return ctypes.CDLL(str(file.path)), file


def of_table(fn: str, args: list[object], fast: bool) -> np.ndarray:
    """``fn`` of floats of 32 or 64 bits; ``fast``: the spelling that CUDA prints for float32 by default."""
    x = np.asarray(args[0])
    kind = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    given = [np.ascontiguousarray(a) for a in np.broadcast_arrays(*(np.asarray(a, kind) for a in args))]
    out = np.empty(given[0].shape, kind)
    name = fn if kind == np.float64 else f"{'fast_' if fast else ''}{fn}f"
    library, _ = _loaded()
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, *given)]
    getattr(library, f"tir_each_{name}")(*pointers, ctypes.c_size_t(out.size))
    return out
