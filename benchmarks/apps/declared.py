"""Halide's apps, declared in tensorir: images are planes (channels, rows, columns), padded where windows leave them."""

from __future__ import annotations

from typing import Any

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
        at = lambda s, t: g[i + 1 + s * di + t * dj, j + 1 + s * dj + t * di]
        return sum((2 - abs(t)) * (at(1, t) - at(-1, t)) for t in (-1, 0, 1)) * (1 / 12)

    iy = tir.compute((h + 2, w + 2), lambda i, j: derivative(i, j, 1, 0), name="iy")
    ix = tir.compute((h + 2, w + 2), lambda i, j: derivative(i, j, 0, 1), name="ix")

    def summed(a: Any, b: Any, name: str) -> Any:
        product = tir.compute((h + 2, w + 2), lambda i, j: a[i, j] * b[i, j], name=name)
        at = lambda i, j: sum(product[i + s, j + t] for s in range(3) for t in range(3))
        return tir.compute((h, w), at, name=f"s_{name}")

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
