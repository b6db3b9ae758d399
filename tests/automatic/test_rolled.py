"""Attention from plain computes: one kernel, whatever is masked."""

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


def test_configurations_of_tiles_are_right():
    y = of(2, 24, 40, 6, True)
    template = tir.auto(y)["cpu_rolling_tiles"]
    space = template.space_for(tir.Schedule(y).target)
    assert 0 < len(space.legal) <= 5000
    for config in spread_over(space, 4):
        s = tir.Schedule(y)
        template.function(s, config)
        assert s.check(), config
