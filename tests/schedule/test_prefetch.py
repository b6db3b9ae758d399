"""prefetch: requests for cache lines, which mean nothing and stand where they were asked for."""

from __future__ import annotations

import numpy as np

import tensorir as tir

CPU = "opencl -kind=cpu"


def panels(m: int = 6, k: int = 40, n: int = 64) -> tir.Tensor:
    a, b = tir.placeholder((m, k), name="A"), tir.placeholder((n // 16, k, 16), name="B")
    kk = tir.reduce_axis(k, "k")
    return tir.compute((m, n), lambda i, j: tir.sum(a[i, kk] * b[j // 16, kk, j % 16], axis=kk), "C")


def tiled(target: str = CPU) -> tir.Schedule:
    s = tir.Schedule(panels(), target=target)
    panel, lane = s.split("C.j", [None, 16])
    s.reorder(panel, "C.k", "C.i", lane).unroll("C.i").vectorize(lane)
    return s


def test_the_next_panel_is_asked_for() -> None:
    s = tiled().prefetch("B", at="C.k", ahead="C.j.0")
    assert "prefetch B[ax0, ax1, ax2]" in s.tree()
    assert "FETCH(B + j_0 * 640 + k * 16 + 640);" in s.source()
    assert "B.fetch(ax0=C.j.0 + 1, ax1=C.k, ax2=0)" in s.tree()
    verdict = s.check(level="device")
    assert verdict, str(verdict)


def test_further_iterations_of_the_loop_itself() -> None:
    s = tiled().prefetch("B", at="C.k", distance=8)
    assert "FETCH(B + j_0 * 640 + k * 16 + 128);" in s.source()


def test_every_line_that_an_iteration_reads() -> None:
    s = tir.Schedule(panels(), target=CPU)
    several, four = s.split("C.k", [None, 4])
    s.reorder(several, "C.i", "C.j", four)
    s.prefetch("A", at="C.i", ahead=several)
    text = s.source()
    assert text.count("FETCH(A +") == 1
    s = tir.Schedule(panels(), target=CPU)
    s.prefetch("A", at="C.i")
    assert "for A.fetch.ax1 in 3:  # unroll" in s.tree()


def test_the_trace_replays() -> None:
    c = panels()
    s = tir.Schedule(c, target=CPU)
    s.prefetch("A", at="C.i", distance=2)
    assert tir.replay(c, s.trace.to_json(), target=CPU).source() == s.source()


def test_other_languages_leave_it_out() -> None:
    s = tiled().prefetch("B", at="C.k", ahead="C.j.0")
    assert "FETCH" not in s.source("cuda -arch=sm_80")


def test_what_is_staged_afterwards_is_not_asked_for() -> None:
    s = tiled().prefetch("B", at="C.k", ahead="C.j.0")
    s.stage_in("B", at="C.j.0", scope="shared")
    assert "FETCH(" not in s.source()
    assert s.check()


def test_results_are_the_same() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (6, 40)).astype("float32"), rng.integers(-4, 5, (4, 40, 16)).astype("float32")
    plain, asked = tiled().build()(a, b), tiled().prefetch("B", at="C.k", ahead="C.j.0").build()(a, b)
    np.testing.assert_array_equal(plain, asked)
