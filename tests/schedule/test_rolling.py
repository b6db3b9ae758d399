"""rolling: later reductions are updated online with running values, in one pass, and give what was declared."""

import numpy as np
import online
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.equivalence import awkward_shapes
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
@settings(max_examples=16, deadline=None)
def test_every_piece_and_block_gives_what_was_declared(n, keys, piece, rows, weights, variant):
    Y = online.attention(n, 2, online.VARIANTS[variant], weights=weights, keys=keys)
    s = online.rolled(Y, piece, rows if rows < n else None)
    shapes = [{v.name: size for v, size in shape.items()} for shape in awkward_shapes(s)]
    verdict = s.check(shapes=shapes[:1] + shapes[1 + n % 3 :: 3])  # another third each time: extents are drawn as well
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


def rolled_sum(term, n=20, piece=4, of=lambda x: x):
    """sum(term(x, y, m)) over k, where m = max(of(x)), in pieces."""
    X, Y = tir.placeholder((2, n), name="X"), tir.placeholder((2, n), name="Y")
    k, k2 = tir.reduce_axis(n, name="k"), tir.reduce_axis(n, name="k")
    m = tir.compute((2,), lambda i: tir.max(of(X[i, k]), axis=k), name="m")
    s = tir.Schedule(tir.compute((2,), lambda i: tir.sum(term(X[i, k2], Y[i, k2], m[i]), axis=k2), name="l"))
    s.rolling("m", into="l", at=s.split("l.k", [None, piece])[0])
    return s


LOST = {
    "y * m": lambda x, y, m: y * m,
    "y / m": lambda x, y, m: y / m,
    "a threshold": lambda x, y, m: y * tir.where(m > 0.2, 1.0, 0.0),
    "at least 0": lambda x, y, m: y * tir.maximum(m, 0.0),
    "floor": lambda x, y, m: y * tir.floor(m),
    "sqrt": lambda x, y, m: y * tir.sqrt(m),
    "a power times m": lambda x, y, m: tir.exp(x - m) * m,
    "a quotient of more": lambda x, y, m: y / (m + 1.0),
    "m counts twice": lambda x, y, m: tir.exp(x - 2 * m),
    "x counts half": lambda x, y, m: tir.exp(x / 2 - m),
    "numbers of another tensor": lambda x, y, m: tir.exp(x + y - m),
}
"""What is 0, infinite or undefined at a running value, though it is none of them at the last."""


@pytest.mark.parametrize("name", LOST)
def test_terms_that_a_running_value_may_lose_are_refused(name):
    """The exact check sees neither zeros that become others nor overflow: that these are refused is all there is."""
    assert refusal(lambda: rolled_sum(LOST[name]))[0] == "rolling.repair"


def test_a_refused_exponent_tells_both_coefficients():
    text = refusal(lambda: rolled_sum(LOST["m counts twice"]))[1]
    assert "X[i, k] has coefficient 1 and m -2" in text and "times what does not read m" in text
    assert "X[i, k] has coefficient 0.5 and m -1" in refusal(lambda: rolled_sum(LOST["x counts half"]))[1]


HELD = {
    "weighted": (lambda x, y, m: tir.exp(x - m) * y, lambda x, y, m: np.exp(x - m) * y),
    "scaled": (lambda x, y, m: y * tir.exp2((x - m) * 1.5), lambda x, y, m: y * np.exp2((x - m) * 1.5)),
    "scaled before": (lambda x, y, m: tir.exp(x / 2 - m / 2) * y, lambda x, y, m: np.exp(x / 2 - m / 2) * y),
    "squared": (lambda x, y, m: tir.exp(x - m) * tir.exp(x - m) * y, lambda x, y, m: np.exp(2 * (x - m)) * y),
    "chosen": (lambda x, y, m: tir.where(y > 0, tir.exp(x - m), 0.0), lambda x, y, m: (y > 0) * np.exp(x - m)),
}  # fmt: skip
HARD = [-np.inf, -3e38, -1000.0, -200.0, -100.0, -1.0, 0.0, 0.0, 0.5, 2.0, 90.0, 1000.0]


@pytest.mark.parametrize("name", HELD)
def test_accepted_terms_give_what_is_declared_at_hard_values(name):
    ours, by_numpy = HELD[name]
    s = rolled_sum(ours)
    assert s.check()
    f, infinite = s.build(), np.float32(-np.inf)
    first = [np.r_[[v] * 12, [0.0] * 8] for v in (*HARD[:7], 1000.0)]  # pieces of v, 0 later
    same = [np.full(20, v) for v in HARD[1:]]
    mixed = [np.r_[[infinite] * 4, [-200.0] * 4, [-1.0] * 4, [0.0] * 4, [infinite] * 4]]
    rng = np.random.default_rng(1)
    for row in (*first, *same, *mixed, *(rng.choice(HARD, 20) for _ in range(40))):
        x = np.stack([row, row[::-1]]).astype("float32")
        y = rng.choice([-2.0, -1.0, 0.0, 0.5, 3.0], (2, 20)).astype("float32")
        wide = x.astype("float64")
        want = by_numpy(wide, y.astype("float64"), wide.max(1, keepdims=True)).sum(1)
        np.testing.assert_allclose(f(x, y), want, rtol=1e-5, atol=1e-6, err_msg=str(row))


def test_a_row_of_minus_infinity_sums_to_0():
    x, y = np.full((2, 20), -np.inf, "float32"), np.ones((2, 20), "float32")
    np.testing.assert_array_equal(rolled_sum(HELD["weighted"][0]).build()(x, y), [0, 0])


@given(st.lists(st.sampled_from(HARD[1:]) | st.floats(-300, 300, width=32), min_size=40, max_size=40),
       st.integers(1, 20), st.sampled_from(list(HELD)))  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_any_numbers_in_any_pieces_give_what_is_declared(numbers, piece, name):
    ours, by_numpy = HELD[name]
    x = np.array(numbers, "float32").reshape(2, 20)
    y = np.resize(np.array([-1, 0, 2], "float32"), (2, 20))
    wide = x.astype("float64")
    want = by_numpy(wide, y.astype("float64"), wide.max(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(rolled_sum(ours, piece=piece).build()(x, y), want, rtol=1e-4, atol=1e-5)


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
        "argument.type": [lambda: s.rolling("m", into=[], at=ko)],
    }
    for code, acts in told.items():
        for act in acts:
            got, text = refusal(act)
            assert got == code and "try: " in text
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
    code, text = refusal(lambda: tir.Schedule(total).rolling("m", into="l", at="l.k"))
    assert code == "rolling.order" and "try: leave m out, and reduce it in its own nest" in text


def test_an_axis_of_other_length_is_refused():
    X, Y = tir.placeholder((6, 20), name="X"), tir.placeholder((6, 12), name="Y")
    k, k2 = tir.reduce_axis(20, name="k"), tir.reduce_axis(12, name="k")
    m = tir.compute((6,), lambda i: tir.max(X[i, k], axis=k), name="m")
    total = tir.compute((6,), lambda i: tir.sum(tir.exp(Y[i, k2] - m[i]), axis=k2), name="l")
    code, text = refusal(lambda: tir.Schedule(total).rolling("m", into="l", at="l.k"))
    assert code == "rolling.axis" and "try: declare l over 20 terms, or leave it out" in text


def test_a_reduction_in_parts_is_refused():
    s = tir.Schedule(softmax())
    s.split("m.k", [None, 4])
    s.rfactor("m", "m.k.1")
    code, text = refusal(lambda: s.rolling("m", into="l", at="l.k"))
    assert code.startswith("rolling.") and "try: " in text


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
