"""Loops that data end, in text: what keeps the data in range is asked before they are read."""

import tensorir as tir
from tensorir.arith.affine import Arith
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
