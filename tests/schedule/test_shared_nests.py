"""Stages that live in the loops of another one, and reductions factored by a part of a split axis."""

import numpy as np
import pytest

import tensorir as tir

pytestmark = pytest.mark.usefixtures("unoptimised")

A = tir.placeholder((7, 13, 5), name="A")
r, q = tir.reduce_axis(13, name="r"), tir.reduce_axis(5, name="q")
values = np.random.default_rng(0).integers(-4, 5, A.shape).astype("float32")


def total():
    return tir.Schedule(tir.compute((7,), lambda i: tir.sum(A[i, r, q], axis=(r, q)), name="C"))


def by_inner_part(s):
    s.split("C.r", [None, 4])
    s.rfactor("C", "C.r.1")


def by_outer_part(s):
    s.split("C.r", [None, 4])
    s.rfactor("C", "C.r.0")


def by_whole_axis(s):
    s.rfactor("C", "C.r")


def by_part_of_two_axes(s):
    _, inner = s.split(s.fuse("C.r", "C.q"), [None, 8])
    s.rfactor("C", inner)
    part = f"C.rf.{inner.split('.', 1)[1]}"
    s.reorder("C.rf.i", part)
    s.bind("C.rf.i", "block.x").bind(part, "thread.x")  # partial sums belong to different threads


@pytest.mark.parametrize("how", [by_inner_part, by_outer_part, by_whole_axis, by_part_of_two_axes])
def test_rfactor_of_a_part(how):
    s = total()
    how(s)
    np.testing.assert_array_equal(s.build()(values), values.sum((1, 2)))
    assert s.check()


@pytest.mark.parametrize("names", [None, ("part", "r")])
@pytest.mark.parametrize("at", ["C.rf.out.rf", "C.rf.out.i", "C.i", "C.rf"])
def test_partial_sums_are_placed_with_the_tail_of_their_reduction(names, at):
    s = tir.Schedule(tir.compute((7,), lambda i: tir.sum(A[i, r, 0], axis=r), name="C"))
    part, _ = s.split("C.r", [None, 4], names=names)
    s.rfactor("C", part)
    if at.startswith("C.rf.out"):
        s.stage_out("C.rf", at="root", scope="register")
    s.compute_at("C.rf", at)
    assert "< 13:" in s.tree(), "the last part has one term"
    np.testing.assert_array_equal(s.build()(values), values[:, :, 0].sum(1))
    assert s.check()
    assert tir.replay(s.outputs, s.trace).tree() == s.tree()


def test_a_tail_of_a_split_cell_stays_where_it_is():
    s = tir.Schedule(tir.compute((7,), lambda i: tir.sum(A[i, r, 0], axis=r), name="C"))
    s.split("C.i", [None, 2])
    part, _ = s.split("C.r", [None, 4])
    s.rfactor("C", part)
    with pytest.raises(tir.ScheduleError) as e:
        s.compute_at("C.rf", "C.i")
    assert e.value.code == "compute-at.scheduled"


def test_rfactor_of_argmax():
    s = tir.Schedule(tir.compute((7,), lambda i: tir.argmax(A[i, r, 0], axis=r), name="C"))
    by_inner_part(s)
    np.testing.assert_array_equal(s.build()(values), values[:, :, 0].argmax(1))
    assert s.check()


def producer_and_consumer():
    P = tir.compute((7, 13), lambda i, j: A[i, j, 0] + 1, name="P")
    D = tir.placeholder((13,), name="D")
    return tir.Schedule(tir.compute((7, 13), lambda i, j: P[i, j] * D[j], name="R"))


@pytest.mark.parametrize(
    ("tensor", "loop", "move", "code"),
    [
        ("A", "P.j", lambda s: s.compute_at("P", "R.i"), "compute-at.nest-shared"),
        ("A", "P.j", lambda s: s.compute_inline("P"), "inline.nest-shared"),
        ("D", "R.j", lambda s: s.reverse_compute_at("R", "P.i"), "reverse-compute-at.nest-shared"),
        ("D", "R.j", lambda s: s.reverse_compute_inline("R"), "reverse-inline.nest-shared"),
    ],
)
def test_a_nest_with_other_stages_is_not_torn(tensor, loop, move, code):
    s = producer_and_consumer()
    s.stage_in(tensor, at=loop, scope="register")
    before = s.tree()
    with pytest.raises(tir.ScheduleError) as caught:
        move(s)
    assert caught.value.code == code
    assert s.tree() == before
