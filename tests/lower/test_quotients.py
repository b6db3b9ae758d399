"""Division of integers by constants in vectors."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.arith.quotients import without_division
from tensorir.ir.build import binary, const
from tensorir.ir.tree import Var

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


def numbers(dtype, count=4096):
    """Every place where a quotient changes for small divisors, both ends of the type, and others."""
    info, draw = np.iinfo(dtype), np.random.default_rng(20261130)
    ends = [info.min + n for n in range(8)] + [info.max - n for n in range(8)] + [max(info.min, -n) for n in range(64)]
    return np.append(np.array(ends, dtype), draw.integers(info.min, info.max, count - len(ends), dtype, endpoint=True))


def divisors(dtype):
    last = int(np.iinfo(dtype).max)
    drawn = np.random.default_rng(7).integers(3, last, 8, endpoint=True)
    return sorted({1, 2, 3, 5, 7, 8, 10, 100, 127, last // 2, last // 2 + 1, last - 1, last, *map(int, drawn)})


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("target", ["opencl -registers=32 -vector_bytes=64 -units=2", "c -units=2"])
def test_quotients_and_remainders_are_those_of_numpy(dtype, target):
    a, given = tir.placeholder((4096,), dtype, name="a"), numbers(dtype)
    of = divisors(dtype)
    made = tir.compute((4096,), lambda i: tuple(x for c in of for x in (a[i] // c, a[i] % c)), name="y")
    s = tir.auto_schedule(made, target)
    assert "not in vectors" not in s.source()
    got = s.build("c:0" if target.startswith("c ") else "opencl:pocl")(given)
    for n, c in enumerate(of):
        assert np.array_equal(got[2 * n], given // np.array(c, dtype)), (dtype, c)
        assert np.array_equal(got[2 * n + 1], given % np.array(c, dtype)), (dtype, c)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8"])
def test_they_are_proved(dtype):
    a = tir.placeholder((64,), dtype, name="a")
    s = tir.auto_schedule(tir.compute((64,), lambda i: a[i] // 3 + a[i] % 8, name="y"), "c -units=2")
    assert "not in vectors" not in s.source() and s.check() and s.check("emulate")


def test_what_is_divided_by_a_constant_may_be_computed_where_it_is_not_chosen():
    a, m = tir.placeholder((64,), "int32", name="a"), tir.placeholder((64,), "int32", name="m")

    def text(by):
        made = tir.compute((64,), lambda i: tir.where(m[i] > 0, a[i] // by(i), 0), name="y")
        return tir.auto_schedule(made, "opencl -units=2").source()

    assert "not in vectors" not in text(lambda i: 6)
    assert "one side of a choice" in text(lambda i: m[i])


@pytest.mark.parametrize(("dtype", "by"), [
    ("int64", 3), ("uint64", 10), ("int32", 0), ("int32", -3), ("float32", 2), ("index", 4)
])  # fmt: skip
def test_other_divisions_stay(dtype, by):
    x = Var("x", dtype)
    assert without_division(binary("//", x, const(by, dtype))) is None


def test_powers_of_two_need_no_product():
    x = Var("x", "int64")
    assert repr(without_division(binary("//", x, const(8, "int64")))) == "<Binary x >> 3>"
    assert repr(without_division(binary("%", x, const(8, "int64")))) == "<Binary x & 7>"
