"""Operators: schedule templates and their spaces around the definitions of ``nn``; loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorir.errors.habits import unknown
from tensorir.ops.operators import OPERATORS as OPERATORS


def __getattr__(name: str) -> Any:
    if name in OPERATORS:
        value = getattr(importlib.import_module(OPERATORS[name].module), name)
        globals()[name] = value  # found at once from now on
        return value
    raise unknown("nn", name, "tensorir.ops", OPERATORS)


if TYPE_CHECKING:
    from tensorir.ops.convolution import conv2d as conv2d
    from tensorir.ops.convolution import conv2d_backward_data as conv2d_backward_data
    from tensorir.ops.convolution import conv2d_backward_weight as conv2d_backward_weight
    from tensorir.ops.gemm import matmul as matmul
    from tensorir.ops.gemm_grouped import grouped_matmul as grouped_matmul
