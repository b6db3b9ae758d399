"""Maxima and minima over windows by ranges of 2**k elements."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.algorithms.ranges import ranges_of
from tensorir.errors import ScheduleError


def disc(r, shape, fn=tir.max, dtype="float32"):
    """The largest or smallest element in a disc of radius ``r``."""
    c, h, w = shape
    x = tir.placeholder((c, h + 2 * r, w + 2 * r), dtype, name="x")
    u, v = tir.reduce_axis(2 * r + 1, name="u"), tir.reduce_axis(2 * r + 1, name="v")
    inside = (u - r) * (u - r) + (v - r) * (v - r) <= r * r
    return tir.compute(shape, lambda k, i, j: fn(x[k, i + u, j + v], axis=(u, v), where=inside), name="y")


def by_numpy(x, r, fn):
    h, w = x.shape[1] - 2 * r, x.shape[2] - 2 * r
    found = [
        x[:, u : u + h, v : v + w]
        for u in range(2 * r + 1) for v in range(2 * r + 1) if (u - r) ** 2 + (v - r) ** 2 <= r * r
    ]  # fmt: skip
    return fn.reduce(found)


def row(n, length, step=1):
    x, k = tir.placeholder((n * step + length,), name="x"), tir.reduce_axis(length, name="k")
    return tir.compute((n,), lambda i: tir.max(x[i * step + k], axis=k), name="y")


@pytest.mark.parametrize("target", ["c", "cuda -arch=sm_80"])
@pytest.mark.parametrize("made", [lambda: disc(3, (2, 9, 7)), lambda: disc(2, (1, 4, 6), tir.min, "int8"),
                                  lambda: row(10, 13), lambda: row(6, 8, 3)])  # fmt: skip
def test_they_are_proved(made, target):
    s = tir.Schedule(made(), target).redeclare("ranges")
    assert "y_2" in s.index.stages and s.check()


def test_lengths_and_levels():
    r = ranges_of(disc(13, (1, 20, 20)).op)
    assert (len(r.found), r.levels, r.terms) == (27, 4, 529)
    assert ranges_of(row(100, 33).op).levels == 5


@pytest.mark.parametrize(("target", "device"), [("c", "c:0"), ("opencl", "opencl:pocl")])
@pytest.mark.parametrize(("fn", "np_fn"), [(tir.max, np.maximum), (tir.min, np.minimum)])
def test_large_windows_have_them_by_default_with_the_same_numbers(fn, np_fn, target, device):
    s = tir.auto_schedule(disc(6, (2, 70, 130), fn), target)
    assert "s.redeclare('ranges', of='y')" in str(s.trace) and len(s.emitted().kernels) == 1
    x = np.random.default_rng(0).integers(-99, 99, (2, 82, 142)).astype("float32") * np.float32(0.5)
    x[:, ::9, ::5], x[0, 40, 40] = -0.0, np.nan
    got, want = s.build(device)(x), by_numpy(x, 6, np_fn)
    np.testing.assert_array_equal(got, want)


def test_what_has_no_ranges():
    x, k = tir.placeholder((64,), name="x"), tir.reduce_axis(16, name="k")
    made = {
        "gaps": lambda i: tir.max(x[i + k], axis=k, where=k % 2 == 0),
        "own": lambda i: tir.max(x[i + k], axis=k, where=k < i),
        "step": lambda i: tir.max(x[i + 3 * k], axis=k),
        "sum": lambda i: tir.sum(x[i + k], axis=k),
    }
    for name, cell in made.items():
        y = tir.compute((8,), cell, name=name)
        with pytest.raises(ScheduleError) as e:
            tir.Schedule(y).redeclare("ranges")
        assert e.value.code == "ranges.stage"


def test_short_windows_and_gpus_have_none_by_default():
    for y, target in ((row(1000, 3), "c"), (disc(6, (2, 70, 130)), "cuda -arch=sm_80")):
        assert "ranges" not in str(tir.auto_schedule(y, target).trace)
