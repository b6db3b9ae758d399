"""specialize: two versions of a body, what is known in each, and that every part of the checks sees both."""

import dataclasses
import itertools

import numpy as np
import pytest
from refusal_cases import masked

import tensorir as tir
from tensorir.arith.conditions import contrary
from tensorir.arith.point import evaluate
from tensorir.check.equivalence import compare_module
from tensorir.errors import LoweringError
from tensorir.interp.numbers import Field, Numbers
from tensorir.interp.reference import random_arguments
from tensorir.ir.build import binary, const
from tensorir.ir.marks import Versions
from tensorir.ir.tree import Alloc, Barrier, If, Load, Loop, Select, Seq, Stage, Store, Var
from tensorir.ir.visit import Rewriter, find
from tensorir.lower.pipeline import forms, lower
from tensorir.runtime.device import devices
from tensorir.schedule.conditions import parse

pytestmark = pytest.mark.usefixtures("unoptimised")

DEVICE = any(d.usable and not d.simulator and d.language == "opencl" for d in devices())


def product(m=9, n=6, k=8, target="opencl -kind=cpu"):
    A, B, kk = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B"), tir.reduce_axis(k, name="k")
    return tir.Schedule(tir.compute((m, n), lambda i, j: tir.sum(A[i, kk] * B[kk, j], axis=kk), name="C"), target)


def body(s):
    return lower(s.program, s.target).kernels[0].body


def right(s):
    assert s.check()
    if DEVICE and s.target.language == "opencl":
        assert s.check(level="device")
    again = tir.replay(s.outputs, s.trace.to_json(), target=s.target)
    assert (str(again), again.source()) == (str(s), s.source())


def test_guards_that_follow_from_the_condition_vanish():
    s = product()
    i0, _ = s.split("C.i", [None, 4])
    s.specialize(i0, f"{i0} < 2")
    whole, rest, *_ = (x.then for x in find(body(s), If, lambda x: len(find(x, Store)) > 1))
    assert not find(whole, If)
    assert find(rest, If)
    assert "if (i_0 < 2)\n" in s.source()
    assert "if (2 <= i_0)\n" in s.source()
    assert "specialized where C.i.0 < 2" in s.tree()
    right(s)


def test_selects_that_follow_from_the_condition_vanish():
    x = tir.placeholder((20, 49), name="X")
    s = tir.Schedule(tir.compute((20, 51), lambda h, w: x.get(h, w - 1, fill=0), name="P"), "opencl -kind=cpu")
    s.specialize("P.w", "P.w >= 1 and P.w < 50")
    inside, edge = (x.then for x in find(body(s), If))
    assert not find(inside, Select)
    assert not find(edge, Select)  # there the value is 0
    right(s)


def test_a_loop_that_is_known_is_a_number():
    s = product()
    s.specialize("C.j", "C.i == 0 and C.j == 5")
    text = s.source()
    assert "if (i == 0 && j == 5) {" in text
    assert "C[5] = 0.0f;" in text
    assert "if (i != 0 || j != 5) {" in text
    right(s)


@pytest.mark.parametrize("dtype", ["int32", "float32", "int8", "bool"])
def test_data_decides_which_version_runs(dtype):
    s = masked(dtype)
    s.specialize("Y.i", "not mask[Y.i]" if dtype == "bool" else "mask[Y.i] == 0")
    off, on = (x.then for x in find(body(s), If))
    assert "X" not in {n.buffer.name for n in find(off, Load)}  # rows that are masked are not read
    assert "X" in {n.buffer.name for n in find(on, Load)}
    assert not find(body(s), Select)
    right(s)
    assert "mask[i]" in s.source("cuda")


