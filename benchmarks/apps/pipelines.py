"""Halide's apps in Halide's Python bindings, without schedules: dimensions are (columns, rows, channels)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import halide as hl

from apps.declared import RADIUS

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
        at = lambda s, t: g[x + 1 + s * dx + t * dy, y + 1 + s * dy + t * dx]
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
    r, t = RADIUS, hl.Var("t")
    log, levels = hl.Func("log"), (2 * r + 1).bit_length()
    log[x, y, c, t] = hl.undef(hl.Float(32))
    log[x, y, c, 0] = a[x, y, c]
    step = hl.RDom([(1, levels - 1)])
    log[x, y, c, step] = hl.max(log[x, y, c, step - 1], log[x, y + (hl.i32(1) << (step - 1)), c, step - 1])
    half = hl.Func("half")
    half[t] = hl.i32(hl.floor(hl.sqrt(hl.f32(r * r - t * t) + f32(0.5))))
    n = 2 * hl.clamp(half[t - r], 0, r) + 1
    level = hl.i32(31) - hl.i32(hl.count_leading_zeros(hl.u32(n)))
    level = hl.clamp(level, 0, levels - 1)
    first = y + r - hl.clamp(half[t - r], 0, r)
    last = first + n - (hl.i32(1) << level)
    column = func("column", (x, y, c, t), hl.max(log[x, first, c, level], log[x, last, c, level]))
    v = hl.RDom([(0, 2 * r + 1)])
    return func("y", (x, y, c), hl.maximum(column[x + v, y, c, v]))


FORMULATIONS: dict[str, tuple[Formulation, ...]] = {
    "blur": (blur,), "harris": (harris,), "max_filter": (max_filter, max_filter_doubled),
}  # fmt: skip
