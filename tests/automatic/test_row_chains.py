"""The rows rule: chains of reductions along rows, in one kernel, in vectors, right in every shape."""

import numpy as np
import pytest
from covering import some_of_each, spread_over

import tensorir as tir
from tensorir.automatic.plan import plans
from tensorir.target import Target

CPU, GPU = "opencl", "cuda -arch=sm_80"


def softmax(rows, columns, dtype="float32"):
    return tir.nn.softmax(tir.placeholder((rows, columns), dtype, name="x"), -1, name="Y")


def log_softmax(rows, columns, dtype="float32"):
    return tir.nn.log_softmax(tir.placeholder((rows, columns), dtype, name="x"), -1, name="Y")


def layer_norm(rows, columns, dtype="float32"):
    x, w, b = (
        tir.placeholder(s, dtype, name=n) for n, s in (("x", (rows, columns)), ("w", (columns,)), ("b", (columns,)))
    )
    return tir.nn.layer_norm(x, (columns,), w, b, name="Y")


def rms_norm(rows, columns, dtype="float32"):
    return tir.nn.rms_norm(tir.placeholder((rows, columns), dtype, name="x"), (columns,), name="Y")


def total(rows, columns, dtype="float32"):
    x, k = tir.placeholder((rows, columns), dtype, name="x"), tir.reduce_axis(columns, name="k")
    return tir.compute((rows,), lambda i: tir.sum(x[i, k], axis=k), name="Y")


def logsumexp(rows, columns, dtype="float32"):
    x = tir.placeholder((rows, columns), dtype, name="x")
    k, q = (tir.reduce_axis(columns, name=n) for n in "kq")
    m = tir.compute((rows,), lambda i: tir.max(x[i, k], axis=k), name="m")
    l = tir.compute((rows,), lambda i: tir.sum(tir.exp(x[i, q] - m[i]), axis=q), name="l")
    return tir.compute((rows,), lambda i: tir.log(l[i]) + m[i], name="Y")


def normalised(rows, columns, dtype="float32"):
    """x over the root of its squares, of gelu(x): what is made of x is read twice."""
    x, k = tir.placeholder((rows, columns), dtype, name="x"), tir.reduce_axis(columns, name="k")
    g = tir.compute((rows, columns), lambda i, j: x[i, j] * tir.erf(x[i, j]), name="g")
    n = tir.compute((rows,), lambda i: tir.sum(g[i, k] * g[i, k], axis=k), name="n")
    return tir.compute((rows, columns), lambda i, j: g[i, j] * tir.rsqrt(n[i] + 1e-6), name="Y")


DEFINITIONS = {f.__name__: f for f in (softmax, log_softmax, layer_norm, rms_norm, total, logsumexp, normalised)}


def way(output, target=CPU):
    """The name of the default template."""
    return next(iter(tir.auto(output, target)))


def planned(output, target):
    """The name of the default template, and the schedule that it makes."""
    name, template = next(iter(tir.auto(output, target).items()))
    s = tir.Schedule(output, target)
    template.function(s, template.space_for(s.target).default)
    return name, s


SHAPES = [(64, 64), (1, 1), (1, 67), (7, 5), (33, 129), (5, 1000), (2, 513)]
SOME = some_of_each(DEFINITIONS, SHAPES)


@pytest.mark.parametrize(("name", "shape"), SOME)
def test_a_definition_is_right_in_every_shape(name, shape):
    assert tir.auto_schedule(DEFINITIONS[name](*shape), CPU).check()


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_chain_is_one_kernel_and_makes_no_array_in_memory(name):
    found, s = planned(DEFINITIONS[name](64, 200), CPU)
    assert found == "cpu_rows"
    assert len(s.emitted().kernels) == 1
    assert "float16" in s.source() or "float8" in s.source()


