"""Concatenations and splits as stores into slices: ``cut``, then ``reverse_compute_inline`` into each producer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.errors import ScheduleError
from tensorir.ir.tree import Stage
from tensorir.ir.visit import find


def stages(s):
    return [x.name for x in find(s.program.body, Stage)]


def whole_numbers(rng, *shape):
    return rng.integers(-8, 9, shape).astype("float32")


def concatenated(sizes, axis, other=5):
    """Products of tensors by two, one after another along an axis."""
    shapes = [(n, other) if axis == 0 else (other, n) for n in sizes]
    given_ = [tir.placeholder(x, name=f"x{i}") for i, x in enumerate(shapes)]
    parts = [tir.compute(x.shape, lambda i, j, x=x: x[i, j] * 2, name=f"p{n}") for n, x in enumerate(given_)]

    def cell(i, j):
        at = (i, j)[axis]
        value, end = None, sum(sizes)
        for p, n in reversed(list(zip(parts, sizes, strict=True))):
            end -= n
            own = p.get(i - end, j) if axis == 0 else p.get(i, j - end)
            value = own if value is None else tir.where(at < end + n, own, value)
        return value

    total = sum(sizes)
    return tir.compute((total, other) if axis == 0 else (other, total), cell, name="c")


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=2, max_size=4), st.integers(0, 1), st.integers(0, 2**31))
def test_each_part_of_a_concatenation_is_stored_where_it_belongs(sizes, axis, seed):
    c = concatenated(sizes, axis)
    s = tir.Schedule(c, "opencl")
    last = "c"
    for n in sizes[:-1]:
        last = s.cut(f"{last}.{'ij'[axis]}", n).name
    for name in [x for x in stages(s) if x.startswith("c")]:
        s.reverse_compute_inline(name)
    assert stages(s) == [f"p{n}" for n in range(len(sizes))]
    assert "? " not in s.source(), "no condition tells the parts apart"
    assert s.check()
    rng = np.random.default_rng(seed)
    given_ = [whole_numbers(rng, *((n, 5) if axis == 0 else (5, n))) for n in sizes]
    np.testing.assert_array_equal(s.build()(*given_), np.concatenate(given_, axis) * 2)


def test_products_go_into_one_result():
    a, b, w = (tir.placeholder(x, name=n) for n, x in (("a", (6, 4)), ("b", (3, 4)), ("w", (4, 8))))
    k = tir.reduce_axis(4, name="k")
    p = tir.compute((6, 8), lambda i, j: tir.sum(a[i, k] * w[k, j], axis=k), name="p")
    q = tir.compute((3, 8), lambda i, j: tir.sum(b[i, k] * w[k, j], axis=k), name="q")
    c = tir.compute((9, 8), lambda i, j: tir.where(i < 6, p.get(i, j), q.get(i - 6, j)) + 1, name="c")
    s = tir.Schedule(c, "opencl")
    s.cut("c.i", 6)
    for made, part in (("p", "c"), ("q", "c.tail")):
        s.stage_out(made, at=f"{made}.j", scope="register")
        s.reverse_compute_inline(part)
    assert s.source().count("__kernel") == 2
    assert all(p.role != "workspace" for p in s.emitted().params)
    assert s.check()
    assert str(tir.replay(s.outputs, s.trace.to_json(), target=s.target)) == str(s)


def test_a_split_stores_each_output_once():
    x = tir.placeholder((10, 5), name="x")
    p = tir.compute((10, 5), lambda i, j: x[i, j] * 3, name="p")
    v = tir.compute((4, 5), lambda i, j: p[i, j] + 1, name="v")
    w = tir.compute((6, 5), lambda i, j: p[i + 4, j] - 1, name="w")
    s = tir.Schedule((v, w), "opencl")
    s.cut("p.i", 4)
    s.reverse_compute_inline("v").reverse_compute_inline("w")
    assert stages(s) == ["p", "p.tail"]
    assert s.check()
    given_ = whole_numbers(np.random.default_rng(0), 10, 5)
    for got, want in zip(s.build()(given_), (given_[:4] * 3 + 1, given_[4:] * 3 - 1), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_stack_has_a_row_for_each():
    x, y = (tir.placeholder((7,), name=n) for n in "xy")
    p, q = (tir.compute((7,), lambda j, z=z: z[j] * 2, name=n) for n, z in (("p", x), ("q", y)))
    c = tir.compute((2, 7), lambda i, j: tir.where(i < 1, p[j], q[j]), name="c")
    s = tir.Schedule(c, "opencl")
    s.cut("c.i", 1)
    s.reverse_compute_inline("c").reverse_compute_inline("c.tail")
    assert stages(s) == ["p", "q"]
    assert s.check()


def refused(s, stage, code, word):
    before = str(s)
    with pytest.raises(ScheduleError, match=word) as found:
        s.reverse_compute_inline(stage)
    assert found.value.problems[0].code == code
    assert str(s) == before


def test_what_is_not_cut_covers_only_a_part():
    refused(tir.Schedule(concatenated([3, 4], 0)), "c", "reverse-inline.elementwise", "only a part")


@pytest.mark.parametrize("at", [2, 4])
def test_a_cut_elsewhere_leaves_parts_that_do_not_match(at):
    s = tir.Schedule(concatenated([3, 4], 0))
    s.cut("c.i", at)
    refused(s, "c" if at == 2 else "c.tail", "reverse-inline.elementwise", "only a part")


def test_a_part_that_reads_less_than_its_producer_makes():
    """The rest of the producer's cells would be stored where zeros belong."""
    x = tir.placeholder((20,), name="x")
    p = tir.compute((20,), lambda i: x[i] * 2, name="p")
    v = tir.compute((20,), lambda i: tir.where(i < 8, p[i], 0), name="v")
    s = tir.Schedule(v)
    s.cut("v.i", 8)
    refused(s, "v", "reverse-inline.elementwise", "only a part")
    s.cut("p.i", 8)
    s.reverse_compute_inline("v")
    assert s.check()


