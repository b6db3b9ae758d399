"""A slice of ``integer_cases.py``, which draws 100,000: no executor differs from NumPy."""

import integer_cases
import pytest


@pytest.mark.parametrize("seed", range(5))
def test_drawn_operators_and_casts(seed):
    pytest.importorskip("pyopencl")
    assert not list(integer_cases.differences(seed))


def test_a_difference_is_seen(monkeypatch):
    """The harness compares: NumPy's own remainder in place of ours is another value."""
    monkeypatch.setitem(integer_cases.BINARY, "<", (lambda a, b: a > b, integer_cases.BINARY["<"][1]))
    found = [d for seed in range(3) for d in integer_cases.differences(seed, executors=("reference",))]
    assert found and all(name.count(" < ") for _, name, *_ in found)


def test_batches_are_repeatable():
    (_, a, _, names), (_, b, _, others) = integer_cases.batch(7), integer_cases.batch(7)
    assert names == others and all((x == y).all() for x, y in zip(a, b, strict=True))
    kinds = {n.split()[0].split("(")[0] for seed in range(8) for n in integer_cases.batch(seed)[3]}
    assert {"cast", "bitcast", "where", "abs", "-", "~", "**"} <= kinds
