"""skip: tiles that a mask leaves out whole are not run, and all others are."""

import numpy as np
import online
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_marks import CALLS, LOOPS

import tensorir as tir
from tensorir.ir.marks import Skipped
from tensorir.ir.tree import Loop
from tensorir.ir.visit import find

MASKED = ("causal", "window", "documents")
MOST_CHECKED = 4
"""Trees of one primitive that are checked, not looked at alone: so many on the stage with a mask, and on others."""


def attention(variant, n=24, keys=None, piece=8, rows=4, target="opencl", weights=True):
    s = online.rolled(online.attention(n, 4, online.VARIANTS[variant], keys=keys, weights=weights), piece, rows, target)
    return s.skip("O.j.0")


def triangle(n=30, m=5, tile=4, keys=4, target="opencl", term=None, mask=lambda i, k: k <= i, into=tir.sum):
    A, B, k = tir.placeholder((n, n), name="A"), tir.placeholder((n, m), name="B"), tir.reduce_axis(n, name="k")
    term = term or (lambda i, j, k: tir.where(mask(i, k), A[i, k] * B[k, j], 0))
    s = tir.Schedule(tir.compute((n, m), lambda i, j: into(term(i, j, k), axis=k), name="C"), target)
    i0, i1 = s.split("C.i", [None, tile])
    k0, k1 = s.split("C.k", [None, keys])
    s.reorder(i0, k0, i1, "C.j", k1)
    s.decompose_reduction("C", k0)
    return s.skip(k0)


def conditions(s):
    return [line.split("# ")[1] for line in str(s.tree()).split("\n") if "skipped" in line]


def right(s):
    verdict = s.check()
    assert verdict, str(verdict)
    again = tir.replay(s.outputs, s.trace.to_json(), target=s.target)
    assert (str(again), again.source()) == (str(s), s.source())


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("causal", "O.j.0 * 2 <= O.i.0"),
        ("window", "O.j.0 * 2 <= O.i.0 and O.i.0 < O.j.0 * 2 + 3"),
        ("documents", "O.i.0 * 4 // 7 <= O.j.0 * 8 // 7 + 1 and O.j.0 * 8 // 7 <= (O.i.0 * 4 + 3) // 7"),
    ],
)
@pytest.mark.parametrize("weights", [True, False])
def test_the_tree_says_which_pieces_of_the_keys_are_run(variant, said, weights):
    s = attention(variant, n=48, weights=weights)
    assert conditions(s) == [f"skipped unless {said}"]
    right(s)


@pytest.mark.parametrize("variant", MASKED)
def test_every_destination_runs_the_same_pieces(variant):
    for target in ("opencl", "c", "cuda"):
        s = attention(variant, n=40, target=target)
        if target == "cuda":
            s.bind("O.i.0", "block.x").bind("O.b", "block.y")
            assert s.check("emulate")
        else:
            right(s)
        assert "if (" in s.source().split("j_0 < 5")[1][:60]


def test_what_is_not_run_is_not_read():
    """NaNs among the values that a whole piece masks reach only the rows of other pieces."""
    s, plain = attention("causal", n=40), online.rolled(online.attention(40, 4, online.VARIANTS["causal"]), 8, 4)
    draw = np.random.default_rng(0).standard_normal
    q, k, v = (draw((1, 40, 4)).astype("float32") for _ in "qkv")
    v[:, 16:] = np.nan
    assert np.isnan(plain.build()(q, k, v)).any(axis=-1)[0].all(), "0 times NaN"
    lost = np.isnan(s.build()(q, k, v)).any(axis=-1)[0]
    assert not lost[:16].any() and lost[16:].all()


@given(st.integers(1, 33), st.integers(1, 33), st.integers(1, 12), st.integers(1, 6), st.booleans(),
       st.sampled_from(MASKED))  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_every_length_and_tile_gives_what_numpy_gives(n, keys, piece, rows, weights, variant):
    s = attention(variant, n, keys, piece, rows if rows < n else None, weights=weights)
    draw = np.random.default_rng(n * keys).standard_normal
    q, k, v = (draw((1, length, 4)).astype("float32") for length in (n, keys, keys))
    with np.errstate(all="ignore"):
        want = online.by_numpy(q, k, v, online.NUMPY[variant])
    np.testing.assert_allclose(s.build()(q, k, v), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("piece", "rows", "variant"), [(7 + i, 3 + j, MASKED[(i + j) % 3]) for i in range(3) for j in range(3)]
)
def test_tiles_next_to_each_other_in_size_are_exact(piece, rows, variant):
    """Each mask with each size of either sort."""
    right(attention(variant, 31, 29, piece, rows))


@given(st.integers(1, 31), st.integers(1, 9), st.integers(1, 9), st.integers(-6, 6), st.integers(-2, 3))
@settings(max_examples=30, deadline=None)
def test_triangular_products_of_every_shape_give_what_numpy_gives(n, tile, keys, by, slope):
    mask = lambda i, k: k * slope <= i + by  # noqa: E731
    s = triangle(n, 2, tile, keys, mask=mask)
    draw = np.random.default_rng(n).standard_normal
    a, b = draw((n, n)).astype("float32"), draw((n, 2)).astype("float32")
    i, k = np.ogrid[:n, :n]
    np.testing.assert_allclose(s.build()(a, b), np.where(mask(i, k), a, 0) @ b, rtol=1e-4, atol=1e-4)


