"""Legal trees that cannot be expressed, and programs that a pass forgot, are refused by code."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.ir.marks import Pipelined
from tensorir.ir.tree import Kind, Loop, Scope, Stage
from tensorir.ir.visit import find, replace, swap_buffers
from tensorir.lower import pipeline
from tensorir.lower.form import lowering
from tensorir.schedule.analysis import Index


def two(n=8, reverse=True):
    X = tir.placeholder((n, n), name="X")
    P = tir.compute((n, n), lambda i, j: X[i, j] + 1, name="P")
    return tir.Schedule(tir.compute((n, n), lambda i, j: P[i, n - 1 - j] * 2, name="Q"))


def changed(s, old, new):
    s._start(s.program.replace(body=replace(s.program.body, {old: new})))
    return s


def scope_across_kernels():
    s = two()
    s.set_scope("P", "shared")
    return s


def grid_wide():
    s = two()
    s.compute_at("P", "Q.i")
    s.bind("P.j", "block.x")
    return s


def no_constant_box():
    """A register tile whose offset depends on data and on the loop inside its place."""
    B, at = tir.placeholder((9, 4), name="B"), tir.placeholder((4,), "int32", name="at")
    P = tir.compute((9, 4), lambda i, j: B[i, j] + 1, name="P")
    s = tir.Schedule(tir.compute((4, 4), lambda p, q: P[at[p], q], name="G"))
    s.compute_at("P", "G.p")
    loop = next(x for x in find(s.program, Loop) if x.var.name == "P.i")
    return changed(s, loop, loop.replace(extent=loop.var + 1))


def one_extent_per_axis():
    s = two()
    s.compute_at("P", "Q.i")
    s.bind("Q.j", "thread.x")
    loop = Index(s.program).loops["P.j"]
    return changed(s, loop, loop.replace(kind=Kind.THREAD_X, extent=loop.extent + 1))


def test_what_may_be_negative_is_divided():
    X = tir.placeholder((9,), name="X")
    x, (i, j) = np.arange(9, dtype="float32"), np.indices((8, 8))
    by_constants = (lambda i, j: (i - j) // 3 + 4, lambda i, j: (i - j) % 3, lambda i, j: (i - j) // 4 % 5)
    for index in (*by_constants, lambda i, j: (i - j) // (j + 1) + 1, lambda i, j: (i - j) % (j - 9) + 8):
        s = tir.Schedule(tir.compute((8, 8), lambda i, j, index=index: X[index(i, j)], name="Y"))
        assert s.check() and np.array_equal(s.build()(x), x[index(i, j)])


def divergent_barrier():
    """Two stages of one condition hand values to each other."""
    from tensorir.ir.tree import If

    s = two()
    s.compute_at("P", "Q.i")
    s.bind("P.j", "thread.x").bind("Q.j", "thread.x")
    loop = Index(s.program).loops["Q.i"]
    thread = Index(s.program).loops["Q.j"].var
    return changed(s, loop, loop.replace(body=If(thread < 4, loop.body)))


def pad_without_room():
    s = two()
    s.split("Q.i", [None, 3], tail="pad")
    return s


def pipelined_without_copies():
    """A mark that pipeline would not have set."""
    s = two()
    loop = Index(s.program).loops["Q.i"]
    return changed(s, loop, loop.marked(Pipelined(2)))


def whole_array_of_a_thread():
    X = tir.placeholder((2048, 1024), name="X")
    k = tir.reduce_axis(2048, name="k")
    P = tir.compute((2048, 1024), lambda i, j: X[i, j] + 1, name="P")
    s = tir.Schedule(tir.compute((2, 1024), lambda i, j: tir.sum(P[k, j] * i, axis=k), name="Q"))
    s.compute_at("P", "Q.i").bind("Q.i", "block.x")
    return s


CASES = {
    "lower.private-memory": ("keeps 8388608 bytes", whole_array_of_a_thread),
    "lower.pipeline": ("could run ahead", pipelined_without_copies),
    "lower.pad-global": ("has no room", pad_without_room),
    "lower.scope-across-kernels": ("two kernels use it", scope_across_kernels),
    "lower.grid-wide": ("different blocks", grid_wide),
    "lower.one-extent-per-axis": ("extents", one_extent_per_axis),
}


@pytest.mark.parametrize("code", CASES)
def test_refused(code):
    key, make = CASES[code]
    s = make()
    with pytest.raises(tir.LoweringError) as caught:
        s.source()
    assert caught.value.code == code
    assert key in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 14
    if s.trace:  # check replays the trace, which knows nothing of a changed tree
        assert not s.check() or code in ("lower.one-extent-per-axis", "lower.private-memory")  # smaller extents fit


def test_missing_passes_and_forms(monkeypatch):
    s = two()
    for code, passes in {
        "lower.pass-missing": [p for p in pipeline.PASSES if p.__name__ != "finish"],
        "lower.unexpanded": [_forgets("split_init") if p.__name__ == "split_init" else p for p in pipeline.PASSES],
        "lower.form": [_forgets("expand_stages") if p.__name__ == "expand_stages" else p for p in pipeline.PASSES[:10]],
    }.items():
        monkeypatch.setattr(pipeline, "PASSES", passes)
        if code == "lower.form":
            monkeypatch.setattr(pipeline, "REQUIRED", ())
        k = tir.reduce_axis(4, name="k")
        X = tir.placeholder((4, 4), name="X")
        s = tir.Schedule(tir.compute((4,), lambda i, X=X, k=k: tir.sum(X[i, k], axis=k), name="S"))
        with pytest.raises(tir.LoweringError) as caught:
            pipeline.lower(s.program, s.target)
        assert caught.value.code == code


def _forgets(name):
    def f(program, target):
        return program

    f.__name__ = name
    return lowering(f)


def test_a_buffer_without_a_place():
    s = two()
    program = s.program
    for p in pipeline.PASSES:
        program = p(program, s.target)
    for scope in (Scope.AUTO, Scope.REGISTER):
        (b,) = {x for x in find(program.body, Loop)[0].body.children() if False} or {_buffer(program, "P")}
        lost = program.replace(body=swap_buffers(program.body, {b: b.replace(scope=scope)}))
        with pytest.raises(tir.LoweringError) as caught:
            pipeline.verify(lost)
        assert caught.value.code == "lower.form"


def _buffer(program, name):
    from tensorir.ir.visit import writes

    return next(b for b in writes(program.body) if b.name == name)


def test_no_constant_box():
    with pytest.raises(tir.TensorIRError) as caught:
        no_constant_box().source()
    assert caught.value.code in ("lower.box", "declare.symbolic-extent")


def test_divergent_barrier():
    with pytest.raises(tir.LoweringError) as caught:
        divergent_barrier().source()
    assert caught.value.code == "lower.divergent-barrier"


def test_stages_are_found_by_name():
    assert [s.name for s in find(two().program.body, Stage)] == ["P", "Q"]
