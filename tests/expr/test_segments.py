"""Reduce axes whose extent data give: segmented sums and CSR products on every executor, and what launches refuse."""

import itertools

import numpy as np
import pytest
from both_targets import checked

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.codegen.source import SegmentRange
from tensorir.interp.reference import evaluate
from tensorir.runtime.arguments import check_segments

ROWS, TERMS, COLUMNS, MOST = 9, 40, 7, 16


def pointers(name="P"):
    return tir.placeholder((ROWS + 1,), "int32", name=name)


def segmented(combine=tir.sum, dtype="float32"):
    P, V = pointers(), tir.placeholder((TERMS,), dtype, name="V")

    def row(i):
        k = tir.reduce_axis(P[i + 1] - P[i], most=MOST)
        return combine(V[P[i] + k], axis=k)

    return tir.compute((ROWS,), row, name="Y")


def spmm(width=4):
    P, J = pointers(), tir.placeholder((TERMS,), "int32", name="J")
    D, X = tir.placeholder((TERMS,), name="D"), tir.placeholder((COLUMNS, width), name="X")

    def cell(i, j):
        k = tir.reduce_axis(P[i + 1] - P[i], most=MOST)
        return tir.sum(D[P[i] + k] * X[J[P[i] + k], j], axis=k)

    return tir.compute((ROWS, width), cell, name="Y")


def spmv():
    P, J = pointers(), tir.placeholder((TERMS,), "int32", name="J")
    D, x = tir.placeholder((TERMS,), name="D"), tir.placeholder((COLUMNS,), name="x")

    def row(i):
        k = tir.reduce_axis(P[i + 1] - P[i], most=MOST)
        return tir.sum(D[P[i] + k] * x[J[P[i] + k]], axis=k)

    return tir.compute((ROWS,), row, name="Y")


PLACES = np.array([0, 3, 3, 10, 12, 12, 12, 28, 30, 40], "int32")


def some(seed=0, width=4):
    rng = np.random.default_rng(seed)
    j, d = rng.integers(0, COLUMNS, TERMS).astype("int32"), rng.integers(-4, 5, TERMS).astype("float32")
    return j, d, rng.integers(-4, 5, (COLUMNS, width)).astype("float32")


def dense(j, d):
    made = np.zeros((ROWS, COLUMNS), "float32")
    np.add.at(made, (np.repeat(np.arange(ROWS), np.diff(PLACES)), j), d)
    return made


def in_threads(s):
    block, thread = s.split("Y.i", [None, 4])
    s.bind(block, "block.x").bind(thread, "thread.x")


def in_pieces(s):
    s.split("Y.k", [None, 4])


def in_vectors(s):
    s.reorder("Y.k", "Y.j").vectorize("Y.j")


@pytest.mark.parametrize("steps", [(), (in_threads,), (in_pieces,), (in_threads, in_pieces)])
def test_segmented_sums(steps):
    v = some()[1]
    want = [v[a:b].sum() for a, b in itertools.pairwise(PLACES)]
    np.testing.assert_array_equal(checked(segmented(), *steps).build()(PLACES, v), want)
    np.testing.assert_array_equal(evaluate((segmented(),), (PLACES, v))[0], want)
    if not steps or steps == (in_pieces,):
        s = tir.Schedule(segmented(), "c")
        for step in steps:
            step(s)
        np.testing.assert_array_equal(s.build("c:0")(PLACES, v), want)


@pytest.mark.parametrize("steps", [(), (in_vectors,), (in_threads, in_pieces)])
def test_products_of_sparse_rows(steps):
    j, d, x = some()
    want = dense(j, d) @ x
    s = checked(spmm(), *steps)
    np.testing.assert_array_equal(s.build()(PLACES, j, d, x), want)
    done = emulate(tir.replay(s.definition, s.trace, target="cuda").emitted("cuda"), (PLACES, j, d, x))
    assert not done.problems and np.array_equal(done.outputs[0], want)
    np.testing.assert_array_equal(checked(spmv()).build()(PLACES, j, d, x[:, 0].copy()), want[:, 0])


