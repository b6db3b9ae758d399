"""rolling into maxima and minima: terms that a running maximum is taken from, or that it scales, in one pass."""

import dataclasses
import functools

import numpy as np
import pytest
from blaming import checked_and_blamed
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rolling import HARD, refusal
from test_rolling_faults import moved, reads, skips, value, without

import tensorir as tir
from tensorir.ir.build import const
from tensorir.ir.tree import Select
from tensorir.schedule.primitives import rolling

INF = float("inf")
HELD = {
    "shifted": (lambda x, y, m: y + (x - m), lambda x, y, m: y + (x - m)),
    "scaled": (lambda x, y, m: (x - m) * 1.5 - y, lambda x, y, m: (x - m) * 1.5 - y),
    "chosen": (
        lambda x, y, m: tir.where(y > 0, x - m, -INF) + y, lambda x, y, m: np.where(y > 0, x - m, -INF) + y
    ),
    "weighted": (lambda x, y, m: tir.exp(x - m) * y, lambda x, y, m: np.exp(x - m) * y),
    "a power": (lambda x, y, m: 0.0 - tir.exp2((x - m) * 0.5), lambda x, y, m: -np.exp2((x - m) * 0.5)),
}  # fmt: skip
REDUCE = {"max": (tir.max, np.max), "min": (tir.min, np.min)}


def rolled(term, reduce=tir.max, piece=4, mask=None, n=20):
    """reduce(term(x, y, m)) over k, where m = max(x), in pieces."""
    X, Y = tir.placeholder((2, n), name="X"), tir.placeholder((2, n), name="Y")
    k, q = tir.reduce_axis(n, name="k"), tir.reduce_axis(n, name="k")
    seen = lambda i, k: X[i, k] if mask is None else tir.where(mask(i, k), X[i, k], -INF)  # noqa: E731
    T = tir.compute((2, n), seen, name="T")
    m = tir.compute((2,), lambda i: tir.max(T[i, k], axis=k), name="m")
    s = tir.Schedule(tir.compute((2,), lambda i: reduce(term(T[i, q], Y[i, q], m[i]), axis=q), name="O"))
    ko, _ = s.split("O.k", [None, piece])
    s.rolling("m", into="O", at=ko)
    return s.compute_at("T", ko)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("name", HELD)
def test_checks_are_in_numbers_with_an_order_and_say_so(name, reduce):
    verdict = rolled(HELD[name][0], REDUCE[reduce][0]).check()
    assert verdict, verdict
    doubles = "double precision" in str(verdict) and "no order that repairs of O would keep" in str(verdict)
    assert doubles or "exact over whole numbers" in str(verdict)


@functools.cache
def built(name, reduce, piece):
    return rolled(HELD[name][0], REDUCE[reduce][0], piece).build()


@given(st.lists(st.sampled_from(HARD) | st.floats(-300, 300, width=16), min_size=40, max_size=40),
       st.sampled_from([1, 7]), st.sampled_from(["shifted", "weighted"]), st.sampled_from(list(REDUCE)))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_numbers_in_pieces_give_what_is_declared(numbers, piece, name, reduce):
    by_numpy, same = HELD[name][1], REDUCE[reduce][1]
    x = np.array(numbers, "float32").reshape(2, 20)
    x[:, 7] = np.maximum(x[:, 7], -1e38)  # a row of minus infinity has no difference
    y = np.resize(np.array([-1, 0, 2], "float32"), (2, 20))
    wide = x.astype("float64")
    with np.errstate(over="ignore"):
        want = same(by_numpy(wide, y, wide.max(1, keepdims=True)), axis=1).astype("float32")
    np.testing.assert_allclose(built(name, reduce, piece)(x, y), want, rtol=1e-5, atol=1e-4)


LOST = {
    "other digits first": lambda x, y, m: (x + y) - m,
    "m from another one": lambda x, y, m: (y - m) + x,
    "m counts twice": lambda x, y, m: y + (x - 2 * m),
    "the sign is turned": lambda x, y, m: y - (x - m),
    "the order is turned": lambda x, y, m: (x - m) * y,
    "one of two": lambda x, y, m: tir.maximum(x - m, y),
    "a power and a number": lambda x, y, m: tir.exp(x - m) + y,
    "infinite where 0 may follow": lambda x, y, m: tir.where(y > 0, tir.exp(x - m), -INF),
}
"""What another running value would change in other ways than by one number, or to another one in few digits."""


@pytest.mark.parametrize("name", LOST)
def test_terms_that_no_number_repairs_are_refused(name):
    code, text = refusal(lambda: rolled(LOST[name]))
    assert code == "rolling.repair" and "try: exp(x - m) times, or x - m plus, what does not read m" in text


def test_what_begins_with_a_number_is_refused():
    """The number would be scaled with the terms; and products of terms have no repair."""
    largest = tir.combiner(tir.maximum, identity=-1e30)
    for combiner in (largest, tir.prod):
        assert refusal(lambda c=combiner: rolled(HELD["weighted"][0], c))[0] == "rolling.repair"


def test_pieces_that_a_mask_leaves_out_are_skipped():
    """Where a difference is minus infinity, and not where a power is 0, which may be the largest."""
    mask = lambda i, k: k <= 8 * i  # noqa: E731
    s = rolled(HELD["shifted"][0], mask=mask).skip("O.k.0")
    assert s.check()
    assert refusal(lambda: rolled(HELD["weighted"][0], mask=mask).skip("O.k.0"))[0] == "skip.identity"
    x, y = np.random.default_rng(0).integers(-9, 9, (2, 2, 20)).astype("float32")
    seen = np.where(np.arange(20) <= np.array([[0], [8]]), x, -INF)
    np.testing.assert_array_equal(s.build()(x, y), (seen - seen.max(1, keepdims=True) + y).max(1))


def no_start(v, number):
    return Select(v.cond, const(number, "float32"), v.b, "float32")


FAULTS = {
    "it is not repaired": ("shifted", without("O.rescale")),
    "the difference is turned": ("shifted", value("m.scale", lambda v, b: Select(v.cond, v.a, 0 - v.b, "float32"))),
    "the difference is multiplied": ("shifted", value("O.rescale", lambda v, b: v.a * v.b)),
    "twice the difference": ("shifted", value("O.rescale", lambda v, b: v + v.b)),
    "terms read the old m": ("shifted", reads("O", "m_ref", "m_old")),
    "it is repaired too late": ("scaled", moved("O.rescale", "after", "O")),
    "the difference is too early": ("scaled", moved("m.scale", "before", "m.ref")),
    "the factor is 0 at first": ("weighted", value("m.scale", lambda v, b: no_start(v, 0))),
    "the factor is turned": ("weighted", value("m.scale", lambda v, b: Select(v.cond, v.a, 1 / v.b, "float32"))),
    "no factor": ("weighted", value("m.scale", lambda v, b: const(1, "float32"))),
    "the factor is added": ("weighted", value("O.rescale", lambda v, b: v.a + v.b)),
    "a piece is missing": ("weighted", skips("O", 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_seen_and_blamed(fault, monkeypatch):
    right, (name, act) = rolling._rolling, FAULTS[fault]

    def wrong(program, *args):
        done = right(program, *args)
        return dataclasses.replace(done, program=act(done.program))

    monkeypatch.setattr(rolling, "_rolling", wrong)
    for reduce in (tir.max, tir.min):
        s = rolled(HELD[name][0], reduce)
        verdict, step = checked_and_blamed(s)
        assert not verdict and verdict.problems[0].code in ("check.not-equal", "memory.uninitialised"), str(verdict)
        assert step.primitive == "rolling"
