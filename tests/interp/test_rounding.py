"""Bounds of rounding: every right evaluation stays within them, and they are small where results are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.verdict import compare_results
from tensorir.interp.doubles import Doubles
from tensorir.interp.numbers import numpy_dtype
from tensorir.interp.reference import evaluate
from tensorir.interp.rounding import rounding_of
from tensorir.ir.dtypes import DTYPES

PAIRS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "max": tir.maximum,
    "/": lambda a, b: a / (tir.abs(b) + 0.3),
}  # fmt: skip
ONES = {
    "exp": lambda a: tir.exp(tir.minimum(a, 9.0)), "tanh": tir.tanh, "erf": tir.erf, "abs": tir.abs, "sin": tir.sin,
    "sqrt": lambda a: tir.sqrt(tir.abs(a)), "log": lambda a: tir.log(tir.abs(a) + 0.01), "minus": lambda a: -a,
    "half": lambda a: tir.cast(tir.cast(a, "float16"), "float32"), "third": lambda a: a * 0.3333,
    "cube": lambda a: tir.pow(tir.abs(a), 1.7),
    "power": lambda a: tir.pow(tir.abs(a) + 0.5, tir.minimum(a, 3.0)),
}  # fmt: skip
steps = st.lists(st.sampled_from([*PAIRS, *ONES]), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(steps, steps, st.integers(0, 1000), st.sampled_from(["float32", "float16", "float64"]))
def test_floats_are_within_bounds_of_doubles(first: list[str], then: list[str], seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    x, y, k = tir.placeholder((5, 33), name="x"), tir.placeholder((33,), name="y"), tir.reduce_axis(33, "k")

    def value(names: list[str], a: tir.Expr, b: tir.Expr) -> tir.Expr:
        for name in names:
            a = ONES[name](a) if name in ONES else PAIRS[name](a, b)
        return a

    z = tir.compute((5,), lambda i: tir.sum(value(first, x[i, k], y[k]) * y[k], k), name="z")
    t = tir.compute((5, 33), lambda i, j: value(then, z[i], y[j]) * y[j], name="t")
    out = tir.compute((5, 33), lambda i, j: tir.cast(t[i, j], dtype), name="out")
    arrays = [rng.standard_normal(s).astype(np.float32) * 4 for s in ((5, 33), (33,))]
    for orders in (slice(None), slice(None, None, -1)):  # of what is summed
        given = [arrays[0][:, orders], arrays[1][orders]]
        bounds = rounding_of((out,), given)
        assert bounds is not None
        (got,), (want,) = evaluate((out,), given), evaluate((out,), given, Doubles())
        apart = np.abs(got.astype(np.float64) - want)
        assert np.all((apart <= bounds[0]) | ~np.isfinite(got.astype(np.float64)))


def test_bounds_are_small_where_digits_are_known_and_not_where_they_cancel() -> None:
    x = tir.placeholder((4,), name="x")
    bodies = (lambda v: tir.exp(v) / 3.0, lambda v: (v + 1e4) - 1e4)
    near, far = (tir.compute((4,), lambda i, f=f: f(x[i]), name="y") for f in bodies)
    values = np.asarray([-60.0, -20.0, 0.1, 3.0], np.float32)
    for t, least, most in ((near, 1e-8, 1e-4), (far, 1e-5, 1.0)):
        (bound,), (want,) = rounding_of((t,), [values]) or ([],), evaluate((t,), [values])
        assert np.all((bound > least * np.abs(want)) & (bound < most * np.abs(want)))


@pytest.mark.parametrize("f", [tir.floor, lambda v: tir.cast(tir.cast(v, "int32"), "float32")])
def test_nothing_is_known_where_rounding_decides(f) -> None:
    x = tir.placeholder((4,), name="x")
    assert rounding_of((tir.compute((4,), lambda i: f(x[i] * 0.3), name="y"),), [np.ones(4, np.float32)]) is None


def _scan(op):
    return tir.scan(tir.placeholder((3, 700), name="A"), op=op)


def _scatter(op):
    row, V = tir.placeholder((700,), "int32", name="row"), tir.placeholder((700, 3), name="V")
    return tir.scatter((5, 3), over=(700, 3), index=lambda e, c: (row[e], c), value=lambda e, c: V[e, c], op=op, fill=1)


@pytest.mark.parametrize("op", ["sum", "prod", "max"])
def test_scans_and_scatters_are_within_their_bounds_in_order(op):
    """One term after another, which the reference joins in pairs."""
    rng = np.random.default_rng(4)
    a = (1 + rng.random((3, 700)) / 8).astype("float32") * rng.choice([-1, 1], (3, 700)).astype("float32")
    step = {"sum": np.add, "prod": np.multiply, "max": np.maximum}[op]
    (bound,), (want,) = rounding_of((_scan(op),), [a]), evaluate((_scan(op),), [a])
    got = step.accumulate(a, axis=1)
    assert np.all(np.abs(got - want) <= bound)
    assert np.all(bound <= {"sum": 0.25, "prod": 1e-3 * np.abs(want), "max": 0}[op])  # less than any term
    r, v = rng.integers(0, 5, 700).astype("int32"), np.ascontiguousarray(a.T)
    (bound,), (want,) = rounding_of((_scatter(op),), [r, v]), evaluate((_scatter(op),), [r, v])
    got = np.ones((5, 3), "float32")
    for e in range(700):
        got[r[e]] = step(got[r[e]], v[e])
    assert np.all(np.abs(got - want) <= bound)
    assert np.isfinite(bound).all()


@pytest.mark.parametrize("dtype", ["float16", "float8_e5m2"])
def test_sums_that_are_stored_below_the_least_normal_number_lose_its_last_digit_each_time(dtype):
    """A step there is as large as at that number, however small the sum is."""
    step = DTYPES[dtype].normal * 2.0 ** (1 - DTYPES[dtype].digits)
    x, k = tir.placeholder((3, 20), dtype, name="x"), tir.reduce_axis(20, name="k")
    y = tir.compute((3,), lambda i: tir.sum(x[i, k] * 0.5, axis=k), name="y")
    values = np.full((3, 20), step, "float32").astype(numpy_dtype(dtype))
    bounds = rounding_of((y,), [values])
    assert bounds is not None
    for total in (0.0, 20 * step):  # each half of a step rounded down, or up
        assert np.all(np.abs(10 * step - total) <= bounds[0])
    x = tir.compute((3,), lambda i: tir.sum(x[i, k], axis=k), name="y")
    small = np.zeros((3, 20), values.dtype)
    small[:, 0] = step
    want = evaluate((x,), [small])
    assert compare_results((x,), [np.zeros_like(w) for w in want], want)
    assert not compare_results((x,), [np.ones_like(w) for w in want], want)
