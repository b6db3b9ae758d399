"""rolling: later reductions go on with running values, in one pass, and give what was declared."""

import numpy as np
import online
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.ir.tree import Scope


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def softmax(rows=3, n=20):
    X, k, k2 = tir.placeholder((rows, n), name="X"), tir.reduce_axis(n, name="k"), tir.reduce_axis(n, name="k")
    m = tir.compute((rows,), lambda i: tir.max(X[i, k], axis=k), name="m")
    total = tir.compute((rows,), lambda i: tir.sum(tir.exp(X[i, k2] - m[i]), axis=k2), name="l")
    return tir.compute((rows, n), lambda i, j: tir.exp(X[i, j] - m[i]) / total[i], name="Y")


@pytest.mark.parametrize("variant", online.VARIANTS)
def test_attention_is_one_kernel_without_workspace(variant, rng):
    s = online.rolled(online.attention(score=online.VARIANTS[variant]), rows=4)
    verdict = s.check()
    assert verdict and "exp(a) exp(b) = exp(a + b)" in str(verdict)
    f = s.build()
    assert f.source.count("__kernel") == 1 and not [b for b in s.index.buffers().values() if b.scope is Scope.GLOBAL
                                                    and b not in s.program.params]  # fmt: skip
    q, k, v = (rng.standard_normal((1, 24, 4)).astype("float32") * 3 for _ in "qkv")
    np.testing.assert_allclose(f(q, k, v), online.by_numpy(q, k, v, online.NUMPY[variant]), rtol=1e-4, atol=1e-5)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 12), st.integers(1, 5), st.booleans(),
       st.sampled_from(list(online.VARIANTS)))  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_every_piece_and_block_gives_what_was_declared(n, keys, piece, rows, weights, variant):
    Y = online.attention(n, 2, online.VARIANTS[variant], weights=weights, keys=keys)
    s = online.rolled(Y, piece, rows if rows < n else None)
    verdict = s.check()
    assert verdict, str(verdict)
    draw = np.random.default_rng(n * keys).standard_normal
    q, k, v = (draw((1, length, 2), "float32") for length in (n, keys, keys))
    with np.errstate(all="ignore"):
        want = online.by_numpy(q, k, v, online.NUMPY[variant])
    np.testing.assert_allclose(s.build()(q, k, v), want, rtol=1e-4, atol=1e-5)


def test_pieces_without_a_term_and_scores_far_below_zero(rng):
    """Windows leave whole pieces out, the first one of late rows among them; exp(-1000 - 1) is 0, exp(1000) is not."""
    s = online.rolled(online.attention(40, 4, online.VARIANTS["window"]), piece=4)
    q, k, v = (rng.standard_normal((1, 40, 4)).astype("float32") for _ in "qkv")
    for shift in (-1000.0, 1000.0):
        k[:], q[..., 0] = k, shift
        k[..., 0] = 1
        want = online.by_numpy(q, k, v, online.NUMPY["window"])
        np.testing.assert_allclose(s.build()(q, k, v), want, rtol=1e-3, atol=1e-4)


def test_a_row_without_any_term_gives_what_the_declaration_gives(rng):
    nobody = lambda s, b, i, j: tir.where(i < 20, s, -online.INF)  # noqa: E731
    Y = online.attention(score=nobody)
    q, k, v = (rng.standard_normal((1, 24, 4)).astype("float32") for _ in "qkv")
    got, want = online.rolled(Y).build()(q, k, v), tir.Schedule(Y).build()(q, k, v)
    assert np.isnan(got[0, 20:]).all() and np.isnan(want[0, 20:]).all()
    np.testing.assert_allclose(got[0, :20], want[0, :20], rtol=1e-4, atol=1e-5)
    assert online.rolled(Y).check()


def test_exponents_of_other_numbers_than_those_of_the_maximum_are_refused():
    """Where A has no value in the first pieces, exp(B - any number) may be 0 or infinite, and what it was is lost."""
    A, B = tir.placeholder((12,), name="A"), tir.placeholder((12,), name="B")
    k, k2 = tir.reduce_axis(12, name="k"), tir.reduce_axis(12, name="k")
    m = tir.compute((1,), lambda i: tir.max(tir.where(k < 8, -online.INF, A[k]), axis=k), name="m")
    s = tir.Schedule(tir.compute((1,), lambda i: tir.sum(tir.exp(B[k2] - m[i]), axis=k2), name="l"))
    code, text = refusal(lambda: s.rolling("m", into="l", at=s.split("l.k", [None, 4])[0]))
    assert code == "rolling.repair" and "m is not known to be the maximum" in text


