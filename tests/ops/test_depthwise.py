"""Depthwise convolutions on the CPU: any shape, layout and configuration computes what nn.conv2d declares."""

import functools
import random

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.interp.reference import random_arguments

pytestmark = pytest.mark.usefixtures("unoptimised")

CPU = "opencl -registers=16 -vector_bytes=32"
WIDE = "opencl -registers=32 -vector_bytes=64"
LAYOUTS = ("NCHW", "NHWC")
SHAPES = {
    "plain": dict(c=16, h=10, w=18, pad=1),
    "stride 2": dict(c=8, h=9, w=33, pad=1, stride=2),
    "stride 3": dict(c=9, h=11, w=26, pad=1, stride=3),
    "no pad": dict(c=8, h=7, w=12),
    "pad beyond the kernel": dict(c=5, h=4, w=9, pad=3),
    "a border of several tiles": dict(c=4, h=5, w=6, r=1, s=1, pad=11),
    "5x5": dict(c=10, h=9, w=13, r=5, s=5, pad=2),
    "3x5, stride 2": dict(c=11, h=8, w=17, r=3, s=5, pad=2, stride=2),
    "7x7": dict(c=8, h=9, w=11, r=7, s=7, pad=3),
    "dilated": dict(c=8, h=11, w=12, pad=2, dilation=2),
    "narrow": dict(c=24, h=7, w=7, pad=1),
    "narrower": dict(c=3, h=5, w=3, pad=1),
    "one pixel": dict(c=2, h=1, w=1, pad=1),
    "one channel": dict(c=1, h=8, w=9, pad=1),
    "batch": dict(n=2, c=12, h=6, w=9, pad=1, stride=2),
    "two outputs a channel": dict(c=8, k=16, h=7, w=10, pad=1),
    "three, stride 2": dict(c=5, k=15, h=9, w=20, pad=1, stride=2),
    "five": dict(c=2, k=10, h=5, w=9, pad=2, dilation=2),
}
CASES = [(name, layout) for name in SHAPES for layout in LAYOUTS]


@functools.cache
def workload(name, layout, **options):
    p = SHAPES[name]
    return tir.ops.conv2d(**{"k": p["c"], "groups": p["c"], **p, "layout": layout, **options})


def configurations(work, seed, count, target=CPU):
    space = work.templates[work.template_for(target)].space_for(tir.Target.parse(target))
    g = random.Random(seed)
    return [space.default, *(space.config(g.randrange(len(space.legal))) for _ in range(count))]


@pytest.mark.parametrize(
    ("name", "layout", "dtype"),
    [*((name, LAYOUTS[n % 2], "float32") for n, name in enumerate(SHAPES)), *((*c, "float16") for c in CASES[2::5])],
)
def test_the_declared_convolution_is_scheduled(name, layout, dtype):
    work = workload(name, layout, dtype=dtype)
    s = work.schedule(target=CPU)
    assert s.outputs == s.definition == work.outputs
    again = tir.replay(work.outputs, s.trace.to_json(), target=CPU)
    assert again.tree() == s.tree() and again.source() == s.source()


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_any_configuration_equals_its_declaration(name, layout):
    work = workload(name, layout, bias=True, act="relu")
    target = CPU if layout == "NCHW" else WIDE
    for n, config in enumerate(configurations(work, f"{name} {layout}", 1, target)):
        s = work.schedule(config, target=target)
        assert compare(s, Field(), n) is None, config


@pytest.mark.parametrize(("name", "layout"), CASES[::3])  # the device's compiler takes seconds for each
def test_the_device_agrees_with_the_reference(name, layout):
    work = workload(name, layout)
    arrays = random_arguments(work.outputs, 1)
    config = configurations(work, f"{name} {layout}", 1, WIDE)[-1]
    s = work.schedule(config, target=WIDE)
    got = np.asarray(s.build("opencl:pocl")(*arrays))
    assert np.array_equal(got, work.reference(*arrays)), config


@pytest.mark.parametrize(("dtype", "layout", "name", "target"), [
    ("float64", "NCHW", "stride 2", WIDE), ("float16", "NHWC", "stride 2", WIDE),
    ("bfloat16", "NCHW", "three, stride 2", CPU), ("int8", "NHWC", "three, stride 2", CPU),
    ("uint8", "NCHW", "stride 2", WIDE), ("int32", "NHWC", "three, stride 2", CPU),
])  # fmt: skip
def test_other_types_take_it_too(dtype, layout, name, target):
    work = workload(name, layout, dtype=dtype, prepack=target == CPU)
    arrays = random_arguments(work.outputs, 1)
    want = work.reference(*arrays)
    got = np.asarray(work.schedule(target=target).build("opencl:pocl")(*arrays))
    assert got.dtype == want.dtype
    assert np.array_equal(got.astype("float64"), want.astype("float64")), name


@pytest.mark.parametrize(("name", "layout"), CASES[1::3])
def test_what_is_widened_first_equals_its_declaration(name, layout):
    work = workload(name, layout, dtype="bfloat16", bias=True)
    target = CPU if layout == "NCHW" else WIDE
    for n, config in enumerate(configurations(work, f"{name} {layout}", 1, target)):
        s = work.schedule(config, target=target)
        assert compare(s, Field(), n) is None, config


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bias_residual_and_activation_join_the_kernel(layout):
    work = workload("plain", layout, bias=True, residual=True, act="relu", prepack=True)
    s = work.schedule(target=CPU)
    arrays = random_arguments(work.outputs, 1)
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(*arrays)), work.reference(*arrays))
    assert sum(not k.once for k in s.emitted().kernels) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_the_default_one_kernel_without_workspace_and_replays(layout):
    work = workload("plain", layout)
    assert work.template_for(CPU) == "cpu_tile_registers"
    s = work.schedule(target=CPU)
    assert len(s.emitted().kernels) == 1
    assert s.emitted().workspace_bytes == 0
    assert tir.replay(s.outputs, s.trace, target=s.target).source() == s.source()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_body_of_an_inner_tile_has_no_condition(layout):
    s = tir.ops.conv2d(c=32, h=32, w=32, k=32, groups=32, pad=1, layout=layout, prepack=True).schedule(target=CPU)
    sums = [line for line in s.source().splitlines() if "+=" in line]
    assert any("?" not in line for line in sums) and any("?" in line for line in sums)


@pytest.mark.parametrize(("layout", "least"), [("NCHW", 8), ("NHWC", 2)])
def test_default_blocks_keep_two_cores_busy(layout, least):
    for c, size, stride in [(32, 112, 1), (64, 112, 2), (256, 28, 2), (512, 14, 1), (1024, 7, 1)]:
        work = tir.ops.conv2d(c=c, h=size, w=size, k=c, groups=c, pad=1, stride=stride, layout=layout, prepack=True)
        (kernel,) = [k for k in work.schedule(target=CPU).emitted().kernels if not k.once]
        blocks = np.prod(kernel.grid)
        assert blocks >= least
        assert layout == "NHWC" or blocks % 2 == 0
