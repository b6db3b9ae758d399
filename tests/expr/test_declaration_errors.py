"""Every refusal of a declaration: its code, a key part of the message, the user's line."""

import re

import numpy as np
import pytest

import tensorir as tir
from tensorir import nn
from tensorir.ir.dtypes import dtype_of


def A(*shape, dtype="float32"):
    return tir.placeholder(shape or (8,), dtype, name="A")


def k(n=8):
    return tir.reduce_axis(n, name="k")


def loose():
    kk = k()
    return tir.compute((8,), lambda i: A(8, 8)[i, kk], name="B")


def mixed():
    p, q, X = k(), tir.reduce_axis(8, name="q"), A(8, 8)
    return tir.compute((8,), lambda i: (tir.sum(X[i, p], axis=p), tir.sum(X[i, q], axis=q)), name="B")


def branch():
    X = A()
    return tir.compute((8,), lambda i: X[i] if i > 3 else X[0], name="B")


def pair(result, identity):
    both, kk = tir.combiner(result, identity), k()
    return tir.compute((8,), lambda i: both((A()[kk], A()[kk]), axis=kk))


X4, W4 = (1, 4, 8, 8), (4, 4, 3, 3)

CASES = [
    ("declare.shape", "-1", lambda: A(-1)),
    ("declare.shape", "2.5", lambda: A(2.5)),
    ("declare.dtype", "float7", lambda: A(dtype="float7")),
    ("declare.dtype", "index", lambda: dtype_of("index")),
    ("declare.name", "non-empty", lambda: tir.placeholder((8,), name="")),
    ("declare.not-callable", "lambda", lambda: tir.compute((8,), 3)),
    ("declare.lambda-arity", "2 dimensions but the lambda takes 1", lambda: tir.compute((8, 8), lambda i: A()[i])),
    ("declare.lambda-none", "None", lambda: tir.compute((8,), lambda i: None)),
    ("declare.lambda-failed", "TypeError", lambda: tir.compute((8,), len)),
    ("declare.truth-value", "truth value", branch),
    ("declare.truth-value", "Python bool", lambda: tir.compute((8,), lambda i: tir.where(i is A, 1, 0))),
    ("declare.truth-value", "where=", lambda: tir.compute((8,), lambda i: tir.sum(A()[i], axis=k(), where=i is A))),
    ("declare.captured-array", "shape (3,)", lambda: tir.compute((8,), lambda i: A()[i] + np.ones(3))),
    ("declare.value", "object", lambda: tir.compute((8,), lambda i: A()[i] + object())),
    ("declare.rank", "1 dimensions but is read with 2", lambda: tir.compute((8,), lambda i: A()[i, i])),
    ("declare.slice", "slice", lambda: tir.compute((8,), lambda i: A(8, 8)[i, :])),
    ("declare.whole", "A_part is a whole tensor", lambda: tir.compute((8,), lambda i: A()[:])),
    ("declare.index-type", "float32", lambda: tir.compute((8,), lambda i: A()[A()[i]])),
    ("declare.out-of-range", "i = ", lambda: tir.compute((8,), lambda i: A()[i + 5])),
    ("declare.out-of-range", "-1", lambda: tir.compute((8,), lambda i: A()[i - 1])),
    ("declare.gather-index", "computed from data", lambda: tir.compute((8,), lambda i: A()[A(dtype="int32")[i] // 2])),
    ("declare.output", "not computed", lambda: tir.Schedule(A())),
    ("declare.loose-axis", "outside a reduction", loose),
    ("declare.mixed-reductions", "different axes", mixed),
    ("argument.call", "exp(x): too many", lambda: tir.exp(A()[0], 2.0)),
    ("argument.call", "missing a required argument: 'b'", lambda: tir.pow(A())),
    ("reduce.axis", "not a reduce axis", lambda: tir.compute((8,), lambda i: tir.sum(A()[i], axis=i))),
    ("reduce.axis", "once", lambda: tir.compute((8,), lambda i: tir.sum(A()[i], axis=()))),
    ("reduce.axis", "one axis", lambda: tir.compute((8,), lambda i: tir.argmin(A()[i], axis=(k(), k())))),
    ("reduce.bool", "of a bool", lambda: tir.compute((8,), lambda i: tir.sum(A()[i] > 0, axis=k()))),
    (
        "reduce.identity",
        "constant",
        lambda: tir.compute((8,), lambda i: tir.combiner(lambda a, b: a + b, A()[i])(A()[i], axis=k())),
    ),
    ("reduce.identity", "tuple of 2", lambda: pair(lambda a, b: (a[0] + b[0], a[1]), (0, 0, 0))),
    ("reduce.result", "tuple of 2", lambda: pair(lambda a, b: a[0] + b[0], (0, 0))),
    ("reduce.name", "'sum' is a built-in", lambda: tir.combiner(lambda a, b: a * b, 1, name="sum")),
    ("reduce.axis", "axis=1 is not a reduce axis", lambda: tir.compute((8,), lambda i: tir.sum(A()[i], axis=1))),
    ("declare.iterated", "cannot be iterated", lambda: list(A())),
    ("declare.iterated", "cannot be iterated", lambda: tir.compute((8,), lambda i: sum(A()[i]))),
    ("declare.zero-division", "// 0", lambda: tir.compute((8,), lambda i: A()[i // 0])),
    ("declare.zero-division", "% 0", lambda: tir.compute((8,), lambda i: i % 0)),
    ("declare.zero-division", "i // j divides by 0 when j = 0", lambda: tir.compute((8, 8), lambda i, j: A()[i // j])),
    ("declare.zero-division", "j = 2", lambda: tir.compute((8, 8), lambda i, j: tir.where(j > 1, i % (j - 2), 0))),
    ("declare.too-deep", "nests more than", lambda: tir.compute((8,), lambda i: sum((A()[i],) * 20_002, start=0))),
    ("declare.constant-range", "nan does not fit int32", lambda: tir.cast(float("nan"), "int32")),
    ("declare.constant-range", "300 does not fit int8", lambda: tir.compute((8,), lambda i: A(dtype="int8")[i] + 300)),
    ("declare.constant-range", "-1 does not fit uint8", lambda: tir.compute((8,), lambda i: A(dtype="uint8")[i] - -1)),
    ("declare.constant-range", "does not fit int32", lambda: tir.compute((8,), lambda i: tir.cast(2**70, "int32"))),
    ("declare.constant-range", "does not fit int32", lambda: tir.compute((8,), lambda i: i + 2**40)),
    ("declare.constant-range", "does not fit int64", lambda: tir.compute((8,), lambda i: A()[i + 2**70])),
    ("declare.constant-range", "does not fit float32", lambda: tir.compute((8,), lambda i: A()[i] + 10**400)),
    ("declare.constant-range", "fit int8", lambda: A(dtype="int8").get(0, fill=200)),
    (
        "declare.constant-range",
        "100000.0 does not fit float16 (-65504 to 65504)",
        lambda: tir.compute((8,), lambda i: A(dtype="float16")[i] * 1e5),
    ),
    (
        "declare.constant-range",
        "65520 does not fit float16",
        lambda: tir.compute((8,), lambda i: A(dtype="float16")[i] + 65520),
    ),
    ("declare.constant-range", "465.0 does not fit float8_e4m3 (-448 to 448)", lambda: tir.cast(465.0, "float8_e4m3")),
    ("declare.constant-range", "does not fit float32", lambda: tir.compute((8,), lambda i: A()[i] < 3.5e38)),
    ("declare.bool-difference", "x - y of bools", lambda: tir.compute((8,), lambda i: (A()[i] > 0) - (A()[i] < 1))),
    ("declare.bool-difference", "-x of bools", lambda: tir.compute((8,), lambda i: -(A()[i] > 0))),
    ("declare.output", "no output", lambda: tir.Schedule([])),
    ("declare.output", "twice", lambda: tir.Schedule([tir.compute((8,), lambda i: i, name="B")] * 2)),
    ("declare.lambda-failed", "ZeroDivisionError", lambda: tir.compute((8,), lambda i: 1 / 0)),
    ("declare.lambda-arity", "axes= names 1", lambda: tir.compute((8, 8), lambda i, j: i, axes=["i"])),
    ("declare.shape", "None", lambda: tir.placeholder(None)),
    ("declare.shape", "2**62", lambda: tir.placeholder(2**63)),
    ("declare.shape", "64 dimensions", lambda: tir.placeholder(np.broadcast_to(3, 1 << 40))),
    ("declare.shape", "array", lambda: tir.placeholder(np.broadcast_to(3, (1 << 20, 1 << 20)))),
    ("argument.type", "rows of equal length", lambda: tir.constant([[1, 2], [3]])),
    ("matmul.shape", "do not multiply", lambda: nn.matmul(A(3, 4), A(5, 6))),
    ("conv2d.layout", "NCWH", lambda: nn.conv2d(A(*X4), A(*W4), layout="NCWH")),
    ("conv2d.rank", "4 dimensions", lambda: nn.conv2d(A(8, 8), A(*W4))),
    ("conv2d.extent", "smaller than the kernel", lambda: nn.conv2d(A(1, 4, 2, 2), A(*W4))),
    ("conv2d.stride", "stride=0", lambda: nn.conv2d(A(*X4), A(*W4), stride=0)),
    ("conv2d.dilation", "dilation=-1", lambda: nn.conv2d(A(*X4), A(*W4), dilation=-1)),
    ("conv2d.groups", "groups=0", lambda: nn.conv2d(A(*X4), A(*W4), groups=0)),
    ("conv2d.groups", "groups=3", lambda: nn.conv2d(A(*X4), A(*W4), groups=3)),
    ("conv2d.pad", "pad=-1", lambda: nn.conv2d(A(*X4), A(*W4), pad=-1)),
    ("conv2d.channels", "expected 2", lambda: nn.conv2d(A(*X4), A(*W4), groups=2)),
    ("declare.value", "dict", lambda: nn.activation({}, None)),
    ("declare.value", "NoneType", lambda: nn.activation(None, "silu")),
    ("nn.act", "swish", lambda: nn.bias_act(nn.relu(A()), None, "swish", axis=0)),
]


@pytest.mark.parametrize(("code", "key", "act"), CASES, ids=[f"{c} {key}" for c, key, _ in CASES])
def test_refused(code, key, act):
    with pytest.raises(tir.DeclarationError) as caught:
        act()
    text = str(caught.value)
    assert caught.value.code == code, text
    assert isinstance(caught.value, ValueError)
    assert key in text
    assert re.search(r"test_declaration_errors\.py:\d+", text), text
    assert len(text.splitlines()) <= 14


def test_divisions_that_cannot_meet_0_are_fine():
    for f in (
        lambda i, j: i // (j + 1), lambda i, j: tir.where(j > 0, i // j, 0), lambda i, j: i % (j - 8),
        lambda i, j: A(8, dtype="int32")[i] // A(8, dtype="int32")[j],
    ):  # fmt: skip
        assert tir.Schedule(tir.compute((8, 8), f)).check()


def test_an_exception_in_a_lambda_names_its_line_and_keeps_its_cause():
    def element(i):
        return 1 / 0

    with pytest.raises(tir.DeclarationError) as caught:
        tir.compute((8,), element)
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and "return 1 / 0" in caught.value.where


def test_a_symbolic_extent():
    from tensorir.ir.build import as_int
    from tensorir.ir.tree import Var

    with pytest.raises(tir.DeclarationError) as caught:
        as_int(Var("n", "index"))
    assert caught.value.code == "declare.symbolic-extent"


def test_errors_travel_between_processes():
    import pickle

    with pytest.raises(tir.DeclarationError) as caught:
        A(-1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    assert (again.code, str(again), again.where) == (caught.value.code, str(caught.value), caught.value.where)
    with pytest.raises(tir.CheckError) as caught:
        tir.Schedule(tir.compute((2,), lambda i: A()[i], name="B")).check(level="hope")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_nan_makes_false_proves_nothing():
    """Where x is NaN neither x < 1 nor 1 <= x holds, so that the index is not known to be small."""
    x, T = tir.placeholder((4,), name="x"), tir.placeholder((3,), name="T")

    def value(i, j):
        inner = tir.where(tir.any_(tir.not_equal(x[i], 1), j < 3), T[j], 0)
        return tir.where(x[i] < 1, 0, tir.where(x[i] > 1, 0, inner))

    with pytest.raises(tir.DeclarationError, match="out-of-range"):
        tir.compute((4, 50), value, name="Y")


class Unhelpful:
    """An object whose attributes raise."""

    def __getattr__(self, name):
        raise ValueError(name)


@pytest.mark.parametrize("read", [lambda t, x: t[x], lambda t, x: t.get(x), lambda t, x: t[0] + x])
def test_objects_whose_attributes_raise_are_named(read):
    with pytest.raises(tir.DeclarationError, match=r"\[argument.raised\].*Unhelpful.__getattr__"):
        read(tir.placeholder((4,), name="t"), Unhelpful())


def test_equal_conditions_are_one():
    a = tir.placeholder((16,), name="a")

    def cell(i):
        before, total = a[i - 1] * 3, a[i]
        for k in range(12):  # more than are looked at, if each were one
            total = total + tir.where(i > 0, before + k, 1)
        return total

    assert tir.Schedule(tir.compute((16,), cell, name="y"), "c").check()
