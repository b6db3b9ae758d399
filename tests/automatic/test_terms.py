"""Sums whose terms lie next to each other, of cells that share them: in the lanes of vectors on CPUs."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.interp.reference import evaluate, random_arguments

CPU = "opencl -registers=32 -vector_bytes=64"


def gradient(c, k, groups, h, w, pad=1, dtype="float32"):
    """Of a filter, in groups of channels."""
    x, dy = tir.placeholder((2, c, h, w), dtype, name="x"), tir.placeholder((2, k, h, w), dtype, name="dy")
    wide = None if dtype == "float32" else "float32"
    return tir.nn.conv2d_backward_weight(x, dy, (3, 3), pad=pad, groups=groups, accumulate=wide)


SHAPES = {
    "float32": (8, 8, 4, 5, 28),
    "as many groups as channels": (6, 6, 6, 7, 17),
    "float16": (4, 8, 2, 3, 33, 1, "float16"),
}


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_gradient_of_filters_in_groups_is_right(name):
    y = gradient(*SHAPES[name])
    template = tir.auto(y, CPU)["cpu_terms"]
    legal = template.space_for(tir.Target.parse(CPU)).legal
    arrays = random_arguments((y,), 0)
    want = evaluate((y,), arrays)[0]
    for n in sorted({0, len(legal) // 2, len(legal) - 1}):
        s = tir.Schedule(y, CPU)
        template.function(s, template.space_for(s.target).config(n))
        assert s.check(), n
        np.testing.assert_array_equal(s.build()(*arrays), want)


def test_the_image_is_padded_once_so_that_lanes_ask_nothing():
    s = tir.auto_schedule(gradient(*SHAPES["float32"]), CPU)
    assert {step.why.partition(":")[0] for step in s.trace} == {"terms", "stream"}
    assert [k.name.rpartition("_")[0] for k in s.emitted().kernels] == ["x_pad", "dw"]
    assert "not in vectors" not in s.source().partition("dw_kernel1_body")[2]


def test_vectors_of_cells_are_kept_where_these_lie_next_to_each_other():
    k, m = tir.reduce_axis(64, name="k"), tir.reduce_axis(9, name="m")
    A, B, C = (tir.placeholder((64, 64), name=n) for n in "ABC")
    across = tir.compute((64, 64), lambda i, j: tir.sum(A[i, k] * B[k, j] * C[k, i], axis=k), name="Y")
    short = tir.compute((64, 3), lambda i, j: tir.sum(A[i, m + j] * B[j, m], axis=m), name="Y")
    for y in (across, short):
        assert "cpu_terms" not in tir.auto(y, CPU)
