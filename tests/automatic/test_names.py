"""Names of users' arrays say nothing: rules ask what the copies of operands are called, which others may be already."""

import pytest
from judging import TARGETS

import tensorir as tir


def given(name, *shape):
    return tir.placeholder(shape, "float32", name=name)


def product(*others):
    """Rows by transposed weights."""
    x, w, k = given("x", 48, 64), given("w", 64, 64), tir.reduce_axis(64, name="k")
    return added(tir.compute((48, 64), lambda i, j: tir.sum(x[i, k] * w[j, k], axis=k), name="y"), others)


def gram(*others):
    """Rows by rows of the same array."""
    x, k = given("x", 48, 64), tir.reduce_axis(64, name="k")
    return added(tir.compute((48, 48), lambda i, j: tir.sum(x[i, k] * x[j, k], axis=k), name="y"), others)


def windows(*others):
    """By channel, the last axis, whose weights are packed."""
    return added(window(given("x", 2, 13, 13, 8), given("w", 8, 3, 3), "y"), others)


def window(x, w, name):
    r, q = tir.reduce_axis(3, name="r"), tir.reduce_axis(3, name="q")

    def cell(n, i, j, c):
        return tir.sum(x.get(n, i + r - 1, j + q - 1, c, fill=0) * w[c, r, q], axis=(r, q))

    return tir.compute(x.shape, cell, name=name)


def added(y, others):
    arrays = [given(name, *y.shape) for name in others]
    names = ("i", "j", "k", "l")[: y.ndim]
    return tir.compute(y.shape, lambda *at: sum((a[at] for a in arrays), y[at]), name="z", axes=names)


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize(
    ("made", "names"),
    [
        (product, ("x_packed", "w_packed", "x_shared", "w_shared", "y_register", "y_warp")),
        (gram, ("x_packed", "x_j_k_packed", "x_shared")),
        (windows, ("w_packed", "x_shared", "w_packed_register")),
    ],
)
def test_an_array_that_is_called_as_a_copy_is_in_nobodys_way(made, names, target):
    plain = made(*(f"o{n}" for n in range(len(names))))
    outputs = made(*names)
    assert next(iter(tir.auto(outputs, target))) == next(iter(tir.auto(plain, target)))
    assert tir.auto_schedule(outputs, target).check("fast")


@pytest.mark.parametrize("target", TARGETS[:2])
def test_two_stages_pack_the_weights_that_they_share(target):
    x, w = given("x", 2, 13, 13, 8), given("w", 8, 3, 3)
    assert tir.auto_schedule((window(x, w, "y"), window(x, w, "z")), target).check("fast")
