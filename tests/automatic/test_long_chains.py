"""Long chains of cheap stages: what is computed where it is read stays small enough to be walked and compiled."""

import pytest
from judging import TARGETS
from written import given

import tensorir as tir
from tensorir.ir.tree import Expr, Store
from tensorir.ir.visit import find

LARGE = 1500
"""Nodes of an expression, indices and all, that no stage of these exceeds."""


def chain(count, cell, n=64):
    x = given("x", n)
    for k in range(count):
        x = tir.compute((n,), lambda i, x=x: cell(x, i), name=f"s{k}")
    return x


def shuffled(x, i):
    """A perfect shuffle: each stage reads the one before it at two places."""
    return tir.where(tir.equal(i % 2, 0), x[i // 2], x[i // 2 + 32])


def function(x, i):
    return tir.tanh(x[i] + 1)


def moved(x, i):
    return x.get(i - 1, fill=3)


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize(("cell", "count"), [(shuffled, 12), (function, 120), (moved, 60)])
def test_expressions_stop_growing(cell, count, target):
    s = tir.auto_schedule(chain(count, cell), target)
    assert max(len(find(store.value, Expr)) for store in find(s.program.body, Store)) < LARGE
    assert s.source()
