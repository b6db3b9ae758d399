"""Operators as workloads: a definition of ``nn`` with templates, reference and baselines; each is imported on first
use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tensorir.errors.habits import unknown
from tensorir.ops.operators import OPERATORS as OPERATORS

if not TYPE_CHECKING:  # a type checker knows the names, and that there are no others

    def __getattr__(name):
        if name in OPERATORS:
            value = getattr(importlib.import_module(OPERATORS[name].module), name)
            globals()[name] = value  # found at once from now on
            return value
        raise unknown("nn", name, "tensorir.ops", OPERATORS)


if TYPE_CHECKING:
    from tensorir.ops.convolution import conv2d as conv2d
    from tensorir.ops.convolution import conv2d_backward_data as conv2d_backward_data
    from tensorir.ops.convolution import conv2d_backward_weight as conv2d_backward_weight
    from tensorir.ops.defined import adaptive_avg_pool2d as adaptive_avg_pool2d
    from tensorir.ops.defined import attention as attention
    from tensorir.ops.defined import avg_pool2d as avg_pool2d
    from tensorir.ops.defined import batch_norm as batch_norm
    from tensorir.ops.defined import conv1d as conv1d
    from tensorir.ops.defined import conv3d as conv3d
    from tensorir.ops.defined import conv_transpose2d as conv_transpose2d
    from tensorir.ops.defined import cumsum as cumsum
    from tensorir.ops.defined import embedding as embedding
    from tensorir.ops.defined import gelu as gelu
    from tensorir.ops.defined import group_norm as group_norm
    from tensorir.ops.defined import layer_norm as layer_norm
    from tensorir.ops.defined import linear as linear
    from tensorir.ops.defined import log_softmax as log_softmax
    from tensorir.ops.defined import max_pool2d as max_pool2d
    from tensorir.ops.defined import relu as relu
    from tensorir.ops.defined import rms_norm as rms_norm
    from tensorir.ops.defined import sigmoid as sigmoid
    from tensorir.ops.defined import silu as silu
    from tensorir.ops.defined import softmax as softmax
    from tensorir.ops.products import grouped_matmul as grouped_matmul
    from tensorir.ops.products import matmul as matmul
