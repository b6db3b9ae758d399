"""Dims in declarations: what is proved for all of their values, and what is refused with a witness."""

import itertools

import numpy as np
import pytest

import tensorir as tir
from tensorir.expr.program import dims_of, inputs_of, program_of
from tensorir.expr.reread import at_largest, with_dims
from tensorir.interp.reference import evaluate


@pytest.fixture
def n():
    return tir.dim("n", low=2, high=40)


def code_of(call):
    with pytest.raises(tir.TensorIRError) as caught:
        call()
    return caught.value.problems[0]


def test_a_dim_has_a_name_and_a_range():
    n = tir.dim("n", low=3, high=9)
    assert (n.name, n.bounds) == ("n", (3, 9))


@pytest.mark.parametrize("low, high", [(0, 4), (5, 4), (1, 2**31)])
def test_ranges_that_are_none(low, high):
    problem = code_of(lambda: tir.dim("n", low=low, high=high))
    assert problem.code == "dim.range"
    assert str(high) in problem.message


@pytest.mark.parametrize("name", ["for", "None", "two words", "2n", ""])
def test_names_that_no_expression_has(name):
    assert code_of(lambda: tir.dim(name)).code == "declare.name"


def test_an_extent_that_may_be_0_is_refused(n):
    X = tir.placeholder((n,), name="X")
    problem = code_of(lambda: tir.compute((n - 2,), lambda i: X[i]))
    assert problem.code == "dim.range"
    assert "n - 2" in problem.message


def test_shapes_are_said_with_the_names_of_dims(n):
    X = tir.placeholder((n, 8), name="X")
    assert "float32[n, 8]" in repr(X)
    with pytest.raises(tir.TensorIRError, match="depends on n"):
        len(X)


@pytest.mark.parametrize(
    "index, shape, told",
    [
        (lambda i, n: i + 1, lambda n: (n,), "n = 2"),
        (lambda i, n: i, lambda n: (n + 1,), "i = 2 and n = 2"),
        (lambda i, n: n - i, lambda n: (n,), "reads index 2"),
    ],
    ids=["beyond", "longer", "backwards"],
)
def test_a_read_beyond_a_dim_is_refused_with_the_value_of_the_dim(n, index, shape, told):
    X = tir.placeholder((n,), name="X")
    problem = code_of(lambda: tir.compute(shape(n), lambda i: X[index(i, n)]))
    assert problem.code == "declare.out-of-range"
    assert told in problem.message


def test_a_read_of_a_constant_extent_is_proved_for_the_largest_value(n):
    fits, short = tir.placeholder((40,), name="fits"), tir.placeholder((39,), name="short")
    tir.compute((n,), lambda i: fits[i])
    assert code_of(lambda: tir.compute((n,), lambda i: short[i])).code == "declare.out-of-range"


def test_a_smaller_dim_is_not_proved_to_fit_a_larger_one(n):
    m = tir.dim("m", low=1, high=40)
    X = tir.placeholder((m,), name="X")
    problem = code_of(lambda: tir.compute((n,), lambda i: X[i]))
    assert "m = 1" in problem.message


def test_what_is_proved_for_every_value(n):
    X = tir.placeholder((n, n), name="X")
    k = tir.reduce_axis(n - 1, name="k")
    tir.compute((n,), lambda i: tir.sum(X[n - 1 - i, k + 1] + X[tir.minimum(i + 3, n - 1), k], axis=k))
    tir.compute((n + 2,), lambda i: tir.where(i < n, X.get(i, 0), 0.0))


@pytest.mark.parametrize("step", [(1, 1), (2, 1), (3, 2)])
def test_a_sum_of_axes_that_end_at_dims_is_proved_exactly(step):
    """Of a convolution that is valid: what is read is as long as the sum of both dims, and no element shorter."""
    ranges = {"n": (1, 1 << 20), "t": (2, 1 << 10)}  # too many values to try each
    n, t = (tir.dim(name, low=low, high=high) for name, (low, high) in ranges.items())
    (a, b), k = step, tir.reduce_axis(t, name="k")
    for first, less in itertools.product((-1, 0, 2), (-1, 0, 1, 2)):
        for c, d in itertools.product((a - 1, a, a + 1), (b, b + 1)):
            ends = itertools.product(*ranges.values())
            fits = first >= 0 and all(a * (x - 1) + b * (y - 1) + first < c * x + d * y - less for x, y in ends)
            X = tir.placeholder((c * n + d * t - less,), name="X") if c + d * 2 > less else None
            declare = lambda: tir.compute((n,), lambda i: tir.sum(X[a * i + b * k + first], k))  # noqa: E731
            if X is not None and fits:
                declare()
            elif X is not None:
                assert code_of(declare).code == "declare.out-of-range"


def test_the_definition_where_dims_have_values(n):
    X = tir.placeholder((n, 5), name="X")
    k = tir.reduce_axis(n, name="k")
    Y = tir.compute((5,), lambda j: tir.sum(X[k, j], axis=k) / n, name="Y")
    assert dims_of((Y,)) == [n]
    (small,) = with_dims((Y,), {n: 3})
    assert inputs_of((small,))[0].shape == (3, 5)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_allclose(evaluate((small,), [x])[0], x.mean(0))
    np.testing.assert_allclose(evaluate((Y,), [x])[0], x.mean(0))
    assert inputs_of(at_largest((Y,)))[0].shape == (40, 5)
    assert [v.name for v in program_of((Y,)).scalars] == ["n"]


def test_whole_tensors_with_dims(n):
    X, v = tir.placeholder((n, 5), name="X"), tir.placeholder((n,), name="v")
    made = ((X + v[:, None]).mean(axis=0), X.T @ X, X.sum(axis=1), X[:, 1:3])
    assert [t.ndim for t in made] == [1, 2, 1, 2]
    x, w = np.arange(20, dtype=np.float32).reshape(4, 5), np.ones(4, np.float32)
    np.testing.assert_allclose(evaluate((made[0],), [x, w])[0], (x + w[:, None]).mean(0))
    np.testing.assert_allclose(evaluate((made[1],), [x])[0], x.T @ x)


@pytest.mark.parametrize(
    "call", [lambda X: X.reshape(-1), lambda X: X[1:], lambda X: X.size], ids=["reshape", "slice", "size"]
)
def test_what_needs_a_constant_refuses(n, call):
    X = tir.placeholder((n, 5), name="X")
    problem = code_of(lambda: call(X))
    assert problem.code == "dim.constant"
    assert "an int in place of n" in problem.hint


def test_shapes_that_cannot_be_broadcast_are_said(n):
    X, c = tir.placeholder((n,), name="X"), tir.placeholder((40,), name="c")
    assert "(n,) and (40,)" in code_of(lambda: X + c).message
