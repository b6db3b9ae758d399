"""Loops dealt out to all threads of a block, and registers that one loop's threads fill and another's read."""

from __future__ import annotations

import shutil

import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import random_arguments


def pair(n=96, threads=32, target="cuda -arch=sm_80"):
    """P = 2 X, R the sums of its neighbours, Q both together; threads have Q's last axis."""
    X = tir.placeholder((4, n), name="X")
    P = tir.compute((4, n), lambda i, j: X[i, j] * 2, name="P")
    k = tir.reduce_axis(2, name="k")
    R = tir.compute((4, n), lambda i, j: tir.sum(P[i, (j + k) % n], axis=k), name="R")
    Q = tir.compute((4, n), lambda i, j: P[i, n - 1 - j] + R[i, j], name="Q")
    s = tir.Schedule(Q, target)
    s.bind("Q.i", "block.x")
    outer, inner = s.split("Q.j", [None, threads])
    s.reorder(inner, outer)
    return s, inner


@pytest.mark.parametrize("n", [96, 70, 20])
def test_threads_take_turns(n):
    """As many iterations as threads or fewer, or more that they share unevenly."""
    s, _ = pair(n)
    s.set_scope("R", "shared").set_scope("P", "shared").compute_at("R", "Q.i").compute_at("P", "Q.i")
    s.bind("Q.j.1", "thread.x").bind("P.j", "threads").stage_out("R", at="R.j", scope="register")
    s.unroll("R.k").bind("R.j", "threads")
    assert "threads" in str(s.trace)
    assert "for R.j in" in str(s)
    assert s.check(), s.check()
    if shutil.which("g++"):
        source = s.emitted()
        arrays = random_arguments(s.outputs, 0)
        got = emulate(source, arrays)
        assert not got.problems, got.problems


def refused(f):
    with pytest.raises(tir.ScheduleError) as e:
        f()
    return e.value.code


def test_what_cannot_be_dealt_out():
    s, _ = pair()
    s.set_scope("R", "shared").compute_at("R", "Q.i")
    assert refused(lambda: s.bind("R.k", "threads")) == "bind.reduction-has-one-owner"
    s.bind("R.j", "threads")
    assert refused(lambda: s.bind("R.i", "threads")) in ("bind.axis-free", "scope.overlap")
    assert refused(lambda: s.unroll("R.j")) == "unroll.serial"
    assert refused(lambda: s.stage_in("P", at="R.j", scope="register")) == "stage-in.room"


def test_registers_that_all_threads_fill_are_nobody_elses():
    s, _ = pair()
    s.compute_at("R", "Q.i").set_scope("R", "register")
    assert refused(lambda: s.bind("R.j", "threads")) == "scope.private"


def two_loops(factor=8, scope="register", rounds=False):
    """P in registers, filled in one loop over threads and read in another."""
    X = tir.placeholder((2, 64), name="X")
    P = tir.compute((2, 64), lambda i, j: X[i, j] * 2, name="P")
    R = tir.compute((2, 64), lambda i, j: P[i, j] + 1, name="R")
    s = tir.Schedule(R, "cuda -arch=sm_80")
    s.bind("R.i", "block.x").compute_at("P", "R.i")
    s.set_scope("P", scope)
    s.bind(s.split("R.j", [None, 8, 4])[1] if rounds else s.split("R.j", [None, factor])[0], "thread.x")
    return s


def test_threads_read_what_they_wrote_in_another_loop():
    s = two_loops()
    s.bind(s.split("P.j", [None, 8])[0], "thread.x")
    assert s.check()
    assert "float P[8];" in s.source()


def test_threads_may_have_their_turn_again():
    """Each has four cells of every 32: vectors of neighbouring threads are next to each other."""
    s = two_loops(rounds=True)
    s.bind(s.split("P.j", [None, 8, 4])[1], "thread.x")
    assert s.check()
    for others, mine in (([None, 8], 0), ([None, 8, 2], 1), ([8, 8], 1)):  # 8, 2 and 1 cells at a time
        s = two_loops(rounds=True)
        loop = s.split("P.j", others)[mine]
        assert refused(lambda s=s, loop=loop: s.bind(loop, "thread.x")) == "scope.private"


@pytest.mark.parametrize("mine", ["outer", "inner", "later"])
def test_but_not_what_another_thread_wrote(mine):
    s = two_loops()
    loop = s.split("P.j", [None, 8] if mine == "outer" else [8, 8])[mine != "outer"]
    if mine == "outer":  # the same extent, other cells
        loop = s.split("P.j.1", [8, 1])[0]
    assert refused(lambda: s.bind(loop, "thread.x")) == "scope.private"


def transformed(async_=False):
    """Sums and differences of pairs, worked out in registers on their way to shared memory; each is used 16 times."""
    X, W = tir.placeholder((8, 40), name="X"), tir.placeholder((40, 16), name="W")
    u = tir.reduce_axis(2, name="u")
    S = tir.compute((8, 20, 2), lambda i, k, v: tir.sum(X[i, 2 * k + u] * tir.where(u * v > 0, -1.0, 1.0), axis=u),
                    name="S")  # fmt: skip
    k = tir.reduce_axis(20, name="k")
    C = tir.compute((8, 16), lambda i, j: tir.sum(S[i, k, j % 2] * W[k, j], axis=k), name="C")
    s = tir.Schedule(C, "cuda -arch=sm_80")
    s.bind("C.i", "thread.y").bind("C.j", "thread.x").stage_out("C", at="C.j", scope="register")
    ko, _ = s.split("C.k", [None, 4])
    s.set_scope("S", "shared").compute_at("S", ko)
    e = s.fuse("S.i", "S.k")
    s.stage_out("S", at=e, scope="register")
    s.stage_in("X", at=e, scope="register")
    s.stage_in("W", at=ko, scope="shared")
    s.bind(e, "threads").pipeline(ko, 2, async_=async_)
    return s


@pytest.mark.parametrize("async_", [False, True])
def test_what_is_worked_out_in_registers_is_loaded_ahead(async_):
    s = transformed(async_)
    text = s.source()
    assert ("X_register_next" in text) == (not async_), "asynchronous copies pass through no register"
    assert s.check(), s.check()
    if shutil.which("g++"):
        got = emulate(s.emitted(), random_arguments(s.outputs, 0))
        assert not got.problems, got.problems
