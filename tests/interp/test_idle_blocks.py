"""Of large grids the blocks that write nothing are left out, but for some: results and faults are the same."""

import numpy as np
import pytest
from test_planted_faults import FAULTS, HERE, I, R, T, X, Y, kernel, load, store

import tensorir as tir
from tensorir.check.equivalence import compare_module
from tensorir.check.resize import module_at
from tensorir.expr.program import dims_of
from tensorir.expr.reread import with_dims
from tensorir.interp import run as runs
from tensorir.interp.memory import Fault
from tensorir.interp.numbers import Field, Numbers
from tensorir.ir.build import binary
from tensorir.ir.tree import Alloc, Cast, Const, If, Program, Select, Seq
from tensorir.lower.kernel import module_of
from tensorir.lower.pipeline import lower


@pytest.fixture
def ran(monkeypatch):
    """All grids are large; gives the numbers of the blocks that ran."""
    monkeypatch.setattr(runs, "LARGE_GRID_THREADS", 0)
    seen = []

    class BlockMachine(runs.BlockMachine):
        def go(self):
            seen.extend(self.frame.me[:: self.threads] // self.threads)
            super().go()

    monkeypatch.setattr(runs, "BlockMachine", BlockMachine)
    return seen


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "opencl", "opencl -kind=gpu"])
def test_dims_leave_most_blocks_idle(ran, target):
    m, n, k = (tir.dim(name, high=1024) for name in "mnk")
    s = tir.auto_schedule(tir.nn.matmul(tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")), target)
    module, values = lower(s.program, s.target), dict(zip(dims_of(s.outputs), (5, 300, 3), strict=True))
    module, outputs = module_at(module, values), with_dims(s.outputs, values)
    assert compare_module(module, outputs, Field(), 0) is None
    assert len(set(ran)) == len(ran)
    assert len(ran) <= 300 or len(ran) * 4 < np.prod(module.kernels[0].grid)


def outcome(body, size=8):
    module = module_of(Program("p", (X,), (Y,), body))
    try:
        return list(runs.run(module, {"X": np.arange(size, dtype="float32")}, Numbers())["Y"])
    except Fault as f:
        return f.problem.code, f.problem.message


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_told_as_of_small_grids(name, ran):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "LARGE_GRID_THREADS", 1 << 60)
        want = outcome(FAULTS[name][2])
    assert outcome(FAULTS[name][2]) == want


PLACES = {
    "the first that writes nothing": I * 4 + T,
    "the last": T + binary("//", I, 999) * 8,
    "one between": T + binary("//", binary("%", I * 619, 1000), 999) * 8,
    "by what was read": T + Cast(load(X, binary("//", binary("%", I * 619, 1000), 999) * 7), "index"),
}


@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
def test_reads_of_blocks_that_write_nothing_are_seen(where, ran):
    """One of them reads what is not there."""

    def program(at):
        both = Seq((store(R, 0, load(X, at)), If(binary("<", I, 2), store(Y, HERE, load(R, 0)))))
        return kernel(Alloc(R, both), blocks=1000)

    assert outcome(program(T))[4:] == [0, 1, 2, 3]
    assert len(ran) < 100
    assert outcome(program(where))[0] == "memory.out-of-bounds"


def test_places_that_memory_tells_are_looked_at_in_every_block(ran):
    """A block writes to its registers where it reads, and does so afterwards."""
    far = binary("//", binary("%", I * 619, 1000), 999) * 8
    kept = Seq((store(R, 0, Cast(far, "float32")), store(R, 0, load(X, T + Cast(load(R, 0), "index")))))
    both = Seq((*kept.stmts, If(binary("<", I, 2), store(Y, HERE, load(R, 0)))))
    assert outcome(kernel(Alloc(R, both), blocks=1000))[0] == "memory.out-of-bounds"


FAR = binary("//", binary("%", I * 619, 1000), 999)
"""1 in one block that writes nothing, 0 in all others."""


@pytest.mark.parametrize(
    "value",
    [
        Select(binary("==", FAR, 0), load(X, T), load(X, T + 8), "float32"),
        Select(binary("==", FAR, 1), load(X, T + 8), load(X, T), "float32"),
        Select(
            binary("and", binary("==", FAR, 1), binary("<", load(X, T + 8), 1.0)), load(X, T), load(X, T), "float32"
        ),
        Select(binary("or", binary("==", FAR, 0), binary("<", load(X, T + 8), 1.0)), load(X, T), load(X, T), "float32"),
    ],
    ids=["the other side", "this side", "and", "or"],
)
def test_reads_that_only_one_block_makes_are_seen(value, ran):
    """All blocks would read at the same places, one of them does."""
    both = Seq((store(R, 0, value), If(binary("<", I, 2), store(Y, HERE, load(R, 0)))))
    assert outcome(kernel(Alloc(R, both), blocks=1000))[0] == "memory.out-of-bounds"


def test_reads_of_what_another_block_writes_are_races(ran):
    """The block that writes a cell may read it as those that write nothing do."""
    read = If(binary("and", binary("==", T, 0), binary("<", I, 500)), store(R, 0, load(Y, 0)))
    write = If(binary("==", I + T, 0), store(Y, 0, Const(1.0, "float32")))
    assert outcome(kernel(Alloc(R, Seq((write, read))), blocks=1000))[0] == "race.global"
