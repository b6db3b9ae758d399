"""Slips in row reductions by someone who had not seen the checks: does ``check(level="emulate")`` tell them?

    python tools/mutants/edited_rows.py [--kernels softmax] [--save]

Softmax, norms, arg-reductions, any and all, log-sum-exp, running and user-defined states, in nine types. Each of 252
rows of ``edited_rows.json`` says what becomes of an edit: "seen", or why it is no fault ("equivalent", "below
tolerance", or "stricter": devices let a part of a warp meet, or a block without those that have ended; we do not). One
that is to be seen and passes has survived, one that is none and is called wrong is a false alarm: the exit code is 1
for either. Rows that are done are kept (``--save``), so that a run can be continued.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from edits import judge_edits

import tensorir as tir


def sm80(x):
    return tir.auto_schedule(x, target="cuda -arch=sm_80")


def sm90(x):
    return tir.auto_schedule(x, target="cuda -arch=sm_90a")


def softmax32():
    return tir.ops.softmax(x="9x70").schedule(target="cuda -arch=sm_80")


def softmax16_90():
    return tir.ops.softmax(x="5x1030", dtype="float16").schedule(target="cuda -arch=sm_90a")


def logsoftmax32():
    return tir.ops.log_softmax(x="3x2500").schedule(target="cuda -arch=sm_80")


def layernorm16():
    return tir.ops.layer_norm(x="7x130", dtype="float16").schedule(target="cuda -arch=sm_80")


def layernorm32_90():
    return tir.ops.layer_norm(x="6x515").schedule(target="cuda -arch=sm_90a")


def rmsnormbf16():
    return tir.ops.rms_norm(x="5x264", dtype="bfloat16").schedule(target="cuda -arch=sm_90a")


def argmax32():
    A = tir.placeholder((6, 75), "float32", name="A")
    k = tir.reduce_axis(75, name="k")
    return sm80(tir.compute((6,), lambda i: tir.argmax(A[i, k], axis=k), name="P"))


def argmini32():
    A = tir.placeholder((5, 301), "int32", name="A")
    k = tir.reduce_axis(301, name="k")
    return sm80(tir.compute((5,), lambda i: tir.argmin(A[i, k], axis=k), name="P"))


def argmax16blk():
    A = tir.placeholder((3, 200), "float16", name="A")
    k = tir.reduce_axis(200, name="k")
    P = tir.compute((3,), lambda i: tir.argmax(A[i, k], axis=k), name="P")
    s = tir.Schedule(P, target="cuda -arch=sm_80")
    s.bind("P.i", "block.x")
    rest, th = s.split("P.k", [None, 48])
    s.reorder(th, rest)
    s.reduce_across(th, "thread.x")
    return s


def lse32():
    A = tir.placeholder((4, 333), "float32", name="A")
    k = tir.reduce_axis(333, name="k")
    m = tir.compute((4,), lambda i: tir.max(A[i, k], axis=k), name="m")
    l = tir.reduce_axis(333, name="l")
    e = tir.compute((4,), lambda i: tir.sum(tir.exp(A[i, l] - m[i]), axis=l), name="e")
    return sm80(tir.compute((4,), lambda i: m[i] + tir.log(e[i]), name="L"))


def l2norm16():
    A = tir.placeholder((7, 97), "float16", name="A")
    k = tir.reduce_axis(97, name="k")
    q = tir.compute(
        (7,), lambda i: tir.sum(tir.cast(A[i, k], "float32") * tir.cast(A[i, k], "float32"), axis=k), name="q"
    )
    return sm80(
        tir.compute(
            (7, 97), lambda i, j: tir.cast(tir.cast(A[i, j], "float32") / tir.sqrt(q[i] + 1e-6), "float16"), name="N"
        )
    )


def sumi8():
    A = tir.placeholder((3, 1000), "int8", name="A")
    k = tir.reduce_axis(1000, name="k")
    return sm80(tir.compute((3,), lambda i: tir.sum(tir.cast(A[i, k], "int32"), axis=k), name="S"))


def sumsplit():
    A = tir.placeholder((2, 70001), "float32", name="A")
    k = tir.reduce_axis(70001, name="k")
    return sm80(tir.compute((2,), lambda i: tir.sum(A[i, k], axis=k), name="S"))


def maxsplit16():
    A = tir.placeholder((1, 40003), "float16", name="A")
    k = tir.reduce_axis(40003, name="k")
    return sm90(tir.compute((1,), lambda i: tir.max(A[i, k], axis=k), name="M"))


def moments():
    A = tir.placeholder((10, 150), "float32", name="A")
    k = tir.reduce_axis(150, name="k")
    mo = tir.combiner(lambda a, b: (a[0] + b[0], tir.maximum(a[1], b[1])), (0.0, float("-inf")), name="mo")
    t, q = tir.compute((10,), lambda i: mo((A[i, k], A[i, k]), axis=k), name="T")
    s = tir.Schedule((t, q), target="cuda -arch=sm_80")
    b, y = s.split("T.i", [None, 4])
    s.bind(b, "block.x").bind(y, "thread.y")
    rest, th = s.split("T.k", [None, 32])
    s.reorder(th, rest)
    s.reduce_across(th, "thread.x")
    return s


def meanvar():
    A = tir.placeholder((4, 90), "float32", name="A")
    k = tir.reduce_axis(90, name="k")
    l = tir.reduce_axis(90, name="l")
    m = tir.compute((4,), lambda i: tir.sum(A[i, k], axis=k), name="m")
    v = tir.compute((4,), lambda i: tir.sum((A[i, l] - m[i] / 90.0) * (A[i, l] - m[i] / 90.0), axis=l), name="v")
    sd = tir.compute((4,), lambda i: tir.sqrt(v[i] / 89.0), name="sd")
    return sm80([m, sd])


def min64():
    A = tir.placeholder((3, 77), "float64", name="A")
    k = tir.reduce_axis(77, name="k")
    return sm80(tir.compute((3,), lambda i: tir.min(abs(A[i, k]), axis=k), name="M"))


def sumi64():
    A = tir.placeholder((5, 120), "int32", name="A")
    k = tir.reduce_axis(120, name="k")
    return sm80(tir.compute((5,), lambda i: tir.sum(tir.cast(A[i, k], "int64"), axis=k), name="S"))


def allrow():
    A = tir.placeholder((6, 140), "int32", name="A")
    k = tir.reduce_axis(140, name="k")
    return sm80(tir.compute((6,), lambda i: tir.sum(tir.cast(A[i, k] > 3, "int32"), axis=k), name="C"))


def affine():
    n = 96
    after = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="affine", commutative=False)
    p, q = tir.placeholder((4, n), name="p"), tir.placeholder((4, n), name="q")
    k = tir.reduce_axis(n, name="k")
    t, u = tir.compute((4,), lambda i: after((p[i, k], q[i, k]), axis=k), name="T")
    s = tir.Schedule((t, u), target="cuda -arch=sm_80")
    s.bind("T.i", "block.x")
    th, _ = s.split("T.k", [32, None])
    s.reduce_across(th, "thread.x")
    return s


def online():
    A = tir.placeholder((6, 100), "float32", name="A")
    k = tir.reduce_axis(100, name="k")
    l = tir.reduce_axis(100, name="k")
    m = tir.compute((6,), lambda i: tir.max(A[i, k], axis=k), name="m")
    e = tir.compute((6,), lambda i: tir.sum(tir.exp(A[i, l] - m[i]), axis=l), name="l")
    s = tir.Schedule((m, e), target="cuda -arch=sm_80")
    piece, _ = s.split("l.k", [None, 16])
    s.rolling("m", into="l", at=piece)
    s.bind("l.i", "block.x")
    return s


def countu8():
    A = tir.placeholder((4, 513), "uint8", name="A")
    k = tir.reduce_axis(513, name="k")
    return sm80(tir.compute((4,), lambda i: tir.max(A[i, k], axis=k), name="M"))


def colsum():
    A = tir.placeholder((130, 37), "bfloat16", name="A")
    k = tir.reduce_axis(130, name="k")
    return sm80(
        tir.compute(
            (37,), lambda j: tir.cast(tir.sum(tir.cast(A[k, j], "float32"), axis=k) / 130.0, "bfloat16"), name="S"
        )
    )


def prodrow():
    A = tir.placeholder((8, 21), "float32", name="A")
    k = tir.reduce_axis(21, name="k")
    return sm80(tir.compute((8,), lambda i: tir.prod(A[i, k], axis=k), name="P"))


def atomicsum():
    A = tir.placeholder((64, 130), "int32", name="A")
    k = tir.reduce_axis(130, name="k")
    R = tir.compute((64,), lambda i: tir.sum(A[i, k], axis=k), name="R")
    s = tir.Schedule(R, target="cuda -arch=sm_80")
    piece, rest = s.split("R.k", [8, None])
    s.reorder(piece, "R.i", rest).decompose_reduction(R, piece)
    s.atomic(R).bind(piece, "block.x").bind("R.i", "thread.x")
    return s


def argmaxlong():
    A = tir.placeholder((2, 5003), "float32", name="A")
    k = tir.reduce_axis(5003, name="k")
    return sm90(tir.compute((2,), lambda i: tir.argmax(A[i, k], axis=k), name="P"))


def minneg8():
    A = tir.placeholder((4, 300), "int8", name="A")
    k = tir.reduce_axis(300, name="k")
    return sm80(tir.compute((4,), lambda i: tir.max(A[i, k], axis=k), name="M"))


def mean2bf():
    A = tir.placeholder((5, 66), "float32", name="A")
    k = tir.reduce_axis(66, name="k")
    return sm90(tir.compute((5,), lambda i: tir.cast(tir.sum(A[i, k], axis=k) / 66.0, "bfloat16"), name="S"))


def anyrow():
    A = tir.placeholder((7, 333), "float32", name="A")
    k = tir.reduce_axis(333, name="k")
    return sm80(tir.compute((7,), lambda i: tir.any(A[i, k] > 2.0, axis=k), name="Q"))


def sumf64():
    A = tir.placeholder((4, 200), "float64", name="A")
    k = tir.reduce_axis(200, name="k")
    return sm90(tir.compute((4,), lambda i: tir.sum(A[i, k], axis=k) / 200.0, name="S"))


def softmax64():
    A = tir.placeholder((4, 100), "float64", name="x")
    return sm80(tir.nn.softmax(A, -1))


def meani32():
    A = tir.placeholder((5, 90), "int32", name="A")
    k = tir.reduce_axis(90, name="k")
    s = tir.compute((5,), lambda i: tir.sum(A[i, k], axis=k), name="s")
    return sm80(tir.compute((5,), lambda i: s[i] // 90, name="S"))


def softmaxcol():
    A = tir.placeholder((300, 20), "float32", name="x")
    return sm80(tir.nn.softmax(A, 0))


def groupnorm():
    return tir.ops.group_norm(x="2x12x7x7", groups=3).schedule(target="cuda -arch=sm_90a")


def maxu32():
    A = tir.placeholder((3, 100), "uint32", name="A")
    k = tir.reduce_axis(100, name="k")
    return sm80(tir.compute((3,), lambda i: tir.max(A[i, k], axis=k), name="M"))


def allb():
    A = tir.placeholder((7, 100), "int8", name="A")
    k = tir.reduce_axis(100, name="k")
    return sm80(tir.compute((7,), lambda i: tir.all(A[i, k] >= -5, axis=k), name="Q"))


def best():
    A = tir.placeholder((6, 130), "bfloat16", name="A")
    k = tir.reduce_axis(130, name="k")
    c = tir.combiner(
        lambda a, b: (tir.where(b[0] > a[0], b[0], a[0]), tir.where(b[0] > a[0], b[1], a[1])),
        (float("-inf"), 2147483647),
        name="best",
        commutative=False,
    )
    v, p = tir.compute((6,), lambda i: c((tir.cast(A[i, k], "float32"), tir.cast(k, "int32")), axis=k), name="B")
    s = tir.Schedule((v, p), target="cuda -arch=sm_80")
    b, y = s.split("B.i", [None, 4])
    s.bind(b, "block.x").bind(y, "thread.x")
    return s


def sum16v():
    A = tir.placeholder((8, 512), "float16", name="A")
    k = tir.reduce_axis(512, name="k")
    return sm80(tir.compute((8,), lambda i: tir.sum(tir.cast(A[i, k], "float32"), axis=k), name="S"))


def rowmany():
    A = tir.placeholder((1000, 33), "float32", name="A")
    k = tir.reduce_axis(33, name="k")
    return sm80(tir.compute((1000,), lambda i: tir.max(A[i, k], axis=k), name="M"))


def var1():
    A = tir.placeholder((6, 50), "float32", name="A")
    k = tir.reduce_axis(50, name="k")
    c = tir.combiner(lambda a, b: (a[0] + b[0], a[1] + b[1]), (0.0, 0.0), name="two")
    t, q = tir.compute((6,), lambda i: c((A[i, k], A[i, k] * A[i, k]), axis=k), name="T")
    s = tir.Schedule((t, q), target="cuda -arch=sm_80")
    s.bind("T.i", "block.x")
    r, th = s.split("T.k", [None, 16])
    s.reorder(th, r)
    s.reduce_across(th, "thread.x")
    return s


KERNELS: dict[str, Callable[[], tir.Schedule]] = {f.__name__: f for f in (
    softmax32, softmax16_90, logsoftmax32, layernorm16, layernorm32_90, rmsnormbf16, argmax32, argmini32,
    argmax16blk, lse32, l2norm16, sumi8, sumsplit, maxsplit16, moments, meanvar, min64, sumi64, allrow,
    affine, online, countu8, colsum, prodrow, atomicsum, argmaxlong, minneg8, mean2bf, anyrow, sumf64,
    softmax64, meani32, softmaxcol, groupnorm, maxu32, allb, best, sum16v, rowmany, var1,
)}  # fmt: skip


if __name__ == "__main__":
    sys.exit(judge_edits(__doc__ or "", "edited_rows", KERNELS))
