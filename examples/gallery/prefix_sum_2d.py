"""Sums of all that is above and to the left: of each of 2048 x 2048 pixels, a summed-area table."""

import numpy as np

import tensorir as tir

H = W = 2048
X = tir.placeholder((H, W), "float32", name="X")
OUTPUT = tir.scan(tir.scan(X, axis=1, name="rows"), axis=0, name="Y")
TOLERANCE = 1e-3


def schedule(target="opencl"):
    s = tir.Schedule(OUTPUT, target=target)
    s.bind(s.split("rows.i", [None, 16])[0], "block.x")
    s.vectorize(s.split("rows.j", [None, 16])[1])  # a row, sixteen pixels at a time
    block, j = s.split("Y.j", [None, 512])
    s.reorder(block, "Y.i", j).bind(block, "block.x")
    return s.vectorize(s.split(j, [None, 16])[1])  # sixteen columns and more, row after row


def inputs(seed=0):
    return (np.random.default_rng(seed).random((H, W), "float32"),)


def by_numpy(x):
    return x.cumsum(1).cumsum(0)


def by_torch(x):
    return x.cumsum(1).cumsum(0)
