"""The stream rule: cells in blocks, threads and lanes; windows in registers; transposes by tiles."""

import math

import pytest
from covering import some_of_each, spread_over

import tensorir as tir
from tensorir.automatic.plan import plans
from tensorir.target import Target

CPU, GPU = "opencl", "cuda -arch=sm_80"
WIDE = "opencl -registers=32 -vector_bytes=64"


def elementwise(h, w, dtype="float32"):
    A = tir.placeholder((h, w), dtype, name="A")
    return tir.compute((h, w), lambda i, j: A[i, j] * 2 + 1, name="Y")


def pooled(h, w, dtype="float32"):
    A = tir.placeholder((2 * h, 2 * w, 32), dtype, name="A")
    r, t = tir.reduce_axis(3, name="r"), tir.reduce_axis(3, name="t")
    return tir.compute(
        (h, w, 32),
        lambda i, j, c: tir.max(A.get(2 * i + r - 1, 2 * j + t - 1, c, fill=-math.inf), axis=(r, t)),
        name="Y",
    )


def averaged(h, w, dtype="float32"):
    A = tir.placeholder((h + 2, w), dtype, name="A")
    r = tir.reduce_axis(3, name="r")
    S = tir.compute((h, w), lambda i, j: tir.sum(A[i + r, j], axis=r), name="S")
    return tir.compute((h, w), lambda i, j: S[i, j] / 3, name="Y")


def transposed(h, w, dtype="float32"):
    A = tir.placeholder((h, w), dtype, name="A")
    return tir.compute((w, h), lambda i, j: A[j, i], name="Y")


def columns(h, w, dtype="float32"):
    A = tir.placeholder((h, w), dtype, name="A")
    r = tir.reduce_axis(h, name="r")
    return tir.compute((w,), lambda j: tir.sum(A[r, j], axis=r), name="Y")


def gathered(h, w, dtype="float32"):
    A, I = tir.placeholder((h, w), dtype, name="A"), tir.placeholder((7,), "int32", name="I")
    return tir.compute((7, w), lambda i, j: A[tir.minimum(tir.maximum(I[i], 0), h - 1), j], name="Y")


DEFINITIONS = {f.__name__: f for f in (elementwise, pooled, averaged, transposed, columns, gathered)}


SHAPES = [(64, 64), (1, 1), (17, 67), (31, 33), (40, 32)]


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize(("name", "shape"), some_of_each(DEFINITIONS, SHAPES))
def test_a_definition_is_right_in_every_shape(name, shape, target):
    assert tir.auto_schedule(DEFINITIONS[name](*shape), target).check()


@pytest.mark.parametrize("name", DEFINITIONS)
def test_configurations_are_right(name):
    output = DEFINITIONS[name](33, 48)
    for target in (CPU, GPU):
        for template in tir.auto(output, target).values():
            space = template.space_for(Target.parse(target))
            assert 0 < len(space.legal) <= 5000
            for config in spread_over(space, 5):
                s = tir.Schedule(output, target)
                template.function(s, config)
                assert s.check(), config


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_gpu_kernel_is_right_when_emulated(name):
    assert tir.auto_schedule(DEFINITIONS[name](17, 32), GPU).check("emulate")


def test_cells_run_in_vector_lanes_on_a_cpu():
    for name in ("elementwise", "pooled", "averaged", "columns"):
        assert "float16" in tir.auto_schedule(DEFINITIONS[name](64, 64), WIDE).source(), name


def forces(n, c, lead=1):
    """What each point is pulled by all others, of so many coordinates."""
    x, j = tir.placeholder((lead, n, c), name="x"), tir.reduce_axis(n, name="j")
    return tir.compute(
        (lead, n, c), lambda b, i, a: tir.sum(tir.abs(x[b, j, 0] - x[b, i, 0]) * x[b, j, a], axis=j), name="F"
    )


@pytest.mark.parametrize("shape", [(64, 3), (67, 2), (40, 1, 5), (129, 3, 2)])
def test_many_terms_of_short_rows_are_in_vectors_along_the_longest_axis(shape):
    y = forces(*shape)
    template, s = tir.auto(y, CPU)["cpu_stream"], tir.Schedule(y, CPU)
    space = template.space_for(s.target)
    template.function(s, space.default)
    assert space.default["lanes"] > 1 and "s.vectorize('F.i.1" in str(s.trace)
    for config in spread_over(space, 3):
        s = tir.Schedule(y, CPU)
        template.function(s, config)
        assert s.check(), config


