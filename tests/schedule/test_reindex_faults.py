"""Uses of reindex, keep_term and inlining that once computed something else: each is refused or right."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field


def product():
    A, B = tir.placeholder((6, 8), name="A"), tir.placeholder((8, 7), name="B")
    k = tir.reduce_axis(8, name="k")
    return tir.compute((6, 7), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="y")


@pytest.mark.parametrize("view", ["i, j | -k -> i, j, k", "i, j | k -> i, j, k = (k%2, k/2)"])
def test_pieces_of_a_reduction_keep_their_order(view):
    s = tir.Schedule(product())
    s.stage_out("y", "y.k")
    with pytest.raises(tir.ScheduleError, match=r"reindex\.axes.*their order is fixed"):
        s.reindex("y", view)


def test_an_output_is_not_rounded():
    x = tir.placeholder((6, 8), name="x")
    s = tir.Schedule(tir.compute((6, 8), lambda i, j: x[i, j] * 3.0, name="o"))
    with pytest.raises(tir.ScheduleError, match=r"reindex\.dtype.*output"):
        s.reindex("o", "i, j -> j, i", writes="j, i", dtype="float16")


@pytest.mark.parametrize(
    ("dtype", "term"),
    [
        ("uint8", lambda x: tir.cast(x - 1, "int32") + 1),
        ("float32", lambda x: tir.cast(x + 0.5, "int32") * 2 - 1),
        ("int8", lambda x: tir.cast(x * 2 + 127, "int32") - 127),
    ],
)
def test_terms_of_zeros_wrap_and_are_cut_as_they_do(dtype, term):
    U, r = tir.placeholder((4, 10), dtype, name="U"), tir.reduce_axis(10, name="r")
    z = tir.compute((4,), lambda i: tir.sum(term(U[i, r]), axis=r), name="z")
    s = tir.Schedule(z)
    try:
        s.reindex("z", "i | r -> i, r", pad={"r": 4}, reads={"U": "i, r"}, writes="i")
    except tir.ScheduleError as e:
        assert e.code == "reindex.pad-identity"
        return
    a = np.random.default_rng(0).integers(0, 9, (4, 10)).astype(dtype)
    assert np.array_equal(s.build()(a), tir.Schedule(z).build()(a))


def test_a_condition_that_reads_stays_inside_the_bound():
    m, x = tir.placeholder((10,), "int32", name="m"), tir.placeholder((10,), name="x")
    s = tir.Schedule(tir.compute((10,), lambda i: tir.where(m[i] > 0, x[i], 0.0), name="q"))
    s.reindex("q", "i -> i", pad={"i": 4}, writes="i")
    assert s.check()


def test_an_index_that_is_made_in_the_nest_is_no_operand_s():
    I, x = tir.placeholder((1,), "int32", name="I"), tir.placeholder((5, 6), name="x")
    d = tir.compute((1,), lambda i: I[i] % 5, name="d")
    clip = lambda v: tir.minimum(tir.maximum(v, 0), 4)  # noqa: E731
    s = tir.Schedule(tir.compute((4, 6), lambda i, j: x[clip(d[0]), j] * 2.0, name="g"))
    s.compute_at("d", "g.i")
    with pytest.raises(tir.ScheduleError, match=r"reindex\.reads.*d is made in the nest"):
        s.reindex("g", "j -> jj = j", reads={"x": "jj"})


def test_what_an_index_reads_is_not_read_before_its_condition():
    ix, P = tir.placeholder((5,), "int32", name="ix"), tir.placeholder((6, 2), name="P")
    R = tir.compute((6, 2), lambda i, k: P[i, k] + 1, name="R")
    clip = lambda v: tir.minimum(tir.maximum(v, 0), 5)  # noqa: E731
    z = tir.compute((8, 3), lambda i, j: tir.where(i < 5, R[clip(ix[i]), 1], 0.0) + j, name="z")
    s = tir.Schedule(z)
    s.reindex("R", "i, k -> a = i/2, k, b = i%2", writes="a, k, b")
    assert s.check() and "const long e =" not in s.source("opencl")


def test_what_is_kept_by_joined_axes_is_not_inlined():
    x = tir.placeholder((5, 4), name="x")
    P = tir.compute((5, 4), lambda i, k: x[i, k] + 1, name="P")
    s = tir.Schedule(tir.compute((5, 4), lambda i, j: P[i, j] * 2.0, name="z"))
    s.reindex("P", "i, k -> k, i", writes="z = (k, i)")
    with pytest.raises(tir.ScheduleError, match=r"inline\.index"):
        s.compute_inline("P")


def test_a_stage_out_below_an_axis_that_is_counted_backwards():
    s = tir.Schedule(product())
    s.reindex("y", "-i, j | k -> j, c = i/4, b = i%4, k")
    with pytest.raises(tir.ScheduleError, match=r"stage-out\.guard"):
        s.stage_out("y", "y.c")
    assert compare(s, Field(), 0) is None and s.check()


def test_a_view_of_no_axes_is_refused():
    A, k = tir.placeholder((4,), name="A"), tir.reduce_axis(4, name="k")
    s = tir.Schedule(tir.compute((), lambda: tir.sum(A[k], axis=k), name="z"))
    with pytest.raises(tir.ScheduleError, match=r"reindex\.nest"):
        s.reindex("z", "-> ")


@pytest.mark.parametrize("read", [lambda X, n, c, h, w: X[2 * n, c, h, w], lambda X, n, c, h, w: X[n, 2 * c, h, w],
                                  lambda X, n, c, h, w: X.get(n, c, h - 1, w - 1, fill=1.0)])  # fmt: skip
def test_winograd_is_of_convolutions_alone(read):
    X, W = tir.placeholder((4, 4, 8, 8), name="X"), tir.placeholder((3, 2, 3, 3), name="W")
    c, r, t = (tir.reduce_axis(n, m) for n, m in ((2, "c"), (3, "r"), (3, "s")))
    y = tir.compute((2, 3, 6, 6), lambda n, k, p, q: tir.sum(read(X, n, c, p + r, q + t) * W[k, c, r, t],
                                                             axis=(c, r, t)), name="y")  # fmt: skip
    with pytest.raises(tir.ScheduleError):
        tir.Schedule(y).redeclare("winograd", tile=2)
