"""What a copy of a tile brings as zeros anyway: elements that an array does not have."""

import pytest

import tensorir as tir
from tensorir.intrin.match import padded
from tensorir.ir.build import binary, const, select
from tensorir.ir.tree import Buffer, Load, Scope, Var

I, J = Var("i", "index"), Var("j", "index")
A = Buffer("A", (const(9), const(40)), "float16", Scope.GLOBAL)
READ = Load(A, (binary("-", I, 1), J), "float16")
ZERO = const(0.0, "float16")
INSIDE = binary("<=", 1, I), binary("<", binary("-", I, 1), 9)


def chosen(value, *conds, other=ZERO):
    for cond in conds:
        value = select(cond, value, other)
    return value


@pytest.mark.parametrize("e", [READ, chosen(READ, *INSIDE), chosen(READ, binary("<", J, 40), *INSIDE)], ids=str)
def test_an_element_that_is_zero_for_several_reasons(e):
    assert padded(e) is READ


@pytest.mark.parametrize(
    "e",
    [chosen(READ, binary("<", J, 39)), chosen(READ, binary("<", J, 40), binary("<", I, 3)),
     chosen(READ, *INSIDE, other=const(1.0, "float16")), binary("*", READ, READ), ZERO],
    ids=str,
)  # fmt: skip
def test_what_else_a_value_may_be(e):
    assert padded(e) is None


def test_a_padded_image_under_padded_channels_is_copied_by_tiles():
    """Zero beyond the border by its own stage, and beyond the last channel by the view."""
    w = tir.ops.conv2d_backward_weight(n=1, c=40, h=9, w=7, k=64, r=3, s=3, pad=1, layout="NHWC", dtype="float16")
    assert "tir_tma_im2col(" in w.schedule(template="gpu_tile_wgmma", target="cuda -arch=sm_90a").source()
