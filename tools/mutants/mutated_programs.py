"""The programs that are mutated: operators with default schedules, the te examples, and one for each construct."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorir as tir
from tensorir import nn
from tensorir.schedule.schedule import BaseSchedule

CPU = "opencl -registers=16 -vector_bytes=32 -units=2"  # the same programs on every machine
GPU = "opencl -kind=gpu"
Make = Callable[[], BaseSchedule]


def matmul(m: int, n: int, k: int) -> Any:
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    kk = tir.reduce_axis(k, name="k")
    return A, B, tir.compute((m, n), lambda i, j: tir.sum(A[i, kk] * B[kk, j], axis=kk), name="C")


def tiled(
    target: str, by: tuple[int, int] = (2, 3), per: tuple[int, int] = (2, 2), depth: int = 4, vector: int | None = None
) -> BaseSchedule:
    """Two shared copies and a register tile."""
    A, B, C = matmul(9, 13, 7)
    s = tir.Schedule(C, target)
    bi, ti, ii = s[C].split("i", [None, by[0], per[0]])
    bj, tj, ji = s[C].split("j", [None, by[1], per[1]])
    ko, ki = s[C].split("k", [None, depth])
    s[C].reorder(bi, bj, ti, tj, ko, ki, ii, ji)
    s[C].bind(bi, "block.y").bind(bj, "block.x").bind(ti, "thread.y").bind(tj, "thread.x")
    s.stage_out(C, at=tj, scope="register")
    s.stage_in(A, at=ko, scope="shared", vector=vector)
    s.stage_in(B, at=ko, scope="shared", vector=vector, pad=1)
    return s


def chain(target: str) -> BaseSchedule:
    """A padded producer in shared memory, a reduction placed at its reader, an epilogue."""
    X = tir.placeholder((3, 13), name="X")
    P = tir.compute((3, 15), lambda b, i: X.get(b, i - 1, fill=0), name="P")
    r = tir.reduce_axis(3, name="r")
    Y = tir.compute((3, 13), lambda b, i: tir.sum(P[b, i + r], axis=r), name="Y")
    Z = tir.compute((3, 13), lambda b, i: tir.where(Y[b, i] > 0, Y[b, i], 0), name="Z")
    s = tir.Schedule(Z, target)
    outer, inner = s[Z].split("i", [None, 4])
    s[Z].bind("b", "block.x").bind(inner, "thread.x")
    s.set_scope("P", "shared")
    s.compute_at("Y", inner)
    s.compute_at("P", outer)
    return s


def exchange(target: str) -> BaseSchedule:
    """Threads hand values to each other through shared memory, twice."""
    X = tir.placeholder((5, 8), name="X")
    Y = tir.compute((5, 8), lambda i, j: X[i, j] * 2, name="Y")
    Z = tir.compute((5, 8), lambda i, j: Y[i, 7 - j] + Y[i, j], name="Z")
    W = tir.compute((5, 8), lambda i, j: Z[i, (j + 3) % 8] * X[i, j], name="W")
    s = tir.Schedule(W, target)
    s.compute_at(Z, W, "i")
    s.compute_at(Y, W, "i")
    for name in ("Y.j", "Z.j", "W.j"):
        s.bind(name, "thread.x")
    return s


def partial_sums(target: str) -> BaseSchedule:
    """rfactor: partial sums per thread, then one sum over them."""
    X = tir.placeholder((5, 22), name="X")
    r = tir.reduce_axis(22, name="r")
    S = tir.compute((5,), lambda i: tir.sum(X[i, r], axis=r), name="S")
    s = tir.Schedule(S, target)
    _, inner = s[S].split("r", [None, 4])
    rf = s[S].rfactor(inner)
    s[rf].bind("i", "block.x").bind("r.1", "thread.x")
    s[S].bind("i", "block.x")
    return s


def argmin(target: str) -> BaseSchedule:
    X = tir.placeholder((6, 9), name="X")
    r = tir.reduce_axis(9, name="r")
    Y = tir.compute((6,), lambda i: tir.argmin(X[i, r], axis=r), name="Y")
    s = tir.Schedule(Y, target)
    outer, inner = s[Y].split("i", [None, 4])
    s[Y].bind(outer, "block.x").bind(inner, "thread.x")
    s[Y].split("r", [None, 2])
    return s


def gather(target: str) -> BaseSchedule:
    B, at = tir.placeholder((9, 6), name="B"), tir.placeholder((7,), "int32", name="at")
    G = tir.compute((7, 6), lambda p, q: (B[at[p], q], B[at[p], q] * 2), name="G")
    s = tir.Schedule(G, target)
    s.bind("G.p", "block.x")
    s.split("G.q", [None, 4])
    return s


def vectors(target: str) -> BaseSchedule:
    """A vector copy through a padded, transposed register tile."""
    X = tir.placeholder((6, 16), name="X")
    Y = tir.compute((6, 16), lambda i, j: X[i, j] * 3 + 1, name="Y")
    s = tir.Schedule(Y, target)
    _, lanes = s[Y].split("j", [None, 4])
    s[Y].vectorize(lanes).bind("i", "thread.x")
    s.stage_in(X, at="Y.j.0", scope="register", vector=4)
    return s


def packed(target: str) -> BaseSchedule:
    """A packing kernel, then the reader."""
    _, B, C = matmul(7, 9, 5)
    s = tir.Schedule(C, target)
    s.stage_in(B, at="root", scope="global", order=[1, 0], pad=2)
    s[C].bind("i", "block.x")
    out = s.stage_out(C, at="C.i", scope="shared")
    s[out].bind("j", "thread.x")
    s[C].bind("j", "thread.x")
    return s


def normalise(target: str) -> BaseSchedule:
    """Several reductions over one row, kept on chip."""
    X = tir.placeholder((4, 10), name="X")
    r, q = tir.reduce_axis(10, name="r"), tir.reduce_axis(10, name="q")
    M = tir.compute((4,), lambda i: tir.max(X[i, r], axis=r), name="M")
    E = tir.compute((4, 10), lambda i, j: tir.exp(X[i, j] - M[i]), name="E")
    S = tir.compute((4,), lambda i: tir.sum(E[i, q], axis=q), name="S")
    Y = tir.compute((4, 10), lambda i, j: E[i, j] / S[i], name="Y")
    s = tir.Schedule(Y, target)
    for name in ("S", "E", "M"):
        s.compute_at(name, "Y.i")
    s.bind("Y.i", "block.x").bind("Y.j", "thread.x").bind("E.j", "thread.x")
    return s


def small_conv(target: str, layout: str = "NCHW") -> BaseSchedule:
    return tir.ops.conv2d(n=1, c=4, h=6, w=6, k=5, r=3, s=3, pad=1, layout=layout).schedule(target=target)


def small_matmul(target: str, **options: Any) -> BaseSchedule:
    return tir.ops.matmul(m=10, n=17, k=9, **options).schedule(target=target)


def pool(target: str) -> BaseSchedule:
    X = tir.placeholder((19, 5), name="X")
    r = tir.reduce_axis(3, name="r")
    Y = tir.compute((9, 5), lambda i, j: tir.max(X[2 * i + r, j], axis=r), name="Y")
    s = tir.Schedule(Y, target)
    outer, inner = s[Y].split("i", [None, 4])
    s[Y].reorder(outer, "j", inner)
    s[Y].bind(outer, "block.x").bind("j", "thread.x")
    s.stage_in(X, at=outer, scope="shared", pad=1)
    return s


def depthwise(target: str) -> BaseSchedule:
    X, W = tir.placeholder((1, 4, 7, 6), name="X"), tir.placeholder((4, 1, 3, 3), name="W")
    Y = nn.conv2d(X, W, groups=4, pad=1, name="Y")
    s = tir.Schedule(Y, target)
    s.compute_inline("X_pad")
    s[Y].bind("k", "block.x").bind("p", "thread.y").bind("q", "thread.x")
    return s


def pipelined(target: str) -> BaseSchedule:
    A, B = tir.placeholder((10, 13), name="A"), tir.placeholder((13, 6), name="B")
    k = tir.reduce_axis(13, name="k")
    C = tir.compute((10, 6), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = tir.Schedule(C, target)
    ib, it = s[C].split("i", [None, 4])
    outer, _ = s[C].split("k", [None, 4])
    s[C].reorder(ib, it, "j", outer)
    s[C].bind(ib, "block.x").bind(it, "thread.y").bind("j", "thread.x")
    s.stage_in(A, at=outer, scope="shared")
    s.stage_in(B, at=outer, scope="shared", layout="k, j -> k, j ^ k%2")
    s.pipeline(outer)
    return s


PROGRAMS: dict[str, Make] = {}
for _target, _short in (("opencl", "opencl"), ("cuda", "cuda")):
    for _f in (tiled, chain, exchange, partial_sums, argmin, gather, vectors, packed, normalise, pool, depthwise):
        PROGRAMS[f"{_f.__name__} {_short}"] = lambda f=_f, t=_target: f(t)  # type: ignore[misc]
PROGRAMS |= {
    "tiled vector cuda": lambda: tiled("cuda", (2, 2), (2, 2), 4, vector=2),
    "conv2d cpu": lambda: small_conv(CPU),
    "conv2d cpu nhwc": lambda: small_conv(CPU, "NHWC"),
    "conv2d gpu": lambda: small_conv(GPU),
    "conv2d cuda": lambda: small_conv("cuda", "NHWC"),
    "matmul cpu": lambda: small_matmul(CPU),
    "matmul cpu bias": lambda: small_matmul(CPU, bias=True, act="relu"),
    "pipelined opencl": lambda: pipelined(GPU),
    "pipelined cuda": lambda: pipelined("cuda"),
    "matmul gpu": lambda: small_matmul(GPU),
    "matmul cuda": lambda: small_matmul("cuda", tb=True, batch=2),
}

_TE = Path(__file__).parents[2] / "examples" / "te"


def _te(file: Path, step: str) -> Make:
    def make() -> BaseSchedule:
        spec = importlib.util.spec_from_file_location(f"te_{file.stem}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, step)("opencl")[0]  # type: ignore[no-any-return]

    return make


for _name, _step in (("gemm", "blocked"), ("gemm", "parallel"), ("conv", "shared"), ("conv", "vectors")):
    if (_TE / f"{_name}.py").exists():
        PROGRAMS[f"te {_name} {_step}"] = _te(_TE / f"{_name}.py", _step)
