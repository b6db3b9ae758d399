"""Reductions inside larger expressions: computes of their own, over the axes that they depend on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.expr.program import computes_of
from tensorir.interp.reference import evaluate

A = tir.placeholder((6, 8), name="A")
B = tir.placeholder((8, 5), name="B")
k, q = tir.reduce_axis(8, name="k"), tir.reduce_axis(8, name="q")
a = np.random.default_rng(1).integers(-3, 4, (6, 8)).astype("f4")
b = np.random.default_rng(2).integers(-3, 4, (8, 5)).astype("f4")


def mean(i, over=k):
    return tir.sum(A[i, over], axis=over) / 8


def pair(i):
    both = tir.combiner(lambda x, y: (x[0] + y[0], tir.maximum(x[1], y[1])), (0, -1000.0), name="both")
    return both((A[i, k], A[i, k]), axis=k)


CASES = {
    "mean": ((6,), lambda i: +mean(i), lambda: a.mean(1), {"C_sum": (6,)}),
    "centred": ((6, 8), lambda i, j: A[i, j] - mean(i), lambda: a - a.mean(1, keepdims=True), {"C_sum": (6,)}),
    "epilogue": ((6, 5), lambda i, j: 2 * tir.sum(A[i, k] * B[k, j], axis=k) + 1, lambda: 2 * (a @ b) + 1,
                 {"C_sum": (6, 5)}),
    "two": ((6, 5), lambda i, j: tir.sum(A[i, k], axis=k) * tir.max(B[q, j], axis=q),
            lambda: a.sum(1)[:, None] * b.max(0), {"C_sum": (6,), "C_max": (5,)}),
    "scalar": ((6, 8), lambda i, j: A[i, j] + tir.sum(A[0, k], axis=k), lambda: a + a[0].sum(), {"C_sum": ()}),
    "argmax": ((6,), lambda i: tir.argmax(A[i, k], axis=k) * 2, lambda: a.argmax(1).astype("i4") * 2,
               {"C_argmax": (6,)}),
    "where": ((6,), lambda i: tir.where(tir.any(A[i, k] > 2, axis=k), i, -1),
              lambda: np.where((a > 2).any(1), np.arange(6), -1).astype("i4"), {"C_any": (6,)}),
    "nested": ((6,), lambda i: tir.sum((A[i, q] - mean(i)) ** 2, axis=q),
               lambda: ((a - a.mean(1, keepdims=True)) ** 2).sum(1),
               {"C_sum": (6,)}),
    "inner": ((6,), lambda i: tir.sum(A[i, q] * tir.max(B[q, 0] * A[i, k], axis=k), axis=q),
              lambda: (a * (b[:, 0][None, :, None] * a[:, None, :]).max(2)).sum(1), {"C_max": (6, 8)}),
    "pair": ((6,), lambda i: pair(i)[0] * 100 + pair(i)[1], lambda: a.sum(1) * 100 + a.max(1), {"C_both": (6,)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_meaning(name):
    shape, fn, numpy, parts = CASES[name]
    C = tir.compute(shape, fn, name="C")
    want = numpy()
    got = evaluate((C,), [v for t, v in ((A, a), (B, b)) if t in {i for op in computes_of((C,)) for i in op.inputs}])[0]
    assert got.dtype == want.dtype
    assert np.array_equal(got, want)
    found = {op.name: op.extents for op in computes_of((C,)) if op is not C.op}
    assert {n: found[n] for n in parts} == parts
    assert tir.Schedule(C).check()


def test_one_reduction_is_made_once():
    def standard(i, j):
        m = mean(i)
        return (A[i, j] - m) * (A[i, j] - m) + m

    C = tir.compute((6, 8), standard, name="C")
    assert [op.name for op in computes_of((C,))] == ["C_sum", "C"]


def test_it_is_scheduled_like_what_is_declared_in_two_computes():
    C = tir.compute((6, 5), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k) / 8, name="C")
    total = tir.compute((6, 5), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C_sum")
    D = tir.compute((6, 5), lambda i, j: total[i, j] / 8, name="C")
    assert str(tir.Schedule(C)) == str(tir.Schedule(D))
    s = tir.Schedule(C)
    s["C_sum"].compute_at("C", "i")
    assert s.check()


def test_accesses_of_a_part_are_proved_too():
    with pytest.raises(tir.DeclarationError) as caught:
        tir.compute((7,), lambda i: tir.sum(A[i, k], axis=k) / 8, name="C")
    assert caught.value.code == "declare.out-of-range"
    with pytest.raises(tir.DeclarationError, match="loose-axis"):
        tir.compute((6,), lambda i: tir.sum(A[i, k], axis=k) / A[i, k])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.sampled_from("+-*"), st.integers(0, 99))
def test_epilogues_of_products(m, n, length, op, seed):
    rng = np.random.default_rng(seed)
    x, y, z = (rng.integers(-3, 4, s).astype("f4") for s in ((m, length), (length, n), (n,)))
    X, Y, Z = (tir.placeholder(v.shape, name=name) for name, v in zip("XYZ", (x, y, z), strict=True))
    r = tir.reduce_axis(length, name="r")
    C = tir.compute((m, n), lambda i, j: eval(f"Z[j] {op} tir.sum(X[i, r] * Y[r, j], axis=r)",
                                              {"tir": tir, "X": X, "Y": Y, "Z": Z,
                                               "i": i, "j": j, "r": r}))  # fmt: skip
    assert np.array_equal(evaluate((C,), [x, y, z])[0], eval(f"z {op} (x @ y)", {"x": x, "y": y, "z": z}))
