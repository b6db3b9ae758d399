"""Selects in short loops as a C compiler builds them: gcc 12 took the first mask for all copies of a loop."""

import numpy as np
import pytest

import tensorir as tir


@pytest.mark.parametrize("shape", [(5, 3), (17, 3), (16, 5), (64, 7)])
def test_a_select_in_a_short_inner_loop_reads_what_its_own_condition_says(shape):
    x, y = (tir.placeholder(shape, name=name) for name in "xy")
    s = tir.Schedule(tir.compute(shape, lambda i, j: tir.where(x[i, j] > 0, y[i, j], 0.0), name="z"), "c")
    r = np.random.default_rng(0)
    given = [r.integers(-4, 5, shape).astype("float32") for _ in "xy"]
    assert np.array_equal(s.build("c:0")(*given), np.where(given[0] > 0, given[1], 0))


def test_a_row_compared_with_its_maximum():
    x, y, k = (
        tir.placeholder((17, 16, 3), name="x"),
        tir.placeholder((17, 16, 3), name="y"),
        tir.reduce_axis(3, name="k"),
    )
    m = tir.compute((17, 16), lambda i, j: tir.max(x[i, j, k], axis=k), name="m")
    z = tir.compute((17, 16, 3), lambda i, j, c: tir.where(x[i, j, c] < m[i, j], y[i, j, c], x[i, j, c] * 2), name="z")
    r = np.random.default_rng(0)
    a, b = (r.integers(-4, 5, x.shape).astype("float32") for _ in "xy")
    assert np.array_equal(tir.auto_schedule(z, "c").build("c:0")(a, b), np.where(a < a.max(2, keepdims=True), b, a * 2))
