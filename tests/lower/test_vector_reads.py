"""What lanes of a CUDA kernel read side by side for what they compute: at once, where it is there and aligned."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import evaluate, random_arguments

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
CELLS = 64
OF = {"x": "float32", "h": "float16", "b": "bfloat16", "n": "int8"}


def scheduled(value, dtype="float32", lanes=4, cells=CELLS):
    """Each thread computes ``lanes`` cells and writes them at once; value: of a cell, told arrays by their names."""
    arrays = {name: tir.placeholder((4 * CELLS,), of, name=name) for name, of in OF.items()}
    places = tir.placeholder((CELLS,), "int32", name="places")
    out = tir.compute((cells,), lambda i: value(i, places, **arrays).astype(dtype), name="out")
    s = tir.Schedule(out, "cuda -arch=sm_80")
    each, lane = s.split("out.i", [None, lanes])
    s.vectorize(lane).bind(each, "thread.x")
    return s


def requests(s, what="global read"):
    """How many bytes each thread asks for at a time, in the order of the text; whether the text is right."""
    arrays = random_arguments(s.outputs, 0)
    for given_, x in zip(arrays, s.emitted().inputs, strict=True):
        if x.name == "places":
            given_[:] = np.arange(CELLS)[::-1] * 2
    run = emulate(s.emitted(), arrays)
    assert not run.problems, run.problems
    assert all(np.array_equal(x, y) for x, y in zip(run.outputs, evaluate(s.outputs, arrays), strict=True))
    return [t.width for t in run.traffic if t.what == what]


READ = {
    "one": (lambda i, places, x, h, b, n: x[i] + 1, [16]),
    "the same twice": (lambda i, places, x, h, b, n: x[i] * x[i] + 1, [16]),
    "at two places": (lambda i, places, x, h, b, n: x[i] * 2 + x[i + 32], [16, 16]),
    "narrower": (lambda i, places, x, h, b, n: x[i] + h[i].astype("float32"), [8, 16]),
    "bytes": (lambda i, places, x, h, b, n: n[i].astype("float32") * 2, [4]),
    "where elements are": (lambda i, places, x, h, b, n: x[places[i]] + 1, [4, 4, 4, 4, 16]),
    "of one lane": (lambda i, places, x, h, b, n: x[i] + x[i // 4], [4, 16]),
    "beside vectors": (lambda i, places, x, h, b, n: x[i + 1] + 1, [4, 4, 4, 4]),
    "apart": (lambda i, places, x, h, b, n: x[2 * i] + 1, [4, 4, 4, 4]),
    "backwards": (lambda i, places, x, h, b, n: x[CELLS - 1 - i] + 1, [4, 4, 4, 4]),
    "what the choice is made by": (lambda i, places, x, h, b, n: tir.where(x[i] > 0, 1.0, 2.0) * 1.5, [16]),
}


@emulated
@pytest.mark.parametrize("name", READ)
def test_lanes_read_at_once(name):
    value, widths = READ[name]
    found = requests(scheduled(value))
    assert sorted(set(found)) == sorted(set(widths)) and len(found) <= len(widths)


@emulated
def test_what_may_not_be_there_is_read_where_it_is():
    """Chosen by each lane: vectors beyond the end of the array would be read."""
    s = scheduled(lambda i, places, x, h, b, n: tir.where(i < CELLS - 3, x[4 * CELLS - CELLS + 4 + i - 1], 0.0) + 1)
    assert set(requests(s)) == {4}
    s = scheduled(lambda i, places, x, h, b, n: tir.where(i < 32, x[4 * CELLS - 32 + i], 0.0) + x[i])
    assert "x_lanes" in s.source() and requests(s)


@emulated
def test_a_choice_keeps_what_is_also_read_without_it():
    s = scheduled(lambda i, places, x, h, b, n: tir.where(x[i] > 0, x[i], -x[i]) + 1)
    assert requests(s) == [16], "it is there in any case"


@emulated
@pytest.mark.parametrize(("dtype", "lanes", "widths"), [("float16", 8, {16}), ("bfloat16", 2, {4}), ("int8", 4, {4})])
def test_narrow_results_are_made_of_narrow_vectors(dtype, lanes, widths):
    name = next(k for k, v in OF.items() if v == dtype)
    s = scheduled(lambda i, places, **of: of[name][i].astype("float32") * 2, dtype, lanes)
    assert set(requests(s)) == widths and set(requests(s, "global write")) == widths


@emulated
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(list(OF)), st.sampled_from(list(OF)), st.integers(0, 2 * CELLS), st.integers(0, 2 * CELLS),
    st.sampled_from([*OF.values()]), st.sampled_from([2, 4, 8, 16]), st.integers(1, CELLS),
)  # fmt: skip
def test_any_arrays_and_offsets(first, second, a, b, dtype, lanes, cells):
    def value(i, places, **of):
        return tir.where(of[first][i + a] > 0, of[second][i + b], 1).astype("float32") + of[second][i + a].astype(
            "float32"
        )

    requests(scheduled(value, dtype, lanes, cells))


@emulated
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("unrolled", [False, True])
def test_iterations_that_are_written_out_have_registers_of_their_own(unrolled, dtype):
    """A constant table decides them."""
    w = tir.constant(np.arange(1.0, 5.0, dtype=dtype), name="w")
    x = tir.placeholder((CELLS,), name="x")
    y = tir.compute((CELLS,), lambda i: x[i] * w[i // 4 % 4].astype("float32") + w[i % 4].astype("float32"), name="out")
    s = tir.Schedule(y, "cuda -arch=sm_80")
    each, some, lane = s.split("out.i", [None, 4, 4])
    s.vectorize(lane).bind(each, "thread.x")
    if unrolled:
        s.unroll(some)
    assert s.check() and s.check("emulate")
