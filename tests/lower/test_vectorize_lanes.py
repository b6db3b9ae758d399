"""Conditions that each lane answers for itself, and lanes that lie apart in memory."""

import itertools
import re

import numpy as np
import pytest

import tensorir as tir
from tensorir.ir.tree import If, Pack, Select
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower

pytestmark = pytest.mark.usefixtures("unoptimised")

CPU = "opencl -kind=cpu"


def shifted(size, by, stride, lanes=8, dtype="float32", target=CPU):
    """``Y[h, i] = X[h, stride*i + by]``, 0 outside, as vectors; tiles that reach outside are parts of their own."""
    x = tir.placeholder((3, size), dtype, name="X")
    columns = -(-size // stride)
    y = tir.compute((3, columns), lambda h, i: x.get(h, i * stride + by, fill=0), name="Y")
    s = tir.Schedule(y, target)
    tiles, lane = s.split("Y.i", [None, lanes], tail="shift")
    s.partition(tiles, list(range(1, -(-columns // lanes)))).vectorize(lane)
    return s


def body(s):
    return lower(s.program, s.target).kernels[0].body


@pytest.mark.parametrize(
    ("size", "by", "stride"),
    [
        *itertools.product((16, 21), (-9, -3, -1, 0, 1, 2, 6, 8), (1,)),
        *itertools.product((32, 37), (-5, -1, 0, 1, 4), (2,)),
        (40, 1, 3),
    ],
)
@pytest.mark.parametrize("lanes", [4, 8])
def test_lanes_at_a_border_are_zeros(size, by, stride, lanes):
    s = shifted(size, by, stride, lanes)
    assert not find(body(s), (Select, If))
    assert s.check()
    assert s.check(level="device")


def one_row(columns, by):
    """What one vector ``X[h, by], X[h, by + 1] …`` is in the source, without types: ``X+h*9`` for a vector there."""
    x = tir.placeholder((3, columns), name="X")
    s = tir.Schedule(tir.compute((3, 8), lambda h, i: x.get(h, i + by, fill=0), name="Y"), CPU)
    s.vectorize("Y.i")
    assert len(find(body(s), Pack)) == 1
    assert s.check()
    assert s.check(level="device")
    text = s.source().split(" = (float8)")[1].split(";")[0].replace(" ", "")
    return re.sub(r"\*\(__globalconstfloat\du?\*\)", "", text)


def test_a_border_is_part_of_the_vector_that_begins_or_ends_inside():
    assert one_row(9, -1) == "(0.0f,((X+h*9)).s0123,((X+h*9)).s456)"
    assert one_row(9, 2) == "(((X+h*9+1)).s1234,((X+h*9+1)).s567,0.0f)"


def test_a_row_too_short_for_a_vector_is_two_halves():
    assert one_row(7, -1) == "(0.0f,((X+h*7)).s012,(X+h*7+3))"
    assert one_row(2, -3) == "(0.0f,0.0f,0.0f,X[h*2],X[h*2+1],0.0f,0.0f,0.0f)"


def test_every_other_element_is_a_shuffle_of_two_vectors():
    text = shifted(32, 0, 2).source()
    assert text.count(".s0246, ") == text.count(".s1357)") == 2
    assert "X[" not in text


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_other_types_pick_lane_by_lane(dtype):
    s = shifted(32, -1, 2, dtype=dtype)
    assert ".s0" not in s.source()
    assert s.check()
    assert s.check(level="device")


def test_what_lanes_share_of_a_condition_stays_one_condition():
    x = tir.placeholder((4, 8), name="X")
    s = tir.Schedule(tir.compute((4, 8), lambda h, i: x.get(h - 1, i - 1, fill=0), name="Y"), CPU)
    s.vectorize("Y.i")
    (choice,) = find(body(s), Select)
    assert isinstance(choice.a, Pack)
    assert s.check()
    assert s.check(level="device")


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("last", [lambda i, end: i < end + 1, lambda i, end: i <= end])
def test_a_condition_is_one_of_vectors_where_it_ends_between_two(last, backwards):
    """``4*i + lane < 8   ->   i < 2``; where it ends inside a vector each lane has its own."""
    a = tir.placeholder((16,), name="A")
    for end in range(3, 9):
        y = tir.compute((16,), lambda i, end=end: tir.where(last(15 - i if backwards else i, end), a[i], 0), name="Y")
        s = tir.Schedule(y, CPU)
        s.vectorize(s.split("Y.i", [None, 4])[1])
        assert s.check()
        assert ("(int4)" in s.source()) == (end % 4 != 3)


def test_an_unrolled_loop_that_decides_lanes_is_written_out():
    x, r = tir.placeholder((3, 16), name="X"), tir.reduce_axis(3, name="r")
    s = tir.Schedule(tir.compute((3, 16), lambda h, i: tir.sum(x.get(h, i + r - 1, fill=0), axis=r), name="Y"), CPU)
    tiles, lane = s.split("Y.i", [None, 8])
    s.reorder("Y.h", tiles, "Y.r", lane)
    s.partition(tiles, [1]).unroll("Y.r").vectorize(lane)
    assert len(find(body(s), Pack)) == 2  # the first tap of the first tile, the last of the last
    assert not find(body(s), (Select, If))
    assert s.check()
    assert s.check(level="device")


def test_what_no_lane_decides_is_unrolled():
    x, k = tir.placeholder((16,), name="X"), tir.placeholder((1,), "int32", name="K")
    s = tir.Schedule(tir.compute((16,), lambda i: x.get(i + k[0], fill=0), name="Y"), CPU)
    s.vectorize(s.split("Y.i", [None, 8])[1])
    assert not find(body(s), Pack)
    assert "// not in vectors: " in s.source()
    assert s.check()


@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x, i: x.get(i - 1, fill=0), "its condition differs from lane to lane"),
        (lambda x, i: x[i + 1], "what lanes read of X is not known to be aligned"),
        (lambda x, i: x[2 * i], "what lanes read of X is not side by side"),
    ],
)
def test_cuda_says_which_copies_are_not_in_vectors(fn, why, lanes):
    """Those that are say nothing, nor do sums in registers, which CUDA never computes in vectors; eight are two
    of four.
    """
    x = tir.placeholder((64,), name="X")
    s = tir.Schedule(tir.compute((32,), lambda i: fn(x, i), name="Y"), "cuda")
    s.vectorize(s.split("Y.i", [None, lanes])[1])
    assert f"// not in vectors: {why}\n" in s.source()
    assert s.check()
    s = tir.Schedule(tir.compute((32,), lambda i: x[i], name="Y"), "cuda")
    assert "not in vectors" not in s.vectorize(s.split("Y.i", [None, lanes])[1]).source()
    k = tir.reduce_axis(64, name="k")
    s = tir.Schedule(tir.compute((32,), lambda i: tir.sum(x[k] * x[i], axis=k), name="Y"), "cuda")
    outer, inner = s.split("Y.i", [None, lanes])
    s.reorder(outer, "Y.k", inner).stage_out("Y", at=outer, scope="register")
    assert "not in vectors" not in s.vectorize(inner).source()


def test_numbers_are_rounded_to_narrow_floats_one_by_one():
    A, B = tir.placeholder((64,), name="A"), tir.placeholder((64,), "int32", name="B")
    narrow = lambda x: tir.cast(tir.cast(x, "float16"), "float32")  # noqa: E731
    C = tir.compute((64,), lambda i: (narrow(A[i] / 3), narrow(B[i]), narrow(tir.cast(A[i], "float64") / 3)), name="C")
    s = tir.Schedule(C)
    s.vectorize(s.split("C.i", [None, 16])[1])
    assert "one by one" in s.source("opencl")
    a, b = np.arange(64, dtype="float32"), np.arange(64, dtype="int32") * 123
    made = s.build("opencl")(a, b)
    want = ((a / np.float32(3)).astype("f2"), b.astype("f2"), (a.astype("f8") / 3).astype("f2"))
    for got, numpys in zip(made, want, strict=True):
        assert np.array_equal(got, numpys.astype("f4"))


def dot(k, lanes, op=tir.sum, target=CPU):
    """A sum over k in vectors of partial sums, whose last vector is in a part of its own."""
    x, y = (tir.placeholder((k,), name=n) for n in "xy")
    r = tir.reduce_axis(k, name="r")
    s = tir.Schedule(tir.compute((1,), lambda i: op(x[r] * y[r], axis=r), name="z"), target)
    s.reindex("z", f"i | r -> i, r = r/{lanes}, l = r%{lanes}")
    s.rfactor("z", "z.l")
    s.compute_at("z.rf", "z.i").reorder("z.rf.r", "z.rf.i", "z.rf.rf").vectorize("z.rf.rf")
    return s.partition("z.rf.r", [k // lanes])


@pytest.mark.parametrize(("k", "lanes"), [(21, 8), (17, 16), (15, 4), (31, 16)])
def test_a_sum_that_ends_inside_a_vector_adds_zeros_beyond(k, lanes):
    s = dot(k, lanes)
    assert s.check()
    assert s.check(level="device")
    assert "not in vectors" not in s.source()
    assert s.source().count("+=") <= 3, "vectors, the last one, and their lanes"


def test_what_is_no_sum_ends_lane_by_lane():
    """The largest product may be negative, and 0 is none of them."""
    s = dot(21, 8, tir.max)
    assert s.check()
    assert s.check(level="device")


@pytest.mark.parametrize("op", [tir.sum, tir.max])
def test_64_bits_without_sign_in_lanes_with_a_tail(op):
    """The check has integers of all their bits, of which 53 are left in doubles."""
    A, k = tir.placeholder((1, 27), "uint64", name="A"), tir.reduce_axis(27, name="k")
    s = tir.Schedule(tir.compute((1,), lambda i: op(A[i, k], axis=k), name="R"))
    _, lane = s.split("R.k", [None, 8])
    partial = s.rfactor("R", lane)
    s.reorder(f"{partial.name}.k.0", f"{partial.name}.k.1").vectorize(f"{partial.name}.k.1")
    assert all(s.check(seed=seed) for seed in range(3))


@pytest.mark.parametrize(("dtype", "lanes"), [("uint8", 8), ("float32", 8), ("float64", 4)])
def test_the_widest_element_of_a_loop_says_how_many_lanes_it_has(dtype, lanes):
    x = tir.placeholder((64,), dtype, name="X")
    s = tir.Schedule(tir.compute((64,), lambda i: tir.cast(x[i], "float32") + 1, name="Y"), "c")
    s.vectorize(s.split("Y.i", [None, 16])[1])
    assert s.target.vector_bytes == 32 and f"(float{lanes}u *)(Y" in s.source()
