"""The place of the largest number in each row, the first of equal ones: 4096 rows of 1024."""

import numpy as np

import tensorir as tir

ROWS, COLUMNS = 4096, 1024
X = tir.placeholder((ROWS, COLUMNS), "float32", name="X")
k = tir.reduce_axis(COLUMNS, name="k")
OUTPUT = tir.compute((ROWS,), lambda i: tir.argmax(X[i, k], axis=k), name="Y")


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    first = s.rfactor("Y", s.split("Y.k", [None, 64])[1])  # 64 candidates,
    second = s.rfactor("Y", s.split("Y.rf", [4, 16])[1])  # 16 of them at the end of a row, and then one
    block, row = s.split("Y.i", [None, 16])
    s.bind(block, "block.x").compute_at(second, "Y", row).compute_at(first, "Y", row)
    for state in ("Y_rf", "Y_state0_rf", "Y_rf_1", "Y_state0_rf_1", "Y_state0"):  # places and values
        s.set_scope(state, "register")
    four, lane = s.split("Y.rf.rf", [4, 16])
    s.reorder("Y.rf.k.0", four, lane).unroll(four).vectorize(lane)
    return s.reorder("Y.rf_1.rf.0", "Y.rf_1.rf_1").unroll("Y.rf_1.rf.0").vectorize("Y.rf_1.rf_1")


def inputs(seed=0):
    return (np.random.default_rng(seed).standard_normal((ROWS, COLUMNS), "float32"),)


def by_numpy(x):
    return x.argmax(axis=1)


def by_torch(x):
    return x.argmax(1)
