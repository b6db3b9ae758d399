"""Halide's apps, declared in tensorir: images are planes (channels, rows, columns), padded where windows leave them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tensorir as tir

MEGAPIXEL = (768, 1280)


def blur() -> Any:
    """Three neighbours along rows, then along columns, in 16-bit integers."""
    h, w = MEGAPIXEL
    a = tir.placeholder((h + 2, w + 2), "uint16", name="a")
    x = tir.compute((h + 2, w), lambda i, j: (a[i, j] + a[i, j + 1] + a[i, j + 2]) // 3, name="x")
    return tir.compute((h, w), lambda i, j: (x[i, j] + x[i + 1, j] + x[i + 2, j]) // 3, name="y")


def gray(a: Any) -> Any:
    """Luma of three planes."""
    _, h, w = a.shape
    return tir.compute((h, w), lambda i, j: 0.299 * a[0, i, j] + 0.587 * a[1, i, j] + 0.114 * a[2, i, j], name="gray")


def harris() -> Any:
    """Corners: Sobel's derivatives, sums of their products over 3 x 3, determinant less a part of the squared trace."""
    h, w = MEGAPIXEL
    g = gray(tir.placeholder((3, h + 4, w + 4), name="a"))

    def derivative(i: Any, j: Any, di: int, dj: int) -> Any:
        """The difference along (di, dj), smoothed across."""

        def at(s: int, t: int) -> Any:
            return g[i + 1 + s * di + t * dj, j + 1 + s * dj + t * di]

        return sum((2 - abs(t)) * (at(1, t) - at(-1, t)) for t in (-1, 0, 1)) * (1 / 12)

    iy = tir.compute((h + 2, w + 2), lambda i, j: derivative(i, j, 1, 0), name="iy")
    ix = tir.compute((h + 2, w + 2), lambda i, j: derivative(i, j, 0, 1), name="ix")

    def summed(a: Any, b: Any, name: str) -> Any:
        product = tir.compute((h + 2, w + 2), lambda i, j: a[i, j] * b[i, j], name=name)
        return tir.compute(
            (h, w), lambda i, j: sum(product[i + s, j + t] for s in range(3) for t in range(3)), name=f"s_{name}"
        )

    xx, yy, xy = summed(ix, ix, "xx"), summed(iy, iy, "yy"), summed(ix, iy, "xy")

    def corner(i: Any, j: Any) -> Any:
        trace = xx[i, j] + yy[i, j]
        return xx[i, j] * yy[i, j] - xy[i, j] * xy[i, j] - 0.04 * trace * trace

    return tir.compute((h, w), corner, name="y")


RADIUS = 13


def max_filter() -> Any:
    """The largest value in a disc."""
    (h, w), r = MEGAPIXEL, RADIUS
    h, w = h // 2, w // 2
    a = tir.placeholder((3, h + 2 * r, w + 2 * r), name="a")
    u, v = tir.reduce_axis(2 * r + 1, name="u"), tir.reduce_axis(2 * r + 1, name="v")
    inside = (u - r) * (u - r) + (v - r) * (v - r) <= r * r
    return tir.compute((3, h, w), lambda c, i, j: tir.max(a[c, i + u, j + v], axis=(u, v), where=inside), name="y")


def clamped(i: Any, last: int) -> Any:
    """An index within 0 and ``last``."""
    return tir.minimum(tir.maximum(i, 0), last)


BELL = [math.exp(-(n * n) / (2 * 1.5**2)) / (math.sqrt(2 * math.pi) * 1.5) for n in range(-3, 4)]


def unsharp() -> Any:
    """Luma less its blur (7 + 7 taps) is added to it, and colours are scaled by what that changed."""
    h, w = MEGAPIXEL
    a = tir.placeholder((3, h + 6, w + 6), name="a")
    g = gray(a)
    down = tir.compute((h, w + 6), lambda i, j: sum(BELL[n] * g[i + n, j] for n in range(7)), name="down")
    blurred = tir.compute((h, w), lambda i, j: sum(BELL[n] * down[i, j + n] for n in range(7)), name="blurred")
    ratio = tir.compute(
        (h, w), lambda i, j: (2 * g[i + 3, j + 3] - blurred[i, j]) / (g[i + 3, j + 3] + 0.01), name="ratio"
    )
    return tir.compute((3, h, w), lambda c, i, j: ratio[i, j] * a[c, i + 3, j + 3], name="y")


PATCH, SEARCH, SIGMA = 5, 7, 0.12