def test_two_that_read_the_same_cells():
    x = tir.placeholder((10,), name="x")
    p = tir.compute((10,), lambda i: x[i] * 3, name="p")
    v = tir.compute((6,), lambda i: p[i] + 1, name="v")
    w = tir.compute((6,), lambda i: p[i + 4] - 1, name="w")
    s = tir.Schedule((v, w))
    s.cut("p.i", 6)
    refused(s, "v", "reverse-inline.other-readers", "elsewhere")


def test_a_consumer_of_two_nests():
    x = tir.placeholder((10,), name="x")
    p = tir.compute((10,), lambda i: x[i] * 3, name="p")
    v = tir.compute((10,), lambda i: p[i] + 1, name="v")
    s = tir.Schedule(v)
    s.cut("p.i", 6)
    refused(s, "v", "reverse-inline.elementwise", "p and p.tail")
    s.cut("v.i", 6)
    s.reverse_compute_inline("v").reverse_compute_inline("v.tail")
    assert s.check()


def test_a_row_that_is_read_again_is_no_row_of_a_stack():
    x = tir.placeholder((7,), name="x")
    p = tir.compute((7,), lambda j: x[j] * 2, name="p")
    c = tir.compute((2, 7), lambda i, j: p[j] + i, name="c")
    refused(tir.Schedule(c), "c", "reverse-inline.elementwise", "again along its axis i")


def with_dims(kind):
    n, m = (tir.dim(x, low=5, high=64) for x in "nm")
    x, y = tir.placeholder((n, 4), name="x"), tir.placeholder((64,), name="y")
    if kind == "another dim":
        p = tir.compute((n, m), lambda i, j: x[i, 0] + j, name="p")
        return tir.compute((m, n), lambda j, i: p.get(j, i, fill=7), name="v")
    if kind == "shorter":
        p = tir.compute((64,), lambda i: y[i] * 2, name="p")
        return tir.compute((n,), lambda i: p[i] + x[i, 0], name="v")
    p = tir.compute((n,), lambda i: x[i, 0] * 2, name="p")
    return tir.compute((64,), lambda i: p.get(i, fill=7), name="v")


@pytest.mark.parametrize("kind", ["another dim", "shorter", "longer"])
def test_dims_that_are_alike_in_their_range_only(kind):
    refused(tir.Schedule(with_dims(kind)), "v", "reverse-inline.elementwise", "only a part")


def test_the_same_dim_turned():
    n = tir.dim("n", low=1, high=64)
    x = tir.placeholder((n, 4), name="x")
    p = tir.compute((n, 4), lambda i, j: x[i, j] * 2, name="p")
    s = tir.Schedule(tir.compute((4, n), lambda j, i: p[i, j] + 1, name="v"))
    s.reverse_compute_inline("v")
    assert stages(s) == ["p"]
    assert s.check()
