"""Error bounds of float32 math functions, in units in the last place (ulp)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensorir.target import Target

Floats = npt.NDArray[np.float64]
LIBRARY_ULPS = 8
"""The bound for functions of any library: of compilers, of processors' and of GPUs' vendors, but for the next ones."""

LOOSE_ULPS = {"erf": 16, "pow": 16}
"""Errors that OpenCL C allows its library where these are more (OpenCL C specification 1.2, 7.4, single precision)."""

VECTOR_ULPS = {
    "exp": 1.0, "exp2": 1.5, "log": 1.0, "log2": 1.5, "tanh": 1.5, "erf": 1.5, "sin": 2.0, "cos": 2.0, "rsqrt": 1.0,
}  # fmt: skip
"""The bounds for the functions that texts for CPUs bring along (``codegen.vector_math``), for every float32.

An ulp is the step between floats at the exact result: 2^-149 for results below the normal numbers. ``sin`` and ``cos``
call the library where the size of an argument is beyond 100000, and have its bound there.
"""

CUDA_ULPS = {
    "exp2": 2.0, "log": 1.0, "log2": 1.0, "tanh": 2.0, "erf": 2.0, "sin": 2.0, "cos": 2.0, "rsqrt": 2.0, "exp": 1.0,
}  # fmt: skip
"""The bounds of CUDA's single-precision functions over their full range (CUDA C++ programming guide, appendix on
mathematical functions), which ``LIBRARY_ULPS`` is above: of what is printed but for ``FAST_ULPS``.
"""

FAST_ULPS = {"exp": (2.0, 1.173)}
"""The bounds of CUDA's intrinsics that are printed instead: a + floor(b |x|) for (a, b), from the same appendix.

Others have no bound in ulps that holds everywhere: ``__logf`` has none from 0.5 to 2, ``__sinf`` and ``__cosf`` none
near their zeros and none beyond pi, ``tanh.approx`` is good to 11 bits. ``exp2f``, ``rsqrtf``, ``tanhf`` and ``erff``
are made of the hardware's approximations as they are.
"""


def ulps_of(fn: str, x: Floats, target: Target | None) -> Floats:
    """Error bound of the float32 function ``fn`` at ``x``, in ulp, as texts for ``target`` call it: an array like ``x``
    for fast functions, else a 0-d array. target None: a library's function, never a fast one.
    """
    most = max(LIBRARY_ULPS, LOOSE_ULPS.get(fn, 0))
    if fn not in FAST_ULPS or target is None or not fast_functions(target):
        return np.asarray(most, np.float64)
    a, b = FAST_ULPS[fn]
    with np.errstate(all="ignore"):
        more: Floats = a + np.floor(b * np.nan_to_num(np.abs(x), posinf=200.0))
        return np.maximum(more, most)


def fast_functions(target: Target) -> bool:
    """True if emitted texts for ``target`` call CUDA's fast functions (``FAST_ULPS``)."""
    return target.language == "cuda" and not target.precise_math
