"""``stage_out`` inside the reduction: a tile is opened again in each piece, from what the piece before wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorir as tir
from tensorir.ir.tree import Stage
from tensorir.ir.visit import find

pytestmark = pytest.mark.usefixtures("unoptimised")

CPU = "opencl -kind=cpu"


def declared(m: int = 13, n: int = 18, k: int = 20, reduce: Any = tir.sum) -> tuple[tir.Tensor, tir.Tensor]:
    a, b = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    kk = tir.reduce_axis(k, "k")
    c = tir.compute((m, n), lambda i, j: reduce(a[i, kk] * b[kk, j], axis=kk), "C")
    return c, tir.compute((m, n), lambda i, j: c[i, j] + 1, "D")


def in_pieces(s: tir.Schedule, depth: int, rows: int, tail: str = "balanced") -> tir.Schedule:
    """Sums in block memory, the reduction in pieces, tiles of a few rows by one vector in registers."""
    block, _ = s.split("D.i", [None, 7])
    s.bind(block, "block.x").set_scope("C", "shared").compute_at("C", block)
    pieces, k = s.split("C.k", [None, depth])
    i0, i1 = s.split("C.i", [None, rows], tail=tail)
    j0, j1 = s.split("C.j", [None, 8])
    s.reorder(pieces, i0, j0, k, i1, j1)
    s.unroll(i1).vectorize(j1)
    out = s.stage_out("C", at=j0, scope="register")
    s.unroll(f"{out.name}.i").vectorize(f"{out.name}.j")
    return s


@pytest.mark.parametrize("tail", ["guard", "balanced", "peel"])
@pytest.mark.parametrize("depth", [1, 8, 20])
@pytest.mark.parametrize("reduce", [tir.sum, tir.max], ids=["sum", "max"])
def test_is_exact_with_every_tail(depth: int, tail: str, reduce: Any) -> None:
    s = in_pieces(tir.Schedule(declared(reduce=reduce)[1], target=CPU), depth, 3, tail)
    verdict = s.check(level="device")
    assert verdict, str(verdict)


def test_sums_pass_from_block_memory_through_registers() -> None:
    """A copy that is staged again: sums of several pieces wait in block memory, a tile of them in registers."""
    c, _ = declared()
    s = tir.Schedule(c, target=CPU)
    block, inside = s.split("C.i", [None, 6])
    pieces, k = s.split("C.k", [None, 7])
    s.reorder(block, pieces, inside, "C.j", k)
    s.bind(block, "block.x")
    s.stage_out("C", at=block, scope="shared")
    s.stage_out("C", at=inside, scope="register")
    assert [x.name for x in find(s.program.body, Stage)] == ["C.init", "C", "C.out_1", "C.out"]
    verdict = s.check(level="device")
    assert verdict, str(verdict)


def test_pieces_along_two_axes_start_once() -> None:
    x, w = tir.placeholder((6, 9), name="x"), tir.placeholder((6, 3), name="w")
    c, r = tir.reduce_axis(6, "c"), tir.reduce_axis(3, "r")
    y = tir.compute((7,), lambda p: tir.sum(x[c, p + r] * w[c, r], axis=(c, r)), "y")
    s = tir.Schedule(y, target=CPU)
    several, one = s.split("y.c", [None, 4])
    s.reorder("y.r", several, "y.p", one)
    s.stage_out("y", at="y.p", scope="register")
    assert "piece=y.r * 2 + y.c.0" in s.tree()
    verdict = s.check(level="device")
    assert verdict, str(verdict)


def test_the_hot_loop_has_no_condition() -> None:
    s = in_pieces(tir.Schedule(declared(m=14, n=16, k=32)[1], target=CPU), 8, 7)
    text = s.source()
    hot = text[text.index("for (long k_1") : text.index("C + out_i", text.index("for (long k_1"))]
    assert "?" not in hot
    assert "if" not in hot
    assert text.count("if (k_0 < 1)") == 1


def test_pieces_keep_their_order() -> None:
    s = in_pieces(tir.Schedule(declared()[1], target=CPU), 8, 3)
    with pytest.raises(tir.ScheduleError, match=r"reorder\.ordered"):
        s.reorder("C.i.0", "C.k.0")


def test_integers_on_the_device_and_the_replayed_trace_agree() -> None:
    _, d = declared()
    s = in_pieces(tir.Schedule(d, target=CPU), 8, 3)
    assert tir.replay(d, s.trace.to_json(), target=CPU).source() == s.source()
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (13, 20)).astype("float32"), rng.integers(-4, 5, (20, 18)).astype("float32")
    expected = tir.Schedule(d, target=CPU).build()(a, b)
    np.testing.assert_array_equal(s.build()(a, b), expected)


def test_cells_outside_are_not_taken_for_zeros_once_they_are_overrun() -> None:
    """A reopened tile is filled with 0 outside the tensor, then the sums run over it: a reader must not count on 0."""
    a, b = tir.placeholder((4, 6), name="A"), tir.placeholder((6, 10), name="B")
    k, l = tir.reduce_axis(6, "k"), tir.reduce_axis(10, "l")
    c = tir.compute((4, 10), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), "C")
    s = tir.Schedule(tir.compute((4,), lambda i: tir.sum(c[i, l], axis=l), "D"), target=CPU)
    s.compute_at("C", "D.i")
    pieces, inside = s.split("C.k", [None, 2])
    s.reorder(pieces, "C.j", inside)
    s.stage_out("C", at=pieces)
    s.compute_inline("C.out")
    s.split("C.init.j", [None, 4])
    s.split("C.j", [None, 4])
    s.stage_out("D", at="D.i")
    s.split("D.l", [None, 4])
    verdict = s.check()
    assert verdict, str(verdict)


def test_threads_read_their_own_cells_behind_a_barrier() -> None:
    """Cells in device memory that several threads read in the piece before belong to one again behind the barrier."""
    a, b, k = tir.placeholder((8, 8), name="A"), tir.placeholder((8, 8), name="B"), tir.reduce_axis(8, name="k")
    c = tir.compute((8, 8), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = tir.Schedule(c, "opencl -kind=gpu")
    i0, i1 = s.split("C.i", [None, 4])
    j0, j1 = s.split("C.j", [None, 4])
    pieces, inside = s.split("C.k", [None, 4])
    s.reorder(i0, j0, pieces, i1, j1, inside).bind(i0, "block.y").bind(j0, "block.x")
    s.bind(i1, "thread.y").bind(j1, "thread.x")
    s.stage_out("C", at=pieces, scope="global")
    verdict = s.check()
    assert verdict, str(verdict)
