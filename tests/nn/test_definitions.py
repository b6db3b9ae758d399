"""Definitions against NumPy, what torch has no word for, and refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.interp.reference import evaluate

nn, INF = tir.nn, float("inf")


def value(y, *arrays):
    return evaluate((y,), arrays)[0]


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def given_as(x, name="x"):
    return tir.placeholder(x.shape, str(x.dtype), name=name)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 2), st.booleans())
def test_softmax_along_any_dimension(shape, dim, negative):
    dim %= len(shape)
    x = drawn(*shape) * 300
    said = dim - len(shape) if negative else dim
    e = np.exp(x - x.max(dim, keepdims=True))
    want = e / e.sum(dim, keepdims=True)
    np.testing.assert_allclose(value(nn.softmax(given_as(x), said), x), want, rtol=1e-12)
    shifted = x - x.max(dim, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(dim, keepdims=True))
    np.testing.assert_allclose(value(nn.log_softmax(given_as(x), said), x), logs, rtol=1e-12)


def test_a_large_mean_leaves_the_variance_exact():
    x = drawn(3, 16) + 1e6
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(value(nn.layer_norm(given_as(x), (16,)), x), want, rtol=1e-6)


def test_batch_norm():
    x, mean, var, w, b = drawn(2, 3, 5), drawn(3), drawn(3) ** 2, drawn(3, seed=1), drawn(3, seed=2)
    y = nn.batch_norm(*(given_as(a, n) for n, a in zip(("x", "m", "v", "w", "b"), (x, mean, var, w, b), strict=True)))
    m, v, scale, shift = (a[:, None] for a in (mean, var, w, b))
    np.testing.assert_allclose(value(y, x, mean, var, w, b), (x - m) / np.sqrt(v + 1e-5) * scale + shift, rtol=1e-12)


def test_embedding():
    at, w = np.array([[3, 0], [1, 1]], "int32"), drawn(4, 3)
    assert np.array_equal(value(nn.embedding(given_as(at, "at"), given_as(w, "w")), at, w), w[at])


def test_pooling_keeps_nan():
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 0, 0] = np.nan
    assert np.isnan(value(nn.max_pool2d(given_as(x), 2), x)[0, 0]).tolist() == [[True, False], [False, False]]


def attention(q, k, v, seen):
    share = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a, share, 1) for a in (k, v))
    s = np.where(seen, np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1]), -INF)
    p = np.where(seen, np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e300)), 0)
    return np.einsum("bhij,bhjd->bhid", p, v) / np.maximum(p.sum(-1, keepdims=True), 1e-300)


MASK = dict(causal=True, mask=lambda b, h, i, j: tir.all_(j >= 2, (h > 0) | (j < 5)))


def test_queries_without_keys_give_0():
    q, k, v = drawn(2, 4, 6, 8), drawn(2, 2, 7, 8, seed=1), drawn(2, 2, 7, 3, seed=2)
    y = nn.attention(given_as(q, "q"), given_as(k, "k"), given_as(v, "v"), **MASK)
    b, h, i, j = np.ogrid[:2, :4, :6, :7]
    want = attention(q, k, v, (j <= i) & (j >= 2) & ((h > 0) | (j < 5)) & (b >= 0))
    assert not want[:, :, :2].any()
    np.testing.assert_allclose(value(y, q, k, v), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("how", [{}, dict(causal=True), MASK], ids=["plain", "causal", "mask"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_takes_rolling(how, dtype):
    q, k, v = (tir.placeholder((1, n, 12, 4), dtype, name=x) for x, n in zip("qkv", (2, 1, 1), strict=True))
    s = tir.Schedule(nn.attention(q, k, v, name="y", **how))
    piece, inner = s.split("y_O.j", [None, 4])
    s.reorder("y_O.b", "y_O.h", "y_O.i", piece, "y_O.c", inner)
    s.rolling("y_m", into=("y_l", "y_O"), at=piece)
    s.compute_at("y_T", piece).compute_at("y_S", piece).reverse_compute_at("y", "y_O.i")
    assert s.check()
    a = [drawn(1, n, 12, 4, seed=n).astype(dtype) for n in (2, 1, 1)]
    assert s.source().count("__kernel ") == 1
    np.testing.assert_allclose(s.build()(*a), value(s.outputs[0], *a), rtol=4e-3, atol=2e-3)


def test_a_score_is_another_lambda():
    q = drawn(1, 1, 3, 4)
    y = nn.attention(
        *(given_as(q, n) for n in "qkv"), scale=1.0, score=lambda s, b, h, i, j: tir.where(j == 1, s, -INF)
    )
    np.testing.assert_allclose(value(y, q, q, q), np.broadcast_to(q[:, :, 1:2], q.shape), rtol=1e-12)


ROWS = {
    "softmax": lambda x: nn.softmax(x, 1),
    "layer_norm": lambda x: nn.layer_norm(x, (8,)),
    "cumsum": lambda x: nn.cumsum(x, 1),
    "linear": lambda x: nn.linear(x, tir.constant(drawn(3, 8).astype("float32"))),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_known_at_launch(name):
    n = tir.dim("n", low=1, high=64)
    x = drawn(5, 8).astype("float32")
    f = tir.Schedule(ROWS[name](tir.placeholder((n, 8), name="x"))).build()
    fixed = ROWS[name](tir.placeholder((5, 8), name="x"))
    np.testing.assert_allclose(f(x), value(fixed, x), rtol=1e-5, atol=1e-6)


W = tir.placeholder((3, 8), name="w")
X, IMAGE = tir.placeholder((4, 8), name="x"), tir.placeholder((1, 4, 8, 8), name="image")
WHOLE = tir.placeholder((4, 8), "int32", name="whole")
WRONG = [
    (lambda: nn.softmax(X, 2), "nn.dim"),
    (lambda: nn.cumsum(X, -3), "nn.dim"),
    (lambda: nn.softmax(WHOLE, 1), "nn.dtype"),
    (lambda: nn.avg_pool2d(WHOLE, 2), "nn.dtype"),
    (lambda: nn.embedding(X, W), "nn.dtype"),
    (lambda: nn.layer_norm(X, (4,)), "nn.shape"),
    (lambda: nn.layer_norm(X, (8,), tir.placeholder((4,))), "nn.shape"),
    (lambda: nn.rms_norm(X, ()), "nn.shape"),
    (lambda: nn.group_norm(IMAGE, 3), "nn.shape"),
    (lambda: nn.batch_norm(tir.placeholder((4,)), X, X), "nn.shape"),
    (lambda: nn.linear(X, tir.placeholder((3, 4))), "nn.shape"),
    (lambda: nn.embedding(WHOLE, tir.placeholder((4,))), "nn.shape"),
    (lambda: nn.attention(IMAGE, tir.placeholder((1, 3, 8, 8)), tir.placeholder((1, 3, 8, 8))), "nn.shape"),
    (lambda: nn.attention(IMAGE, IMAGE, X), "nn.shape"),
    (lambda: nn.max_pool2d(X, 2), "nn.shape"),
    (lambda: nn.max_pool2d(IMAGE, 2, padding=2), "nn.window"),
    (lambda: nn.avg_pool2d(IMAGE, 9), "nn.window"),
    (lambda: nn.max_pool2d(IMAGE, (2, 2, 2)), "argument.type"),
    (lambda: nn.adaptive_avg_pool2d(IMAGE, 0), "argument.value"),
    (lambda: nn.gelu(X, "erf"), "argument.value"),
    (lambda: nn.conv1d(X, W), "conv2d.rank"),
    (lambda: nn.conv1d(tir.placeholder((1, 2, 3)), tir.placeholder((1, 2, 5))), "conv2d.extent"),
    (lambda: nn.conv_transpose2d(IMAGE, tir.placeholder((4, 2, 3, 3)), pad=9), "conv2d.extent"),
]


@pytest.mark.parametrize(("call", "code"), WRONG)
def test_refusals(call, code):
    with pytest.raises(tir.DeclarationError) as caught:
        call()
    assert caught.value.code == code


SIDES = st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.integers(1, 2))


def windows(x, taps, sides):
    """Every window of an image (…, H, W), as (…, P, Q, R, S): zeros, strides and dilations by their definition."""
    (st0, t, b, d0), (st1, left, r, d1) = sides
    x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(t, b), (left, r)])
    spans = [(n - 1) * d + 1 for n, d in zip(taps, (d0, d1), strict=True)]
    return np.lib.stride_tricks.sliding_window_view(x, spans, (-2, -1))[..., ::st0, ::st1, ::d0, ::d1]


@settings(max_examples=20, deadline=None)
@given(SIDES, SIDES, st.integers(1, 3), st.integers(1, 3), st.booleans(), st.sampled_from(["pairs", "onnx", "text"]))
def test_windows_that_differ_by_axis(rows, columns, r, s, nchw, spelling):
    """Convolution, its gradients, pooling: each axis and each end has its own, in every spelling."""
    x = np.random.default_rng(0).integers(-3, 4, (1, 2, 7, 6)).astype("float64")
    w = np.random.default_rng(1).integers(-3, 4, (3, 2, r, s)).astype("float64")
    sides, flat = (rows, columns), (rows[1], columns[1], rows[2], columns[2])
    pad = {"pairs": (rows[1:3], columns[1:3]), "onnx": flat, "text": "x".join(map(str, flat))}[spelling]
    how = dict(stride=(rows[0], columns[0]), pad=pad, dilation=(rows[3], columns[3]))
    want = np.einsum("ncpqrs,kcrs->nkpq", windows(x, (r, s), sides), w)
    turn = (lambda v: v) if nchw else (lambda v: np.ascontiguousarray(v.transpose(0, 2, 3, 1)))
    layout = "NCHW" if nchw else "NHWC"
    X, W = given_as(turn(x), "X"), given_as(turn(w), "W")
    assert np.array_equal(value(nn.conv2d(X, W, layout=layout, **how), turn(x), turn(w)), turn(want))
    dy = np.random.default_rng(2).integers(-3, 4, want.shape).astype("float64")
    DY = given_as(turn(dy), "DY")
    dx = nn.conv2d_backward_data(DY, W, (7, 6), layout=layout, **how)
    dw = nn.conv2d_backward_weight(X, DY, (r, s), layout=layout, **how)
    got_x, got_w = evaluate((dx,), (turn(w), turn(dy)))[0], evaluate((dw,), (turn(x), turn(dy)))[0]
    wanted = (want * dy).sum()  # <dy, conv(x, w)> is linear in x and in w
    assert (turn(x) * got_x).sum() == wanted == (turn(w) * got_w).sum()
    assert np.array_equal(got_w, turn(np.einsum("ncpqrs,nkpq->kcrs", windows(x, (r, s), sides), dy)))


@pytest.mark.parametrize("pad", [-1, (1, 2, 3), ((1, 2),), ((1, 2), 3), "1x", (True, 0), None, [[1, 2], [3, "a"]]])
def test_zeros_that_are_none(pad):
    x, w = tir.placeholder((1, 2, 7, 6), name="x"), tir.placeholder((3, 2, 3, 3), name="w")
    with pytest.raises(tir.DeclarationError) as error:
        nn.conv2d(x, w, pad=pad)
    assert error.value.code == "conv2d.pad"


def test_one_number_is_reduced_as_in_numpy():
    x = np.float64(3)
    for name in ("sum", "prod", "min", "max", "any", "all", "argmax", "argmin"):
        for axis in (0, -1, None):
            assert value(getattr(given_as(x), name)(axis=axis), x) == getattr(np, name)(x, axis=axis), (name, axis)
