"""What reduce_across refuses."""

import pytest
from refusal_cases import Refusals, assert_refused, plain

import tensorir as tir

REFUSALS = Refusals()
once = REFUSALS.once

once("reduce-across.serial", "unrolled", lambda s: s.reduce_across("C.k", "thread.x"),
     before=lambda s: s.unroll("C.k"))  # fmt: skip
once("reduce-across.thread-axis", "not a thread axis", lambda s: s.reduce_across("C.k", "block.x"))
once("reduce-across.thread-axis", "not a thread axis", lambda s: s.reduce_across("C.k", "vthread"))
once("reduce-across.threads", "have one thread", lambda s: s.reduce_across("C.k", "thread.x"), lambda: plain("c"))
once("reduce-across.reduce-loop", "drives no reduction", lambda s: s.reduce_across("C.i", "thread.x"))
once("reduce-across.outermost", "C.k.0, outside C.k.1", lambda s: s.reduce_across("C.k.1", "thread.x"),
     before=lambda s: s.split("C.k", [None, 4]))  # fmt: skip
once("reduce-across.once", "thread.y has terms of C already", lambda s: s.reduce_across("C.k.1", "thread.x"),
     before=lambda s: (s.split("C.k", [4, None]), s.reduce_across("C.k.0", "thread.y")))  # fmt: skip
once("bind.device-limit", "exceed the", lambda s: s.reduce_across("C.k", "thread.x"),
     lambda: plain("opencl -max_threads=8"))  # fmt: skip


@REFUSALS.case("reduce-across.outermost", "try: s.rfactor('C', 'C.k.1')")
def a_producer_between_the_loops():
    X, k = tir.placeholder((8, 64), name="X"), tir.reduce_axis(64, name="k")
    P = tir.compute((8, 64), lambda i, j: X[i, j] * 2.0, name="P")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.sum(P[i, k], axis=k), name="C"), "cuda")
    ko, ki = s.split("C.k", [None, 8])
    s.compute_at("P", ko)
    yield s
    s.reduce_across(ki, "thread.x")


@REFUSALS.case("reduce-across.outermost", "try: s.bind(…, 'thread.x') of a loop over the results of l")
def terms_of_a_rolled_stage():
    X, k, k2 = tir.placeholder((8, 64), name="X"), tir.reduce_axis(64, name="k"), tir.reduce_axis(64, name="k")
    m = tir.compute((8,), lambda i: tir.max(X[i, k], axis=k), name="m")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.sum(tir.exp(X[i, k2] - m[i]), axis=k2), name="l"), "cuda")
    ko, ki = s.split("l.k", [None, 8])
    s.rolling("m", into="l", at=ko)
    yield s
    s.reduce_across(ki, "thread.x")


@REFUSALS.case("reduce-across.reduce-loop", "drives the ordered axis")
def a_scatter():
    at = tir.placeholder((64,), "int32", name="at")
    s = tir.Schedule(tir.scatter((9,), over=(64,), index=lambda t: (at[t],), value=lambda t: 1, name="h"))
    yield s
    s.reduce_across("h.t", "thread.x")


@REFUSALS.case("scope.overlap", "write the same cells")
def a_copy_written_by_every_thread():
    s = plain()
    s.reorder("C.k", "C.j").reduce_across("C.k", "thread.x")
    yield s
    s.stage_out("C", at="C.k", scope="register")


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)
