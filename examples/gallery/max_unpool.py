"""The gradient of a pooling by maxima, 3 x 3 pixels, every other one: that of a result goes to the pixel it was."""

import math

import numpy as np

import tensorir as tir

TOLERANCE = 1e-5


def declare(n=4, h=112, w=112, c=64):
    """The gradient of images (n, h, w, c), as (n, h * w, c)."""
    X = tir.placeholder((n, h, w, c), "float32", name="X")
    G = tir.placeholder((n, h // 2, w // 2, c), "float32", name="G")
    k = tir.reduce_axis(9, name="k")  # the pixels of a window
    first = tir.compute(
        G.shape,
        lambda n, p, q, c: tir.argmax(X.get(n, 2 * p + k // 3 - 1, 2 * q + k % 3 - 1, c, fill=-math.inf), axis=k),
        name="first",
    )

    def pixel(window, tap, size):
        return tir.minimum(tir.maximum(2 * window + tap - 1, 0), size - 1)

    def place(n, p, q, c):
        tap = first[n, p, q, c]
        row = tir.where(tap < 3, 0, tir.where(tap < 6, 1, 2))
        return pixel(p, row, h) * w + pixel(q, tap - 3 * row, w)

    at = tir.compute(G.shape, place, name="at")
    return tir.scatter(
        (n, h * w, c),
        over=G.shape,
        index=lambda n, p, q, c: (n, tir.minimum(tir.maximum(at[n, p, q, c], 0), h * w - 1), c),
        value=lambda n, p, q, c: G[n, p, q, c],
        name="D",
    )


OUTPUT = declare()


def schedule(output=OUTPUT, target="opencl"):
    s = tir.Schedule(output, target=target)
    group, lane = s.split("first.c", [None, 16])
    s.reorder("first.n", "first.p", "first.q", group, "first.k", lane)
    s.bind(s.fuse("first.n", "first.p"), "block.x").unroll("first.k").vectorize(lane)
    s.vectorize(s.split("at.c", [None, 16])[1]).bind(s.fuse("at.n", "at.p"), "block.x")
    s.vectorize(s.split("D.init.k", [None, 16])[1])
    return s.bind("D.init.i", "block.x").bind("D.n", "block.x")


def inputs(seed=0, n=4, h=112, w=112, c=64):
    draw = np.random.default_rng(seed).standard_normal
    return draw((n, h, w, c), "float32"), draw((n, h // 2, w // 2, c), "float32")


def by_numpy(x, g):
    n, h, w, c = x.shape
    padded = np.full((n, h + 2, w + 2, c), -np.inf, "float32")
    padded[:, 1:-1, 1:-1] = x
    taps = np.stack([padded[:, i : i + h : 2, j : j + w : 2] for i in range(3) for j in range(3)])
    at, out = taps.argmax(0), np.zeros((n, h + 2, w + 2, c), "float32")
    for tap in range(9):
        i, j = divmod(tap, 3)
        out[:, i : i + h : 2, j : j + w : 2] += np.where(at == tap, g, 0)
    return out[:, 1:-1, 1:-1].reshape(n, h * w, c)


def by_torch(x, g):
    import torch

    x, g = x.permute(0, 3, 1, 2), g.permute(0, 3, 1, 2)
    at = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)[1]
    back = torch.ops.aten.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, at)
    return back.permute(0, 2, 3, 1).flatten(1, 2)
