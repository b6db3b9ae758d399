"""check says yes to right schedules, no to wrong ones, what it did not look at, and blame names the step."""

import shutil
from dataclasses import replace as replaced

import numpy as np
import pytest

import tensorir as tir
from tensorir.check import verdict as verdicts
from tensorir.check.equivalence import awkward_shapes, tiles_of
from tensorir.check.verdict import no_numbers, single_carries
from tensorir.ir.build import binary
from tensorir.ir.tree import Barrier, Load, Loop, Stage
from tensorir.ir.visit import Rewriter, find, replace
from tensorir.lower import pipeline
from tensorir.lower.form import lowering
from tensorir.schedule.primitives import loops, staging


def matmul(m=17, n=13, k=9):
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    kk = tir.reduce_axis(k, name="k")
    return A, B, tir.compute((m, n), lambda i, j: tir.sum(A[i, kk] * B[kk, j], axis=kk), name="C")


def tiled(target="opencl", steps=99):
    A, B, C = matmul()
    s = tir.Schedule(C, target)
    calls = [
        lambda: s.split("C.i", [None, 2, 2]),
        lambda: s.split("C.j", [None, 2, 2]),
        lambda: s.split("C.k", [None, 4]),
        lambda: s.reorder("C.i.0", "C.j.0", "C.i.1", "C.j.1", "C.k.0", "C.k.1", "C.i.2", "C.j.2"),
        lambda: s.bind("C.i.0", "block.y"),
        lambda: s.bind("C.j.0", "block.x"),
        lambda: s.bind("C.i.1", "thread.y"),
        lambda: s.bind("C.j.1", "thread.x"),
        lambda: s.stage_out("C", "C.j.1", "register"),
        lambda: s.stage_in(A, "C.k.0", "shared"),
        lambda: s.stage_in(B, "C.k.0", "shared"),
        lambda: s.unroll("C.k.1"),
    ]
    for call in calls[:steps]:
        call()
    return s


@pytest.mark.parametrize("target", ["opencl", "opencl -kind=gpu", "cuda"])
@pytest.mark.parametrize("steps", range(0, 13, 2))
def test_yes_after_every_step(steps, target):
    s = tiled(target, steps)
    verdict = s.check()
    assert verdict, str(verdict)
    assert verdict.shapes
    assert "exact" in str(verdict)
    assert s.blame() is None


def test_shapes_cover_the_classes_of_tails():
    s = tiled()
    assert tiles_of(s) == {"C.i": {1, 2, 4}, "C.j": {1, 2, 4}, "C.k": {1, 4}}
    extents = [{v.name: n for v, n in shape.items()} for shape in awkward_shapes(s)]
    for axis, period in (("i", 4), ("j", 4), ("k", 4)):
        tails = {e[axis] % period for e in extents}
        assert tails >= {0, 1, period - 1}, (axis, tails)
    assert any(1 in e.values() for e in extents)


def test_one_shape_goes_over_several_tiles_of_the_reduction():
    s = tir.ops.matmul(m=256, n=256, k=512).schedule(
        dict(ti=16, tj=16, ri=8, rj=8, bk=16, vector=4, fragments=1, depth=1, splits=1), "gpu_tile", "cuda"
    )
    assert max(tiles_of(s)["c.k"]) == 16
    tried = [{v.name: n for v, n in shape.items()} for shape in awkward_shapes(s)[:4]]
    assert any(t["k"] > 32 and t["i"] == t["j"] == 1 for t in tried), "what is left of the tiles counts, too"


def test_shapes_of_the_users_choice():
    s = tiled()
    verdict = s.check(shapes=[{"i": 5, "C.j": 6}])
    assert verdict.shapes == ("C.i=5 C.j=6 C.k=9",)
    with pytest.raises(tir.CheckError) as caught:
        s.check(shapes=[{"q": 5}])
    assert caught.value.code == "check.unknown-axis"


def test_levels():
    s = tiled()
    with pytest.raises(tir.CheckError) as caught:
        s.check(level="hope")
    assert caught.value.code == "check.level"
    with pytest.raises(tir.CheckError) as caught:
        s.with_source(s.source()).check()
    assert caught.value.code == "check.edited-text"


def wrong_split_order(program, loop, factors, tail="guard", names=None):
    """Counts the outer loop one short."""
    done = right_split(program, loop, factors, tail, names)
    outer = next(x for x in find(done.program, Loop) if x.var.name == done.new[0])
    shorter = outer.replace(extent=binary("-", outer.extent, 1))
    return loops.Rewrite(done.program.replace(body=replace(done.program.body, {outer: shorter})), done.new, done.gone)


class _Moved(Rewriter):
    def __init__(self, name):
        self.name = name

    def on_Load(self, n):
        if n.buffer.name != self.name:
            return n
        return Load(n.buffer, (binary("min", n.index[0] + 1, n.buffer.dims[0] - 1), *n.index[1:]), n.dtype)


def wrong_stage_in(program, buffer, at, *rest):
    """Copies the row below."""
    done = right_stage_in(program, buffer, at, *rest)
    stage = next(s for s in find(done.program, Stage) if s.name == done.new[0])
    moved = stage.replace(body=_Moved(buffer.name)(stage.body))
    return loops.Rewrite(done.program.replace(body=replace(done.program.body, {stage: moved})), done.new, done.gone)


right_split, right_stage_in = loops._split, staging._stage_in


