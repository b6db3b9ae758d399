"""The repair of an online update: derived from terms that read m, or refused with what is missing."""

from fractions import Fraction
from operator import add, lt, mul, sub, truediv

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.arith.repair import NoRepairError, repair_of
from tensorir.ir.build import as_expr, binary, call, cast, const, select, unary
from tensorir.ir.text import show
from tensorir.ir.tree import Buffer, Const, Load, Scope, Select, Unary, Var

M, K, I = Var("m", "float32"), Var("k", "index"), Var("i", "index")
X = Load(Buffer("X", (as_expr(8), as_expr(8)), "float32", Scope.GLOBAL), (I, K), "float32")
W = Load(Buffer("W", (as_expr(8),), "float32", Scope.GLOBAL), (I,), "float32")
LOWEST = const(float("-inf"), "float32")


def told(body, term=None):
    found = repair_of(body, M, {K}, "sum", term)
    return show(found.value)


SUMS = {
    "softmax": (call("exp", X - M), "exp(m_old - m_new)"),
    "weighted": (call("exp", X - M) * W * X, "exp(m_old - m_new)"),
    "divided": (X * call("exp", X - M) / W, "exp(m_old - m_new)"),
    "powers of two": (call("exp2", (X - M) * 1.5), "exp2((m_old - m_new) * 1.5)"),
    "scaled": (call("exp", (X - M) / 8.0), "exp((m_old - m_new) / 8.0)"),
    "scaled before": (call("exp", X * 0.5 - M / 2.0), "exp(m_old * 0.5 - m_new / 2.0)"),
    "twice": (call("exp", (X - M) + (X - M)), "exp(m_old - m_new + (m_old - m_new))"),
    "turned twice": (call("exp", unary("-", M - X)), "exp(-(m_new - m_old))"),
    "moved": (call("exp", X - (M + W)), "exp(m_old - m_new)"),
    "masked": (select(binary("<", K, I), call("exp", X - M), const(0, "float32")), "exp(m_old - m_new)"),
    "minus infinity": (call("exp", select(binary("<", K, I), X - M, LOWEST)), "exp(m_old - m_new)"),
    "two of one factor": (call("exp", X - M) - W * call("exp", X - M), "exp(m_old - m_new)"),
    "negative": (unary("-", call("exp", X - M)), "exp(m_old - m_new)"),
    "rounded": (cast(call("exp", X - M), "float16"), "exp(m_old - m_new)"),
    "of more digits": (call("exp", cast(X - M, "float64")), "exp(float64(m_old - m_new))"),
    "squared": (call("exp", X - M) * call("exp", X - M), "exp(m_old - m_new) * exp(m_old - m_new)"),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_take_a_factor(name):
    body, wanted = SUMS[name]
    assert told(body, X) == wanted


OUTSIDE = "m outside of a difference in exp or exp2"
REFUSED = {
    "mean to variance": ((X - M) * (X - M), "sum", OUTSIDE),
    "quotient": (X / M, "sum", OUTSIDE),
    "factor": (X * M, "sum", OUTSIDE),
    "threshold": (X * select(binary("<", const(0.2, "float32"), M), const(1.0, "float32"), const(0.0, "float32")),
                  "sum", OUTSIDE),
    "at least 0": (X * binary("max", M, const(0, "float32")), "sum", OUTSIDE),
    "in whole": (X * call("floor", M), "sum", OUTSIDE),
    "root": (X * call("sqrt", M), "sum", OUTSIDE),
    "a power times it": (call("exp", X - M) * M, "sum", OUTSIDE),
    "a power over it": (call("exp", X - M) / M, "sum", OUTSIDE),
    "a power over a power": (X / call("exp", M - X), "sum", OUTSIDE),
    "a power that depends on the axis": (call("exp", X * M), "sum", "X[i, k] * m is no sum of multiples of m"),
    "a sum of both": (call("exp", X - M) + X, "sum", "change with m by different factors"),
    "made whole": (cast(call("exp", X - M), "int32"), "sum", OUTSIDE),
    "narrower than its terms": (cast(call("exp", X - M) * X, "float16"), "sum", OUTSIDE),
    "another function": (call("tanh", X - M), "sum", OUTSIDE),
    "chosen by m": (select(binary("<", X, M), X, W), "sum", OUTSIDE),
    "product": (call("exp", X - M), "prod", "it is a reduction by prod"),
    "one side of a choice": (select(binary("<", K, I), call("exp", X - M), X), "sum", "by different factors"),
    "two factors": (call("exp", X - M) + call("exp", (X - M) * 2.0), "sum", "by different factors"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_repair_says_why(name):
    body, combiner, why = REFUSED[name]
    with pytest.raises(NoRepairError) as e:
        repair_of(body, M, {K}, combiner, X)
    assert why in str(e.value)


NOT_ITS_OWN = "m is not known to be the maximum of "
FAR = {
    "of other numbers": (call("exp", W * K - M), X, NOT_ITS_OWN + "W[i] * float32(k)"),
    "and of others": (call("exp", X - M + Load(X.buffer, (K, I), "float32")), X, NOT_ITS_OWN + "X[k, i]"),
    "other way round": (call("exp", M - X), X, "X[i, k] has coefficient -1 and m 1"),
    "times a negative number": (call("exp2", (X - M) * -1.5), X, "coefficient -1.5 and m 1.5"),
    "times 0": (call("exp", (X - M) * 0.0), X, "is no sum of multiples of m"),
    "of no maximum": (call("exp", X - M), None, NOT_ITS_OWN + "what"),
    "one part of a sum": (call("exp", X - M) + call("exp", W * K - M), X, NOT_ITS_OWN),
    "more of m": (call("exp", X - M * 2.0), X, "X[i, k] has coefficient 1 and m -2"),
    "less of it": (call("exp", X / 2.0 - M), X, "X[i, k] has coefficient 0.5 and m -1"),
    "m alone": (X * call("exp", M), X, "X[i, k] has coefficient 0 and m 1"),
    "both too large": (call("exp2", X * 1.5 - M * 1.5), X, "X[i, k] * 1.5 may overflow"),
    "their sum too large": (call("exp", X - (X + M) / 2.0), X, "X[i, k] + m may overflow"),
    "a mask turned": (call("exp", unary("-", select(binary("<", K, I), M - X, LOWEST))), X, "may be infinite"),
    "plus infinity": (call("exp", select(binary("<", K, I), X - M, const(float("inf"), "float32"))), X, "is no sum"),
    "a guarded m": (call("exp", X - select(binary("==", M, LOWEST), const(0, "float32"), M)), X, "is no sum"),
    "rounded before": (call("exp", cast(X, "float16") - cast(M, "float16")), X, NOT_ITS_OWN),
}


@pytest.mark.parametrize("name", FAR)
def test_exponents_that_may_be_above_0_before_m_is_final_are_refused(name):
    body, term, why = FAR[name]
    with pytest.raises(NoRepairError, match="too large or small for its type while m is not yet final") as e:
        repair_of(body, M, {K}, "sum", term)
    assert why in str(e.value)


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


@given(FORMS, st.lists(st.integers(-9, 9), min_size=4, max_size=4))
@example(("-", ("*", "2", ("-", "x", "m")), "u"), [-9, 3, -5, 0])
@settings(max_examples=400, deadline=None)
def test_exponents_move_with_m_alone_and_are_largest_at_the_maximum(form, numbers):
    try:
        repair = repair_of(call("exp", built(form)), M, {AXIS}, "sum", AXIS)
    except NoRepairError:
        return
    x, u, old, new = map(Fraction, numbers)
    before, after, top = (value(built(form), {AXIS: a, OTHER: u, M: m}) for a, m in ((x, old), (x, new), (old, old)))
    assert after - before == value(repair.value.args[0], {OTHER: u, repair.old: old, repair.new: new})
    assert (before <= top) == (x <= old)


@given(FORMS)
@settings(max_examples=200, deadline=None)
def test_terms_without_a_power_have_no_repair(form):
    with pytest.raises(NoRepairError):
        repair_of(built(form), M, {AXIS}, "sum", AXIS)


def test_refusals_reach_the_user_with_both():
    A, k, k2 = tir.placeholder((4, 8), name="A"), tir.reduce_axis(8, name="k"), tir.reduce_axis(8, name="k")
    m = tir.compute((4,), lambda i: tir.sum(A[i, k] / 8, axis=k), name="mean")
    v = tir.compute((4,), lambda i: tir.sum((A[i, k2] - m[i]) * (A[i, k2] - m[i]), axis=k2), name="var")
    s = tir.Schedule(v)
    with pytest.raises(tir.ScheduleError) as e:
        s.rolling("mean", into="var", at="var.k")
    assert e.value.code == "rolling.repair"
    assert (
        "var cannot continue with another mean: (A[i, k] - mean) * (A[i, k] - mean) reads mean outside of a difference"
        in " ".join(str(e.value).split())
    )
