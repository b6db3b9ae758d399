"""Attention on GPUs without a schedule: both products on tensor cores, exact in every shape."""

import shutil

import pytest
from covering import spread_over

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import random_arguments

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
VARIANTS = {
    "causal": {"causal": True},
    "ALiBi": {"score": lambda s, b, h, i, j: s - tir.cast(i - j, "float32") * 2.0 ** -(h + 1.0)},
    "window": {"mask": lambda b, h, i, j: tir.all_(j <= i, i - j < 20)},
    "soft-cap": {"score": lambda s, b, h, i, j: 30 * tir.tanh(s / 30)},
    "documents": {"mask": lambda b, h, i, j: tir.equal(i // 9, j // 9)},
}


def of(queries, keys, width=16, columns=None, heads=(1, 1, 1), dtype="float16", **options):
    """heads: batch, heads of queries, heads of keys."""
    batch, h, g = heads
    q = tir.placeholder((batch, h, queries, width), dtype, name="q")
    k = tir.placeholder((batch, g, keys, width), dtype, name="k")
    v = tir.placeholder((batch, g, keys, columns or width), dtype, name="v")
    return tir.nn.attention(q, k, v, name="y", **options)


def scheduled(y, target="cuda -arch=sm_80", by="gpu_rolling_mma"):
    assert next(iter(tir.auto(y, target))) == by
    s = tir.auto_schedule(y, target)
    assert len(s.emitted().kernels) == (2 if "split_softmax" in str(s.trace) else 1)
    return s


@pytest.mark.parametrize(("shape", "dtype"), [((1, 1), "float16"), ((17, 67), "float16"), ((33, 31), "bfloat16")])
@emulated
def test_the_text_is_exact_in_every_shape(shape, dtype):
    s = scheduled(of(*shape, dtype=dtype))
    assert "mma.sync" in s.source() and "ldmatrix" in s.source()
    assert s.check("emulate")


@pytest.mark.parametrize("widths", [(17, 33), (24, 40)])
@emulated
def test_terms_and_columns_need_not_be_whole_tiles(widths):
    assert scheduled(of(31, 37, *widths), "cuda -arch=sm_90a").check("emulate")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_a_lambda_and_masked_pieces_are_skipped(variant):
    s = scheduled(of(37, 150, heads=(2, 2, 1), **VARIANTS[variant]))
    skips = any(step.primitive == "skip" for step in s.trace)
    assert skips == (variant in ("causal", "window", "documents")) == ("skipped unless" in s.tree())
    assert s.check()


@pytest.mark.parametrize("variant", ["causal", "documents"])
@emulated
def test_the_text_of_a_mask_is_exact(variant):
    assert scheduled(of(37, 70, **VARIANTS[variant])).check("emulate")


def test_a_mask_of_one_piece_has_nothing_to_skip():
    assert scheduled(of(33, 31, causal=True)).check()


@pytest.mark.parametrize(("dtype", "width"), [("float16", 64), ("bfloat16", 64), ("float16", 80), ("float16", 96)])
@emulated
def test_no_bank_conflict_and_whole_sectors(dtype, width):
    """Weights are read in vectors for the sum: halves of words, a row for each lane, would meet in a bank. So would
    rows of 10 or 12 times 16 bytes, which are no power of two.
    """
    s = scheduled(of(64, 128, width, dtype=dtype))
    run = emulate(s.emitted(), random_arguments(s.outputs, 0))
    assert not run.problems and run.traffic
    assert all(t.units == t.ideal for t in run.traffic)
    assert not any(t.what == "shared read" and t.width == 2 for t in run.traffic)
    assert "y_l_held" in s.source()


def test_what_neither_tensor_cores_nor_tiles_multiply_goes_by_threads():
    assert scheduled(of(33, 40), "cuda -arch=sm_70", "gpu_rolling").check()


@emulated
def test_float32_goes_by_tiles_of_threads():
    """Terms and columns that are no whole vectors, heads that share keys, and a mask."""
    y = of(35, 69, 17, 33, heads=(1, 2, 1), dtype="float32", causal=True)
    assert scheduled(y, by="gpu_rolling_tile").check("emulate")
    s = tir.Schedule(y, "cuda -arch=sm_80")
    tile = tir.auto(y, s.target)["gpu_rolling_tile"]
    tile.function(s, {**tile.space_for(s.target).default, "parts": 1})
    assert "skipped unless" in s.tree() and s.check("emulate")
    assert scheduled(of(40, 33, dtype="float32"), "opencl -kind=gpu", "gpu_rolling_tile").check()


@pytest.mark.parametrize(("keys", "width"), [(32, 64), (64, 64), (32, 80)])
@emulated
def test_tiles_of_threads_meet_no_bank_conflict(keys, width):
    y = of(64, 128, width, dtype="float32")
    s = tir.Schedule(y, "cuda -arch=sm_80")
    tir.auto(y, s.target)["gpu_rolling_tile"].function(s, {"warps": 1, "keys": keys, "stages": 1, "parts": 1})
    run = emulate(s.emitted(), random_arguments(s.outputs, 0))
    assert not run.problems
    met = {t.what for t in run.traffic if t.units != t.ideal}
    assert len(run.traffic) > 6 and met <= ({"shared write"} if width % 32 else set()), "whole sectors as well"


@pytest.mark.parametrize(("masked", "name"), [(False, "mma"), (True, "mma"), (False, "tile")])
def test_configurations_are_right(masked, name):
    y = of(70, 90, 16, causal=masked, dtype="float32" if name == "tile" else "float16")
    template, s = tir.auto(y, "cuda -arch=sm_80")[f"gpu_rolling_{name}"], tir.Schedule(y, "cuda -arch=sm_80")
    space = template.space_for(s.target)
    assert space.names[-3:] == ("warps", "keys", "stages") and space.expected_s is not None
    for config in spread_over(space, 3)[1:]:
        s = tir.Schedule(y, "cuda -arch=sm_80")
        template.function(s, config)
        assert s.check(), config


def latent(queries, keys, width, rotary, dtype="float32", columns=None):
    """Scores that are a sum of two products, scaled, of sums in float32."""
    shapes = {"q": (queries, width), "r": (queries, rotary), "c": (keys, width), "k": (keys, rotary)}
    q, r, c, k = (tir.placeholder(shape, dtype, name=name) for name, shape in shapes.items())
    v = tir.placeholder((keys, columns or width), dtype, name="v")
    ax, bx, kx, lx, tx = (
        tir.reduce_axis(n, name) for n, name in zip((width, rotary, *3 * (keys,)), "abklt", strict=True)
    )
    shape = queries, keys

    def wide(x):
        return tir.cast(x, "float32")

    s1 = tir.compute(shape, lambda i, j: tir.sum(wide(q[i, ax]) * wide(c[j, ax]), axis=ax), name="s1")
    s2 = tir.compute(shape, lambda i, j: tir.sum(wide(r[i, bx]) * wide(k[j, bx]), axis=bx), name="s2")
    s = tir.compute(shape, lambda i, j: (s1[i, j] + s2[i, j]) * 0.25, name="s")
    m = tir.compute((queries,), lambda i: tir.max(s[i, kx], axis=kx), name="m")
    e = tir.compute(shape, lambda i, j: tir.cast(tir.exp(s[i, j] - m[i]), dtype), name="e")
    z = tir.compute((queries,), lambda i: tir.sum(wide(e[i, lx]), axis=lx), name="z")
    o = tir.compute(
        (queries, columns or width), lambda i, d: tir.sum(wide(e[i, tx]) * wide(v[tx, d]), axis=tx), name="o"
    )
    return tir.compute((queries, columns or width), lambda i, d: tir.cast(o[i, d] / z[i], dtype), name="y")


FEW = [
    ((16, 130, 40, 8, "float32", None), "cuda -arch=sm_80"),
    ((3, 600, 5, 2, "float32", 300), "cuda -arch=sm_90a"),
    ((9, 131, 8, 3, "float16", 272), "cuda -arch=sm_80"),
]


@pytest.mark.parametrize(("shape", "target"), FEW)
@emulated
def test_few_queries_of_any_width_go_through_parts_of_the_keys(shape, target):
    s = tir.auto_schedule(latent(*shape), target)
    assert len(s.emitted().kernels) == 2 and "split_softmax" in str(s.trace)
    assert next(iter(tir.auto(latent(*shape), target))) == "gpu_rolling_few"
    assert s.check("emulate"), str(s.check("emulate"))


@pytest.mark.parametrize(("dtype", "name"), [("float16", "gpu_rolling_mma"), ("float32", "gpu_rolling_tile")])
@emulated
def test_scores_that_are_sums_of_products_go_through_tiles(dtype, name):
    y = latent(70, 67, 32, 16, dtype)
    template = tir.auto(y, "cuda -arch=sm_80")[name]
    s = tir.Schedule(y, "cuda -arch=sm_80")
    config = template.space_for(s.target).default
    template.function(s, config)
    assert len(s.emitted().kernels) == 1 + ("split_softmax" in str(s.trace))
    assert s.check("emulate"), str(s.check("emulate"))
