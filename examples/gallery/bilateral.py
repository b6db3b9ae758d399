"""A filter that smooths and keeps edges: the mean of 5 x 5 pixels, weighted by how near they are in place and value."""

import numpy as np

import tensorir as tir

H = W = 512
R = 2
NEAR, ALIKE = 1 / (2 * 1.5**2), 1 / (2 * 0.1**2)
X = tir.placeholder((H + 2 * R, W + 2 * R), "float32", name="X")  # with a border
r = tir.reduce_axis(2 * R + 1, name="r")
t = tir.reduce_axis(2 * R + 1, name="t")


def weight(y, x):
    """Of the pixel ``r``, ``t`` of the window around ``y``, ``x``."""
    away = X[y + r, x + t] - X[y + R, x + R]
    place = (r - R) * (r - R) + (t - R) * (t - R)
    return tir.exp(-ALIKE * away * away - NEAR * tir.cast(place, "float32"))


weights = tir.compute((H, W), lambda y, x: tir.sum(weight(y, x), axis=(r, t)), name="weights")
sums = tir.compute((H, W), lambda y, x: tir.sum(weight(y, x) * X[y + r, x + t], axis=(r, t)), name="sums")
OUTPUT = tir.compute((H, W), lambda y, x: sums[y, x] / weights[y, x], name="Y")
TOLERANCE = 1e-4


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    tile, lane = s.split("Y.x", [None, 16])
    block = s.split("Y.y", [None, 8])[0]
    s.bind(block, "block.x").vectorize(lane)
    for stage in ("sums", "weights"):  # both next to each other, sixteen pixels at a time
        s.compute_at(stage, "Y", tile).set_scope(stage, "register")
        s.reorder(f"{stage}.r", f"{stage}.t", f"{stage}.x").unroll(f"{stage}.t").vectorize(f"{stage}.x")
    return s


def inputs(seed=0):
    return (np.random.default_rng(seed).random((H + 2 * R, W + 2 * R), "float32"),)


def by_numpy(x):
    middle = x[R : R + H, R : R + W]
    above = below = np.float32(0)
    for i in range(2 * R + 1):
        for j in range(2 * R + 1):
            pixel = x[i : i + H, j : j + W]
            near = np.float32(NEAR * ((i - R) ** 2 + (j - R) ** 2))
            weight = np.exp(-np.float32(ALIKE) * (pixel - middle) ** 2 - near)
            above, below = above + weight * pixel, below + weight
    return above / below


def by_torch(x):
    import torch

    middle = x[R : R + H, R : R + W]
    above = below = torch.zeros(())
    for i in range(2 * R + 1):
        for j in range(2 * R + 1):
            pixel = x[i : i + H, j : j + W]
            weight = torch.exp(-ALIKE * (pixel - middle) ** 2 - NEAR * ((i - R) ** 2 + (j - R) ** 2))
            above, below = above + weight * pixel, below + weight
    return above / below
