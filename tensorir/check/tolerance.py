"""``tolerance``: the relative error of results that rounding alone explains, by dtype."""

from __future__ import annotations

from tensorir.ir.dtypes import DTYPES


def tolerance(dtype: str) -> float:
    """Return the error that rounding explains for results of ``dtype``, relative to the largest element; 0.0 for
    integers.
    """
    known = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
    return known.get(dtype, 0.0 if DTYPES[dtype].kind != "f" else 2.0 ** (1 - DTYPES[dtype].digits))
