"""fuse_with: one kernel of two nests, what it computes, and what it refuses."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.ir.tree import Load, PadLoad, Stage, Store
from tensorir.ir.visit import find
from tensorir.schedule.primitives.fuse_with import _accesses


def two(read=lambda X, i, j: X[i, j], shape=(10, 12)):
    """Two results of one input, the second of which reads the first one."""
    X = tir.placeholder((10, 12), name="X")
    A = tir.compute((10, 12), lambda i, j: X[i, j] * 2, name="A")
    B = tir.compute(shape, lambda i, j: read(A, i, j) + X[i, j], name="B")
    return tir.Schedule([A, B])


def apart():
    X = tir.placeholder((10, 12), name="X")
    k = tir.reduce_axis(12, name="k")
    m = tir.compute((10,), lambda i: tir.max(X[i, k], axis=k), name="m")
    return tir.Schedule([m, tir.compute((10,), lambda i: tir.sum(X[i, k], axis=k), name="t")])


def test_equal_nests_are_one_kernel():
    s = two()
    assert s.fuse_with("A", "B").name == "B"
    assert [str(x) for x in s.loops("B")] == ["A.i", "A.j"] and s.check() and len(s.emitted().kernels) == 1
    x = np.arange(120, dtype="float32").reshape(10, 12)
    a, b = s.build("opencl")(x)
    np.testing.assert_array_equal(b, a + x)
    assert tir.replay(s.definition, s.trace).tree() == s.tree()


def test_reductions_share_their_outer_loops_and_a_later_split():
    s = apart()
    s.fuse_with("m", "t")
    s.split("m.i", [None, 4])
    assert s.check() and len(s.emitted().kernels) == 1
    assert [str(x) for x in s.loops("t")] == ["m.i.0", "m.i.1", "m.k"], "they read the same, in the same order"


def test_only_outer_loops_whose_iterations_agree():
    s = two(lambda A, i, j: A[i, 11 - j])
    s.fuse_with("A", "B")
    assert [str(x) for x in s.loops("B")] == ["A.i", "B.j"] and s.check()
    s.bind("A.i", "block.x")
    assert s.check()


def test_bound_nests():
    s = two()
    for name in "AB":
        s.bind(f"{name}.i", "block.x").bind(f"{name}.j", "thread.x")
    s.fuse_with("B", "A")
    told = tir.replay(s.definition, s.trace, target="cuda")
    assert s.check() and told.check("emulate") and len(told.emitted("cuda").kernels) == 1


def test_what_it_refuses():
    s = two(lambda A, i, j: A[9 - i, j])
    with pytest.raises(tir.ScheduleError, match=r"fuse-with\.dependence.*A\[9, 0\] is met when A\.i = 9 .* B\.i = 0"):
        s.fuse_with("A", "B")
    with pytest.raises(tir.ScheduleError, match=r"fuse-with\.loops.*10 iterations.*5"):
        two(shape=(5, 12)).fuse_with("A", "B")
    s = two()
    s.bind("A.i", "block.x")
    with pytest.raises(tir.ScheduleError, match=r"fuse-with\.loops"):
        s.fuse_with("A", "B")
    s = two()
    s.fuse_with("A", "B")
    with pytest.raises(tir.ScheduleError, match=r"fuse-with\.same-nest"):
        s.fuse_with("A", "B")


def in_a_row():
    """The third nest reads the second one, which reads the first."""
    X = tir.placeholder((10,), name="X")
    A = tir.compute((10,), lambda i: X[i] * 2, name="A")
    B = tir.compute((10,), lambda i: A[i] + 1, name="B")
    return tir.Schedule([A, B, tir.compute((10,), lambda i: B[9 - i] + 1, name="C")])


@pytest.mark.parametrize(
    ("code", "names"),
    [("fuse-with.between", "AC"), ("fuse-with.dependence", "BC"), ("fuse-with.same-nest", "AA")],
)
def test_codes(code, names):
    with pytest.raises(tir.ScheduleError) as caught:
        in_a_row().fuse_with(*names)
    assert caught.value.code == code


def columns(first, second):
    X, W = tir.placeholder((10, 64), name="X"), tir.placeholder((10, 32), name="W")
    A = tir.compute((10, 64), lambda i, j: X[i, j] * 2, name="A")
    s = tir.Schedule([A, tir.compute((10, 32), lambda i, j: W[i, j] + 1, name="B")])
    for name, threads in (("A", first), ("B", second)):
        inner = s.split(f"{name}.j", [None, threads])[1]
        s.bind(f"{name}.i", "block.x").bind(inner, "thread.x")
    return s


def test_one_axis_has_one_extent():
    s = columns(64, 32)
    before = s.tree()
    with pytest.raises(tir.ScheduleError, match=r"A\.j\.1 runs over 64 iterations and B\.j\.1 over 32.*thread\.x") as e:
        s.fuse_with("A", "B")
    (problem,) = e.value.problems
    assert (problem.code, problem.hint) == ("fuse-with.loops", "split both alike") and s.tree() == before
    s = columns(32, 32)
    s.fuse_with("A", "B")
    assert s.check() and len(s.emitted().kernels) == 1


def test_stages_whose_cells_are_not_known_are_refused():
    X = tir.placeholder((8,), name="X")
    s = tir.Schedule(tir.compute((8,), lambda i: X[i] * 2, name="Y"))
    (stage,) = find(s.program, Stage)
    (load,) = find(stage, Load)
    body = Store(stage.body.buffer, stage.body.index, PadLoad(load.buffer, load.index, load, load.dtype))
    assert [a.writes for a in _accesses(stage)] == [True, False]
    with pytest.raises(tir.ScheduleError, match=r"fuse-with\.loops.*Y has a PadLoad of X"):
        list(_accesses(stage.replace(body=body)))


def test_a_nest_does_not_move_before_what_it_needs():
    X = tir.placeholder((10,), name="X")
    A = tir.compute((10,), lambda i: X[i] * 2, name="A")
    B = tir.compute((10,), lambda i: A[9 - i] + 1, name="B")
    C = tir.compute((10,), lambda i: B[i] + 1, name="C")
    s = tir.Schedule([A, B, C])
    with pytest.raises(tir.ScheduleError, match=r"fuse-with\.between.*B\[C\.i\].*B writes"):
        s.fuse_with("A", "C")
    s.fuse_with("B", "C")
    assert s.check()
