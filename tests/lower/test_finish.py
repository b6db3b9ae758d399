"""Loops end where the guard around their whole body ends them."""

import pytest

import tensorir as tir
from tensorir.ir.tree import If, Loop
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower


@pytest.mark.parametrize(("n", "factor", "length"), [(5, 8, 5), (6, 4, 4)])
def test_a_loop_is_cut_at_a_guard_on_its_own_variable(n, factor, length):
    a = tir.placeholder((n,), name="A")
    s = tir.Schedule(tir.compute((n,), lambda i: a[i] + 1, name="C"), "opencl")
    s.split("C.i", [None, factor])
    kernel = lower(s.program, s.target).kernels[0]
    assert max(int(x.extent.value) for x in find(kernel.body, Loop)) == length
    assert bool(find(kernel.body, If)) == (n > factor)  # one tile: the loop itself ends there; two: only the last does
    assert s.check()
    assert s.check(level="device")
