"""Programs whose emitted text is kept: one for each thing that a printer must spell."""

import numpy as np
from mutated_programs import PROGRAMS

import tensorir as tir

GPU = "opencl -kind=gpu"


def tiled(target):
    return PROGRAMS["tiled cuda" if target.startswith("cuda") else "tiled opencl"]()


def conv2d(target):
    return PROGRAMS["conv2d cuda" if target.startswith("cuda") else "conv2d cpu"]()


def conv2d_gpu(target):
    name = target if target.startswith("cuda") else GPU
    return tir.ops.conv2d(n=1, c=8, h=8, w=8, k=16, r=3, s=3, pad=1).schedule(target=name)


def vector_copy(target):
    X = tir.placeholder((8, 64), name="X")
    s = tir.Schedule(tir.compute((8, 64), lambda i, j: X[i, j], name="Y"), target)
    _, lanes = s.split("Y.j", [None, 4])
    s.bind("Y.i", "block.x").bind("Y.j.0", "thread.x").vectorize(lanes)
    return s


def argmin(target):
    return PROGRAMS["argmin cuda" if target.startswith("cuda") else "argmin opencl"]()


def gather(target):
    return PROGRAMS["gather cuda" if target.startswith("cuda") else "gather opencl"]()


def constants(target):
    W = tir.constant(np.array([0.25, 0.5, -1.0], "float32"), name="W")
    X = tir.placeholder((18,), name="X")
    r = tir.reduce_axis(3, name="r")
    s = tir.Schedule(tir.compute((16,), lambda i: tir.sum(X[i + r] * W[r], axis=r), name="Y"), target)
    s.bind("Y.i", "thread.x").unroll("Y.r")
    return s


def scalars(target):
    X = tir.placeholder((16,), name="X")
    alpha, steps = tir.scalar("alpha"), tir.scalar("steps", "int32")
    s = tir.Schedule(tir.compute((16,), lambda i: X[i] * alpha + steps, name="Y"), target)
    s.bind("Y.i", "thread.x")
    return s


def two_kernels(target):
    return PROGRAMS["packed cuda" if target.startswith("cuda") else "packed opencl"]()


def panels(target):
    """A block copies its columns of B as panels of 16; a register tile reads them by whole aligned vectors."""
    s = _matmul(target)
    jb, jp, j2, lanes = s.split("C.j", [None, 2, 2, 8])
    i0, i1 = s.split("C.i", [None, 4])
    s.reorder(jb, jp, i0, "C.k", i1, j2, lanes)
    s.bind(jb, "block.x")
    s.stage_in("B", at=jb, scope="shared", layout="k, j -> j/16, k, j%16", vector=8)
    s.stage_out("C", at=i0, scope="register")
    s.unroll(i1).unroll(j2).vectorize(lanes)
    return s


def packed_panels(target):
    """A kernel packs both operands in blocks, zeros where they end; the other reads them by whole vectors."""
    s = _matmul(target, m=7, n=40, k=6)
    j0, j1, j2 = s.split("C.j", [None, 2, 8])
    i0, i1 = s.split("C.i", [None, 3])
    s.reorder(j0, i0, "C.k", i1, j1, j2)
    s.bind(j0, "block.x")
    s.stage_in("B", at="root", scope="global", layout="k, j -> j/16, k, j%16")
    panel, lanes = s.split("B_global.ax1", [None, 16])
    s.reorder(panel, "B_global.ax0", lanes)
    s.bind(panel, "block.x")
    s.stage_in("A", at="root", scope="global", layout="i, k -> i/3, k, i%3", pad=1)
    s.stage_out("C", at=i0, scope="register", layout="i, j -> j/8, i, j%8")
    s.unroll(i1).unroll(j1).vectorize(j2)
    return s


def _matmul(target, m=8, n=64, k=6):
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    r = tir.reduce_axis(k, name="k")
    return tir.Schedule(tir.compute((m, n), lambda i, j: tir.sum(A[i, r] * B[r, j], axis=r), name="C"), target)


def several_outputs(target):
    X = tir.placeholder((6, 8), name="X")
    S = tir.compute((6, 8), lambda i, j: (X[i, j] + 1, tir.cast(X[i, j] * X[i, j], "int32")), name="S")
    s = tir.Schedule(S, target)
    s.bind("S.i", "block.x").bind("S.j", "thread.x")
    return s


def dtypes(target):
    """Storage types, integer widths, floor division of data, casts, math."""
    H, I = tir.placeholder((16,), "float16", name="H"), tir.placeholder((16,), "int8", name="I")
    U, Q = tir.placeholder((16,), "uint8", name="U"), tir.placeholder((16,), "bfloat16", name="Q")
    a = tir.compute(
        (16,),
        lambda i: (
            tir.cast(H[i] * 2, "float16"),
            I[i] + I[i],
            I[i] // 3 + I[i] % 3,
            tir.cast(U[i], "int32") - 300,
            tir.cast(Q[i] + 1, "bfloat16"),
            I[i] > 2,
            tir.exp(tir.cast(I[i], "float32")),
            tir.minimum(U[i], 7),
        ),
        name="a",
    )
    s = tir.Schedule(a, target)
    s.bind("a.i", "thread.x")
    return s


CASES = {
    f.__name__: f
    for f in (
        tiled,
        conv2d,
        conv2d_gpu,
        vector_copy,
        argmin,
        gather,
        constants,
        scalars,
        two_kernels,
        panels,
        packed_panels,
        several_outputs,
        dtypes,
    )
}
