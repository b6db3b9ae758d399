"""Schedules by the rules are as short as those that a person would write, in their traces and in texts."""

import pytest

import tensorir as tir
from tensorir import nn

CPUS = ("c", "opencl")


def given(name, *shape):
    return tir.placeholder(shape, name=name)


def layer_norm(rows, n):
    return nn.layer_norm(given("x", rows, n), (n,), given("w", n), given("b", n))


def softmax(rows, n):
    return nn.softmax(given("x", rows, n), -1)


def matmul(m, n, k):
    return nn.matmul(given("a", m, k), given("b", k, n))


MOST_STEPS = {
    layer_norm: (14, [(128, 512), (1024, 768), (7, 100), (64, 1000)]),
    softmax: (12, [(128, 512), (1024, 1000), (7, 100), (64, 33)]),
    matmul: (12, [(512, 512, 512), (128, 128, 128), (100, 70, 33), (1024, 64, 2048), (2000, 300, 1000)]),
}


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize(("make", "shape"), [(f, shape) for f, (_, shapes) in MOST_STEPS.items() for shape in shapes])
def test_few_steps_and_short_headers(make, shape, target):
    s = tir.auto_schedule(make(*shape), target)
    most = MOST_STEPS[make][0]
    assert len(s.trace) <= most, s.trace
    said = [line for line in s.source().splitlines() if line.startswith("// s.")]
    assert len(said) == len(s.trace)
    assert str(tir.replay(s.definition, s.trace, target=s.target)) == str(s)


@pytest.mark.parametrize("target", CPUS)
def test_what_a_row_keeps_is_made_in_vectors(target):
    said = str(tir.auto_schedule(softmax(64, 1000), target).trace)
    assert all(f"s.register_tile('{stage}.j', sizes=" in said for stage in ("softmax", "softmax_exp"))
