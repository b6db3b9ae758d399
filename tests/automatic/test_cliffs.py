"""Defaults without cliffs: what leaves vectors, cores or multiprocessors idle where others would not."""

import math

import ml_dtypes
import numpy as np
import pytest

import tensorir as tir

CPUS = {n: f"opencl -registers=32 -vector_bytes=64 -units={n}" for n in (1, 2, 4, 16, 64, 128)}


def grid(s):
    return max(math.prod(k.grid) for k in s.emitted().kernels)


def product(m, n, k):
    a, b = tir.placeholder((m, k), name="a"), tir.placeholder((k, n), name="b")
    return tir.nn.matmul(a, b, name="c")


def attention(heads, queries, keys, depth):
    shapes = {"q": queries, "k": keys, "v": keys}
    return tir.nn.attention(*(tir.placeholder((1, heads, n, depth), name=name) for name, n in shapes.items()))


@pytest.mark.parametrize("made", [
    lambda: product(512, 512, 512), lambda: product(2048, 256, 512), lambda: product(1, 4096, 1024),
    lambda: tir.nn.softmax(tir.placeholder((1024, 512), name="x"), -1),
    lambda: tir.nn.layer_norm(tir.placeholder((2048, 768), name="x"), (768,)),
    lambda: tir.ops.conv2d(c=64, h=56, w=56, k=64, pad=1).outputs,
    lambda: tir.ops.conv2d(c=256, h=28, w=28, k=512, r=1, s=1).outputs,
    lambda: tir.compute((2048, 2048), lambda i, j: X[i, j] + X[i + 1, j] + X[i, j + 2], name="y"),
], ids=["square", "tall", "row", "softmax", "norm", "3x3", "1x1", "stencil"])  # fmt: skip
def test_defaults_have_blocks_for_half_of_the_cores_of_any_machine(made):
    out = made()
    for cores, target in CPUS.items():
        assert grid(tir.auto_schedule(out, target)) >= cores / 2, cores


X = tir.placeholder((2049, 2050), name="X")


def test_expected_seconds_fall_with_cores_and_no_faster():
    for work in (tir.ops.matmul(m=1024, n=1024, k=1024), tir.ops.conv2d(c=256, h=28, w=28, k=256, pad=1)):
        seconds = {}
        for cores, target in CPUS.items():
            space = work.templates[work.template_for(target)].space_for(tir.Target.parse(target))
            seconds[cores] = space.expected_s(space.default)
        for few, many in zip(CPUS, list(CPUS)[1:], strict=False):
            assert 1.0 <= seconds[few] / seconds[many] <= many / few * 1.01, (few, many)
        assert seconds[1] / seconds[16] > 4


@pytest.mark.parametrize("shape", [(1000,), (5, 770), (3, 5), (17,)])
@pytest.mark.parametrize("target", [CPUS[2], "c -registers=16 -vector_bytes=32 -units=2"])
def test_two_results_are_in_vectors_and_shared_out_as_one_is(shape, target):
    a, b = tir.placeholder(shape, name="a"), tir.placeholder(shape, name="b")
    pair = tir.auto_schedule(tir.compute(shape, lambda *i: (a[i] + b[i], a[i] - b[i]), name="y"), target)
    assert grid(pair) == grid(tir.auto_schedule(tir.compute(shape, lambda *i: a[i] + b[i], name="y"), target))
    assert "not in vectors" not in pair.source()
    assert pair.check()
    x, y = (np.arange(math.prod(shape), dtype="float32").reshape(shape) % m for m in (7, 5))
    for got, want in zip(
        pair.build(target.split()[0] + ":0" * (1 + target.startswith("opencl")))(x, y), (x + y, x - y), strict=True
    ):
        assert np.array_equal(got, want)


@pytest.mark.parametrize("target", [CPUS[16], CPUS[2], "cuda -arch=sm_80", "cuda -arch=sm_90a"])
def test_one_query_is_shared_out_over_the_keys(target):
    s = tir.auto_schedule(attention(8, 1, 2048, 64), target)
    assert grid(s) >= 16 and ("s.rolling" not in str(s.trace) or "split_softmax" in str(s.trace))
    assert tir.auto_schedule(attention(2, 1, 96, 16), target).check()


def test_many_queries_stay_one_kernel():
    for target in (CPUS[2], "cuda -arch=sm_90a"):
        assert len(tir.auto_schedule(attention(96, 512, 512, 64), target).emitted().kernels) == 1