@given(st.integers(1, 20), st.integers(1, 9), st.booleans())
@settings(max_examples=30, deadline=None)
def test_terms_that_do_not_vanish_where_m_has_no_value(n, piece, masked):
    """Terms of pieces in which m is still its identity count, and where it stays that, the sum is the declaration's."""
    X, k, k2 = tir.placeholder((2, n), name="X"), tir.reduce_axis(n, name="k"), tir.reduce_axis(n, name="k")
    value = (lambda i: tir.where(k < 8, -online.INF, X[i, k])) if masked else (lambda i: X[i, k])
    m = tir.compute((2,), lambda i: tir.max(value(i), axis=k), name="m")
    s = tir.Schedule(tir.compute((2,), lambda i: tir.sum(X[i, k2] / m[i], axis=k2), name="l"))
    s.rolling("m", into="l", at=s.split("l.k", [None, piece])[0])
    assert "l.final" in s.index.stages
    verdict = s.check()
    assert verdict, str(verdict)
    x = np.random.default_rng(n).integers(1, 9, (2, n)).astype("float32")
    largest = np.where(np.arange(n) < 8, -np.inf, x).max(1) if masked else x.max(1)
    np.testing.assert_allclose(s.build()(x), x.sum(1) / largest, rtol=1e-5)


def test_other_reductions_than_softmax():
    """Numbers weighted by their running total, which may be 0 in between."""
    X, k, k2 = tir.placeholder((3, 20), name="X"), tir.reduce_axis(20, name="k"), tir.reduce_axis(20, name="k")
    total = tir.compute((3,), lambda i: tir.sum(X[i, k], axis=k), name="total")
    share = tir.compute((3,), lambda i: tir.sum(X[i, k2] * X[i, k2] / total[i], axis=k2), name="share")
    s = tir.Schedule(share)
    s.rolling("total", into="share", at=s.split("share.k", [None, 8])[0])
    assert s.check()
    x = np.arange(60, dtype="float32").reshape(3, 20) - 4  # a running total of row 0 is 0 after nine terms
    np.testing.assert_allclose(s.build()(x), (x * x).sum(1) / x.sum(1), rtol=1e-5)


def test_a_factor_may_read_more_than_m(rng):
    X, W = tir.placeholder((3, 20), name="X"), tir.placeholder((3, 2), name="W")
    k, k2 = tir.reduce_axis(20, name="k"), tir.reduce_axis(20, name="k")
    m = tir.compute((3,), lambda i: tir.max(X[i, k], axis=k), name="m")
    s = tir.Schedule(tir.compute((3, 2), lambda i, j: tir.sum(X[i, k2] / (m[i] + W[i, j]), axis=k2), name="l"))
    s.reorder("l.k", "l.j")
    s.rolling("m", into="l", at="l.k")
    assert "m.scale" not in s.index.stages and s.check()
    x, w = rng.uniform(1, 2, (3, 20)).astype("float32"), rng.uniform(1, 2, (3, 2)).astype("float32")
    np.testing.assert_allclose(s.build()(x, w), x.sum(1)[:, None] / (x.max(1)[:, None] + w), rtol=1e-5)


def test_loops_that_have_nothing_to_do_with_m_move_inside():
    s = tir.Schedule(online.attention(weights=False))
    ko, _ = s.split("O.j", [None, 8])
    assert s["m"].rolling(into=("l", s["O"]), at=ko).name == "m"
    assert [x.split(".", 1)[1] for x in s.loops("O")] == ["b", "i", "j.0", "e", "j.1"]
    assert [x for x in s.index.stages if "." in x] == [
        "m.init", "l.init", "O.init", "m.old", "m.ref", "m.scale", "l.rescale", "O.rescale"
    ]  # fmt: skip


def test_the_step_replays_and_is_undone():
    Y = online.attention()
    s = online.rolled(Y, rows=4)
    step = next(x for x in s.trace if x.primitive == "rolling")
    assert str(step) == "s.rolling('m', into=['l', 'O'], at='O.j.0')"
    assert str(tir.replay(Y, s.trace.to_json())) == str(s)
    assert str(s.undo(len(s.trace))) == str(tir.Schedule(Y))


def test_a_copy_in_registers_is_opened_from_what_is_there():
    s = online.rolled(online.attention(), rows=4)
    made = s.stage_out("O", at="O.i.1")
    assert "where" not in str(s).split("stage O.init_1")[1].split("\n")[1]
    assert made.name == "O.out" and s.check()


