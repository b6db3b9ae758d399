"""Which kernels run ahead of time, and that the mark survives what happens to their nest."""

import pytest

import tensorir as tir
from tensorir.ir.once import runs_once
from tensorir.ir.visit import swap_buffers
from tensorir.lower.pipeline import lower


def product():
    x, w = tir.placeholder((8, 16), name="x"), tir.placeholder((16, 12), name="w")
    k = tir.reduce_axis(16, name="k")
    return tir.compute((8, 12), lambda i, j: tir.sum(x[i, k] * w[k, j], axis=k), name="y")


def packed(**options):
    s = tir.Schedule(product())
    s.stage_in("w", "root", "global", run="once", **options)
    return s


STEPS = {
    "nothing": lambda s: None,
    "split and bind": lambda s: s.bind(s.split("w_global.ax1", [None, 4])[0], "block.x"),
    "reorder": lambda s: s.reorder("w_global.ax1", "w_global.ax0"),
    "fuse": lambda s: s.fuse("w_global.ax0", "w_global.ax1"),
    "vectorize": lambda s: s.vectorize(s.split("w_global.ax1", [None, 4])[1]),
    "layout": lambda s: s.layout("w_global", pad=3),
    "through registers": lambda s: s.stage_out("w_global", "w_global.ax0", "register"),
    "through a nest of its own": lambda s: s.stage_out("w_global", "root", "global"),
    "a copy of the copy": lambda s: s.stage_in("w_global", "root", "global", order=[1, 0], run="once"),
    "read into registers": lambda s: s.stage_in("w", "w_global.ax0", "register"),
    "the reader": lambda s: (s.stage_in("w_global", "y.j", "register"), s.split("y.j", [None, 5])),
}


@pytest.mark.parametrize("step", STEPS)
def test_the_mark_survives(step):
    s = packed(order=[1, 0])
    STEPS[step](s)
    kernels = lower(s.program, s.target).kernels
    assert [k.once for k in kernels] == [True] * (len(kernels) - 1) + [False]
    assert s.tree().count("once") == len(kernels) - 1
    source = s.emitted()
    assert [k.once for k in source.kernels] == [k.once for k in kernels]
    assert [p.name for p in source.prepackable] == ["w"]
    assert s.check()


def test_a_marked_copy_stays_in_a_nest_of_its_own():
    """Inside y.i it would be made by every launch: refused, as stage_in refuses to put it there at once."""
    s = packed()
    before = s.tree()
    with pytest.raises(tir.ScheduleError) as e:
        s.compute_at("w_global", "y.i")
    assert e.value.code == "run-once.lost" and s.tree() == before
    with pytest.raises(tir.ScheduleError) as e:
        s.stage_in("x", "y.i", "global", run="once")
    assert e.value.code == "stage-in.once"
    s.stage_in("w_global", "y.j", "register")  # the hint: a copy of the copy
    assert runs_once(s.program) == [True, False] and s.check()


def test_a_nest_that_makes_more_is_not_early():
    s = tir.Schedule(product())
    s.stage_in("w", "root", "global")
    s.compute_at("w_global", "y.i")
    with pytest.raises(tir.ScheduleError) as e:
        s.run_once("w_global")
    assert e.value.code == "run-once.depends"
    assert runs_once(s.program) == [False] and "once" not in s.tree()
    marked = s.index.buffers()["w_global"]
    body = swap_buffers(s.program.body, {marked: marked.replace(once=True)})
    assert runs_once(s.program.replace(body=body)) == [False]


def test_what_is_computed_from_inputs_runs_early():
    """Transformed weights: declared, not staged; a tensor that needs another one needs it early too."""
    x, w = tir.placeholder((5, 6), name="x"), tir.placeholder((6,), name="w")
    u = tir.compute((6,), lambda i: w[i] * 2, name="u")
    v = tir.compute((6,), lambda i: u[5 - i] + 1, name="v")
    s = tir.Schedule(tir.compute((5, 6), lambda i, j: x[i, j] * v[j], name="y"))
    with pytest.raises(tir.ScheduleError, match="run_once"):
        s.run_once("v")
    s.run_once("u").run_once("v")
    assert runs_once(s.program) == [True, True, False]
    assert s.check()
    s.compute_inline("u")
    assert runs_once(s.program) == [True, False]
    assert s.check()


def test_an_early_kernel_reads_nothing_made_late():
    x, w = tir.placeholder((6,), name="x"), tir.placeholder((6,), name="w")
    u = tir.compute((6,), lambda i: w[i] * 2, name="u")
    v = tir.compute((6,), lambda i: u[i] + 1, name="v")
    s = tir.Schedule(tir.compute((6,), lambda i: x[i] * v[i], name="y"))
    s.run_once("u").run_once("v")
    s.stage_out("u", "root", "global")  # a copy of the mark's bearer is early as well
    assert runs_once(s.program) == [True, True, True, False]
    assert [k.once for k in s.emitted().kernels] == [True, True, True, False]
    assert s.emitted().prepackable[0].name == "w"


def test_unmarked_programs_are_as_they_were():
    s = tir.Schedule(product())
    s.stage_in("w", "root", "global")
    assert runs_once(s.program) == [False, False]
    assert "once" not in s.source() + s.tree()
    assert s.emitted().prepackable == ()
