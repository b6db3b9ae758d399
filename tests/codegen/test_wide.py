"""Vectors of 64 bytes on CPUs: what is printed for them, and that it computes the same."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.interp.reference import random_arguments
from tensorir.runtime.device import open_device

pytestmark = pytest.mark.usefixtures("unoptimised")

CPU, WIDE = "opencl -kind=cpu", "opencl -registers=32 -vector_bytes=64"


def vectors(make, lanes, target, dtype="float32", size=64):
    """``C[i] = make(A[i])`` in vectors, a few of them a block."""
    A = tir.placeholder((size,), dtype, name="A")
    C = tir.compute((size,), lambda i: make(A[i]), name="C")
    s = tir.Schedule(C, target)
    block, _, lane = s.split("C.i", [None, 2, lanes])
    s.bind(block, "block.x").vectorize(lane)
    return s


@pytest.mark.parametrize("target", [CPU, WIDE])
def test_a_kernel_with_wide_vectors_is_compiled_for_them(target):
    text = vectors(lambda a: a * 2 + 1, 16, target).source()
    assert "#ifdef TENSORIR_AVX512" in text
    assert "min_vector_width(512)" in text  # else compilers take halves for Intel's processors
    assert (
        "WIDE void C_kernel_body(__global const float *restrict A, __global float *restrict C, const long i_0)" in text
    )
    assert "C_kernel_body(A, C, i_0);" in text
    assert "static" not in text  # PoCL gives such a function one block's memory for all


def test_others_are_not():
    assert "WIDE" not in vectors(lambda a: a * 2 + 1, 8, WIDE).source()


def test_nor_one_with_several_threads_or_an_instruction():
    s = vectors(lambda a: a * 2, 16, WIDE)
    s.bind("C.i.1", "thread.x")
    assert "WIDE" not in s.source()


def test_calls_take_halves_on_any_cpu():
    for threads, start in ((False, "WIDE_INLINE float16 tir_wide"), (True, "inline float16 tir")):
        s = vectors(tir.exp, 16, f"{CPU} -precise_math=1")
        text = (s.bind("C.i.1", "thread.x") if threads else s).source()
        assert f"{start}_exp_float16(float16 a) {{ return (float16)(exp(a.lo), exp(a.hi)); }}" in text
    assert "tir_" not in vectors(tir.exp, 8, f"{WIDE} -precise_math=1").source()


FUNCTIONS = {
    "relu": lambda a: tir.maximum(a, 0),
    "exp": tir.exp,
    "tanh": tir.tanh,
    "sigmoid": lambda a: 1 / (1 + tir.exp(-a)),
    "power": lambda a: tir.pow(tir.abs(a), 1.5),
    "clamp": lambda a: tir.minimum(tir.maximum(a, -2), 2),
    "to integers and back": lambda a: tir.cast(tir.cast(a, "int32"), "float32"),
    "to doubles and back": lambda a: tir.cast(tir.cast(a, "float64") * 3, "float32"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("lanes", "target"), [(8, WIDE), (16, WIDE), (16, CPU)])
@pytest.mark.parametrize("threads", [False, True])
def test_wide_vectors_compute_what_narrow_ones_do(name, lanes, target, threads):
    made = [vectors(FUNCTIONS[name], n, t) for n, t in ((2, CPU), (lanes, target))]
    if threads:
        made[1].bind("C.i.1", "thread.x")
    arrays = random_arguments(made[0].outputs, 5)
    narrow, wide = (np.asarray(s.build("opencl:pocl")(*arrays)) for s in made)
    np.testing.assert_allclose(wide, narrow, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "lanes"), [("int32", 16), ("int64", 8), ("uint8", 16), ("int16", 16), ("int8", 8)])
@pytest.mark.parametrize("target", [CPU, WIDE])
@pytest.mark.parametrize("threads", [False, True])
def test_integers_in_wide_vectors(dtype, lanes, target, threads):
    s = vectors(lambda a: tir.maximum(a, 3) * 5 - tir.minimum(a, 2) + tir.abs(a), lanes, target, dtype)
    if threads:
        s.bind("C.i.1", "thread.x")
    arrays = random_arguments(s.outputs, 2)
    a = arrays[0]
    want = np.maximum(a, 3) * 5 - np.minimum(a, 2) + np.abs(a)
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(*arrays)), want)


def test_the_text_is_right_without_the_macro():
    device = open_device("opencl:pocl")
    s = vectors(lambda a: tir.exp(a) + tir.maximum(a, 0), 16, WIDE)
    arrays = random_arguments(s.outputs, 5)
    with_it = np.asarray(s.build(device)(*arrays))
    plain = s.source().replace("TENSORIR_AVX512", "NOT_DEFINED")
    assert np.allclose(np.asarray(s.with_source(plain).build(device)(*arrays)), with_it, rtol=1e-6)


def test_wide_and_narrow_kernels_in_one_program():
    A = tir.placeholder((64,), name="A")
    B = tir.compute((64,), lambda i: tir.exp(A[i]), name="B")
    C = tir.compute((64,), lambda i: tir.exp(-B[i]) * 2, name="C")
    s = tir.Schedule(C, WIDE)
    for name in ("B", "C"):
        outer, lane = s.split(f"{name}.i", [None, 16])
        s.bind(outer, "block.x" if name == "B" else "thread.x").vectorize(lane)
    text = s.source()
    assert "tir_wide_exp_float16(" in text and "tir_exp_float16(" in text
    a = np.linspace(-2, 2, 64, dtype="float32")
    np.testing.assert_allclose(np.asarray(s.build("opencl:pocl")(a)), 2 * np.exp(-np.exp(a)), rtol=1e-5)


def test_names_that_the_text_takes_are_made_different():
    for name in ("WIDE", "WIDE_INLINE", "TENSORIR_AVX512", "C_kernel_body", "tir_wide_exp_float16"):
        A = tir.placeholder((64,), name=name)
        C = tir.compute((64,), lambda i, A=A: tir.exp(A[i]), name="C")
        s = tir.Schedule(C, WIDE)
        outer, lane = s.split("C.i", [None, 16])
        s.bind(outer, "block.x").vectorize(lane)
        a = np.linspace(-2, 2, 64, dtype="float32")
        np.testing.assert_allclose(np.asarray(s.build("opencl:pocl")(a)), np.exp(a), rtol=1e-5)


def test_blocks_have_block_memory_of_their_own():
    n, m = 64, 4096
    A = tir.placeholder((n, m), name="A")
    B = tir.compute((n, m), lambda i, j: A[i, j] * 2, name="B", axes=("i", "j"))
    C = tir.compute((n, m), lambda i, j: B[i, m - 1 - j] + 1, name="C", axes=("i", "j"))
    s = tir.Schedule(C, WIDE)
    s.bind("C.i", "block.x").set_scope("B", "shared").compute_at("B", "C.i")
    s.vectorize(s.split("B.j", [None, 16])[1])
    a = np.random.default_rng(0).integers(-9, 9, (n, m)).astype("float32")
    f = s.build("opencl:pocl")
    for _ in range(5):
        assert np.array_equal(np.asarray(f(a)), a[:, ::-1] * 2 + 1)


@pytest.mark.parametrize("dtype", ["int32", "int16", "uint8", "int64"])
def test_shifts_by_constants_are_operators_of_vectors(dtype):
    x, n = (tir.placeholder((64,), dtype, name=c) for c in "xn")
    cell = lambda i: ((x[i] >> 3) | (x[i] << 2)) ^ (x[i] >> (n[i] & 7))  # noqa: E731
    s = tir.Schedule(tir.compute((64,), cell, name="y"))
    s.vectorize(s.split("y.i", [None, 16])[1])
    a, b = (np.arange(64) * 3 - 20).astype(dtype), np.arange(64).astype(dtype)
    assert "tir_sh" not in s.emitted().text
    np.testing.assert_array_equal(s.build()(a, b), ((a >> 3) | (a << 2)) ^ (a >> (b & 7)))