def iterated(n, rounds):
    cr, ci = tir.placeholder((n,), name="cr"), tir.placeholder((n,), name="ci")
    z = tir.compute((n,), lambda i: (cr[i], ci[i]), name="z0")
    for t in range(1, rounds):
        z = tir.compute(
            (n,),
            lambda i, z=z: (z[0][i] * z[0][i] - z[1][i] * z[1][i] + cr[i], 2.0 * z[0][i] * z[1][i] + ci[i]),
            f"z{t}",
        )
    return z


@pytest.mark.parametrize("target", [CPUS[2], "c -registers=16 -vector_bytes=32 -units=2", "cuda -arch=sm_80"])
@pytest.mark.parametrize("n", [64, 50, 7])
def test_a_map_that_is_iterated_is_one_kernel_in_registers(target, n):
    s = tir.auto_schedule(iterated(n, 9), target)
    assert len(s.emitted().kernels) == 1 and "not in vectors" not in s.source()
    assert s.check()


def test_maps_that_others_read_or_read_elsewhere_stay():
    x, k = tir.placeholder((40, 40), name="x"), tir.reduce_axis(40, name="k")
    e = tir.compute((40, 40), lambda i, j: (tir.exp(x[i, j]), x[i, j] * 2.0), name="e")
    y = tir.compute((40, 40), lambda i, j: e[0][i, j] * e[0][i, j] + e[1][i, j], name="y")
    turned = tir.compute((40, 40), lambda i, j: e[0][j, i] + e[1][i, j], name="y")
    summed = tir.compute((40,), lambda i: tir.sum(e[0][i, k], axis=k), name="r")
    for outputs, kernels in (((y,), 1), ((turned,), 2), ((y, *e), 1), ((y, summed), 3)):
        s = tir.auto_schedule(outputs, CPUS[2])
        assert len(s.emitted().kernels) == kernels and s.check(), outputs


def balanced(n, rows, columns, rounds):
    """Rows and columns of ``n`` matrices, divided by their sums in turn (Sinkhorn)."""
    y = tir.placeholder((n, rows, columns), name="x")
    for t in range(rounds):
        k, l = tir.reduce_axis(columns, name=f"k{t}"), tir.reduce_axis(rows, name=f"l{t}")
        r = tir.compute((n, rows), lambda b, i, y=y, k=k: tir.sum(y[b, i, k], axis=k), name=f"r{t}")
        y = tir.compute((n, rows, columns), lambda b, i, j, y=y, r=r: y[b, i, j] / r[b, i], name=f"a{t}")
        c = tir.compute((n, columns), lambda b, j, y=y, l=l: tir.sum(y[b, l, j], axis=l), name=f"c{t}")
        y = tir.compute((n, rows, columns), lambda b, i, j, y=y, c=c: y[b, i, j] / c[b, j], name=f"b{t}")
    return y


@pytest.mark.parametrize("shape", [(64, 4, 4), (10, 3, 20), (7, 16, 16), (5, 9, 5), (2, 40, 33)])
def test_rows_and_columns_of_small_matrices_are_summed_in_one_kernel(shape):
    s = tir.auto_schedule(balanced(*shape, 2), CPUS[2])
    assert len(s.emitted().kernels) == 1 and s.check()
    x = np.random.default_rng(0).random(shape, "float32") + np.float32(0.1)
    want = x.astype("float64")
    for _ in range(2):
        want = want / want.sum(2, keepdims=True)
        want = want / want.sum(1, keepdims=True)
    np.testing.assert_allclose(s.build("opencl:pocl")(x), want, rtol=1e-5)


def test_large_products_within_rows_have_their_own_kernels():
    x, y, k, l = *(tir.placeholder((4, 32, 32), name=n) for n in "xy"), tir.reduce_axis(32), tir.reduce_axis(32)
    p = tir.compute((4, 32, 32), lambda b, i, j: tir.sum(x[b, i, k] * y[b, k, j], axis=k), name="p")
    r = tir.compute((4, 32), lambda b, i: tir.sum(p[b, i, l], axis=l), name="r")
    z = tir.compute((4, 32, 32), lambda b, i, j: p[b, i, j] / r[b, i], name="z")
    assert len(tir.auto_schedule(z, CPUS[2]).emitted().kernels) > 1


def sorted_rows(rows, n):
    """Bitonic sort: 1 + 2 + … + log2(n) rounds of exchanges within a row."""
    y, k = tir.placeholder((rows, n), name="x"), 2
    while k <= n:
        j = k // 2
        while j:
            y = tir.compute((rows, n), lambda b, i, y=y, j=j, k=k: tir.where(
                ((i & k) == 0) == ((i ^ j) > i), tir.minimum(y[b, i], y[b, i ^ j]), tir.maximum(y[b, i], y[b, i ^ j])
            ), name=f"s{k}_{j}")  # fmt: skip
            j //= 2
        k *= 2
    return y


