"""Neural network functions as pure declarations: tensors in, tensor out, no schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorir.errors.habits import unknown
from tensorir.nn.activations import ACTIVATIONS as ACTIVATIONS
from tensorir.nn.activations import activation, bias_act, convert, gelu, relu, sigmoid, silu
from tensorir.nn.convolutions import conv1d, conv2d, conv3d, need_layout, out_extent, pad2d
from tensorir.nn.gradients import conv2d_backward_data, conv2d_backward_weight, conv_transpose2d
from tensorir.nn.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from tensorir.nn.products import grouped_matmul, linear, matmul
from tensorir.nn.rows import batch_norm, group_norm, layer_norm, log_softmax, rms_norm, softmax
from tensorir.nn.sequences import attention, cumsum, embedding

__all__ = [
    "activation", "adaptive_avg_pool2d", "attention", "avg_pool2d", "batch_norm", "bias_act", "conv1d", "conv2d",
    "conv2d_backward_data", "conv2d_backward_weight", "conv3d", "conv_transpose2d", "convert", "cumsum", "embedding",
    "gelu", "group_norm", "grouped_matmul", "layer_norm", "linear", "log_softmax", "matmul", "max_pool2d",
    "need_layout", "out_extent", "pad2d", "relu", "rms_norm", "sigmoid", "silu", "softmax",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker knows the names, and that there are no others

    def __getattr__(name):
        raise unknown("nn", name, "tensorir.nn", __all__)
