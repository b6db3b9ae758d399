"""Kernels that are wrong on purpose: each fault is found, under its code."""

from dataclasses import dataclass

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.equivalence import compare_module
from tensorir.errors import TensorIRError
from tensorir.interp.memory import Fault
from tensorir.interp.numbers import Field, Numbers
from tensorir.interp.run import run
from tensorir.ir.build import as_expr, binary, const
from tensorir.ir.tree import (
    Alloc,
    Barrier,
    Binary,
    Broadcast,
    Buffer,
    If,
    Kind,
    Load,
    Loop,
    Program,
    Ramp,
    Scope,
    Select,
    Seq,
    Stage,
    Store,
    Var,
)
from tensorir.lower.kernel import module_of

I = Var("b", "index")
T = Var("t", "index")
K = Var("k", "index")


def buffer(name, n, scope=Scope.GLOBAL):
    return Buffer(name, (as_expr(n),), "float32", scope)


X, Y, S, R = buffer("X", 8), buffer("Y", 8), buffer("S", 4, Scope.SHARED), buffer("R", 2, Scope.REGISTER)


def load(b, i):
    return Load(b, (as_expr(i),), b.dtype)


def store(b, i, value):
    return Store(b, (as_expr(i),), value)


def kernel(*stmts, blocks=2, threads=4):
    """Two blocks of four threads."""
    body = Seq(stmts) if len(stmts) > 1 else stmts[0]
    return Loop(I, const(blocks), Loop(T, const(threads), body, Kind.THREAD_X), Kind.BLOCK_X)


def fault(body, numbers=None):
    module = module_of(Program("p", (X,), (Y,), body))
    with pytest.raises(Fault) as caught:
        run(module, {"X": np.arange(8, dtype="float32")}, numbers or Numbers())
    return caught.value.problem


HERE = I * 4 + T
COPY = store(S, T, load(X, HERE))
REVERSED = store(Y, HERE, load(S, const(3) - T))

