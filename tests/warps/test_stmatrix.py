"""Results of 16 bits that stmatrix brings from the registers of warps to shared memory."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from products import KINDS, ROWS, blocked, fragments, given

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.intrin.intrin import INTRINSICS, intrinsic

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def stored(m, n, k, order="n", dtype="float16", target="cuda -arch=sm_90"):
    """Four warps, whose results leave by way of shared memory; order: "t" if the result is (n, m)."""
    s = blocked(m, n, k, "nt", dtype, target=target, halves=order)
    s.stage_out("out", at="out.j.0", scope="shared", vector=8, layout=ROWS.format(64, 8))
    i0, i1 = s.split("out.i.2", [None, 16])
    j0, j1 = s.split("out.j.2", [None, 16])
    s.reorder(i0, j0, i1, j1)
    copy = s.stage_out("out", at=j0, scope="warp")
    s.tensorize(copy.axes[-2], f"stmatrix.m16.{KINDS[dtype]}.{order}")
    return fragments(s, "nt", dtype)


def run(s, m, n, k, order, dtype="float16"):
    """What the emulator makes of it, and whether that is exact."""
    arrays, want = given(m, n, k, "nt", dtype)
    got = emulate(s.emitted(), arrays)
    out = got.outputs[0]
    return got, np.array_equal(out, (want if order == "n" else want.T).astype(out.dtype))


@emulated
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("order", ["n", "t"])
def test_text_stores(order, dtype):
    """Rows and columns that end within a tile: it is stored whole, and what is beyond goes nowhere."""
    s = stored(88, 72, 32, order, dtype)
    assert ("tir_stmatrix_x4_trans(" if order == "t" else "tir_stmatrix_x4(") in s.source()
    got, right = run(s, 88, 72, 32, order, dtype)
    assert not got.problems, got.problems
    assert right
    shared = [t for t in got.traffic if t.what.startswith("shared")]
    assert {t.width for t in shared} == {16}
    writes = [t for t in got.traffic if t.what == "shared write" and s.source().splitlines()[t.line - 1].count("stmat")]
    assert sum(t.units for t in writes) == sum(t.ideal for t in writes) == 64 * 64 * 2 // 128


@pytest.mark.parametrize("order", ["n", "t"])
def test_schedules_are_proved(order):
    s = stored(64, 72, 32, order)
    verdict = s.check()
    assert verdict, verdict
    assert tir.Schedule(s.outputs, target=s.target).replay(s.trace).source() == s.source()


@emulated
def test_a_wrong_table_is_a_wrong_result(monkeypatch):
    """Which lane points to which row: the emulator's stmatrix is written after the manual."""
    right = intrinsic("stmatrix.m16.f16.n")
    wrong = replace(right, addresses={"d": "i, j -> i/8, j/8, i%8 | j%8"})
    monkeypatch.setitem(INTRINSICS, wrong.name, wrong)
    s = stored(64, 64, 32)
    assert s.check(), "the interpreter goes by the table"
    got, same = run(s, 64, 64, 32, "n")
    assert not got.problems
    assert not same


def test_needs():
    with pytest.raises(tir.ScheduleError) as e:
        stored(64, 64, 32, target="cuda -arch=sm_80")
    assert e.value.problems[0].code == "tensorize.needs"
    s = blocked(64, 64, 32, target="cuda -arch=sm_90", halves="n")
    s.stage_out("out", at="out.j.1", scope="warp")  # tiles of 32 x 32
    with pytest.raises(tir.ScheduleError) as e:
        s.tensorize("out.out.i", "stmatrix.m16.f16.n")
    assert e.value.problems[0].code == "tensorize.same-meaning"