def test_configurations_are_right():
    output = normalised(33, 100)
    template = tir.auto(output, CPU)["cpu_rows"]
    space = template.space_for(Target.parse(CPU))
    assert 0 < len(space.legal) <= 100
    for config in spread_over(space, 5):
        s = tir.Schedule(output, CPU)
        template.function(s, config)
        assert s.check(), config


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats(dtype):
    for name in ("softmax", "layer_norm", "total"):
        assert tir.auto_schedule(DEFINITIONS[name](9, 77, dtype), CPU).check(), name


def test_whole_numbers_and_places_of_the_largest():
    x, k = tir.placeholder((19, 83), "int32", name="x"), tir.reduce_axis(83, name="k")
    y = tir.compute((19,), lambda i: tir.sum(x[i, k], axis=k), name="Y")
    assert way(y) == "cpu_rows" and tir.auto_schedule(y).check()
    largest = tir.compute((19,), lambda i: tir.argmax(x[i, k], axis=k), name="Y")
    assert tir.auto_schedule(largest).check()


def test_what_runs_is_the_declaration():
    x = np.random.default_rng(0).standard_normal((37, 131)).astype("float32")
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(
        tir.auto_schedule(softmax(37, 131)).build()(x), e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7
    )
    whole = np.random.default_rng(1).integers(-9, 9, (37, 131)).astype("float32")
    assert np.array_equal(tir.auto_schedule(total(37, 131)).build()(whole), whole.sum(1))


def test_whole_vectors_apart_from_the_tail():
    s = tir.auto_schedule(layer_norm(64, 1000), CPU)
    assert s.source().count("not in vectors") <= 3
    assert "partition at" in s.tree()


def test_several_dimensions_of_a_row_are_one():
    x = tir.placeholder((6, 7, 13), name="x")
    y = tir.nn.layer_norm(x, (7, 13), name="Y")
    assert way(y) == "cpu_rows" and len(tir.auto_schedule(y).emitted().kernels) == 1
    assert tir.auto_schedule(y).check()


@pytest.mark.parametrize("shape, groups", [((4, 12, 5, 9), 3), ((2, 30, 7, 7), 5), ((3, 7, 5), 7), ((1, 8, 1, 3), 1)])
def test_a_group_of_channels_is_a_row(shape, groups):
    x, w = tir.placeholder(shape, name="x"), tir.placeholder(shape[1:2], name="w")
    y = tir.nn.group_norm(x, groups, w, name="Y")
    for target, level in ((CPU, "fast"), (GPU, "emulate")):
        name, s = planned(y, target)
        assert name.endswith("pu_rows") and len(s.emitted().kernels) == 1 and s.check(level)


def test_windows_with_nothing_in_common_are_no_rows():
    y = tir.nn.avg_pool2d(tir.placeholder((2, 8, 32, 32), name="x"), 2, name="Y")
    assert way(y) != "cpu_rows" and tir.auto_schedule(y).check()


def test_what_is_a_result_is_written_and_read_again():
    x, k, q = tir.placeholder((9, 65), name="x"), tir.reduce_axis(65, name="k"), tir.reduce_axis(65, name="q")
    m = tir.compute((9,), lambda i: tir.max(x[i, k], axis=k), name="m")
    l = tir.compute((9,), lambda i: tir.sum(tir.exp(x[i, q] - m[i]), axis=q), name="l")
    y = tir.compute((9, 65), lambda i, j: tir.exp(x[i, j] - m[i]) / l[i], name="Y")
    s = tir.auto_schedule((y, m))
    assert s.check() and len(s.emitted().kernels) == 1


def test_dims():
    n = tir.dim("n", high=4096)
    for shape in ((n, 33), (33, n), (n,)):
        x = tir.placeholder(shape, name="x")
        assert tir.auto_schedule(tir.nn.softmax(x, -1)).check(), shape


def test_a_product_and_a_window_are_no_rows():
    A, B, c = tir.placeholder((16, 40), name="A"), tir.placeholder((40, 16), name="B"), tir.reduce_axis(40, name="c")
    assert way(tir.compute((16, 16), lambda i, j: tir.sum(A[i, c] * B[c, j], axis=c), name="P")) != "cpu_rows"
    assert way(tir.nn.max_pool2d(tir.placeholder((1, 2, 16, 16), name="x"), 3, 2, 1)) != "cpu_rows"


