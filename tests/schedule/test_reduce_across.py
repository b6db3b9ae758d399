"""Reductions over threads: what their kernels compute, in how many steps, and that faults in them are seen."""

import dataclasses
import re
import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.ir.tree import If, IntrinCall, Var
from tensorir.ir.visit import Rewriter, find
from tensorir.lower import pipeline
from tensorir.lower.form import lowering

CUDA = "cuda -arch=sm_80"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
AFFINE = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="affine", commutative=False)


def sum_of_rows(threads, target="opencl", rows=6, terms=1000, dtype="float32", chunks=False):
    """S[i], the sum of a row, by so many threads: each has every threads-th term, or a chunk of neighbours."""
    A, k = tir.placeholder((rows, terms), dtype, name="A"), tir.reduce_axis(terms, name="k")
    s = tir.Schedule(tir.compute((rows,), lambda i: tir.sum(A[i, k], axis=k), name="S"), target)
    s.bind("S.i", "block.x")
    return across(s, "S.k", threads, chunks)


def across(s, axis, threads, chunks=False):
    outer, inner = s.split(axis, [threads, None] if chunks else [None, threads])
    if chunks:
        return s.reduce_across(outer, "thread.x")
    return s.reorder(inner, outer).reduce_across(inner, "thread.x")


def softmax(target, threads, per_block, scope="shared", rows=10, n=100):
    """Rows of a softmax, some in each block; every thread reads both results of the threads of its row."""
    X, k, q = tir.placeholder((rows, n), name="X"), tir.reduce_axis(n, name="k"), tir.reduce_axis(n, name="q")
    m = tir.compute((rows,), lambda i: tir.max(X[i, k], axis=k), name="m")
    d = tir.compute((rows,), lambda i: tir.sum(tir.exp(X[i, q] - m[i]), axis=q), name="d")
    s = tir.Schedule(tir.compute((rows, n), lambda i, j: tir.exp(X[i, j] - m[i]) / d[i], name="Y"), target)
    block, row = s.split("Y.i", [None, per_block])
    s.bind(block, "block.x").bind(row, "thread.y")
    s.compute_at(d, "Y", row).compute_at(m, "Y", row).set_scope(m, scope).set_scope(d, scope)
    across(across(s, "m.k", threads), "d.q", threads)
    return s.bind(s.split("Y.j", [None, threads])[1], "thread.x")


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 32, 48, 64, 100])
def test_any_number_of_threads(threads):
    s = sum_of_rows(threads)
    assert s.check()
    a = np.random.default_rng(0).integers(-9, 9, (6, 1000)).astype("float32")
    assert np.array_equal(s.build()(a), a.sum(1))


@emulated
@pytest.mark.parametrize("threads", [2, 3, 16, 32, 48, 96, 256, 1024])
def test_any_number_of_threads_on_cuda(threads):
    verdict = sum_of_rows(threads, CUDA, rows=2).check("emulate")
    assert verdict, verdict


@pytest.mark.parametrize(("threads", "rows"), [(16, 3), (32, 2), (24, 5)])
@pytest.mark.parametrize("scope", ["shared", "register"])
def test_results_that_all_threads_read(threads, rows, scope):
    s = softmax("opencl", threads, rows, scope)
    assert s.check(), s.check()
    x = np.random.default_rng(0).standard_normal((10, 100), "float32")
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(s.build()(x), e / e.sum(1, keepdims=True), rtol=1e-5)


@emulated
@pytest.mark.parametrize(("threads", "rows"), [(8, 4), (64, 2), (24, 5)])
@pytest.mark.parametrize("scope", ["shared", "register"])
def test_results_that_all_threads_read_on_cuda(threads, rows, scope):
    verdict = softmax(CUDA, threads, rows, scope).check("emulate")
    assert verdict, verdict


