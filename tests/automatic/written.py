"""Definitions as users write them, of sorts that nobody draws: physics, images, graphs, sequences, numbers of bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorir as tir

LOG_SUM = tir.combiner(
    lambda a, b: (tir.maximum(a[0], b[0]), tir.where(a[0] > b[0], a[1] + b[1] * tir.exp(b[0] - a[0]),
                                                     b[1] + a[1] * tir.exp(a[0] - b[0]))),
    (-1e30, 0), name="log_sum")  # fmt: skip
TWO_LARGEST = tir.combiner(
    lambda a, b: (tir.maximum(a[0], b[0]), tir.maximum(tir.minimum(a[0], b[0]), tir.maximum(a[1], b[1]))),
    (-1e30, -1e30), name="two_largest")  # fmt: skip
TIMES = tir.combiner(
    lambda a, b: (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]), (1, 0), name="times")  # fmt: skip


def given(name: str, *shape: Any, dtype: str = "float32") -> Any:
    return tir.placeholder(shape, dtype, name=name)


def axes(**extents: Any) -> tuple[Any, ...]:
    return tuple(tir.reduce_axis(n, name=name) for name, n in extents.items())


def complex_product() -> Any:
    """Of complex matrices, real and imaginary parts apart."""
    ar, ai, br, bi, (k,) = given("ar", 13, 17), given("ai", 13, 17), given("br", 17, 9), given("bi", 17, 9), axes(k=17)
    re = tir.compute((13, 9), lambda i, j: tir.sum(ar[i, k] * br[k, j] - ai[i, k] * bi[k, j], axis=k), name="re")
    (q,) = axes(q=17)
    return re, tir.compute((13, 9), lambda i, j: tir.sum(ar[i, q] * bi[q, j] + ai[i, q] * br[q, j], axis=q), name="im")


def log_sum_exp() -> Any:
    x, (r,) = given("x", 7, 33), axes(r=33)
    top, total = tir.compute((7,), lambda i: LOG_SUM((x[i, r], 1.0), axis=r), name="t")
    return tir.compute((7,), lambda i: top[i] + tir.log(total[i]), name="y")


def two_largest() -> Any:
    x, (r,) = given("x", 5, 31), axes(r=31)
    return tir.compute((5,), lambda i: TWO_LARGEST((x[i, r], -1e30), axis=r), name="y")


def phases() -> Any:
    """Running products of complex numbers."""
    re, im = given("re", 3, 29), given("im", 3, 29)
    return tir.scan((re, im), axis=1, op=TIMES, name="p")


def life() -> Any:
    """A step of the game of life on a torus."""
    x, (p, q) = given("x", 17, 24, dtype="uint8"), axes(p=3, q=3)
    near = tir.compute((17, 24), lambda i, j: tir.sum(
        tir.cast(x[(i + p + 16) % 17, (j + q + 23) % 24], "int32"), axis=(p, q)), name="near")  # fmt: skip
    alive = lambda i, j: tir.equal(near[i, j], 3) | (tir.equal(near[i, j], 4) & tir.equal(x[i, j], 1))  # noqa: E731
    return tir.compute((17, 24), lambda i, j: tir.where(alive(i, j), 1, 0).astype("uint8"), name="y")


def heat(steps: int = 3) -> Any:
    """Steps of diffusion in three dimensions."""
    u = given("u", 5, 9, 13)
    for n in range(steps):

        def cell(i: Any, j: Any, k: Any, u: Any = u) -> Any:
            at = lambda a, b, c: u.get(i + a, j + b, k + c, fill=0)  # noqa: E731
            near = at(-1, 0, 0) + at(1, 0, 0) + at(0, -1, 0) + at(0, 1, 0) + at(0, 0, -1) + at(0, 0, 1)
            return u[i, j, k] + 0.125 * (near - 6 * u[i, j, k])

        u = tir.compute((5, 9, 13), cell, name=f"u{n}")
    return u


def median() -> Any:
    """Of windows of three, of rows and then of columns."""
    x = given("x", 19, 22)
    middle = lambda a, b, c: tir.maximum(tir.minimum(a, b), tir.minimum(tir.maximum(a, b), c))  # noqa: E731
    row = tir.compute((19, 20), lambda i, j: middle(x[i, j], x[i, j + 1], x[i, j + 2]), name="row")
    return tir.compute((17, 20), lambda i, j: middle(row[i, j], row[i + 1, j], row[i + 2, j]), name="y")


def rotary() -> Any:
    """Halves of heads turned by the angle of their place, and scores of them."""
    q, k, freq, (r,) = given("q", 11, 2, 16), given("k", 11, 2, 16), given("freq", 8), axes(r=16)

    def turned(x: Any, name: str) -> Any:
        def cell(s: Any, h: Any, d: Any) -> Any:
            angle = tir.cast(s, "float32") * freq[d % 8] * 0.01
            other = tir.where(d < 8, -x[s, h, (d + 8) % 16], x[s, h, (d + 8) % 16])
            return x[s, h, d] * tir.cos(angle) + other * tir.sin(angle)

        return tir.compute((11, 2, 16), cell, name=name)

    a, b = turned(q, "qr"), turned(k, "kr")
    return tir.compute((2, 11, 11), lambda h, i, j: tir.sum(a[i, h, r] * b[j, h, r], axis=r), name="y")


def box_filter() -> Any:
    """Means of 5 x 5 by an integral image."""
    x = given("x", 16, 21)
    rows = tir.scan(x, axis=1, op="sum", name="rows")
    whole = tir.scan(rows, axis=0, op="sum", name="whole")
    at = lambda i, j: whole.get(i, j, fill=0)  # noqa: E731
    cell = lambda i, j: (at(i + 4, j + 4) - at(i - 1, j + 4) - at(i + 4, j - 1) + at(i - 1, j - 1)) / 25  # noqa: E731
    return tir.compute((12, 17), cell, name="y")


def nearest_centre() -> Any:
    """Which of some centres each point is nearest to."""
    x, c, (d, j) = given("x", 37, 3), given("c", 7, 3), axes(d=3, j=7)
    far = tir.compute((37, 7), lambda i, j: tir.sum((x[i, d] - c[j, d]) * (x[i, d] - c[j, d]), axis=d), name="far")
    return tir.compute((37,), lambda i: tir.argmin(far[i, j], axis=j), name="y")


def gravity() -> Any:
    x, m, (j, d) = given("x", 23, 3), given("m", 23), axes(j=23, d=3)
    near = tir.compute((23, 23), lambda i, k: tir.sum((x[i, d] - x[k, d]) * (x[i, d] - x[k, d]), axis=d) + 0.5,
                       name="near")  # fmt: skip
    pull = lambda i, a: tir.sum(m[j] * (x[j, a] - x[i, a]) * tir.rsqrt(near[i, j]) / near[i, j], axis=j)  # noqa: E731
    return tir.compute((23, 3), pull, name="y")


def resized() -> Any:
    """A bilinear picture of 1.5 times the size."""
    x = given("x", 3, 8, 10)

    def cell(c: Any, i: Any, j: Any) -> Any:
        y0, x0 = i * 2 // 3, j * 2 // 3
        fy, fx = tir.cast(i * 2 % 3, "float32") / 3, tir.cast(j * 2 % 3, "float32") / 3
        y1, x1 = tir.minimum(y0 + 1, 7), tir.minimum(x0 + 1, 9)
        top = x[c, y0, x0] * (1 - fx) + x[c, y0, x1] * fx
        return top * (1 - fy) + (x[c, y1, x0] * (1 - fx) + x[c, y1, x1] * fx) * fy

    return tir.compute((3, 12, 15), cell, name="y")


def fourier() -> Any:
    """Squares of a row's frequencies."""
    x, (k, q) = given("x", 4, 20), axes(k=20, q=20)
    angle = lambda f, n: tir.cast(f * n % 20, "float32") * 0.31415926  # noqa: E731
    re = tir.compute((4, 11), lambda i, f: tir.sum(x[i, k] * tir.cos(angle(f, k)), axis=k), name="re")
    im = tir.compute((4, 11), lambda i, f: tir.sum(x[i, q] * tir.sin(angle(f, q)), axis=q), name="im")
    return tir.compute((4, 11), lambda i, f: re[i, f] * re[i, f] + im[i, f] * im[i, f], name="y")