FAULTS = {
    "missing barrier": ("race.shared", "since the last barrier", kernel(Alloc(S, Seq((COPY, REVERSED))))),
    "missing barrier before the next write": (
        "race.shared",
        "writes",
        kernel(Alloc(S, Seq((COPY, Barrier(), REVERSED, store(S, T, load(X, HERE)))))),
    ),
    "two threads write one cell": (
        "race.shared",
        "wrote",
        kernel(Alloc(S, Seq((store(S, T // 2, load(X, HERE)), Barrier())))),
    ),
    "two blocks write one cell": ("race.global", "same kernel", kernel(store(Y, T, load(X, HERE)))),
    "a block reads what another wrote": (
        "race.global",
        "reads",
        kernel(Seq((store(Y, HERE, load(X, HERE)), store(Y, HERE, load(Y, (HERE + 4) % 8))))),
    ),
    "divergent barrier": (
        "barrier.divergent",
        "2 of the 4",
        kernel(Alloc(S, Seq((COPY, If(binary("<", T, const(2)), Barrier()), REVERSED)))),
    ),
    "uninitialised shared cell": (
        "memory.uninitialised",
        "S[1]",
        kernel(Alloc(S, Seq((If(binary("<", T, const(1)), COPY), Barrier(), store(Y, HERE, load(S, T)))))),
    ),
    "uninitialised register": ("memory.uninitialised", "R[0]", kernel(Alloc(R, store(Y, HERE, load(R, 0))))),
    "read outside": ("memory.out-of-bounds", "X[8]", kernel(store(Y, HERE, load(X, HERE + 1)))),
    "read below": ("memory.out-of-bounds", "X[-1]", kernel(store(Y, HERE, load(X, HERE - 1)))),
    "write outside": ("memory.out-of-bounds", "Y[8]", kernel(store(Y, HERE + 1, load(X, HERE)))),
    "register outside": (
        "memory.out-of-bounds",
        "R[2]",
        kernel(Alloc(R, Seq((store(R, 2, load(X, HERE)), store(Y, HERE, load(X, HERE)))))),
    ),
    "loop that runs too far": ("memory.out-of-bounds", "Y[8]", Loop(K, const(9), store(Y, K, const(0.0, "float32")))),
    "loop that ends too early": ("memory.unwritten", "Y[7]", Loop(K, const(7), store(Y, K, const(0.0, "float32")))),
    "what has no meaning": ("interp.not-lowered", "Stage", kernel(Stage("s", (), (), COPY))),
}


@pytest.mark.parametrize("numbers", [Numbers(), Field()], ids=["numbers", "field"])
@pytest.mark.parametrize("name", FAULTS)
def test_fault(name, numbers):
    code, key, body = FAULTS[name]
    problem = fault(body, numbers)
    assert problem.code == code, str(problem)
    assert key in problem.message


def test_the_right_kernel_has_no_fault():
    module = module_of(Program("p", (X,), (Y,), kernel(Alloc(S, Seq((COPY, Barrier(), REVERSED))))))
    got = run(module, {"X": np.arange(8, dtype="float32")}, Numbers())
    assert got["Y"].tolist() == [3, 2, 1, 0, 7, 6, 5, 4]


def test_a_barrier_orders_what_many_threads_of_a_block_read():
    """All read one global cell, a barrier, one writes it."""
    body = kernel(
        store(Y, HERE, load(X, HERE)),
        Barrier((Scope.GLOBAL,)),
        Alloc(R, store(R, 0, load(Y, I * 4))),
        Barrier((Scope.GLOBAL,)),
        If(binary("<", T, const(1)), store(Y, HERE, load(X, HERE))),
    )
    run(module_of(Program("p", (X,), (Y,), body)), {"X": np.arange(8, dtype="float32")}, Numbers())


def test_the_right_side_of_and_is_looked_at_where_the_left_side_holds():
    inside = binary("and", binary("<", HERE, const(7)), binary("<", load(X, HERE + 1), const(99.0, "float32")))
    body = kernel(store(Y, HERE, const(0.0, "float32")), If(inside, store(Y, HERE, const(1.0, "float32"))))
    got = run(module_of(Program("p", (X,), (Y,), body)), {"X": np.arange(8, dtype="float32")}, Numbers())
    assert got["Y"].tolist() == [1] * 7 + [0]


def test_swapped_indices_give_another_result():
    A = tir.placeholder((4, 4), name="A")
    good = tir.Schedule(tir.compute((4, 4), lambda i, j: A[i, j] + 1, name="B"))
    bad = tir.Schedule(tir.compute((4, 4), lambda i, j: A[j, i] + 1, name="B"))
    from tensorir.lower.pipeline import lower

    problem = compare_module(lower(bad.program, bad.target), bad.outputs, Field(), 0)
    assert problem is None

    @dataclass
    class Swapped:
        name, inputs, outputs, scalars, workspace, constants, kernels = "", (), (), (), (), (), ()

    wrong, right = lower(bad.program, bad.target), lower(good.program, good.target)
    mixed = Swapped()
    mixed.inputs, mixed.outputs, mixed.kernels = wrong.inputs, wrong.outputs, wrong.kernels
    mixed.scalars = mixed.workspace = mixed.constants = ()
    names = {b.name: np.arange(16, dtype="float32") for b in right.inputs}
    assert not np.array_equal(run(mixed, names, Numbers())["B"], run(right, names, Numbers())["B"])


def test_nothing_is_launched_for_an_empty_tensor():
    A = tir.placeholder((0, 4), name="A")
    s = tir.Schedule(tir.compute((0, 4), lambda i, j: A[i, j] + 1, name="B"))
    s.bind("B.i", "thread.x")
    assert s.check()
    with pytest.raises(TensorIRError, match="not a launch"):
        s.build()


def test_loops_over_one_variable_do_not_see_each_others_last_value():
    guarded = Loop(K, const(4), If(binary("<", K, const(9)), Seq((store(Y, K + 4, load(X, K)),))))
    together = Loop(K, const(4), store(Y, K, load(X, K)))
    module = module_of(Program("p", (X,), (Y,), Seq((guarded, together))))
    out = run(module, {"X": np.arange(8, dtype="float32")}, Numbers())
    assert out["Y"].tolist() == [0, 1, 2, 3] * 2


def masked(limit):
    """Vectors of four: the first two lanes of an array are written, those below ``limit`` are chosen."""
    four = lambda b: Load(b, (Ramp(const(0), 4, "index"),), b.dtype)  # noqa: E731
    R4 = buffer("R4", 4, Scope.REGISTER)
    below = Binary("<", four(X), Broadcast(const(float(limit), "float32"), 4, "float32"), "bool")
    chosen = Select(below, four(R4), Broadcast(const(-1.0, "float32"), 4, "float32"), "float32")
    written = [store(R4, n, const(5.0 + n, "float32")) for n in (0, 1)]
    both = [Store(Y, (Ramp(const(n), 4, "index"),), chosen) for n in (0, 4)]
    body = Alloc(R4, Seq((*written, *both)))
    return Loop(I, const(1), Loop(T, const(1), body, Kind.THREAD_X), Kind.BLOCK_X)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_lanes_that_are_not_chosen_may_be_unwritten(limit):
    got = run(module_of(Program("p", (X,), (Y,), masked(limit))), {"X": np.arange(8, dtype="float32")}, Numbers())
    assert got["Y"][:4].tolist() == [5.0 + n if n < limit else -1.0 for n in range(4)]


def test_a_lane_that_is_chosen_and_unwritten():
    problem = fault(masked(3))
    assert problem.code == "memory.uninitialised" and "R4[2]" in problem.message
