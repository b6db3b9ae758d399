"""``split(…, tail="pad")``: whole tiles without a condition, on copies that have room for them."""

from __future__ import annotations

from typing import Any

import pytest

import tensorir as tir

CPU = "opencl -kind=cpu"


def padded(reduce: Any = tir.sum, m: int = 13, n: int = 18, k: int = 21, dtype: str = "float32") -> tir.Schedule:
    a, b = tir.placeholder((m, k), dtype, name="A"), tir.placeholder((k, n), dtype, name="B")
    kk = tir.reduce_axis(k, "k")
    c = tir.compute((m, n), lambda i, j: reduce(a[i, kk] * b[kk, j], axis=kk), "C")
    s = tir.Schedule(c, target=CPU)
    i0, i1 = s.split("C.i", [None, 4], tail="pad")
    j0, j1 = s.split("C.j", [None, 8], tail="pad")
    k0, k1 = s.split("C.k", [None, 4], tail="pad")
    s.reorder(i0, j0, k0, k1, i1, j1)
    s.bind(i0, "block.x").unroll(i1).vectorize(j1)
    s.stage_out("C", at=j0)
    return s


def hot(s: tir.Schedule) -> str:
    """The loop that sums."""
    text = s.source()
    start = text.index("for (long k_1")
    return text[start : text.index("out_i", start)]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("reduce", [tir.sum, tir.max, tir.prod], ids=["sum", "max", "prod"])
def test_terms_beyond_the_end_are_the_initial_value(reduce: Any, dtype: str) -> None:
    verdict = padded(reduce, dtype=dtype).check(level="device")
    assert verdict, str(verdict)


def test_no_condition_is_left_where_copies_hold_zeros() -> None:
    s = padded()
    assert "if (" in hot(s)
    s.stage_in("A", at="C.k.0", scope="shared")
    s.stage_in("B", at="C.k.0", scope="shared")
    assert not any(word in hot(s) for word in ("if", "?", "min"))
    verdict = s.check(level="device")
    assert verdict, str(verdict)


def test_a_copy_of_its_own_holds_whole_tiles() -> None:
    x = tir.placeholder((13,), name="X")
    s = tir.Schedule(tir.compute((13,), lambda i: tir.exp(x[i]) + 1, "Y"), target=CPU)
    tiles, inside = s.split("Y.i", [None, 4], tail="pad")
    s.stage_out("Y", at=tiles)
    s.unroll(inside)
    verdict = s.check(level="device")
    assert verdict, str(verdict)


def test_the_trace_replays() -> None:
    s = padded()
    assert tir.replay(s.outputs, s.trace.to_json(), target=CPU).source() == s.source()
    assert "tail='pad'" in str(s.trace)


def test_without_room_lowering_says_what_to_do() -> None:
    x = tir.placeholder((13,), name="X")
    s = tir.Schedule(tir.compute((13,), lambda i: x[i] + 1, "Y"), target=CPU)
    s.split("Y.i", [None, 4], tail="pad")
    with pytest.raises(tir.LoweringError, match=r"stage_out\('Y'"):
        s.source()


def test_a_length_that_divides_needs_nothing() -> None:
    x = tir.placeholder((12,), name="X")
    s = tir.Schedule(tir.compute((12,), lambda i: x[i] + 1, "Y"), target=CPU)
    s.split("Y.i", [None, 4], tail="pad")
    assert "if" not in s.source().split("__kernel")[1]
