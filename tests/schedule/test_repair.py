"""The repair of an online update: derived from terms that read m, or refused with what is missing."""

from fractions import Fraction
from operator import add, lt, mul, sub, truediv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.ir.build import as_expr, binary, call, cast, const, select, unary
from tensorir.ir.text import show
from tensorir.ir.tree import Buffer, Const, Load, Scope, Select, Unary, Var
from tensorir.schedule.repair import NoRepairError, repair_of

M, K, I = Var("m", "float32"), Var("k", "index"), Var("i", "index")
X = Load(Buffer("X", (as_expr(8), as_expr(8)), "float32", Scope.GLOBAL), (I, K), "float32")
W = Load(Buffer("W", (as_expr(8),), "float32", Scope.GLOBAL), (I,), "float32")
LOWEST = const(float("-inf"), "float32")


def told(body, term=None):
    found = repair_of(body, M, {K}, "sum", term)
    return show(found.factor)


SUMS = {
    "softmax": (call("exp", X - M), "exp(m_old - m_new)"),
    "weighted": (call("exp", X - M) * W * X, "exp(m_old - m_new)"),
    "powers of two": (call("exp2", (X - M) * 1.5), "exp2((m_old - m_new) * 1.5)"),
    "scaled": (call("exp", (X - M) / 8.0), "exp((m_old - m_new) / 8.0)"),
    "quotient": (X / M, "m_old / m_new"),
    "factor": (X * M, "m_new / m_old"),
    "masked": (select(binary("<", K, I), call("exp", X - M), const(0, "float32")), "exp(m_old - m_new)"),
    "minus infinity": (call("exp", select(binary("<", K, I), X - M, LOWEST)), "exp(m_old - m_new)"),
    "two of one factor": (call("exp", X - M) - call("exp", X + X - M), "exp(m_old - m_new)"),
    "negative": (unary("-", call("exp", X - M)), "exp(m_old - m_new)"),
    "rounded": (cast(call("exp", X - M), "float16"), "exp(m_old - m_new)"),
    "squared": (call("exp", X - M) * call("exp", X - M), "exp(m_old - m_new) * exp(m_old - m_new)"),
    "guarded m": (
        call("exp", X - select(binary("==", M, LOWEST), const(0, "float32"), M)),
        "exp(where(m_old == -inf, 0.0, m_old) - where(m_new == -inf, 0.0, m_new))",
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_take_a_factor(name):
    body, wanted = SUMS[name]
    assert told(body, X) == wanted


REFUSED = {
    "mean to variance": ((X - M) * (X - M), "sum", "how X[i, k] - m changes with m is no factor free of k"),
    "a power that depends on the axis": (call("exp", X * M), "sum", "how X[i, k] * m changes with m is no difference"),
    "a sum of both": (call("exp", X - M) + X, "sum", "how exp(X[i, k] - m) + X[i, k] changes with m is no factor"),
    "made whole": (cast(X / M, "int32"), "sum", "changes with m is no factor free of k"),
    "another function": (call("tanh", X - M), "sum", "how tanh(X[i, k] - m) changes with m is no factor"),
    "chosen by m": (select(binary("<", X, M), X, W), "sum", "is no factor free of k"),
    "maximum": (X - M, "max", "it is a reduction by max, and sums alone take a factor"),
    "product": (call("exp", X - M), "prod", "it is a reduction by prod"),
    "one side of a choice": (select(binary("<", K, I), call("exp", X - M), X), "sum", "changes with m is no factor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_repair_says_why(name):
    body, combiner, why = REFUSED[name]
    with pytest.raises(NoRepairError) as e:
        repair_of(body, M, {K}, combiner)
    assert why in str(e.value)


FAR = {
    "of other numbers": (call("exp", W * K - M), X),
    "other way round": (call("exp", M - X), X),
    "times a negative number": (call("exp2", (X - M) * -1.5), X),
    "of no maximum": (call("exp", X - M), None),
    "one part of a sum": (call("exp", X - M) + call("exp", W * K - M), X),
}


@pytest.mark.parametrize("name", FAR)
def test_exponents_that_may_be_above_0_before_m_is_final_are_refused(name):
    body, term = FAR[name]
    with pytest.raises(NoRepairError, match="too large or small for its type while m is not yet final"):
        repair_of(body, M, {K}, "sum", term)


def test_terms_vanish_where_what_is_maximised_is_minus_infinity():
    assert repair_of(call("exp", X - M) * W, M, {K}, "sum", X).vanishes
    assert repair_of(call("exp2", (X - M) * 1.5), M, {K}, "sum", X).vanishes
    assert not repair_of(X / M, M, {K}, "sum", X).vanishes


FORMS = st.recursive(
    st.sampled_from(["x", "u", "m", "2"]),
    lambda inner: st.tuples(st.sampled_from("*/-+?"), inner, inner),
    max_leaves=6,
)
AXIS, OTHER = Var("x", "float32"), Var("u", "float32")


def built(form):
    if isinstance(form, str):
        return {"x": AXIS, "u": OTHER, "m": M, "2": const(2, "float32")}[form]
    a, b = built(form[1]), built(form[2])
    return select(binary("<", AXIS, const(3, "float32")), a, b) if form[0] == "?" else binary(form[0], a, b)


def value(e, at):
    """In rational numbers."""
    match e:
        case Var():
            return at[e]
        case Const():
            return Fraction(e.value)
        case Select():
            return value(e.a if value(e.cond, at) else e.b, at)
        case Unary():
            return -value(e.a, at)
    a, b = value(e.a, at), value(e.b, at)
    return {"+": add, "-": sub, "*": mul, "/": truediv, "<": lt}[e.op](a, b)


@given(FORMS, st.lists(st.integers(1, 9), min_size=4, max_size=4))
@settings(max_examples=400, deadline=None)
def test_a_repair_is_free_of_the_axis_and_takes_every_term_to_its_new_value(form, numbers):
    body = built(form)
    try:
        repair = repair_of(body, M, {AXIS}, "sum")
    except NoRepairError:
        return
    x, u, old, new = map(Fraction, numbers)
    try:
        before, after = (value(body, {AXIS: x, OTHER: u, M: m}) for m in (old, new))
        by = value(repair.factor, {OTHER: u, repair.old: old, repair.new: new})
    except ZeroDivisionError:
        return
    assert after == before * by


def test_refusals_reach_the_user_with_both():
    A, k, k2 = tir.placeholder((4, 8), name="A"), tir.reduce_axis(8, name="k"), tir.reduce_axis(8, name="k")
    m = tir.compute((4,), lambda i: tir.sum(A[i, k] / 8, axis=k), name="mean")
    v = tir.compute((4,), lambda i: tir.sum((A[i, k2] - m[i]) * (A[i, k2] - m[i]), axis=k2), name="var")
    s = tir.Schedule(v)
    with pytest.raises(tir.ScheduleError) as e:
        s.rolling("mean", into="var", at="var.k")
    assert e.value.code == "rolling.repair"
    assert (
        "var cannot continue with another mean: how A[i, k] - mean changes with mean is no factor free of k"
        in " ".join(str(e.value).split())
    )
