"""Printed text has the bits of its lowered program; faults that no exact arithmetic sees are told."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorir as tir
from tensorir.api import schedule as api
from tensorir.check import same_bits
from tensorir.interp import tensor_cores

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import equal_bits

SEED = 20261129


def sums():
    x, y = tir.placeholder((37,), name="x"), tir.placeholder((37,), name="y")
    return tir.compute((37,), lambda i: x[i] * y[i] + x[i], name="z")


def logistic():
    x = tir.placeholder((37,), name="x")
    return tir.compute((37,), lambda i: 1 / (1 + tir.exp(x[i])), name="z")


FAULTS = [
    (sums, "x[i] * y[i] + x[i]", "fmaf(x[i], y[i], x[i])"),
    (sums, "x[i] * y[i] + x[i]", "x[i] * (y[i] + 1.0f)"),
    (logistic, "__expf(x[i])", "expf(x[i])"),
    (logistic, "1.0f / (1.0f + __expf(x[i]))", "__expf(-x[i]) / (__expf(-x[i]) + 1.0f)"),
]


@pytest.mark.parametrize("make, right, wrong", FAULTS)
def test_a_fault_of_printing_that_only_bits_show(make, right, wrong, monkeypatch):
    printed = api.emit_source

    def planted(s, target):
        source = printed(s, target)
        assert right in source.text, source.text
        return replace(source, text=source.text.replace(right, wrong))

    s = tir.Schedule(make(), target="cuda").bind("z.i", "thread.x")
    assert s.check(level="emulate", shapes=[{}])
    monkeypatch.setattr(api, "emit_source", planted)
    verdict = s.check(level="emulate", shapes=[{}], seed=5)
    assert [p.code for p in verdict.problems] == ["check.other-bits"]
    said = verdict.problems[0].message
    assert "z[" in said and "0x" in said and "seed 5" in said


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("arch", equal_bits.ARCHITECTURES)
def test_drawn_definitions(number, arch):
    assert equal_bits.judged(SEED, number, arch).found == "equal"


@pytest.mark.parametrize("kind, sums", [("f16", "float32"), ("bf16", "float32"), ("e4m3", "float32"), ("s8", "int32")])
def test_the_verdict_says_whose_bits(kind, sums):
    x = tir.placeholder((64, 64), {"f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3", "s8": "int8"}[kind])
    y, r = tir.placeholder((64, 64), x.dtype), tir.reduce_axis(64)
    made = tir.compute((64, 64), lambda i, j: tir.sum(tir.cast(x[i, r], sums) * tir.cast(y[j, r], sums), axis=r))
    verdict = tir.auto_schedule(made, target="cuda -arch=sm_90a").check(level="emulate", shapes=[{}])
    assert verdict
    assert "bit by bit" in str(verdict)


def test_what_is_the_same():
    a = np.array([0.0, -0.0, np.nan, 1.0, np.inf], np.float32)
    b = np.array([0.0, 0.0, -np.nan, np.nextafter(np.float32(1), np.float32(2)), np.inf], np.float32)
    assert same_bits.apart(a, b).tolist() == [False, True, False, True, False]


def test_tf32_is_rounded_in_three_ways():
    x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-12, np.inf, np.nan], np.float32)
    one, two = 1 + 2.0**-10, 1 + 2.0**-9
    assert tensor_cores.nearest(x)[:3].tolist() == [one, two, 1]
    assert tensor_cores.nearest_even(x)[:3].tolist() == [1, two, 1]
    assert tensor_cores.cut(x)[:3].tolist() == [1, one, 1]
    assert np.isinf(tensor_cores.nearest(x)[3]) and np.isnan(tensor_cores.cut(x)[4])


@pytest.mark.parametrize("target", ["opencl", "c", "cuda"])
def test_functions_are_those_of_the_cuda_text_whatever_the_target(target):
    x = tir.placeholder((5, 7), name="x")
    out = tir.compute((5, 7), lambda i, j: tir.exp(x[i, j]) + tir.tanh(x[i, j]), name="y")
    assert (found := tir.Schedule(out, target).check("emulate")), found


def threads_of(out):
    s = tir.Schedule(out, "cuda")
    return s.bind(s.split(f"{out.name}.i", [1, 8])[1], "thread.x")


def test_bits_that_nothing_determines_are_not_claimed():
    x = tir.placeholder((8,), name="x")
    beyond = tir.compute((8,), lambda i: tir.cast(tir.maximum(x[i], 3e9), "int32"), name="y")
    within = tir.compute((8,), lambda i: tir.cast(tir.minimum(tir.maximum(x[i], 0.0), 9.0), "int32"), name="y")
    assert "not compared" in str(found := threads_of(beyond).check("emulate")) and found
    assert "bit by bit" in str(found := threads_of(within).check("emulate")) and found


def test_atomic_sums_have_no_bits_to_compare():
    x, k = tir.placeholder((64,), name="x"), tir.reduce_axis(64, name="k")
    s = tir.Schedule(tir.compute((1,), lambda i: tir.sum(x[k], axis=k), name="y"), "cuda")
    s.decompose_reduction("y", "y.i")
    s.atomic("y")
    s.bind(s.split("y.k", [None, 8])[1], "thread.x")
    assert "not compared" in str(found := s.check("emulate")) and found