def banded() -> Any:
    """Diagonals of a matrix by a vector, three times one after another."""
    (
        a,
        x,
    ) = given("a", 29, 5), given("x", 29)
    for n in range(3):
        (b,) = axes(b=5)
        x = tir.compute((29,), lambda i, x=x, b=b: tir.sum(a[i, b] * x.get(i + b - 2, fill=0), axis=b), name=f"x{n}")
    return x


def sparse_rows() -> Any:
    """Rows of a padded sparse matrix, whose lengths are data, by a matrix."""
    col, val, count = given("col", 12, 9, dtype="int32"), given("val", 12, 9), given("count", 12, dtype="int32")
    x, (r,) = given("x", 14, 10), axes(r=9)
    cell = lambda i, j: tir.sum(val[i, r] * x[col[i, r], j], axis=r, where=r < count[i])  # noqa: E731
    return tir.compute((12, 10), cell, name="y")


def trilinear() -> Any:
    t, x, y, (p, q) = given("t", 6, 7, 9), given("x", 5, 7), given("y", 5, 9), axes(p=7, q=9)
    return tir.compute((5, 6), lambda b, a: tir.sum(t[a, p, q] * x[b, p] * y[b, q], axis=(p, q)), name="z")


def chain() -> Any:
    """Four-index tensors contracted, and a trace of the result."""
    a, b, (c, d, e) = given("a", 3, 4, 5, 6), given("b", 6, 5, 3, 7), axes(c=5, d=6, e=3)
    z = tir.compute((3, 4, 3, 7), lambda i, j, k, m: tir.sum(a[i, j, c, d] * b[d, c, k, m], axis=(c, d)), name="z")
    return tir.compute((4, 7), lambda j, m: tir.sum(z[e, j, e, m], axis=e), name="y")


