"""Windows on GPUs: sums over windows of one array, in tiles of threads, are right whatever is summed up and however."""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import random_arguments

TARGET = "cuda -arch=sm_80"
NAME = "gpu_tile_windows"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def pooled(*shape, dtype="float32", kernel=3, stride=2, pad=1):
    return tir.nn.max_pool2d(tir.placeholder(shape, dtype, name="x"), kernel, stride=stride, padding=pad)


def line(n, c, w, taps=5):
    x, f, t = (
        tir.placeholder((n, c, w), name="x"),
        tir.placeholder((c, taps), name="f"),
        tir.reduce_axis(taps, name="t"),
    )
    return tir.compute((n, c, w - taps + 1), lambda b, j, i: tir.sum(x[b, j, i + t] * f[j, t], axis=t), name="Y")


def weighed(h, w):
    """Each cell has weights of its own, which no window moves over."""
    x, m = tir.placeholder((h + 2, w + 2), name="x"), tir.placeholder((3, 3, h, w), name="m")
    a, b = tir.reduce_axis(3, name="a"), tir.reduce_axis(3, name="b")
    return tir.compute((h, w), lambda i, j: tir.sum(x[i + a, j + b] * m[a, b, i, j], axis=(a, b)), name="Y")


def finished(h, w):
    y = weighed(h, w)
    return tir.compute((h, w), lambda i, j: tir.maximum(y[i, j], 0) + 1, name="Z")


DEFINITIONS = {
    "pool": pooled(2, 3, 11, 14),
    "pool of 16 bits": pooled(1, 5, 9, 9, dtype="float16"),
    "line": line(2, 3, 37),
    "weights of their own": weighed(9, 21),
    "epilogue": finished(9, 10),
}


@emulated
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_any_configuration_is_right(data):
    y = DEFINITIONS[data.draw(st.sampled_from(sorted(DEFINITIONS)))]
    template, s = tir.auto(y, TARGET)[NAME], tir.Schedule(y, TARGET)
    space = template.space_for(s.target)
    config = space.config(data.draw(st.integers(0, len(space.legal) - 1)))
    template.function(s, config)
    assert s.check("emulate"), config


@pytest.mark.parametrize("name", DEFINITIONS)
def test_it_is_what_a_search_starts_with(name):
    s = tir.auto_schedule(DEFINITIONS[name], TARGET)
    assert next(iter(tir.auto(DEFINITIONS[name], TARGET))) == NAME and s.check()
    assert len(s.emitted().kernels) == 1


def test_elements_are_read_once_or_twice():
    """A tile of cells copies what its windows cover, not what each of them does."""
    source = tir.auto_schedule(pooled(1, 4, 32, 32, stride=1), TARGET).source()
    assert "__shared__" in source and source.count("x[") == 1


def test_sums_without_windows_are_left_to_other_rules():
    A, k = tir.placeholder((40, 50), name="A"), tir.reduce_axis(40, name="k")
    for y in (
        tir.compute((50,), lambda j: tir.sum(A[k, j], axis=k), name="Y"),
        pooled(1, 2, 30, 30, kernel=8),
        tir.compute((30, 40), lambda i, j: A[i, j] + A[i + 1, j], name="Y"),
    ):
        assert NAME not in tir.auto(y, TARGET)


@emulated
def test_neighbours_of_a_thread_are_read_and_written_together():
    """Two cells of a row in a thread: words of its own that are apart would be in every second bank, and half of a
    sector would be written at a time.
    """
    y = pooled(1, 4, 32, 32, stride=1)
    template, s = tir.auto(y, TARGET)[NAME], tir.Schedule(y, TARGET)
    template.function(s, dict(t0=1, t1=8, t2=16, c0=1, c1=2, c2=2))
    run = emulate(s.emitted(), random_arguments(s.outputs, 0))
    for kind in ("shared read", "global write"):
        units, ideal = (sum(getattr(t, x) for t in run.traffic if t.what == kind) for x in ("units", "ideal"))
        assert units == ideal > 0, kind


def test_cells_that_are_made_for_nothing_cost_time():
    y, tile = line(512, 64, 66, taps=3), dict(t0=1, t1=2, c0=1, c1=1)
    expected = tir.auto(y, TARGET)[NAME].space_for(tir.Target.parse(TARGET)).expected_s
    assert expected({**tile, "t2": 32, "c2": 2}) < expected({**tile, "t2": 32, "c2": 4})
