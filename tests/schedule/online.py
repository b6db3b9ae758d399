"""Attention from plain computes, and its schedules with one pass over the keys, which several tests share."""

from __future__ import annotations

import numpy as np

import tensorir as tir

INF = float("inf")


def attention(n=24, d=4, score=lambda s, b, i, j: s, heads=1, weights=True, keys=None):
    """Softmax of scores times V; ``weights``: a stage P of its own, which both sums read."""
    keys = keys or n
    shapes = {"Q": n, "K": keys, "V": keys}
    Q, K, V = (tir.placeholder((heads, length, d), name=x) for x, length in shapes.items())
    c = tir.reduce_axis(d, name="c")
    j1, j2, j3 = (tir.reduce_axis(keys, name="j") for _ in range(3))
    S = tir.compute((heads, n, keys), lambda b, i, j: tir.sum(Q[b, i, c] * K[b, j, c], axis=c), name="S")
    T = tir.compute((heads, n, keys), lambda b, i, j: score(S[b, i, j], b, i, j), name="T")
    m = tir.compute((heads, n), lambda b, i: tir.max(T[b, i, j1], axis=j1), name="m")
    term = lambda b, i, j: tir.exp(T[b, i, j] - m[b, i])  # noqa: E731
    if weights:
        P = tir.compute((heads, n, keys), term, name="P")
        term = lambda b, i, j: P[b, i, j]  # noqa: E731
    total = tir.compute((heads, n), lambda b, i: tir.sum(term(b, i, j2), axis=j2), name="l")
    O = tir.compute((heads, n, d), lambda b, i, e: tir.sum(term(b, i, j3) * V[b, j3, e], axis=j3), name="O")
    return tir.compute((heads, n, d), lambda b, i, e: O[b, i, e] / total[b, i], name="Y")


def rolled(Y, piece=8, rows=None, target="opencl"):
    """One kernel: all that is stored is of a piece of the keys, and of a block of ``rows`` queries."""
    s = tir.Schedule(Y, target)
    at = ["O.i"]
    if rows:
        at = list(s.split("O.i", [None, rows]))
    ko, ki = s.split("O.j", [None, piece])
    s.reorder("O.b", at[0], ko, *at[1:], "O.e", ki)
    s.rolling("m", into=("l", "O"), at=ko)
    s.compute_at("T", ko).compute_at("S", ko)
    return s.reverse_compute_at("Y", at[0])


def by_numpy(q, k, v, score=lambda s, b, i, j: s):
    """The same in float64, with NumPy's functions."""
    s = np.einsum("bic,bjc->bij", q.astype("float64"), k)
    at = np.ogrid[: s.shape[0], : s.shape[1], : s.shape[2]]
    s = score(s, *at)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bij,bje->bie", p / p.sum(-1, keepdims=True), v)


VARIANTS = {
    "plain": lambda s, b, i, j: s,
    "causal": lambda s, b, i, j: tir.where(j <= i, s, -INF),
    "alibi": lambda s, b, i, j: s + tir.cast(j - i, "float32") * 0.25,
    "window": lambda s, b, i, j: tir.where(tir.all_(j <= i, i - j < 5), s, -INF),
    "soft-cap": lambda s, b, i, j: tir.tanh(s / 4.0) * 4.0,
    "documents": lambda s, b, i, j: tir.where(tir.equal(i // 7, j // 7), s, -INF),
}
NUMPY = {
    "plain": lambda s, b, i, j: s,
    "causal": lambda s, b, i, j: np.where(j <= i, s, -INF),
    "alibi": lambda s, b, i, j: s + (j - i) * 0.25,
    "window": lambda s, b, i, j: np.where((j <= i) & (i - j < 5), s, -INF),
    "soft-cap": lambda s, b, i, j: np.tanh(s / 4) * 4,
    "documents": lambda s, b, i, j: np.where(i // 7 == j // 7, s, -INF),
}
