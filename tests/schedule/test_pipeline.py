"""pipeline: copies into shared memory run one iteration ahead, double-buffered."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.lower import pipeline as passes

pytestmark = pytest.mark.usefixtures("unoptimised")

GPU, CUDA = "opencl -kind=gpu", "cuda -arch=sm_80"


def tiled(m: int = 20, n: int = 24, k: int = 40, bk: int = 8, target: str = GPU, vector: int | None = None):
    """A matrix product in blocks of 8 by 12 threads, both operands copied for each ``bk`` terms."""
    a, b = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    kk = tir.reduce_axis(k, "k")
    s = tir.Schedule(tir.compute((m, n), lambda i, j: tir.sum(a[i, kk] * b[kk, j], axis=kk), "C"), target)
    ib, it = s.split("C.i", [None, 8])
    jb, jt = s.split("C.j", [None, 12])
    s.reorder(ib, jb, it, jt, "C.k")
    s.bind(ib, "block.y").bind(jb, "block.x").bind(it, "thread.y").bind(jt, "thread.x")
    ko, _ = s.split("C.k", [None, bk])
    s.stage_in("A", at=ko, scope="shared", vector=vector)
    s.stage_in("B", at=ko, scope="shared", vector=vector)
    return s


def numbers(s: tir.Schedule):
    g = np.random.default_rng(1)
    return [g.integers(-4, 5, tuple(int(e.value) for e in b.shape)).astype("float32") for b in s.program.inputs]


@pytest.mark.parametrize("target", [GPU, CUDA])
@pytest.mark.parametrize(("k", "bk"), [(40, 8), (48, 8), (16, 8), (24, 8), (8, 8), (37, 8), (9, 4), (41, 5)])
def test_it_computes_the_same(target, k, bk):
    s = tiled(k=k, bk=bk, target=target).pipeline("C.k.0")
    verdict = s.check()
    assert verdict, str(verdict)
    if target == GPU and k in (40, 37, 9):  # the device's compiler takes seconds for each
        arrays = numbers(s)
        assert np.array_equal(np.asarray(s.build("opencl:pocl")(*arrays)), arrays[0] @ arrays[1])


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(("m", "n", "k", "vector"), [(20, 24, 40, 4), (8, 12, 48, 4), (13, 7, 37, None)])
def test_the_text_runs_without_a_race(m, n, k, vector):
    s = tiled(m, n, k, target=CUDA, vector=vector).pipeline("C.k.0")
    arrays = numbers(s)
    done = emulate(s.emitted(), arrays)
    assert not done.problems
    assert np.array_equal(done.outputs[0], arrays[0] @ arrays[1])


def test_one_barrier_an_iteration_and_loads_before_the_work():
    plain, ahead = tiled(k=48, target=CUDA), tiled(k=48, target=CUDA).pipeline("C.k.0")
    assert plain.source().count("__syncthreads()") == 2
    text = ahead.source()
    assert text.count("__syncthreads()") == 3, "one before the loop, and one for each of the two iterations in it"
    loop = text[text.index("for (int k_0 = 0; k_0 < 3") :]
    found = [re.search(p, loop) for p in (r"A_shared_next\w*\[0\] =", r"C\[.*\+=", r"= A_shared_next", "__syncthreads")]
    places = [m.start() for m in found if m]
    assert len(places) == 4
    assert places == sorted(places)


def test_shared_memory_doubles_and_the_tree_says_so():
    plain, ahead = tiled(), tiled().pipeline("C.k.0")
    assert ahead.emitted().kernels[0].shared_bytes == 2 * plain.emitted().kernels[0].shared_bytes
    assert "for C.k.0 in 5:  # pipeline depth=2" in str(ahead)


def test_the_trace_replays():
    s = tiled().pipeline("C.k.0")
    assert tir.replay(s.outputs, s.trace.to_json(), target=GPU).source() == s.source()


def test_without_its_barriers_there_is_a_race(monkeypatch):
    s = tiled(k=48).pipeline("C.k.0")
    monkeypatch.setattr(passes, "PASSES", [p for p in passes.PASSES if p.__name__ != "insert_barriers"])
    assert not s.check()


def test_what_the_loop_makes_itself_is_not_copied_ahead():
    """The second copy reads what the first one made: it stays where it is."""
    s = tiled(k=48)
    s.stage_in("A_shared", at="C.k.1", scope="register")
    s.pipeline("C.k.0")
    assert s.check()
    text = s.source()
    assert "A_shared_next[" in text
    assert "A_shared_register_next[" not in text


def test_what_is_computed_into_shared_memory_under_a_guard_runs_ahead_too():
    A, B = tir.placeholder((12, 20), name="A"), tir.placeholder((20, 8), name="B")
    P = tir.compute((20, 8), lambda i, j: B[i, j] * 2, name="P", axes=("k", "j"))
    kk = tir.reduce_axis(20, "k")
    C = tir.compute((12, 8), lambda i, j: tir.sum(A[i, kk] * P[kk, j], axis=kk), name="C")
    s = tir.Schedule(C, GPU)
    ko, _ = s.split("C.k", [None, 8])
    s.reorder(ko, "C.i", "C.j", "C.k.1")
    s.compute_at("P", ko).set_scope("P", "shared").split("P.k", [None, 3])
    s.pipeline(ko)
    verdict = s.check()
    assert verdict, str(verdict)
    a, b = (np.arange(float(np.prod(n)), dtype="float32").reshape(n) % 7 for n in ((12, 20), (20, 8)))
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(a, b)), a @ (2 * b))
    assert "P_next" in s.source()


@pytest.mark.parametrize(
    ("m", "n", "k", "target"),
    [(64, 64, 40, CUDA), (70, 50, 33, GPU), (70, 50, 33, CUDA), (128, 128, 16, GPU), (65, 64, 64, CUDA)],
)
def test_the_matmul_template_takes_turns(m, n, k, target):
    work = tir.ops.matmul(m=m, n=n, k=k)
    config = {**work.templates["gpu_tile"].space.default, "depth": 2, "bk": 8}
    s = work.schedule(config, "gpu_tile", target)
    assert "pipeline depth=" in str(s)
    assert s.check()
    arrays = [np.round(a) for a in work.random_inputs(2)]
    if target == GPU:
        assert np.array_equal(np.asarray(s.build("opencl:pocl")(*arrays)), arrays[0] @ arrays[1])


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.pipeline("C.k", depth="x"), lambda s: s.pipeline("C.k", async_="x"),
        lambda s: s.pipeline("C.k", turns="x"), lambda s: s.partition("C.k", ["x"]),
    ],
)  # fmt: skip
def test_arguments_of_other_types_are_errors_of_the_schedule(call):
    X, k = tir.placeholder((8, 16), name="X"), tir.reduce_axis(16, name="k")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.sum(X[i, k], axis=k), name="C"))
    with pytest.raises(tir.ScheduleError) as e:
        call(s)
    assert e.value.code == "argument.type"
