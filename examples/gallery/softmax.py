"""exp(x) over its sum in each row, with the row's largest taken off first: 1024 rows of 1024."""

import numpy as np

import tensorir as tir

ROWS = COLUMNS = 1024
X = tir.placeholder((ROWS, COLUMNS), "float32", name="X")
k = tir.reduce_axis(COLUMNS, name="k")
q = tir.reduce_axis(COLUMNS, name="q")
largest = tir.compute((ROWS,), lambda i: tir.max(X[i, k], axis=k), name="largest")
E = tir.compute((ROWS, COLUMNS), lambda i, j: tir.exp(X[i, j] - largest[i]), name="E")
total = tir.compute((ROWS,), lambda i: tir.sum(E[i, q], axis=q), name="total")
OUTPUT = tir.compute((ROWS, COLUMNS), lambda i, j: E[i, j] / total[i], name="Y")
TOLERANCE = 1e-5


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    block, row = s.split("Y.i", [None, 16])
    s.bind(block, "block.x")
    s.vectorize(s.split("Y.j", [None, 16])[1])
    for sums, axis in (("total", "q"), ("largest", "k")):
        lanes = s.rfactor(sums, s.split(f"{sums}.{axis}", [None, 64])[1])
        s.compute_at(sums, "Y", row).compute_at(lanes, "Y", row)
        s.set_scope(sums, "register").set_scope(f"{sums}_rf", "register")
        four, lane = s.split(f"{lanes.name}.rf", [4, 16])
        s.reorder(f"{lanes.name}.{axis}.0", four, lane).unroll(four).vectorize(lane)
        s.unroll(f"{sums}.rf")
        if sums == "total":
            s.compute_at("E", "Y", row).set_scope("E", "shared")  # once for the sum and for the result
            s.vectorize(s.split("E.j", [None, 16])[1])
    return s


def inputs(seed=0):
    return (np.random.default_rng(seed).standard_normal((ROWS, COLUMNS), "float32"),)


def by_numpy(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def by_torch(x):
    return x.softmax(1)
