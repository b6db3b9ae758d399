"""Tutorials of Triton."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from programs import Array, Inputs, Peers, axes, program
from torch.nn import functional

import tensorir as tir


@program("triton/01-vector-add")
def vector_add(given: Inputs) -> tuple[Any, Peers]:
    x, y = given.normal("x", 98432), given.normal("y", 98432)
    return tir.compute((98432,), lambda i: x[i] + y[i], name="z"), {"numpy": np.add, "torch": torch.add}


@program("triton/02-fused-softmax")
def softmax(given: Inputs) -> tuple[Any, Peers]:
    x = given.normal("x", 1823, 781)
    e = np.exp(x - x.max(axis=1, keepdims=True))

    def by_numpy(x: Array) -> Array:
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    return e / e.sum(axis=1, keepdims=True), {"numpy": by_numpy, "torch": lambda x: functional.softmax(x, 1)}


@program("triton/03-matmul-leaky-relu")
def matmul_leaky_relu(given: Inputs) -> tuple[Any, Peers]:
    n, (k,) = 512, axes(512)
    a, b = given.normal("a", n, n, dtype="float16"), given.normal("b", n, n, dtype="float16")
    f = lambda x: tir.cast(x, "float32")  # noqa: E731
    c = tir.compute((n, n), lambda i, j: tir.sum(f(a[i, k]) * f(b[k, j]), axis=k), name="c")
    y = tir.compute((n, n), lambda i, j: tir.cast(tir.where(c[i, j] >= 0, c[i, j], c[i, j] * 0.01), "float16"), name="y")

    def by_numpy(a: Array, b: Array) -> Array:
        c = a.astype("float32") @ b.astype("float32")
        return np.where(c >= 0, c, c * np.float32(0.01)).astype("float16")

    return y, {
        "numpy": by_numpy,
        "torch": lambda a, b: functional.leaky_relu(a @ b),
        "torch float32": lambda a, b: functional.leaky_relu(a.float() @ b.float()).half(),
    }


@program("triton/05-layer-norm-fwd")
def layer_norm(given: Inputs) -> tuple[Any, Peers]:
    m, n, (r, q) = 512, 1024, axes(1024, 1024)
    x, w, b = given.normal("x", m, n), given.normal("w", n), given.normal("b", n)
    mean = tir.compute((m,), lambda i: tir.sum(x[i, r], axis=r) / n, name="mean")
    var = tir.compute((m,), lambda i: tir.sum((x[i, q] - mean[i]) * (x[i, q] - mean[i]), axis=q) / n, name="var")
    y = tir.compute((m, n), lambda i, j: (x[i, j] - mean[i]) * tir.rsqrt(var[i] + 1e-5) * w[j] + b[j], name="y")

    def by_numpy(x: Array, w: Array, b: Array) -> Array:
        far = x - x.mean(1, keepdims=True)
        return far / np.sqrt((far * far).mean(1, keepdims=True) + np.float32(1e-5)) * w + b

    return y, {"numpy": by_numpy, "torch": lambda x, w, b: functional.layer_norm(x, (n,), w, b)}
