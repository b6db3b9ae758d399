"""== and != of values are comparisons, never a plain bool; what Python asks of their truth is known or refused."""

import itertools
import operator

import numpy as np
import pytest

import tensorir as tir

X, Y = np.arange(1, 7, dtype="float32"), np.array([1, 0, 3, 0, 5, 0], "float32")


@pytest.fixture
def A():
    return tir.placeholder((6,), name="A")


@pytest.fixture
def B():
    return tir.placeholder((6,), name="B")


def built(outputs, *arrays):
    s = tir.Schedule(outputs, target="c")
    assert s.check()
    return s.build()(*arrays)


def test_a_comparison_goes_where_any_condition_goes(A, B):
    """In and out of lambdas, of whole tensors and of elements, with every operator: one kernel for all."""
    k = tir.reduce_axis(6, name="k")
    mask = (k != 2) & (A[k] == B[k])  # made before the lambda that uses it
    made = [
        A * (A == B) + B,
        np.where(A != B, A, 9),
        tir.where((A == B) & (A > 1) | ~(A != 2), A + 10, B),
        ((A == B) ^ (A == 2)).astype("float32"),
        (np.float32(3) != A).astype("float32"),
        tir.compute((6,), lambda i: tir.where((A[i] == B[i]) | (i == 1), A[i], tir.where(A[i] != 6, B[i], 9))),
        tir.compute((1,), lambda _: tir.sum(A[k], axis=k, where=mask)),
        tir.compute((6,), lambda i: tir.sum(A[k] * (k == i), axis=k)),
    ]
    same, at = X == Y, np.arange(6)
    want = [
        X * same + Y,
        np.where(~same, X, 9),
        np.where(same & (X > 1) | ~(X != 2), X + 10, Y),
        (same ^ (X == 2)).astype("float32"),
        (X != 3).astype("float32"),
        np.where(same | (at == 1), X, np.where(X != 6, Y, 9)),
        [X[(at != 2) & same].sum()],
        X,
    ]
    for found, wanted in zip(built(made, X, Y), want, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_combiner_compares_its_states():
    """Zeros are filled with the last number before them."""
    last = tir.combiner(lambda a, b: tir.where(b != 0, b, a), 0, name="last", commutative=False)
    values = np.array([4, 0, 0, -1, 0, 7], "int32")
    filled = tir.scan(tir.placeholder((6,), "int32", name="x"), axis=0, op=last, name="filled")
    assert list(built(filled, values)) == [4, 4, 4, -1, -1, 7]


ASKED = {
    "bool": lambda a, b: bool(a == b),
    "if": lambda a, b: 1 if a != b else 2,
    "and": lambda a, b: a == b and a > 1,
    "not": lambda a, b: not a == b,  # noqa: SIM201
    "in": lambda a, b: b in (a, b),
    "index": lambda a, b: [a, b].index(b),
    "remove": lambda a, b: [a, b].remove(b),
    "tuples": lambda a, b: (a, 1) == (b, 1),
    "isnan": lambda a, b: bool(np.isnan(a)),
    "function": lambda a, b: bool(tir.not_equal(a, a)),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("whole", [True, False])
def test_the_truth_of_two_values_is_refused(name, whole, A, B):
    with pytest.raises(tir.DeclarationError) as caught:
        ASKED[name](*((A, B) if whole else (A[0], B[0])))
    assert caught.value.code == "declare.truth-value"
    if name != "and":  # where A > 1 may be asked first
        assert all(word in str(caught.value) for word in ("`a is b`", "`p & q`", "any(B is x for x in"))


def test_a_search_among_tensors_is_put_right(A, B):
    with pytest.raises(tir.DeclarationError, match=r"try: any\(B is x for x in \(A, B\)\)"):
        assert B in (A, B)


def test_one_object_is_itself(A, B):
    e = A[0] + 1
    for x in (A, e, tir.reduce_axis(4)):
        assert bool(x == x) is True and bool(x != x) is False
        assert x in (x, B) and [x, B].index(x) == 0 and (x, 1) == (x, 1)
    assert {A, B, A} == {B, A} and {A: 1, B: 2}[B] == 2 and len({A[0], A[0]}) == 2
    made = tir.compute((6,), lambda i: tir.where(A[i] != A[i], 0, 1))  # and the comparison is that of the values
    assert list(built(made, np.array([1, np.nan, 2, np.nan, 3, 4], "float32"))) == [1, 0, 1, 0, 1, 1]


@pytest.mark.parametrize("other", [None, "A", (6,), object()])
@pytest.mark.parametrize("compare", [operator.eq, operator.ne])
def test_what_is_no_value_is_not_compared(other, compare, A):
    for x in (A, A[0]):
        with pytest.raises(tir.DeclarationError) as caught:
            compare(x, other)
        assert caught.value.code == "declare.value"


def test_shapes_compare():
    n, m = tir.dim("n"), tir.dim("m")
    shapes = [(n, 4), (m, 4), (n, n), (n + 1, 4), (2 * n, 4), (5, 4), (n,)]
    for a, b in itertools.product(range(len(shapes)), repeat=2):
        A, B = tir.placeholder(shapes[a], name="A"), tir.placeholder(shapes[b], name="B")
        assert (A.shape == B.shape) is (a == b) and (A.shape != B.shape) is (a != b)
    assert (n + 1, n * m) == (n + 1, n * m) and n + 1 in (n, n + 1) and 4 in (n, 4)
    again, other = tir.placeholder((n + 1,), name="A"), tir.placeholder((n + 1,), name="B")
    assert (again + other).shape == (n + 1,)  # and broadcast
    with pytest.raises(tir.DeclarationError) as caught:
        bool(n < 4)
    assert caught.value.code == "dim.constant"
