"""Attention from plain computes: one kernel, whatever is masked."""

import numpy as np
import pytest

import tensorir as tir


def declared(causal, heads=2, shape=(2, 5, 4)):
    q = tir.placeholder((1, heads, *shape[1:]), name="q")
    k, v = (tir.placeholder((1, 1, 7, 4), name=n) for n in "kv")
    return tir.nn.attention(q, k, v, causal=causal, name="y")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("target", ["opencl", "c", "cuda -arch=sm_80"])
def test_scores_are_never_in_memory(target, causal):
    s = tir.auto_schedule(declared(causal), target)
    assert next(iter(tir.auto(declared(causal), target))).endswith("_rolling")
    assert len(s.emitted().kernels) == 1
    assert s.check()
    assert any(step.primitive == "rolling" for step in s.trace)
    assert any(step.primitive == "skip" for step in s.trace) == causal


def test_pieces_of_the_keys_that_no_query_sees_are_skipped():
    q, k, v = (tir.placeholder((1, 2, 200, 4), name=n) for n in "qkv")
    for options, said in (({"causal": True}, "skipped unless"), ({}, ""), ({"score": lambda s, b, h, i, j: s * 2}, "")):
        s = tir.auto_schedule(tir.nn.attention(q, k, v, **options), "opencl")
        assert ("skipped unless" in s.tree()) == bool(said)
        assert s.check()


def test_values():
    y = declared(True)
    q = np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype("float32")
    k, v = (np.random.default_rng(n).standard_normal((1, 1, 7, 4)).astype("float32") for n in (1, 2))
    score = np.where(np.tril(np.ones((5, 7), bool)), np.einsum("bhid,bgjd->bhij", q, k) / 2, -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    want = np.einsum("bhij,bgjd->bhid", p / p.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(tir.auto_schedule(y).build()(q, k, v), want, rtol=1e-5, atol=1e-6)


def test_a_softmax_alone_is_not_rolled():
    assert not any("rolling" in name for name in tir.auto(tir.nn.softmax(tir.placeholder((8, 8), name="x"), -1)))