def test_other_reductions_of_segments():
    v = some(3)[1]
    rows = list(itertools.pairwise(PLACES))
    most = checked(segmented(tir.max)).build()(PLACES, v)
    np.testing.assert_array_equal(most, [v[a:b].max() if b > a else -np.inf for a, b in rows])
    first = checked(segmented(tir.argmax)).build()(PLACES, v)
    np.testing.assert_array_equal([f for f, (a, b) in zip(first, rows, strict=True) if b > a],
                                  [v[a:b].argmax() for a, b in rows if b > a])  # fmt: skip
    both = tir.combiner(lambda a, b: (a[0] + b[0], tir.maximum(a[1], b[1])), (0.0, -np.inf))
    P, V = pointers(), tir.placeholder((TERMS,), name="V")

    def pair(i):
        k = tir.reduce_axis(P[i + 1] - P[i], most=MOST)
        return both((V[P[i] + k], V[P[i] + k]), axis=k)

    total, high = checked(list(tir.compute((ROWS,), pair, name="Y"))).build()(PLACES, v)
    np.testing.assert_array_equal(total, [v[a:b].sum() for a, b in rows])
    np.testing.assert_array_equal(high, most)


def test_lengths_and_means_of_rows():
    L, X = tir.placeholder((5,), "uint16", name="L"), tir.placeholder((5, 12), name="X")

    def mean(i):
        k = tir.reduce_axis(L[i], most=12)
        return tir.sum(X[i, k], axis=k) / tir.maximum(L[i], 1)

    f = checked(tir.compute((5,), mean, name="M")).build()
    lengths, x = np.array([0, 12, 3, 1, 8], "uint16"), np.arange(60, dtype="float32").reshape(5, 12)
    want = [x[i, :n].sum() / max(n, 1) for i, n in enumerate(lengths)]
    np.testing.assert_allclose(f(lengths, x), want, rtol=1e-6)
    with pytest.raises(tir.LaunchError, match=r"L: expected indices from 0 to 12 .*got 13 at \(2,\)"):
        f(np.array([0, 12, 13, 1, 8], "uint16"), x)


@pytest.mark.parametrize("target", ["opencl", "cuda", "c"])
def test_loops_end_with_the_data(target):
    text = tir.Schedule(segmented(), target).emitted().text
    assert "P[i + 1]" in text and "k < k_end" in text and "k < 16" not in text
    s = tir.Schedule(segmented(), target)
    in_pieces(s)
    assert "k_0 < k_0_end" in s.emitted().text and "k_1 < k_1_end" in s.emitted().text
    s = tir.Schedule(spmm(), target)
    s.reorder("Y.k", "Y.j")
    text = s.emitted().text
    assert text.index("k < k_end") < text.index("j < 4", text.index("k < k_end"))


BAD = {
    "out of order": (
        [0, 3, 2, 10, 12, 12, 12, 28, 30, 40],
        "launch.segments",
        r"got 3 at \[1\] and 2 at \[2\], -1 terms",
    ),
    "too many": ([0, 3, 3, 10, 12, 12, 12, 29, 30, 40], "launch.segments", r"12 at \[6\] and 29 at \[7\], 17 terms"),
    "beyond": ([0, 3, 3, 10, 12, 12, 12, 28, 30, 41], "launch.index-range", r"got 41 at \(9,\)"),
    "negative": ([-1, 3, 3, 10, 12, 12, 12, 28, 30, 40], "launch.index-range", r"got -1 at \(0,\)"),
}


