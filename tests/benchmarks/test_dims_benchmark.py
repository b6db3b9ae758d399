"""What the benchmark of extents known at launch times is right, and its summary says what rows say."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tensorir as tir

_PATH = list(sys.path)
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "dims"))

import one_kernel  # noqa: E402

sys.path[:] = _PATH


@pytest.mark.parametrize("name", list(one_kernel.MAKERS))
def test_its_kernels_are_right_on_the_device(name):
    pytest.importorskip("pyopencl")
    f = one_kernel.MAKERS[name](tir.dim("n", low=1, high=64)).build()
    for n in (1, 4, 7):
        arrays = one_kernel.inputs(name, n)
        np.testing.assert_allclose(f(*arrays), one_kernel.wanted(name, arrays), rtol=2e-6, atol=1e-9)


def test_the_summary_is_of_each_computation_on_each_device():
    rows = [{"computation": "a", "device": "d", "ratio": r, "cpu": c} for r, c in ((0.5, 1.0), (2.0, 4.0))]
    (found,) = one_kernel.summary(rows).values()
    assert found == {"ratio": pytest.approx(1.0), "cpu": pytest.approx(2.0), "largest_cpu": 4.0}
