"""Definitions drawn from seeds: every automatic schedule is right, on each target (benchmarks/automatic/drawn.py)."""

import pytest
from drawing import WIDE, drawn
from judging import TARGETS, judged

from tensorir.expr.program import dims_of


def on_targets(seeds):
    """Each seed on the first two targets, a fourth of them on the last, whose rules differ in products alone."""
    return [(seed, t) for seed in seeds for t in TARGETS if t != TARGETS[-1] or seed % 4 == 0]


@pytest.mark.parametrize(("seed", "target"), on_targets(range(20)))
def test_a_drawn_definition_is_scheduled_and_right(seed, target):
    text = "cuda" in target and seed % 7 == 0
    row = judged(1000 + seed, target, build=target == "opencl" and seed < 10, emulate=text, fast=not text)
    assert row["found"] == "right", row
    assert row["space"] <= 5000


@pytest.mark.parametrize(("seed", "target"), on_targets(range(40)))
def test_a_definition_of_all_sorts_is_scheduled_and_right(seed, target):
    row = judged(WIDE + 9000 + seed, target, build=target == "opencl" and seed < 10)
    assert row["found"] == "right", row
    assert row["space"] <= 5000


def test_the_same_seed_draws_the_same_definition():
    assert [drawn(7).told, [t.shape for t in drawn(7).outputs]] == [drawn(7).told, [t.shape for t in drawn(7).outputs]]
    assert len({tuple(drawn(k).told) for k in range(50)}) > 40


def test_all_sorts_of_the_wide_range_are_drawn():
    told = " ".join(x for k in range(WIDE, WIDE + 1000) for x in drawn(k).told)
    words = (
        "gather table, gather padded, gather computed, picked, argmax, moments, affine, two maps, scan affine, largest"
    )
    words += (
        ", mask triangle, mask data, sum of rows by where, border 2, gap 2, pooled, neighbours, concat, slice, back"
    )
    words += (
        ", second, axes joined, axis split, repeat, diagonal, rolled rows, less that, ta tb batched, wide product of"
    )
    words += " int8, distance, bias and relu, bits xor, division of uint8, segments, scatter set, attention, group_norm"
    words += ", conv2d, conv1d, transpose, embedding, cumsum, max_pool, avg_pool, linear, gelu, layer_norm, log_softmax"
    assert not [w for w in words.split(", ") if w not in told]


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
