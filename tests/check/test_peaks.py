"""One element far above the rest of each row, at every place: what a maximum misses is seen where it is subtracted."""

import re
import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.outliers import with_peaks
from tensorir.interp.reference import random_arguments

compiled = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")


def rows_of(n, rows=5):
    X, k, z = tir.placeholder((rows, n), name="X"), tir.reduce_axis(n, name="k"), tir.reduce_axis(n, name="z")
    return X, k, z


def log_sum(n=40):
    X, k, z = rows_of(n)
    m = tir.compute((5,), lambda i: tir.max(X[i, k], axis=k), name="m")
    total = tir.compute((5,), lambda i: tir.sum(tir.exp(X[i, z] - m[i]), axis=z), name="l")
    return tir.compute((5,), lambda i: tir.log(total[i]) + m[i], name="o")


def first_axis(n=40):
    X, k = tir.placeholder((n, 3), name="X"), tir.reduce_axis(n, name="k")
    m = tir.compute((3,), lambda j: tir.max(X[k, j] * 0.5, axis=k), name="m")
    return tir.compute((n, 3), lambda i, j: tir.exp(X[i, j] * 0.5 - m[j]), name="o")


def online(n=40):
    X, k, _ = rows_of(n)

    def join(a, b):
        m = tir.maximum(a[0], b[0])
        return m, a[1] * tir.exp(a[0] - m) + b[1] * tir.exp(b[0] - m)

    state = tir.combiner(join, (-1e30, 0.0))
    return tir.compute((5,), lambda i: state((X[i, k], tir.cast(1, "float32")), axis=k), name="s")[1]


def place(n=40):
    X, k, _ = rows_of(n)
    return tir.compute((5,), lambda i: tir.argmax(X[i, k], axis=k), name="p")


def smallest(n=40):
    X, k, _ = rows_of(n)
    m = tir.compute((5,), lambda i: tir.min(X[i, k], axis=k), name="m")
    return tir.compute((5, n), lambda i, j: tir.exp(m[i] - X[i, j]), name="o")


@pytest.mark.parametrize("made", [log_sum, first_axis, online, place, smallest])
@pytest.mark.parametrize("n", [1, 20, 37])
def test_peaks_come_to_places_all_over_a_row(made, n):
    outputs, seen = (made(n),), set()
    runs = list(with_peaks(outputs, random_arguments(outputs, 0)))
    rows = 3 if made is first_axis else 5
    *runs, (lowest,) = runs
    assert np.unique(lowest).tolist() == [2.0**126 if made is smallest else -(2.0**126)]
    for (x,) in runs:
        x = x.T if made is first_axis else x
        high = np.abs(x) > 100
        assert (high.sum(axis=1) == 1).all() and (x[high] < 0).all() == (made is smallest)
        seen |= {int(i) for i in np.argwhere(high)[:, 1]}
    assert len(seen) == min(n, 4 * rows)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_keys_that_attention_looks_at(dtype):
    outputs = tir.ops.attention(q="1x2x40x32", k="1x2x70x32", dtype=dtype).outputs
    peaks = list(with_peaks(outputs, random_arguments(outputs, 0)))
    assert len(peaks) == 2
    for q, k, _ in peaks:
        scores = np.sort(np.einsum("bhid,bhjd->bhij", q.astype("f4"), k.astype("f4")), axis=-1) / 32**0.5
        assert (scores[..., -1] - scores[..., -2] > 200).all()


def test_nothing_where_no_maximum_is_subtracted():
    for outputs in (tir.ops.matmul(m=8, n=8, k=8).outputs, tir.ops.layer_norm(x="4x32").outputs):
        assert not list(with_peaks(outputs, random_arguments(outputs, 0)))


@compiled
@pytest.mark.parametrize(("shape", "dtype", "old", "new"), [
    ("37x133", "float32", "softmax_max_part[0], 16)", "softmax_max_part[0], 8)"),
    ("9x70", "float16", "softmax_max_part[0], 16)", "softmax_max_part[0], 16, 16)"),
    ("9x70", "float32", "softmax_max_part[0] = -__int_as_float(0x7f800000)", "softmax_max_part[0] = -1e30f"),
    ("2x64", "float32", "softmax_max_part[0], 2)", "softmax_max_part[0], 1)"),
])  # fmt: skip
def test_maxima_that_miss_lanes(shape, dtype, old, new):
    s = tir.ops.softmax(x=shape, dtype=dtype).schedule(target="cuda -arch=sm_80")
    head, body = re.split(r"(?=extern \"C\")", s.emitted().text, maxsplit=1)
    assert old in body
    assert s.with_source(head + body).check("emulate")
    assert not s.with_source(head + body.replace(old, new, 1)).check("emulate")
