"""parallel: what it binds, and what it leaves to the other rules."""

import pytest

import tensorir as tir


def product(target="opencl"):
    A, B, k = tir.placeholder((9, 8), name="A"), tir.placeholder((8, 6), name="B"), tir.reduce_axis(8, name="k")
    return tir.Schedule(tir.compute((9, 6), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C"), target)


def test_iterations_become_blocks_and_the_trace_says_parallel():
    s = product()
    s["C"].parallel("i").parallel("j")
    assert str(s.trace) == "s.parallel('C.i')\ns.parallel('C.j')"
    launch = s.emitted().kernels[0]
    assert (launch.grid, launch.block) == ((9, 6, 1), (1, 1, 1))
    assert "i = get_group_id(0);" in s.source()
    assert "j = get_group_id(1);" in s.source()
    assert "blockIdx.y" in s.source("cuda")
    assert s.check()
    assert tir.replay(s.outputs, s.trace.to_json()).source() == s.source()


def test_axes_that_are_taken_are_passed_over():
    s = product()
    s.bind("C.i", "block.x").parallel("C.j")
    assert s.emitted().kernels[0].grid == (9, 6, 1)
    s = product()
    s.bind("C.i", "block.y").parallel("C.j")
    assert s.emitted().kernels[0].grid == (6, 9, 1)


def test_a_producer_inside_stays_with_its_block():
    X = tir.placeholder((4, 8), name="X")
    P = tir.compute((4, 8), lambda i, j: X[i, j] + 1, name="P")
    s = tir.Schedule(tir.compute((4, 8), lambda i, j: P[i, j] * 2, name="Q"))
    s.compute_at("P", s.split("Q.i", [2, 2])[0])
    s.parallel("Q.i.0")
    assert s.emitted().kernels[0].grid == (2, 1, 1)
    assert s.check()


def test_what_would_lose_its_memory_is_refused_as_for_bind():
    s = product()
    s.split("C.k", [None, 4])
    s.stage_in("A", "C.i", "register")
    with pytest.raises(tir.ScheduleError) as caught:
        s.parallel("A_register.ax1")
    assert caught.value.code == "scope.private"
    assert not any(x.primitive == "parallel" for x in s.trace)


def test_a_parallel_loop_may_hold_threads_and_stand_in_a_serial_one():
    s = product("opencl -kind=gpu")
    s.bind("C.j", "thread.x")
    s.reorder("C.j", "C.i")
    s.parallel("C.i")
    assert s.check()
    s = product()
    s.parallel("C.j")  # C.i around it stays serial, inside every block
    assert "get_group_id(0)" in s.source()
    assert s.check()
