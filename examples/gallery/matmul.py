"""A product of matrices, 512 x 512 x 512."""

import numpy as np

import tensorir as tir

M = N = K = 512
A = tir.placeholder((M, K), "float32", name="A")
B = tir.placeholder((K, N), "float32", name="B")
k = tir.reduce_axis(K, name="k")
OUTPUT = tir.compute((M, N), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
TOLERANCE = 1e-4


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    jb, jv, jl = s.split("C.j", [None, 2, 16])
    ib, ii = s.split("C.i", [None, 8])
    s.reorder(jb, ib, "C.k", ii, jv, jl)
    s.bind(jb, "block.x")  # a block computes 32 columns
    copy = s.stage_out("C", at=ib, scope="register")  # 8 rows of them at a time: 16 registers
    s.vectorize(s.split(f"{copy.name}.j", [None, 16])[1])
    s.stage_in(B, at=jb, scope="shared", vector=16)  # its columns of B one after another
    return s.unroll(ii).unroll(jv).vectorize(jl)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((M, K), "float32"), rng.standard_normal((K, N), "float32")


def by_numpy(a, b):
    return a @ b


def by_torch(a, b):
    return a @ b
