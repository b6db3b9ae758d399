"""Small known matrices become straight-line code."""

import re

import numpy as np
import pytest

import tensorir as tir
from tensorir.arith.affine import Arith
from tensorir.interp.reference import evaluate
from tensorir.ir.build import binary, const
from tensorir.ir.tree import Buffer, Kind, Load, Loop, Scope, Store, Var
from tensorir.ir.visit import find
from tensorir.lower.fold_constants import Joiner
from tensorir.lower.pipeline import lower

INPUT = np.array([[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
                  [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]], np.float32)  # fmt: skip
"""B transposed of F(4x4, 3x3): Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016."""


def transform(matrix, lanes=8, unroll=True, target="opencl -kind=cpu"):
    rows, columns = matrix.shape
    x, m = tir.placeholder((columns, 16), name="X"), tir.constant(matrix, name="M")
    k = tir.reduce_axis(columns, name="k")
    y = tir.compute((rows, 16), lambda i, c: tir.sum(m[i, k] * x[k, c], axis=k, where=m[i, k] != 0), name="Y")
    s = tir.Schedule(y, target)
    s.stage_out("Y", "root", "register")
    c0, c1 = s.split("Y.out.c", [None, lanes])
    s.reorder(c0, "Y.out.i", c1)
    s.compute_at("Y", c0)
    s.reorder("Y.i", "Y.k", "Y.c")
    if unroll:
        s.unroll("Y.i").unroll("Y.k")
    if lanes > 1:
        s.vectorize("Y.c").vectorize(c1)
    return s


@pytest.mark.parametrize(("target", "lanes"), [("opencl -kind=cpu", 1), ("opencl -kind=cpu", 8), ("cuda", 1)])
def test_zeros_and_ones_vanish_and_each_row_is_one_expression(lanes, target):
    s = transform(INPUT, lanes, target=target)
    module = lower(s.program, s.target)
    assert not [n for n in find(module.kernels[0].body, Load) if n.buffer.data is not None]
    assert not module.constants
    lines = [x for x in s.source().splitlines() if re.search(r"Y_register\[[^]]*\] =", x)]
    assert [len(re.findall(r"\bX\b", x)) for x in lines] == [int(n) for n in (INPUT != 0).sum(1)]
    assert " 1.0f *" not in s.source()
    assert s.check()
    if target != "cuda":
        assert s.check(level="device")


def test_a_zero_times_infinity_stays():
    """Only where= leaves a term out, and 0 + -0 is 0."""
    x, m = tir.placeholder((2, 4), name="X"), tir.constant(np.float32([[0, 1], [-1, 0], [1, 1]]), name="M")
    k = tir.reduce_axis(2, name="k")
    given = np.float32([[np.inf, 1, -0.0, np.nan], [1, -np.inf, -0.0, 2]])
    for where in (None, lambda i: m[i, k] != 0):
        y = tir.compute(
            (3, 4), lambda i, c: tir.sum(m[i, k] * x[k, c], axis=k, where=None if where is None else where(i)), name="Y"
        )
        want = evaluate([y], [given])[0]
        s = tir.Schedule(y, "opencl").unroll("Y.i").unroll("Y.k")
        got = s.build()(given)
        assert np.array_equal(got, want, equal_nan=True), (where, got, want)
        assert np.array_equal(np.signbit(got[:, 2]), np.signbit(want[:, 2]))
        assert np.isnan(want[0, 0]) == (where is None)


def test_loops_that_are_not_unrolled_keep_the_constant_in_memory():
    s = transform(INPUT, unroll=False)
    assert lower(s.program, s.target).constants
    assert s.check()


@pytest.mark.parametrize("seed", range(5))
def test_any_small_matrix(seed):
    rng = np.random.default_rng(seed)
    s = transform(rng.integers(-2, 3, (rng.integers(1, 5), rng.integers(1, 5))).astype(np.float32))
    assert s.check()
    assert s.check(level="device")


def test_a_guarded_tail_reads_no_constant_beyond_its_end():
    x, c = tir.placeholder((7,), name="X"), tir.constant(np.arange(7, dtype=np.float32), name="c")
    s = tir.Schedule(tir.compute((7,), lambda i: c[i] * x[i], name="Y"), "opencl")
    for axis in s.split("Y.i", [None, 4]):
        s.unroll(axis)
    assert s.check()
    assert s.check(level="device")


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_the_lowest_integer_has_no_opposite(dtype):
    low = np.iinfo(dtype).min
    x, c = tir.placeholder((8,), dtype, name="X"), tir.constant(np.array([3, low], dtype), name="c")
    k = tir.reduce_axis(2, name="k")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.sum(x[i] - c[k] * x[7 - i], axis=k), name="Y"), "opencl")
    s.unroll("Y.k")
    assert s.check()
    assert s.check(level="device")


def test_vectors_in_parts_are_in_one_loop_with_sums_written_out():
    """Registers of 16 bytes hold half of eight lanes: a loop over both halves has a sum for each row."""
    s = transform(INPUT, 8, target="c -vector_bytes=16")
    text = s.source()
    lines = [x for x in text.splitlines() if re.search(r"Y_register\[[^]]*\] =", x)]
    assert [len(re.findall(r"\bX \+", x)) for x in lines] == [int(n) for n in (INPUT != 0).sum(1)]
    assert len(re.findall(r"int64_t c_v = 0", text)) == 1, "of all sums"
    assert re.search(r"int64_t X_at = out_c_0 \* 8 \+ c_v \* 4;", text)
    assert s.check()
    assert s.check(level="device")


def stores(index, other, value=None, steps=4, more=None):
    """Two loops of stores to registers: r[index(i)] = 1, then q[other(i)] = q[other(i)] + 2 or ``value(r, i)``."""
    r = Buffer("r", (const(64),), "float32", Scope.REGISTER)
    q = more or r
    i, j = Var("i", "index"), Var("j", "index")
    first = Loop(i, const(steps), Store(r, (index(i),), const(1.0, "float32")), Kind.UNROLL)
    again = value(r, j) if value else binary("+", Load(q, (other(j),), "float32"), const(2.0, "float32"))
    return [first, Loop(j, const(steps), Store(q, (other(j),), again), Kind.UNROLL)]


Q = Buffer("q", (const(64),), "float32", Scope.REGISTER)


@pytest.mark.parametrize(
    ("loops", "joins"),
    [
        (stores(lambda i: i, lambda i: i), True),
        (stores(lambda i: i, lambda i: i + 4), True),
        (stores(lambda i: i, lambda i: i, more=Q), True),
        (stores(lambda i: i, lambda i: i + 2), False),  # step 2 of the first writes what step 0 of the second wrote
        (stores(lambda i: const(0), lambda i: const(0)), False),  # 1 + 2, and not 1 + 2 + 2 + 2 + 2
        (stores(lambda i: i, lambda i: i * 2), False),
        (stores(lambda i: i, lambda i: i, lambda r, i: Load(r, (const(3) - i,), "float32"), more=Q), False),
    ],
)
def test_loops_join_where_no_step_meets_another(loops, joins):
    made = Joiner(Arith(), loops=True)(loops)
    assert isinstance(made, Loop) == joins
    assert not isinstance(Joiner(Arith(), loops=False)(loops), Loop)
