"""Chains of stages whose results are outputs as well: still one kernel."""

import math

import numpy as np
import pytest

import tensorir as tir

TARGETS = ("c", "opencl", "cuda -arch=sm_80", "cuda -arch=sm_90a")
GPU = "cuda -arch=sm_80"


def kernels(s):
    return len(s.emitted().kernels)


def largest(rows, columns, count, dtype="float32"):
    """The places of the ``count`` largest elements of each row, by rounds, each of which leaves one out."""
    y, found = tir.placeholder((rows, columns), dtype, name="x"), []
    for t in range(count):
        k = tir.reduce_axis(columns, name=f"k{t}")
        m = tir.compute((rows,), lambda b, y=y, k=k: tir.argmax(y[b, k], axis=k), name=f"m{t}")
        found.append(m)
        y = tir.compute((rows, columns), lambda b, j, y=y, m=m: tir.where(j == m[b], -1e30, y[b, j]), name=f"y{t}")
    return found


def statistics(rows, columns, dtype="float32"):
    """A layer norm that keeps mean and variance."""
    x, k, l = (tir.placeholder((rows, columns), dtype, name="x"), *(tir.reduce_axis(columns, name=n) for n in "kl"))
    mean = tir.compute((rows,), lambda i: tir.sum(x[i, k], axis=k) / columns, name="mean")
    var = tir.compute((rows,), lambda i: tir.sum((x[i, l] - mean[i]) * (x[i, l] - mean[i]), axis=l), name="var")
    return mean, var, tir.compute((rows, columns), lambda i, j: (x[i, j] - mean[i]) * tir.rsqrt(var[i] + 1), name="y")


def exponentials(rows, columns):
    """Softmax that keeps exponentials and their sums."""
    x, k, l = (tir.placeholder((rows, columns), name="x"), *(tir.reduce_axis(columns, name=n) for n in "kl"))
    m = tir.compute((rows,), lambda i: tir.max(x[i, k], axis=k), name="m")
    e = tir.compute((rows, columns), lambda i, j: tir.exp(x[i, j] - m[i]), name="e")
    z = tir.compute((rows,), lambda i: tir.sum(e[i, l], axis=l), name="z")
    return e, z, tir.compute((rows, columns), lambda i, j: e[i, j] / z[i], name="y")


def across(rows, columns):
    """Columns without their largest elements, which are outputs as well."""
    x, k = tir.placeholder((rows, columns), name="x"), tir.reduce_axis(rows, name="k")
    m = tir.compute((columns,), lambda j: tir.max(x[k, j], axis=k), name="m")
    return m, tir.compute((rows, columns), lambda i, j: x[i, j] - m[j], name="y")


def iterated(rows, columns):
    """A map applied five times, every second result an output."""
    y, found = tir.placeholder((rows, columns), name="x"), []
    for t in range(5):
        y = tir.compute((rows, columns), lambda i, j, y=y: y[i, j] * y[i, j] + y[i, j] * 0.5 - 1, name=f"y{t}")
        found += [y] if t % 2 == 0 else []
    return found


def balanced(matrices):
    """Rows and columns of small matrices divided by their sums, twice; the first result is an output."""
    y, found = tir.placeholder((matrices, 12, 12), name="x"), []
    for t in range(2):
        k, l = tir.reduce_axis(12, name=f"k{t}"), tir.reduce_axis(12, name=f"l{t}")
        r = tir.compute((matrices, 12), lambda b, i, y=y, k=k: tir.sum(y[b, i, k], axis=k), name=f"r{t}")
        z = tir.compute((matrices, 12, 12), lambda b, i, j, y=y, r=r: y[b, i, j] / r[b, i], name=f"z{t}")
        c = tir.compute((matrices, 12), lambda b, j, z=z, l=l: tir.sum(z[b, l, j], axis=l), name=f"c{t}")
        y = tir.compute((matrices, 12, 12), lambda b, i, j, z=z, c=c: z[b, i, j] / c[b, j], name=f"y{t}")
        found.append(y)
    return found


CASES = {
    "largest": lambda n: largest(n, 100, 3),
    "statistics": lambda n: statistics(n, 67),
    "exponentials": lambda n: exponentials(n, 129),
    "across": lambda n: across(9, 4 * n),
    "iterated": lambda n: iterated(n, 40),
    "balanced": balanced,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_right_in_several_shapes(name, target):
    for n in (1, 13, 64):
        assert tir.auto_schedule(CASES[name](n), target).check(), n


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [n for n in CASES if n != "balanced"])
def test_one_kernel(name, target):
    assert kernels(tir.auto_schedule(CASES[name](64), target)) == 1


