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