@pytest.mark.parametrize(
    ("module", "name", "wrong", "step"),
    [
        (loops, "_split", wrong_split_order, "s.split('C.i', [None, 2, 2])"),
        (staging, "_stage_in", wrong_stage_in, "s.stage_in('A', 'C.k.0', 'shared')"),
    ],
)
def test_blame_names_the_step(module, name, wrong, step, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    s = tiled()
    verdict = s.check()
    assert not verdict
    assert verdict.problems[0].code.startswith(("check.", "memory.", "race."))
    assert str(s.blame()) == step
    assert "test_verdicts.py" in s.blame().where


def test_blame_of_a_later_step(monkeypatch):
    def sometimes(program, loop, *rest):
        return (wrong_split_order if loop.var.name == "C.out.i" else right_split)(program, loop, *rest)

    s = tiled(steps=11)
    monkeypatch.setattr(loops, "_split", sometimes)
    s.split("C.out.i", [None, 2])
    assert str(s.blame()) == "s.split('C.out.i', [None, 2])"


class _NoBarriers(Rewriter):
    def on_Seq(self, n):
        return n.replace(stmts=tuple(self(s) for s in n.stmts if not isinstance(s, Barrier)))


def test_a_pass_that_loses_barriers(monkeypatch):
    @lowering
    def finish(program, target):
        done = original(program, target)
        return done.replace(body=_NoBarriers()(done.body), done=program.done)

    original = next(p for p in pipeline.PASSES if p.__name__ == "finish")
    monkeypatch.setattr(pipeline, "PASSES", [finish if p is original else p for p in pipeline.PASSES])
    verdict = tiled().check()
    assert not verdict
    assert verdict.problems[0].code == "race.shared"


def test_a_wrong_declaration_of_a_combiner():
    """Subtraction is not associative: parts summed apart give another result."""
    X = tir.placeholder((4, 12), name="X")
    k = tir.reduce_axis(12, name="k")
    minus = tir.combiner(lambda a, b: a - b, 0)
    s = tir.Schedule(tir.compute((4,), lambda i: minus(X[i, k], axis=k), name="Y"))
    s.rfactor("Y", s.split("Y.k", [None, 3])[1])
    verdict = s.check()
    assert not verdict
    assert verdict.problems[0].code == "check.not-equal"


compiled = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")


def summed(n):
    X, k = tir.placeholder((8, n), name="X"), tir.reduce_axis(n, name="k")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.sum(X[i, k], axis=k), name="y"), target="cuda -arch=sm_80")
    s.bind("y.i", "thread.x")
    s.split("y.k", [None, 16])
    return s


@compiled
@pytest.mark.parametrize(("n", "told"), [(16, True), (12, True), (17, False), (40, False)])
def test_loops_that_go_around_once(n, told):
    s = summed(n)
    verdict = s.with_source(s.source()).check("emulate")
    assert verdict and ("loop of 1 iteration: its carry is not tested (y.k.0)" in str(verdict)) is told
    assert "iteration" not in str(s.check("emulate", shapes=[{}])), "text that nobody edited runs at several shapes"


def test_loops_that_carry_nothing_are_not_named():
    X = tir.placeholder((8, 40), name="X")
    s = tir.Schedule(tir.compute((8, 40), lambda i, j: X[i, j] * 2, name="y"), target="cuda")
    s.split("y.i", [None, 8])
    assert not list(single_carries(s.program.body))


@pytest.mark.parametrize("tile", [2, 4])
def test_infinities_through_winograd(tile):
    w = tir.ops.conv2d(n=1, c=4, h=8, w=8, k=4, r=3, s=3, pad=1)
    s = tir.Schedule(w.outputs).redeclare("winograd", tile=tile)
    verdict = s.check()
    assert verdict and ("infinity" in str(verdict)) is (s.inexact_by is not None)


def test_references_without_numbers():
    A = tir.placeholder((4,), "float16", name="A")
    for factor, lost in ((1e4, "no number at"), (1.0, "")):
        s = tir.Schedule(tir.compute((4,), lambda i: A[i] * factor * 10 * A[i], name="y"))
        verdict = s.check("device")
        assert verdict and lost in str(verdict) and (lost or "no number" not in str(verdict))
    assert no_numbers((A,), [np.float32([1, np.inf, np.nan, 2])]) == "; the reference has no number at 2 of 4 elements"


@pytest.mark.parametrize("level", ["fast", "emulate", "device"])
def test_what_no_pass_can_lower_is_a_problem_at_every_level(level):
    X = tir.placeholder((8,), name="X")
    s = tir.Schedule(tir.compute((8,), lambda i: X[i] * 2, name="y"), target="opencl" if level == "device" else "cuda")
    outer, inner = s.split("y.i", [None, 4])
    s.bind(outer, "vthread").specialize(inner, f"{outer} < 2")
    verdict = s.check(level)
    assert not verdict and verdict.problems[0].code.startswith("lower.")


def test_of_the_shapes_on_a_device_the_worst_tells_the_error(monkeypatch):
    errors = iter([1e-7, 3e-7, 2e-7, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    compared = verdicts._compared
    monkeypatch.setattr(verdicts, "_compared", lambda *given: replaced(compared(*given), max_error=next(errors)))
    X = tir.placeholder((tir.dim("n", low=1, high=100),), name="X")
    s = tir.Schedule(tir.compute(X.shape, lambda i: X[i] * 2, name="y"))
    s.split("y.i", [None, 4])
    verdict = s.check("device")
    assert verdict and len(verdict.shapes) > 2 and verdict.max_error == 3e-7


def test_a_dim_that_no_argument_tells_is_a_problem_of_the_emulated_text():
    X, n = tir.placeholder((4,), name="X"), tir.dim("n", low=1, high=100)
    s = tir.Schedule(tir.compute((n,), lambda i: X[0] * 2, name="y"), target="cuda")
    verdict = s.check("emulate")
    assert s.check() and not verdict and verdict.problems[0].code == "dim.untold"
