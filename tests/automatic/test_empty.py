"""Stages without cells, or without terms: schedules by themselves are right, of these and of what is next to them."""

import numpy as np
import pytest
from judging import TARGETS, judged_of
from written import axes, given

import tensorir as tir
from tensorir.expr.program import as_outputs


def no_cells():
    x = given("x", 0)
    return tir.compute((0,), lambda i: x[i] * 2, name="y")


def no_columns():
    x, b = given("x", 8, 0), given("b", 8)
    return tir.compute((8, 0), lambda i, j: x[i, j] + b[i], name="y")


def no_rows():
    x, (k,) = given("x", 0, 33), axes(k=33)
    return tir.compute((0,), lambda i: tir.sum(x[i, k], axis=k), name="y")


def no_terms():
    """Sums of nothing, which cells of another stage read."""
    x, z, (k,) = given("x", 20, 0), given("z", 20, 33), axes(k=0)
    total = tir.compute((20,), lambda i: tir.sum(x[i, k], axis=k), name="total")
    return tir.compute((20, 33), lambda i, j: z[i, j] - total[i], name="y")


def no_softmax():
    return tir.nn.softmax(given("x", 5, 0), -1)


def no_product():
    """Of matrices without terms, and without rows."""
    a, b, c, (k, q) = given("a", 9, 0), given("b", 0, 17), given("c", 0, 9), axes(k=0, q=9)
    ab = tir.compute((9, 17), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), name="ab")
    return ab, tir.compute((0, 17), lambda i, j: tir.sum(c[i, q] * ab[q, j], axis=q), name="y")


def no_windows():
    x, w, (r,) = given("x", 1, 0, 9), given("w", 3), axes(r=3)
    cell = lambda n, i, j: tir.sum(x.get(n, i, j + r - 1, fill=0) * w[r], axis=r)  # noqa: E731
    return tir.compute((1, 0, 9), cell, name="y")


def no_places():
    x, (k,) = given("x", 5, 0, 3), axes(k=3)
    return tir.compute((5, 0), lambda i, j: tir.argmax(x[i, j, k], axis=k), name="y")


def no_scans():
    return tir.scan(given("x", 3, 0), axis=1, name="y"), tir.scan(given("z", 0, 5), axis=1, name="w")


def no_scatter():
    at, v = given("at", 0, dtype="int32"), given("v", 0)
    return tir.scatter((5,), (0,), lambda i: (at[i],), lambda i: v[i], "sum", 1, "y")


EMPTY = (no_cells, no_columns, no_rows, no_terms, no_softmax, no_product, no_windows, no_places, no_scans, no_scatter)


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("made", EMPTY, ids=lambda f: f.__name__)
def test_what_is_empty_is_scheduled_and_right(made, target):
    row = judged_of(as_outputs(made()), target)
    assert row["found"] == "right", row


def test_sums_of_nothing_are_zero_and_products_one():
    x, k, q = given("x", 3, 0), *axes(k=0, q=0)
    total = tir.compute((3,), lambda i: tir.sum(x[i, k], axis=k), name="total")
    product = tir.compute((3,), lambda i: tir.prod(x[i, q], axis=q), name="product")
    got = tir.auto_schedule((total, product), "c").build()(np.zeros((3, 0), "float32"))
    assert [a.tolist() for a in got] == [[0, 0, 0], [1, 1, 1]]


def test_loops_without_iterations_are_fused():
    s = tir.Schedule(no_columns())
    s.fuse("y.i", "y.j")
    assert s.check()
