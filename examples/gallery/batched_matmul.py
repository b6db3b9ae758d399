"""A thousand products of small matrices, 32 x 32 x 32 each."""

import numpy as np

import tensorir as tir

BATCH, M, N, K = 1000, 32, 32, 32
A = tir.placeholder((BATCH, M, K), "float32", name="A")
B = tir.placeholder((BATCH, K, N), "float32", name="B")
k = tir.reduce_axis(K, name="k")
OUTPUT = tir.compute((BATCH, M, N), lambda b, i, j: tir.sum(A[b, i, k] * B[b, k, j], axis=k), name="C")
TOLERANCE = 1e-4


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    jv, jl = s.split("C.j", [None, 16])
    ib, ii = s.split("C.i", [None, 4])
    s.reorder("C.b", ib, "C.k", ii, jv, jl)
    s.bind(s.split("C.b", [None, 8])[0], "block.x")  # eight products a block: one is too short a work
    copy = s.stage_out("C", at=ib, scope="register")
    s.vectorize(s.split(f"{copy.name}.j", [None, 16])[1])
    return s.unroll(ii).unroll(jv).vectorize(jl)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((BATCH, M, K), "float32"), rng.standard_normal((BATCH, K, N), "float32")


def by_numpy(a, b):
    return a @ b


def by_torch(a, b):
    return a.bmm(b)
