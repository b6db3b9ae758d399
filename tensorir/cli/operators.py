"""The operators that a command names, and which flags belong to which."""

from __future__ import annotations

OPERATORS = ("conv2d", "conv2d_backward_data", "conv2d_backward_weight", "grouped_matmul", "matmul")
PRODUCTS = ("grouped_matmul", "matmul")
_EPILOGUE = ("bias", "act", "prepack")
_GEOMETRY = ("stride", "pad", "dilation", "groups", "layout")
OWN = {
    "conv2d": (*_GEOMETRY, "residual", "max_error", *_EPILOGUE),
    "conv2d_backward_data": _GEOMETRY,
    "conv2d_backward_weight": _GEOMETRY,
    "grouped_matmul": ("groups", "align", "tb", "act"),
    "matmul": ("batch", "ta", "tb", "alpha", "beta", *_EPILOGUE),
}
"""The flags that an operator does not share with all others."""
SWITCHES = ("ta", "tb", "alpha", "beta", "bias", "residual", "prepack")
_SHARED = ("dtype", "precision")


def flags_of(op: str) -> tuple[str, ...]:
    """The parameters of an operator that are no extents."""
    return (*OWN[op], *_SHARED)