def test_exchanges_within_a_row_stay_near():
    s = tir.auto_schedule(sorted_rows(20, 16), CPUS[2])
    assert len(s.emitted().kernels) == 1
    x = np.random.default_rng(3).permutation(320).reshape(20, 16).astype("float32")
    assert np.array_equal(s.build("opencl:pocl")(x), np.sort(x, 1))
    assert len(tir.auto_schedule(sorted_rows(1, 1 << 14), CPUS[64]).emitted().kernels) > 1, "one row, many cores"


@pytest.mark.parametrize("made", [lambda: iterated(40, 120), lambda: balanced(4, 4, 4, 30)], ids=["maps", "rows"])
def test_long_chains_are_cut(made):
    kernels = tir.auto_schedule(made(), CPUS[2]).emitted().kernels
    assert 1 < len(kernels) <= 5


def test_what_lies_side_by_side_stays_in_vectors():
    """Cells of a short last axis are fused over rows, and an axis that numbers the rows is not the one in the lanes."""
    x = tir.placeholder((5000, 3), name="x")
    e = tir.compute((5000, 3), lambda i, j: (x[i, j] * x[i, j], x[i, j] + 1.0), name="e")
    narrow = tir.compute((5000, 3), lambda i, j: e[0][i, j] * e[1][i, j] + e[0][i, j], name="y")
    x = tir.placeholder((4, 4000), name="x")
    below = tir.compute((4, 4000), lambda i, j: tir.tanh(x[i, j]) + x[(i + 1) % 4, j], name="t")
    across = tir.compute((4, 4000), lambda i, j: tir.tanh(below[i, j]) + below[(i + 1) % 4, j], name="u")
    for y in (narrow, across):
        s = tir.auto_schedule(y, CPUS[2])
        assert "not in vectors" not in s.source() and not s.expected.notes, y


@pytest.mark.parametrize(
    "shape", [(31, 300, 14, True), (13, 5, 32263), (1, 5, 32263), (7, 1, 29593), (1, 3, 69905, True)], ids=str
)
def test_no_other_template_of_a_product_is_counted_clearly_faster(shape):
    m, n, k, *tb = shape
    a, b = tir.placeholder((m, k), name="a"), tir.placeholder((n, k) if tb else (k, n), name="b")
    out = tir.nn.matmul(a, b, tb=bool(tb), name="c")
    target = tir.Target.parse("c -registers=32 -vector_bytes=64 -units=1")
    seconds = {}
    for name, template in tir.auto(out, target).items():
        s = tir.Schedule(out, target)
        template.function(s, template.space_for(target).default)
        seconds[name] = s.expected.seconds
    default, *_ = seconds.values()
    assert default < 1.5 * min(seconds.values())


@pytest.mark.parametrize("terms", [8192, 69905, 131071])
def test_long_sums_of_few_cells_are_in_vectors_whatever_their_length_is(terms):
    x, k = tir.placeholder((3, terms), name="x"), tir.reduce_axis(terms, name="k")
    s = tir.auto_schedule(tir.compute((3,), lambda i: tir.sum(x[i, k], axis=k), name="y"), CPUS[16])
    assert "float16" in s.source()
    assert not any("cell by cell" in note for note in s.expected.notes)
    assert s.check()


def escape(n, rounds):
    """Rounds that points stay within a circle: three values a round, one of them a count (Mandelbrot)."""
    cr, ci = tir.placeholder((n,), name="cr"), tir.placeholder((n,), name="ci")
    z = tir.compute((n,), lambda i: (cr[i], ci[i], tir.cast(0, "int32")), name="z0")
    for t in range(rounds):

        def step(i, z=z):
            re, im, count = z[0][i], z[1][i], z[2][i]
            stays = re * re + im * im <= 4.0
            new = re * re - im * im + cr[i], 2.0 * re * im + ci[i]
            return tir.where(stays, new[0], re), tir.where(stays, new[1], im), count + tir.where(stays, 1, 0)

        z = tir.compute((n,), step, name=f"z{t + 1}")
    return z[2]


def test_rounds_of_which_one_value_is_the_result_are_one_kernel_in_vectors():
    s = tir.auto_schedule(escape(64, 4), CPUS[2])
    assert len(s.emitted().kernels) == 1 and "not in vectors" not in s.source()
    x = np.array([0.0, 2.5, -1.0, 0.5] * 16, "float32")
    y = np.array([0.0, 0.0, 0.25, 2.0] * 16, "float32")
    z, count = x + 1j * y.astype("float64"), np.zeros(64, "int32")
    for _ in range(4):
        stays = abs(z) <= 2
        z, count = np.where(stays, z * z + x + 1j * y, z), count + stays
    assert np.array_equal(s.build("opencl:pocl")(x, y), count)


