"""What models of kernels say of a space: a time for every configuration, that follows what a kernel has to do."""

import math

import pytest

import tensorir as tir
from tensorir.automatic.plan import plans
from tensorir.target import Target
from tensorir.tune.template import suiting

CPU = Target.parse("opencl -vector_bytes=64 -registers=32 -units=2")

WORKS = {
    "matmul": tir.ops.matmul(64, 128, 256),
    "matmul tb": tir.ops.matmul(8, 128, 256, tb=True),
    "conv2d": tir.ops.conv2d(1, 16, 14, 14, 32, 3, 3, pad=1),
    "1x1": tir.ops.conv2d(1, 32, 14, 14, 32, 1, 1),
    "depthwise": tir.ops.conv2d(1, 32, 14, 14, 32, 3, 3, pad=1, groups=32),
    "depthwise NHWC": tir.ops.conv2d(1, 32, 14, 14, 32, 3, 3, pad=1, groups=32, layout="NHWC"),
    "in groups of rows": tir.ops.grouped_matmul(groups=4, m=64, n=64, k=32),
    "conv2d of 16 bits": tir.ops.conv2d(1, 32, 14, 14, 32, 3, 3, pad=1, dtype="float16"),
    "gradient of 16 bits": tir.ops.conv2d_backward_data(1, 32, 14, 14, 32, 3, 3, pad=1, stride=2, dtype="float16"),
    "pooling": tir.Workload("pool", tir.nn.max_pool2d(tir.placeholder((2, 8, 28, 28), name="x"), 3, 2, 1)),
    "softmax": tir.Workload("softmax", tir.nn.softmax(tir.placeholder((64, 200), name="x"), -1)),
}
TARGETS = (CPU, Target.parse("cuda -arch=sm_80"), Target.parse("cuda -arch=sm_90a"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.language + str(t.sm or ""))
@pytest.mark.parametrize("name", WORKS)
def test_every_configuration_has_a_time(name, target):
    work = WORKS[name]
    for template, made in suiting(work.templates, target):
        space = made.space_for(target)
        assert space.expected_s is not None, template
        every = range(0, len(space.legal), max(1, len(space.legal) // 50))
        times = [space.expected_s(space.config(row)) for row in every]
        assert all(0 < t < 1 and math.isfinite(t) for t in times), template
        assert len(set(times)) > 1 or len(times) == 1, template


def expected(work, template, **changed):
    space = work.templates[template].space_for(CPU)
    return space.expected_s(space.accept({**space.default, **changed}))


def test_a_strip_takes_as_long_as_its_sum_is():
    short, long = (tir.ops.matmul(128, 256, k) for k in (256, 1024))
    alike = dict(columns=64, rows=0, depth=256, tile=6, vectors=2, pack="panel", unroll_k=4)
    ratio = expected(long, "cpu_tile_strip", **alike) / expected(short, "cpu_tile_strip", **alike)
    assert 3 < ratio < 5


def test_short_pieces_of_the_sum_pass_over_the_results_again_and_again():
    work = tir.ops.matmul(128, 256, 256)
    alike = dict(columns=64, rows=0, tile=6, vectors=2, pack="panel", unroll_k=4)
    assert expected(work, "cpu_tile_strip", depth=8, **alike) > 1.1 * expected(
        work, "cpu_tile_strip", depth=256, **alike
    )


def test_one_more_kernel_takes_its_time():
    for name, template, near in (
        ("conv2d", "cpu_tile_turned", "block"), ("matmul", "cpu_tile_column", "block"),
        ("matmul", "cpu_tile_strip", "panel"),
    ):  # fmt: skip
        assert expected(WORKS[name], template, pack="kernel") > expected(WORKS[name], template, pack=near)


def streamed(y):
    plan = next(p for p in plans((y,), CPU).values() if p.main.name == "stream")
    return plan.main.space.expected_s


def test_reading_across_rows_is_slower_with_more_rows_side_by_side():
    x, k = tir.placeholder((64, 8192), name="x"), tir.reduce_axis(8192, name="k")
    time = streamed(tir.compute((64,), lambda i: tir.sum(x[i, k], axis=k), name="y"))
    assert time(dict(block=1024, lanes=16, vectors=4)) > 1.7 * time(dict(block=1024, lanes=8, vectors=1))


def test_a_step_that_is_longer_than_a_row_asks_for_each_lane():
    x, k = tir.placeholder((64, 28, 28), name="x"), tir.reduce_axis(64, name="k")
    time = streamed(tir.compute((28, 28), lambda i, j: tir.sum(x[k, i, j], axis=k), name="y"))
    assert time(dict(block=256, lanes=16, vectors=4)) > 1.2 * time(dict(block=256, lanes=16, vectors=1))


def conv(c, size, **options):
    return tir.ops.conv2d(1, c, size, size, c, 3, 3, pad=1, **options)


def test_winograd_pays_where_its_kernels_are_long_enough():
    """Three kernels: too much for a small image, not for a larger one, even where filters are transformed each time."""
    small, large = conv(16, 14), conv(128, 56)
    assert expected(small, "cpu_winograd") > 1.1 * expected(small, "cpu_tile_turned")
    assert expected(large, "cpu_winograd") < expected(large, "cpu_tile_turned")


@pytest.mark.parametrize(("c", "size"), [(64, 56), (256, 14), (512, 7), (1024, 14)])
def test_a_start_is_not_far_from_the_best_that_is_expected(c, size):
    """Also where a knob's first value is illegal next to another's, or too large for a block."""
    space = conv(c, size).templates["cpu_tile_turned"].space_for(CPU)
    every = range(0, len(space.legal), max(1, len(space.legal) // 200))
    assert space.expected_s(space.default) <= 1.1 * min(space.expected_s(space.config(row)) for row in every)


def test_few_sums_wait_for_each_other():
    space = conv(32, 28).templates["cpu_tile_turned"].space_for(CPU)
    alike = {**space.default, "rows": 0, "panels": 1, "vectors": 2, "pack": "block"}
    few, many = (space.expected_s({**alike, "tile": n}) for n in (2, 14))
    assert few > 1.05 * many


def test_little_work_takes_as_long_in_many_blocks_as_in_one():
    """One core has done it before others begin."""
    time = streamed(tir.compute((64, 64), lambda i, j: tir.placeholder((64, 64), name="x")[i, j] + 1, name="y"))
    assert time(dict(block=4096, lanes=16, vectors=1)) == pytest.approx(
        time(dict(block=1024, lanes=16, vectors=1)), rel=0.1
    )


def test_every_second_element_is_read_one_by_one_into_long_vectors():
    time = streamed(tir.nn.max_pool2d(tir.placeholder((1, 32, 56, 56), name="x"), 3, 2, 1))
    assert time(dict(block=1024, lanes=16, vectors=1)) > 1.2 * time(dict(block=1024, lanes=8, vectors=1))


def test_all_parts_of_a_schedule_take_their_time():
    """Also those whose knobs are not searched."""
    plan = next(p for p in plans((tir.nn.softmax(tir.placeholder((512, 1024), name="x"), 1),), CPU).values()
                if p.main.name == "stream")  # fmt: skip
    space = plan.space()
    assert len(plan.parts) > len(plan.searched)
    assert space.expected_s(space.default) > sum(p.space.expected_s(p.space.default)
                                                 for p in plan.searched)  # fmt: skip