def nl_means() -> Any:
    """Pixels of a search window, weighted by how alike the patches around them are."""
    (h, w), p, s = (192, 320), PATCH // 2, SEARCH // 2
    m = p + s
    a = tir.placeholder((3, h + 2 * m, w + 2 * m), name="a")
    factor = -1 / (SIGMA * SIGMA * PATCH * PATCH)
    ch, u, v = tir.reduce_axis(3, name="ch"), tir.reduce_axis(PATCH, name="u"), tir.reduce_axis(PATCH, name="v")
    k, l = tir.reduce_axis(SEARCH, name="k"), tir.reduce_axis(SEARCH, name="l")

    def squared(q: Any, r: Any, i: Any, j: Any) -> Any:
        away = a[ch, i + s, j + s] - a[ch, i + q, j + r]
        return tir.sum(away * away, axis=ch)

    d = tir.compute((SEARCH, SEARCH, h + 2 * p, w + 2 * p), squared, name="d")
    rows = tir.compute(
        (SEARCH, SEARCH, h, w + 2 * p), lambda q, r, i, j: tir.sum(d[q, r, i + u, j], axis=u), name="rows"
    )
    weight = tir.compute(
        (SEARCH, SEARCH, h, w), lambda q, r, i, j: tir.exp(factor * tir.sum(rows[q, r, i, j + v], axis=v)), name="w"
    )
    total = tir.compute((h, w), lambda i, j: tir.sum(weight[k, l, i, j], axis=(k, l)), name="total")
    mixed = tir.compute(
        (3, h, w), lambda c, i, j: tir.sum(weight[k, l, i, j] * a[c, i + p + k, j + p + l], axis=(k, l)), name="mixed"
    )
    return tir.compute((3, h, w), lambda c, i, j: mixed[c, i, j] / total[i, j], name="y")


STAGES = 8


def stencil_chain() -> Any:
    """Stages of 5 x 5 taps, one after another, in 16-bit integers."""
    h, w = MEGAPIXEL
    y = tir.placeholder((h + 4 * STAGES, w + 4 * STAGES), "uint16", name="a")
    for n in range(STAGES):
        shape = tuple(x - 4 for x in y.shape)
        y = tir.compute(shape, lambda i, j, y=y: sum(
            (s + 1) * (t + 1) * y[i + s, j + t] for s in range(5) for t in range(5)
        ), name=f"y{n}")  # fmt: skip
    return y


CELL, LEVELS = 8, 10