def test_small_matrices_are_one_kernel_on_processors():
    assert kernels(tir.auto_schedule(balanced(64), "c")) == 1


@pytest.mark.parametrize("target", ["c", GPU])
def test_six_rounds_over_a_thousand(target):
    assert kernels(tir.auto_schedule(largest(64, 1000, 6), target)) == 1


@pytest.mark.parametrize(("target", "device"), [("c", "c:0"), ("opencl", "opencl:pocl")])
def test_what_runs_has_every_output(target, device):
    draw = np.random.default_rng(3)
    x = draw.permuted(np.tile(np.arange(100, dtype="float32"), (13, 1)), axis=1)
    order = np.argsort(-x, axis=1)
    found = tir.auto_schedule(largest(13, 100, 4), target).build(device)(x)
    assert all(np.array_equal(m, order[:, t]) for t, m in enumerate(found))
    x = draw.integers(-4, 5, (9, 52)).astype("float32")
    m, y = tir.auto_schedule(across(9, 52), target).build(device)(x)
    assert np.array_equal(m, x.max(0)) and np.array_equal(y, x - x.max(0))
    x = draw.integers(-8, 9, (8, 67)).astype("float32")
    mean, var, y = tir.auto_schedule(statistics(8, 67), target).build(device)(x)
    np.testing.assert_allclose(mean, x.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, x.var(1) * 67, rtol=1e-4)
    np.testing.assert_allclose(y, (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1) * 67 + 1)[:, None], atol=1e-5)


def test_an_output_of_which_a_part_is_read_stays_a_kernel_of_its_own():
    x, k = tir.placeholder((20, 9), name="x"), tir.reduce_axis(9, name="k")
    m = tir.compute((20,), lambda i: tir.max(x[i, k], axis=k), name="m")
    y = tir.compute((12, 9), lambda i, j: x[i, j] - m[i], name="y")
    for target in ("c", GPU):
        s = tir.auto_schedule((m, y), target)
        assert kernels(s) == 2 and s.check()


def test_half_precision_and_rows_counted_at_launch():
    assert tir.auto_schedule(statistics(13, 64, "float16"), GPU).check()
    n = tir.dim("n", 1, 200)
    x, k = tir.placeholder((n, 50), name="x"), tir.reduce_axis(50, name="k")
    m = tir.compute((n,), lambda i: tir.max(x[i, k], axis=k), name="m")
    y = tir.compute((n, 50), lambda i, j: x[i, j] - m[i], name="y")
    for target in ("c", GPU):
        s = tir.auto_schedule((m, y), target)
        assert kernels(s) == 1 and s.check()


def fft(rows, n):
    """Stockham's transform of radix 2: pairs (real, imaginary), log2(n) stages."""
    z = tir.placeholder((rows, n), name="re"), tir.placeholder((rows, n), name="im")
    for t in range(n.bit_length() - 1):
        half, m = n >> (t + 1), 1 << t

        def cell(b, i, z=z, half=half, m=m):
            j, k = i // (2 * m), i % m
            (ar, ai), (cr, ci) = ((z[0][b, at], z[1][b, at]) for at in (j * m + k, j * m + k + half * m))
            angle = tir.cast(j, "float32") * (-math.pi / half)
            wr, wi, dr, di, low = tir.cos(angle), tir.sin(angle), ar - cr, ai - ci, i // m % 2 == 0
            return tir.where(low, ar + cr, dr * wr - di * wi), tir.where(low, ai + ci, dr * wi + di * wr)

        z = tir.compute((rows, n), cell, name=f"z{t}")
    return z


@pytest.mark.parametrize("units", [2, 16])
def test_a_fourier_transform_is_one_kernel_beside_its_tables(units):
    s = tir.auto_schedule(fft(512, 256), f"c -registers=16 -vector_bytes=32 -units={units}")
    kernels = [k.stages[0].stage.name for k in s.expected._model.kernels]
    assert len([name for name in kernels if "table" not in name]) == 1
    s = tir.auto_schedule(fft(8, 16), f"c -units={units}")
    x, y = np.random.default_rng(0).standard_normal((2, 8, 16)).astype("float32")
    re, im = s.build("c:0")(x, y)
    np.testing.assert_allclose(re + 1j * im, np.fft.fft(x + 1j * y), rtol=1e-4, atol=1e-4)
