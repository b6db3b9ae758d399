"""Windows on GPUs: sums over windows of one array, in tiles of threads, are right whatever is summed up and however."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.automatic.rules.banks import least, passes
from tensorir.check.emulate import emulate
from tensorir.interp.reference import evaluate, random_arguments

TARGET = "cuda -arch=sm_80"
NAME = "gpu_tile_windows"
KINDS = ("shared read", "shared write", "global read", "global write")
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def pooled(*shape, dtype="float32", kernel=3, stride=2, pad=1):
    return tir.nn.max_pool2d(tir.placeholder(shape, dtype, name="x"), kernel, stride=stride, padding=pad)


def by_channel(c, h, w, stride=1, taps=3):
    options = dict(r=taps, s=taps, pad=taps // 2, stride=stride)
    return tir.ops.conv2d(n=1, c=c, h=h, w=w, k=c, groups=c, **options).outputs[0]


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
    "convolution by channel": by_channel(5, 9, 13),
    "strided convolution by channel": by_channel(6, 11, 14, stride=2, taps=5),
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
    for kind, (units, ideal) in cost(s).items():
        assert units == ideal > 0 or kind == "global read", kind


def cost(s):
    """What the first block's accesses cost, and the least, by kind; the results are the reference's."""
    arrays = random_arguments(s.outputs, 0)
    run = emulate(s.emitted(), arrays)
    assert not run.problems
    np.testing.assert_array_equal(run.outputs[0], evaluate(s.outputs, arrays)[0])
    return {k: [sum(getattr(t, x) for t in run.traffic if t.what == k) for x in ("units", "ideal")] for k in KINDS}


def test_passes_are_counted_by_words_of_a_bank():
    assert [passes(((32, step),), 4) for step in (0, 4, 8, 12, 128)] == [1, 1, 2, 1, 32]
    assert [passes(((32, step),), 8) for step in (8, 16, 128)] == [2, 4, 32]
    assert passes(((2, 16), (2, 160), (8, 400)), 8) == 8, "tiles of 8 x 8 cells of 3 x 3 windows, by channel"
    assert passes(((32, 2),), 2) == 1 and passes(((4, 4), (4, 0)), 4) == 1
    assert [least(32, 8), least(32, 4), least(32, 2), least(4, 16)] == [2, 1, 1, 1]


SHAPES = {
    "convolution by channel": by_channel(2, 20, 56),
    "five taps": by_channel(2, 28, 28, taps=5),
    "few pixels": by_channel(8, 14, 14),
    "strided": by_channel(8, 28, 28, stride=2),
    "pool": pooled(1, 1, 20, 56, stride=1),
}


@emulated
@pytest.mark.parametrize("name", SHAPES)
def test_lanes_of_the_default_meet_in_no_bank(name):
    """Lanes 4 words apart, rows 40 and channels 100 would meet, as tiles of 8 x 8 pixels have them."""
    found = cost(tir.auto_schedule(SHAPES[name], TARGET))
    for kind in ("shared read", "shared write"):
        units, ideal = found[kind]
        assert units == ideal > 0, kind


@emulated
@pytest.mark.parametrize("tile", [(16, 2, 2, 1, 4, 4), (8, 2, 4, 1, 4, 2), (4, 4, 4, 1, 4, 2), (2, 2, 16, 1, 4, 4)])
def test_as_many_passes_are_counted_as_the_emulator_sees(tile):
    """Of a warp that reads pairs of a tile of pixels, whose lanes meet or do not."""
    t0, t1, t2, _, rows, columns = tile
    y = by_channel(16, 8, 64)
    s = tir.Schedule(y, TARGET)
    tir.auto(y, TARGET)[NAME].function(s, dict(zip(("t0", "t1", "t2", "c0", "c1", "c2"), tile, strict=True)))
    run = emulate(s.emitted(), random_arguments(s.outputs, 0))
    (pairs,) = (t for t in run.traffic if t.what == "shared read" and t.width == 8)
    row = 4 * (t2 * columns + 2)
    lanes = (t2, 4 * columns), (t1, rows * row), (t0, (t1 * rows + 2) * row)
    assert pairs.units == pairs.requests * passes(lanes, 8)


@emulated
def test_filters_of_several_channels_are_read_in_whole_sectors():
    y = by_channel(16, 16, 16)
    template, s = tir.auto(y, TARGET)[NAME], tir.Schedule(y, TARGET)
    template.function(s, dict(t0=16, t1=2, t2=2, c0=1, c1=4, c2=4))
    text = s.source()
    assert "w_shared[144]" in text and text.count(" w[") == 1


def test_cells_that_are_made_for_nothing_cost_time():
    y, tile = line(512, 64, 66, taps=3), dict(t0=1, t1=2, c0=1, c1=1)
    expected = tir.auto(y, TARGET)[NAME].space_for(tir.Target.parse(TARGET)).expected_s
    assert expected({**tile, "t2": 32, "c2": 2}) < expected({**tile, "t2": 32, "c2": 4})
