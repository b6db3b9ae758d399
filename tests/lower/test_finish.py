"""Loops end where the guard around their whole body ends them; conditions stand in front of unrolled loops."""

from operator import floordiv, mod

import numpy as np
import pytest

import tensorir as tir
from tensorir.ir.tree import If, Kind, Loop
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower


@pytest.mark.parametrize(("n", "factor", "length"), [(5, 8, 5), (6, 4, 4)])
def test_a_loop_is_cut_at_a_guard_on_its_own_variable(n, factor, length):
    a = tir.placeholder((n,), name="A")
    s = tir.Schedule(tir.compute((n,), lambda i: a[i] + 1, name="C"), "opencl")
    s.split("C.i", [None, factor])
    kernel = lower(s.program, s.target).kernels[0]
    assert max(int(x.extent.value) for x in find(kernel.body, Loop)) == length
    assert bool(find(kernel.body, If)) == (n > factor)  # one tile: the loop itself ends there; two: only the last does
    assert s.check()
    assert s.check(level="device")


def strips(rows, block, strip, target="opencl"):
    """Rows by blocks and, of each block, by strips of unrolled rows, each a sum of five."""
    a, k = tir.placeholder((rows + 4,), name="A"), tir.reduce_axis(5, "k")
    s = tir.Schedule(tir.compute((rows,), lambda i: tir.sum(a[i + k], axis=k), name="C"), target)
    _, inner = s.split("C.i", [None, block])
    _, row = s.split(inner, [None, strip])
    s.reorder("C.k", row).unroll(row)
    assert s.check()
    return s


def test_a_condition_stands_in_front_of_the_loops_that_it_is_the_same_in():
    """Two blocks of two strips of 5 rows; the last strip is beyond the end as a whole."""
    s = strips(15, 10, 5)
    assert "if (i_0 * 2 + i_1_0 < 3)" in s.source()
    body = lower(s.program, s.target).kernels[0].body
    assert all(not find(x, If) for x in find(body, Loop, lambda x: x.kind is Kind.UNROLL))
    assert s.check(level="device")
    assert "if (i_0 * 10 + i_1_0 * 5 + i_1_1 < 14)" in strips(14, 10, 5).source()  # a strip that ends within


def test_work_items_with_neighbours_keep_conditions_where_they_are():
    s = strips(15, 10, 5, "opencl -kind=gpu")
    s.bind("C.i.0", "block.x").bind("C.i.1.0", "thread.x")
    assert "< 15)" in s.source()


DIVISORS = [*range(-9, 0), *range(1, 10)]


@pytest.mark.parametrize("target", ["opencl", "c"])
def test_quotients_of_indices_round_down_whatever_the_signs(target):
    """On the device: the interpreter rounds as declared, and C toward zero."""

    def parts(i):
        found = [(i - off) // d + (i - off) % d * 1000 for d in DIVISORS for off in (0, 7, 20)]
        return tuple(tir.cast(x, "int32") for x in found)

    outputs = tir.compute((23,), parts, name="Q")
    at = np.arange(23)
    kernel = tir.Schedule(outputs, target=target).build("c:0" if target == "c" else None)
    for got, (d, off) in zip(kernel(), [(d, off) for d in DIVISORS for off in (0, 7, 20)], strict=True):
        assert np.array_equal(got, (at - off) // d + (at - off) % d * 1000), (d, off)


def test_quotients_of_indices_round_down_in_cuda():
    X = tir.placeholder((16,), name="X")
    s = tir.Schedule(tir.compute((9,), lambda i: X[i // -3 + 4] + X[(i - 4) % -5 + 4], name="Y"), "cuda -arch=sm_80")
    s.bind("Y.i", "thread.x")
    assert s.check("emulate"), s.check("emulate")


@pytest.mark.parametrize(("terms", "lanes", "first"), [(6, 2, 0), (11, 4, 3)])
def test_copies_of_a_loop_that_end_early_say_nothing_of_the_others(terms, lanes, first):
    """The last copy of an unrolled loop has no iteration left: its range is not that of the variable in the others."""
    x, r = tir.placeholder((6, 40), "int32", name="X"), tir.reduce_axis(terms, name="r")

    def element(i):
        found = x[i, (first - r) // 2 + 20]
        return tir.sum(tir.where(found > 0, found * (r + 1), 0), axis=r)

    s = tir.Schedule(tir.compute((6,), element, name="Y"), "c")
    s.reduce_in_lanes("Y", "Y.r", lanes, vectors=2)
    s.split("Y.i", [None, 4])
    given, at = (np.arange(240, dtype=np.int32) * 7 % 101 + 1).reshape(6, 40), np.arange(terms)
    assert np.array_equal(s.build("c:0")(given), (given[:, (first - at) // 2 + 20] * (at + 1)).sum(1))


@pytest.mark.parametrize("target", ["opencl", "c"])
def test_divisors_that_vary_and_may_be_negative_round_down_too(target):
    def parts(i, j):
        return [f(a, b) for f in (floordiv, mod) for a, b in ((i - 3, j - 9), (i - 3, j + 1), (i, j - 9))]

    def element(i, j):
        return tuple(tir.cast(x, "int32") for x in parts(i, j))

    (i, j), kernel = np.indices((7, 8)), tir.Schedule(tir.compute((7, 8), element, name="Q"), target=target)
    for got, expected in zip(kernel.build("c:0" if target == "c" else None)(), parts(i, j), strict=True):
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("divisor", [-2, -3, -5])
def test_what_is_staged_around_negative_quotients_is_large_enough(divisor):
    at = np.arange(9)
    for index in (lambda i: i // divisor + 4, lambda i: (8 - i) // divisor + 4, lambda i: (i - 8) // divisor * 2 + 1):
        size = int(index(at).max()) + 1
        X, x = tir.placeholder((size,), name="X"), np.arange(size, dtype="float32")
        s = tir.Schedule(tir.compute((9,), lambda i, index=index: X[index(i)], name="Y"))
        s.stage_in("X", at=s.split("Y.i", [None, 4])[0], scope="register")
        assert s.check(), s.check()
        np.testing.assert_array_equal(s.build()(x), x[index(at)])


def test_divisors_that_vary_round_down_in_cuda():
    X = tir.placeholder((16,), name="X")
    Y = tir.compute((9, 4), lambda i, j: X[(i - 4) // (j - 5) + 5] + X[i % (j - 4) + 4], name="Y")
    s = tir.Schedule(Y, "cuda -arch=sm_80")
    s.bind("Y.i", "thread.x")
    assert s.check("emulate"), s.check("emulate")
