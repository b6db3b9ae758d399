"""Schedules whose factors are all given fit one extent only; checks still reach small shapes."""

import pytest

import tensorir as tir
from tensorir.check.equivalence import _whole_tiles, axes_of


def test_fully_given_exact_factors_are_checked_on_small_shapes():
    a, b = tir.placeholder((512, 512), name="A"), tir.placeholder((512, 512), name="B")
    k = tir.reduce_axis(512, name="k")
    s = tir.Schedule(tir.compute((512, 512), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), name="C"))
    s.split("C.i", [32, 16], tail="exact")
    s.split("C.j", [32, 16], tail="exact")
    s.split("C.k", [64, 8], tail="exact")
    verdict = s.check()
    assert verdict
    assert len(verdict.shapes) >= 2
    assert not any("512" in shape for shape in verdict.shapes)


@pytest.mark.parametrize(("extent", "least", "whole"), [(9, 0, 12), (8, 0, 8), (1, 0, 4), (9, 3, 10), (2, 3, 2)])
def test_extents_are_rounded_up_to_whole_tiles(extent, least, whole):
    """What an algorithm needs at least, less one, is apart: 2 + 2 * 4 of 9."""
    A = tir.placeholder((64,), name="A")
    s = tir.Schedule(tir.compute((64,), lambda i: A[i] + 1, name="C"))
    s.split("C.i", [16, 4])
    ((v, _),) = axes_of(s.began_with).values()
    assert _whole_tiles(s, {v: extent}, {v: least} if least else {}) == {v: whole}
