"""Conditions that depend on data, or on an index in no even way: each lane of a vector decides for itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.ir.lanes import lanes_of
from tensorir.ir.tree import Binary, Loop, Select
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower

pytestmark = pytest.mark.usefixtures("unoptimised")

CPU = "opencl -kind=cpu"
TYPES = ("float32", "float64", "int32", "int64", "uint32", "int16", "uint16", "int8", "uint8")
ROWS, COLUMNS = 3, 32


def values(dtype, seed):
    """Small numbers with many ties; of floats NaN, infinities and both zeros among them."""
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return rng.choice([0.0, -0.0, 1.0, -1.0, 2.5, -3.5, np.nan, np.inf, -np.inf], (ROWS, COLUMNS)).astype(dtype)
    low = 0 if dtype.startswith("u") else -3
    return rng.integers(low, 4, (ROWS, COLUMNS)).astype(dtype)


def vectorized(fn, dtypes, lanes):
    inputs = [tir.placeholder((ROWS, COLUMNS), t, name=f"X{n}") for n, t in enumerate(dtypes)]
    y = tir.compute((ROWS, COLUMNS), lambda h, i: fn(*(x[h, i] for x in inputs), h, i), name="Y")
    s = tir.Schedule(y, CPU)
    return s.vectorize(s.split("Y.i", [None, lanes])[1])


def masks(s):
    body = lower(s.program, s.target).kernels[0].body
    return [x for x in find(body, Select) if lanes_of(x.cond) > 1]


def loops(s):
    return [str(x.var.name) for x in find(lower(s.program, s.target).kernels[0].body, Loop)]


def same_on_the_device(s, dtypes, want, seed=0):
    given = [values(t, seed + n) for n, t in enumerate(dtypes)]
    rows, columns = np.indices((ROWS, COLUMNS))
    with np.errstate(all="ignore"):
        expected = want(*given, rows, columns)
    got = s.build()(*given)
    np.testing.assert_array_equal(got, np.asarray(expected).astype(got.dtype))


CASES = {
    "larger": (lambda x, y, h, i: tir.where(x > y, x, y), lambda x, y, h, i: np.where(x > y, x, y)),
    "not less": (lambda x, y, h, i: tir.where(~(x <= y), x, y), lambda x, y, h, i: np.where(~(x <= y), x, y)),
    "several": (
        lambda x, y, h, i: tir.where((x > 0) & ((y < 2) | tir.equal(x, y)), y, x),
        lambda x, y, h, i: np.where((x > 0) & ((y < 2) | (x == y)), y, x),
    ),
    "a row's own": (
        lambda x, y, h, i: tir.where((h < 2) & (x > y), x, y),
        lambda x, y, h, i: np.where((h < 2) & (x > y), x, y),
    ),
    "or a row's own": (
        lambda x, y, h, i: tir.where((h < 2) | (x > y), x, y),
        lambda x, y, h, i: np.where((h < 2) | (x > y), x, y),
    ),
    "a triangle": (
        lambda x, y, h, i: tir.where(i <= 3 + 9 * h, x, y),
        lambda x, y, h, i: np.where(i <= 3 + 9 * h, x, y),
    ),
    "a place": (
        lambda x, y, h, i: tir.where(tir.not_equal(i, 5 * h), x, y),
        lambda x, y, h, i: np.where(i != 5 * h, x, y),
    ),
    "in turn": (
        lambda x, y, h, i: tir.where(x > y, tir.where(x > 1, y, x), tir.where(i < 7, x, y)),
        lambda x, y, h, i: np.where(x > y, np.where(x > 1, y, x), np.where(i < 7, x, y)),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", TYPES)
def test_each_lane_chooses(name, dtype):
    fn, want = CASES[name]
    s = vectorized(fn, (dtype, dtype), 8)
    assert masks(s) and s.check()
    same_on_the_device(s, (dtype, dtype), want)


@pytest.mark.parametrize("lanes", [2, 4, 16])
@pytest.mark.parametrize(
    ("kind", "result"),
    [("float32", "float64"), ("float64", "int8"), ("int8", "float32"), ("uint16", "int64"), ("int64", "uint16")],
)
def test_a_mask_is_as_wide_as_what_is_chosen(kind, result, lanes):
    dtypes = (kind, kind, result, result)
    s = vectorized(lambda a, b, x, y, h, i: tir.where(a < b, x, y), dtypes, lanes)
    assert masks(s) and s.check()
    same_on_the_device(s, dtypes, lambda a, b, x, y, h, i: np.where(a < b, x, y))


def test_a_condition_as_a_number():
    s = vectorized(lambda x, h, i: tir.cast(x > 0, "float32") * 2 + tir.cast(i < 5, "int32"), ("float32",), 8)
    assert masks(s) and s.check()
    same_on_the_device(s, ("float32",), lambda x, h, i: (x > 0) * 2.0 + (i < 5))


def test_an_index_as_a_number():
    """Of any start, up and down; what may be no number of 32 bits is converted lane by lane."""
    for fn, want in (
        (lambda i, h: tir.cast(i, "int32"), lambda i, h: i),
        (lambda i, h: tir.cast(31 - i + 7 * h, "int32"), lambda i, h: 31 - i + 7 * h),
        (lambda i, h: tir.cast(i * (1 << 26), "int32"), lambda i, h: i * (1 << 26)),
        (lambda i, h: tir.cast(i - i + h, "int32"), lambda i, h: h + 0 * i),
    ):
        for lanes in (4, 16):
            s = vectorized(lambda x, h, i, f=fn: x + f(i, h), ("int32",), lanes)
            assert s.check()
            same_on_the_device(s, ("int32",), lambda x, h, i, w=want: (x + w(i, h)).astype(np.int64))


def test_what_is_not_chosen_may_be_out_of_reach_or_trap():
    """Such a choice stays one of scalars: its other side would be read or divided by in all lanes."""
    x = tir.placeholder((32,), "int32", name="X")
    at = tir.placeholder((32,), "int32", name="at")
    gather = lambda i: tir.where(at[i] >= 0, x[tir.minimum(tir.maximum(at[i], 0), 31)], -1)  # noqa: E731
    divide = lambda i: tir.where(tir.not_equal(at[i], 0), x[i] // at[i], -1)  # noqa: E731
    beside = lambda i: tir.where((at[i] > 0) & (i < 31), x.get(i + 1, fill=0), -1)  # noqa: E731
    a = np.arange(32, dtype=np.int32) * 3
    b = np.resize(np.array([0, 5, -1, 31], np.int32), 32)
    for fn, want in (
        (gather, np.where(b >= 0, a[np.clip(b, 0, 31)], -1)),
        (divide, np.where(b != 0, a // np.where(b == 0, 1, b), -1)),
        (beside, np.where((b > 0) & (np.arange(32) < 31), np.append(a[1:], 0), -1)),
    ):
        s = tir.Schedule(tir.compute((32,), fn, name="Y"), CPU)
        s.vectorize(s.split("Y.i", [None, 8])[1])
        assert s.check()
        np.testing.assert_array_equal(s.build()(a, b), want)


@pytest.mark.parametrize("reducer", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_the_place_of_the_first_extreme_in_lanes(reducer, dtype):
    """The state of each lane is a value and its place, both read before either is written."""
    x = tir.placeholder((5, 64), dtype, name="X")
    k = tir.reduce_axis(64, name="k")
    y = tir.compute((5,), lambda i: getattr(tir, reducer)(x[i, k], axis=k), name="Y")
    s = tir.Schedule(y, CPU)
    lanes = s.rfactor("Y", s.split("Y.k", [None, 8])[1])
    s.compute_at(lanes, "Y", "i").set_scope("Y_rf", "register").set_scope("Y_state0_rf", "register")
    s.reorder("Y.rf.k.0", "Y.rf.rf").vectorize("Y.rf.rf")
    assert masks(s) and s.check()
    rng = np.random.default_rng(1)
    some = rng.integers(0, 4, (5, 64)).astype(dtype)
    if dtype.startswith("float"):
        some[1, [9, 40]] = np.nan
        some[2] = -np.inf if reducer == "argmax" else np.inf
        some[3] = np.nan
    np.testing.assert_array_equal(s.build()(some), getattr(some, reducer)(axis=1))


def conditions(depth):
    """A condition as tir and as NumPy say it."""
    one = st.sampled_from([
        (lambda x, y, h, i: x < y, lambda x, y, h, i: x < y),
        (lambda x, y, h, i: x >= 1, lambda x, y, h, i: x >= 1),
        (lambda x, y, h, i: tir.equal(x, y), lambda x, y, h, i: x == y),
        (lambda x, y, h, i: i + 11 * h > 17, lambda x, y, h, i: i + 11 * h > 17),
        (lambda x, y, h, i: tir.equal(31 - i, 6 * h), lambda x, y, h, i: 31 - i == 6 * h),
        (lambda x, y, h, i: h < 2, lambda x, y, h, i: h < 2),
    ])  # fmt: skip
    if depth == 0:
        return one
    inner = conditions(depth - 1)

    def both(p, q):
        return lambda *v: p[0](*v) & q[0](*v), lambda *v: p[1](*v) & q[1](*v)

    def either(p, q):
        return lambda *v: p[0](*v) | q[0](*v), lambda *v: p[1](*v) | q[1](*v)

    def no(p):
        return lambda *v: ~p[0](*v), lambda *v: ~p[1](*v)

    return st.one_of(one, st.builds(both, inner, inner), st.builds(either, inner, inner), st.builds(no, inner))


@given(cond=conditions(3), dtype=st.sampled_from(TYPES), lanes=st.sampled_from([4, 8, 16]), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_any_condition(cond, dtype, lanes, seed):
    s = vectorized(lambda x, y, h, i: tir.where(cond[0](x, y, h, i), x, y), (dtype, dtype), lanes)
    assert s.check()
    same_on_the_device(s, (dtype, dtype), lambda *v: np.where(cond[1](*v), v[0], v[1]), seed)


def test_no_scalar_loop_is_left():
    s = vectorized(lambda x, y, h, i: tir.where(x > y, x, y), ("float32", "float32"), 8)
    assert loops(s) == ["Y.h", "Y.i.0"]
    compared = find(lower(s.program, s.target).kernels[0].body, Binary, lambda n: n.op == ">" or n.op == "<")
    assert any(lanes_of(c) == 8 for c in compared)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x, y, i: x[i] // y[i], "integers are divided one by one"),
        (lambda x, y, i: tir.where(y[i] > 0, x[i] // y[i], 0), "one side of a choice may not be computed"),
        (lambda x, y, i: x[i] << y[i], "a helper shifts by a number of bits"),
    ],
)
def test_the_text_says_which_loop_is_not_in_vectors_and_why(fn, why):
    x, y = (tir.placeholder((32,), "int32", name=n) for n in "XZ")
    s = tir.Schedule(tir.compute((32,), lambda i: fn(x, y, i), name="Y"), CPU)
    s.vectorize(s.split("Y.i", [None, 8])[1])
    assert f"// not in vectors: {why}" in s.source()
    assert s.check()
    plain = tir.Schedule(tir.compute((32,), lambda i: x[i] + y[i], name="Y"), CPU)
    assert "not in vectors" not in plain.vectorize(plain.split("Y.i", [None, 8])[1]).source()


def test_what_is_written_in_strides_is_said_not_to_be_in_vectors():
    x = tir.placeholder((8, 4), name="X")
    s = tir.Schedule(tir.compute((8, 4), lambda i, j: x[i, j], name="Y"), CPU).reorder("Y.j", "Y.i")
    assert "// not in vectors: what lanes write of Y is not side by side" in s.vectorize("Y.i").source()