def test_running_values_may_be_outputs(rng):
    X, k, k2 = tir.placeholder((3, 20), name="X"), tir.reduce_axis(20, name="k"), tir.reduce_axis(20, name="k")
    m = tir.compute((3,), lambda i: tir.max(X[i, k], axis=k), name="m")
    total = tir.compute((3,), lambda i: tir.sum(tir.exp(X[i, k2] - m[i]), axis=k2), name="l")
    s = tir.Schedule((m, total))
    s.rolling("m", into="l", at=s.split("l.k", [None, 8])[0])
    assert s.check()
    x = rng.standard_normal((3, 20)).astype("float32")
    for got, want in zip(s.build()(x), (x.max(1), np.exp(x - x.max(1)[:, None]).sum(1)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def refusal(act):
    with pytest.raises(tir.ScheduleError) as e:
        act()
    return e.value.code, " ".join(str(e.value).split())


def test_what_is_refused():
    s = tir.Schedule(online.attention())
    before = str(s)
    ko, _ = s.split("O.j", [None, 8])
    told = {
        "rolling.axis": [
            lambda: s.rolling("m", into="O", at="O.e"),
            lambda: s.rolling("m", into="O", at="m.j"),
            lambda: s.rolling("S", into="O", at=ko),
        ],
        "rolling.reduction": [
            lambda: s.rolling("T", into="O", at=ko),
            lambda: s.rolling("m", into=("P", "O"), at=ko),
        ],
        "rolling.reads": [lambda: s.rolling("l", into="O", at=ko)],
        "rolling.readers": [lambda: s.rolling("m", into="O", at=ko)],
    }
    for code, acts in told.items():
        for act in acts:
            assert refusal(act)[0] == code
    s.undo()
    assert str(s) == before
    s.split("m.i", [None, 4])
    s.split("O.j", [None, 8])
    assert refusal(lambda: s.rolling("m", into=("l", "O"), at="O.j.0"))[0] == "rolling.scheduled"
    s.undo(2)
    assert "not contiguous" in refusal(lambda: interleaved(s))[1]


def interleaved(s):
    ko, ki = s.split("O.j", [None, 8])
    s.reorder(ki, ko)
    s.rolling("m", into=("l", "O"), at=ki)


def test_what_reads_another_place_or_an_incomplete_sum_is_refused():
    X = tir.placeholder((6, 20), name="X")
    k, k2, k3 = (tir.reduce_axis(20, name="k") for _ in range(3))
    m = tir.compute((6,), lambda i: tir.max(X[i, k], axis=k), name="m")
    other = tir.compute((6,), lambda i: tir.sum(tir.exp(X[i, k2] - m[5 - i]), axis=k2), name="l")
    assert refusal(lambda: tir.Schedule(other).rolling("m", into="l", at="l.k"))[0] == "rolling.cells"
    total = tir.compute((6,), lambda i: tir.sum(tir.exp(X[i, k2] - m[i]), axis=k2), name="l")
    share = tir.compute((6,), lambda i: tir.sum(tir.exp(X[i, k3] - m[i]) / total[i], axis=k3), name="O")
    code, text = refusal(lambda: tir.Schedule(share).rolling("m", into=("l", "O"), at="O.k"))
    assert code == "rolling.reads" and "l, which is complete only after the last piece" in text


def test_combiners_that_do_not_commute_are_refused():
    last = tir.combiner(lambda a, b: b, 0.0, commutative=False)
    X, k, k2 = tir.placeholder((6, 20), name="X"), tir.reduce_axis(20, name="k"), tir.reduce_axis(20, name="k")
    m = tir.compute((6,), lambda i: last(X[i, k], axis=k), name="m")
    total = tir.compute((6,), lambda i: tir.sum(tir.exp(X[i, k2] - m[i]), axis=k2), name="l")
    assert refusal(lambda: tir.Schedule(total).rolling("m", into="l", at="l.k"))[0] == "rolling.order"


def test_a_tail_inside_a_piece_is_refused():
    s = tir.Schedule(softmax())
    ko, ki = s.split("l.k", [None, 10])
    s.split(ki, [None, 4])
    code, text = refusal(lambda: s.rolling("m", into="l", at=ko))
    assert code in ("rolling.tail", "rolling.axis") and "l.k" in text


def test_one_kernel_serves_every_length(rng):
    n = tir.dim("n", low=1, high=100)
    X, k, k2 = tir.placeholder((n, n), name="X"), tir.reduce_axis(n, name="k"), tir.reduce_axis(n, name="k")
    m = tir.compute((n,), lambda i: tir.max(X[i, k], axis=k), name="m")
    total = tir.compute((n,), lambda i: tir.sum(tir.exp(X[i, k2] - m[i]), axis=k2), name="l")
    s = tir.Schedule((m, total))
    s.rolling("m", into="l", at=s.split("l.k", [None, 8])[0])
    assert s.check()
    f = s.build()
    for length in (1, 7, 8, 9, 100):
        x = rng.standard_normal((length, length)).astype("float32")
        for got, want in zip(f(x), (x.max(1), np.exp(x - x.max(1)[:, None]).sum(1)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
