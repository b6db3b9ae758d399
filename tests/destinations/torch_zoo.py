"""Kernels as operators: definitions of many kinds, small, with integers in floats so that results are exact."""

import numpy as np

import tensorir as tir


def several(n=6):
    """A sum and a difference."""
    a, b = tir.placeholder((n, n + 1), name="a"), tir.placeholder((n, n + 1), name="b")
    return tir.compute((n, n + 1), lambda i, j: (a[i, j] + b[i, j], a[i, j] - b[i, j]), name="both")


def scaled():
    """Numbers of several types as arguments."""
    x = tir.placeholder((5, 7), name="x")
    factor, shift, on = tir.scalar("factor"), tir.scalar("shift", "int32"), tir.scalar("on", "bool")
    return tir.compute((5, 7), lambda i, j: tir.where(on, x[i, j] * factor + tir.cast(shift, "float32"), 0), name="y")


def gathered():
    """Rows by index."""
    table, at = tir.placeholder((10, 8), name="table"), tir.placeholder((6,), "int32", name="at")
    return tir.compute((6, 8), lambda i, j: table[at[i], j], name="rows")


def without_axes():
    """A number as a tensor, and a sum that is one."""
    x, factor = tir.placeholder((37,), "float64", name="x"), tir.placeholder((), "float64", name="factor")
    k = tir.reduce_axis(37, name="k")
    return tir.compute((), lambda: tir.sum(x[k] * factor[()], axis=k), name="total")


def small(shape, dtype, seed):
    """Small integers of any type."""
    values = np.random.default_rng(seed).integers(-3, 4, shape)
    return np.abs(values).astype(dtype) if np.dtype(dtype).kind in "ub" else values.astype(dtype)


def workloads():
    """Name -> workload, template or None, whether weights are packed once."""
    conv = dict(n=1, c=8, h=6, w=7, k=8, r=3, s=3, pad=1)
    return {
        "matmul": (tir.ops.matmul(m=12, n=10, k=8), None),
        "matmul-float16": (tir.ops.matmul(m=12, n=10, k=8, dtype="float16"), None),
        "matmul-prepacked": (tir.ops.matmul(m=12, n=16, k=8, prepack=True), None),
        "matmul-batched": (tir.ops.matmul(m=6, n=5, k=4, batch=3), None),
        "conv2d-nchw": (tir.ops.conv2d(**conv, bias=True), None),
        "conv2d-nhwc": (tir.ops.conv2d(**conv, layout="NHWC"), None),
        "depthwise": (tir.ops.conv2d(**conv, groups=8), None),
        "winograd": (tir.ops.conv2d(**conv, prepack=True), "cpu_winograd"),
        "grouped": (tir.ops.conv2d(**conv, groups=2), None),
    }
