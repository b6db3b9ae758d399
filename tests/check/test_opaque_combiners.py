"""Combiners that call functions: exp is exact in two fields; others are compared in doubles, and said to be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check import equivalence, verdict
from tensorir.ir.tree import Binary, Const
from tensorir.ir.visit import Rewriter


def online(rows=6, keys=40, rescaled=True):
    """Rows of softmax(S) V by a state of the running maximum, the sum and the weighted sum."""
    S, V = tir.placeholder((rows, keys), name="S"), tir.placeholder((keys,), name="V")
    k = tir.reduce_axis(keys, name="k")

    def join(a, b):
        m = tir.maximum(a[0], b[0])
        p, q = tir.exp(a[0] - m), tir.exp(b[0] - m)
        return m, a[1] * p + b[1] * q, a[2] * p + b[2] * (q if rescaled else p)

    state = tir.combiner(join, (-1e30, 0.0, 0.0))
    _, l, o = tir.compute((rows,), lambda i: state((S[i, k], tir.cast(1, "float32"), V[k]), axis=k), name="state")
    return tir.compute((rows,), lambda i: o[i] / l[i], name="Y")


def in_parts(y, part):
    s = tir.Schedule(y, target="opencl")
    outer, _ = s.split("state.k", [None, part])
    s.rfactor("state", outer)
    return s


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 7), st.integers(1, 9))
def test_online_softmax_is_right_and_exactly(rows, part):
    for s in (tir.Schedule(online(rows)), in_parts(online(rows), part)):
        verdict = s.check()
        assert verdict, verdict
        assert verdict.kind.startswith("exact over the fields of 2147483579 and 1073741789")
        assert s.blame() is None


def test_a_state_that_is_not_rescaled_is_wrong():
    for s in (tir.Schedule(online(rescaled=False)), in_parts(online(rescaled=False), 8)):
        assert [p.code for p in s.check().problems] == ["check.not-equal"]


class OtherStart(Rewriter):
    """States that begin with a term that is none of theirs."""

    def on_Store(self, n):
        return replace(n, value=Const(0.001, n.value.dtype)) if isinstance(n.value, Const) else n


def test_a_wrong_kernel_is_wrong(monkeypatch):
    s = in_parts(online(), 8)
    assert s.check()
    spoilt(monkeypatch, OtherStart())
    assert [p.code for p in s.check().problems] == ["check.not-equal"]


class Larger(Rewriter):
    """What is read of the scores is a hundredth too large."""

    def on_Load(self, n):
        n = n.map(self)
        return Binary("*", n, Const(1.01, n.dtype), n.dtype) if n.buffer.name == "S" else n


def spoilt(monkeypatch, spoil):
    """Let lowering make wrong kernels, of other shapes and of the declared one."""

    def wrong(lower):
        def lowered(*given):
            module = lower(*given)
            return replace(module, kernels=tuple(replace(k, body=spoil(k.body)) for k in module.kernels))

        return lowered

    for place, name in ((equivalence, "lower"), (equivalence, "lowered"), (verdict, "lowered")):
        monkeypatch.setattr(place, name, wrong(getattr(place, name)))


def test_products_by_logarithms_are_seen(monkeypatch):
    """Of negative numbers there are none, and what is no number equals itself."""
    S, k = tir.placeholder((3, 40), name="S"), tir.reduce_axis(40, name="k")
    product = tir.combiner(lambda a, b: tir.exp(tir.log(a) + tir.log(b)), 1.0)
    s = in_parts(tir.compute((3,), lambda i: product(S[i, k], axis=k), name="state"), 8)
    own = [{"i": 3, "k": 40}]
    found = s.check(shapes=own)
    assert found
    assert "in double precision within 1e-09" in found.kind
    assert "that of state calls exp and log" in found.kind
    spoilt(monkeypatch, Larger())
    assert [p.code for p in s.check(shapes=own).problems] == ["check.not-equal"]


@pytest.mark.parametrize("what", ["m", "log l + m"])
def test_a_row_that_is_masked_hides_no_other(monkeypatch, what):
    """-1e30, where a row has no keys, says nothing of how far the others may be off."""
    S, k = tir.placeholder((6, 40), name="S"), tir.reduce_axis(40, name="k")

    def join(a, b):
        m = tir.maximum(a[0], b[0])
        return m, a[1] * tir.exp(a[0] - m) + b[1] * tir.exp(b[0] - m)

    state = tir.combiner(join, (-1e30, 0.0))
    m, l = tir.compute(
        (6,), lambda i: state((tir.where(k < i * 8, S[i, k], -1e30), tir.cast(1, "float32")), axis=k), name="state"
    )
    y = tir.compute((6,), lambda i: m[i] * 1.0 if what == "m" else m[i] + tir.log(l[i]), name="Y")
    assert in_parts(y, 8).check()
    spoilt(monkeypatch, Larger())
    assert [p.code for p in in_parts(y, 8).check().problems] == ["check.not-equal"]


def test_functions_that_the_field_takes_for_keys_are_still_compared_exactly():
    A, k = tir.placeholder((5, 30), name="A"), tir.reduce_axis(30, name="k")
    largest = tir.combiner(lambda a, b: tir.where(tir.abs(a) < tir.abs(b), b, a), 0)
    C = tir.compute((5,), lambda i: largest(A[i, k], axis=k), name="C")
    assert "exact over the field" in tir.Schedule(C).check().kind


@pytest.mark.parametrize("part", [None, 8])
def test_it_is_tuned_and_right(tmp_path, part):
    y = online(rows=16, keys=64)

    def template(s, config):
        return s if part is None else in_parts(s.outputs, part)

    work = tir.Workload("online", y, {"default": (template, tir.Space(x=[1]))})
    result = work.tune(trials=1, log=str(tmp_path))
    assert result.best.status == "ok", result.records
    s, v = (np.random.default_rng(0).standard_normal(n).astype(np.float32) for n in ((16, 64), 64))
    p = np.exp(s - s.max(axis=1, keepdims=True))
    np.testing.assert_allclose(work.load(log=str(tmp_path))(s, v), p @ v / p.sum(axis=1), rtol=1e-4, atol=1e-5)