def test_a_row_without_keys_gives_what_it_gave(rng=np.random.default_rng(0)):
    nobody = lambda s, b, i, j: tir.where(tir.all_(j <= i, i < 20), s, -online.INF)  # noqa: E731
    Y = online.attention(score=nobody)
    s = online.rolled(Y, 8, 4).skip("O.j.0")
    q, k, v = (rng.standard_normal((1, 24, 4)).astype("float32") for _ in "qkv")
    got, want = s.build()(q, k, v), tir.Schedule(Y).build()(q, k, v)
    assert np.isnan(got[0, 20:]).all() and np.isnan(want[0, 20:]).all()
    np.testing.assert_allclose(got[0, :20], want[0, :20], rtol=1e-4, atol=1e-5)
    right(s)


def test_attention_of_the_library_skips_and_gives_0_where_a_query_sees_no_key():
    q, k, v = (tir.placeholder((1, h, n, 4), name=x) for x, h, n in (("q", 2, 20), ("k", 1, 13), ("v", 1, 13)))
    Y = tir.nn.attention(q, k, v, causal=True, mask=lambda b, h, i, j: tir.all_(i != 3, i - j < 6))
    s = tir.Schedule(Y)
    i0, i1 = s.split("attention_O.i", [None, 4])
    j0, j1 = s.split("attention_O.j", [None, 4])
    s.reorder(i0, j0, i1, "attention_O.c", j1)
    s.rolling("attention_m", into=("attention_l", "attention_O"), at=j0)
    s.compute_at("attention_T", j0).compute_at("attention_S", j0).reverse_compute_at("attention", i0)
    s.skip(j0)
    assert len(conditions(s)) == 1
    right(s)
    draw = np.random.default_rng(0).standard_normal
    f = s.build()
    got = f(*(draw([int(n) for n in x.shape]).astype("float32") for x in (q, k, v)))
    assert not got[:, :, 3].any() and np.isfinite(got).all()


@pytest.mark.parametrize(("into", "identity"), [(tir.sum, 0), (tir.max, -np.inf), (tir.min, np.inf), (tir.prod, 1)])
def test_each_combiner_has_its_own_identity(into, identity):
    A = tir.placeholder((9, 9), name="A")
    k = tir.reduce_axis(9, name="k")
    s = tir.Schedule(tir.compute((9,), lambda i: into(tir.where(i < k, float(identity), A[i, k]), axis=k), name="C"))
    s.split("C.k", [None, 2])
    s.decompose_reduction("C", "C.k.0").skip("C.k.0")
    assert conditions(s) == ["skipped unless C.k.0 * 2 <= C.i"]
    right(s)
    A = tir.placeholder((9, 9), name="A")
    wrong = tir.Schedule(tir.compute((9,), lambda i: into(tir.where(i < k, 5.0, A[i, k]), axis=k), name="C"))
    wrong.decompose_reduction("C", "C.k")
    with pytest.raises(tir.ScheduleError, match="is 5") as e:
        wrong.skip("C.k")
    assert e.value.code == "skip.identity"


def test_lengths_that_data_give_end_the_keys_of_each_row():
    n, rows = 20, 6
    X, ends = tir.placeholder((rows, n), name="X"), tir.placeholder((rows,), "int32", name="ends")
    k = tir.reduce_axis(n, name="k")
    s = tir.Schedule(tir.compute((rows,), lambda i: tir.sum(tir.where(k < ends[i], X[i, k], 0), axis=k), name="C"))
    k0, _ = s.split("C.k", [None, 3])
    s.decompose_reduction("C", k0).skip(k0)
    assert conditions(s) == ["skipped unless int32(C.k.0 * 3) < ends[C.i]"]
    right(s)
    x, counts = np.random.default_rng(0).standard_normal((rows, n)).astype("float32"), np.array([0, 1, 3, 4, 19, 20])
    x[2, 5:] = np.nan
    want = [x[i, :c].sum() for i, c in enumerate(counts)]
    np.testing.assert_allclose(s.build()(x, counts.astype("int32")), want, rtol=1e-4)


def test_threads_of_a_block_run_the_same_tiles():
    s = triangle(target="cuda")
    assert conditions(s) == ["skipped unless C.k.0 <= C.i.0"]
    t = tir.Schedule(s.outputs, "cuda")
    t.split("C.i", [None, 4])
    t.split("C.k", [None, 4])
    t.reorder("C.i.0", "C.i.1", "C.k.0", "C.j", "C.k.1")
    t.bind("C.i.0", "block.x").bind("C.i.1", "thread.x")
    t.decompose_reduction("C", "C.k.0").stage_in("B", "C.k.0", "shared")
    t.skip("C.k.0")
    assert conditions(t) == conditions(s), "of the rows of all threads, which fill shared memory together"
    right(t)
    assert t.check("emulate")


