"""Rows whose elements are exchanged by bits of their places (sorting networks, transforms): one kernel, in vectors."""

import numpy as np
import pytest

import tensorir as tir

TARGETS = ("c", "opencl", "cuda -arch=sm_80", "cuda -arch=sm_90a")


def bitonic(rows, n, dtype="float32"):
    """Rows sorted by a bitonic network."""
    y, k = tir.placeholder((rows, n), dtype, name="x"), 2
    while k <= n:
        j = k // 2
        while j:

            def body(b, i, y=y, j=j, k=k):
                low, high = tir.minimum(y[b, i], y[b, i ^ j]), tir.maximum(y[b, i], y[b, i ^ j])
                return tir.where(((i & k) == 0) == ((i ^ j) > i), low, high)

            y, j = tir.compute((rows, n), body, name=f"s{k}_{j}"), j // 2
        k *= 2
    return y


def walsh(rows, n):
    """Walsh-Hadamard transform of rows: sums and differences of elements whose places differ in one bit."""
    y, j = tir.placeholder((rows, n), name="x"), 1
    while j < n:
        y = tir.compute(
            (rows, n),
            lambda b, i, y=y, j=j: tir.where((i & j) == 0, y[b, i] + y[b, i | j], y[b, i ^ j] - y[b, i]),
            name=f"w{j}",
        )
        j *= 2
    return y


def hadamard(n):
    h = np.ones((1, 1), "float32")
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "n"), [(64, 256), (5, 64)])
def test_one_kernel_right_and_in_vectors(rows, n, target):
    for made in (bitonic, walsh):
        s = tir.auto_schedule(made(rows, n), target)
        assert len(s.emitted().kernels) == 1
        assert not [note for note in s.expected.notes if "not in vectors" in note]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "n"), [(7, 32), (1, 8), (3, 2)])
def test_right(rows, n, target):
    for made in (bitonic, walsh):
        assert tir.auto_schedule(made(rows, n), target).check()


@pytest.mark.parametrize(("target", "device"), [("c", "c:0"), ("opencl", "opencl:pocl")])
@pytest.mark.parametrize(("rows", "n"), [(64, 256), (5, 64), (3, 4)])
def test_what_runs_is_the_declaration(rows, n, target, device):
    x = np.random.default_rng(n).integers(-99, 99, (rows, n)).astype("float32")
    assert np.array_equal(tir.auto_schedule(bitonic(rows, n), target).build(device)(x), np.sort(x, axis=1))
    assert np.array_equal(tir.auto_schedule(walsh(rows, n), target).build(device)(x), x @ hadamard(n))


@pytest.mark.parametrize("dtype", ["int32", "float64", "int16", "uint8"])
def test_other_types(dtype):
    x = np.random.default_rng(1).integers(0, 99, (9, 64)).astype(dtype)
    s = tir.auto_schedule(bitonic(9, 64, dtype), "c")
    assert s.check() and np.array_equal(s.build("c:0")(x), np.sort(x, axis=1))


def test_rows_that_do_not_fit_a_block_at_once_are_few_kernels():
    s = tir.auto_schedule(bitonic(4, 1024), "cuda -arch=sm_80")
    assert len(s.emitted().kernels) <= 6
