"""Slips in loop carries by someone who had not seen the checks: does ``check(level="emulate")`` tell them?

    python tools/mutants/edited_carries.py [--kernels attn] [--save]

Scans, recurrences, segments, running arg-reductions and softmax, pipelines and split sums, in eight types. Each of 233
rows of ``edited_carries.json`` says what becomes of an edit: "seen", or why it is no fault. One that is to be seen and
passes has survived, one that is none and is called wrong is a false alarm: the exit code is 1 for either. Rows that are
done are kept (``--save``), so that a run can be continued.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from edits import judge_edits

import tensorir as tir

T80, T90 = "cuda -arch=sm_80", "cuda -arch=sm_90a"
inf = float("inf")


def affine_op():
    return tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="affine", commutative=False)


def cummax16():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((5, 77), "float16", name="X"), axis=1, op="max", name="S"), target=T80
    )


def exrev64():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((4, 83), "float64", name="X"), axis=1, exclusive=True, reverse=True, name="S"),
        target=T80,
    )


def prodi64():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((3, 41), "int64", name="X"), axis=1, op="prod", name="S"), target=T80
    )


def exmin32():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((37, 6), "int32", name="X"), axis=0, op="min", exclusive=True, name="S"), target=T80
    )


def gated32():
    p, q = (tir.placeholder((3, 45), name=x) for x in "pq")
    return tir.auto_schedule(tir.scan((p, q), axis=1, op=affine_op(), name="h")[1], target=T80)


def gated16():
    p, q = (tir.placeholder((2, 70), "float16", name=x) for x in "pq")
    P = tir.compute((2, 70), lambda i, j: tir.cast(p[i, j], "float32"), name="P")
    Q = tir.compute((2, 70), lambda i, j: tir.cast(q[i, j], "float32"), name="Q")
    h = tir.scan((P, Q), axis=1, op=affine_op(), name="h")[1]
    return tir.auto_schedule(tir.compute((2, 70), lambda i, j: tir.cast(h[i, j], "float16"), name="Y"), target=T90)


def seg32():
    f = tir.placeholder((4, 50), "int32", name="f")
    x = tir.placeholder((4, 50), name="x")
    g = tir.compute((4, 50), lambda i, j: tir.where(f[i, j] != 0, 1, 0), name="g")
    op = tir.combiner(
        lambda a, b: (a[0] | b[0], tir.where(b[0] != 0, b[1], a[1] + b[1])), (0, 0.0), name="seg", commutative=False
    )
    return tir.auto_schedule(tir.scan((g, x), axis=1, op=op, name="s")[1], target=T80)


def runarg():
    x = tir.placeholder((5, 60), name="x")
    v = tir.compute((5, 60), lambda i, j: x[i, j], name="v")
    p = tir.compute((5, 60), lambda i, j: tir.cast(j, "int32"), name="p")
    op = tir.combiner(
        lambda a, b: (tir.where(b[0] > a[0], b[0], a[0]), tir.where(b[0] > a[0], b[1], a[1])),
        (-inf, -1),
        name="am",
        commutative=False,
    )
    return tir.auto_schedule(tir.scan((v, p), axis=1, op=op, name="R")[1], target=T80)


def tiled(n=1000, tile=64, dt="float32", op="sum"):
    s = tir.Schedule(tir.scan(tir.placeholder((n,), dt, name="X"), op=op, name="S"), target=T80)
    s.redeclare("tiled_scan", tile=tile)
    s.reverse_compute_inline("S")
    s.bind("S_total.t", "block.x")
    s.bind("S_local.t", "block.x")
    return s


def tiled64():
    return tiled(700, 64, "float64")


def tiledi32():
    return tiled(530, 32, "int32", "max")


def tiledaff():
    p, q = (tir.placeholder((300,), name=x) for x in "pq")
    h = tir.scan((p, q), axis=0, op=affine_op(), name="h")
    s = tir.Schedule(h, target=T80)
    s.redeclare("tiled_scan", tile=32)
    s.bind("h_total.t", "block.x")
    s.bind("h_local.t", "thread.x")
    s.bind("h.i", "thread.x")
    return s


def log_cumsum_exp(dtype):
    x = tir.placeholder((3, 66), dtype, name="x")
    m0 = tir.compute((3, 66), lambda i, j: x[i, j], name="m0")
    l0 = tir.compute((3, 66), lambda i, j: tir.cast(1.0, dtype), name="l0")

    def j(a, b):
        m = tir.maximum(a[0], b[0])
        r = tir.where(m == -inf, 0.0, m)
        return m, a[1] * tir.exp(a[0] - r) + b[1] * tir.exp(b[0] - r)

    op = tir.combiner(j, (-inf, 0.0), name="ose", commutative=False)
    m, l = tir.scan((m0, l0), axis=1, op=op, name="L")
    return tir.auto_schedule(tir.compute((3, 66), lambda i, j: m[i, j] + tir.log(l[i, j]), name="Y"), target=T80)


def lcse():
    return log_cumsum_exp("float32")


def online16():
    A = tir.placeholder((6, 100), "float16", name="A")
    k = tir.reduce_axis(100, name="k")
    l = tir.reduce_axis(100, name="k")
    m = tir.compute((6,), lambda i: tir.max(tir.cast(A[i, k], "float32"), axis=k), name="m")
    e = tir.compute((6,), lambda i: tir.sum(tir.exp(tir.cast(A[i, l], "float32") - m[i]), axis=l), name="l")
    s = tir.Schedule((m, e), target=T80)
    piece, _ = s.split("l.k", [None, 16])
    s.rolling("m", into="l", at=piece)
    s.bind("l.i", "thread.x")
    return s


def attnc16():
    return tir.ops.attention(q="1x2x19x16", k="1x2x37x16", dtype="float16").schedule(target=T80)


def attnc32():
    return tir.ops.attention(q="1x1x70x8", k="1x1x70x8", causal=True).schedule(target=T80)


def mm32():
    return tir.ops.matmul(m=33, n=70, k=93).schedule(target=T80)


def mm16():
    return tir.ops.matmul(m=40, n=48, k=200, dtype="float16").schedule(target=T80)


def welford():
    x = tir.placeholder((5, 90), name="x")
    k = tir.reduce_axis(90, name="k")

    def j(a, b):
        n = a[0] + b[0]
        d = b[1] - a[1]
        f = tir.where(n > 0, b[0] / tir.maximum(n, 1.0), 0.0)
        return n, a[1] + d * f, a[2] + b[2] + d * d * a[0] * f

    op = tir.combiner(j, (0.0, 0.0, 0.0), name="welford")
    n, m, v = tir.compute((5,), lambda i: op((1.0, x[i, k], 0.0), axis=k), name="W")
    s = tir.Schedule((n, m, v), target=T80)
    s.bind("W.i", "block.x")
    r, th = s.split("W.k", [None, 32])
    s.reorder(th, r)
    s.reduce_across(th, "thread.x")
    return s


def sat2d():
    x = tir.placeholder((35, 45), "int32", name="X")
    return tir.auto_schedule(tir.scan(tir.scan(x, axis=1, name="rows"), axis=0, name="Y"), target=T80)


def mp64():
    op = tir.combiner(
        lambda a, b: (a[0] + b[0], tir.minimum(a[1] + b[0], b[1])), (0.0, inf), name="mp", commutative=False
    )
    p, q = (tir.placeholder((40, 5), "float64", name=x) for x in "pq")
    return tir.auto_schedule(tir.scan((p, q), axis=0, op=op, name="h")[1], target=T80)


def ext1():
    return tir.auto_schedule(tir.scan(tir.placeholder((300, 1), "float32", name="X"), axis=1, name="S"), target=T80)


def long32():
    return tir.auto_schedule(tir.scan(tir.placeholder((2, 20011), "float32", name="X"), axis=1, name="S"), target=T80)


def wsum():
    x = tir.placeholder((4, 120), "float32", name="x")
    k = tir.reduce_axis(7, name="k")
    return tir.auto_schedule(tir.compute((4, 114), lambda i, j: tir.max(x[i, j + k], axis=k), name="W"), target=T80)


def anyscan():
    x = tir.placeholder((3, 70), "int8", name="X")
    return tir.auto_schedule(tir.scan(x, axis=1, op="sum", name="S"), target=T80)


def splitk():
    A = tir.placeholder((40, 515), "float32", name="A")
    k = tir.reduce_axis(515, name="k")
    R = tir.compute((40,), lambda i: tir.sum(A[i, k], axis=k), name="R")
    s = tir.Schedule(R, target=T80)
    partial = s.rfactor(R, s.split("R.k", [8, None])[0])
    b, t = s.split("R.rf.i", [None, 32])
    s.reorder("R.rf.k.0", b, t).bind("R.rf.k.0", "block.y").bind(b, "block.x").bind(t, "thread.x")
    s.stage_out(partial, at=t, scope="register")
    b, t = s.split("R.i", [None, 32])
    s.bind(b, "block.x").bind(t, "thread.x")
    return s


def attnc75():
    return tir.ops.attention(q="1x1x40x8", k="1x1x75x8").schedule(target=T80)


def shscan():
    return tir.auto_schedule(tir.scan(tir.placeholder((300, 70), "float32", name="X"), axis=1, name="S"), target=T80)


def shscan16rev():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((70, 50), "int64", name="X"), axis=1, op="max", reverse=True, name="S"), target=T80
    )


def mm90():
    return tir.ops.matmul(m=70, n=72, k=384, dtype="float16").schedule(target=T90)


def cum300():
    return tir.auto_schedule(tir.scan(tir.placeholder((2, 300), "float32", name="X"), axis=1, name="S"), target=T80)


def argi32():
    x = tir.placeholder((3, 70), "int32", name="A")
    k = tir.reduce_axis(70, name="k")
    s = tir.Schedule(tir.compute((3,), lambda i: tir.argmax(x[i, k], axis=k), name="P"), target=T80)
    s.bind("P.i", "thread.x")
    return s


def ema16():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((3, 100), "float16", name="X"), axis=1, op="sum", name="S"), target=T80
    )


def horner():
    c = tir.placeholder((9, 40), name="c")
    x = tir.placeholder((40,), name="x")
    k = tir.reduce_axis(9, name="k")
    op = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="horner", commutative=False)
    _, y = tir.compute((40,), lambda i: op((x[i], c[k, i]), axis=k), name="H")
    s = tir.Schedule([y], target=T80)
    s.bind("H.i", "thread.x")
    return s


def min64s():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((6, 45), "float64", name="X"), axis=1, op="min", name="S"), target=T80
    )


def anyb():
    x = tir.placeholder((4, 70), "float32", name="X")
    b = tir.compute((4, 70), lambda i, j: tir.cast(x[i, j] > 0.5, "int32"), name="b")
    return tir.auto_schedule(tir.scan(b, axis=1, op="max", name="S"), target=T80)


def prod16():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((3, 50), "float16", name="X"), axis=1, op="prod", name="S"), target=T80
    )


def lcse64():
    return log_cumsum_exp("float64")


def runs():
    k = tir.placeholder((4, 51), "int32", name="k")
    x = tir.placeholder((4, 50), name="x")
    g = tir.compute((4, 50), lambda i, j: tir.where(k[i, j + 1] != k[i, j], 1, 0), name="g")
    op = tir.combiner(
        lambda a, b: (a[0] | b[0], tir.where(b[0] != 0, b[1], a[1] + b[1])), (0, 0.0), name="seg", commutative=False
    )
    return tir.auto_schedule(tir.scan((g, x), axis=1, op=op, name="s")[1], target=T80)


def maxi64():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((3, 40), "int64", name="X"), axis=1, op="max", name="S"), target=T80
    )


def cumi64():
    return tir.auto_schedule(tir.scan(tir.placeholder((4, 90), "int64", name="X"), axis=1, name="S"), target=T80)


def minu32():
    return tir.auto_schedule(
        tir.scan(tir.placeholder((4, 90), "uint32", name="X"), axis=1, op="max", name="S"), target=T80
    )


def countdup():
    x = tir.placeholder((5, 64), "int64", name="x")
    m = tir.scan(x, axis=1, op="max", name="m")
    return tir.auto_schedule(
        tir.scan(tir.compute((5, 64), lambda i, j: tir.where(m[i, j] == x[i, j], 1, 0), name="e"), axis=1, name="S"),
        target=T80,
    )


KERNELS: dict[str, Callable[[], tir.Schedule]] = {
    f.__name__: f
    for f in (
        cummax16,
        exrev64,
        prodi64,
        exmin32,
        gated32,
        gated16,
        seg32,
        runarg,
        tiled,
        tiled64,
        tiledi32,
        tiledaff,
        lcse,
        online16,
        attnc16,
        attnc32,
        mm32,
        mm16,
        welford,
        sat2d,
        mp64,
        ext1,
        long32,
        wsum,
        anyscan,
        splitk,
        attnc75,
        shscan,
        shscan16rev,
        mm90,
        cum300,
        argi32,
        ema16,
        horner,
        min64s,
        anyb,
        prod16,
        lcse64,
        runs,
        maxi64,
        cumi64,
        minu32,
        countdup,
    )
}


if __name__ == "__main__":
    sys.exit(judge_edits(__doc__ or "", "edited_carries", KERNELS))
