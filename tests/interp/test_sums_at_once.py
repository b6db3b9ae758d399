"""Sums whose order does not matter are computed at once: to the results, and the faults, of one term after another."""

import numpy as np
import pytest
from test_planted_faults import K, R, T, X, Y, kernel, load, store

import tensorir as tir
from tensorir.interp import lift
from tensorir.interp.memory import Fault
from tensorir.interp.numbers import Field, Numbers
from tensorir.interp.reference import random_arguments
from tensorir.interp.run import iterations, run
from tensorir.ir.build import binary, const
from tensorir.ir.tree import Alloc, Loop, Program, Seq
from tensorir.lower.kernel import module_of
from tensorir.lower.pipeline import lower


class InOrder(Field):
    def exact(self, dtype):
        return False


class WholeInOrder(Numbers):
    def exact(self, dtype):
        return False


def matmul(dtype="float32", *, vector=False, threads=False):
    a, b = tir.placeholder((6, 10), dtype, name="a"), tir.placeholder((10, 8), dtype, name="b")
    k = tir.reduce_axis(10, name="k")
    s = tir.Schedule(tir.compute((6, 8), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), name="c"))
    if threads:
        s.bind("c.i", "thread.y").bind("c.j", "thread.x")
        s.stage_out("c", at="c.j", scope="register")
        return s
    s.stage_out("c", at="c.i", scope="register")
    s.reorder("c.k", "c.j")
    if vector:
        s.split("c.j", [None, 4])
        s.vectorize("c.j.1")
    return s


@pytest.mark.parametrize(("numbers", "in_order"), [(Field, InOrder), (Numbers, WholeInOrder)])
@pytest.mark.parametrize(
    "options",
    [{}, {"vector": True}, {"threads": True}, {"dtype": "int8"}, {"dtype": "uint32", "vector": True}],
    ids=str,
)
def test_results_are_those_of_one_term_after_another(options, numbers, in_order, monkeypatch):
    s = matmul(**options)
    module = lower(s.program, s.target)
    names = [b.name for b in module.inputs]
    arrays = dict(zip(names, random_arguments(s.outputs, 1, numbers()), strict=True))
    want = run(module, arrays, in_order())["c"]
    np.testing.assert_array_equal(run(module, arrays, numbers())["c"], want)
    monkeypatch.setattr(lift, "AT_ONCE", 50)  # too few for all loops of the sum
    np.testing.assert_array_equal(run(module, arrays, numbers())["c"], want)


def test_a_sum_is_one_statement():
    s = matmul()
    assert iterations(lower(s.program, s.target)) == 3  # begin, sum and write all rows


def summed(b):
    """Each of four threads adds all elements of X to the first one of ``b``."""
    return Loop(K, const(8), store(b, 0, binary("+", load(b, 0), load(X, K))))


@pytest.mark.parametrize("numbers", [Field(), InOrder()])
@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("memory.uninitialised", Alloc(R, summed(R))),
        ("race.global", Seq((store(Y, 0, load(X, 0)), summed(Y)))),
        (
            "memory.out-of-bounds",
            Seq((store(Y, T, load(X, 0)), Loop(K, const(9), store(Y, T, binary("+", load(Y, T), load(X, K)))))),
        ),
    ],
)
def test_faults_are_those_of_one_term_after_another(code, body, numbers):
    with pytest.raises(Fault) as caught:
        run(module_of(Program("p", (X,), (Y,), kernel(body, blocks=1))), {"X": np.arange(8)}, numbers)
    assert caught.value.problem.code == code
