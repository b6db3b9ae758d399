"""Gathers at places that are computed from data: the places are vectors, whose lanes pick elements."""

import numpy as np
import pytest

import tensorir as tir

TARGETS = [("c -registers=16 -vector_bytes=32 -units=2", "c:0"),
           ("opencl -registers=32 -vector_bytes=64 -units=2", "opencl:pocl")]  # fmt: skip


def curve(n, size=64):
    """A table read at a place between whole numbers, as of curves and gradients of colours."""
    x, t = tir.placeholder((n,), name="x"), tir.placeholder((size,), name="t")

    def cell(i):
        at = tir.minimum(tir.maximum(tir.cast(x[i] * 4.0 + 0.5, "int32"), 0), size - 2)
        return t[at] + t[at + 1]

    return tir.compute((n,), cell, name="y")


@pytest.mark.parametrize(("target", "device"), TARGETS)
@pytest.mark.parametrize("n", [1000, 37])
def test_places_are_computed_in_vectors(target, device, n):
    s = tir.auto_schedule(curve(n), target)
    assert s.source().count("4.0f") <= 2 and s.check()
    x = np.linspace(-3, 20, n, dtype="float32")
    t = np.arange(64, dtype="float32") ** 2
    at = np.clip((x * np.float32(4) + np.float32(0.5)).astype("int32"), 0, 62)
    assert np.array_equal(s.build(device)(x, t), t[at] + t[at + 1])


@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_lanes_whose_places_no_vector_has_stay(target, device):
    x, t = tir.placeholder((300,), "int64", name="x"), tir.placeholder((64,), name="t")
    at = lambda i: tir.cast(tir.minimum(tir.maximum(x[i] // 3, 0), 63), "int32")  # noqa: E731
    s = tir.auto_schedule(tir.compute((300,), lambda i: t[at(i)] * 2.0, name="y"), target)
    given, table = np.arange(300) - 40, np.arange(64, dtype="float32")
    assert np.array_equal(s.build(device)(given, table), table[np.clip(given // 3, 0, 63)] * 2)


@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_nibbles_of_bytes_are_in_vectors(target, device):
    b = tir.placeholder((40, 50), "uint8", name="b")
    half = lambda j: tir.cast(j % 2 * 4, "uint8")  # noqa: E731
    y = tir.compute((40, 100), lambda i, j: tir.cast((b[i, j // 2] >> half(j)) & 15, "float32") - 8.0, name="y")
    s = tir.auto_schedule(y, target)
    assert not s.expected.notes and "not in vectors" not in s.source() and s.check()
    given = np.random.default_rng(0).integers(0, 256, (40, 50)).astype("uint8")
    want = np.stack([given & 15, given >> 4], -1).reshape(40, 100).astype("float32") - 8
    assert np.array_equal(s.build(device)(given), want)


@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_vectors_shift_by_counts_that_have_names(target, device):
    a = tir.placeholder((300,), "int32", name="a")

    def cell(i):
        count = (a[i] >> 1) & 3
        return tir.where(count > 0, 1 << count, a[i] >> count)

    s = tir.auto_schedule(tir.compute((300,), cell, name="y"), target)
    assert "not in vectors" not in s.source() and s.check()
    x = np.arange(-150, 150, dtype="int32")
    count = (x >> 1) & 3
    assert np.array_equal(s.build(device)(x), np.where(count > 0, 1 << count, x >> count))


@pytest.mark.parametrize(("target", "device"), TARGETS)
def test_copies_of_steps_have_names_of_their_own(target, device):
    x, p, r = (
        tir.placeholder((16, 6), name="x"),
        tir.placeholder((16,), "int32", name="p"),
        tir.reduce_axis(6, name="r"),
    )
    c = tir.compute((16, 6), lambda i, j: tir.where(p[i] == j, -9.0, x[i, j]), name="c")
    s = tir.Schedule(tir.compute((16,), lambda i: tir.argmax(c[i, r], axis=r), name="a"), target)
    s.compute_inline("c").split("a.i", [None, 8])
    s.reorder("a.i.0", "a.r", "a.i.1").unroll("a.r").vectorize("a.i.1")
    values = np.random.default_rng(0).permutation(96).reshape(16, 6).astype("float32")
    largest = values.argmax(1).astype("int32")
    left = values.copy()
    left[np.arange(16), largest] = -9
    assert np.array_equal(s.build(device)(p=largest, x=values), left.argmax(1))
