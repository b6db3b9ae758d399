"""What the threads of a warp ask a GPU's memory for at once: whole sectors, where windows are next to each other."""

import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import evaluate, random_arguments

TARGET, NAME = "cuda -arch=sm_80", "gpu_stream"
pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def pooled(shape, kernel, dtype="float32", by=tir.nn.max_pool2d):
    return by(tir.placeholder(shape, dtype, name="x"), kernel, stride=kernel)


def pairs(h, w, first=0):
    """Sums of two neighbours; ``first``: where the first of them are."""
    x = tir.placeholder((h, 2 * w + first), name="x")
    return tir.compute((h, w), lambda i, j: x[i, 2 * j + first] + x[i, 2 * j + first + 1], name="Y")


def every_second(n):
    x = tir.placeholder((2 * n,), name="x")
    return tir.compute((n,), lambda i: x[2 * i] * 2, name="Y")


def shifted(h, w):
    """Rows of whole vectors, which each cell reads one element further on."""
    x = tir.placeholder((h, w + 4), name="x")
    return tir.compute((h, w), lambda i, j: x[i, j] + x[i, j + 1], name="Y")


def elements(h, w, dtype="float32"):
    x = tir.placeholder((h, w), dtype, name="x")
    return tir.compute((h, w), lambda i, j: x[i, j] * 2 + 1, name="Y")


def with_row(h, w):
    x, v = tir.placeholder((h, w), name="x"), tir.placeholder((w,), name="v")
    return tir.compute((h, w), lambda i, j: tir.maximum(x[i, j] + v[j], 0), name="Y")


def columns(h, w):
    x, r = tir.placeholder((h, 3, w), name="x"), tir.reduce_axis(h, name="r")
    return tir.compute((3, w), lambda i, j: tir.sum(x[r, i, j], axis=r), name="Y")


def requests(s):
    """Sectors of the first block's requests and the fewest, of reads and of writes; the results are the reference's."""
    arrays = random_arguments(s.outputs, 0)
    run = emulate(s.emitted(), arrays)
    assert not run.problems
    np.testing.assert_array_equal(run.outputs[0], evaluate(s.outputs, arrays)[0])
    kinds = [[t for t in run.traffic if t.what == f"global {what}"] for what in ("read", "write")]
    return [(sum(t.units for t in of), sum(t.ideal for t in of)) for of in kinds]


WHOLE = {
    "2 x 2": pooled((1, 4, 32, 112), 2),
    "2 x 2 of 16 bits": pooled((1, 2, 32, 112), 2, "float16"),
    "4 x 4": pooled((1, 2, 32, 128), 4),
    "average": pooled((1, 4, 32, 112), 2, by=tir.nn.avg_pool2d),
    "pairs": pairs(8, 64),
    "pairs behind a vector": pairs(8, 60, 8),
    "elements": elements(32, 64),
    "elements of 16 bits": elements(32, 64, "float16"),
    "elements of 8 bits": elements(32, 128, "int8"),
    "rows and a row": with_row(8, 64),
    "sums of columns": columns(40, 64),
}


@pytest.mark.parametrize("name", WHOLE)
def test_windows_next_to_each_other_are_read_in_whole_sectors(name):
    s = tir.auto_schedule(WHOLE[name], TARGET)
    for units, ideal in requests(s):
        assert units == ideal > 0


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("name", ["2 x 2 of 16 bits", "4 x 4", "average", "pairs"])
def test_any_number_of_lanes_is_right(name, lanes):
    template, s = tir.auto(WHOLE[name], TARGET)[NAME], tir.Schedule(WHOLE[name], TARGET)
    template.function(s, dict(block=128, lanes=lanes, vectors=1))
    requests(s)


ODD = {
    "odd rows": pooled((2, 3, 13, 19), 2),
    "no whole vectors": pooled((1, 3, 14, 14), 2),
    "3 x 3": pooled((1, 2, 12, 36), 3),
    "windows inside of a vector": pairs(5, 24, 1),
    "large windows": pooled((1, 2, 16, 32), 8),
    "borders": tir.nn.max_pool2d(tir.placeholder((1, 2, 12, 14), name="x"), 2, stride=2, padding=1),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_whole_is_right_too(name):
    s = tir.Schedule(ODD[name], TARGET)
    tir.auto(ODD[name], TARGET)[NAME].function(s, tir.auto(ODD[name], TARGET)[NAME].space_for(s.target).default)
    requests(s)


def test_cells_that_read_every_second_element_are_one_a_thread():
    """Four of them would be in a sector of their own each: 32 sectors of a request, of which eight hold as much."""
    (read, least), written = requests(tir.auto_schedule(every_second(1024), TARGET))
    assert read == 2 * least and written[0] == written[1]


@pytest.mark.parametrize("y", [elements(64, 61), shifted(8, 64)], ids=["odd rows", "neighbours of neighbours"])
def test_what_no_vector_holds_is_read_by_one_cell_a_thread(y):
    """Four cells would read it by four requests, each of which asks for all sectors that one of vectors would."""
    (read, least), _ = requests(tir.auto_schedule(y, TARGET))
    assert read <= 1.3 * least
