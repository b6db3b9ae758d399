"""Launches of kernels whose extents the arguments tell: read from shapes, checked, nothing written when wrong."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.codegen.source import Source
from tensorir.interp.reference import evaluate
from tensorir.ir.extents import line, told, value
from tensorir.ir.text import said
from tensorir.runtime.c_device import compilers
from tensorir.runtime.launch import DIMS_KEPT

DEVICES = ["opencl", pytest.param("c", marks=pytest.mark.skipif(not compilers(), reason="no C compiler"))]


def added(low=1, high=64):
    n = tir.dim("n", low=low, high=high)
    A, B = tir.placeholder((n, 3), name="A"), tir.placeholder((n,), name="B")
    return tir.Schedule(tir.compute((n, 3), lambda i, j: A[i, j] + B[i], name="C"))


def problem_of(call):
    with pytest.raises(tir.LaunchError) as caught:
        call()
    return caught.value.problems[0]


@pytest.mark.parametrize("device", DEVICES)
def test_one_build_serves_every_extent_again_and_again(device):
    f = added().build(device)
    rng = np.random.default_rng(0)
    for extent in (1, 2, 63, 64, 2, 1, 7, *range(1, 2 * DIMS_KEPT), 1):
        a, b = rng.standard_normal((extent, 3)).astype("f4"), rng.standard_normal(extent).astype("f4")
        got = f(a, b)
        assert got.shape == (extent, 3)
        assert np.array_equal(got, a + b[:, None])
    assert len(f.program._for) == DIMS_KEPT


def test_arguments_must_agree_and_nothing_is_written():
    f = added().build()
    out = np.full((5, 3), 7, np.float32)
    problem = problem_of(lambda: f(np.ones((5, 3), "f4"), np.ones(6, "f4"), out=out))
    assert problem.code == "launch.dim-disagree"
    assert "5 in A.shape[0]" in problem.message
    assert "6 in B.shape[0]" in problem.message
    assert (out == 7).all()
    assert problem_of(lambda: f(np.ones((5, 3), "f4"), np.ones(5, "f4"), out=out[:4])).code == "launch.dim-disagree"


class Hostile:
    def __getattr__(self, name):
        raise RuntimeError(name)


class Shaped:
    shape = ("many", 3)


@pytest.mark.parametrize(("given", "code"), [(Hostile, "argument.raised"), (Shaped, "launch.type")])
def test_what_has_no_shape_is_refused(given, code):
    assert problem_of(lambda: added().build()(given(), np.ones(6, "f4"))).code == code


@pytest.mark.parametrize("extent", [0, 1, 9])
def test_extents_outside_the_range(extent):
    f = added(low=2, high=8).build()
    problem = problem_of(lambda: f(np.ones((extent, 3), "f4"), np.ones(extent, "f4")))
    assert problem.code == "launch.dim-range"
    assert f"n is 2 to 8, got {extent}" in problem.message


def test_constant_sides_and_ranks_are_checked_with_the_names_of_dims():
    f = added().build()
    problem = problem_of(lambda: f(np.ones((5, 4), "f4"), np.ones(5, "f4")))
    assert problem.code == "launch.shape"
    assert "(n, 3)" in problem.message
    assert problem_of(lambda: f(np.ones(5, "f4"), np.ones(5, "f4"))).code == "launch.shape"


def test_other_faults_are_told_as_for_constant_shapes():
    f = added().build()
    assert problem_of(lambda: f(np.ones((5, 3), "f4"))).code == "launch.count"
    assert problem_of(lambda: f(np.ones((5, 3), "f8"), np.ones(5, "f4"))).code == "launch.dtype"
    assert problem_of(lambda: f([1.0], np.ones(5, "f4"))).code == "launch.type"


def test_an_extent_that_an_expression_alone_tells():
    n = tir.dim("n", low=1, high=30)
    X = tir.placeholder((2 * n + 1,), name="X")
    f = tir.Schedule(tir.compute((n,), lambda i: X[2 * i] + X[2 * i + 1], name="Y")).build()
    x = np.arange(11, dtype=np.float32)
    assert np.array_equal(f(x), x[0:10:2] + x[1:11:2])
    problem = problem_of(lambda: f(x[:10]))
    assert problem.code == "launch.shape"
    assert "expected shape (2 * n + 1,), got (10,)" in problem.message


def test_what_no_argument_at_hand_tells_is_left_to_other_checks():
    n, m = tir.dim("n", low=1, high=9), tir.dim("m", low=1, high=9)
    A, B, C = (tir.placeholder((e,), name=name) for e, name in (((n + m) // 2, "A"), (n, "B"), (m, "C")))
    f = tir.Schedule(tir.compute((n, m), lambda i, j: A[0] + B[i] + C[j], name="Y")).build()
    a, b, c = (np.ones(k, "f4") for k in (3, 4, 2))
    assert f(a, b, c).shape == (4, 2)
    assert problem_of(lambda: f(a, b)).code == "launch.count"
    assert problem_of(lambda: f(a, b, [1.0])).code == "launch.type"


def test_an_extent_that_falls_as_the_dim_grows():
    n = tir.dim("n", low=1, high=60)
    X, Z = tir.placeholder((64 - n,), name="X"), tir.placeholder((130 - 2 * n,), name="Z")
    f = tir.Schedule(tir.compute((n,), lambda i: X[0] + i, name="Y")).build()
    assert f(np.ones(60, "f4")).shape == (4,)
    assert problem_of(lambda: f(np.ones(64, "f4"))).code == "launch.dim-range"
    f = tir.Schedule(tir.compute((n,), lambda i: Z[0] + i, name="Y"), "opencl").build()
    assert f(np.ones(60, "f4")).shape == (35,)
    assert problem_of(lambda: f(np.ones(61, "f4"))).code == "launch.shape"


@pytest.mark.parametrize(
    "extent, said_of_it",
    [
        (lambda n: (n + 7) // 8, r"X\.shape\[0\], \(n \+ 7\) // 8, is 1 for n = 1 and for 2"),
        (lambda n: n % 8 + 1, "is 2 for n = 1 and for 9"),
        (lambda n: tir.minimum(n, 9), "is 9 for n = 9 and for 10"),
        (lambda n: n * n, "no multiple of n plus a constant"),
    ],
)
def test_extents_that_no_launch_could_solve_are_refused_by_the_build(extent, said_of_it):
    n = tir.dim("n", low=1, high=60)
    X, W = tir.placeholder((extent(n),), name="X"), tir.placeholder((n,), name="W")
    with pytest.raises(tir.LoweringError, match=said_of_it) as caught:
        tir.Schedule(tir.compute((n,), lambda i: X[0] + i, name="Y")).build()
    assert caught.value.problems[0].code == "dim.untold"
    f = tir.Schedule(tir.compute((n,), lambda i: X[0] + W[i], name="Y")).build()
    fits = value(said(extent(n)), {"n": 20})
    assert f(np.ones(fits, "f4"), np.ones(20, "f4")).shape == (20,), "W tells it, X is compared"
    assert problem_of(lambda: f(np.ones(fits + 1, "f4"), np.ones(20, "f4"))).code == "launch.shape"


def test_the_reference_reads_dims_as_a_launch_does():
    n = tir.dim("n", low=1, high=30)
    A = tir.placeholder((2 * n + 1,), name="A")
    Y = tir.compute((n,), lambda i: A[2 * i], name="Y")
    a = np.arange(9, dtype="f4")
    (got,) = evaluate([Y], [a])
    assert np.array_equal(got, a[:8:2])
    assert np.array_equal(tir.Schedule(Y).build()(a), got)


def test_binding_timing_and_guarded_runs():
    f = added().build()
    a, b = np.ones((5, 3), "f4"), np.arange(5, dtype="f4")
    bound = f.bind(a, b)
    bound()
    assert np.array_equal(bound.wait(), a + b[:, None])
    assert f.time(a, b, repeat=1).median_s > 0
    got, problems = f.program.run_guarded(a, b)
    assert not problems
    assert np.array_equal(got, a + b[:, None])


def test_intermediate_arrays_are_as_large_as_the_extent():
    n = tir.dim("n", low=1, high=1 << 20)
    X, k = tir.placeholder((n, 4), name="X"), tir.reduce_axis(4, name="k")
    m = tir.compute((n,), lambda i: tir.max(X[i, k], axis=k), name="m")
    s = tir.Schedule(tir.compute((n, 4), lambda i, j: X[i, j] - m[i], name="Y"))
    assert s.emitted().at({"n": 5}).workspace_bytes == 20
    x = np.random.default_rng(0).standard_normal((5, 4)).astype("f4")
    assert np.array_equal(s.build()(x), x - x.max(1, keepdims=True))


def test_an_input_with_an_open_extent_cannot_be_fixed():
    n = tir.dim("n", low=1, high=40)
    A, B = tir.placeholder((n, 8), name="A"), tir.placeholder((8, 16), name="B")
    k = tir.reduce_axis(8, name="k")
    s = tir.Schedule(tir.compute((n, 16), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C"))
    s.stage_in("B", "root", scope="global", run="once")
    s.stage_in("A", "root", scope="global", run="once")
    f = s.build()
    a, b = np.ones((5, 8), "f4"), np.arange(128, dtype="f4").reshape(8, 16)
    assert np.array_equal(f.prepack(B=b)(a), a @ b)
    assert problem_of(lambda: f.prepack(A=a)).code == "dim.constant"


@pytest.mark.parametrize(
    "text, found", [("n", 7), ("(n + 7) // 8", 1), ("min(n * 2, 9)", 9), ("max(n - 9, 1) % 4", 1), (5, 5)]
)
def test_extents_as_text(text, found):
    assert value(text, {"n": 7}) == found


@pytest.mark.parametrize(
    "text, found",
    [
        ("n", ("n", 1, 0)), ("2 * n + 1", ("n", 2, 1)), ("64 - (n + 1) * 3", ("n", -3, 61)), ("-n + 3", ("n", -1, 3)),
        ("n - n + 4", None), ("n + m", None), ("n * m", None), ("n * n", None), ("(n + 7) // 8", None), ("n % 8", None),
        ("min(n, 4)", None), (5, None),
    ],
)  # fmt: skip
def test_lines(text, found):
    assert line(text) == found
    if found is not None:
        assert all(value(text, {"n": n}) == found[1] * n + found[2] for n in range(9))


def test_what_shapes_tell():
    found, faults = told([("A", ("2 * n + 1", 3), (9, 3)), ("B", ["n", "m // 2"], (5, 2)), ("C", ("n",), (6,))])
    assert found == {"n": (5, "B.shape[0]")}, "a dim itself comes first, and nothing solves m // 2"
    assert faults == ["n is 5 in B.shape[0] and 6 in C.shape[0]: it is one extent"]
    assert told([("A", ("2 * n + 1",), (10,)), ("B", ("7 - n",), (3,))]) == ({"n": (4, "B.shape[0]")}, [])


@pytest.mark.parametrize("text", ["__import__('os')", "n.real", "[n][0]", "n ** 2"])
def test_text_that_is_no_extent_is_refused(text):
    with pytest.raises(ValueError, match="no expression of extents"):
        value(text, {"n": 7})


def test_what_is_said_is_what_is_meant():
    n = tir.dim("n", low=1, high=40)
    assert value(said((n + 3) // 4 * 2), {"n": 9}) == 6


def test_sources_travel_with_their_dims():
    from tensorir.codec import decode, encode

    source = added().emitted()
    assert decode(Source, encode(source)) == source