def test_a_loop_whose_every_tile_has_a_term_is_as_it_was():
    s = triangle(mask=lambda i, k: k <= i + 100)
    assert not conditions(s) and not find(s.program.body, Loop, lambda x: bool(Skipped.of(x).unless))
    assert str(s.trace).endswith("s.skip('C.k.0')")
    right(s)


def test_nothing_is_run_where_no_tile_has_a_term():
    s = triangle(mask=lambda i, k: k < i - 100)
    assert conditions(s) == ["skipped unless False"]
    right(s)


def test_a_dim_keeps_its_tiles():
    n = tir.dim("n", low=1, high=40)
    A, k = tir.placeholder((n, n), name="A"), tir.reduce_axis(n, name="k")
    s = tir.Schedule(tir.compute((n,), lambda i: tir.sum(tir.where(k <= i, A[i, k], 0), axis=k), name="C"))
    i0, i1 = s.split("C.i", [None, 4])
    k0, k1 = s.split("C.k", [None, 4])
    s.reorder(i0, k0, i1, k1)
    s.decompose_reduction("C", k0).skip(k0)
    assert conditions(s) == ["skipped unless C.k.0 * 4 < n and C.k.0 <= C.i.0"]
    right(s)
    f = s.build()
    for size in (1, 3, 4, 5, 13, 40):
        a = np.random.default_rng(0).standard_normal((size, size)).astype("float32")
        np.testing.assert_allclose(f(a), np.tril(a).sum(1), rtol=1e-4, atol=1e-5)


def test_a_dim_of_another_loop_ends_no_tile():
    n = tir.dim("n", low=1, high=8)
    A = tir.placeholder((16, 16, n), name="A")
    k, d = tir.reduce_axis(16, name="k"), tir.reduce_axis(n, name="d")
    s = tir.Schedule(tir.compute((16,), lambda i: tir.sum(A[i, k, d], axis=[k, d]), name="C"))
    k0, _ = s.split("C.k", [None, 4])
    s.reorder("C.i", k0)
    s.decompose_reduction("C", k0)
    with pytest.raises(tir.ScheduleError) as error:
        s.skip(k0)
    assert error.value.code == "skip.identity"


def chain(target):
    A, B = tir.placeholder((16, 16), name="A"), tir.placeholder((16, 8), name="B")
    k = tir.reduce_axis(16, name="k")
    P = tir.compute((16, 16), lambda i, j: A[i, j] * 2, name="P")
    term = lambda i, j: tir.where(k <= i, P[i, k] * B[k, j], 0)  # noqa: E731
    C = tir.compute((16, 8), lambda i, j: tir.sum(term(i, j), axis=k), name="C")
    s = tir.Schedule(tir.compute((16, 8), lambda i, j: C[i, j] + 1, name="D"), target=target)
    s.reorder("C.k", "C.j")
    return s.decompose_reduction("C", "C.k").schedule.skip("C.k")


@pytest.mark.parametrize("target", ["opencl", "opencl -kind=gpu"])
@pytest.mark.parametrize("primitive", CALLS)
def test_each_primitive_keeps_what_is_skipped_or_is_refused(primitive, target):
    base, checked = chain(target), [0, 0]
    for call in CALLS[primitive]:
        s = base.fork()
        try:
            call(s)
        except tir.TensorIRError:
            continue
        assert conditions(s), str(s.trace)
        on_it = "C" in str(s.trace[-1])
        checked[on_it] += 1
        if checked[on_it] > MOST_CHECKED:
            continue
        verdict = s.check()
        assert verdict or verdict.problems[0].code == "lower.scope-across-kernels", str(s)


def test_loops_around_it_may_be_split_fused_and_bound():
    s = triangle()
    s.split("C.i.0", [None, 2], tail="guard")
    assert conditions(s) == ["skipped unless C.k.0 <= C.i.0.0 * 2 + C.i.0.1"]
    s.fuse("C.i.0.0", "C.i.0.1", name="rows")
    s.parallel("C.rows")
    assert conditions(s) == ["skipped unless C.k.0 <= C.rows // 2 * 2 + C.rows % 2"]
    s.unroll("C.k.1")
    right(s)
    assert {x.var.name for x in find(s.program.body, Loop, lambda x: bool(Skipped.of(x).unless))} == {"C.k.0"}
    assert len(LOOPS) == 7


def test_a_refusal_afterwards_says_what_would_be_run_no_more():
    s = triangle()
    tree = str(s)
    for call, words in [
        (lambda: s.split("C.k.0", [None, 2]), "the mark of C.k.0"),
        (lambda: s.unroll("C.k.0"), "no plain loop"),
        (lambda: s.bind("C.i.0", "vthread"), "C.i.0"),
    ]:
        with pytest.raises(tir.ScheduleError) as e:
            call()
        assert e.value.code == "skip.lost" and words in str(e.value), str(e.value)
        assert str(s) == tree
