"""Workloads for the tests of tuning, the command line and export; also run by the worker process."""

import time

import numpy as np

import tensorir as tir
from tensorir.api.workload import Template


def own():
    """One right configuration, and others that are refused or hang; ``chaos_zoo`` has the worse ones."""
    A = tir.placeholder((64,), name="A")
    C = tir.compute((64,), lambda i: A[i] * 5 + 7, name="C")

    def schedule(s, config):
        match config["mode"]:
            case "hang":
                time.sleep(10_000)
            case "raise":
                raise KeyError("not here")
            case "illegal":
                s.bind("C.nothing", "block.x")
        return s

    return tir.Workload("own", C, templates={"t": (schedule, tir.Space(mode=["plain", "hang", "raise", "illegal"]))})


def tile(s, c):
    io, ii = s.split("C.i", [None, c["ti"]])
    s.split("C.j", [None, c["tj"]])
    s.reorder(io, "C.j.0", ii, "C.j.1")
    s.bind(io, "block.x")
    if c["out"]:
        s.stage_out("C", at="C.j.0", scope="register")


def product(n=24):
    """A small matrix product with eight configurations."""
    A, B = tir.placeholder((n, n), name="A"), tir.placeholder((n, n), name="B")
    k = tir.reduce_axis(n, name="k")
    C = tir.compute((n, n), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    space = tir.Space(ti=[1, 2], tj=[4, 8], out=[False, True])
    return tir.Workload(
        "product", C, {"tile": (tile, space)}, parameters={"n": n}, baselines={"numpy": lambda a, b: a @ b}
    )


def rounded():
    """Three times x, by way of sevenths: a template that rounds where the declaration does not."""
    x = tir.placeholder((40,), name="x")
    y = tir.compute((40,), lambda i: x[i] * 3, name="y")
    other = tir.compute((40,), lambda i: x[i] * (1 / 7) * 21, name="y")
    template = Template(lambda s, _: tir.Schedule(other, s.target), tir.Space(), approximate=True)
    return tir.Workload("rounded", y, {"sevenths": template}, max_error=1e-5)


def unlucky():
    """Its default computes something else than its text was made for."""

    def schedule(s, c):
        io, _ = s.split("C.i", [None, c["tile"]])
        s.bind(io, "block.x")
        return s.with_source(s.source().replace("* 5.0f", "* 6.0f")) if c["tile"] == 4 else s

    A = tir.placeholder((64,), name="A")
    C = tir.compute((64,), lambda i: A[i] * 5, name="C")
    return tir.Workload("unlucky", C, {"t": (schedule, tir.Space(tile=[4, 8, 16], default={"tile": 4}))})


def not_a_workload():
    return 5


def rich():
    """Several outputs, a gather, a scalar, two kernels: what an export must carry."""
    table, index = tir.placeholder((7, 5), name="table"), tir.placeholder((6,), "int32", name="index")
    scale = tir.scalar("scale")
    picked = tir.compute((6, 5), lambda i, j: table[index[i], j] * scale, name="picked")
    both = tir.compute((6, 5), lambda i, j: (picked[i, j] + 1, picked[i, j] - 1), name="both")
    return tir.Workload("rich", both, {"plain": (lambda s, c: None, tir.Space())})


def quantised(n=8):
    """A product whose elements are made whole numbers."""
    A, B = tir.placeholder((n, n), name="A"), tir.placeholder((n, n), name="B")
    k = tir.reduce_axis(n, name="k")
    S = tir.compute((n, n), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="S")
    C = tir.compute((n, n), lambda i, j: tir.cast(tir.round(S[i, j] * 4.0), "int32"), name="C")
    return tir.Workload("quantised", C, {"plain": (lambda s, c: None, tir.Space())})


def shares(m=8, n=64):
    """Each number of a row over the row's sum, which may cancel."""
    A = tir.placeholder((m, n), name="A")
    k = tir.reduce_axis(n, name="k")
    total = tir.compute((m,), lambda i: tir.sum(A[i, k], axis=k), name="total")
    C = tir.compute((m, n), lambda i, j: A[i, j] / total[i], name="C")
    return tir.Workload("shares", C, templates={"plain": (lambda s, c: None, tir.Space())})


def backwards(a):
    """``shares`` with the terms in the order that is least exact: one after the other, from the last."""
    total = np.zeros(len(a), np.float32)
    for column in a.T[::-1]:
        total += column
    return a / total[:, None]
