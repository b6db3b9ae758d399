"""TVM: tutorials of its expressions, and operators of its inventory."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse
import torch
from operator_set import sparse_product
from torch.nn import functional

import tensorir as tir
from programs import Array, Inputs, Peers, axes, program


def _larger(a: Any, b: Any) -> Any:
    later = (b[1] > a[1]) | ((b[1] == a[1]) & (b[0] < a[0]))
    return tir.where(later, b[0], a[0]), tir.where(later, b[1], a[1])


LARGER = tir.combiner(_larger, (2**31 - 1, -3.4e38), name="larger")


@program("tvm/te-argmax-tuple")
def argmax_of_pairs(given: Inputs) -> tuple[Any, Peers]:
    """By a combiner of places and values."""
    m, n, (r,) = 128, 1024, axes(1024)
    x = given.normal("x", m, n)
    at, top = tir.compute((m,), lambda i: LARGER((tir.cast(r, "int32"), x[i, r]), axis=r), name="t")

    def by_numpy(x: Array) -> tuple[Array, Array]:
        at = x.argmax(1)
        return at, x[np.arange(m), at]

    return (at, top), {"numpy": by_numpy, "torch": lambda x: tuple(reversed(x.max(1)))}


@program("tvm/te-rfactor-reduction")
def row_sums(given: Inputs) -> tuple[Any, Peers]:
    n, (r,) = 1024, axes(1024)
    x = given.normal("x", n, n)
    y = tir.compute((n,), lambda i: tir.sum(x[i, r], axis=r), name="y")
    return y, {"numpy": lambda x: x.sum(1), "torch": lambda x: x.sum(1)}


def corners(y: Any, x: Any, floor: Any) -> list[tuple[Any, Any, Any]]:
    """The four pixels around a place, and their weights."""
    y0, x0 = floor(y), floor(x)
    fy, fx = y - y0, x - x0
    return [(y0 + u, x0 + v, (fy if u else 1 - fy) * (fx if v else 1 - fx)) for u in (0, 1) for v in (0, 1)]


def sampled(read: Any, y: Any, x: Any, h: int, w: int) -> Any:
    """Between four pixels, with zeros beyond the image."""
    total = 0.0
    for u, v, weight in corners(y, x, tir.floor):
        i, j = tir.cast(u, "int32"), tir.cast(v, "int32")
        near = [tir.minimum(tir.maximum(p, 0), n - 1) for p, n in ((i, h), (j, w))]
        inside = (i >= 0) & (i < h) & (j >= 0) & (j < w)
        total = total + tir.where(inside, read(*near) * weight, 0.0)
    return total


def sampled_by(a: Any, y: Any, x: Any, lib: Any) -> Any:
    """The same of an image (…, H, W), at places of any shape."""
    h, w = a.shape[-2:]
    total = 0
    for u, v, weight in corners(y, x, lib.floor):
        inside = (u >= 0) & (u < h) & (v >= 0) & (v < w)
        i, j = (p.clip(0, n - 1).astype("int32") if lib is np else p.clamp(0, n - 1).int() for p, n in ((u, h), (v, w)))
        total = total + a[..., i, j] * lib.where(inside, weight, 0)
    return total


@program("topi/deformable_conv2d")
def deformable(given: Inputs) -> tuple[Any, Peers]:
    """Taps at offsets that data give."""
    c, h, k, (r, t) = 32, 28, 32, axes(32, 9)
    x, w = given.normal("x", c, h, h), given.normal("w", k, c, 9)
    offset = given.normal("offset", 9, 2, h, h)

    def tap(q: Any, s: Any, i: Any, j: Any) -> Any:
        y = tir.cast(i + s // 3 - 1, "float32") + offset[s, 0, i, j]
        z = tir.cast(j + s % 3 - 1, "float32") + offset[s, 1, i, j]
        return sampled(lambda u, v: x[q, u, v], y, z, h, h)

    taps = tir.compute((c, 9, h, h), tap, name="taps")
    y = tir.compute((k, h, h), lambda o, i, j: tir.sum(taps[r, t, i, j] * w[o, r, t], axis=(r, t)), name="y")

    def by(x: Any, w: Any, offset: Any, lib: Any) -> Any:
        s = lib.arange(9)[:, None, None]
        i, j = lib.arange(h)[None, :, None], lib.arange(h)[None, None]
        taps = sampled_by(x, i + s // 3 - 1 + offset[:, 0], j + s % 3 - 1 + offset[:, 1], lib)
        return (w.reshape(k, -1) @ taps.reshape(c * 9, -1)).reshape(k, h, h)

    return y, {"numpy": lambda x, w, o: by(x, w, o, np), "torch": lambda x, w, o: by(x, w, o, torch)}


@program("topi/roi_align")
def region_means(given: Inputs) -> tuple[Any, Peers]:
    """Means of 2 x 2 samples in each bin of a region."""
    c, h, n, bins, (r, q) = 32, 50, 16, 7, axes(2, 2)
    x = given.normal("x", c, h, h)
    corner, size = given.rng.random((n, 2)) * 25, given.rng.random((n, 2)) * 20 + 4
    box = given.of("box", np.concatenate([corner, corner + size], 1).astype("float32"))

    def cell(b: Any, ch: Any, i: Any, j: Any) -> Any:
        tall, wide = (box[b, 2] - box[b, 0]) / bins, (box[b, 3] - box[b, 1]) / bins
        y = box[b, 0] + (tir.cast(i, "float32") + (tir.cast(r, "float32") + 0.5) / 2) * tall
        z = box[b, 1] + (tir.cast(j, "float32") + (tir.cast(q, "float32") + 0.5) / 2) * wide
        return tir.sum(sampled(lambda u, v: x[ch, u, v], y, z, h, h), axis=(r, q)) * 0.25

    y = tir.compute((n, c, bins, bins), cell, name="y")

    def by(x: Any, box: Any, lib: Any) -> Any:
        step = (box[:, 2:] - box[:, :2]) / bins
        at = (lib.arange(2 * bins) + 0.5) / 2
        y = box[:, 0, None] + at * step[:, 0, None]
        z = box[:, 1, None] + at * step[:, 1, None]
        y, z = y[:, :, None] + 0 * z[:, None], z[:, None] + 0 * y[:, :, None]
        if lib is np:
            y, z = y.astype("float32"), z.astype("float32")
        found = sampled_by(x, y, z, lib).reshape(c, n, bins, 2, bins, 2)
        return found.mean((3, 5)).swapaxes(0, 1)

    return y, {"numpy": lambda x, b: by(x, b, np), "torch": lambda x, b: by(x, b, torch)}


@program("topi/searchsorted")
def places(given: Inputs) -> tuple[Any, Peers]:
    """By halving, 9 rounds in one lambda."""
    n, count = 256, 16384
    a = given.of("a", np.sort(given.rng.random(n, "float32")))
    v = given.uniform("v", count)

    def cell(i: Any) -> Any:
        low = tir.cast(0, "int32")
        for step in (256, 128, 64, 32, 16, 8, 4, 2, 1):
            there = low + step
            read = a[tir.minimum(tir.maximum(there - 1, 0), n - 1)]
            low = tir.where((there <= n) & (read < v[i]), there, low)
        return low

    y = tir.compute((count,), cell, name="y")
    return y, {"numpy": np.searchsorted, "torch": torch.searchsorted}


@program("topi/sparse_dense-csr")
def sparse_dense(given: Inputs) -> tuple[Any, Peers]:
    rows, width, most = 512, 32, 16
    lengths = given.rng.integers(0, most + 1, rows)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype("int32")
    given.of("ends", ends)
    at = np.concatenate([np.sort(given.rng.permutation(rows)[:k]) for k in lengths]).astype("int32")
    beyond = rows * most - len(at)
    given.of("at", np.pad(at, (0, beyond)))
    given.normal("data", rows * most)
    given.normal("x", rows, width)
    data = given.arrays["data"][: len(at)]
    matrix = scipy.sparse.csr_matrix((data, at, ends), shape=(rows, rows))
    with warnings.catch_warnings():  # that it is not finished
        warnings.simplefilter("ignore", UserWarning)
        of_torch = torch.sparse_csr_tensor(*map(torch.from_numpy, (ends, at, data)), size=(rows, rows))
    pad = np.full((rows, most), 0.0, "float32")
    column = np.zeros((rows, most), "int32")
    inside = np.arange(most) < lengths[:, None]
    pad[inside], column[inside] = data, at
    return sparse_product(rows, rows, width, most), {
        "numpy": lambda ends, at, data, x: np.einsum("ik,ikj->ij", pad, x[column]),
        "scipy": lambda ends, at, data, x: matrix @ x,
        "torch": lambda ends, at, data, x: of_torch @ x,
    }


@program("topi/conv2d_transpose+bn+relu6")
def transposed_convolution(given: Inputs) -> tuple[Any, Peers]:
    c, h, k = 32, 14, 16
    x, w = given.normal("x", 1, c, h, h), given.normal("w", c, k, 4, 4)
    scale, shift = given.uniform("scale", k), given.normal("shift", k)
    t = tir.nn.conv_transpose2d(x, w, stride=2, pad=1, name="t")
    y = tir.compute(
        t.shape, lambda n, o, i, j: tir.minimum(tir.maximum(t[n, o, i, j] * scale[o] + shift[o], 0), 6), name="y"
    )

    def by_numpy(x: Array, w: Array, scale: Array, shift: Array) -> Array:
        spread = np.zeros((k, 2 * h + 2, 2 * h + 2), "float32")
        every = np.tensordot(w, x[0], (0, 0))  # k, 4, 4, h, h
        for u in range(4):
            for v in range(4):
                spread[:, u : u + 2 * h : 2, v : v + 2 * h : 2] += every[:, u, v]
        own = spread[None, :, 1:-1, 1:-1]
        return np.clip(own * scale[:, None, None] + shift[:, None, None], 0, 6)

    def by_torch(x: Any, w: Any, scale: Any, shift: Any) -> Any:
        own = functional.conv_transpose2d(x, w, stride=2, padding=1)
        return functional.relu6(own * scale[:, None, None] + shift[:, None, None])

    return y, {"numpy": by_numpy, "torch": by_torch}


@program("topi/correlation")
def correlation(given: Inputs) -> tuple[Any, Peers]:
    """Costs of FlowNet: products of pixels of two pictures, up to 4 pixels apart."""
    c, h, reach, (r,) = 32, 48, 4, axes(32)
    wide = 2 * reach + 1
    a, b = given.normal("a", c, h, h), given.normal("b", c, h, h)
    cell = lambda d, i, j: tir.sum(  # noqa: E731
        a[r, i, j] * b.get(r, i + d // wide - reach, j + d % wide - reach, fill=0), axis=r) / c  # fmt: skip
    y = tir.compute((wide * wide, h, h), cell, name="y")

    def by(a: Any, b: Any, mean: Any) -> list[Any]:
        return [mean(a * b[:, u : u + h, v : v + h]) for u in range(wide) for v in range(wide)]

    def by_numpy(a: Array, b: Array) -> Array:
        return np.stack(by(a, np.pad(b, ((0, 0), (reach, reach), (reach, reach))), lambda x: x.mean(0)))

    def windows(a: Array, b: Array) -> Array:
        padded = np.pad(b, ((0, 0), (reach, reach), (reach, reach)))
        found = np.lib.stride_tricks.sliding_window_view(padded, (wide, wide), (1, 2))
        return (np.einsum("cij,cijuv->uvij", a, found) / np.float32(c)).reshape(wide * wide, h, h)

    def by_torch(a: Any, b: Any) -> Any:
        return torch.stack(by(a, functional.pad(b, (reach,) * 4), lambda x: x.mean(0)))

    return y, {"numpy": by_numpy, "numpy windows": windows, "torch": by_torch}


@program("topi/lrn+grid_sample")
def sampled_responses(given: Inputs) -> tuple[Any, Peers]:
    """Responses normalised over 5 channels, at places of a grid that data give."""
    c, h, size, (r,) = 16, 32, 5, axes(5)
    x = given.normal("x", c, h, h)
    grid = given.of("grid", given.rng.uniform(-1.1, 1.1, (h, h, 2)).astype("float32"))
    total = lambda k, i, j: tir.sum(x.get(k + r - 2, i, j, fill=0) * x.get(k + r - 2, i, j, fill=0), axis=r)  # noqa: E731
    square = tir.compute((c, h, h), total, name="square")
    norm = tir.compute((c, h, h), lambda k, i, j: x[k, i, j] * tir.pow(1.0 + square[k, i, j] * 2e-5, -0.75), name="n")

    def cell(k: Any, i: Any, j: Any) -> Any:
        places = [(grid[i, j, a] + 1.0) * ((h - 1) / 2) for a in (1, 0)]
        return sampled(lambda u, v: norm[k, u, v], *places, h, h)

    y = tir.compute((c, h, h), cell, name="y")

    def by_numpy(x: Array, grid: Array) -> Array:
        squares = np.pad(x * x, ((2, 2), (0, 0), (0, 0)))
        total = sum(squares[u : u + c] for u in range(size))
        norm = x * (1 + total * np.float32(2e-5)) ** np.float32(-0.75)
        at = (grid + 1) * np.float32((h - 1) / 2)
        return sampled_by(norm, at[..., 1], at[..., 0], np)

    def by_torch(x: Any, grid: Any) -> Any:
        norm = functional.local_response_norm(x[None], size, alpha=1e-4, beta=0.75, k=1.0)
        return functional.grid_sample(norm, grid[None], align_corners=True)[0]

    return y, {"numpy": by_numpy, "torch": by_torch}
