"""Attention from plain computes: one kernel, whatever is masked."""

import math

import numpy as np
import pytest
from covering import some_of_each, spread_over

import tensorir as tir


def declared(causal, heads=2, shape=(2, 5, 4)):
    q = tir.placeholder((1, heads, *shape[1:]), name="q")
    k, v = (tir.placeholder((1, 1, 7, 4), name=n) for n in "kv")
    return tir.nn.attention(q, k, v, causal=causal, name="y")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("target", ["opencl", "c", "cuda -arch=sm_80"])
def test_scores_are_never_in_memory(target, causal):
    s = tir.auto_schedule(declared(causal), target)
    assert "_rolling" in next(iter(tir.auto(declared(causal), target)))
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


def of(heads, queries, keys, width, causal=False, dtype="float32"):
    q = tir.placeholder((1, heads, queries, width), dtype, name="q")
    k, v = (tir.placeholder((1, heads, keys, width), dtype, name=n) for n in "kv")
    return tir.nn.attention(q, k, v, causal=causal, name="y")


SHAPES = [(1, 8, 1, 1), (3, 17, 16, 5), (2, 70, 33, 8), (1, 129, 67, 3)]
SORTS = [(False, "float32"), (True, "float16"), (True, "float32"), (False, "float16")]


@pytest.mark.parametrize(("shape", "sort"), some_of_each(SHAPES, SORTS, (0, 1)))
def test_blocks_of_queries_are_right_in_every_shape(shape, sort):
    y = of(*shape, *sort)
    s = tir.auto_schedule(y)
    assert next(iter(tir.auto(y))) == "cpu_rolling_tiles"
    assert len(s.emitted().kernels) == 1 and s.check()


def test_few_queries_go_one_by_one():
    assert next(iter(tir.auto(of(2, 3, 40, 8)))) == "cpu_rolling"


def test_both_products_are_in_tiles_of_vectors():
    text = tir.auto_schedule(of(2, 64, 64, 32)).source()
    assert "y_S_register" in text and "y_O_register" in text and "not in vectors" not in text


def latent(heads, queries, keys, width, rotary, causal=True):
    """Scores that are a sum of two products, with a bias, scaled and masked; the keys are the values."""
    Q, R = tir.placeholder((heads, queries, width), name="Q"), tir.placeholder((heads, queries, rotary), name="R")
    C, K = tir.placeholder((keys, width), name="C"), tir.placeholder((keys, rotary), name="K")
    B = tir.placeholder((queries, keys), name="B")
    a, b, k, l, t = (tir.reduce_axis(n, x) for n, x in zip((width, rotary, *3 * (keys,)), "abklt", strict=True))
    shape = heads, queries, keys
    s1 = tir.compute(shape, lambda h, i, j: tir.sum(Q[h, i, a] * C[j, a], axis=a), name="s1")
    s2 = tir.compute(shape, lambda h, i, j: tir.sum(R[h, i, b] * K[j, b], axis=b), name="s2")
    z = tir.compute(shape, lambda h, i, j: (s1[h, i, j] + s2[h, i, j]) * 0.25 + B[i, j], name="z")
    seen = (lambda h, i, j: tir.where(j <= i + keys - queries, z[h, i, j], -float("inf"))) if causal else z.__getitem__
    s = tir.compute(shape, seen, name="s") if causal else z
    m = tir.compute(shape[:2], lambda h, i: tir.max(s[h, i, k], axis=k), name="m")
    e = tir.compute(shape, lambda h, i, j: tir.exp(s[h, i, j] - m[h, i]), name="e")
    Z = tir.compute(shape[:2], lambda h, i: tir.sum(e[h, i, l], axis=l), name="Z")
    o = tir.compute((heads, queries, width), lambda h, i, d: tir.sum(e[h, i, t] * C[t, d], axis=t), name="o")
    y = tir.compute((heads, queries, width), lambda h, i, d: o[h, i, d] / Z[h, i], name="y")
    return y, tir.compute(shape[:2], lambda h, i: m[h, i] + tir.log(Z[h, i]), name="lse")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("target", ["c -units=1", "opencl -units=1", "cuda -arch=sm_80"])
