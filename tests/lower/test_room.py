"""What a device cannot hold is refused by the step that asks for it, else wherever the schedule becomes kernels."""

import pytest

import tensorir as tir
from tensorir.errors import CompileError, LoweringError

X = tir.placeholder((64, 4096), name="X")


def doubled(target):
    y = tir.compute((64, 4096), lambda i, j: X[i, j] * 2.0, name="Y")
    return tir.Schedule(y, target=target)


def copied(target, rows):
    """Rows of X in shared memory, 16 KB each."""
    s = doubled(target)
    b, _ = s.split("Y.i", [None, rows])
    s.bind(b, "block.x")
    return s, lambda: s.stage_in(X, at=b, scope="shared")


ROOM = {"cuda -arch=sm_75": 4, "cuda -arch=sm_80": 10, "cuda -arch=sm_89": 6, "cuda -arch=sm_90a": 14,
        "opencl -kind=gpu": 3, "opencl": 32, "hip": 4}  # fmt: skip
"""Rows of 16 KB that a block of each has room for."""


@pytest.mark.parametrize("target", ROOM)
def test_a_copy_is_refused_where_the_device_has_no_room(target):
    s, stage = copied(target, ROOM[target])
    stage()
    assert s.source()
    s, stage = copied(target, ROOM[target] + 1)
    tree, trace = s.tree(), str(s.trace)
    with pytest.raises(CompileError, match=rf"needs {16384 * (ROOM[target] + 1)} bytes of shared memory") as caught:
        stage()
    (problem,) = caught.value.problems
    assert problem.code == "compile.shared-memory" and problem.hint
    assert "X_shared" in problem.at and "s.stage_in(" in problem.at and "test_room.py" in problem.at
    assert (s.tree(), str(s.trace)) == (tree, trace)


def test_what_no_limit_is_known_of_is_not_refused():
    s, stage = copied("cuda -arch=sm_80 -shared_optin_bytes=0", 32)
    stage()
    assert s.emitted().kernels[0].shared_bytes == 32 << 14


def near(target):
    """A stage between X and Y in one kernel, of which a block has 32 rows, 512 KB."""
    a = tir.compute((64, 4096), lambda i, j: X[i, j] + 1.0, name="A")
    s = tir.Schedule(tir.compute((64, 4096), lambda i, j: a[i, j] * a[i, 4095 - j], name="Y"), target=target)
    b, _ = s.split("Y.i", [None, 32])
    s.bind(b, "block.x")
    return s, b


def test_every_step_that_puts_arrays_into_shared_memory_asks():
    s, b = near("cuda -arch=sm_80")
    s["A"].compute_at(b)
    with pytest.raises(CompileError, match="524288 bytes"):
        s.set_scope("A", "shared")
    s, b = near("cuda -arch=sm_80")
    s.set_scope("A", "shared")
    with pytest.raises(CompileError, match="524288 bytes"):
        s["A"].compute_at(b)
    s = doubled("cuda -arch=sm_80")
    b, _ = s.split("Y.i", [None, 32])
    s.bind(b, "block.x")
    with pytest.raises(CompileError, match="524288 bytes"):
        s.stage_out("Y", at=b, scope="shared")
    assert len(s.trace) == 2


def later(target="cuda -arch=sm_80"):
    """A copy of 128 KB that a pipeline has twice; the step itself is taken back."""
    s = doubled(target)
    b, i = s.split("Y.i", [None, 16])
    s.bind(b, "block.x")
    o, _ = s.split(i, [None, 8])
    s.stage_in(X, at=o, scope="shared")
    return s, o


def test_pipelines_have_room_for_their_stages():
    s, o = later()
    with pytest.raises(CompileError, match="262144 bytes"):
        s.pipeline(o, depth=2)
    s, o = later("cuda -arch=sm_80 -shared_optin_bytes=400000")
    s.pipeline(o, depth=2)
    assert s.emitted().kernels[0].shared_bytes == 262144


def too_large():
    """A schedule that is legal for its own target, and too large for sm_80."""
    s, stage = copied("cuda -arch=sm_90a", 14)
    stage()
    return s


def test_what_becomes_too_large_later_is_refused_by_all_that_make_kernels(tmp_path):
    s = too_large()
    for ask in (s.source, s.emitted):
        with pytest.raises(CompileError, match=r"CUDA sm_80 has 166912") as caught:
            ask("cuda -arch=sm_80")
        assert "s.stage_in('X', 'Y.i.0', 'shared')" in str(caught.value)
    small = tir.replay(s.outputs, s.trace, "cuda -arch=sm_90a")
    small.target = tir.Target.parse("cuda -arch=sm_80")  # (as if a step that does not ask had made it larger)
    for level in ("fast", "emulate"):
        verdict = small.check(level)
        assert [p.code for p in verdict.problems] == ["compile.shared-memory"]
    with pytest.raises(CompileError):
        small.export(tmp_path / "k", to="cupy")
    assert not (tmp_path / "k").exists()


def test_traces_that_a_target_cannot_hold_do_not_replay():
    s = too_large()
    with pytest.raises(CompileError, match="229376 bytes"):
        tir.replay(s.outputs, s.trace, "cuda -arch=sm_80")


def test_grids_of_another_target_are_refused():
    x = tir.placeholder((70000, 2), name="x")
    y = tir.compute((70000, 2), lambda i, j: x[i, j] + 1.0, name="y")
    s = tir.Schedule(y, "opencl")
    s.bind("y.i", "block.y")
    assert s.source()
    with pytest.raises(CompileError, match=r"block\.y has extent 70000") as caught:
        s.source("cuda -arch=sm_80")
    assert caught.value.code == "compile.grid"


def test_threads_of_another_target_are_refused():
    x = tir.placeholder((2048,), name="x")
    s = tir.Schedule(tir.compute((2048,), lambda i: x[i] + 1.0, name="y"), "opencl")
    s.bind("y.i", "thread.x")
    with pytest.raises(CompileError, match="2048 threads") as caught:
        s.source("cuda -arch=sm_80")
    assert caught.value.code == "compile.threads"


def test_what_each_thread_of_a_gpu_keeps_has_a_limit():
    x = tir.placeholder((8, 1 << 18), name="x")
    a = tir.compute((8, 1 << 18), lambda i, j: x[i, j] + 1.0, name="A")
    s = tir.Schedule(tir.compute((8, 1 << 18), lambda i, j: a[i, (1 << 18) - 1 - j], name="y"), "cuda -arch=sm_80")
    s.bind("y.i", "thread.x")
    s["A"].compute_at("y.i")
    s.set_scope("A", "register")
    with pytest.raises(LoweringError, match="keeps 1048576 bytes") as caught:
        s.source()
    assert caught.value.code == "lower.private-memory"
