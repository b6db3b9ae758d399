"""Floats of 8 bits: every one of them, and every way to round to them, against ml_dtypes."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.numbers import Numbers, numpy_dtype

KINDS = ("float8_e4m3", "float8_e5m2")
TARGETS = ["opencl", pytest.param("cuda", marks=pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"))]  # fmt: skip


def every(name):
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(name))


def to_round(name):
    """All numbers, what lies half way between two, just before and just behind; too large, too small, none at all."""
    wide = every(name).astype(np.float32)
    finite = np.unique(wide[np.isfinite(wide)])
    half = (finite[1:] + finite[:-1]) / 2
    around = [np.nextafter(half, np.float32(to)) for to in (-1e9, 1e9)]
    top = finite[-1] + (finite[-1] - finite[-2]) / 2
    edges = [top, np.nextafter(top, np.float32(0)), np.nextafter(top, np.float32(1e9)), 1e9, np.inf, np.nan, 1e-30, 0]
    positive = np.concatenate([finite, half, *around, np.array(edges, np.float32)])
    return np.concatenate([positive, -positive]).astype(np.float32)


def converted(values, name, target):
    A = tir.placeholder(values.shape, "float32" if values.dtype == np.float32 else name, name="A")
    B = tir.compute(values.shape, lambda i: tir.cast(A[i], name if A.dtype == "float32" else "float32"), name="B")
    s = tir.Schedule(B, target)
    if target == "opencl":
        return s.build("opencl:pocl")(values)
    i, j = s.split("B.i", [None, 64])
    s.bind(i, "block.x").bind(j, "thread.x")
    got = emulate(s.emitted(), [values])
    assert not got.problems
    return got.outputs[0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KINDS)
def test_rounds_and_widens_as_ml_dtypes(name, target):
    values = to_round(name)
    got, want = converted(values, name, target), values.astype(numpy_dtype(name))
    assert got.dtype == want.dtype
    number = ~np.isnan(want.astype(np.float32))
    assert np.array_equal(got.view(np.uint8)[number], want.view(np.uint8)[number])
    assert np.isnan(got.astype(np.float32)[~number]).all()
    assert np.array_equal(converted(every(name), name, target), every(name).astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("name", KINDS)
def test_the_interpreter_rounds_as_well(name):
    values = to_round(name)
    want = values.astype(numpy_dtype(name)).astype(np.float32)
    assert np.array_equal(Numbers().cast(values, "float32", name), want, equal_nan=True)


def test_vectors_are_packed_in_words():
    A = tir.placeholder((64, 8), "float32", name="A")
    B = tir.compute((64, 8), lambda i, j: tir.cast(A[i, j] * 2, "float8_e4m3"), name="B")
    s = tir.Schedule(B, "cuda")
    s.bind("B.i", "thread.x").vectorize("B.j")
    assert "= tir_pack_bytes(tir_to_float8_e4m3(" in s.source()
    assert s.check("emulate")


def test_instructions_convert_where_there_are_some():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin, sass_opcodes

    A = tir.placeholder((64,), "float8_e5m2", name="A")
    B = tir.compute((64,), lambda i: tir.cast(A[i] + 1, "float8_e4m3"), name="B")
    s = tir.Schedule(B, "cuda").bind("B.i", "thread.x")
    for arch, there in (("sm_80", False), ("sm_89", True)):
        try:
            found = set(sass_opcodes(compile_cubin(s.source(), arch)))
        except tir.DeviceError:
            pytest.skip("no disassembler")
        assert {"F2FP.F16.E5M2.UNPACK_B"} & found == ({"F2FP.F16.E5M2.UNPACK_B"} if there else set())


def test_opencl_has_no_assembly():
    A = tir.placeholder((64,), "float8_e5m2", name="A")
    source = tir.Schedule(tir.compute((64,), lambda i: A[i] + 1, name="B")).source()
    assert "asm" not in source and "#if" not in source
