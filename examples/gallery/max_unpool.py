"""The gradient of a pooling by maxima, 3 x 3 pixels, every other one: that of a result goes to the pixel it was."""

import math

import numpy as np

import tensorir as tir

N, H, W, C = 4, 112, 112, 64
P, Q = H // 2, W // 2
X = tir.placeholder((N, H, W, C), "float32", name="X")
G = tir.placeholder((N, P, Q, C), "float32", name="G")
k = tir.reduce_axis(9, name="k")  # the pixels of a window
first = tir.compute(
    (N, P, Q, C),
    lambda n, p, q, c: tir.argmax(X.get(n, 2 * p + k // 3 - 1, 2 * q + k % 3 - 1, c, fill=-math.inf), axis=k),
    name="first",
)


def pixel(window, tap, size):
    return tir.minimum(tir.maximum(2 * window + tap - 1, 0), size - 1)


def place(n, p, q, c):
    tap = first[n, p, q, c]
    row = tir.where(tap < 3, 0, tir.where(tap < 6, 1, 2))
    return pixel(p, row, H) * W + pixel(q, tap - 3 * row, W)


at = tir.compute((N, P, Q, C), place, name="at")
OUTPUT = tir.scatter(
    (N, H * W, C),
    over=(N, P, Q, C),
    index=lambda n, p, q, c: (n, tir.minimum(tir.maximum(at[n, p, q, c], 0), H * W - 1), c),
    value=lambda n, p, q, c: G[n, p, q, c],
    name="D",
)
TOLERANCE = 1e-5


def schedule(target="opencl"):
    s = tir.Schedule(OUTPUT, target=target)
    group, lane = s.split("first.c", [None, 16])
    s.reorder("first.n", "first.p", "first.q", group, "first.k", lane)
    s.bind(s.fuse("first.n", "first.p"), "block.x").unroll("first.k").vectorize(lane)
    s.vectorize(s.split("at.c", [None, 16])[1]).bind(s.fuse("at.n", "at.p"), "block.x")
    s.vectorize(s.split("D.init.k", [None, 16])[1])
    return s.bind("D.init.i", "block.x").bind("D.n", "block.x")


def inputs(seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return draw((N, H, W, C), "float32"), draw((N, P, Q, C), "float32")


def by_numpy(x, g):
    padded = np.full((N, H + 2, W + 2, C), -np.inf, "float32")
    padded[:, 1:-1, 1:-1] = x
    taps = np.stack([padded[:, i : i + H : 2, j : j + W : 2] for i in range(3) for j in range(3)])
    at, out = taps.argmax(0), np.zeros((N, H + 2, W + 2, C), "float32")
    for tap in range(9):
        i, j = divmod(tap, 3)
        out[:, i : i + H : 2, j : j + W : 2] += np.where(at == tap, g, 0)
    return out[:, 1:-1, 1:-1].reshape(N, H * W, C)


def by_torch(x, g):
    import torch

    x, g = x.permute(0, 3, 1, 2), g.permute(0, 3, 1, 2)
    at = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)[1]
    back = torch.ops.aten.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, at)
    return back.permute(0, 2, 3, 1).reshape(N, H * W, C)
