"""Schedules whose factors are all given fit one extent only; checks still reach small shapes."""

import tensorir as tir


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
