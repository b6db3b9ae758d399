"""The two fields in which exp turns sums into products."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.interp.exponentials import ExpField, P, Q, field_of
from tensorir.interp.numbers import Field

F = ExpField()
FLOAT = "float32"
INF, NAN = float("inf"), float("nan")
rationals = st.fractions(max_denominator=1000).map(lambda x: x + 0)


def const(x):
    return np.asarray(F.const(x, FLOAT), np.int64)


def same(x, y):
    return not F.differ(np.asarray(x), np.asarray(y), FLOAT).any()


def op(o, *args):
    return F.unary("-", args[0], FLOAT) if o == "neg" else F.binary(o, *args, FLOAT)


def exp(x, fn="exp"):
    return F.call(fn, [x], FLOAT, FLOAT)


@settings(max_examples=200, deadline=None)
@given(rationals, rationals)
def test_rational_arithmetic_is_that_of_both_fields(a, b):
    x, y = (np.asarray(_pair(v)) for v in (a, b))
    assert same(op("+", x, y), _pair(a + b))
    assert same(op("-", x, y), _pair(a - b))
    assert same(op("*", x, y), _pair(a * b))
    assert same(op("neg", x), _pair(-a))
    if b.numerator % P and b.numerator % Q:  # else it is 0 in one of the fields
        assert same(op("/", x, y), _pair(a / b))


def _pair(x):
    v, w = (x.numerator * pow(x.denominator, -1, m) % m for m in (P, Q))
    return v | w << 32


@pytest.mark.parametrize("fn", ["exp", "exp2"])
def test_exp_turns_sums_into_products(fn):
    rng = np.random.default_rng(0)
    a, b = F.random(rng, (1000,), FLOAT), F.random(rng, (1000,), FLOAT)
    assert same(op("*", exp(a, fn), exp(b, fn)), exp(op("+", a, b), fn))
    assert same(op("/", exp(a, fn), exp(b, fn)), exp(op("-", a, b), fn))
    assert not same(op("*", exp(a, fn), exp(a, fn)), exp(op("+", a, b), fn))
    assert not same(exp(a), exp(a, "exp2"))
    assert F.differ(exp(a, fn), exp(b, fn), FLOAT).all()


def test_powers_repeat_with_the_second_prime():
    for base in (F.call(fn, [const(1)], FLOAT, FLOAT) & 0xFFFFFFFF for fn in ("exp", "exp2")):
        assert pow(int(base), Q, P) == 1
        assert int(base) != 1


def test_a_power_of_a_power_is_a_function_of_its_value_and_told():
    field = ExpField()
    a = field.random(np.random.default_rng(1), (100,), FLOAT)
    once = field.call("exp", [a], FLOAT, FLOAT)
    assert not field.opaque
    twice = field.call("exp", [once], FLOAT, FLOAT)
    assert field.opaque == {"exp"}
    in_parts = field.binary("*", exp(field.binary("-", a, const(3), FLOAT)), exp(const(3)), FLOAT)
    assert not field.differ(twice, field.call("exp", [in_parts], FLOAT, FLOAT), FLOAT).any()


@pytest.mark.parametrize(
    ("o", "a", "b", "want"),
    [
        ("+", -INF, 3.0, -INF), ("-", -INF, 3.0, -INF), ("-", 3.0, -INF, INF), ("+", INF, -INF, NAN),
        ("-", INF, INF, NAN), ("*", -INF, 2.0, -INF), ("*", INF, 0.0, NAN), ("/", 3.0, INF, 0.0), ("/", INF, INF, NAN),
        ("max", -INF, 5.0, 5.0), ("min", INF, -5.0, -5.0), ("+", NAN, 1.0, NAN), ("*", -INF, INF, -INF),
        ("*", -INF, -1.0, INF), ("*", -0.5, -INF, INF), ("/", -INF, -2.0, INF), ("/", INF, -0.125, -INF),
        ("*", -INF, 0.125, -INF), ("/", 1.0, 0.0, INF), ("/", -1.0, 0.0, -INF), ("/", 0.0, 0.0, NAN),
        ("/", -INF, 0.0, -INF),
    ],
)  # fmt: skip
def test_infinities(o, a, b, want):
    assert same(op(o, const(a), const(b)), const(want))


def test_exp_of_infinities():
    assert same(exp(const(-INF)), const(0.0))
    assert same(exp(const(INF)), const(INF))
    assert same(exp(const(NAN)), const(NAN))
    assert same(exp(const(0.0)), const(1.0))
    assert not op("==", const(NAN), const(NAN))
    assert op("<", const(-INF), F.random(np.random.default_rng(2), (99,), FLOAT)).all()


def test_sums_and_sums_into_cells_are_those_of_single_additions():
    rng = np.random.default_rng(3)
    x = F.random(rng, (7, 5), FLOAT)
    x[2] = exp(x[2])
    x[3, 1], x[4, 4] = const(-INF), const(NAN)
    want = x[0]
    for row in x[1:]:
        want = op("+", want, row)
    assert same(F.sum(x, (0,), FLOAT), want)
    cells = np.zeros(5, np.int64)
    F.add_at(cells, np.tile(np.arange(5), 7), x.reshape(-1), FLOAT)
    assert same(cells, want)
    assert F.sum(np.ones((3, 2), np.int32), (0,), "int32").tolist() == [3, 3]


def test_integers_become_the_same_number_in_both():
    for n in (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1):
        assert same(F.cast(np.int64(n), "int64", FLOAT), _pair(Fraction(n)))
    assert same(F.cast(np.uint64(2**64 - 1), "uint64", FLOAT), _pair(Fraction(2**64 - 1)))
    assert F.cast(const(0.0), FLOAT, "bool") == False  # noqa: E712  an array
    assert F.cast(exp(const(1.0)), FLOAT, "bool")


def test_only_declarations_with_exp_are_compared_in_pairs():
    A = tir.placeholder((3,), name="A")
    assert isinstance(field_of([tir.compute((3,), lambda i: tir.exp(A[i]), name="B")]), ExpField)
    assert type(field_of([tir.compute((3,), lambda i: tir.tanh(A[i]), name="B")])) is Field
