"""What atomic refuses."""

import pytest
from refusal_cases import Refusals, assert_refused

import tensorir as tir

CUDA = "cuda -arch=sm_80"
REFUSALS = Refusals()


def columns(target=CUDA, dtype="float32", rows=37):
    """Sums of the columns of a matrix."""
    x = tir.placeholder((rows, 24), dtype, name="x")
    k = tir.reduce_axis(rows, name="k")
    return tir.Schedule(tir.compute((24,), lambda j: tir.sum(x[k, j], axis=k), name="y"), target)


REFUSALS.once("atomic.start", "has to start", lambda s: s.atomic("y"), columns)
REFUSALS.once("atomic.dtype", "float64", lambda s: s.atomic("y"), lambda: columns(dtype="float64"))


@REFUSALS.case("atomic.start", "in a kernel before")
def starts_in_its_own_kernel():
    s = columns()
    s.reorder("y.j", "y.k")
    s.decompose_reduction("y", "y.k")
    yield s
    s.atomic("y")


@REFUSALS.case("atomic.sum", "adds nothing up")
def largest():
    x, k = tir.placeholder((8, 8), name="x"), tir.reduce_axis(8, name="k")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.max(x[i, k], axis=k), name="y"), CUDA)
    s.decompose_reduction("y", "y.i")
    yield s
    s.atomic("y")


@REFUSALS.case("scope.atomic", "touches y")
def read_in_the_kernel_that_adds():
    x, k = tir.placeholder((8, 8), name="x"), tir.reduce_axis(8, name="k")
    y = tir.compute((8,), lambda i: tir.sum(x[i, k], axis=k), name="y")
    s = tir.Schedule(tir.compute((8,), lambda i: y[i] + 1, name="z"), CUDA)
    s.decompose_reduction("y", "y.i")
    s.atomic("y").bind("y.i", "block.x")
    yield s
    s.reverse_compute_at("z", "y.i")


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)


@pytest.mark.parametrize("scope", ["shared", "register"])
def test_results_stay_where_all_blocks_see_them(scope):
    x, k = tir.placeholder((8, 8), name="x"), tir.reduce_axis(8, name="k")
    y = tir.compute((8,), lambda i: tir.sum(x[i, k], axis=k), name="y")
    s = tir.Schedule(tir.compute((8,), lambda i: y[i] + 1, name="z"), CUDA)
    s.decompose_reduction("y", "y.i")
    s.atomic("y").set_scope("y", scope)
    with pytest.raises(tir.LoweringError) as e:
        s.source()
    assert e.value.code == "lower.scope-across-kernels"
