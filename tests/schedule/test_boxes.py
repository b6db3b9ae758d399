"""The boxes that producers compute for their readers."""

import numpy as np
import pytest

import tensorir as tir

pytestmark = pytest.mark.usefixtures("only_run")


def staged(extent, most, tail, blocks=3):
    """A tile of A for each block, of which results are computed in tiles of at most ``most``."""
    A = tir.placeholder((blocks * extent,), name="A")
    B = tir.compute(A.shape, lambda i: A[i] * 2, name="B")
    s = tir.Schedule(B, "opencl")
    block, i = s.split("B.i", [None, extent])
    s.bind(block, "block.x")
    s.split(i, [None, most], tail=tail)
    s.stage_in("A", block, "shared")
    return s


@pytest.mark.parametrize("tail", ["balanced", "peel"])
@pytest.mark.parametrize(("extent", "most"), [(49, 28), (49, 14), (27, 14), (50, 12), (13, 8), (7, 7)])
def test_tiles_of_two_sizes_need_no_more_than_the_loop_that_they_cut(extent, most, tail):
    s = staged(extent, most, tail)
    assert f"__local float A_shared[{extent}]" in s.source()
    assert "if (" not in s.source() and "?" not in s.source()
    assert s.check()
    a = np.arange(3.0 * extent, dtype="float32")
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(a)), a * 2)


def test_guarded_tiles_keep_their_size_so_that_no_reader_needs_a_guard():
    s = staged(49, 14, "guard")
    assert "__local float A_shared[56]" in s.source()
    assert s.check()
