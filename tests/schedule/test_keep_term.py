"""keep_term: reductions without terms that add nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.ir.text import show
from tensorir.ir.tree import Load, Stage
from tensorir.ir.visit import find


def spread(first=0, fill=0, op=tir.sum):
    """Every third element of P, from ``first`` on, is one of A; each C meets one of those."""
    A, B = tir.placeholder((5,), name="A"), tir.placeholder((3,), name="B")
    P = tir.compute((13,), lambda i: tir.where(tir.equal(i % 3, first), A[i // 3], fill), name="P")
    k = tir.reduce_axis(3, name="k")
    return tir.Schedule(tir.compute((11,), lambda i: op(P[i + k] * B[k], axis=k), name="C"))


def test_one_term_is_left():
    s = spread(1)
    s.keep_term("C.k", "1 - C.i + 3 * ((C.i + 1) // 3)")
    stage = find(s.program, Stage)[-1]
    assert [it.var.name for it in stage.iters] == ["i"] and [str(x) for x in s.loops("C")] == ["C.i"]
    at = {x.buffer.name: [show(i) for i in x.index] for x in find(stage.body, Load)}
    assert at["P"] == ["(i + 1) // 3 * 3 + 1"]
    assert s.check()
    again = tir.replay(s.outputs, s.trace.to_json())
    assert str(again) == str(s) and again.source() == s.source()
    a, b = np.arange(5, dtype="float32"), np.array([2, 3, 5], "float32")
    assert np.array_equal(s.build()(a, b), spread(1).build()(a, b))
    with pytest.raises(tir.ScheduleError) as e:
        s.unroll("C.k")
    assert e.value.code == "loop.gone" and "kept alone" in str(e.value)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from("nchw"), st.integers(2, 4), st.integers(1, 5), st.integers(0, 4), st.integers(0, 3))
def test_strides_of_any_convolution(layout, stride, r, pad, size):
    """The taps that a pixel meets follow from what the stride leaves of it."""
    layout, rows = ("NCHW" if layout == "n" else "NHWC"), max(r - 2 * pad, 1) + size
    dy_rows = (rows + 2 * pad - r) // stride + 1
    dy = tir.placeholder((1, 2, dy_rows, dy_rows) if layout == "NCHW" else (1, dy_rows, dy_rows, 2), name="dy")
    w = tir.placeholder((2, 3, r, r) if layout == "NCHW" else (2, r, r, 3), name="w")
    s = tir.Schedule(tir.nn.conv2d_backward_data(dy, w, (rows, rows), stride=stride, pad=pad, layout=layout))
    old = "n, c, h, w" if layout == "NCHW" else "n, h, w, c"
    new = old.replace("h, w", f"u = h%{stride}, p = h/{stride}, w")
    s.reindex("dx", f"{old} | k, -r, s -> {new}, k, a = r%{stride}, r = r/{stride}, s",
              reads={"w": "a, r, s, c, k"}, writes=old.replace("h, w", "u, p, w"))  # fmt: skip
    first = (r - 1 - pad) % stride
    right = f"{first} - dx.u + {stride} * ((dx.u + {stride - 1 - first}) // {stride})"
    other = s.fork()
    try:  # the next tap: refused, or right where all that is left reads nothing but zeros
        other.keep_term("dx.a", f"({right} + 1) % {stride}")
    except tir.ScheduleError as e:
        assert e.code == "keep-term.counts"
    else:
        assert not compare(other, Field(), 0)
    s.keep_term("dx.a", right)
    differs = compare(s, Field(), 0)
    assert not differs, f"{differs}\n{s}"


def test_as_many_cases_as_are_tried_are_proved(monkeypatch):
    value = "1 - C.i + 3 * ((C.i + 1) // 3)"  # of 3 terms and 11 cells
    monkeypatch.setattr("tensorir.schedule.primitives.terms.MOST_TRIED", 33)
    assert spread(1).keep_term("C.k", value).check()
    monkeypatch.setattr("tensorir.schedule.primitives.terms.MOST_TRIED", 32)
    with pytest.raises(tir.ScheduleError, match="33 cases to prove, more than 32"):
        spread(1).keep_term("C.k", value)


def test_a_text_that_closes_the_comparison_is_no_value():
    X, r = tir.placeholder((8, 16), name="X"), tir.reduce_axis(16, name="r")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.sum(X[i, r], axis=r), name="C"))
    with pytest.raises(tir.ScheduleError, match="is no index") as e:
        s.keep_term("C.r", "0) or (C.i == 1")
    assert e.value.code == "keep-term.value"
