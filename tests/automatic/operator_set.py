"""Every function of ``tir.ops`` by its definition alone, and what training and quantized networks need: gradients,
optimizers' steps, losses, narrow weights. ``SMALL`` has awkward extents, ``REAL`` the sort that networks have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorir as tir
from tensorir.ops.operators import OPERATORS


def given(name: str, *shape: int, dtype: str = "float32") -> Any:
    return tir.placeholder(shape, dtype, name=name)


def axes(**extents: int) -> tuple[Any, ...]:
    return tuple(tir.reduce_axis(n, name=name) for name, n in extents.items())


# -- gradients


def softmax_gradient(m: int, n: int) -> Any:
    y, dy, (r,) = given("y", m, n), given("dy", m, n), axes(r=n)
    dot = tir.compute((m,), lambda i: tir.sum(y[i, r] * dy[i, r], axis=r), name="dot")
    return tir.compute((m, n), lambda i, j: y[i, j] * (dy[i, j] - dot[i]), name="dx")


def norm_gradient(m: int, n: int) -> Any:
    """Of rms_norm, with respect to its rows and to its factors."""
    x, dy, w, (r, q, t) = given("x", m, n), given("dy", m, n), given("w", n), axes(r=n, q=n, t=m)
    square = tir.compute((m,), lambda i: tir.sum(x[i, r] * x[i, r], axis=r), name="square")
    scale = tir.compute((m,), lambda i: tir.rsqrt(square[i] / n + 1e-5), name="scale")
    dot = tir.compute((m,), lambda i: tir.sum(dy[i, q] * w[q] * x[i, q], axis=q), name="dot")
    cell = lambda i, j: scale[i] * (dy[i, j] * w[j] - x[i, j] * dot[i] * scale[i] * scale[i] / n)  # noqa: E731
    dx = tir.compute((m, n), cell, name="dx")
    return dx, tir.compute((n,), lambda j: tir.sum(dy[t, j] * x[t, j] * scale[t], axis=t), name="dw")


def product_gradients(m: int, n: int, k: int) -> Any:
    a, b, dy, (r, q) = given("a", m, k), given("b", k, n), given("dy", m, n), axes(r=n, q=m)
    da = tir.compute((m, k), lambda i, p: tir.sum(dy[i, r] * b[p, r], axis=r), name="da")
    return da, tir.compute((k, n), lambda p, j: tir.sum(a[q, p] * dy[q, j], axis=q), name="db")


def embedding_gradient(count: int, rows: int, width: int) -> Any:
    at, dy = given("at", count, dtype="int32"), given("dy", count, width)
    return tir.scatter((rows, width), (count, width), lambda i, j: (at[i], j), lambda i, j: dy[i, j], name="dw")


def pool_gradient(c: int, h: int, size: int) -> Any:
    """Of a mean over windows, in the cells of the image."""
    dy = given("dy", c, h // size, h // size)
    cell = lambda z, p, q: dy.get(z, p // size, q // size, fill=0) / (size * size)  # noqa: E731
    return tir.compute((c, h, h), cell, name="dx")


# -- losses and steps of optimizers


def cross_entropy(m: int, n: int) -> Any:
    x, label, (r, q, t) = given("x", m, n), given("label", m, dtype="int32"), axes(r=n, q=n, t=m)
    top = tir.compute((m,), lambda i: tir.max(x[i, r], axis=r), name="top")
    total = tir.compute((m,), lambda i: tir.sum(tir.exp(x[i, q] - top[i]), axis=q), name="total")
    loss = tir.compute((m,), lambda i: tir.log(total[i]) + top[i] - x[i, label[i]], name="loss")
    return tir.compute((), lambda: tir.sum(loss[t], axis=t) / m, name="mean")


def momentum(*shape: int) -> Any:
    w, g, v, rate = given("w", *shape), given("g", *shape), given("v", *shape), tir.scalar("rate")
    step = lambda *i: (w[i] - rate * (v[i] * 0.9 + g[i]), v[i] * 0.9 + g[i])  # noqa: E731
    return tir.compute(shape, step, name="step", axes=[f"i{k}" for k in range(len(shape))])


def adam(*shape: int) -> Any:
    w, g, m, v = (given(name, *shape) for name in "wgmv")
    rate = tir.scalar("rate")

    def step(*i: Any) -> Any:
        mean, square = m[i] * 0.9 + g[i] * 0.1, tir.abs(v[i]) * 0.999 + g[i] * g[i] * 0.001
        return w[i] * 0.99 - rate * mean / (tir.sqrt(square) + 1e-6), mean, square

    return tir.compute(shape, step, name="step", axes=[f"i{k}" for k in range(len(shape))])


# -- quantized


def quantized_product(m: int, n: int, k: int) -> Any:
    """8-bit operands, sums of 32 bits, results of 8 again by a factor for each column."""
    a, b, scale, (r,) = given("a", m, k, dtype="int8"), given("b", n, k, dtype="int8"), given("scale", n), axes(r=k)
    wide = lambda i, j: tir.sum(tir.cast(a[i, r], "int32") * tir.cast(b[j, r], "int32"), axis=r)  # noqa: E731
    total = tir.compute((m, n), wide, name="total")
    cut = lambda i, j: tir.maximum(tir.minimum(tir.cast(total[i, j], "float32") * scale[j], 127.0), -128.0)  # noqa: E731
    return tir.compute((m, n), lambda i, j: tir.cast(cut(i, j), "int8"), name="y")


def quantized_convolution(n: int, c: int, h: int, k: int) -> Any:
    x, w = given("x", n, c, h, h, dtype="int8"), given("w", k, c, 3, 3, dtype="int8")
    y = tir.nn.conv2d(x, w, pad=1, accumulate="int32", name="total")
    return tir.compute(y.shape, lambda b, o, p, q: tir.cast(tir.minimum(y[b, o, p, q] >> 3, 127), "int8"), name="y")


def weights_of_8(m: int, n: int, k: int) -> Any:
    """16-bit rows by weights of 8 bits with a factor for each column."""
    a, b = given("a", m, k, dtype="float16"), given("b", n, k, dtype="int8")
    scale, (r,) = given("scale", n), axes(r=k)
    wide = lambda i, j: tir.sum(tir.cast(a[i, r], "float32") * tir.cast(b[j, r], "float32"), axis=r)  # noqa: E731
    total = tir.compute((m, n), wide, name="total")
    return tir.compute((m, n), lambda i, j: tir.cast(total[i, j] * scale[j], "float16"), name="y")


def weights_of_4(m: int, n: int, k: int, group: int) -> Any:
    """Rows by weights of 4 bits, two a byte, with a factor for each group of terms."""
    a, b = given("a", m, k), given("b", n, k // 2, dtype="uint8")
    scale, (r,) = given("scale", n, k // group), axes(r=k)
    half = lambda j, p: tir.cast((b[j, p // 2] >> tir.cast(p % 2 * 4, "uint8")) & 15, "float32") - 8  # noqa: E731
    w = tir.compute((n, k), lambda j, p: half(j, p) * scale[j, p // group], name="w")
    return tir.compute((m, n), lambda i, j: tir.sum(a[i, r] * w[j, r], axis=r), name="y")


# -- what else networks have


def rotary(rows: int, heads: int, width: int) -> Any:
    """Halves of each head turned by an angle of its place."""
    x, cos, sin, half = given("x", rows, heads, width), given("cos", rows, width), given("sin", rows, width), width // 2
    other = lambda i, h, d: tir.where(d < half, -x.get(i, h, d + half, fill=0), x.get(i, h, d - half, fill=0))  # noqa: E731
    cell = lambda i, h, d: x[i, h, d] * cos[i, d] + other(i, h, d) * sin[i, d]  # noqa: E731
    return tir.compute((rows, heads, width), cell, name="y")


def top_one(m: int, n: int) -> Any:
    x, (r,) = given("x", m, n), axes(r=n)
    return tir.compute((m,), lambda i: tir.argmax(x[i, r], axis=r), name="at")


def histogram(count: int, bins: int) -> Any:
    at = given("at", count, dtype="int32")
    return tir.scatter((bins,), (count,), lambda t: (at[t],), lambda t: 1, name="h")


def sparse_product(rows: int, columns: int, width: int, most: int) -> Any:
    """A matrix in CSR by a dense one."""
    ends, at = given("ends", rows + 1, dtype="int32"), given("at", rows * most, dtype="int32")
    data, x = given("data", rows * most), given("x", columns, width)

    def cell(i: Any, j: Any) -> Any:
        k = tir.reduce_axis(ends[i + 1] - ends[i], most=most)
        return tir.sum(data[ends[i] + k] * x[at[ends[i] + k], j], axis=k)

    return tir.compute((rows, width), cell, name="y")


def of_ops(name: str, **given: Any) -> Callable[[], Any]:
    """The definition of a function of ``tir.ops``, without its templates."""
    return lambda: getattr(tir.ops, name)(**given).outputs


IMAGE = dict(n=1, c=4, h=7, w=7, k=6, pad=1)
SMALL: dict[str, Callable[[], Any]] = {
    "conv2d": of_ops("conv2d", **IMAGE, bias=True, act="relu", residual=True),
    "conv2d NHWC": of_ops("conv2d", **IMAGE, stride=2, layout="NHWC"),
    "conv2d by channel": of_ops("conv2d", n=1, c=6, h=7, w=7, k=6, pad=1, groups=6),
    "conv2d of int8": of_ops("conv2d", **IMAGE, dtype="int8"),
    "conv2d of float16": of_ops("conv2d", **IMAGE, dtype="float16", act="silu"),
    "conv2d_backward_data": of_ops("conv2d_backward_data", **IMAGE, stride=2),
    "conv2d_backward_weight": of_ops("conv2d_backward_weight", **IMAGE),
    "matmul": of_ops("matmul", m=17, n=19, k=13, bias=True, act="gelu", alpha=True, beta=True),
    "matmul batch": of_ops("matmul", m=9, n=8, k=13, batch=3, ta=True, tb=True),
    "matmul of int8": of_ops("matmul", m=17, n=19, k=13, tb=True, dtype="int8"),
    "matmul of bfloat16": of_ops("matmul", m=17, n=24, k=16, dtype="bfloat16"),
    "grouped_matmul": of_ops("grouped_matmul", m=48, n=17, k=13, groups=3, align=16),
    "softmax": of_ops("softmax", x="7x33"),
    "softmax of columns": of_ops("softmax", x="9x21", axis=0),
    "log_softmax": of_ops("log_softmax", x="7x33"),
    "layer_norm": of_ops("layer_norm", x="5x37"),
    "rms_norm": of_ops("rms_norm", x="5x37"),
    "batch_norm": of_ops("batch_norm", x="2x3x5x7"),
    "group_norm": of_ops("group_norm", x="1x6x5x5", groups=2),
    "relu": of_ops("relu", x="5x17"),
    "gelu": of_ops("gelu", x="5x17"),
    "silu": of_ops("silu", x="5x17", dtype="float16"),
    "sigmoid": of_ops("sigmoid", x="5x17"),
    "cumsum": of_ops("cumsum", x="5x37"),
    "max_pool2d": of_ops("max_pool2d", x="1x3x9x9"),
    "avg_pool2d": of_ops("avg_pool2d", x="1x3x9x9"),
    "adaptive_avg_pool2d": of_ops("adaptive_avg_pool2d", x="1x3x9x9", size=2),
    "linear": of_ops("linear", x="9x13", w="7x13"),
    "conv1d": of_ops("conv1d", x="1x4x19", w="6x4x3", stride=2, pad=1),
    "conv3d": of_ops("conv3d", x="1x3x4x5x5", w="4x3x3x3x3", pad=1),
    "conv_transpose2d": of_ops("conv_transpose2d", x="1x4x5x5", w="4x3x3x3", stride=2, pad=1),
    "embedding": of_ops("embedding", indices="13", weight="17x9"),
    "attention": of_ops("attention", q="1x2x13x8", k="1x1x19x8", causal=True),
    "softmax gradient": lambda: softmax_gradient(7, 33),
    "rms_norm gradient": lambda: norm_gradient(7, 19),
    "matmul gradients": lambda: product_gradients(9, 13, 11),
    "embedding gradient": lambda: embedding_gradient(19, 7, 5),
    "avg_pool gradient": lambda: pool_gradient(3, 9, 2),
    "cross entropy": lambda: cross_entropy(9, 23),
    "momentum": lambda: momentum(5, 17),
    "adam": lambda: adam(5, 17),
    "quantized product": lambda: quantized_product(9, 17, 24),
    "quantized convolution": lambda: quantized_convolution(1, 4, 7, 6),
    "weights of 8 bits": lambda: weights_of_8(9, 17, 24),
    "weights of 4 bits": lambda: weights_of_4(9, 7, 16, 8),
    "rotary": lambda: rotary(7, 3, 8),
    "argmax": lambda: top_one(7, 33),
    "histogram": lambda: histogram(50, 7),
    "sparse product": lambda: sparse_product(7, 9, 5, 4),
}
REAL: dict[str, Callable[[], Any]] = {
    **{name: of_ops(name, **({"groups": 8} if name == "grouped_matmul" else {})) for name in OPERATORS},
    "conv2d NHWC": of_ops("conv2d", pad=1, layout="NHWC"),
    "conv2d by channel": of_ops("conv2d", c=64, k=64, pad=1, groups=64),
    "conv2d of int8": of_ops("conv2d", pad=1, dtype="int8"),
    "conv2d of float16": of_ops("conv2d", pad=1, dtype="float16", act="silu"),
    "matmul batch": of_ops("matmul", m=128, n=128, k=64, batch=12, tb=True),
    "matmul of int8": of_ops("matmul", tb=True, dtype="int8"),
    "matmul of bfloat16": of_ops("matmul", dtype="bfloat16"),
    "softmax of columns": of_ops("softmax", x="512x128", axis=0),
    "softmax gradient": lambda: softmax_gradient(1024, 1024),
    "rms_norm gradient": lambda: norm_gradient(1024, 1024),
    "matmul gradients": lambda: product_gradients(512, 512, 512),
    "embedding gradient": lambda: embedding_gradient(4096, 1000, 64),
    "avg_pool gradient": lambda: pool_gradient(64, 56, 2),
    "cross entropy": lambda: cross_entropy(512, 1000),
    "momentum": lambda: momentum(1024, 1024),
    "adam": lambda: adam(1024, 1024),
    "quantized product": lambda: quantized_product(512, 512, 512),
    "quantized convolution": lambda: quantized_convolution(1, 64, 56, 64),
    "weights of 8 bits": lambda: weights_of_8(128, 1024, 1024),
    "weights of 4 bits": lambda: weights_of_4(128, 1024, 1024, 128),
    "rotary": lambda: rotary(512, 12, 64),
    "argmax": lambda: top_one(1024, 1024),
    "histogram": lambda: histogram(65536, 256),
    "sparse product": lambda: sparse_product(4096, 4096, 64, 32),
}
