"""Sums that threads and blocks add to atomically: legal, exact, and no race; anything else beside them is one."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.ir.build import binary
from tensorir.ir.tree import Load, Store
from tensorir.ir.visit import Rewriter
from tensorir.lower import pipeline

CUDA = "cuda -arch=sm_80"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def columns(target=CUDA, dtype="float32", rows=37):
    """Sums of the columns of a matrix."""
    x = tir.placeholder((rows, 24), dtype, name="x")
    k = tir.reduce_axis(rows, name="k")
    return tir.Schedule(tir.compute((24,), lambda j: tir.sum(x[k, j], axis=k), name="y"), target)


def added(target=CUDA, dtype="float32", rows=37):
    """The same: blocks and threads take rows, and add each to the result."""
    s = columns(target, dtype, rows)
    s.decompose_reduction("y", "y.j")
    s.bind("y.init.j", "thread.x").atomic("y")
    block, thread = s.split("y.k", [None, 8])
    return s.bind(block, "block.x").bind(thread, "thread.y").bind("y.j", "thread.x")


def given(dtype="float32", rows=37):
    return np.random.default_rng(0).integers(0 if dtype == "uint32" else -9, 10, (rows, 24)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
def test_threads_and_blocks_add_to_one_element(dtype):
    s = added(dtype=dtype)
    verdict = s.check()
    assert verdict, verdict
    if shutil.which("g++"):
        assert s.check("emulate")
        for seed in range(3):
            got = emulate(s.emitted(), [given(dtype)], seed)
            assert not got.problems
            assert np.array_equal(got.outputs[0], given(dtype).sum(0))


def test_text(golden):
    s = added()
    golden(f"{s.tree()}\n\n{s.source()}", "schedule/atomic_kernels.txt")
    assert tir.replay(s.outputs, s.trace, target=CUDA).tree() == s.tree()


class _Divided(Rewriter):
    """A sum in two steps: what another thread adds between them is lost."""

    def on_Store(self, n: Store) -> Store:
        value = binary("+", Load(n.buffer, n.index, n.buffer.dtype), n.value)
        return n.replace(value=value, adds=False) if n.adds else n


def test_sums_in_two_steps_are_a_race(monkeypatch):
    expand = next(p for p in pipeline.PASSES if p.__name__ == "expand_updates")

    def divided(program, target):
        done = expand(program, target)
        return done.replace(body=_Divided()(done.body))

    monkeypatch.setattr(pipeline, "PASSES", [divided if p is expand else p for p in pipeline.PASSES])
    verdict = added().check()
    assert not verdict
    assert {p.code for p in verdict.problems} == {"race.global"}


EDITS = {
    "race.global": [
        ("atomicAdd(y + j, x[k_0 * 192 + k_1 * 24 + j])", "y[j] += x[k_0 * 192 + k_1 * 24 + j]"),
        ("atomicAdd(", "y[j] = 0.0f, atomicAdd("),
        ("x[k_0 * 192 + k_1 * 24 + j]);", "x[k_0 * 192 + k_1 * 24 + j]), y[j] = 0.0f;"),
        ("x[k_0 * 192 + k_1 * 24 + j]);", "y[(j + 1) % 24]);"),
    ],
    "memory.uninitialised": [("y[init_j] = 0.0f;", ";")],
    "memory.out-of-bounds": [("atomicAdd(y + j", "atomicAdd(y + j + 24")],
}


@emulated
@pytest.mark.parametrize(("code", "old", "new"), [(c, *e) for c, edits in EDITS.items() for e in edits])
def test_the_emulator_tells_what_is_no_atomic_sum(code, old, new):
    source = added().emitted()
    assert old in source.text
    got = emulate(dataclasses.replace(source, text=source.text.replace(old, new)), [given()])
    assert code in {p.code for p in got.problems}


BUILT = ("float32", "int32", "uint32")


@pytest.mark.parametrize("dtype", BUILT[:2])
def test_text_of_opencl(dtype, golden):
    golden(added("opencl", dtype).source(), f"schedule/atomic_{dtype}.cl.txt")


@pytest.mark.parametrize("dtype", BUILT)
def test_text_of_hip(dtype):
    assert "atomicAdd(y + j, x[" in added("hip", dtype).source()


def numbers(dtype, shape, seed):
    """Numbers of all bits, whose sums wrap around; floats are small integers."""
    draw = np.random.default_rng(seed)
    if dtype == "float32":
        return draw.integers(-9, 10, shape).astype(dtype)
    ends = np.iinfo(dtype)
    return draw.integers(ends.min, ends.max, shape, dtype, endpoint=True)


@given_by(
    dtype=st.sampled_from(BUILT),
    rows=st.integers(1, 70),
    columns=st.integers(1, 20),
    piece=st.integers(1, 9),
    lanes=st.sampled_from([1, 2, 4, 8]),
    axes=st.sampled_from([("block.x", "thread.x"), ("block.x", ""), ("", "thread.x"), ("", "block.x"), ("", "")]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=20, deadline=None)
def test_sums_on_the_device_are_numpys(dtype, rows, columns, piece, lanes, axes, seed):
    """Blocks, threads, both or neither of them take rows; lanes that take columns add one by one."""
    x, k = tir.placeholder((rows, columns), dtype, name="x"), tir.reduce_axis(rows, name="k")
    y = tir.compute((columns,), lambda j: tir.sum(x[k, j] * 3, axis=k), name="y")
    s = tir.Schedule(y, "opencl")
    s.decompose_reduction("y", "y.j").schedule.atomic("y")
    outer, inner = s.split("y.k", [None, piece])
    column, lane = s.split("y.j", [None, lanes])
    s.reorder(outer, inner, column, lane)
    for loop, axis in zip((outer, inner), axes, strict=True):
        if axis:
            s.bind(loop, axis)
    if lanes > 1:
        s.vectorize(lane)
    assert s.check()
    given = numbers(dtype, (rows, columns), seed)
    f = s.build()
    for _ in range(2):
        assert np.array_equal(f(given), (given * given.dtype.type(3)).sum(0, dtype=dtype))


def test_lanes_add_one_by_one_and_the_text_says_so():
    s = columns("opencl", "int32")
    s.decompose_reduction("y", "y.j").schedule.atomic("y")
    column, lane = s.split("y.j", [None, 8])
    s.reorder("y.k", column, lane).bind("y.k", "block.x").vectorize(lane)
    assert "// not in vectors: lanes add to y atomically, one by one" in s.source()
    assert s.check()
