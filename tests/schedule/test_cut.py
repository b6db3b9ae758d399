"""cut: two nests in place of one, each a kernel that knows which of them it is."""

from __future__ import annotations

import shutil

import pytest

import tensorir as tir
from tensorir.ir.tree import Load, Select
from tensorir.ir.visit import find


def two_parts(m=20, n=9, first=8, target="cuda -arch=sm_80"):
    a, b = tir.placeholder((first, n), name="a"), tir.placeholder((m - first, n), name="b")
    p = tir.compute((first, n), lambda i, j: a[i, j] * 2, name="p")
    q = tir.compute((m - first, n), lambda i, j: b[i, j] + 1, name="q")
    whole = tir.compute((m, n), lambda i, j: tir.where(i < first, p[i, j], q[i - first, j]), name="c")
    return tir.Schedule(whole, target)


def test_each_nest_reads_its_own_part():
    s = two_parts()
    assert s.cut("c.i", 8).name == "c.tail"
    for name, source in (("c", "p"), ("c.tail", "q")):
        stage = s.index.stages[name]
        assert not find(stage, Select)
        assert {x.buffer.name for x in find(stage, Load)} == {source}
    s.compute_at("p", "c.i").compute_at("q", "c.tail.i")
    assert s.source().count("__global__") == 2
    assert s.check()
    if shutil.which("g++"):
        assert s.check("emulate")


def test_the_cut_may_lie_elsewhere():
    s = two_parts()
    s.cut("c.i", 5)
    assert not find(s.index.stages["c"], Select)
    assert find(s.index.stages["c.tail"], Select), "rows 5 to 7 are of the first part"
    assert s.check()


def test_a_cut_may_count_from_the_end():
    s, same = two_parts(m=20), two_parts(m=20)
    s.cut("c.i", -12)
    same.cut("c.i", 8)
    assert str(s) == str(same) and str(s.trace) == "s.cut('c.i', -12)"
    assert s.check()


def test_several_cuts_of_any_loop():
    s = two_parts()
    tail = s.cut("c.j", 3)
    again = tail.cut("i", 8)
    assert again.name == "c.tail.tail"
    assert sorted(map(str, s.loops("c.tail.tail"))) == ["c.tail.tail.i", "c.tail.tail.j"]
    s.bind("c.tail.tail.i", "block.x").bind("c.i", "block.x")
    assert s.check()
    assert str(tir.replay(s.outputs, s.trace.to_json(), target=s.target)) == str(s)


def test_guards_that_a_part_keeps():
    s = two_parts(m=21)
    s.split("c.i", [None, 4])
    s.cut("c.i.0", 2)
    assert not s.index.stages["c"].guards, "rows 0 to 7 are there"
    assert s.index.stages["c.tail"].guards
    assert s.check()


@pytest.mark.parametrize("at", ["C.j", "C.tail.j"])
def test_each_part_of_a_result_may_have_its_copy(at):
    a, k = tir.placeholder((12, 6), name="a"), tir.reduce_axis(6, "k")
    s = tir.Schedule(tir.compute((12, 5), lambda i, j: tir.sum(a[i, k] * j, axis=k), name="C"), "opencl")
    s.cut("C.i", 7)
    s.stage_out(at.rsplit(".", 1)[0], at=at, scope="register")
    assert s.check()


def test_a_result_that_started_elsewhere_has_no_copy():
    a, k = tir.placeholder((12, 6), name="a"), tir.reduce_axis(6, "k")
    s = tir.Schedule(tir.compute((12, 5), lambda i, j: tir.sum(a[i, k] * j, axis=k), name="C"), "opencl")
    s.decompose_reduction("C", "C.i")
    with pytest.raises(tir.ScheduleError) as e:
        s.stage_out("C", at="C.j", scope="register")
    assert e.value.code == "stage-out.several-writers"


def chained(act):
    """A product and what reads it."""
    a, k = tir.placeholder((12, 6), name="a"), tir.reduce_axis(6, "k")
    c = tir.compute((12, 5), lambda i, j: tir.sum(a[i, k] * j, axis=k), name="C")
    s = tir.Schedule(tir.compute((12, 5), lambda i, j: c[i, j] + 1, name="R"), "cuda")
    act(s)
    return s


@pytest.mark.parametrize(
    ("code", "act"),
    [
        ("cut.inside", lambda s: s.cut("C.i", 12)),
        ("cut.inside", lambda s: s.cut("C.i", 0)),
        ("cut.inside", lambda s: s.cut("C.i", -12)),
        ("cut.spatial", lambda s: s.cut("C.k", 3)),
        ("cut.own-nest", lambda s: s.compute_at("C", "R.i").cut("R.i", 3)),
        ("cut.serial", lambda s: s.bind("R.j", "thread.x").cut("R.i", 3)),
    ],
)
def test_refused(code, act):
    with pytest.raises(tir.ScheduleError) as e:
        chained(act)
    assert e.value.code == code


def test_partial_results_of_a_part_are_refused():
    """The nest that adds them up would write the whole result."""
    a, k = tir.placeholder((12, 6), name="a"), tir.reduce_axis(6, "k")
    s = tir.Schedule(tir.compute((12,), lambda i: tir.sum(a[i, k], axis=k), name="C"), "cuda -arch=sm_80")
    s.cut("C.i", 8)
    with pytest.raises(tir.ScheduleError, match="makes a part of what"):
        s.rfactor("C.tail", "C.tail.k")