def test_the_start_is_what_the_model_likes_best():
    plan = next(iter(plans((softmax(1024, 1024),), Target.parse(CPU)).values()))
    space = plan.space()
    assert space.expected_s is not None
    assert space.expected_s(space.default) <= min(space.expected_s(space.config(k)) for k in range(len(space.legal)))


@pytest.mark.parametrize(("name", "shape"), some_of_each(DEFINITIONS, SHAPES, range(len(SHAPES))))
def test_a_chain_is_one_kernel_on_gpus_in_every_shape(name, shape):
    found, s = planned(DEFINITIONS[name](*shape), GPU)
    assert found == "gpu_rows" and len(s.emitted().kernels) == 1
    assert (name, shape) not in SOME or s.check("emulate")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats_on_gpus(dtype):
    for name in ("softmax", "layer_norm", "total"):
        assert tir.auto_schedule(DEFINITIONS[name](9, 76, dtype), GPU).check("emulate"), name


def test_a_block_reads_a_row_once_four_elements_a_thread():
    text = tir.auto_schedule(layer_norm(64, 1024), GPU).source()
    body = text[text.index("__global__") :]
    assert body.count("(x + ") == 1 and "*(const float4 *)(x + " in body
    assert "*(const float4 *)(w + " in body and "*(float4 *)(Y + " in body


def test_narrow_rows_that_are_read_again_are_read_in_vectors():
    """Four neighbours a thread, converted one by one, would each ask for all sectors of a warp."""
    s = tir.auto_schedule(DEFINITIONS["softmax"](3, 8192, "bfloat16"), GPU)
    assert "x_shared" not in s.source() and "*(const uint2 *)(x + " in s.source()
    assert s.check("emulate")


def test_a_row_beyond_shared_memory_is_read_again():
    s = tir.auto_schedule(layer_norm(400, 20000), GPU)
    assert "x_shared" not in s.source() and s.check()
    s = tir.auto_schedule(softmax(400, 20000), GPU)  # its exponentials have no place
    assert way(softmax(400, 20000), GPU) == "gpu_rows" and len(s.emitted().kernels) == 2 and s.check()


def middle(n, k, m, dtype="float32"):
    return tir.nn.softmax(tir.placeholder((n, k, m), dtype, name="x"), 1, name="Y")


def variance(n, k, m, dtype="float32"):
    """Of columns: sums, and squares of differences."""
    x = tir.placeholder((n, k, m), dtype, name="x")
    r, q = (tir.reduce_axis(k, name=c) for c in "rq")
    t = tir.compute((n, m), lambda i, j: tir.sum(x[i, r, j], axis=r), name="t")
    return tir.compute((n, m), lambda i, j: tir.sum((x[i, q, j] - t[i, j] / k) * (x[i, q, j] - t[i, j] / k), axis=q))


def over_two(n, k, m, dtype="float32"):
    x, r, q = tir.placeholder((n, k, m), dtype, name="x"), tir.reduce_axis(n, name="r"), tir.reduce_axis(k, name="q")
    return tir.compute((m,), lambda j: tir.sum(x[r, q, j], axis=(r, q)), name="Y")


@pytest.mark.parametrize(
    ("made", "shape"),
    some_of_each(
        [middle, variance, over_two], [(2, 40, 64), (1, 1, 16), (3, 7, 17), (2, 33, 129), (1, 67, 31), (5, 13, 5)]
    ),
)
def test_rows_next_to_each_other_are_right_in_every_shape(made, shape):
    assert tir.auto_schedule(made(*shape), CPU).check()
    assert tir.auto_schedule(made(*shape), GPU).check("emulate")


@pytest.mark.parametrize("target", [CPU, GPU])
def test_rows_next_to_each_other_are_taken_together_in_one_kernel(target):
    name, s = planned(middle(2, 40, 64), target)
    assert name.endswith("_rows_across")
    assert len(s.emitted().kernels) == 1


