"""Ansor's operators and subgraphs (OSDI'20, section 7.1, and TVM's ``te_workload``), each declared in a few lines.

Convolutions are channels last, as there; ``SMALL`` has awkward extents that can be emulated, ``REAL`` the paper's sort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorir as tir


def axes(**extents: int) -> tuple[Any, ...]:
    return tuple(tir.reduce_axis(n, name=name) for name, n in extents.items())


def given(name: str, *shape: int) -> Any:
    return tir.placeholder(shape, name=name)


def c1d(n: int, h: int, c: int, k: int, r: int, step: int, pad: int) -> Any:
    x, w = given("x", n, h, c), given("w", r, c, k)
    t, i = axes(t=r, i=c)
    cell = lambda b, p, o: tir.sum(x.get(b, p * step + t - pad, i, fill=0) * w[t, i, o], axis=(t, i))  # noqa: E731
    return tir.compute((n, (h + 2 * pad - r) // step + 1, k), cell, name="C1D")


def group(o: Any, k: int, c: int, groups: int) -> Any:
    """The first channel of the image that a channel of the result reads."""
    return o // (k // groups) * (c // groups) if groups > 1 else 0


def c2d(n: int, h: int, c: int, k: int, r: int, step: int, pad: int, dilation: int = 1, groups: int = 1) -> Any:
    x, w = given("x", n, h, h, c), given("w", r, r, c // groups, k)
    a, b, i = axes(a=r, b=r, i=c // groups)
    high, first = (h + 2 * pad - dilation * (r - 1) - 1) // step + 1, lambda o: group(o, k, c, groups)

    def cell(m: Any, p: Any, q: Any, o: Any) -> Any:
        at = p * step + a * dilation - pad, q * step + b * dilation - pad, i + first(o)
        return tir.sum(x.get(m, *at, fill=0) * w[a, b, i, o], axis=(a, b, i))

    return tir.compute((n, high, high, k), cell, name="C2D")


def c3d(n: int, d: int, h: int, c: int, k: int, r: int, step: int, pad: int) -> Any:
    x, w = given("x", n, d, h, h, c), given("w", r, r, r, c, k)
    t = axes(u=r, a=r, b=r, i=c)
    deep, high = ((e + 2 * pad - r) // step + 1 for e in (d, h))

    def cell(m: Any, z: Any, p: Any, q: Any, o: Any) -> Any:
        at = [v * step + f - pad for v, f in zip((z, p, q), t, strict=False)]
        return tir.sum(x.get(m, *at, t[3], fill=0) * w[(*t, o)], axis=t)

    return tir.compute((n, deep, high, high, k), cell, name="C3D")


def dep(n: int, h: int, c: int, r: int, step: int, pad: int) -> Any:
    x, w = given("x", n, h, h, c), given("w", r, r, c)
    a, b = axes(a=r, b=r)
    high = (h + 2 * pad - r) // step + 1
    cell = lambda m, p, q, o: tir.sum(  # noqa: E731
        x.get(m, p * step + a - pad, q * step + b - pad, o, fill=0) * w[a, b, o], axis=(a, b)
    )
    return tir.compute((n, high, high, c), cell, name="DEP")


def t2d(n: int, h: int, c: int, k: int, r: int, step: int, pad: int) -> Any:
    return tir.nn.conv_transpose2d(given("x", n, c, h, h), given("w", c, k, r, r), stride=step, pad=pad)


def cap(n: int, h: int, c: int, k: int, r: int, step: int, pad: int, size: int = 4) -> Any:
    x, w = given("x", n, h, h, size, size, c), given("w", r, r, size, size, c, k)
    a, b, u, i = t = axes(a=r, b=r, u=size, i=c)
    high = (h + 2 * pad - r) // step + 1

    def cell(m: Any, p: Any, q: Any, y: Any, z: Any, o: Any) -> Any:
        at = p * step + a - pad, q * step + b - pad, y, u, i
        return tir.sum(x.get(m, *at, fill=0) * w[a, b, u, z, i, o], axis=t)

    return tir.compute((n, high, high, size, size, k), cell, name="CAP")


def gmm(b: int, m: int, n: int, k: int) -> Any:
    x, w = given("x", b, m, k), given("w", b, k, n)
    (i,) = axes(i=k)
    return tir.compute((b, m, n), lambda z, p, q: tir.sum(x[z, p, i] * w[z, i, q], axis=i), name="GMM")


def nrm(b: int, m: int, n: int) -> Any:
    x = given("x", b, m, n)
    i, j = axes(i=m, j=n)
    squares = tir.compute((b,), lambda z: tir.sum(x[z, i, j] * x[z, i, j], axis=(i, j)), name="squares")
    return tir.compute((b,), lambda z: tir.sqrt(squares[z]), name="NRM")


def sfm(m: int, n: int) -> Any:
    return tir.nn.softmax(given("x", m, n), -1)


def cbr(n: int, h: int, c: int, k: int, r: int, step: int, pad: int) -> Any:
    y, scale, shift = c2d(n, h, c, k, r, step, pad), given("scale", k), given("shift", k)
    return tir.compute(y.shape, lambda m, p, q, o: tir.maximum(y[m, p, q, o] * scale[o] + shift[o], 0), name="CBR")


def tbg(n: int, rows: int, heads: int, size: int) -> Any:
    x, y = given("x", n, rows, heads, size), given("y", n, rows, heads, size)
    (i,) = axes(i=size)
    shape = (n, heads, rows, rows)
    return tir.compute(shape, lambda m, h, p, q: tir.sum(x[m, p, h, i] * y[m, q, h, i], axis=i), name="TBG")


SMALL: dict[str, Callable[[], Any]] = {
    "C1D": lambda: c1d(1, 19, 5, 7, 3, 2, 1),
    "C2D": lambda: c2d(1, 9, 5, 7, 3, 2, 1),
    "C3D": lambda: c3d(1, 4, 6, 3, 5, 3, 2, 1),
    "GRP": lambda: c2d(1, 7, 8, 12, 3, 1, 1, groups=4),
    "DIL": lambda: c2d(1, 9, 3, 5, 3, 1, 2, dilation=2),
    "DEP": lambda: dep(1, 9, 17, 3, 1, 1),
    "T2D": lambda: t2d(1, 4, 5, 3, 4, 2, 1),
    "CAP": lambda: cap(1, 6, 3, 5, 3, 2, 1),
    "GMM": lambda: gmm(2, 17, 19, 13),
    "NRM": lambda: nrm(3, 13, 17),
    "SFM": lambda: sfm(7, 33),
    "CBR": lambda: cbr(1, 7, 5, 9, 3, 1, 1),
    "TBG": lambda: tbg(1, 13, 3, 8),
}
REAL: dict[str, Callable[[], Any]] = {
    "C1D": lambda: c1d(1, 256, 64, 128, 3, 2, 1),
    "C2D": lambda: c2d(1, 56, 64, 64, 3, 1, 1),
    "C3D": lambda: c3d(1, 16, 56, 64, 64, 3, 1, 1),
    "GRP": lambda: c2d(1, 56, 64, 64, 3, 1, 1, groups=4),
    "DIL": lambda: c2d(1, 56, 64, 64, 3, 1, 2, dilation=2),
    "DEP": lambda: dep(1, 112, 32, 3, 1, 1),
    "T2D": lambda: t2d(1, 4, 512, 256, 4, 2, 1),
    "CAP": lambda: cap(1, 16, 32, 32, 3, 2, 1),
    "GMM": lambda: gmm(1, 512, 512, 512),
    "NRM": lambda: nrm(1, 1024, 1024),
    "SFM": lambda: sfm(1024, 1024),
    "CBR": lambda: cbr(1, 56, 64, 64, 3, 1, 1),
    "TBG": lambda: tbg(1, 128, 12, 64),
}


def operators(real: bool = False) -> Sequence[tuple[str, Any]]:
    """The operators by name, in real shapes or small ones."""
    return [(name, make()) for name, make in (REAL if real else SMALL).items()]
