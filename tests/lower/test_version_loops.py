"""Inner loops in two versions: for conditions that hold in all of their iterations, and for all others."""

import numpy as np
import pytest

import tensorir as tir

OPENCL = "opencl -registers=32 -vector_bytes=64 -units=2"


def scheduled(cell, target=OPENCL):
    """Sums of 16 terms of 5 x 9 cells, their loop innermost."""
    r = tir.reduce_axis(16, name="r")
    y = tir.compute((5, 9), lambda i, j: tir.sum(cell(i, j, r), axis=r), name="y")
    s = tir.Schedule(y, target)
    s.bind("y.i", "block.x")
    return s


X = tir.placeholder((5, 9, 16), name="x")


def loops(s):
    return s.source(s.target).count("for (long r")


def test_a_border_that_the_loop_does_not_change_is_asked_once():
    s = scheduled(lambda i, j, r: X.get(i + 1, j - 1, r, fill=0))
    assert loops(s) == 2 and s.check()
    x = np.arange(720, dtype="float32").reshape(5, 9, 16) % 7
    want = np.pad(x, ((0, 1), (1, 0), (0, 0)))[1:, :9].sum(2)
    assert np.array_equal(s.build("opencl:pocl")(x), want)


def test_conditions_of_unrolled_loops_inside_are_asked_for_all_of_their_iterations():
    never = scheduled(lambda i, j, r: X.get(i, j - 1, r, fill=0))  # the first column is out of range
    seldom = scheduled(lambda i, j, r: X.get(i - 1, j, r, fill=0))
    for s, versions in ((never, 1), (seldom, 2)):
        s.reorder("y.r", "y.j").unroll("y.j")
        assert loops(s) == versions and s.check()


@pytest.mark.parametrize("cell", [
    lambda i, j, r: X.get(i, j, r - 1, fill=0),  # of the loop itself
    lambda i, j, r: tir.where(X[i, j, 0] > 0, X[i, j, r], 0.0),  # of data
    lambda i, j, r: X[i, j, r],
], ids=["moves", "data", "none"])  # fmt: skip
def test_other_loops_stay_as_they_are(cell):
    s = scheduled(cell)
    assert loops(s) == 1 and s.check()


def test_gpus_predicate():
    s = scheduled(lambda i, j, r: X.get(i + 1, j - 1, r, fill=0), "cuda -arch=sm_80")
    assert s.source().count("for (int r") + s.source().count("for (long long r") <= 1
