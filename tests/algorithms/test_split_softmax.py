"""Softmax sums in parts of their terms: every number of parts, every form of scores, and what is refused."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.interp.reference import evaluate


def latent(heads, keys, width, rotary, causal=False):
    """Scores of two products, scaled, as in multi-head latent attention; keys are the values."""
    q, qr = tir.placeholder((heads, width), name="q"), tir.placeholder((heads, rotary), name="qr")
    ck, kr = tir.placeholder((keys, width), name="ck"), tir.placeholder((keys, rotary), name="kr")
    a, b, k, l, t = (tir.reduce_axis(n, name) for n, name in zip((width, rotary, *3 * (keys,)), "abklt", strict=True))
    s1 = tir.compute((heads, keys), lambda i, j: tir.sum(q[i, a] * ck[j, a], axis=a), name="s1")
    s2 = tir.compute((heads, keys), lambda i, j: tir.sum(qr[i, b] * kr[j, b], axis=b), name="s2")

    def score(i, j):
        value = (s1[i, j] + s2[i, j]) * 0.25
        return tir.where(j <= i + keys - heads, value, -float("inf")) if causal else value

    s = tir.compute((heads, keys), score, name="s")
    m = tir.compute((heads,), lambda i: tir.max(s[i, k], axis=k), name="m")
    e = tir.compute((heads, keys), lambda i, j: tir.exp(s[i, j] - m[i]), name="e")
    z = tir.compute((heads,), lambda i: tir.sum(e[i, l], axis=l), name="Z")
    o = tir.compute((heads, width), lambda i, d: tir.sum(e[i, t] * ck[t, d], axis=t), name="o")
    return tir.compute((heads, width), lambda i, d: o[i, d] / z[i], name="y"), (m, z)


def arrays(heads, keys, width, rotary):
    rng = np.random.default_rng(0)
    shapes = (heads, width), (heads, rotary), (keys, width), (keys, rotary)
    return [rng.integers(-3, 4, shape).astype("float32") / 2 for shape in shapes]


def wanted(q, qr, ck, kr, causal=False):
    score = (q @ ck.T + qr @ kr.T) * 0.25
    if causal:
        score = np.where(np.tri(*score.shape, score.shape[1] - score.shape[0], dtype=bool), score, -np.inf)
    e = np.exp(score - score.max(1, keepdims=True))
    return e @ ck / e.sum(1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 13, 20])
def test_every_number_of_parts_gives_the_same_sums(parts, causal):
    shape = 4, 13, 5, 2
    s = tir.Schedule(latent(*shape, causal)[0]).redeclare("split_softmax", parts=parts, of="o")
    given = arrays(*shape)
    by_name = dict(zip(("q", "qr", "ck", "kr"), given, strict=True))
    order = [by_name[b.name] for b in s.program.inputs]
    np.testing.assert_allclose(evaluate(s.outputs, order)[0], wanted(*given, causal), rtol=1e-5)
    assert s.check(), str(s.check())


def test_a_part_of_which_no_key_is_seen_adds_nothing():
    """The first row sees one key: all other parts are masked."""
    shape = 8, 8, 3, 1
    s = tir.Schedule(latent(*shape, True)[0]).redeclare("split_softmax", parts=4, of="Z")
    given = arrays(*shape)
    by_name = dict(zip(("q", "qr", "ck", "kr"), given, strict=True))
    made = s.build()(**by_name)
    np.testing.assert_allclose(made, wanted(*given, True), rtol=1e-5)
    assert s.check(), str(s.check())


def test_the_check_varies_keys_of_all_sums_together():
    s = tir.Schedule(latent(3, 40, 2, 2)[0]).redeclare("split_softmax", parts=5, of="o")
    told = str(s.check())
    assert told.startswith("ok") and "m.k=40" not in told, told


def test_maximum_and_total_may_be_results_too():
    y, (m, z) = latent(3, 11, 4, 2)
    s = tir.Schedule((y, tir.compute((3,), lambda i: m[i] + tir.log(z[i]), name="lse")))
    s.redeclare("split_softmax", parts=3, of="o")
    assert s.check(), str(s.check())


def test_powers_of_two_and_scaled_exponents_are_rescaled():
    for weight in (lambda s, m: tir.exp2(s - m), lambda s, m: tir.exp((s - m) * 0.5)):
        s = tir.Schedule(total_of(weight)).redeclare("split_softmax", parts=3, of="z")
        assert s.check(), str(s.check())


def total_of(weight, terms=10):
    """The sum of weights of scores (3, 10), of which the maximum of the first ``terms`` is taken."""
    x = tir.placeholder((3, 10, 2), name="x")
    a, k, l = (tir.reduce_axis(n, name) for n, name in ((2, "a"), (terms, "k"), (10, "l")))
    s = tir.compute((3, 10), lambda i, j: tir.sum(x[i, j, a], axis=a), name="s")
    m = tir.compute((3,), lambda i: tir.max(s[i, k], axis=k), name="m")
    e = tir.compute((3, 10), lambda i, j: weight(s[i, j], m[i]), name="e")
    return tir.compute((3,), lambda i: tir.sum(e[i, l], axis=l), name="z")


@pytest.mark.parametrize("weight", [lambda s, m: tir.exp(m - s), lambda s, m: s - m, lambda s, m: tir.exp(s) * m])
def test_weights_of_another_form_are_refused(weight):
    z = total_of(weight)
    with pytest.raises(tir.ScheduleError) as caught:
        tir.Schedule(z).redeclare("split_softmax", parts=2, of="z")
    assert caught.value.code == "split-softmax.stage"


def test_a_sum_over_other_keys_is_refused():
    """The maximum is over the first three keys: a part may have none of them."""
    z = total_of(lambda s, m: tir.exp(s - m), 3)
    with pytest.raises(tir.ScheduleError) as caught:
        tir.Schedule(z).redeclare("split_softmax", parts=2, of="z")
    assert caught.value.code == "split-softmax.stage"
