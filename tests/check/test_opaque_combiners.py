"""Combiners that call functions, which the prime field cannot see through: compared in doubles, and said to be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check import equivalence
from tensorir.ir.tree import Const
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


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 7), st.integers(1, 9))
def test_online_softmax_is_right_in_doubles(rows, part):
    for s in (tir.Schedule(online(rows)), in_parts(online(rows), part)):
        verdict = s.check()
        assert verdict, verdict
        assert "in double precision within 1e-09" in verdict.kind and "that of state calls exp" in verdict.kind
        assert s.blame() is None


def test_a_state_that_is_not_rescaled_is_wrong():
    for s in (tir.Schedule(online(rescaled=False)), in_parts(online(rescaled=False), 8)):
        assert [p.code for p in s.check().problems] == ["check.not-equal"]


class OtherStart(Rewriter):
    """States that begin with a term that is none of theirs."""

    def on_Store(self, n):
        return replace(n, value=Const(0.001, n.value.dtype)) if isinstance(n.value, Const) else n


def test_a_wrong_kernel_is_wrong_in_doubles_too(monkeypatch):
    kept, spoil = equivalence.lower, OtherStart()

    def lower(*given):
        module = kept(*given)
        return replace(module, kernels=tuple(replace(k, body=spoil(k.body)) for k in module.kernels))

    s = in_parts(online(), 8)
    assert s.check()
    monkeypatch.setattr(equivalence, "lower", lower)
    assert [p.code for p in s.check().problems] == ["check.not-equal"]


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
