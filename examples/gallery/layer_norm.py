"""Rows with mean 0 and variance 1, then scaled and shifted: 4096 rows of 768."""

import numpy as np

import tensorir as tir

ROWS, COLUMNS, EPSILON = 4096, 768, 1e-5
X = tir.placeholder((ROWS, COLUMNS), "float32", name="X")
G = tir.placeholder((COLUMNS,), "float32", name="G")
B = tir.placeholder((COLUMNS,), "float32", name="B")
k = tir.reduce_axis(COLUMNS, name="k")
q = tir.reduce_axis(COLUMNS, name="q")
total = tir.compute((ROWS,), lambda i: tir.sum(X[i, k], axis=k), name="total")
away = lambda i, j: X[i, j] - total[i] / COLUMNS  # noqa: E731
squares = tir.compute((ROWS,), lambda i: tir.sum(away(i, q) * away(i, q), axis=q), name="squares")
OUTPUT = tir.compute(
    (ROWS, COLUMNS),
    lambda i, j: away(i, j) * tir.rsqrt(squares[i] / COLUMNS + EPSILON) * G[j] + B[j],
    name="Y",
)
TOLERANCE = 1e-4


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    block, row = s.split("Y.i", [None, 16])
    s.bind(block, "block.x")
    s.vectorize(s.split("Y.j", [None, 16])[1])
    for sums, axis in (("squares", "q"), ("total", "k")):  # the last one first: it reads the other
        lanes = s.rfactor(sums, s.split(f"{sums}.{axis}", [None, 64])[1])  # 64 sums, joined at the end of a row
        s.compute_at(sums, "Y", row).compute_at(lanes, "Y", row)
        s.set_scope(sums, "register").set_scope(f"{sums}_rf", "register")
        four, lane = s.split(f"{lanes.name}.rf", [4, 16])
        s.reorder(f"{lanes.name}.{axis}.0", four, lane).unroll(four).vectorize(lane)
        s.unroll(f"{sums}.rf")
    return s


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape, "float32") for shape in ((ROWS, COLUMNS), COLUMNS, COLUMNS))


def by_numpy(x, g, b):
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPSILON) * g + b


def by_torch(x, g, b):
    import torch

    return torch.nn.functional.layer_norm(x, (COLUMNS,), g, b, EPSILON)