@pytest.mark.parametrize("target", [CPU, GPU])
def test_configurations_across_are_right(target):
    for output in (middle(2, 40, 70), over_two(4, 80, 70)):
        name, template = next(iter(tir.auto(output, target).items()))
        space = template.space_for(Target.parse(target))
        assert name.endswith("_rows_across")
        for config in spread_over(space, 5):
            s = tir.Schedule(output, target)
            template.function(s, config)
            assert s.check(), config


def test_few_long_columns_are_summed_in_pieces():
    for rows, pieces in ((1024, False), (16384, True)):  # one core has summed the shorter ones before others begin
        x, k = tir.placeholder((rows, 64), name="x"), tir.reduce_axis(rows, name="k")
        s = tir.auto_schedule(tir.compute((64,), lambda j, x=x, k=k: tir.sum(x[k, j], axis=k), name="Y"))
        assert ("rfactor" in str(s.trace)) == pieces and s.check()


@pytest.mark.parametrize("shape", [(3, 16384, 64), (1, 9973, 40), (1, 40000, 17)])
def test_few_long_columns_are_summed_in_pieces_on_gpus(shape):
    """By threads next to each other, which read neighbours; threads along the terms of one would read a sector each."""
    y = over_two(*shape)
    assert next(iter(tir.auto(y, GPU))) == "gpu_rows_across"
    s = tir.auto_schedule(y, GPU)
    kernels = s.emitted().kernels
    assert len(kernels) == 2 and kernels[0].grid[0] >= 64 and kernels[0].block[0] == 32
    assert s.check()
    small = tir.Schedule(over_two(2, 300, shape[2]), GPU)
    template = tir.auto(over_two(2, 300, shape[2]), GPU)["gpu_rows_across"]
    space = template.space_for(small.target)
    config = next(c for c in map(space.config, range(len(space.legal))) if c["pieces"] > 1)
    template.function(small, config)
    assert small.check("emulate")


def test_parts_of_the_terms_go_whole_rows_wide():
    """Columns of a block would make no difference to them."""
    x, k = tir.placeholder((1024, 64), name="x"), tir.reduce_axis(1024, name="k")
    (plan, *_) = plans((tir.compute((64,), lambda j: tir.sum(x[k, j], axis=k), name="Y"),), Target.parse(CPU)).values()
    space = plan.space()
    found = [space.config(row) for row in range(len(space.legal))]
    assert len({c["columns"] for c in found}) > 1 == len({c["columns"] for c in found if c["pieces"] > 1})


@pytest.mark.parametrize("rows, columns, kernels", [(512, 16, 1), (900, 8, 1), (6000, 32, 2)])
def test_shared_memory_has_room_for_fewer_columns_the_longer_they_are(rows, columns, kernels):
    output = tir.nn.softmax(tir.placeholder((rows, 4000), name="x"), 0, name="Y")
    name, template = next(iter(tir.auto(output, GPU).items()))
    assert name == "gpu_rows_across" and template.space_for(Target.parse(GPU)).default["columns"] == columns
    s = tir.auto_schedule(output, GPU)
    assert s.check() and len(s.emitted().kernels) == kernels


@pytest.mark.parametrize("shape", [(8, 20, 100), (1, 300, 100), (2, 33, 1000)])
def test_rows_that_no_vector_divides_are_in_vectors_up_to_the_last_few(shape):
    s = tir.auto_schedule(middle(*shape), CPU)
    assert s.check() and s.emitted().text.count("not in vectors") <= 4


def test_positions_in_rows_that_end_in_a_part_of_a_vector_are_checked():
    """The partial results of the last vector are values that have names of their own, infinite ones among them."""
    x, r = tir.placeholder((9, 70), name="x"), tir.reduce_axis(70, name="r")
    assert tir.auto_schedule(tir.compute((9,), lambda i: tir.argmax(x[i, r], axis=r), name="y")).check()
