"""More definitions as users write them: parts of networks, steps of training, signals, sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from written import axes, given

import tensorir as tir


def experts() -> Any:
    """Each row by the weights of the expert that suits it best."""
    x, gate, w = given("x", 11, 8), given("gate", 8, 4), given("w", 4, 8, 6)
    k, e, r = axes(k=8, e=4, r=8)
    score = tir.compute((11, 4), lambda i, j: tir.sum(x[i, k] * gate[k, j], axis=k), name="score")
    best = tir.compute((11,), lambda i: tir.argmax(score[i, e], axis=e), name="best")
    of = lambda i: tir.minimum(tir.maximum(best[i], 0), 3)  # noqa: E731
    return tir.compute((11, 6), lambda i, j: tir.sum(x[i, r] * w[of(i), r, j], axis=r), name="y")


def grouped_attention() -> Any:
    """Two heads of queries for one of keys, with a bias by distance and lengths that are data."""
    q, k, v, n = given("q", 4, 9, 8), given("k", 2, 13, 8), given("v", 2, 13, 8), given("n", 4, dtype="int32")
    d, t, u, w = axes(d=8, t=13, u=13, w=13)

    dot = tir.compute((4, 9, 13), lambda h, i, j: tir.sum(q[h, i, d] * k[h // 2, j, d], axis=d), name="dot")
    s = tir.compute((4, 9, 13), lambda h, i, j: tir.where(
        j < n[h], dot[h, i, j] * 0.35 - tir.cast(tir.abs(i - j), "float32") * 0.1, -1e9), name="s")  # fmt: skip
    top = tir.compute((4, 9), lambda h, i: tir.max(s[h, i, t], axis=t), name="top")
    e = tir.compute((4, 9, 13), lambda h, i, j: tir.exp(s[h, i, j] - top[h, i]), name="e")
    total = tir.compute((4, 9), lambda h, i: tir.sum(e[h, i, u], axis=u), name="total")
    p = tir.compute((4, 9, 13), lambda h, i, j: e[h, i, j] / total[h, i], name="p")
    return tir.compute((4, 9, 8), lambda h, i, c: tir.sum(p[h, i, w] * v[h // 2, w, c], axis=w), name="y")


def ranks() -> Any:
    """A permutation that sorts, and what it sorts."""
    x, (j,) = given("x", 23), axes(j=23)
    less = lambda i: (x[j] < x[i]) | (tir.equal(x[j], x[i]) & (j < i))  # noqa: E731
    rank = tir.compute((23,), lambda i: tir.sum(tir.where(less(i), 1, 0), axis=j), name="rank")
    place = lambda i: (tir.minimum(tir.maximum(rank[i], 0), 22),)  # noqa: E731
    return rank, tir.scatter((23,), (23,), place, lambda i: x[i], "sum", 0, "y")


def counted() -> Any:
    """How many there are of each number, and how many there are before each."""
    x = given("x", 61, dtype="int32")
    clamp = lambda i: tir.maximum(tir.minimum(x[i], 8), 0)  # noqa: E731
    count = tir.scatter((9,), (61,), lambda i: (clamp(i),), lambda i: tir.cast(1, "int32"), "sum", 0, "count")
    return tir.scan(count, axis=0, op="sum", exclusive=True, name="before")


def memory_cell() -> Any:
    """A step of an LSTM: four gates of two products."""
    x, h, c, b = given("x", 3, 7), given("h", 3, 5), given("c", 3, 5), given("b", 20)
    w, u, k, r = given("w", 7, 20), given("u", 5, 20), *axes(k=7, r=5)
    wx = tir.compute((3, 20), lambda i, j: tir.sum(x[i, k] * w[k, j], axis=k), name="wx")
    uh = tir.compute((3, 20), lambda i, j: tir.sum(h[i, r] * u[r, j], axis=r), name="uh")
    z = tir.compute((3, 20), lambda i, j: wx[i, j] + uh[i, j] + b[j], name="z")
    sigmoid = lambda v: 1 / (1 + tir.exp(-tir.maximum(v, -30.0)))  # noqa: E731
    new = tir.compute((3, 5), lambda i, j: sigmoid(z[i, j + 5]) * c[i, j] + sigmoid(z[i, j]) * tir.tanh(z[i, j + 10]),
                      name="new")  # fmt: skip
    return new, tir.compute((3, 5), lambda i, j: sigmoid(z[i, j + 15]) * tir.tanh(new[i, j]), name="out")


def batch_norm() -> Any:
    """Of a batch by its own moments, a maximum with 0, and pooling."""
    x, g = given("x", 2, 5, 6, 8), given("g", 5)
    n, p, q, m, r, s, a, b = axes(n=2, p=6, q=8, m=2, r=6, s=8, a=2, b=2)
    mean = tir.compute((5,), lambda c: tir.sum(x[n, c, p, q], axis=(n, p, q)) / 96, name="mean")
    far = lambda c: x[m, c, r, s] - mean[c]  # noqa: E731
    var = tir.compute((5,), lambda c: tir.sum(far(c) * far(c), axis=(m, r, s)) / 96, name="var")
    y = tir.compute((2, 5, 6, 8), lambda i, c, j, k: tir.maximum(
        (x[i, c, j, k] - mean[c]) * tir.rsqrt(var[c] + 1) * g[c], 0), name="y")  # fmt: skip
    return tir.compute((2, 5, 3, 4), lambda i, c, j, k: tir.max(y[i, c, j * 2 + a, k * 2 + b], axis=(a, b)), name="z")


def excited() -> Any:
    """Channels scaled by what two small layers make of their means."""
    x, w, u = given("x", 2, 6, 5, 7), given("w", 6, 3), given("u", 3, 6)
    p, q, k, r = axes(p=5, q=7, k=6, r=3)
    mean = tir.compute((2, 6), lambda n, c: tir.sum(x[n, c, p, q], axis=(p, q)) / 35, name="mean")
    few = tir.compute((2, 3), lambda n, c: tir.maximum(tir.sum(mean[n, k] * w[k, c], axis=k), 0), name="few")
    dot = tir.compute((2, 6), lambda n, c: tir.sum(few[n, r] * u[r, c], axis=r), name="dot")
    scale = tir.compute((2, 6), lambda n, c: 1 / (1 + tir.exp(-tir.maximum(dot[n, c], -30.0))), name="scale")
    return tir.compute((2, 6, 5, 7), lambda n, c, i, j: x[n, c, i, j] * scale[n, c], name="y")


def dynamic_range() -> Any:
    """Numbers of 8 bits between the smallest and the largest of each row, and how they are scaled."""
    x, (r, q) = given("x", 7, 30), axes(r=30, q=30)
    low = tir.compute((7,), lambda i: tir.min(x[i, r], axis=r), name="low")
    high = tir.compute((7,), lambda i: tir.max(x[i, q], axis=q), name="high")
    scale = tir.compute((7,), lambda i: (high[i] - low[i] + 1) / 255, name="scale")
    return tir.compute(
        (7, 30), lambda i, j: tir.cast(tir.floor((x[i, j] - low[i]) / scale[i]), "uint8"), name="y"
    ), scale


def gated() -> Any:
    """Two products of the same rows, one of which gates the other, and a third one."""
    x, a, b, c = given("x", 10, 12), given("a", 12, 18), given("b", 12, 18), given("c", 18, 7)
    k, r, t = axes(k=12, r=12, t=18)
    p = tir.compute((10, 18), lambda i, j: tir.sum(x[i, k] * a[k, j], axis=k), name="p")
    q = tir.compute((10, 18), lambda i, j: tir.sum(x[i, r] * b[r, j], axis=r), name="q")
    g = tir.compute((10, 18), lambda i, j: p[i, j] / (1 + tir.exp(-tir.maximum(p[i, j], -30.0))) * q[i, j], name="g")
    return tir.compute((10, 7), lambda i, j: tir.sum(g[i, t] * c[t, j], axis=t), name="y")


def weight_step() -> Any:
    """A gradient of weights and what becomes of these."""
    x, dy, w, m, (b,) = given("x", 9, 11), given("dy", 9, 6), given("w", 6, 11), given("m", 6, 11), axes(b=9)
    g = tir.compute((6, 11), lambda i, j: tir.sum(dy[b, i] * x[b, j], axis=b), name="g")
    new = tir.compute((6, 11), lambda i, j: m[i, j] * 0.5 + g[i, j], name="new")
    return new, tir.compute((6, 11), lambda i, j: w[i, j] - 0.25 * new[i, j], name="out")


def correlated() -> Any:
    a, b, (t,) = given("a", 4, 37), given("b", 4, 37), axes(t=37)
    return tir.compute((4, 11), lambda c, s: tir.sum(a[c, t] * b.get(c, t + s - 5, fill=0), axis=t), name="y")


def window_attention() -> Any:
    """Scores of pixels within windows of 4 x 4, of heads that are parts of channels."""
    x, (d,) = given("x", 2, 8, 12, 6), axes(d=3)

    def at(n: Any, w: Any, p: Any, c: Any) -> Any:
        return x[n, w // 3 * 4 + p // 4, w % 3 * 4 + p % 4, c]

    cell = lambda n, w, h, p, q: tir.sum(at(n, w, p, h * 3 + d) * at(n, w, q, h * 3 + d), axis=d)  # noqa: E731
    return tir.compute((2, 6, 2, 16, 16), cell, name="y")


def packed_bits() -> Any:
    """Signs, eight a byte, and in how many of them rows differ."""
    x, b = given("x", 6, 40), axes(b=8)[0]
    bit = lambda i, j: tir.where(x[i, j * 8 + b] > 0, tir.cast(1, "int32") << tir.cast(b, "int32"), 0)  # noqa: E731
    p = tir.compute((6, 5), lambda i, j: tir.sum(bit(i, j), axis=b), name="p")
    (k,) = axes(k=5)

    def ones(v: Any) -> Any:
        v = v - ((v >> 1) & 85)
        v = (v & 51) + ((v >> 2) & 51)
        return (v + (v >> 4)) & 15

    return tir.compute((6, 6), lambda i, j: tir.sum(ones(p[i, k] ^ p[j, k]), axis=k), name="y")


def decoder() -> Any:
    """A picture of twice the size next to another one, and a convolution of both."""
    x, skip, w = given("x", 1, 3, 5, 6), given("skip", 1, 2, 10, 12), given("w", 4, 5, 3, 3)

    def both(n: Any, c: Any, i: Any, j: Any) -> Any:
        return tir.where(c < 3, x.get(n, c, i // 2, j // 2, fill=0), skip.get(n, c - 3, i, j, fill=0))

    u = tir.compute((1, 5, 10, 12), both, name="u")
    return tir.nn.conv2d(u, w, pad=1, name="y")


def spectrogram() -> Any:
    """Frames that overlap, weighed, by tables of waves."""
    x, win, re, im, (n, m) = given("x", 100), given("win", 16), given("re", 16, 9), given("im", 16, 9), axes(n=16, m=16)
    a = tir.compute((22, 9), lambda f, k: tir.sum(x[f * 4 + n] * win[n] * re[n, k], axis=n), name="a")
    b = tir.compute((22, 9), lambda f, k: tir.sum(x[f * 4 + m] * win[m] * im[m, k], axis=m), name="b")
    return tir.compute((22, 9), lambda f, k: tir.sqrt(a[f, k] * a[f, k] + b[f, k] * b[f, k] + 1), name="y")


def determinants() -> Any:
    x = given("x", 19, 3, 3)

    def cell(i: Any) -> Any:
        minor = lambda a, b: x[i, 1, a] * x[i, 2, b] - x[i, 1, b] * x[i, 2, a]  # noqa: E731
        return x[i, 0, 0] * minor(1, 2) - x[i, 0, 1] * minor(0, 2) + x[i, 0, 2] * minor(0, 1)

    return tir.compute((19,), cell, name="y")


def one_hot() -> Any:
    label, w, (k,) = given("label", 14, dtype="int32"), given("w", 6, 10), axes(k=6)
    return tir.compute((14, 10), lambda i, j: tir.sum(
        tir.where(tir.equal(label[i], k), w[k, j], 0), axis=k), name="y")  # fmt: skip


def mixed_rows() -> Any:
    """Rows by all rows by rows of the same array."""
    x, (k, r) = given("x", 17, 12), axes(k=12, r=17)
    s = tir.compute((17, 17), lambda i, j: tir.sum(x[i, k] * x[j, k], axis=k), name="s")
    return tir.compute((17, 12), lambda i, j: tir.sum(s[i, r] * x[r, j], axis=r), name="y")


def running_range() -> Any:
    """The largest so far less the smallest from there on, of columns."""
    x = given("x", 21, 9)
    top, low = tir.scan(x, axis=0, op="max", name="top"), tir.scan(x, axis=0, op="min", reverse=True, name="low")
    return tir.compute((21, 9), lambda i, j: top[i, j] - low[i, j], name="y")


def drawdown() -> Any:
    """How far each price is below the largest before, at worst, by rows."""
    x, (r,) = given("x", 6, 33), axes(r=33)
    top = tir.scan(x, axis=1, op="max", name="top")
    return tir.compute((6,), lambda i: tir.max(top[i, r] - x[i, r], axis=r), name="y")


NETWORKS: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (
        experts, grouped_attention, ranks, counted, memory_cell, batch_norm, excited, dynamic_range, gated, weight_step,
        correlated, window_attention, packed_bits, decoder, spectrogram, determinants, one_hot, mixed_rows,
        running_range, drawdown,
    )
}  # fmt: skip