def bilateral_grid() -> Any:
    """A grid over rows, columns and brightness: pixels are added up in it, it is blurred and read between its cells."""
    (h, w), t, z = (768, 1280), CELL, LEVELS
    a = tir.placeholder((h, w), name="a")
    u, v = tir.reduce_axis(t, name="u"), tir.reduce_axis(t, name="v")

    def histogram(o: Any, i: Any, j: Any, k: Any) -> Any:
        pixel = a[clamped(i * t + u - t // 2, h - 1), clamped(j * t + v - t // 2, w - 1)]
        mine = tir.equal(tir.cast(pixel * z + 0.5, "int32"), k)
        return tir.sum(tir.where(mine, tir.where(tir.equal(o, 0), pixel, 1.0), 0.0), axis=(u, v))

    grid = tir.compute((2, h // t + 1, w // t + 1, z + 2), histogram, name="grid")
    for axis in (3, 1, 2):

        def blurred(*i: Any, grid: Any = grid, axis: int = axis) -> Any:
            def at(d: int) -> Any:
                return grid.get(*(n + d * (m == axis) for m, n in enumerate(i)), fill=0)

            return at(-1) + 2.0 * at(0) + at(1)

        grid = tir.compute(grid.shape, blurred, name=f"blur{axis}")

    def between(o: int, i: Any, j: Any) -> Any:
        zv = a[i, j] * z
        k = clamped(tir.cast(zv, "int32"), z)
        f, g, e = zv - tir.cast(k, "float32"), *(tir.cast(n % t, "float32") * (1 / t) for n in (i, j))

        def mix(x: Any, y: Any, r: Any) -> Any:
            return x * (1 - r) + y * r

        def row(s: int, q: int) -> Any:
            return mix(grid[o, i // t + s, j // t, k + q], grid[o, i // t + s, j // t + 1, k + q], e)

        return mix(mix(row(0, 0), row(1, 0), g), mix(row(0, 1), row(1, 1), g), f)

    return tir.compute((h, w), lambda i, j: between(0, i, j) / between(1, i, j), name="y")


def hist() -> Any:
    """Luma's histogram, and its sums, by which luma is equalised."""
    h, w = MEGAPIXEL
    a = tir.placeholder((3, h, w), "uint8", name="a")

    def luma(i: Any, j: Any) -> Any:
        r, g, b = (tir.cast(a[n, i, j], "float32") for n in range(3))
        return tir.cast(0.299 * r + 0.587 * g + 0.114 * b, "uint8")

    y = tir.compute((h, w), luma, name="luma")
    bins = tir.scatter(
        (256,), over=(h, w), index=lambda i, j: (tir.cast(y[i, j], "int32"),), value=lambda i, j: 1, name="bins"
    )
    cdf = tir.scan(bins, name="cdf")

    def equal(c: Any, i: Any, j: Any) -> Any:
        to = tir.cast(cdf[tir.cast(y[i, j], "int32")], "float32") * (255 / (h * w))
        value = to + (tir.cast(a[c, i, j], "float32") - tir.cast(y[i, j], "float32"))
        return tir.cast(tir.minimum(tir.maximum(value, 0.0), 255.0), "uint8")

    return tir.compute((3, h, w), equal, name="y")


SCALE = 1.7


def resize() -> Any:
    """Bicubic by ``SCALE``, rows first; taps beyond the image are those of its border."""
    h, w = 480, 640
    a = tir.placeholder((3, h, w), name="a")

    def cubic(x: Any) -> Any:
        x = tir.abs(x)
        inner, outer = (1.5 * x - 2.5) * x * x + 1.0, ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
        return tir.where(x < 1.0, inner, tir.where(x < 2.0, outer, 0.0))

    def sampled(n: Any, extent: int, read: Any) -> Any:
        at = (tir.cast(n, "float32") + 0.5) * np.float32(1 / SCALE) - 0.5
        first = tir.cast(tir.floor(at), "int32") - 1
        weights = [cubic(tir.cast(first + k, "float32") - at) for k in range(4)]
        total = weights[0] + weights[1] + weights[2] + weights[3]
        return sum(weights[k] / total * read(clamped(first + k, extent - 1)) for k in range(4))

    H, W = int(h * SCALE), int(w * SCALE)
    down = tir.compute((3, H, w), lambda c, i, j: sampled(i, h, lambda n: a[c, n, j]), name="down")
    return tir.compute((3, H, W), lambda c, i, j: sampled(j, w, lambda n: down[c, i, n]), name="y")


PYRAMID = 6


def interpolate() -> Any:
    """Colours spread to where alpha is 0: a pyramid of premultiplied colours, from coarse to fine."""
    h, w = 768, 1280
    a = tir.placeholder((4, h, w), name="a")
    fine = [tir.compute((4, h, w), lambda c, i, j: tir.where(tir.equal(c, 3), 1.0, a[c, i, j]) * a[3, i, j], name="f0")]
    for n in range(1, PYRAMID):
        f = fine[-1]
        _, p, q = f.shape

        def across(c: Any, i: Any, j: Any, f: Any = f, q: int = q) -> Any:
            return (f[c, i, clamped(2 * j - 1, q - 1)] + 2 * f[c, i, 2 * j] + f[c, i, 2 * j + 1]) * 0.25

        d = tir.compute((4, p, q // 2), across, name=f"across{n}")

        def down(c: Any, i: Any, j: Any, d: Any = d, p: int = p) -> Any:
            return (d[c, clamped(2 * i - 1, p - 1), j] + 2 * d[c, 2 * i, j] + d[c, 2 * i + 1, j]) * 0.25

        fine.append(tir.compute((4, p // 2, q // 2), down, name=f"f{n}"))
    made = fine[-1]
    for n in reversed(range(PYRAMID - 1)):
        f = fine[n]
        _, p, q = f.shape

        def wide(c: Any, i: Any, j: Any, m: Any = made, q: int = q) -> Any:
            return (m[c, i, j // 2] + m[c, i, clamped((j + 1) // 2, q // 2 - 1)]) * 0.5

        u = tir.compute((4, p // 2, q), wide, name=f"u{n}")

        def up(c: Any, i: Any, j: Any, u: Any = u, f: Any = f, p: int = p) -> Any:
            coarse = (u[c, i // 2, j] + u[c, clamped((i + 1) // 2, p // 2 - 1), j]) * 0.5
            return f[c, i, j] + (1.0 - f[3, i, j]) * coarse

        made = tir.compute((4, p, q), up, name=f"m{n}")
    return tir.compute((3, h, w), lambda c, i, j: made[c, i, j] / made[3, i, j], name="y")


def conv_layer() -> Any:
    """3 x 3 over channels that come first, bias and relu."""
    n, c, h, w, k = 4, 64, 64, 80, 64
    x = tir.placeholder((n, c, h + 2, w + 2), name="x")
    f, b = tir.placeholder((k, c, 3, 3), name="f"), tir.placeholder((k,), name="b")
    ch, r, s = tir.reduce_axis(c, name="ch"), tir.reduce_axis(3, name="r"), tir.reduce_axis(3, name="s")
    conv = tir.compute(
        (n, k, h, w), lambda b, m, i, j: tir.sum(x[b, ch, i + r, j + s] * f[m, ch, r, s], axis=(ch, r, s)), name="conv"
    )
    return tir.compute((n, k, h, w), lambda i, m, p, q: tir.maximum(conv[i, m, p, q] + b[m], 0.0), name="y")


def depthwise_separable_conv() -> Any:
    """3 x 3 in each channel, then 1 x 1 over all, bias and relu; channels are last."""
    n, h, w, ci, co = 4, 112, 112, 32, 16
    x, d = tir.placeholder((n, h + 2, w + 2, ci), name="x"), tir.placeholder((3, 3, ci), name="d")
    p, b = tir.placeholder((ci, co), name="p"), tir.placeholder((co,), name="b")
    r, s, ch = tir.reduce_axis(3, name="r"), tir.reduce_axis(3, name="s"), tir.reduce_axis(ci, name="ch")
    deep = tir.compute(
        (n, h, w, ci), lambda b, i, j, c: tir.sum(x[b, i + r, j + s, c] * d[r, s, c], axis=(r, s)), name="deep"
    )
    point = tir.compute((n, h, w, co), lambda b, i, j, c: tir.sum(deep[b, i, j, ch] * p[ch, c], axis=ch), name="point")
    return tir.compute((n, h, w, co), lambda i, m, q, c: tir.maximum(point[i, m, q, c] + b[c], 0.0), name="y")


ALPHA = 0.5


def iir_blur() -> Any:
    """A recurrence down and up the columns, then along the rows, as scans of affine maps."""
    h, w = 512, 768
    a = tir.placeholder((3, h, w), name="a")
    after = tir.combiner(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (1, 0), name="affine", commutative=False)
    y = a
    for axis in (1, 2):
        for back in (False, True):
            name = f"{axis}{'ud'[back]}"
            end = y.shape[axis] - 1 if back else 0

            def first(i: Any, axis: int = axis, end: int = end) -> Any:
                return tir.equal(i[axis], end)

            keep = tir.compute(y.shape, lambda *i, f=first: tir.where(f(i), 0.0, 1 - ALPHA), name=f"keep{name}")
            more = tir.compute(
                y.shape, lambda *i, y=y, f=first: tir.where(f(i), y[i], ALPHA * y[i]), name=f"more{name}"
            )
            y = tir.scan((keep, more), axis=axis, op=after, reverse=back, name=f"scan{name}")[1]
    return y


def camera_pipe() -> Any:
    """Raw pixels of a sensor: hot pixels, colours of neighbours, a matrix, a curve, and sharper; bytes result."""
    h, w = 640, 960
    raw = tir.placeholder((h + 8, w + 8), "int16", name="raw")
    matrix, curve = tir.placeholder((3, 4), name="matrix"), tir.placeholder((1024,), "uint8", name="curve")

    def cold(i: Any, j: Any) -> Any:
        around = [raw[i + 2 + s, j + 2 + t] for s, t in ((-2, 0), (2, 0), (0, -2), (0, 2))]
        least, most = around[0], around[0]
        for x in around[1:]:
            least, most = tir.minimum(least, x), tir.maximum(most, x)
        return tir.minimum(tir.maximum(raw[i + 2, j + 2], least), most)

    d = tir.compute((h + 4, w + 4), cold, name="cold")

    def colours(i: Any, j: Any) -> Any:
        def at(s: int, t: int) -> Any:
            return d[i + 1 + s, j + 1 + t]

        cross = (at(-1, 0) + at(1, 0) + at(0, -1) + at(0, 1)) >> 2
        corners = (at(-1, -1) + at(-1, 1) + at(1, -1) + at(1, 1)) >> 2
        row, column = (at(0, -1) + at(0, 1)) >> 1, (at(-1, 0) + at(1, 0)) >> 1
        top, left = tir.equal(i % 2, 0), tir.equal(j % 2, 0)
        red = tir.where(top, tir.where(left, at(0, 0), row), tir.where(left, column, corners))
        blue = tir.where(top, tir.where(left, corners, column), tir.where(left, row, at(0, 0)))
        return red, tir.where(tir.equal((i + j) % 2, 0), cross, at(0, 0)), blue

    rgb = tir.compute((h + 2, w + 2), colours, name="rgb")

    def corrected(c: Any, i: Any, j: Any) -> Any:
        mixed = sum(matrix[c, n] * tir.cast(rgb[n][i, j], "float32") for n in range(3)) + matrix[c, 3]
        return curve[clamped(tir.cast(mixed, "int32"), 1023)]

    curved = tir.compute((3, h + 2, w + 2), corrected, name="curved")

    def sharp(c: Any, i: Any, j: Any) -> Any:
        def at(s: int, t: int) -> Any:
            return tir.cast(curved[c, i + 1 + s, j + 1 + t], "int16")

        blurred = (at(-1, 0) + at(1, 0) + at(0, -1) + at(0, 1)) >> 2
        value = at(0, 0) + ((at(0, 0) - blurred) >> 1)
        return tir.cast(tir.minimum(tir.maximum(value, 0), 255), "uint8")

    return tir.compute((3, h, w), sharp, name="y")
