"""Halide's apps in Halide's Python bindings, without schedules: dimensions are (columns, rows, channels)."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import halide as hl
from apps.declared import (
    ALPHA,
    BELL,
    CELL,
    LEVELS,
    MEGAPIXEL,
    PATCH,
    PYRAMID,
    RADIUS,
    SCALE,
    SEARCH,
    SIGMA,
    STAGES,
)

x, y, c = hl.Var("x"), hl.Var("y"), hl.Var("c")
Formulation = Callable[..., Any]


def func(name: str, at: tuple[Any, ...], value: Any) -> Any:
    """A Func of a name, defined as ``value`` at ``at``."""
    f = hl.Func(name)
    f[at] = value
    return f


def f32(value: float) -> Any:
    """A constant of 32 bits."""
    return hl.f32(value)


def blur(a: Any) -> Any:
    across = func("across", (x, y), (a[x, y] + a[x + 1, y] + a[x + 2, y]) // hl.u16(3))
    return func("y", (x, y), (across[x, y] + across[x, y + 1] + across[x, y + 2]) // hl.u16(3))


def gray(a: Any) -> Any:
    return func("gray", (x, y), f32(0.299) * a[x, y, 0] + f32(0.587) * a[x, y, 1] + f32(0.114) * a[x, y, 2])


def harris(a: Any) -> Any:
    g = gray(a)

    def derivative(dx: int, dy: int) -> Any:

        def at(s: int, t: int) -> Any:
            return g[x + 1 + s * dx + t * dy, y + 1 + s * dy + t * dx]

        return sum((at(1, t) - at(-1, t)) * f32(2 - abs(t)) for t in (-1, 0, 1)) * f32(1 / 12)

    iy, ix = func("iy", (x, y), derivative(0, 1)), func("ix", (x, y), derivative(1, 0))

    def summed(p: Any, q: Any, name: str) -> Any:
        product = func(name, (x, y), p[x, y] * q[x, y])
        return func(f"s_{name}", (x, y), sum(product[x + s, y + t] for t in range(3) for s in range(3)))

    xx, yy, xy = summed(ix, ix, "xx"), summed(iy, iy, "yy"), summed(ix, iy, "xy")
    trace = xx[x, y] + yy[x, y]
    return func("y", (x, y), xx[x, y] * yy[x, y] - xy[x, y] * xy[x, y] - f32(0.04) * trace * trace)


def max_filter(a: Any) -> Any:
    r = hl.RDom([(0, 2 * RADIUS + 1), (0, 2 * RADIUS + 1)])
    dx, dy = r.x - RADIUS, r.y - RADIUS
    r.where(dx * dx + dy * dy <= RADIUS * RADIUS)
    return func("y", (x, y, c), hl.maximum(a[x + r.x, y + r.y, c]))


def max_filter_doubled(a: Any) -> Any:
    """By columns of the disc, each the larger of two ranges whose lengths are powers of two, as Halide's app does."""
    log = [a]
    for n in range((2 * RADIUS + 1).bit_length() - 1):
        log.append(func(f"log{n}", (x, y, c), hl.max(log[-1][x, y, c], log[-1][x, y + (1 << n), c])))
    found = None
    for v in range(-RADIUS, RADIUS + 1):
        half = math.isqrt(RADIUS * RADIUS - v * v)
        level = (2 * half + 1).bit_length() - 1
        first, last = RADIUS - half, RADIUS + half + 1 - (1 << level)
        column = hl.max(log[level][x + RADIUS + v, y + first, c], log[level][x + RADIUS + v, y + last, c])
        found = column if found is None else hl.max(found, column)
    return func("y", (x, y, c), found)


def total(terms: Iterable[Any]) -> Any:
    """Sum of some terms, without a zero."""
    return functools.reduce(operator.add, terms)


def unsharp(a: Any) -> Any:
    g = gray(a)
    down = func("down", (x, y), total(f32(BELL[n]) * g[x, y + n] for n in range(7)))
    blurred = func("blurred", (x, y), total(f32(BELL[n]) * down[x + n, y] for n in range(7)))
    centre = g[x + 3, y + 3]
    ratio = func("ratio", (x, y), (f32(2) * centre - blurred[x, y]) / (centre + f32(0.01)))
    return func("y", (x, y, c), ratio[x, y] * a[x + 3, y + 3, c])


