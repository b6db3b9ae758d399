"""Keys of trees that are equal but for names, and what the automatic schedule proves once for all of them."""

import pytest

import tensorir as tir
from tensorir.automatic import plan
from tensorir.expr.program import program_of
from tensorir.ir.structure import alpha_key
from tensorir.ir.tree import Buffer


def key(fn, shape=(4, 8), dtype="float32", *, name="C", role=lambda x: None):
    x = tir.placeholder(shape, dtype, name=f"of_{name}")
    out = tir.compute(shape, lambda i, j: fn(x, i, j), name=name)
    return alpha_key([program_of([out]).body], role)


def test_names_do_not_count():
    assert key(lambda x, i, j: x[i, j] * 2.0) == key(lambda x, i, j: x[i, j] * 2.0, name="other")


@pytest.mark.parametrize(
    "other",
    [
        key(lambda x, i, j: x[i, j] * 3.0),
        key(lambda x, i, j: x[i, j] + 2.0),
        key(lambda x, i, j: x[i, 7 - j] * 2.0),
        key(lambda x, i, j: x[i, j] * 2.0, shape=(4, 9)),
        key(lambda x, i, j: x[i, j] * 2.0, dtype="float64"),
        key(lambda x, i, j: x[i, j] * 2.0, role=lambda x: isinstance(x, Buffer)),
    ],
)
def test_all_else_counts(other):
    assert key(lambda x, i, j: x[i, j] * 2.0) != other


def test_signs_of_zeros_count():
    assert key(lambda x, i, j: x[i, j] - 0.0) != key(lambda x, i, j: x[i, j] - -0.0)


def layers(n, factor=lambda k: 2.0):
    t = tir.placeholder((64, 64), name="x")
    for k in range(n):
        below = t
        r = tir.reduce_axis(64, name=f"r{k}")
        t = tir.compute((64, 64), lambda i, j: tir.sum(below[r, i] * factor(k) * (r + j), axis=r), name=f"layer{k}")
    return t


@pytest.mark.parametrize("factor, differ", [(lambda k: 2.0, False), (lambda k: 2.0 + k, True)])
def test_equal_layers_are_lowered_once(monkeypatch, factor, differ):
    lowered = []
    lower = plan.lower
    monkeypatch.setattr(plan, "lower", lambda *a: lowered.append(a) or lower(*a))
    tir.auto_schedule(layers(3, factor), target="opencl -registers=32 -vector_bytes=64")
    alone = len(lowered)
    lowered.clear()
    tir.auto_schedule(layers(6, factor), target="opencl -registers=32 -vector_bytes=64")
    assert (len(lowered) > alone) == differ
