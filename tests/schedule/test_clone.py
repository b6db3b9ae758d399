"""clone: a producer of its own for one of several readers."""

import numpy as np
import pytest

import tensorir as tir


def two_readers():
    X = tir.placeholder((6, 8), name="X")
    k = tir.reduce_axis(8, name="k")
    P = tir.compute((6, 8), lambda i, j: X[i, j] * 2, name="P")
    A = tir.compute((6,), lambda i: tir.sum(P[i, k], axis=k), name="A")
    return tir.Schedule(tir.compute((6, 8), lambda i, j: P[i, j] + A[i], name="B"))


def test_each_reader_has_its_own_and_both_are_scheduled_apart():
    s = two_readers()
    made = s.clone("P", for_="B")
    assert made.name == "P.clone" and s["P"].name == "P"
    s.compute_inline("P.clone")
    s.compute_at("P", "A.i")
    assert "X[i, j] * 2.0 + A[i]" in str(s)
    assert s.check()
    x = np.arange(48, dtype="float32").reshape(6, 8)
    assert np.array_equal(s.build()(x), 2 * x + 2 * x.sum(1, keepdims=True))


def test_the_step_replays():
    s = two_readers()
    s["P"].clone(for_=s["A"])
    assert str(s.trace) == "s.clone('P', for_='A')"
    assert str(tir.replay(s.definition, s.trace.to_json())) == str(s) and s.check()


def test_results_of_an_output_and_of_several_values():
    X, k = tir.placeholder((6, 8), name="X"), tir.reduce_axis(8, name="k")
    at = tir.compute((6,), lambda i: tir.argmax(X[i, k], axis=k), name="T")
    B = tir.compute((6,), lambda i: at[i] + 1, name="B")
    s = tir.Schedule((at, B))
    s.clone("T", for_="B")
    s.compute_at("T.clone", "B.i")
    assert len(s.index.stages) == 3 and s.check()


def test_what_is_refused():
    s = two_readers()
    told = {
        "clone.not-read": lambda: s.clone("A", for_="P"),
        "clone.one-reader": lambda: s.clone("A", for_="B"),
    }
    for code, act in told.items():
        with pytest.raises(tir.ScheduleError) as e:
            act()
        assert e.value.code == code
    s.split("P.i", [None, 2])
    with pytest.raises(tir.ScheduleError) as e:
        s.clone("P", for_="B")
    assert e.value.code == "clone.scheduled"
    s.undo().cut("P.i", 2)
    with pytest.raises(tir.ScheduleError) as e:
        s.clone("P", for_="B")
    assert e.value.code == "clone.several-writers"