def nl_means(a: Any) -> Any:
    q, r = hl.Var("q"), hl.Var("r")
    p, s = PATCH // 2, SEARCH // 2
    channel, patch = hl.RDom([(0, 3)]), hl.RDom([(0, PATCH)])
    window = hl.RDom([(0, SEARCH), (0, SEARCH)])
    away = a[x + s, y + s, channel.x] - a[x + r, y + q, channel.x]
    d = func("d", (x, y, r, q), hl.sum(away * away))
    rows = func("rows", (x, y, r, q), hl.sum(d[x, y + patch.x, r, q]))
    far = func("far", (x, y, r, q), hl.sum(rows[x + patch.x, y, r, q]))
    weight = func("w", (x, y, r, q), hl.exp(f32(-1 / (SIGMA * SIGMA * PATCH * PATCH)) * far[x, y, r, q]))
    weights = func("total", (x, y), hl.sum(weight[x, y, window.x, window.y]))
    mixed = func(
        "mixed", (x, y, c), hl.sum(weight[x, y, window.x, window.y] * a[x + p + window.x, y + p + window.y, c])
    )
    return func("y", (x, y, c), mixed[x, y, c] / weights[x, y])


def stencil_chain(a: Any) -> Any:
    made = a
    for n in range(STAGES):
        terms = (hl.u16((s + 1) * (t + 1)) * made[x + t, y + s] for s in range(5) for t in range(5))
        made = func(f"y{n}", (x, y), total(terms))
    return made