def kronecker() -> Any:
    a, b = given("a", 3, 5), given("b", 4, 7)
    return tir.compute((12, 35), lambda i, j: a[i // 4, j // 7] * b[i % 4, j % 7], name="y")


def power_iteration() -> Any:
    a, x = given("a", 21, 21), given("x", 21)
    for n in range(2):
        k, r = axes(k=21, r=21)
        y = tir.compute((21,), lambda i, x=x, k=k: tir.sum(a[i, k] * x[k], axis=k), name=f"y{n}")
        norm = tir.compute((), lambda y=y, r=r: tir.max(tir.abs(y[r]), axis=r), name=f"norm{n}")
        x = tir.compute((21,), lambda i, y=y, norm=norm: y[i] / (norm[()] + 1), name=f"x{n}")
    return x


def shuffled() -> Any:
    """Depth to space, and all patches of the picture in columns."""
    x = given("x", 2, 8, 5, 6)
    y = tir.compute((2, 2, 10, 12), lambda n, c, i, j: x[n, c * 4 + i % 2 * 2 + j % 2, i // 2, j // 2], name="y")
    cell = lambda n, r, p: y[n, r // 9, p // 10 + r // 3 % 3, p % 10 + r % 3]  # noqa: E731
    return tir.compute((2, 18, 80), cell, name="z")


def similarity() -> Any:
    """Structural similarity of two pictures by windows of 4."""
    a, b = given("a", 15, 18), given("b", 15, 18)

    def mean(of: Callable[..., Any], name: str) -> Any:
        p, q = axes(p=4, q=4)
        return tir.compute((12, 15), lambda i, j: tir.sum(of(i + p, j + q), axis=(p, q)) / 16, name=name)

    ma, mb = mean(lambda i, j: a[i, j], "ma"), mean(lambda i, j: b[i, j], "mb")
    aa, ab = mean(lambda i, j: a[i, j] * a[i, j], "aa"), mean(lambda i, j: a[i, j] * b[i, j], "ab")

    def cell(i: Any, j: Any) -> Any:
        return (2 * ma[i, j] * mb[i, j] + 1) * (2 * (ab[i, j] - ma[i, j] * mb[i, j]) + 1) / (aa[i, j] + 20)

    return tir.compute((12, 15), cell, name="y")


def hashed() -> Any:
    """Words mixed by shifts and products, and how many of a row are odd."""
    x, (r,) = given("x", 9, 37, dtype="int32"), axes(r=37)
    mix = tir.compute((9, 37), lambda i, j: (x[i, j] ^ (x[i, j] >> 5)) * 9 + (x[i, j] << 3), name="mix")
    odd = tir.compute((9,), lambda i: tir.sum(mix[i, r] & 1, axis=r), name="odd")
    return mix, odd


def truths() -> Any:
    """Whether all, and any, of a row are large; results are bool."""
    x, limit, (r, q) = given("x", 8, 19), given("limit", 8), axes(r=19, q=19)
    every = tir.compute((8,), lambda i: tir.all(x[i, r] > limit[i], axis=r), name="every")
    return every, tir.compute((8,), lambda i: tir.any(x[i, q] > limit[i], axis=q), name="some")


def blended() -> Any:
    """By a parameter, with an extent that is one too."""
    n, t = tir.dim("n", low=1, high=40), tir.scalar("t")
    a, b, (k,) = given("a", n, 6), given("b", n, 6), axes(k=6)
    mixed = tir.compute((n, 6), lambda i, j: a[i, j] * t + b[i, j] * (1 - t), name="mixed")
    return mixed, tir.compute((n,), lambda i: tir.sum(mixed[i, k] * mixed[i, k], axis=k), name="y")


def triangular() -> Any:
    """A lower triangular matrix by its transpose."""
    a, (k,) = given("a", 18, 18), axes(k=18)
    cell = lambda i, j: tir.sum(a[i, k] * a[j, k], axis=k, where=(k <= i) & (k <= j))  # noqa: E731
    return tir.compute((18, 18), cell, name="y")


def message_passing() -> Any:
    """Features of neighbours added to nodes, by edges, and then a layer."""
    x, w, src, dst = (
        given("x", 9, 6),
        given("w", 6, 5),
        given("src", 21, dtype="int32"),
        given("dst", 21, dtype="int32"),
    )
    got = tir.scatter((9, 6), (21, 6), lambda e, f: (dst[e], f), lambda e, f: x[src[e], f], "sum", 0, "got")
    (k,) = axes(k=6)
    return tir.compute((9, 5), lambda i, j: tir.maximum(tir.sum(got[i, k] * w[k, j], axis=k), 0), name="y")


def exponential_mean() -> Any:
    """A moving mean by weights that decay, as a triangular sum."""
    x, (k,) = given("x", 4, 26), axes(k=26)
    cell = lambda b, t: tir.sum(x[b, k] * tir.pow(0.5, tir.cast(t - k, "float32")), axis=k, where=k <= t)  # noqa: E731
    return tir.compute((4, 26), cell, name="y")


WRITTEN: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (
        complex_product, log_sum_exp, two_largest, phases, life, heat, median, rotary, box_filter, nearest_centre,
        gravity, resized, fourier, banded, sparse_rows, trilinear, chain, kronecker, power_iteration, shuffled,
        similarity, hashed, truths, blended, triangular, message_passing, exponential_mean,
    )
}  # fmt: skip
