"""Definitions drawn from seeds: every automatic schedule is right, on each target (benchmarks/automatic/drawn.py)."""

import pytest
from drawing import drawn
from judging import TARGETS, judged

from tensorir.expr.program import dims_of


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_definition_is_scheduled_and_right(seed, target):
    row = judged(
        1000 + seed, target, build=target == "opencl" and seed < 10, emulate="cuda" in target and seed % 7 == 0
    )
    assert row["found"] == "right", row
    assert row["space"] <= 5000


def test_the_same_seed_draws_the_same_definition():
    assert [drawn(7).told, [t.shape for t in drawn(7).outputs]] == [drawn(7).told, [t.shape for t in drawn(7).outputs]]
    assert len({tuple(drawn(k).told) for k in range(50)}) > 40


def test_all_sorts_of_stages_are_drawn():
    told = " ".join(x for k in range(200) for x in drawn(k).told)
    for word in (
        "map",
        "cast",
        "transpose",
        "broadcast",
        "spread",
        "sum over",
        "product",
        "scan",
        "window",
        "pad",
        "softmax",
        "scatter",
        "bfloat16",
        "int8",
    ):
        assert word in told, word
    assert any(dims_of(drawn(k).outputs) for k in range(50))
    assert any(len(drawn(k).outputs) > 1 for k in range(50))