def test_skipped_blocks_of_a_product_are_not_read():
    mask = tir.placeholder((3,), "int32", name="mask")
    A, B, k = tir.placeholder((12, 8), name="A"), tir.placeholder((8, 16), name="B"), tir.reduce_axis(8, name="k")
    C = tir.compute((12, 16), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    D = tir.compute((12, 16), lambda i, j: tir.where(tir.equal(mask[i // 4], 0), 0, C[i, j]), name="D")
    s = tir.Schedule(D, "opencl -kind=cpu")
    i0, _ = s.split("D.i", [None, 4])
    s.parallel(i0)
    s.compute_at("C", i0)
    s.specialize(i0, f"mask[{i0}] == 0")
    off, on = (x.then for x in find(body(s), If, lambda x: len(find(x, Store)) and find(x, Loop)))
    assert not find(off, Select) and not find(on, Select)
    assert not find(off, Load)  # the product of masked rows is not even computed
    assert {"A", "B"} <= {n.buffer.name for n in find(on, Load)}
    right(s)


class Spoil(Rewriter):
    """One more in every store of one version of a body."""

    def __init__(self, which):
        self.which, self.seen = which, 0

    def on_If(self, n):
        self.seen += 1
        return _Spoiled()(n) if self.seen == self.which else n


class _Spoiled(Rewriter):
    def on_Store(self, n):
        return n.replace(value=binary("+", n.value, const(1, n.buffer.dtype)))


@pytest.mark.parametrize(
    ("cond", "dtype"),
    [("mask[Y.i] == 0", "int32"), ("mask[Y.i] > 3", "float32"), ("mask[Y.i] < 3", "float32"),
     ("mask[Y.i] != 127", "int8"),
     ("mask[Y.i]", "bool"), ("Y.i < 4", "int32"), ("mask[Y.i] == -5 and Y.i != 3", "int32")],
)  # fmt: skip
@pytest.mark.parametrize("which", [1, 2])
def test_the_check_runs_both_versions(cond, dtype, which):
    s = masked(dtype)
    s.specialize("Y.i", cond)
    module = lower(s.program, s.target)
    for numbers in (Field(), Numbers()):
        assert compare_module(module, s.outputs, numbers, 0) is None
    (kernel,) = module.kernels
    wrong = dataclasses.replace(kernel, body=Spoil(which)(kernel.body))
    problem = compare_module(dataclasses.replace(module, kernels=(wrong,)), s.outputs, Field(), 0)
    assert problem is not None
    assert problem.code == "check.not-equal"


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "float16"])
@pytest.mark.parametrize("numbers", [None, Numbers(), Field()], ids=["device", "numbers", "field"])
def test_inputs_of_a_check_lie_around_what_they_are_compared_with(dtype, numbers):
    s = masked(dtype)
    s.specialize("Y.i", "mask[Y.i] < 100 and mask[Y.i] != 90")
    (loop,) = find(s.program.body, Loop, lambda x: bool(Versions.of(x).where))
    masks = [random_arguments(s.outputs, seed, numbers, Versions.of(loop).where)[0] for seed in range(8)]
    assert {99, 100, 101, 89, 90, 91} <= {int(x) for mask in masks for x in mask}
    assert masks[0].dtype == random_arguments(s.outputs, 0, numbers)[0].dtype


def tiles(target="opencl -kind=gpu"):
    """A product whose blocks of threads share tiles of A; the last block of rows overhangs."""
    s = product(15, 16, 16, target)
    i0, i1 = s.split("C.i", [None, 4])
    j0, j1 = s.split("C.j", [None, 4])
    k0, k1 = s.split("C.k", [None, 8])
    s.reorder(i0, j0, i1, j1, k0, k1)
    s.bind(i0, "block.y").bind(j0, "block.x").bind(i1, "thread.y").bind(j1, "thread.x")
    s.stage_out("C", j1, "register")
    s.stage_in("A", k0, "shared")
    return s, i0, k0


@pytest.mark.parametrize("target", ["opencl -kind=gpu", "cuda"])
@pytest.mark.parametrize("place", ["block", "serial"])
def test_barriers_stand_under_conditions_that_the_whole_block_shares(target, place):
    s, i0, k0 = tiles(target)
    if place == "block":
        s.specialize(i0, f"{i0} < 3")
    else:
        s.specialize(k0, f"{k0} == 0 or {i0} == 2")
    versions = find(body(s), If, lambda x: bool(find(x, Barrier)))
    assert len(versions) == 2
    assert s.check()
    assert len([a for a in find(body(s), Alloc) if a.buffer.name.startswith("A_shared")]) == 2
    if target == "cuda":
        assert s.check(level="emulate")


def test_a_barrier_that_is_missing_in_one_version_is_found():
    s, i0, _ = tiles()
    s.specialize(i0, f"{i0} < 3")
    module = lower(s.program, s.target)

    class Without(Rewriter):
        def __init__(self):
            self.seen = 0

        def on_Barrier(self, n):
            self.seen += 1
            return Seq(()) if self.seen > len(find(module.kernels[0].body, Barrier)) // 2 else n

    wrong = dataclasses.replace(module.kernels[0], body=Without()(module.kernels[0].body))
    problem = compare_module(dataclasses.replace(module, kernels=(wrong,)), s.outputs, Field(), 0)
    assert problem is not None
    assert problem.code == "race.shared"


def test_threads_in_different_versions_need_no_barrier_or_are_refused():
    s, _, _ = tiles()
    s.specialize("C.out.j", "C.i.1 < 2")  # behind the barriers
    assert s.check()
    X = tir.placeholder((8, 8), name="X")
    P = tir.compute((8, 8), lambda i, j: X[i, j] + 1, name="P")
    s = tir.Schedule(tir.compute((8, 8), lambda i, j: P[i, j] + P[i, 7 - j], name="Q"), "opencl -kind=gpu")
    s.bind("Q.j", "thread.x")
    s.reorder("Q.j", "Q.i")
    s.compute_at("P", "Q.i")
    s.bind("P.j", "thread.x")
    s.specialize("Q.i", "Q.j < 4")
    with pytest.raises(LoweringError) as caught:
        s.source()
    assert caught.value.code == "lower.divergent-barrier"
    assert "specialize" in str(caught.value)


def test_stages_and_local_buffers_of_the_second_version_are_new():
    s = product()
    i0, _ = s.split("C.i", [None, 3])
    s.stage_out("C", i0, "register")
    s.specialize(i0, f"{i0} == 1").specialize(i0, "A[C.i.0, 0] == 0")
    program = dict(forms(s.program, s.target))["specialize_loops"]
    names = [x.name for x in find(program.body, Stage)]
    assert len(names) == len(set(names)) == 4 * 3  # init, sum and copy
    assert len(find(body(s), Alloc)) == 4
    assert not find(program.body, Loop, lambda x: bool(Versions.of(x).where))
    right(s)


def test_conditions_follow_splits_of_outer_loops_and_loops_that_are_bound():
    s = product()
    s.specialize("C.j", "C.i >= 3 and C.j < 2")
    s.split("C.i", [None, 4])
    assert "specialized where 3 <= C.i.0 * 4 + C.i.1 and C.j < 2" in s.tree()
    right(s)
    s = product()
    s.specialize("C.j", "C.i >= 3 and C.j < 2").bind("C.i", "block.x").parallel("C.j")
    assert s.emitted().kernels[0].grid == (9, 6, 1)
    right(s)


def test_conditions_read_the_input_itself_when_a_copy_is_staged():
    for at, scope in (("C.i", "shared"), ("C.j", "register"), ("root", "global")):
        s = product()
        s.specialize("C.j", "A[C.i, 0] > 1")
        s.stage_in("A", at, scope)
        assert "A[C.i, 0]" in s.tree()
        assert s.check()


def test_inside_a_reduction_and_with_cuts():
    s = product(9, 6, 11)
    s.specialize("C.k", "C.k % 2 == 0")
    right(s)
    s = product(9, 6, 11)
    s.partition("C.j", [2]).specialize("C.j", "C.i < 4 or C.j == 3").partition("C.i", [5])
    right(s)
    s = product(9, 6, 11)
    s.reorder("C.k", "C.i").specialize("C.i", "C.k == 0").decompose_reduction("C", "C.k")
    right(s)


def test_vectors_and_unrolled_loops_inside_stay_so():
    s = product(9, 16, 8)
    i0, _ = s.split("C.i", [None, 4])
    s.stage_out("C", i0, "register")
    s.unroll("C.i.1")
    _, j = s.split("C.out.j", [None, 8])
    s.vectorize(j)
    s.specialize(i0, f"{i0} < 2")
    assert "float8" in s.source()
    right(s)


def test_a_condition_that_always_or_never_holds_leaves_one_version():
    for cond in ("C.i < 9", "C.i >= 9", "C.i % 3 < 3"):
        s = product()
        s.specialize("C.i", cond)
        assert not find(body(s), If)
        right(s)


def test_stage_handles_and_axis_handles():
    s = product()
    i0, _ = s["C"].split("i", [None, 4])
    assert s["C"].specialize(i0, f"{i0} < 2").name == "C"
    assert str(s.trace).endswith("s.specialize('C.i.0', 'C.i.0 < 2')")


# --- the little language ---------------------------------------------------------------------------------------------

TEXTS = (
    "a < 3", "a + b * 2 - 1 <= b", "not a < 3", "not (a < 3 or b == 2) and a != 1", "1 <= a < 3", "a // 2 == b % 3",
    "-a + 4 > -(b)", "(a + 1) * 2 >= 4", "a == 1 or b == 1 and a == 2", "((a)) < ((3))", "not not a < 2",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_means_what_python_means(text):
    a, b = Var("a", "index"), Var("b", "index")
    cond = parse(text, {"a": a, "b": b}, {})
    for x, y in itertools.product(range(5), range(5)):
        want = eval(text, {"a": x, "b": y})
        assert bool(evaluate(cond, {a: x, b: y})) == want
        assert bool(evaluate(contrary(cond), {a: x, b: y})) != want


def test_the_opposite_of_a_comparison_of_floats_holds_for_nan():
    mask, X = tir.placeholder((9,), "float32", name="mask"), tir.placeholder((9, 8), name="X")
    s = tir.Schedule(tir.compute((9, 8), lambda i, j: X[i, j] + mask[i] * 0, name="Y"), "opencl -kind=cpu")
    s.specialize("Y.i", "mask[Y.i] < 2")
    assert "!(mask[i] < 2.0f)" in s.source()
    right(s)
    if DEVICE:
        m = np.array([np.nan, 0, 2, 3, np.nan, 1, 1, 5, 2], "float32")
        assert np.isnan(s.build()(m, np.ones((9, 8), "float32"))).sum() == 16


def test_indices_of_gathers_meet_the_condition():
    """An index tensor of 1000 rows holds the one value that a version is for, so that a spoilt version is seen."""
    T, at = tir.placeholder((1000, 8), name="T"), tir.placeholder((5,), "int32", name="at")
    s = tir.Schedule(tir.compute((5, 8), lambda i, j: T[at[i], j] * 2, name="G"), "opencl -kind=cpu")
    s.specialize("G.i", "at[G.i] == 500")
    cond = Versions.of(find(s.program.body, Loop, lambda x: bool(Versions.of(x).where))[0]).where
    values = [np.asarray(random_arguments(s.outputs, seed, conditions=cond)[1]) for seed in range(4)]
    assert any((v == 500).any() for v in values)
    right(s)


def test_a_remainder_of_what_may_fall_below_the_divisor():
    A, B, k = tir.placeholder((9, 8), name="A"), tir.placeholder((8, 6), name="B"), tir.reduce_axis(8, name="k")
    s = tir.Schedule(tir.compute((9, 6), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C"), "opencl -kind=cpu")
    s.specialize("C.i", "(20 - C.i) % 8 == 3")
    assert "% 8" in s.source()
    right(s)


def test_what_a_version_overruns_is_not_zero_behind_it():
    """A specialized tile of sums overshoots, and a later sum over it must not count what lies beyond its end."""
    a, b = tir.placeholder((16, 16), name="A"), tir.placeholder((16, 10), name="B")
    k, q = tir.reduce_axis(16, "k"), tir.reduce_axis(10, "q")
    c = tir.compute((16, 10), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = tir.Schedule(tir.compute((16,), lambda i: tir.sum(c[i, q] * c[i, q], axis=q), name="D"), "cuda -arch=sm_80")
    block, thread = s.split("D.i", [None, 8])
    s.bind(block, "block.x").bind(thread, "thread.x").stage_out("D", at=thread, scope="register")
    outer, _ = s.split("D.q", [None, 4])
    s.compute_at("C", outer).set_scope("C", "register").reorder("C.k", "C.j").specialize("C.k", "C.k < 8")
    verdict = s.check()
    assert verdict, str(verdict)
