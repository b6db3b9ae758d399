"""Faults in edited texts of row reductions that numbers of a middling size do not show."""

import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.designed_inputs import FEWEST_RUNS, MOST_RUNS, _places, hard_inputs
from tensorir.interp.reference import random_arguments

TARGET = "cuda -arch=sm_80"
compiled = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")


def row(dtype, reduced, n=301, rows=3):
    X, k = tir.placeholder((rows, n), dtype, name="X"), tir.reduce_axis(n, name="k")
    return tir.compute((rows,), lambda i: reduced(X, i, k), name="R")


def weights(n=75):
    S, V = tir.placeholder((4, n), "float32", name="S"), tir.placeholder((n,), "float32", name="V")
    k, j = tir.reduce_axis(n, name="k"), tir.reduce_axis(n, name="j")
    m = tir.compute((4,), lambda i: tir.max(S[i, k], axis=k), name="m")
    return tir.compute((4,), lambda i: tir.sum(tir.exp(S[i, j] - m[i]) * V[j], axis=j), name="R")


ROWS = {
    "max": lambda: row("float16", lambda X, i, k: tir.max(X[i, k], axis=k)),
    "argmin": lambda: row("int32", lambda X, i, k: tir.argmin(X[i, k], axis=k)),
    "any": lambda: row("float32", lambda X, i, k: tir.any(X[i, k] > 2.5, axis=k)),
    "sum of int8": lambda: row("int8", lambda X, i, k: tir.sum(tir.cast(X[i, k], "int32"), axis=k)),
    "norm": lambda: row("float32", lambda X, i, k: tir.sum(X[i, k] * X[i, k], axis=k) + 1e-3),
    "three": lambda: row("float16", lambda X, i, k: tir.max(X[i, k], axis=k) * 3),
    "weights": weights,
}
# the kernel, what stands in its text, and what is put there
FAULTS = {
    "the last element is left out": ("max", "< 301", "< 300"),
    "the largest begins with a number": ("max", "-__int_as_float(0x7f800000)", "-65504.0f"),
    "a comparison that loses NaN": ("max", "tir_max_float(__half2float(R_t", "fmaxf(__half2float(R_t"),
    "the least begins with a number": ("argmin", "R_state0_part[0] = 2147483647", "R_state0_part[0] = 1000000000"),
    "any but for the last element": ("any", "< 301", "< 300"),
    "at the constant": ("any", "2.5f <", "2.5f <="),
    "a sum in 16 bits": ("sum of int8", "R[i] = R_part", "R[i] = (short)R_part"),
    "cut, not rounded": ("three", "R[i] = __float2half_rn(", "R[i] = __float2half_rz("),
    "small terms": ("weights", "__expf(S[min(i_0_1 * 4 + i_1, 3) * 75 + j] - m_register[i_1])",
                    "fmaxf(__expf(S[min(i_0_1 * 4 + i_1, 3) * 75 + j] - m_register[i_1]) - 6e-6f, 0.0f)"),
    "another constant": ("norm", "0.001f", "0.0011f"),
}  # fmt: skip


@compiled
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_middling_numbers_do_not_show_is_seen(fault):
    name, old, new = FAULTS[fault]
    s = tir.auto_schedule(ROWS[name](), target=TARGET)
    text = s.source()
    assert old in text
    verdict = s.with_source(text.replace(old, new)).check("emulate")
    assert not verdict
    assert {p.code for p in verdict.problems} == {"check.wrong-result"}


@compiled
def test_another_order_of_a_right_sum_is_right():
    s = tir.auto_schedule(ROWS["norm"](), target=TARGET)
    text = s.source()
    other = text.replace("R_sum[0] + 0.001f", "0.001f + R_sum[0]")
    assert other != text
    assert s.with_source(other).check("emulate")


@pytest.mark.parametrize("name", ROWS)
def test_inputs_keep_their_types_and_are_few(name):
    outputs = (ROWS[name](),)
    few = random_arguments(outputs, 0)
    made = list(hard_inputs(outputs, few, [True] * len(few), 0))
    assert FEWEST_RUNS < len(made) <= MOST_RUNS
    assert all(
        x.dtype == y.dtype and x.shape == y.shape for arrays, _ in made for x, y in zip(arrays, few, strict=True)
    )
    assert len({about for _, about in made}) > 20 if few[0].dtype.kind == "f" else 3


def test_places_are_the_ends_of_rows_and_tiles_and_some_of_every_part():
    places = _places(1000, np.random.default_rng(0))
    assert {999, 0, 998, 1, 31, 32, 991, 992, 511, 512} <= set(places)
    assert len(set(places)) == len(places) and max(np.diff(sorted(places))) < 40


def test_both_sides_of_each_tile_have_their_turn():
    found = _places(5000, np.random.default_rng(0))
    for size in (1 << k for k in range(1, 12)):
        whole = 5000 - 5000 % size
        assert {size - 1, size, whole - 1, min(whole, 4999)} <= {*found[: 4 * 12]}
