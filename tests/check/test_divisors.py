"""Random inputs never divide an integer by 0, where no result is right."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.interp.reference import random_arguments
from tensorir.tune.inputs import arguments, integer_arrays, random_arrays


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_integer_divisors_are_not_0_and_right_kernels_pass(dtype):
    a, b = tir.placeholder((37,), dtype, name="A"), tir.placeholder((37,), dtype, name="B")
    c = tir.compute((37,), lambda i: a[i] // b[i] + a[i] % b[i], name="C")
    s = tir.Schedule(c, "opencl")
    for seed in range(3):
        x, y = random_arguments((c,), seed)
        assert (y != 0).all()
        assert (x == 0).any()
        assert s.check(level="device", seed=seed)
    given, _ = arguments((c,))
    for made in (integer_arrays(given), random_arrays(given)):
        assert (np.asarray(made[1]) != 0).all()