def bilateral_grid(a: Any) -> Any:
    t, (h, w), k, o = CELL, MEGAPIXEL, hl.Var("k"), hl.Var("o")
    cell, image = hl.RDom([(0, t), (0, t)]), hl.BoundaryConditions.repeat_edge(a, [(0, w), (0, h)])
    pixel = image[x * t + cell.x - t // 2, y * t + cell.y - t // 2]
    grid = hl.Func("grid")
    grid[x, y, k, o] = f32(0)
    at = hl.clamp(hl.i32(pixel * f32(LEVELS) + f32(0.5)), 0, LEVELS + 1)
    grid[x, y, at, o] += hl.select(o == 0, pixel, f32(1))
    here = hl.BoundaryConditions.constant_exterior(
        grid, f32(0), [(0, w // t + 1), (0, h // t + 1), (0, LEVELS + 2), (0, 2)]
    )
    bz = func("bz", (x, y, k, o), here[x, y, k - 1, o] + here[x, y, k, o] * f32(2) + here[x, y, k + 1, o])
    by = func("by", (x, y, k, o), bz[x, y - 1, k, o] + bz[x, y, k, o] * f32(2) + bz[x, y + 1, k, o])
    bx = func("bx", (x, y, k, o), by[x - 1, y, k, o] + by[x, y, k, o] * f32(2) + by[x + 1, y, k, o])
    zv = a[x, y] * f32(LEVELS)
    zi = hl.clamp(hl.i32(zv), 0, LEVELS)
    zf, xf, yf = zv - hl.f32(zi), hl.f32(x % t) / f32(t), hl.f32(y % t) / f32(t)

    def row(s: int, n: int) -> Any:
        return hl.lerp(bx[x // t, y // t + s, zi + n, o], bx[x // t + 1, y // t + s, zi + n, o], xf)

    smooth = func(
        "smooth", (x, y, o), hl.lerp(hl.lerp(row(0, 0), row(1, 0), yf), hl.lerp(row(0, 1), row(1, 1), yf), zf)
    )
    return func("y", (x, y), smooth[x, y, 0] / smooth[x, y, 1])


def hist(a: Any) -> Any:
    h, w = MEGAPIXEL
    r, g, b = (hl.f32(a[x, y, n]) for n in range(3))
    luma = func("luma", (x, y), hl.u8(f32(0.299) * r + f32(0.587) * g + f32(0.114) * b))
    image, i = hl.RDom([(0, w), (0, h)]), hl.RDom([(1, 255)])
    bins, cdf = hl.Func("bins"), hl.Func("cdf")
    bins[x] = hl.i32(0)
    bins[hl.i32(luma[image.x, image.y])] += hl.i32(1)
    cdf[x] = bins[0]
    cdf[i.x] = cdf[i.x - 1] + bins[i.x]
    to = hl.f32(cdf[hl.i32(luma[x, y])]) * f32(255 / (h * w))
    value = to + (hl.f32(a[x, y, c]) - hl.f32(luma[x, y]))
    return func("y", (x, y, c), hl.u8(hl.clamp(value, f32(0), f32(255))))


def resize(a: Any) -> Any:
    (h, w), k, n = (480, 640), hl.Var("k"), hl.RDom([(0, 4)])
    image = hl.BoundaryConditions.repeat_edge(a, [(0, w), (0, h), (0, 3)])

    def weights(v: Any, name: str) -> tuple[Any, Any]:
        """First tap of an output, and its weights."""
        at = (hl.f32(v) + f32(0.5)) * f32(1 / SCALE) - f32(0.5)
        first = hl.i32(hl.floor(at)) - 1
        far = hl.abs(hl.f32(first + k) - at)
        inner = (f32(1.5) * far - f32(2.5)) * far * far + f32(1)
        outer = ((f32(-0.5) * far + f32(2.5)) * far - f32(4)) * far + f32(2)
        raw = func(f"raw{name}", (v, k), hl.select(far < f32(1), inner, hl.select(far < f32(2), outer, f32(0))))
        whole = func(f"whole{name}", (v,), hl.sum(raw[v, n.x]))
        return first, func(f"weights{name}", (v, k), raw[v, k] / whole[v])

    first, of_rows = weights(y, "y")
    down = func("down", (x, y, c), total(of_rows[y, s] * image[x, first + s, c] for s in range(4)))
    first, of_columns = weights(x, "x")
    return func("y", (x, y, c), total(of_columns[x, s] * down[first + s, y, c] for s in range(4)))


def interpolate(a: Any) -> Any:
    h, w = MEGAPIXEL
    fine = [func("f0", (x, y, c), hl.select(c == 3, f32(1), a[x, y, c]) * a[x, y, 3])]
    for n in range(1, PYRAMID):
        f, p, q = fine[-1], h >> (n - 1), w >> (n - 1)
        d = func(f"across{n}", (x, y, c), (
            f[hl.clamp(2 * x - 1, 0, q - 1), y, c] + f[2 * x, y, c] * f32(2) + f[2 * x + 1, y, c]) * f32(0.25)
        )  # fmt: skip
        fine.append(func(f"f{n}", (x, y, c), (
            d[x, hl.clamp(2 * y - 1, 0, p - 1), c] + d[x, 2 * y, c] * f32(2) + d[x, 2 * y + 1, c]) * f32(0.25)
        ))  # fmt: skip
    made = fine[-1]
    for n in reversed(range(PYRAMID - 1)):
        f, p, q = fine[n], h >> n, w >> n
        last_x, last_y = hl.clamp((x + 1) // 2, 0, q // 2 - 1), hl.clamp((y + 1) // 2, 0, p // 2 - 1)
        u = func(f"u{n}", (x, y, c), (made[x // 2, y, c] + made[last_x, y, c]) * f32(0.5))
        coarse = (u[x, y // 2, c] + u[x, last_y, c]) * f32(0.5)
        made = func(f"m{n}", (x, y, c), f[x, y, c] + (f32(1) - f[x, y, 3]) * coarse)
    return func("y", (x, y, c), made[x, y, c] / made[x, y, 3])


def conv_layer(image: Any, f: Any, b: Any) -> Any:
    n, r = hl.Var("n"), hl.RDom([(0, 3), (0, 3), (0, 64)])
    conv = hl.Func("conv")
    conv[x, y, c, n] = b[c]
    conv[x, y, c, n] += f[r.x, r.y, r.z, c] * image[x + r.x, y + r.y, r.z, n]
    return func("y", (x, y, c, n), hl.max(conv[x, y, c, n], f32(0)))


def depthwise_separable_conv(image: Any, d: Any, p: Any, b: Any) -> Any:
    n, r, ch = hl.Var("n"), hl.RDom([(0, 3), (0, 3)]), hl.RDom([(0, 32)])
    deep, point = hl.Func("deep"), hl.Func("point")
    deep[c, x, y, n] = f32(0)
    deep[c, x, y, n] += image[c, x + r.x, y + r.y, n] * d[c, r.x, r.y]
    point[c, x, y, n] = b[c]
    point[c, x, y, n] += deep[ch.x, x, y, n] * p[c, ch.x]
    return func("y", (c, x, y, n), hl.max(point[c, x, y, n], f32(0)))


def iir_blur(a: Any) -> Any:
    def down_and_up(image: Any, rows: int, name: str) -> Any:
        f, r = hl.Func(name), hl.RDom([(1, rows - 1)])
        f[x, y, c] = hl.undef(hl.Float(32))
        f[x, 0, c] = image[x, 0, c]
        f[x, r.x, c] = f32(1 - ALPHA) * f[x, r.x - 1, c] + f32(ALPHA) * image[x, r.x, c]
        back = rows - 1 - r.x
        f[x, back, c] = f32(1 - ALPHA) * f[x, back + 1, c] + f32(ALPHA) * f[x, back, c]
        return func(f"{name}_turned", (x, y, c), f[y, x, c])

    return down_and_up(down_and_up(a, 512, "columns"), 768, "rows")


def camera_pipe(raw: Any, matrix: Any, curve: Any) -> Any:
    around = [raw[x + 2 + t, y + 2 + s] for s, t in ((-2, 0), (2, 0), (0, -2), (0, 2))]
    least, most = functools.reduce(hl.min, around), functools.reduce(hl.max, around)
    cold = func("cold", (x, y), hl.min(hl.max(raw[x + 2, y + 2], least), most))

    def at(s: int, t: int) -> Any:
        return cold[x + 1 + t, y + 1 + s]

    one, two = hl.i16(1), hl.i16(2)
    cross = (at(-1, 0) + at(1, 0) + at(0, -1) + at(0, 1)) >> two
    corners = (at(-1, -1) + at(-1, 1) + at(1, -1) + at(1, 1)) >> two
    row, column = (at(0, -1) + at(0, 1)) >> one, (at(-1, 0) + at(1, 0)) >> one
    top, left = (y % 2) == 0, (x % 2) == 0
    red = hl.select(top, hl.select(left, at(0, 0), row), hl.select(left, column, corners))
    green = hl.select(((x + y) % 2) == 0, cross, at(0, 0))
    blue = hl.select(top, hl.select(left, corners, column), hl.select(left, row, at(0, 0)))
    rgb = [func(f"rgb{n}", (x, y), colour) for n, colour in enumerate((red, green, blue))]
    mixed = total(matrix[n, c] * hl.f32(rgb[n][x, y]) for n in range(3)) + matrix[3, c]
    curved = func("curved", (x, y, c), curve[hl.clamp(hl.i32(mixed), 0, 1023)])

    def near(s: int, t: int) -> Any:
        return hl.i16(curved[x + 1 + t, y + 1 + s, c])

    blurred = (near(-1, 0) + near(1, 0) + near(0, -1) + near(0, 1)) >> two
    value = near(0, 0) + ((near(0, 0) - blurred) >> one)
    return func("y", (x, y, c), hl.u8(hl.clamp(value, hl.i16(0), hl.i16(255))))


FORMULATIONS: dict[str, tuple[Formulation, ...]] = {
    f.__name__: (f,) for f in (
        blur, unsharp, harris, max_filter, nl_means, stencil_chain, bilateral_grid, camera_pipe, hist, resize,
        interpolate, conv_layer, depthwise_separable_conv, iir_blur,
    )
}  # fmt: skip
FORMULATIONS["max_filter"] += (max_filter_doubled,)
"""Formulations of each app, the plain one first."""
