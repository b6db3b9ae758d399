"""Definitions against the functions of torch that they are named after."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.interp.reference import evaluate

torch = pytest.importorskip("torch", reason="extra torch is not installed")
F = torch.nn.functional

ROWS, IMAGE = (3, 5, 12), (2, 6, 13, 10)


def attend(f, q, k, v, causal=False):
    if f is tir.nn:
        return f.attention(q, k, v, causal=causal)
    return f.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


CALLS = {
    "softmax": (ROWS, lambda f, x: f.softmax(x, 1)),
    "log_softmax": (ROWS, lambda f, x: f.log_softmax(x, -3)),
    "layer_norm": (ROWS, lambda f, x: f.layer_norm(x, (5, 12))),
    "layer_norm affine": (ROWS, lambda f, x, w, b: f.layer_norm(x, (12,), w, b, 1e-3), (12,), (12,)),
    "rms_norm": (ROWS, lambda f, x, w: f.rms_norm(x, (12,), w), (12,)),
    "group_norm": (IMAGE, lambda f, x, w, b: f.group_norm(x, 3, w, b), (6,), (6,)),
    "gelu": (ROWS, lambda f, x: f.gelu(x)),
    "gelu tanh": (ROWS, lambda f, x: f.gelu(x, approximate="tanh")),
    "silu": (ROWS, lambda f, x: f.silu(x)),
    "sigmoid": (ROWS, lambda f, x: f.sigmoid(x)),
    "relu": (ROWS, lambda f, x: f.relu(x)),
    "linear": (ROWS, lambda f, x, w, b: f.linear(x, w, b), (4, 12), (4,)),
    "max_pool2d": (IMAGE, lambda f, x: f.max_pool2d(x, 3, 2, 1)),
    "max_pool2d ceil": (IMAGE, lambda f, x: f.max_pool2d(x, (2, 3), (3, 2), (1, 0), (2, 1), True)),
    "max_pool2d without a batch": (ROWS, lambda f, x: f.max_pool2d(x, 2)),
    "avg_pool2d": (IMAGE, lambda f, x: f.avg_pool2d(x, 3, 2, 1)),
    "avg_pool2d apart": (IMAGE, lambda f, x: f.avg_pool2d(x, 3, 2, 1, True, False)),
    "avg_pool2d ceil": (IMAGE, lambda f, x: f.avg_pool2d(x, (3, 4), (2, 3), (1, 2), True, True)),
    "avg_pool2d divisor": (IMAGE, lambda f, x: f.avg_pool2d(x, 2, divisor_override=3)),
    "adaptive_avg_pool2d": (IMAGE, lambda f, x: f.adaptive_avg_pool2d(x, (5, 3))),
    "adaptive_avg_pool2d larger": (IMAGE, lambda f, x: f.adaptive_avg_pool2d(x, (None, 17))),
    "adaptive_avg_pool2d one": (IMAGE, lambda f, x: f.adaptive_avg_pool2d(x, 1)),
    "attention": ((2, 4, 5, 8), attend, (2, 2, 7, 8), (2, 2, 7, 3)),
    "attention causal": ((2, 4, 5, 8), lambda f, q, k, v: attend(f, q, k, v, True), (2, 4, 7, 8), (2, 4, 7, 8)),
}


def both(name, dtype):
    """What torch and the definition give for drawn arrays."""
    shape, call, *more = CALLS[name]
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(s).astype(dtype) for s in (shape, *more)]
    with torch.no_grad():
        want = call(F, *map(torch.from_numpy, arrays)).numpy()
    y = call(tir.nn, *(tir.placeholder(a.shape, dtype, name=n) for n, a in zip("xwb", arrays, strict=False)))
    (got,) = evaluate((y,), arrays)
    assert got.dtype == want.dtype and got.shape == want.shape
    return got, want


@pytest.mark.parametrize("name", CALLS)
def test_float64(name):
    np.testing.assert_allclose(*both(name, "float64"), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_float16(name):
    got, want = both(name, "float16")
    np.testing.assert_allclose(got.astype("f"), want.astype("f"), rtol=4e-3, atol=2e-3)


@pytest.mark.parametrize(("rank", "how"), [(1, dict(stride=2, pad=1, groups=2)), (3, dict(pad=1, dilation=2))])
def test_convolutions(rank, how):
    sizes, taps = (9, 7, 6)[-rank:], (3, 2, 3)[-rank:]
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 4, *sizes)), rng.standard_normal((6, 4 // how.get("groups", 1), *taps))
    given = (tir.placeholder(a.shape, "float64", name=n) for n, a in (("x", x), ("w", w)))
    (got,) = evaluate((getattr(tir.nn, f"conv{rank}d")(*given, **how),), (x, w))
    named = {"padding" if k == "pad" else k: v for k, v in how.items()}
    want = getattr(F, f"conv{rank}d")(torch.from_numpy(x), torch.from_numpy(w), **named)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("how", [dict(stride=2, pad=1), dict(groups=2, dilation=2)], ids=str)
def test_transposed_convolutions(how):
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 4, 5, 6)), rng.standard_normal((4, 3, 3, 2))
    given = (tir.placeholder(a.shape, "float64", name=n) for n, a in (("x", x), ("w", w)))
    (got,) = evaluate((tir.nn.conv_transpose2d(*given, **how),), (x, w))
    named = {"padding" if k == "pad" else k: v for k, v in how.items()}
    want = F.conv_transpose2d(torch.from_numpy(x), torch.from_numpy(w), **named)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_cumulative_sums(dtype):
    x = np.random.default_rng(1).integers(-9, 9, (3, 5, 4)).astype(dtype)
    (got,) = evaluate((tir.nn.cumsum(tir.placeholder(x.shape, dtype, name="x"), -2),), (x,))
    want = torch.from_numpy(x).cumsum(-2).numpy()
    assert got.dtype == want.dtype and np.array_equal(got, want)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "sigmoid"])
def test_extremes(name):
    """As torch's in float64: that of float32 overflows on the way where a result does not."""
    x = np.array([3e38, 100, 20, 0, -20, -100, -3e38, np.nan], "float32")
    (got,) = evaluate((getattr(tir.nn, name)(tir.placeholder(x.shape, name="x")),), (x,))
    want = getattr(F, name)(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-30)
