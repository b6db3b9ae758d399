"""Sums of rows that belong together: 65536 rows of 64 numbers, in 4096 segments whose numbers are sorted."""

import numpy as np

import tensorir as tir

ROWS, COLUMNS, SEGMENTS = 1 << 16, 64, 4096
segment = tir.placeholder((ROWS,), "int32", name="segment")
V = tir.placeholder((ROWS, COLUMNS), "float32", name="V")
OUTPUT = tir.scatter(
    (SEGMENTS, COLUMNS),
    over=(ROWS, COLUMNS),
    index=lambda e, c: (segment[e], c),
    value=lambda e, c: V[e, c],
    name="Y",
)
TOLERANCE = 1e-4


def schedule(target="opencl"):
    s = tir.Schedule(OUTPUT, target=target)
    group, lane = s.split("Y.c", [None, 16])  # row after row, whole: halves on two cores would each fetch all of them
    s.unroll(group).vectorize(lane)
    lane = s.split("Y.init.j", [None, 16])[1]
    return s.bind(s.split("Y.init.i", [None, 64])[0], "block.x").vectorize(lane)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.integers(0, SEGMENTS, ROWS)).astype(np.int32)
    return ids, rng.standard_normal((ROWS, COLUMNS), "float32")


def by_numpy(segment, v):
    found, first = np.unique(segment, return_index=True)
    out = np.zeros((SEGMENTS, COLUMNS), "float32")
    out[found] = np.add.reduceat(v, first)
    return out


def by_scipy(segment, v):
    from scipy.sparse import csr_matrix

    ones = np.ones(ROWS, "float32")
    return csr_matrix((ones, (segment, np.arange(ROWS))), shape=(SEGMENTS, ROWS)) @ v


def by_torch(segment, v):
    import torch

    return torch.zeros((SEGMENTS, COLUMNS)).index_add_(0, segment, v)