def test_steps_by_shuffles():
    """log2(threads) shuffles: in warps, then of what the warps have; a barrier where these meet."""
    for threads, barriers in ((2, 0), (8, 0), (32, 0), (64, 1), (256, 1), (1024, 1)):
        text = sum_of_rows(threads, CUDA, rows=32).emitted().text if threads >= 32 else (
            softmax(CUDA, threads, 32 // threads, rows=32).emitted().text)  # fmt: skip
        reductions = 1 if threads >= 32 else 2
        assert text.count("__shfl_down_sync(") == reductions * (threads.bit_length() - 1), threads
        assert threads < 32 or text.count("__syncthreads()") == barriers, threads


def test_steps_in_shared_memory():
    """ceil(log2(threads)) steps where there are no shuffles, with a barrier before each."""
    for threads, steps in ((2, 1), (5, 3), (64, 6), (100, 7), (1024, 10)):
        text = sum_of_rows(threads).emitted().text
        assert len(re.findall(r"S_tree\[k_1\] \+=", text)) == steps
        assert text.count("barrier(CLK_LOCAL_MEM_FENCE)") == steps


@pytest.mark.parametrize("target", ["opencl", CUDA])
def test_what_no_shuffle_takes_goes_through_shared_memory(target):
    for s in (sum_of_rows(64, target, dtype="int16"), sum_of_rows(48, target)):
        assert "shfl" not in s.emitted().text and s.check()


def test_a_wave_of_another_width_has_no_shuffles():
    assert "shfl" not in sum_of_rows(64, "hip").emitted().text


def affine_maps(target, threads, n=97):
    P, Q = (tir.placeholder((3, n), "uint32", name=x) for x in "PQ")
    k = tir.reduce_axis(n, name="k")
    s = tir.Schedule(tir.compute((3,), lambda i: AFFINE((P[i, k], Q[i, k]), axis=k), name="M"), target)
    stage = s.stages()[0].name
    s.bind(f"{stage}.i", "block.x")
    return across(s, f"{stage}.k", threads, chunks=True)


@pytest.mark.parametrize("threads", [2, 5, 32, 64])
def test_a_combiner_that_does_not_commute_joins_neighbours(threads):
    s = affine_maps("opencl", threads)
    assert s.check(), s.check()
    p, q = np.random.default_rng(0).integers(0, 2**32, (2, 3, 97), dtype=np.uint64).astype("uint32")
    got_p, got_q = s.build()(p, q)
    a, b = np.ones(3, "uint32"), np.zeros(3, "uint32")
    for k in range(97):
        a, b = a * p[:, k], b * p[:, k] + q[:, k]
    assert np.array_equal(got_p, a) and np.array_equal(got_q, b)


@emulated
@pytest.mark.parametrize("threads", [5, 16, 64])
def test_a_combiner_that_does_not_commute_on_cuda(threads):
    verdict = affine_maps(CUDA, threads).check("emulate")
    assert verdict, verdict


def test_terms_out_of_order_are_refused():
    """Each thread would have every fifth term, and these are not neighbours."""
    s = affine_maps("opencl", 1)
    s = tir.Schedule(s.outputs)
    stage = s.stages()[0].name
    outer, inner = s.split(f"{stage}.k", [None, 5])
    with pytest.raises(tir.ScheduleError) as caught:
        s.reorder(inner, outer)
    assert caught.value.code == "reorder.ordered"


@pytest.mark.parametrize("target", ["opencl", CUDA])
def test_rows_of_columns(target):
    """Sums over the first axis: threads along y have parts of them, those along x columns, four in a vector."""
    B, r = tir.placeholder((50, 40), name="B"), tir.reduce_axis(50, name="r")
    s = tir.Schedule(tir.compute((40,), lambda j: tir.sum(B[r, j], axis=r), name="T"), target)
    block, column, lane = s.split("T.j", [None, 4, 4])
    outer, inner = s.split("T.r", [8, None])
    s.bind(block, "block.x").bind(column, "thread.x").reorder(outer, inner, lane).vectorize(lane)
    s.reduce_across(outer, "thread.y")
    assert s.check(), s.check()
    if target == "opencl":
        b = np.random.default_rng(0).integers(-9, 9, (50, 40)).astype("float32")
        assert np.array_equal(s.build()(b), b.sum(0))


@pytest.mark.parametrize("target", ["opencl", pytest.param(CUDA, marks=emulated)])
def test_rows_and_terms_known_at_launch(target):
    n, m = tir.dim("n", low=1, high=30), tir.dim("m", low=1, high=500)
    A, k = tir.placeholder((n, m), name="A"), tir.reduce_axis(m, name="k")
    s = tir.Schedule(tir.compute((n,), lambda i: tir.sum(A[i, k], axis=k), name="S"), target)
    block, row = s.split("S.i", [None, 2])
    across(s.bind(block, "block.x").bind(row, "thread.y"), "S.k", 64)
    if target == CUDA:
        assert s.check("emulate"), s.check("emulate")
        return
    f = s.build()
    for shape in ((1, 1), (7, 333), (30, 500)):
        a = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
        assert np.array_equal(f(a), a.sum(1))


def test_an_initial_value_in_a_nest_of_its_own():
    s = sum_of_rows(64)
    s.decompose_reduction("S", "S.k.1")
    assert s.check(), s.check()
    a = np.random.default_rng(0).integers(-9, 9, (6, 1000)).astype("float32")
    assert np.array_equal(s.build()(a), a.sum(1))


def test_the_trace_replays():
    s = softmax("opencl", 16, 3)
    assert str(tir.replay(s.outputs, s.trace)) == str(s)
    assert tir.replay(s.outputs, s.trace, target=CUDA).check()


def test_floats_are_the_same_in_every_run():
    f = sum_of_rows(100).build()
    a = np.random.default_rng(0).standard_normal((6, 1000), "float32")
    assert len({f(a).tobytes() for _ in range(5)}) == 1


# --- faults that are planted are seen


@pytest.mark.parametrize(("target", "threads"), [("opencl", 64), (CUDA, 64), (CUDA, 48)])
def test_without_barriers_the_interpreter_sees_a_race(monkeypatch, target, threads):
    monkeypatch.setattr(pipeline, "PASSES", [p for p in pipeline.PASSES if p is not pipeline.insert_barriers])
    verdict = sum_of_rows(threads, target).check()
    assert not verdict and "race" in str(verdict)


def test_a_shuffle_that_not_all_lanes_reach_is_seen(monkeypatch):
    @lowering
    def half_of_the_lanes(program, target):
        lane = next(v for v in find(program.body, Var) if v.name == "S.k.1")

        class Diverge(Rewriter):
            def on_IntrinCall(self, n):
                return If(lane < 16, n)

        return program.replace(body=Diverge()(program.body)) if find(program.body, IntrinCall) else program

    monkeypatch.setattr(pipeline, "PASSES", [*pipeline.PASSES, half_of_the_lanes])
    verdict = sum_of_rows(32, CUDA).check()
    assert not verdict and "warp.divergent" in str(verdict)


def faults(source, text):
    """The codes of a text, and whether its sums are wrong."""
    a = np.random.default_rng(0).integers(-9, 9, (6, 1000)).astype(source.inputs[0].dtype)
    assert text != source.text
    done = emulate(dataclasses.replace(source, text=text), [a])
    return {p.code for p in done.problems}, not np.array_equal(done.outputs[0], a.sum(1))


@emulated
def test_the_emulator_sees_a_missing_barrier():
    for dtype in ("float32", "int16"):
        source = sum_of_rows(64, CUDA, dtype=dtype).emitted()
        lines = source.text.splitlines()
        for at in (n for n, line in enumerate(lines) if "__syncthreads" in line):
            codes, _ = faults(source, "\n".join([*lines[:at], *lines[at + 1 :]]))
            assert "race.shared" in codes, lines[at + 1]


@emulated
def test_the_emulator_sees_a_wrong_exchange():
    source = sum_of_rows(64, CUDA).emitted()
    assert faults(source, source.text.replace("S_part[0], 4)", "S_part[0], 5)"))[1]
    one = "S_other[0] = __shfl_down_sync(0xffffffffu, S_part[0], 4);"
    assert one in source.text
    assert "warp.divergent" in faults(source, source.text.replace(one, f"if (k_1 % 32 < 16) {one}"))[0]
