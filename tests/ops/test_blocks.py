"""What templates for GPUs share: grids that the target has room for, and defaults that fit."""

import math
import random

import numpy as np
import pytest
from covering import some_of_each

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.engines.blocks import bind_grid
from tensorir.errors import ScheduleError
from tensorir.interp.reference import random_arguments
from tensorir.runtime.limits import check_source
from tensorir.target import Target
from tensorir.tune.template import suiting

FROM_THE_EXAMINATION = [
    ("conv2d", dict(n=1, c=512, k=8, groups=2, h=56, w=56, r=3, s=3, pad=1, layout="NHWC")),
    ("conv2d_backward_data", dict(n=5, c=12, k=256, groups=4, h=12, w=18, r=3, s=4, layout="NHWC")),
    ("conv2d_backward_data", dict(n=1, c=258, k=6, groups=2, h=7, w=7, r=7, s=7, stride=3, layout="NCHW")),
    ("conv2d_backward_data", dict(n=64, c=192, k=192, groups=192, h=8, w=8, r=4, s=3, layout="NHWC", dtype="uint8")),
    ("conv2d", dict(n=70_000, c=32, k=32, h=8, w=8, r=3, s=3, pad=1, layout="NHWC", dtype="float16")),
    ("conv2d", dict(n=70_000, c=4, k=8, h=3, w=3, r=3, s=3, pad=1)),
    ("conv2d_backward_data", dict(n=70_000, c=4, k=8, h=3, w=3, r=3, s=3, pad=1)),
    ("matmul", dict(m=20, n=30, k=40, batch=70_000, dtype="float64")),
    ("matmul", dict(m=512, n=512, k=64, dtype="float64")),
    ("conv2d", dict(n=3, c=15, h=57, w=14, k=256, r=11, s=11, pad=1, prepack=True)),
]


@pytest.mark.parametrize(
    ("given", "arch"), some_of_each(FROM_THE_EXAMINATION, ["sm_75", "sm_80", "sm_90a"], (0, 1)), ids=str
)
def test_defaults_fit_and_so_does_what_spaces_call_legal(given, arch):
    op, shape = given
    work, target, rng = getattr(tir.ops, op)(**shape), Target.parse(f"cuda -arch={arch}"), random.Random(0)
    for name, template in suiting(work.templates, target):
        if work.templates[name].started(target):
            space = template.space_for(target)
            for config in (space.default, space.config(rng.randrange(len(space.legal)))):
                check_source(work.schedule(config, name, target).emitted(), target)


def test_a_template_without_a_legal_configuration_is_not_what_a_schedule_starts_with():
    """Tensor cores want all taps of 11 x 11 in shared memory."""
    work = tir.ops.conv2d(n=3, c=768, h=28, w=28, k=200, r=11, s=11, stride=2, pad=3, dilation=2, layout="NHWC",
                          dtype="float16")  # fmt: skip
    small, large = Target.parse("cuda -arch=sm_89"), Target.parse("cuda -arch=sm_90")
    assert work.template_for(small) == "gpu_tile_mma"
    assert work.template_for(small, "gpu_tensor") == "gpu_tensor"
    check_source(work.schedule(target=small).emitted(), small)
    check_source(work.schedule(template="gpu_tensor", target=large).emitted(), large)
    with pytest.raises(ScheduleError, match=r"template\.target"):
        work.schedule(template="gpu_tensor", target=small)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("conv2d", dict(n=70_000, c=4096, h=112, w=112, k=96, pad=3, layout="NHWC", dtype="uint8")),
        ("conv2d_backward_data", dict(n=70_000, c=768, h=112, w=112, k=31, pad=1, dtype="int8")),
        ("matmul", dict(m=4096, n=4096, k=8, batch=70_000, dtype="int32")),
    ],
)
def test_no_legal_configuration_has_more_blocks_than_a_grid(op, shape):
    work, target = getattr(tir.ops, op)(**shape), Target.parse("cuda -arch=sm_80")
    space = work.templates["gpu_tile"].space_for(target)
    fewest = min((space.config(n) for n in range(0, len(space.legal), 7)), key=_tile)
    check_source(work.schedule(fewest, "gpu_tile", target).emitted(), target)


def _tile(c):
    threads = [v for name, v in c.items() if name in ("ti", "tj", "tk", "tp", "tq", "tr", "tc")]
    return math.prod([*threads, *(v for name, v in c.items() if name in ("ri", "rj", "rk", "rp", "rq", "rr", "rc"))])


def test_a_default_does_with_little_shared_memory_where_it_can():
    """Several blocks run on a multiprocessor then."""
    for op, shape in FROM_THE_EXAMINATION[:4]:
        work, target = getattr(tir.ops, op)(**shape), Target.parse("cuda -arch=sm_90a")
        template = next(n for n in ("gpu_tile", "gpu_tile_windows", "gpu_stream") if n in work.templates)
        kernels = work.schedule(template=template, target=target).emitted().kernels
        assert all(k.shared_bytes <= 48 * 1024 for k in kernels)


@pytest.mark.parametrize(
    ("extents", "most", "grid"),
    [
        ((3, 4, 5), (10, 10, 10), (5, 4, 3)),
        ((3, 4, 5), (100, 4, 2), (60, 1, 1)),
        ((3, 4, 5), (100, 3, 3), (20, 1, 3)),
        ((3, 4, 5), (100, 3, 2), (60, 1, 1)),
    ],
)
def test_blocks_go_where_the_grid_has_room(extents, most, grid):
    A = tir.placeholder(extents, name="A")
    B = tir.compute(extents, lambda i, j, k: A[i, j, k] + 1, name="B")
    s = tir.Schedule(B, f"cuda -max_grid={','.join(map(str, most))}")
    block = bind_grid(s, ["B.i"], ["B.j"], ["B.k"])
    assert (s.emitted().kernels[0].grid, str(block) in s.index.loops) == (grid, True)
    assert s.check()


def test_gradients_and_images_beyond_a_grid_are_right():
    """A grid of two along z and three along y is as good as one of 65,535 to see what is joined."""
    target = "cuda -arch=sm_80 -max_grid=2147483647,3,2"
    for op, template in (("conv2d", "gpu_tile"), ("conv2d_backward_data", "gpu_tile"), ("conv2d", "gpu_tensor")):
        dtype = "float16" if template == "gpu_tensor" else "float32"
        work = getattr(tir.ops, op)(n=3, c=16, h=9, w=8, k=32, pad=1, layout="NHWC", dtype=dtype)
        s = work.schedule(template=template, target=target)
        assert [k.grid[1:] for k in s.emitted().kernels] == [(1, 1)]
        arrays = random_arguments(s.outputs, 0)
        run = emulate(s.emitted(), arrays)
        assert not run.problems
        assert np.array_equal(run.outputs[0], work.reference(*arrays))
