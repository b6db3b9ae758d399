"""Vectors that end inside: whole ones stay vectors, and the rest goes in shorter ones or lane by lane."""

import pytest

import tensorir as tir
from tensorir.ir.tree import Ramp, Store
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower

CPUS = ("c -registers=32 -vector_bytes=64", "opencl -kind=cpu")


def widths(s):
    """Lanes of each store of the first kernel, in order; 1 for single elements."""
    stores = find(lower(s.program, s.target).kernels[0].body, Store)
    return [x.index[0].lanes if isinstance(x.index[0], Ramp) else 1 for x in stores]


def row(n, target, lanes=8):
    a = tir.placeholder((n,), name="a")
    s = tir.Schedule(tir.compute((n,), lambda i: a[i] * 2.0, name="y"), target)
    return s, s.split("y.i", [None, lanes])


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("n", [9, 12, 15, 23, 31, 8, 7])
def test_a_rest_of_known_length_goes_in_shorter_vectors(n, target):
    s, (tile, lane) = row(n, target)
    s.partition(tile, [n // 8]).vectorize(lane) if n > 8 else s.vectorize(lane)
    rest = [w for w in (8, 4, 2, 1) if n % 8 & w]
    assert widths(s) == [8] * (n >= 8) + rest
    assert "not in vectors" not in s.source()
    assert s.check()


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("n", [9, 31, 100])
def test_a_vector_is_one_where_all_lanes_are_inside(n, target):
    s, (_, lane) = row(n, target)
    s.vectorize(lane)
    assert widths(s) == [8, 1]
    assert "not in vectors" not in s.source()
    assert s.check()


@pytest.mark.parametrize("target", CPUS)
def test_sums_of_a_ragged_row_are_in_vectors(target):
    a, b, k = tir.placeholder((40,), name="a"), tir.placeholder((40, 31), name="b"), tir.reduce_axis(40, name="k")
    s = tir.Schedule(tir.compute((31,), lambda j: tir.sum(a[k] * b[k, j], axis=k), name="y"), target)
    tile, lane = s.split("y.j", [None, 8])
    s.reorder("y.k", tile, lane).partition(tile, [3]).vectorize(lane)
    assert sorted(set(widths(s)), reverse=True) == [8, 4, 2, 1]
    assert s.check()


@pytest.mark.parametrize("target", CPUS)
def test_results_leave_registers_in_vectors_where_they_are_whole(target):
    a, b, k = tir.placeholder((5, 16), name="a"), tir.placeholder((16, 37), name="b"), tir.reduce_axis(16, name="k")
    s = tir.Schedule(tir.compute((5, 37), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), name="y"), target)
    s.stage_out("y", "root", "register")
    s.register_tile("y.out.i", "y.out.j", sizes=[2, 16], lanes=8)
    s.compute_at("y", s.loops("y.out")[1]).register_tile("y.i", "y.j", lanes=8)
    assert {8, 1} <= set(widths(s))
    assert s.check()


@pytest.mark.parametrize("target", CPUS)
def test_data_may_end_a_vector(target):
    a, n = tir.placeholder((64,), name="a"), tir.placeholder((1,), "int32", name="n")
    y = tir.compute((64,), lambda i: tir.where(i < n[0], a[i], 0.0), name="y")
    s = tir.Schedule(y, target)
    s.vectorize(s.split("y.i", [None, 8])[1])
    assert s.check()
