"""Automatic schedules of extents known at launch: those of constants where steps allow it, and right for each."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.interp.reference import arguments_of, evaluate
from tensorir.ir.build import as_expr, as_int
from tensorir.ir.dims import dims_in

HIGH = 100


def given(*shape, name="x", dtype="float32"):
    return tir.placeholder(shape, dtype, name=name)


def sums(n):
    x, k = given(5, n), tir.reduce_axis(n, name="k")
    return tir.compute((5,), lambda i: tir.sum(x[i, k], axis=k), name="y")


CASES = {  # declaration with n, and the first template
    "stream": (lambda n: tir.compute((n,), lambda i, x=given(n): x[i] * 2 + 1, name="y"), "stream"),
    "sums": (sums, "rows"),
    "rows": (lambda n: tir.nn.softmax(given(n, 33), -1), "rows"),
    "columns": (lambda n: tir.nn.softmax(given(7, n), -1), "rows"),
    "product rows": (lambda n: tir.nn.matmul(given(n, 40, name="a"), given(40, 48, name="b")), "tile_column"),
    "product columns": (lambda n: tir.nn.matmul(given(13, 9, name="a"), given(9, n, name="b")), "tile_registers"),
    "product terms": (lambda n: tir.nn.matmul(given(13, n, name="a"), given(n, 32, name="b")), "tile_registers"),
    "convolution": (lambda n: tir.nn.conv2d(given(n, 3, 9, 9), given(8, 3, 3, 3, name="w"), pad=1), "tile_registers"),
    "attention": (lambda n: tir.nn.attention(*(given(1, 2, n, 16, name=c) for c in "qkv")), "rolling_tiles"),
    "causal": (lambda n: tir.nn.attention(*(given(1, 2, n, 16, name=c) for c in "qkv"), causal=True), "rolling_tiles"),
}


@pytest.mark.parametrize("target", ["c", "opencl"])
@pytest.mark.parametrize("name", CASES)
def test_an_extent_known_at_launch_is_scheduled_like_a_constant(name, target):
    made, first = CASES[name]
    if target == "opencl":
        pytest.importorskip("pyopencl")
    on = f"{target} -registers=32 -vector_bytes=64 -units=2"
    out = made(tir.dim("n", low=1, high=HIGH))
    assert next(iter(tir.auto(out, on))) == f"cpu_{first}"
    f = tir.auto_schedule(out, on).build("c:0" if target == "c" else "opencl:pocl")
    for n in (1, 16, 33, HIGH):
        r = np.random.default_rng(n)
        shapes = [tuple(n if dims_in(e) else as_int(e) for e in map(as_expr, p.shape)) for p in arguments_of([out])]
        arrays = [r.integers(-2, 3, shape).astype("float32") for shape in shapes]
        (want,) = evaluate([out], arrays)
        np.testing.assert_allclose(f(*arrays), want, rtol=2e-5, atol=1e-5)


def test_keys_known_at_launch_are_in_one_part_on_many_cores():
    q, k, v = (given(1, 2, count, 16, name=c) for c, count in zip("qkv", (16, *[tir.dim("n", high=65536)] * 2)))
    (name, found), *_ = tir.auto(tir.nn.attention(q, k, v), "c -units=16").items()
    assert name == "cpu_rolling_tiles" and "parts" not in found.space_for(tir.Target.parse("c -units=16")).names


def test_borders_at_dims_are_left_to_streams():
    h, g = tir.dim("h", high=40), tir.dim("g", high=70)
    x, w = given(4, h, g), given(4, 3, 3, name="w")
    r, s = tir.reduce_axis(3, name="r"), tir.reduce_axis(3, name="s")
    image = lambda o, i, j: x.get(o, i + r - 1, j + s - 1, fill=0) * w[o, r, s]  # noqa: E731
    y = tir.compute((4, h, g), lambda *at: tir.sum(image(*at), axis=(r, s)), name="y")
    assert list(tir.auto(y, "c -registers=32 -vector_bytes=64 -units=2")) == ["cpu_stream"]


@pytest.mark.parametrize("name", ["columns", "product columns"])
def test_checks_hold_at_awkward_extents(name):
    s = tir.auto_schedule(CASES[name][0](tir.dim("n", low=1, high=HIGH)), "opencl -vector_bytes=64 -units=2")
    verdict = s.check()
    assert verdict, str(verdict)
