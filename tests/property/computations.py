"""The computations that random schedules are drawn for: every sort of access, reduction and result, small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorir as tir


@dataclass(frozen=True)
class Computation:
    """A computation: ``make(*extents, dtype)`` declares it.

    exact: whether reassociation leaves its numbers (not only its field elements) unchanged
    """

    make: Callable[..., Any]
    rank: int
    dtypes: tuple[str, ...] = ("float32", "int32", "float64", "int8")
    exact: bool = True


def matmul(m, n, k, dtype):
    A, B = tir.placeholder((m, k), dtype, name="A"), tir.placeholder((k, n), dtype, name="B")
    kk = tir.reduce_axis(k, name="k")
    return tir.compute((m, n), lambda i, j: tir.sum(A[i, kk] * B[kk, j], axis=kk), name="C")


TERMS = (
    lambda a, b: ~a * ~b, lambda a, b: (a ^ 5) | b, lambda a, b: tir.where(~(a > 2), b, 1), lambda a, b: a * b + 1,
    tir.maximum, lambda a, b: tir.abs(a - b), lambda a, b: -a * b, lambda a, b: (a + 1) * (b - 1),
)  # fmt: skip
"""Terms that are not all 0 where what they read is."""


def terms(m, n, k, dtype):
    A, B = tir.placeholder((m, k), dtype, name="A"), tir.placeholder((k, n), dtype, name="B")
    kk, of = tir.reduce_axis(k, name="k"), TERMS[(m + 2 * n + 3 * k) % len(TERMS)]
    return tir.compute((m, n), lambda i, j: tir.sum(of(A[i, kk], B[kk, j]), axis=kk), name="C")


def scaled_matmul(m, n, k, dtype):
    A, B = tir.placeholder((k, m), dtype, name="A"), tir.placeholder((n, k), dtype, name="B")
    kk = tir.reduce_axis(k, name="k")
    P = tir.compute((k, m), lambda r, i: A[r, i] * 2 + 1, name="P")
    return tir.compute((m, n), lambda i, j: tir.sum(P[kk, i] * B[j, kk], axis=kk), name="C")


def epilogue(m, n, k, dtype):
    A, B = tir.placeholder((m, k), dtype, name="A"), tir.placeholder((k, n), dtype, name="B")
    v = tir.placeholder((n,), dtype, name="v")
    kk = tir.reduce_axis(k, name="k")
    C = tir.compute((m, n), lambda i, j: tir.sum(A[i, kk] * B[kk, j], axis=kk), name="C")
    return tir.compute((m, n), lambda i, j: tir.maximum(C[i, j] + v[j], 0), name="D")


def two_matmuls(m, n, k, dtype):
    A, B = tir.placeholder((m, k), dtype, name="A"), tir.placeholder((k, n), dtype, name="B")
    kk, jj = tir.reduce_axis(k, name="k"), tir.reduce_axis(n, name="l")
    C = tir.compute((m, n), lambda i, j: tir.sum(A[i, kk] * B[kk, j], axis=kk), name="C")
    return tir.compute((m, k), lambda i, j: tir.sum(C[i, jj] * B[j, jj], axis=jj), name="D")


def window(b, h, _, dtype):
    X = tir.placeholder((b, h), dtype, name="X")
    W = tir.placeholder((3,), dtype, name="W")
    r = tir.reduce_axis(3, name="r")
    P = tir.compute((b, h + 2), lambda n, i: X.get(n, i - 1, fill=0), name="P")
    Y = tir.compute((b, h), lambda n, i: tir.sum(P[n, i + r] * W[r], axis=r), name="Y")
    return tir.compute((b, h), lambda n, i: tir.where(Y[n, i] > 0, Y[n, i], 0), name="Z")


def conv2d(c, h, k, dtype):
    X, W = tir.placeholder((1, c, h, 5), dtype, name="X"), tir.placeholder((k, c, 3, 2), dtype, name="W")
    return tir.nn.conv2d(X, W, stride=2, pad=1, name="Y")


def pool(m, n, k, dtype):
    X = tir.placeholder((2 * m + k, n), dtype, name="X")
    r = tir.reduce_axis(k, name="r")
    return tir.compute((m, n), lambda i, j: tir.max(X[2 * i + r, j], axis=r), name="Y")


def padded_pool(m, n, k, dtype):
    X = tir.placeholder((m, n), dtype, name="X")
    r = tir.reduce_axis(k, name="r")
    return tir.compute((m, n), lambda i, j: tir.max(X.get(i + r - k // 2, j, fill=-3), axis=r), name="Y")


def chain(m, n, _, dtype):
    X = tir.placeholder((m, n), dtype, name="X")
    Y = tir.compute((n, m), lambda p, q: X[m - 1 - q, p] + 1, name="Y")
    Z = tir.compute((m, n), lambda i, j: Y[j, i] * X[i, j], name="Z")
    return tir.compute((m, n), lambda i, j: Z[i, n - 1 - j] - Y[j, i], name="O")


def upsample(m, n, _, dtype):
    X = tir.placeholder((m, n), dtype, name="X")
    Y = tir.compute((2 * m, n), lambda i, j: X[i // 2, (j + i) % n], name="Y")
    return tir.compute((2 * m, n), lambda i, j: tir.where(i % 3 < 1, Y[i, j], Y[i, j] * 2), name="Z")


def argmin(m, k, _, dtype):
    X = tir.placeholder((m, k), dtype, name="X")
    r = tir.reduce_axis(k, name="r")
    return tir.compute((m,), lambda i: tir.argmin(X[i, r], axis=r), name="Y")


def best_two(m, k, n, dtype):
    X = tir.placeholder((m, k), dtype, name="X")
    r = tir.reduce_axis(k, name="r")
    f = tir.combiner(lambda a, b: (a[0] + b[0], tir.maximum(a[1], b[1])), (0, -100))
    low, high = tir.compute((m,), lambda i: f((X[i, r], X[i, r]), axis=r), name="S")
    return tir.compute((m, n), lambda i, j: low[i] + high[i] + j, name="T")


def product_where(m, k, _, dtype):
    X = tir.placeholder((m, k), dtype, name="X")
    r = tir.reduce_axis(k, name="r")
    return tir.compute((m,), lambda i: tir.sum(X[i, r], axis=r, where=X[i, r] > 0), name="Y")


def anywhere(m, k, n, dtype):
    X = tir.placeholder((m, k), dtype, name="X")
    r = tir.reduce_axis(k, name="r")
    Y = tir.compute((m,), lambda i: tir.any(X[i, r] > 2, axis=r), name="Y")
    return tir.compute((m, n), lambda i, j: tir.where(Y[i], X[i, 0], j), name="Z")


def gather(m, n, k, dtype):
    B, at = tir.placeholder((k, n), dtype, name="B"), tir.placeholder((m,), "int32", name="at")
    G = tir.compute((m, n), lambda p, q: B[at[p], q] * 2, name="G")
    return tir.compute((m, n), lambda p, q: G[p, q] + B[0, q], name="H")


def two_outputs(m, n, _, dtype):
    X = tir.placeholder((m, n), dtype, name="X")
    Y, Z = tir.compute((m, n), lambda i, j: (X[i, j] + 1, X[i, j] * X[i, j]), name="T")
    return tir.compute((m, n), lambda i, j: Y[i, j] + Z[i, j], name="S"), Y


def sums(m, n, k, dtype):
    X = tir.placeholder((m, n, k), dtype, name="X")
    r, q = tir.reduce_axis(n, name="r"), tir.reduce_axis(k, name="q")
    S = tir.compute((m, n), lambda i, j: tir.sum(X[i, j, q], axis=q), name="S")
    return S, tir.compute((m,), lambda i: tir.sum(S[i, r] * 2, axis=r), name="T")


def normalise(m, k, _, dtype):
    X = tir.placeholder((m, k), dtype, name="X")
    r, q = tir.reduce_axis(k, name="r"), tir.reduce_axis(k, name="q")
    M = tir.compute((m,), lambda i: tir.max(X[i, r], axis=r), name="M")
    E = tir.compute((m, k), lambda i, j: tir.exp(X[i, j] - M[i]), name="E")
    S = tir.compute((m,), lambda i: tir.sum(E[i, q], axis=q), name="S")
    return tir.compute((m, k), lambda i, j: E[i, j] / S[i], name="Y")


def constants(m, n, _, dtype):
    W = tir.constant(np.arange(-2, 3).astype(dtype), name="W")
    X = tir.placeholder((m + 4, n), dtype, name="X")
    alpha = tir.scalar("alpha", dtype)
    r = tir.reduce_axis(5, name="r")
    Y = tir.compute((m, n), lambda i, j: tir.sum(X[i + r, j] * W[r], axis=r), name="Y")
    return tir.compute((m, n), lambda i, j: Y[i, j] * alpha, name="Z")


def total(m, n, _, dtype):
    X = tir.placeholder((m, n), dtype, name="X")
    r, q = tir.reduce_axis(m, name="r"), tir.reduce_axis(n, name="q")
    return tir.compute((), lambda: tir.sum(X[r, q], axis=(r, q)), name="Y")


ZOO = {
    "matmul": Computation(matmul, 3),
    "terms": Computation(terms, 3, ("int32", "int8", "uint8")),
    "scaled_matmul": Computation(scaled_matmul, 3),
    "epilogue": Computation(epilogue, 3),
    "two_matmuls": Computation(two_matmuls, 3, ("float32", "int32")),
    "window": Computation(window, 2),
    "conv2d": Computation(conv2d, 3, ("float32", "int32")),
    "pool": Computation(pool, 3),
    "padded_pool": Computation(padded_pool, 3),
    "chain": Computation(chain, 2),
    "upsample": Computation(upsample, 2),
    "argmin": Computation(argmin, 2),
    "best_two": Computation(best_two, 3),
    "product_where": Computation(product_where, 2),
    "anywhere": Computation(anywhere, 3),
    "gather": Computation(gather, 3),
    "two_outputs": Computation(two_outputs, 2),
    "sums": Computation(sums, 3),
    "normalise": Computation(normalise, 2, ("float32", "float64"), exact=False),
    "constants": Computation(constants, 2),
    "total": Computation(total, 2),
}
