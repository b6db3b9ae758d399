"""From a lambda to the device, compared with NumPy: dtypes, scalars, constants, combiners, gathers."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import evaluate

pytest.importorskip("pyopencl")
RNG = np.random.default_rng(7)


def run(outputs, *arrays):
    s = tir.Schedule(outputs)
    assert s.check()
    return s.build()(*arrays)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "int16", "int32", "int64", "uint8", "uint32"])
def test_arithmetic_wraps_as_numpy_does(dtype):
    A, B = tir.placeholder((64,), dtype, name="A"), tir.placeholder((64,), dtype, name="B")
    C = tir.compute((64,), lambda i: (A[i] + B[i], A[i] * B[i], A[i] - B[i], tir.maximum(A[i], B[i])), name="C")
    if dtype.startswith("float"):
        a, b = RNG.integers(-99, 99, (2, 64)).astype(dtype)
    else:
        info = np.iinfo(dtype)
        a, b = RNG.integers(info.min, info.max, (2, 64), dtype=dtype, endpoint=True)
    got = run(C, a, b)
    with np.errstate(over="ignore"):
        want = (a + b, a * b, a - b, np.maximum(a, b))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype == np.dtype(dtype)
        assert np.array_equal(g, w)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "float32"])
def test_floor_division(dtype):
    A, B = tir.placeholder((49,), dtype, name="A"), tir.placeholder((49,), dtype, name="B")
    C = tir.compute((49,), lambda i: (A[i] // B[i], A[i] % B[i]), name="C")
    low = 0 if dtype.startswith("u") else -7
    a = RNG.integers(low, 8, 49).astype(dtype)
    b = RNG.choice([v for v in range(low, 8) if v], 49).astype(dtype)
    s = tir.Schedule(C)
    q, r = s.build()(a, b)
    assert np.array_equal(q, a // b)
    assert np.array_equal(r, a % b)


@pytest.mark.filterwarnings("error")
def test_a_division_by_zero_on_the_side_that_is_not_taken_is_no_news():
    A, B = tir.placeholder((3,), "int32", name="A"), tir.placeholder((3,), "int32", name="B")
    C = tir.compute((3,), lambda i: tir.where(B[i] > 0, A[i] // B[i] + A[i] % B[i], -1), name="C")
    (c,) = evaluate((C,), [np.array([7, 8, -9], "int32"), np.array([2, 0, 4], "int32")], Numbers())
    assert c.tolist() == [4, -1, 0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_narrow_floats_are_storage(dtype):
    from tensorir.interp.numbers import numpy_dtype

    kind = numpy_dtype(dtype)
    A = tir.placeholder((40,), dtype, name="A")
    C = tir.compute((40,), lambda i: (tir.cast(A[i] * 3 + 0.1, dtype), tir.cast(A[i], "float32")), name="C")
    a = (RNG.standard_normal(40) * 100).astype(np.float32).astype(kind)
    got, wide = tir.Schedule(C).build()(a)
    assert got.dtype == kind
    assert np.array_equal(wide, a.astype(np.float32))
    want = (a.astype(np.float32) * np.float32(3) + np.float32(0.1)).astype(kind)
    bits = f"u{kind.itemsize}"
    assert np.array_equal(got.view(bits), want.view(bits))


def test_scalars_and_constants():
    X = tir.placeholder((9,), name="X")
    alpha, n = tir.scalar("alpha"), tir.scalar("n", "int32")
    W = tir.constant(np.array([1, -2, 4], "float32"), name="W")
    r = tir.reduce_axis(3, name="r")
    Y = tir.compute((7,), lambda i: tir.sum(X[i + r] * W[r] * alpha, axis=r), name="Y")
    Z = tir.compute((7,), lambda i: Y[i] + n, name="Z")
    x = np.arange(9, dtype="float32")
    got = run(Z, x, np.float32(2), np.int32(5))
    assert np.array_equal(got, 2 * (x[:7] - 2 * x[1:8] + 4 * x[2:]) + 5)


def test_a_combiner_of_one_state():
    X = tir.placeholder((6, 11), name="X")
    k = tir.reduce_axis(11, name="k")
    largest = tir.combiner(lambda a, b: tir.where(tir.abs(a) < tir.abs(b), b, a), 0)
    Y = tir.compute((6,), lambda i: largest(tir.abs(X[i, k]), axis=k), name="Y")
    x = RNG.integers(-50, 50, (6, 11)).astype("float32")
    assert np.array_equal(run(Y, x), np.abs(x).max(1))


def test_a_combiner_of_two_states():
    X = tir.placeholder((6, 11), name="X")
    k = tir.reduce_axis(11, name="k")
    both = tir.combiner(lambda a, b: (a[0] + b[0], tir.maximum(a[1], b[1])), (0, -1000))
    S, M = tir.compute((6,), lambda i: both((X[i, k], X[i, k]), axis=k), name="R")
    x = RNG.integers(-50, 50, (6, 11)).astype("float32")
    s, m = run((S, M), x)
    assert np.array_equal(s, x.sum(1))
    assert np.array_equal(m, x.max(1))


def test_a_combiner_of_two_states_in_parts():
    X = tir.placeholder((6, 12), name="X")
    k = tir.reduce_axis(12, name="k")
    both = tir.combiner(lambda a, b: (a[0] + b[0], tir.maximum(a[1], b[1])), (0, -1000))
    S, M = tir.compute((6,), lambda i: both((X[i, k], X[i, k]), axis=k), name="R")
    s = tir.Schedule((S, M))
    _, inner = s.split("R.k", [None, 4])
    s.rfactor("R", inner)
    x = RNG.integers(-50, 50, (6, 12)).astype("float32")
    total, most = s.build()(x)
    assert np.array_equal(total, x.sum(1))
    assert np.array_equal(most, x.max(1))


def test_any_all_and_where():
    X = tir.placeholder((5, 9), name="X")
    k = tir.reduce_axis(9, name="k")
    some = tir.compute((5,), lambda i: tir.any(X[i, k] > 3, axis=k), name="some")
    every = tir.compute((5,), lambda i: tir.all(X[i, k] > -4, axis=k), name="every")
    part = tir.compute((5,), lambda i: tir.sum(X[i, k], axis=k, where=X[i, k] > 0), name="part")
    best = tir.compute((5,), lambda i: tir.max(X[i, k], axis=k, where=X[i, k] < 2), name="best")
    x = RNG.integers(-4, 5, (5, 9)).astype("float32")
    x[:, 0] = 0
    got = run((some, every, part, best), x)
    want = ((x > 3).any(1), (x > -4).all(1), np.where(x > 0, x, 0).sum(1), np.where(x < 2, x, -np.inf).max(1))
    for g, w in zip(got, want, strict=True):
        assert np.array_equal(g, w)


@pytest.mark.parametrize("name", ["argmin", "argmax"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
def test_positions_are_the_first_on_ties(name, dtype):
    X = tir.placeholder((8, 23), dtype, name="X")
    k = tir.reduce_axis(23, name="k")
    Y = tir.compute((8,), lambda i: getattr(tir, name)(X[i, k], axis=k), name="Y")
    x = RNG.integers(-2, 3, (8, 23)).astype(dtype)
    for cut in (None, 4):
        s = tir.Schedule(Y)
        if cut:
            s.rfactor("Y", s.split("Y.k", [None, cut])[1])
        got = s.build()(x)
        assert got.dtype == np.int32
        assert np.array_equal(got, getattr(x, name)(1))


def test_gathers():
    B, at = tir.placeholder((9, 5), name="B"), tir.placeholder((4, 5), "int32", name="at")
    G = tir.compute((4, 5), lambda p, q: B[at[p, q], q], name="G")
    b, i = RNG.integers(-9, 9, (9, 5)).astype("float32"), RNG.integers(0, 9, (4, 5)).astype("int32")
    assert np.array_equal(run(G, b, i), np.take_along_axis(b, i, 0))
    for wrong in (9, -1):
        i[2, 3] = wrong
        with pytest.raises(tir.LaunchError) as caught:
            tir.Schedule(G).build()(b, i)
        assert caught.value.code == "launch.index-range"


def test_math():
    X = tir.placeholder((50,), name="X")
    names = ("exp", "log", "sqrt", "rsqrt", "tanh", "sin", "cos", "floor", "ceil", "round", "exp2", "log2", "abs")
    Y = tir.compute((50,), lambda i: tuple(getattr(tir, n)(X[i]) for n in names), name="Y")
    x = RNG.uniform(0.1, 9, 50).astype("float32")
    want = {"rsqrt": lambda v: 1 / np.sqrt(v), "round": np.rint}
    for n, g in zip(names, tir.Schedule(Y).build()(x), strict=True):
        np.testing.assert_allclose(g, want.get(n, getattr(np, n, None))(x), rtol=2e-6, err_msg=n)


@pytest.mark.parametrize("name", ["user", "largest"])
def test_the_identity_of_a_combiner_counts_whatever_its_name(name):
    A, k = tir.placeholder((4, 8), name="A"), tir.reduce_axis(8, name="k")
    largest = tir.combiner(tir.maximum, 0, name=name)
    C = tir.compute((4,), lambda i: largest(A[i, k], axis=k), name="C")
    w = tir.Workload("largest", C, {"plain": (lambda s, c: None, tir.Space())})
    assert (w.reference(np.full((4, 8), -3, "float32")) == 0).all()
