"""How far results of functions may be from the exact ones, in units in the last place of float32 (ulp)."""

from __future__ import annotations

LIBRARY_ULPS = 8
"""The bound for functions of any library: of compilers, of processors' and of GPUs' vendors."""

VECTOR_ULPS = {
    "exp": 1.0, "exp2": 1.5, "log": 1.0, "log2": 1.5, "tanh": 1.5, "erf": 1.5, "sin": 2.0, "cos": 2.0, "rsqrt": 1.0,
}  # fmt: skip
"""The bounds for the functions that texts for CPUs bring along (``codegen.vector_math``), for every float32.

An ulp is the step between floats at the exact result: 2^-149 for results below the normal numbers. ``sin`` and ``cos``
call the library where the size of an argument is beyond 100000, and have its bound there.
"""
