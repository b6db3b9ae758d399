"""Operators without templates of their own: made, remade from what a log says, right by default."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.api.origin import rebuild
from tensorir.cli.parse import from_title
from tensorir.ops.operators import OPERATORS

DEFINED = [name for name, o in OPERATORS.items() if o.tensors]
SMALL = {
    "linear": {"x": "3x5", "w": "4x5"}, "conv1d": {"x": "1x4x9", "w": "4x4x3"},
    "conv3d": {"x": "1x2x4x5x5", "w": "2x2x3x3x3"}, "conv_transpose2d": {"x": "1x4x5x5", "w": "4x2x3x3"},
    "embedding": {"indices": "5", "weight": "7x3"}, "attention": {"q": "1x2x5x4", "k": "1x1x7x4"},
    "group_norm": {"x": "1x4x3x3", "groups": 2}, "batch_norm": {"x": "2x3x4x4"},
    "max_pool2d": {"x": "1x2x7x7"}, "avg_pool2d": {"x": "1x2x7x7"}, "adaptive_avg_pool2d": {"x": "1x2x7x7"},
}  # fmt: skip


@pytest.mark.parametrize("name", DEFINED)
def test_what_a_log_says_makes_it_again(name):
    work = getattr(tir.ops, name)(**SMALL.get(name, {"x": "5x9"}))
    again = rebuild(work.origin)
    assert again.title == work.title and [x.shape for x in again.inputs] == [x.shape for x in work.inputs]
    assert from_title(work.title)().title == work.title


@pytest.mark.parametrize("name", DEFINED)
def test_the_default_is_right(name):
    work = getattr(tir.ops, name)(**SMALL.get(name, {"x": "5x9"}))
    given = work.random_inputs(1)
    got = tir.auto_schedule(work.outputs).build()(*given)
    np.testing.assert_allclose(got, work.reference(*given), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("shape", ["4y5", "", "0x3", (0, 3), "4x"])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(tir.DeclarationError) as caught:
        tir.ops.softmax(shape)
    assert caught.value.code == "ops.extent"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("conv2d", dict(c=4, h=9, w=8, k=4, s=2, stride="2x1", pad=((1, 0), (0, 2)), dilation=(1, 2))),
        ("conv2d", dict(c=4, h=9, w=8, k=4, pad=(1, 2), bias=True, act="relu", layout="NHWC")),
        ("conv2d_backward_data", dict(c=4, h=9, w=8, k=4, stride=(1, 2), pad=(0, 1, 2, 1))),
        ("conv2d_backward_weight", dict(c=4, h=9, w=8, k=4, stride=(1, 2), pad=(0, 1, 2, 1))),
        ("conv1d", dict(x="1x4x9", w="4x4x3", pad=(2, 0), stride=2)),
        ("conv3d", dict(x="1x4x5x6x7", w="4x4x3x2x2", pad=(1, 0, 1, 0, 1, 0), stride=(1, 2, 1))),
        ("conv_transpose2d", dict(x="1x4x5x6", w="4x4x3x2", pad=(1, 0, 0, 1), stride=(1, 2))),
        ("max_pool2d", dict(x="1x4x9x8", window="3x2", stride=(2, 1), pad=(1, 0, 0, 1))),
    ],
)
def test_windows_that_differ_by_axis(name, given):
    """Their default is right, their title makes them again, and what is the same on all sides is said in one number."""
    work = getattr(tir.ops, name)(**given)
    inputs = work.random_inputs()
    got = work.schedule(target="c").build()(*inputs)
    np.testing.assert_allclose(got, work.reference(*inputs), rtol=1e-4, atol=1e-4)
    again = getattr(tir.ops, name)(**work.parameters)
    assert again.title == work.title
    assert "stride=2" in tir.ops.conv2d(stride=(2, 2), pad=((1, 1), (1, 1))).title