@pytest.mark.parametrize("device", ["opencl", "c:0"])
def test_what_a_launch_refuses_writes_nothing(device):
    f = tir.Schedule(spmv(), "c" if device == "c:0" else "opencl").build(device)
    j, d, x = some()
    out = np.full(ROWS, -1, "float32")
    for places, code, said in BAD.values():
        for _ in range(2):
            with pytest.raises(tir.LaunchError, match=said) as e:
                f(np.array(places, "int32"), j, d, x[:, 0].copy(), out=out)
            assert e.value.problems[0].code == code
    with pytest.raises(tir.LaunchError, match="got 7 at"):
        f(PLACES, np.full(TERMS, COLUMNS, "int32"), d, x[:, 0].copy(), out=out)
    assert (out == -1).all()
    f(PLACES, j, d, x[:, 0].copy(), out=out)
    np.testing.assert_array_equal(out, dense(j, d) @ x[:, 0])


def test_unsigned_pointers_that_fall_are_seen():
    P, V = tir.placeholder((4,), "uint64", name="P"), tir.placeholder((9,), name="V")

    def row(i):
        k = tir.reduce_axis(P[i + 1] - P[i], most=9)
        return tir.sum(V[P[i] + k], axis=k)

    f = tir.Schedule(tir.compute((3,), row, name="Y"), "c").build("c:0")
    v = np.arange(9, dtype="float32")
    np.testing.assert_array_equal(f(np.array([0, 4, 4, 9], "uint64"), v), [6, 0, 30])
    with pytest.raises(tir.LaunchError, match="-1 terms"):
        f(np.array([0, 4, 3, 9], "uint64"), v)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_steps_beyond_the_pointers_own_type_are_seen(dtype):
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    about = SegmentRange("P", 0, 64, "k")
    for pointers in ([low, high], [low, low + 64, high], [low, low + 65], [high, low], [0, 64, 63]):
        assert check_segments(about, np.array(pointers, dtype)) is not None, pointers
    for pointers in ([low, low + 64, low + 64], [high - 64, high], [0, 64, 128], [3]):
        assert check_segments(about, np.array(pointers, dtype)) is None, pointers


def test_what_a_declaration_refuses():
    P, V = pointers(), tir.placeholder((TERMS,), name="V")
    Q = tir.compute((ROWS + 1,), lambda i: P[i] * 2, name="Q")

    def declared(extent, **options):
        def row(i):
            k = tir.reduce_axis(extent(i), **options)
            return tir.sum(V[P[i] + k], axis=k)

        return tir.compute((ROWS,), row, name="Y")

    for extent in (lambda i: P[i + 1] * 2, lambda i: Q[i + 1] - Q[i], lambda i: P[i] - P[i + 1]):
        with pytest.raises(tir.DeclarationError, match=r"declare\.data-extent.*neither"):
            declared(extent, most=4)
    with pytest.raises(tir.DeclarationError, match=r"declare\.data-extent.*no bound"):
        declared(lambda i: P[i + 1] - P[i])
    with pytest.raises(tir.DeclarationError) as caught:
        tir.reduce_axis(8, most=9)
    assert caught.value.code == "declare.data-extent"
    with pytest.raises(tir.DeclarationError, match=r"declare\.gather-index"):
        tir.compute((ROWS,), lambda i: V[P[i] + i], name="Y")


def test_rows_and_terms_of_any_number():
    n, m = tir.dim("n", low=1, high=64), tir.dim("m", low=1, high=512)
    P, V = tir.placeholder((n + 1,), "int32", name="P"), tir.placeholder((m,), name="V")

    def row(i):
        k = tir.reduce_axis(P[i + 1] - P[i], most=MOST)
        return tir.sum(V[P[i] + k], axis=k)

    f = tir.Schedule(tir.compute((n,), row, name="Y")).build()
    v = some()[1]
    np.testing.assert_array_equal(f(PLACES, v), [v[a:b].sum() for a, b in itertools.pairwise(PLACES)])
    np.testing.assert_array_equal(f(np.array([0, 2], "int32"), v[:2].copy()), [v[:2].sum()])
    with pytest.raises(tir.LaunchError, match="got 3 at"):
        f(np.array([0, 3], "int32"), v[:2].copy())


def test_a_combiner_needs_an_identity():
    with pytest.raises(tir.DeclarationError, match=r"reduce\.identity.*'mine' has no identity"):
        tir.combiner(lambda a, b: a + b, name="mine")