def test_few_cells_with_many_terms_are_in_small_blocks_on_gpus():
    """Each multiprocessor has some."""
    x, j = tir.placeholder((4096, 3), name="x"), tir.reduce_axis(4096, name="j")
    y = tir.compute((4096, 3), lambda i, c: tir.sum(tir.abs(x[j, c] - x[i, c]) * x[i, 0], axis=j), name="F")
    template, s = tir.auto(y, GPU)["gpu_stream"], tir.Schedule(y, GPU)
    template.function(s, template.space_for(s.target).default)
    assert s.emitted().kernels[0].grid[0] == 4096 * 3 // 64
    assert tir.auto_schedule(elementwise(64, 64), GPU).emitted().kernels[0].block[0] == 256


@pytest.mark.parametrize("of", [(5, 3), (64, 8), (64, 64)], ids=str)
def test_other_cells_are_in_vectors_along_the_last_axis(of):
    x, j = tir.placeholder(of, name="x"), tir.reduce_axis(of[0] if of[0] > 5 else 40, name="j")
    w = tir.placeholder((j.extent, *of[1:]), name="w")
    y = tir.compute(of, lambda i, a: tir.sum(x[i, a] * w[j, a], axis=j), name="F")
    template, s = tir.auto(y, CPU)["cpu_stream"], tir.Schedule(y, CPU)
    template.function(s, template.space_for(s.target).default)
    assert "s.vectorize('F.i" not in str(s.trace)


def test_the_last_vector_of_a_row_begins_earlier_where_the_row_is_no_multiple():
    A, v = tir.placeholder((61, 67), name="A"), tir.placeholder((67,), name="v")
    s = tir.auto_schedule(tir.compute((61, 67), lambda i, j: A[i, j] + v[j], name="Y"), CPU)
    assert "shift" in str(s.trace)
    assert "not in vectors" not in s.source()


def test_a_window_stays_in_registers():
    for target in (CPU, GPU):
        assert "Y_register" in tir.auto_schedule(pooled(16, 16), target).source()
        assert "S[" in (text := tir.auto_schedule(averaged(16, 64), target).source())
        assert "S_kernel" not in text  # made next to the cells that it is for


def test_threads_have_four_neighbours_each_in_a_vector():
    assert "float4" in tir.auto_schedule(elementwise(64, 64), GPU).source()
    assert "float4" not in tir.auto_schedule(elementwise(61, 67), GPU).source()


def test_no_cell_and_no_axis_is_needed():
    A = tir.placeholder((5,), name="A")
    r = tir.reduce_axis(5, name="r")
    for target in (CPU, GPU):
        assert tir.auto_schedule(tir.compute((), lambda: tir.sum(A[r], axis=r), name="Y"), target).check()


def test_dims_are_streamed_with_guards():
    n = tir.dim("n", high=4096)
    A = tir.placeholder((n, 7), name="A")
    for target in (CPU, GPU):
        assert tir.auto_schedule(tir.compute((n, 7), lambda i, j: A[i, j] + 1, name="Y"), target).check()
        assert tir.auto_schedule(tir.compute((7, n), lambda i, j: A[j, i] + 1, name="Y"), target).check()


def test_several_outputs_of_a_stage_share_its_loops():
    A = tir.placeholder((33, 48), name="A")
    more, less = tir.compute((33, 48), lambda i, j: (A[i, j] + 1, A[i, j] - 1), name="Y")
    for target in (CPU, GPU):
        assert tir.auto_schedule((more, less), target).check()


def test_more_lanes_are_expected_to_take_less_time():
    plan = next(iter(plans((columns(256, 4096),), Target.parse(CPU)).values()))
    seconds = plan.space().expected_s
    assert seconds is not None
    start = plan.space().default
    assert seconds(start) <= min(seconds(c) for c in (plan.space().config(k) for k in range(len(plan.space().legal))))


def test_cells_that_lanes_divide_are_in_vectors_whatever_the_blocks():
    """10,000 cells in blocks of 1,024: that the last block is not whole concerns vectors, not lanes."""
    A = tir.placeholder((100, 100), name="A")
    s = tir.auto_schedule(tir.compute((100, 100), lambda i, j: tir.exp(A[i, j]) * 2, name="Y"), "c")
    assert "not in vectors" not in s.source()
    assert s.check()


def test_lanes_that_all_read_the_last_row_read_it_by_no_lane():
    """Of nine rows the second of two vectors begins at the last one, where its lanes are clamped in a small shape."""
    largest = tir.combiner(lambda a, b: tir.where(tir.abs(a) < tir.abs(b), b, a), 0, name="largest", commutative=False)
    x, k = tir.placeholder((64, 16), name="x"), tir.reduce_axis(16, name="k")
    y = tir.compute((64,), lambda i: largest(x[i, k], axis=k), name="Y")
    s = tir.Schedule(y, CPU)
    tir.auto(y, CPU)["cpu_stream"].function(s, {"block": 16384, "lanes": 8, "vectors": 2})
    assert s.check()
