"""A linear layer whose weights are 8-bit integers with a scale for each output: 16 x 1024 by 1024 x 1024."""

import numpy as np

import tensorir as tir

M, N, K = 16, 1024, 1024
X = tir.placeholder((M, K), "float32", name="X")
W = tir.placeholder((K, N), "int8", name="W")
SCALE = tir.placeholder((N,), "float32", name="scale")
k = tir.reduce_axis(K, name="k")
sums = tir.compute((M, N), lambda i, j: tir.sum(X[i, k] * tir.cast(W[k, j], "float32"), axis=k), name="sums")
OUTPUT = tir.compute((M, N), lambda i, j: sums[i, j] * SCALE[j], name="Y")
TOLERANCE = 1e-3


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    block, lane = s.split("Y.j", [None, 16])
    s.reorder(block, "Y.i", lane).bind(block, "block.x").vectorize(lane)
    s.compute_at("sums", "Y", block).set_scope("sums", "register")
    s.reorder("sums.k", "sums.i", "sums.j")  # 16 integers become floats once for 16 rows
    return s.unroll("sums.i").vectorize("sums.j").annotate("sums.k", "unroll", 4)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.integers(-127, 128, (K, N)).astype(np.int8)
    return rng.standard_normal((M, K), "float32"), weights, rng.random(N, "float32") / 100


def by_numpy(x, w, scale):
    return (x @ w.astype("float32")) * scale


def by_torch(x, w, scale):
    return (x @ w.float()) * scale
