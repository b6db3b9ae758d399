"""Loops that data end, in text: what keeps the data in range is asked before they are read."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.arith.affine import Arith
from tensorir.check.emulate import emulate
from tensorir.codegen.ends import ended
from tensorir.ir.build import binary
from tensorir.ir.tree import If, Let, Loop, Var
from tensorir.ir.visit import find
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
    assert isinstance(ended(loop, Arith({})), Let)
    found = ended(guarded, Arith({}))
    assert isinstance(found, If) and found.cond is beyond and isinstance(found.then, Let)


@pytest.mark.parametrize("target", ["opencl", "cuda -arch=sm_80", "c"])
def test_data_that_are_any_number_end_a_loop_where_they_should(target):
    """The number of a lane is taken from them, and what rounds up is added: neither may leave 32 bits."""
    N, X = tir.placeholder((8,), "int32", name="N"), tir.placeholder((8, 67), "int32", name="X")
    r = tir.reduce_axis(67, name="r")
    y = tir.compute((8,), lambda i: tir.sum(tir.where(r.astype("int32") < N[i], X[i, r], 0), axis=r), name="Y")
    least, most = -(2**31), 2**31 - 1
    n = np.array([least, least + 1, -1, 0, 40, 66, most - 40, most], "int32")
    x = np.arange(8 * 67, dtype="int32").reshape(8, 67)
    want = np.array([row[: max(k, 0)].sum() for k, row in zip(n.tolist(), x, strict=True)], "int32")
    s = tir.Schedule(y, target)
    some, each = s.split("Y.r", [None, 16])
    if target.startswith("cuda"):
        s.reorder(each, some).bind("Y.i", "block.x").reduce_across(each, "thread.x")
        (got,) = emulate(s.emitted(), [n, x]).outputs
    else:
        got = s.build()(n, x)
    assert np.array_equal(got, want)
