"""Quotients, powers and comparisons of integers: NumPy's values, and no guard where ranges are proved."""

import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import tensorir as tir
from tensorir.interp.reference import evaluate

N = 12


def text(f, dtype="int32", target="opencl"):
    A, B = tir.placeholder((N,), dtype, name="A"), tir.placeholder((N,), dtype, name="B")
    return tir.Schedule(tir.compute((N,), lambda i: f(A[i], B[i], i), name="C"), target).emitted().text


@pytest.mark.parametrize("target", ["opencl", "cuda", "c"])
@pytest.mark.parametrize(
    ("f", "dtype", "plain"),
    [
        (lambda a, b, i: (a & 255) // ((b & 7) + 1), "int32", "/"),
        (lambda a, b, i: (a & 255) % tir.maximum(b, 1), "int32", "%"),
        (lambda a, b, i: a // (b | 1), "uint32", "/"),
        (lambda a, b, i: a % ((b & 3) + 1), "uint16", "%"),
        (lambda a, b, i: tir.cast(a, "int32") // (i + 1), "uint8", "/"),
    ],
)
def test_no_guard_where_the_range_is_proved(f, dtype, plain, target):
    made = text(f, dtype, target)
    assert not re.search(r"tir_(floordiv|mod)", made)
    assert f" {plain} " in made


@pytest.mark.parametrize(
    ("f", "helper"),
    [
        (lambda a, b, i: a // b, "tir_floordiv_any_int"),
        (lambda a, b, i: a % b, "tir_mod_any_int"),
        (lambda a, b, i: a // (b & 7), "tir_floordiv_any_int"),
        (lambda a, b, i: a // (b | 1), "tir_floordiv_int"),
        (lambda a, b, i: a % -7, "tir_mod_int"),
        (lambda a, b, i: a // tir.minimum(b, -1), "tir_floordiv_int"),
    ],
)
def test_the_helper_says_what_is_not_proved(f, helper):
    assert f"{helper}(A[" in text(f)


def test_a_divisor_of_more_bits_is_still_not_0():
    assert "tir_floordiv_int64" in text(lambda a, b, i: tir.cast(a, "int64") // tir.cast(b | 1, "int64"))
    assert "any" in text(lambda a, b, i: a // tir.cast(b | 256, "int8"), "int32")


def on_all(f, dtype, a, b):
    A, B = tir.placeholder(a.shape, dtype, name="A"), tir.placeholder(b.shape, b.dtype.name, name="B")
    C = tir.compute(a.shape, lambda i: f(A[i], B[i]), name="C")
    (want,) = evaluate((C,), (a, b)[: len(C.op.inputs)])
    assert_array_equal(tir.Schedule(C, "opencl").build()(*(a, b)[: len(C.op.inputs)]), want)
    return want


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "int64", "uint64"])
def test_quotients_by_0_are_0(dtype):
    pytest.importorskip("pyopencl")
    a = np.array([5, 0, 7, np.iinfo(dtype).max], dtype)
    zeros = np.zeros(4, dtype)
    assert not on_all(lambda x, y: x // y, dtype, a, zeros).any()
    assert not on_all(lambda x, y: x % y, dtype, a, zeros).any()


def test_powers_of_integers():
    pytest.importorskip("pyopencl")
    a, b = np.array([3, -2, 7, -1, 1, 2, 0, -1], "int32"), np.array([4, 31, 40, -3, -5, -1, 0, -4], "int32")
    got = on_all(lambda x, y: x**y, "int32", a, b)
    assert_array_equal(got, [81, -(2**31), np.int32(7) ** np.int32(40), -1, 1, 0, 1, 1])
    assert_array_equal(on_all(lambda x, y: x**21, "int32", a, b), a ** np.int32(21))
    assert_array_equal(on_all(lambda x, y: tir.where(x > 99, x, 2**y), "int32", a, b), [16, -(2**31), 0, 0, 0, 0, 1, 0])
    f = np.linspace(0.5, 2, 8).astype("float32")
    np.testing.assert_allclose(on_all(lambda x, y: x**y, "float32", f, b), f ** b.astype("f8"), rtol=1e-6)


def test_powers_that_are_no_integers_are_refused():
    A = tir.placeholder((N,), "int32", name="A")
    with pytest.raises(tir.DeclarationError, match=r"declare\.power.*-2"):
        tir.compute((N,), lambda i: A[i] ** -2)


@pytest.mark.parametrize("signed", ["int8", "int64"])
def test_signed_types_compare_exactly_with_uint64(signed):
    """float64, NumPy's type of both, would make neighbours of 2**63 equal."""
    pytest.importorskip("pyopencl")
    most = np.iinfo(signed).max
    a = np.array([-1, 0, most, most, most, -5], signed)
    b = np.array([2**64 - 1, 0, most, most + 1, most - 1, 3], "uint64")
    pairs = [(lambda x, y: x < y, np.less), (lambda x, y: x <= y, np.less_equal), (lambda x, y: x > y, np.greater),
             (lambda x, y: x >= y, np.greater_equal), (tir.equal, np.equal), (tir.not_equal, np.not_equal)]  # fmt: skip
    for mine, numpys in pairs:
        assert_array_equal(on_all(mine, signed, a, b), numpys(a, b))
        assert_array_equal(on_all(lambda x, y, f=mine: f(y, x), signed, a, b), numpys(b, a))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64"])
def test_integers_are_stored_as_halves(dtype):
    """OpenCL's vstore_half takes a float or a double, and nothing that both could be made of."""
    pytest.importorskip("pyopencl")
    a = np.array([0, 1, 1, 0], "int8").astype(dtype)
    assert_array_equal(on_all(lambda x, y: tir.cast(x, "float16"), dtype, a, a), a.astype("float16"))


def test_sums_beyond_the_type_keep_their_bits():
    """LLVM makes ``a + INT_MIN`` an or, and 0 of the sign of a sum of two positive numbers, where that is undefined."""
    pytest.importorskip("pyopencl")
    a, b = np.array([-4, 2**31 - 1, -(2**31), 7], "int32"), np.array([1, 2**31 - 1, 5, -1], "int32")
    most, least = 2**31 - 1, -(2**31)
    with np.errstate(over="ignore"):
        assert_array_equal(on_all(lambda x, y: x + least, "int32", a, b), a + np.int32(least))
        assert_array_equal(on_all(lambda x, y: x - least, "int32", a, b), a - np.int32(least))
        signs = ((a & most) + (b & most)) & np.int32(least)
        assert signs.any()
        assert_array_equal(on_all(lambda x, y: ((x & most) + (y & most)) & least, "int32", a, b), signs)
        assert_array_equal(on_all(lambda x, y: ~((x & most) + (y & most)) | most, "int32", a, b), ~signs | most)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_the_least_number_by_minus_one_wraps_before_it_is_used(dtype):
    """It has no counterpart of its type: 128 in C, whose quotients are ints, and -128 in NumPy."""
    least = np.iinfo(dtype).min
    a, b = np.array([least, least, 7, -7], dtype), np.array([-1, 1, -1, 2], dtype)
    for f, want in ((lambda a, b: a // b, [least, least, -7, -4]), (lambda a, b: a % b, [0, 0, 0, 1])):
        A, B = tir.placeholder((4,), dtype, name="A"), tir.placeholder((4,), dtype, name="B")
        C = tir.compute((4,), lambda i: tir.cast(f(A[i], B[i]), "int32"), name="C")
        assert tir.Schedule(C, "opencl").build()(a, b).tolist() == want
