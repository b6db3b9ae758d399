"""Convolutions in groups of several channels on the CPU: any shape and configuration computes what is declared."""

import itertools
import random

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.interp.reference import random_arguments

pytestmark = pytest.mark.usefixtures("unoptimised")

CPU = "opencl -registers=16 -vector_bytes=32 -units=2"
WIDE = "opencl -registers=32 -vector_bytes=64 -units=2"
LAYOUTS = ("NCHW", "NHWC")
SHAPES = {
    "4 a group": dict(c=16, k=16, groups=4, h=7, w=9, pad=1),
    "12 a group, from 5": dict(c=15, k=36, groups=3, h=6, w=7, pad=1),
    "5 a group, stride 2": dict(c=8, k=20, groups=4, h=9, w=11, pad=1, stride=2),
    "19 a group": dict(c=6, k=38, groups=2, h=5, w=6, pad=1),
    "16 a group, dilated": dict(c=16, k=32, groups=2, h=9, w=8, pad=2, dilation=2),
    "1 a group, from 3": dict(c=12, k=4, groups=4, h=6, w=5, pad=1),
    "3 a group, no pad": dict(c=8, k=12, groups=4, h=5, w=19),
    "1x1": dict(c=12, k=24, groups=3, h=5, w=7, r=1, s=1),
    "5x5 in batches": dict(n=2, c=6, k=8, groups=2, h=7, w=6, r=5, s=5, pad=2),
}
CASES = [(name, layout) for name in SHAPES for layout in LAYOUTS]


def templates(work):
    return list(itertools.takewhile(lambda name: name.startswith("cpu_"), work.templates))  # and none for GPUs planned


def configurations(work, template, seed, target):
    space = work.templates[template].space_for(tir.Target.parse(target))
    return [space.default, space.config(random.Random(seed).randrange(len(space.legal)))]


@pytest.mark.parametrize(("name", "layout", "target"), [(*c, (CPU, WIDE)[n // 2 % 2]) for n, c in enumerate(CASES)])
def test_any_configuration_equals_its_declaration(name, layout, target):
    work = tir.ops.conv2d(layout=layout, bias=True, act="relu", **SHAPES[name])
    assert {"cpu_tile_column", "cpu_tile_turned", "cpu_tile_registers"} & {*work.templates}
    for template in templates(work):
        for n, config in enumerate(configurations(work, template, f"{name} {layout} {target}", target)):
            s = work.schedule(config, template=template, target=target)
            assert compare(s, Field(), n) is None, (template, config)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32"])
@pytest.mark.parametrize(("layout", "name", "target"), [
    ("NCHW", "4 a group", WIDE), ("NHWC", "5 a group, stride 2", CPU),
])  # fmt: skip
def test_every_type_is_exact_on_the_device(layout, name, target, dtype):
    work = tir.ops.conv2d(layout=layout, dtype=dtype, prepack=target == CPU, **SHAPES[name])
    arrays = random_arguments(work.outputs, 1)
    want = work.reference(*arrays)
    for template in templates(work):
        got = np.asarray(work.schedule(template=template, target=target).build("opencl:pocl")(*arrays))
        assert got.dtype == want.dtype
        assert np.array_equal(got.astype("float64"), want.astype("float64")), (template, name)


def test_narrow_groups_of_planes_start_with_pixels_in_the_lanes():
    def first(**options):
        return tir.ops.conv2d(h=28, w=28, pad=1, **options).template_for(WIDE)

    assert first(c=32, k=32, groups=8) == "cpu_tile_registers"
    assert first(c=32, k=32, groups=8, layout="NHWC") == "cpu_tile_registers"
    assert first(c=64, k=64, groups=2) == "cpu_tile_turned"
    assert first(c=32, k=64, groups=32) == "cpu_tile_registers"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", [tir.ops.conv2d_backward_data, tir.ops.conv2d_backward_weight])
def test_gradients_in_groups_are_products_of_groups(op, layout):
    """Each group's rows by columns, in vectors no wider than what a group has."""
    for shape in (SHAPES["4 a group"], SHAPES["12 a group, from 5"], SHAPES["5 a group, stride 2"]):
        work = op(layout=layout, r=3, s=3, **shape)
        for template in templates(work):
            s = work.schedule(template=template, target=(CPU, WIDE)[layout == "NCHW"])
            assert compare(s, Field(), 1) is None, (template, shape)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_no_block_has_room_for_keeps_a_template(layout):
    for options in (dict(c=8192, k=4, h=30, w=30, groups=2), dict(c=2, k=2, h=700, w=7000, groups=2, dtype="float16")):
        work = tir.ops.conv2d(layout=layout, pad=1, **options)
        for template in templates(work):
            assert work.schedule(template=template, target=CPU).emitted().kernels, template


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_one_kernel_without_workspace_and_replays(layout):
    work = tir.ops.conv2d(layout=layout, residual=True, bias=True, **SHAPES["4 a group"])
    for template in templates(work):
        s = work.schedule(template=template, target=CPU)
        assert len(s.emitted().kernels) == 1
        assert s.emitted().workspace_bytes == 0
        assert tir.replay(s.outputs, s.trace, target=s.target).source() == s.source()
        assert s.check()