@pytest.mark.parametrize("shape", [(5, 64), (3, 53), (4, 8)])
@pytest.mark.parametrize("target", [CPUS[2], "c -registers=16 -vector_bytes=32 -units=2"])
def test_borders_of_a_periodic_image_are_cut_off(shape, target):
    m, n = shape
    x = tir.placeholder(shape, name="x")
    near = lambda i, j: x[(i + 1) % m, j] + x[i, (j + n - 1) % n] * 2.0 + x[i, (j + 2) % n] * 4.0  # noqa: E731
    s = tir.auto_schedule(tir.compute(shape, near, name="y"), target)
    assert ("partition" in str(s.trace)) == (n > 8) and s.check()
    a = (np.arange(m * n) % 11).astype("float32").reshape(shape)
    want = np.roll(a, -1, 0) + np.roll(a, 1, 1) * 2 + np.roll(a, -2, 1) * 4
    assert np.array_equal(s.build(target.split()[0] + ":0" * (1 + target.startswith("opencl")))(a), want)


@pytest.mark.parametrize("target", [CPUS[2], "c -registers=16 -vector_bytes=32 -units=2"])
def test_borders_that_move_with_a_loop_stay_in_vectors(target):
    """Costs of pixels that are some pixels apart: the border lies elsewhere for each distance."""
    a, b, r = tir.placeholder((3, 4, 24), name="a"), tir.placeholder((3, 4, 24), name="b"), tir.reduce_axis(3, name="r")
    cell = lambda d, i, j: tir.sum(a[r, i, j] * b.get(r, i + d // 3 - 1, j + d % 3 - 1, fill=0), axis=r)  # noqa: E731
    s = tir.auto_schedule(tir.compute((9, 4, 24), cell, name="y"), target)
    assert "not in vectors" not in s.source() and s.check()
    x, y = ((np.arange(288) % m).astype("float32").reshape(3, 4, 24) for m in (5, 7))
    padded = np.pad(y, ((0, 0), (1, 1), (1, 1)))
    want = np.stack([(x * padded[:, u : u + 4, v : v + 24]).sum(0) for u in range(3) for v in range(3)])
    assert np.array_equal(s.build(target.split()[0] + ":0" * (1 + target.startswith("opencl")))(x, y), want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("target", [CPUS[2], "c -registers=16 -vector_bytes=32 -units=2"])
def test_halves_are_converted_in_vectors(dtype, target):
    """All 65536 of them widened, and all float32 next to them and between them rounded."""
    at = np.arange(1 << 16, dtype="uint16").view(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x, y = tir.placeholder(at.shape, dtype, name="x"), tir.placeholder((*at.shape, 3), name="y")
    up = tir.compute(at.shape, lambda i: tir.cast(x[i], "float32"), name="up")
    down = tir.compute(y.shape, lambda i, j: tir.cast(y[i, j], dtype), name="down")
    near = np.stack([(at.view("uint16").astype("uint32") << 13) + (112 << 23) + d for d in (0, 0xFFF, 0x1000)], 1)
    near[1::2] ^= np.uint32(1 << 31)
    s, device = tir.auto_schedule((up, down), target), target.split()[0] + ":0" * (1 + target.startswith("opencl"))
    assert f"tir_load_{dtype}" in s.source() and f"tir_store_{dtype}" in s.source()
    wide, narrow = s.build(device)(at, near.view("float32"))
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(np.asarray(wide), at.astype("float32"))
        want = near.view("float32").astype(at.dtype).astype("float32")
    np.testing.assert_array_equal(np.asarray(narrow).astype("float32"), want)


def test_one_bit_of_bytes_stays_in_bytes():
    x = tir.placeholder((64,), "uint8", name="x")
    y = tir.compute((64,), lambda i: tir.where(x[i] > 3, 1, 0).astype("uint8"), name="y")
    assert "long16" not in tir.auto_schedule(y, CPUS[2]).source()


@pytest.mark.parametrize("shape", [(128, 128, 128), (96, 64, 160), (512, 512, 512), (3, 512, 64)], ids=str)
def test_tiles_of_products_leave_registers_for_their_operands(shape):
    target = tir.Target.parse("c -registers=16 -vector_bytes=32 -units=2")
    name, template = next(iter(tir.auto(product(*shape), target).items()))
    tile = template.space_for(target).default
    assert tile["tile"] == 1 or (tile["tile"] + 1) * tile["vectors"] + 1 <= target.registers, (name, tile)