@pytest.mark.parametrize("shape", [(2, 9, 31, 6, 3), (1, 16, 33, 40, 2)])
def test_scores_that_are_sums_of_products_are_never_in_memory(shape, target, causal):
    s = tir.auto_schedule(latent(*shape, causal)[0], target)
    assert "s.rolling" in str(s.trace) and len(s.emitted().kernels) == 1 + ("split_softmax" in str(s.trace))
    assert s.check(), str(s.check())


@pytest.mark.parametrize("units", [1, 2, 64])
def test_few_blocks_of_queries_go_through_parts_of_the_keys_on_all_cores(units):
    y = latent(1, 16, 1501, 64, 8)
    s = tir.auto_schedule(y[0], f"c -units={units}")
    first, *more = s.emitted().kernels
    assert math.prod(first.grid) >= min(units, 8) and len(more) == ("split_softmax" in str(s.trace)) == (units > 2)
    assert s.check(), str(s.check())


@pytest.mark.parametrize("units", [1, 64])
def test_values_of_latent_attention(units):
    heads, queries, keys, width, rotary = shape = 1, 16, 1501, 64, 8
    rng = np.random.default_rng(0)
    Q, R, C, K, B = (
        rng.integers(-2, 3, n).astype("float32") / 8
        for n in ((heads, queries, width), (heads, queries, rotary), (keys, width), (keys, rotary), (queries, keys))
    )
    score = (Q @ C.T + R @ K.T) * 0.25 + B
    e = np.exp(score - score.max(-1, keepdims=True))
    s = tir.auto_schedule(latent(*shape, False), f"c -units={units}")
    assert len(s.emitted().kernels) <= 2
    y, lse = s.build()(Q=Q, R=R, C=C, K=K, B=B)
    np.testing.assert_allclose(y, e @ C / e.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(lse, score.max(-1) + np.log(e.sum(-1)), rtol=1e-5)


@pytest.mark.parametrize("target", ["c -units=1", "c -units=16", "cuda -arch=sm_80"])
def test_the_logarithm_of_the_total_is_a_result_of_the_same_kernel(target):
    y, lse = latent(2, 20, 70, 16, 4, False)
    for outputs in ((y, lse), (lse, y)):
        s = tir.auto_schedule(outputs, target)
        assert len(s.emitted().kernels) == 1 + ("split_softmax" in str(s.trace))
        assert s.check(), str(s.check())


def test_configurations_of_tiles_are_right():
    y = of(2, 24, 40, 6, True)
    template = tir.auto(y)["cpu_rolling_tiles"]
    space = template.space_for(tir.Schedule(y).target)
    assert 0 < len(space.legal) <= 5000
    for config in spread_over(space, 4):
        s = tir.Schedule(y)
        template.function(s, config)
        assert s.check(), config


@pytest.mark.parametrize("target", ["c -registers=32 -vector_bytes=64 -units=2", "cuda -arch=sm_80"])
@pytest.mark.parametrize("also", ["total", "sums", "logarithm"])
def test_masked_rows_whose_total_is_a_result_are_not_rolled(also, target):
    """A query without a key has the total NaN as declared, and 0 in one pass."""
    n, keys, width = 24, 17, 16
    q, c = tir.placeholder((n, width), name="q"), tir.placeholder((keys, width), name="c")
    a, k, l, t = (tir.reduce_axis(size, name) for size, name in ((width, "a"), (keys, "k"), (keys, "l"), (keys, "t")))
    dot = tir.compute((n, keys), lambda i, j: tir.sum(q[i, a] * c[j, a], axis=a), name="dot")
    s = tir.compute((n, keys), lambda i, j: tir.where(j <= i + keys - n, dot[i, j], -float("inf")), name="s")
    m = tir.compute((n,), lambda i: tir.max(s[i, k], axis=k), name="m")
    e = tir.compute((n, keys), lambda i, j: tir.exp(s[i, j] - m[i]), name="e")
    z = tir.compute((n,), lambda i: tir.sum(e[i, l], axis=l), name="z")
    o = tir.compute((n, width), lambda i, d: tir.sum(e[i, t] * c[t, d], axis=t), name="o")
    y = tir.compute((n, width), lambda i, d: o[i, d] / z[i], name="y")
    other = {"total": z, "sums": o, "logarithm": tir.compute((n,), lambda i: m[i] + tir.log(z[i]), name="lse")}[also]
    both = tir.auto_schedule([y, other], target)
    assert "s.rolling" not in str(both.trace) and both.check()
    assert "s.rolling" in str(tir.auto_schedule(y, target).trace)
