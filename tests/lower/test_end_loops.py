"""Loops that data end, in text: what keeps the data in range is asked before they are read."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.arith.affine import Arith
from tensorir.check.emulate import emulate
from tensorir.interp.reference import evaluate
from tensorir.ir.build import binary
from tensorir.ir.tree import If, Let, Loop, Var
from tensorir.ir.visit import find
from tensorir.lower.end_loops import ended_by_data
from tensorir.lower.pipeline import lower


def test_conditions_of_the_row_come_before_its_pointers():
    P, X = tir.placeholder((6,), "int32", name="P"), tir.placeholder((40,), name="X")

    def row(i):
        k = tir.reduce_axis(P[i + 1] - P[i], most=9)
        return tir.sum(X[P[i] + k], axis=k)

    s = tir.Schedule(tir.compute((5,), row, name="Y"))
    (loop,) = [x for x in find(lower(s.program, s.target).kernels[0].body, Loop) if isinstance(x.body, If)]
    beyond = binary("<", Var("i", "index"), 5)
    guarded = loop.replace(body=If(binary("and", loop.body.cond, beyond), loop.body.then))
    assert isinstance(ended_by_data(loop, Arith({})), Let)
    found = ended_by_data(guarded, Arith({}))
    assert isinstance(found, If) and found.cond is beyond and isinstance(found.then, Let)


ANY = {
    "int32": [-(2**31), -(2**31) + 1, -1, 0, 40, 66, 2**31 - 41, 2**31 - 1],
    "int64": [-(2**63), -(2**32) - 1, -1, 0, 40, 2**31, 2**32 + 5, 2**63 - 1],
    "uint32": [0, 1, 40, 66, 67, 2**31, 2**32 - 41, 2**32 - 1],
    "uint64": [0, 1, 40, 66, 2**32 + 1, 2**63, 2**64 - 41, 2**64 - 1],
    "uint8": [0, 1, 2, 40, 66, 67, 254, 255],
}


@pytest.mark.parametrize("target", ["opencl", "cuda -arch=sm_80", "c"])
@pytest.mark.parametrize("moved", [lambda r: r, lambda r: r + 3, lambda r: 2 * r - 5], ids=["", "r+3", "2r-5"])
@pytest.mark.parametrize("dtype", ANY)
def test_data_that_are_any_number_end_a_loop_where_they_should(dtype, moved, target):
    """The number of a thread is taken from them, and what rounds up is added: nothing may leave an index."""
    N, X = tir.placeholder((8,), dtype, name="N"), tir.placeholder((8, 67), "int32", name="X")
    r = tir.reduce_axis(67, name="r")
    y = tir.compute((8,), lambda i: tir.sum(tir.where(moved(r) < N[i], X[i, r], 0), axis=r), name="Y")
    n, x = np.array(ANY[dtype], dtype), np.arange(8 * 67, dtype="int32").reshape(8, 67)
    (want,) = evaluate((y,), [n, x])
    s = tir.Schedule(y, target)
    some, each = s.split("Y.r", [None, 16])
    if target.startswith("cuda"):
        s.reorder(each, some).bind("Y.i", "block.x").reduce_across(each, "thread.x")
        (got,) = emulate(s.emitted(), [n, x]).outputs
    else:
        got = s.build()(n, x)
    assert np.array_equal(got, want)
