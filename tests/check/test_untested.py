"""What verdicts say they did not look at."""

import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.verdict import no_numbers, single_carries

compiled = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")


def summed(n):
    X, k = tir.placeholder((8, n), name="X"), tir.reduce_axis(n, name="k")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.sum(X[i, k], axis=k), name="y"), target="cuda -arch=sm_80")
    s.bind("y.i", "thread.x")
    s.split("y.k", [None, 16])
    return s


@compiled
@pytest.mark.parametrize(("n", "told"), [(16, True), (12, True), (17, False), (40, False)])
def test_loops_that_go_around_once(n, told):
    s = summed(n)
    verdict = s.with_source(s.source()).check("emulate")
    assert verdict and ("loop of 1 iteration: its carry is not tested (y.k.0)" in str(verdict)) is told
    assert "iteration" not in str(s.check("emulate", shapes=[{}])), "text that nobody edited runs at several shapes"


def test_loops_that_carry_nothing_are_not_named():
    X = tir.placeholder((8, 40), name="X")
    s = tir.Schedule(tir.compute((8, 40), lambda i, j: X[i, j] * 2, name="y"), target="cuda")
    s.split("y.i", [None, 8])
    assert not list(single_carries(s.program.body))


@pytest.mark.parametrize("tile", [2, 4])
def test_infinities_through_winograd(tile):
    w = tir.ops.conv2d(n=1, c=4, h=8, w=8, k=4, r=3, s=3, pad=1)
    s = tir.Schedule(w.outputs).redeclare("winograd", tile=tile)
    verdict = s.check()
    assert verdict and ("infinity" in str(verdict)) is (s.inexact_by is not None)


def test_references_without_numbers():
    A = tir.placeholder((4,), "float16", name="A")
    for factor, lost in ((1e4, "no number at"), (1.0, "")):
        s = tir.Schedule(tir.compute((4,), lambda i: A[i] * factor * 10 * A[i], name="y"))
        verdict = s.check("device")
        assert verdict and lost in str(verdict) and (lost or "no number" not in str(verdict))
    assert no_numbers((A,), [np.float32([1, np.inf, np.nan, 2])]) == "; the reference has no number at 2 of 4 elements"
