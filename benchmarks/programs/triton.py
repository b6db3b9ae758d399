"""Tutorials of Triton."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

import tensorir as tir
from programs import Array, Inputs, Peers, axes, philox, philox_by_numpy, program, softmax_by_numpy


@program("triton/01-vector-add")
def vector_add(given: Inputs) -> tuple[Any, Peers]:
    x, y = given.normal("x", 98432), given.normal("y", 98432)
    return tir.compute((98432,), lambda i: x[i] + y[i], name="z"), {"numpy": np.add, "torch": torch.add}


@program("triton/02-fused-softmax")
def softmax(given: Inputs) -> tuple[Any, Peers]:
    x = given.normal("x", 1823, 781)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    peers = {"numpy": softmax_by_numpy, "torch": lambda x: functional.softmax(x, 1)}
    return e / e.sum(axis=1, keepdims=True), peers


@program("triton/03-matmul-leaky-relu")
def matmul_leaky_relu(given: Inputs) -> tuple[Any, Peers]:
    n, (k,) = 512, axes(512)
    a, b = given.normal("a", n, n, dtype="float16"), given.normal("b", n, n, dtype="float16")
    f = lambda x: tir.cast(x, "float32")  # noqa: E731
    c = tir.compute((n, n), lambda i, j: tir.sum(f(a[i, k]) * f(b[k, j]), axis=k), name="c")
    leaky = lambda i, j: tir.cast(tir.where(c[i, j] >= 0, c[i, j], c[i, j] * 0.01), "float16")  # noqa: E731

    def by_numpy(a: Array, b: Array) -> Array:
        c = a.astype("float32") @ b.astype("float32")
        return np.where(c >= 0, c, c * np.float32(0.01)).astype("float16")

    return tir.compute((n, n), leaky, name="y"), {
        "numpy": by_numpy,
        "torch": lambda a, b: functional.leaky_relu(a @ b),
        "torch float32": lambda a, b: functional.leaky_relu(a.float() @ b.float()).half(),
    }


@program("triton/04-low-memory-dropout")
def dropout(given: Inputs) -> tuple[Any, Peers]:
    """Random numbers of a seed and a position: no peer's own dropout gives the same."""
    n, seed, keep = 1 << 18, 123, 0.5
    x = given.normal("x", n)

    def cell(i: Any) -> Any:
        bits = philox(tir.cast(i, "uint32"), seed)
        uniform = tir.cast(bits >> 8, "float32") * (1.0 / (1 << 24))
        return tir.where(uniform < keep, x[i] / keep, 0.0)

    def by_numpy(x: Array) -> Array:
        uniform = (philox_by_numpy(np.arange(n, dtype="uint32"), seed) >> 8).astype("float32") * np.float32(2**-24)
        return np.where(uniform < keep, x / np.float32(keep), np.float32(0))

    return tir.compute((n,), cell, name="y"), {"numpy": by_numpy}


@program("triton/05-layer-norm-fwd")
def layer_norm(given: Inputs) -> tuple[Any, Peers]:
    m, n, (r, q) = 512, 1024, axes(1024, 1024)
    x, w, b = given.normal("x", m, n), given.normal("w", n), given.normal("b", n)
    mean = tir.compute((m,), lambda i: tir.sum(x[i, r], axis=r) / n, name="mean")
    var = tir.compute((m,), lambda i: tir.sum((x[i, q] - mean[i]) * (x[i, q] - mean[i]), axis=q) / n, name="var")
    y = tir.compute((m, n), lambda i, j: (x[i, j] - mean[i]) * tir.rsqrt(var[i] + 1e-5) * w[j] + b[j], name="y")

    def by_numpy(x: Array, w: Array, b: Array) -> Array:
        far = x - x.mean(1, keepdims=True)
        return far / np.sqrt((far * far).mean(1, keepdims=True) + np.float32(1e-5)) * w + b

    return y, {"numpy": by_numpy, "torch": lambda x, w, b: functional.layer_norm(x, (n,), w, b)}


@program("triton/05-layer-norm-bwd")
def layer_norm_gradients(given: Inputs) -> tuple[Any, Peers]:
    """With respect to rows, factors and summands, by the moments that the forward pass has left."""
    m, n, (r, q, t, u) = 1024, 1024, axes(1024, 1024, 1024, 1024)
    dy, x, w = given.normal("dy", m, n), given.normal("x", m, n), given.normal("w", n)
    own = given.arrays["x"]
    mean = given.of("mean", own.mean(1))
    rstd = given.of("rstd", 1 / np.sqrt(own.var(1) + np.float32(1e-5)))
    xhat = tir.compute((m, n), lambda i, j: (x[i, j] - mean[i]) * rstd[i], name="xhat")
    wdy = tir.compute((m, n), lambda i, j: dy[i, j] * w[j], name="wdy")
    c1 = tir.compute((m,), lambda i: tir.sum(xhat[i, r] * wdy[i, r], axis=r) / n, name="c1")
    c2 = tir.compute((m,), lambda i: tir.sum(wdy[i, q], axis=q) / n, name="c2")
    dx = tir.compute((m, n), lambda i, j: (wdy[i, j] - (xhat[i, j] * c1[i] + c2[i])) * rstd[i], name="dx")
    dw = tir.compute((n,), lambda j: tir.sum(dy[t, j] * xhat[t, j], axis=t), name="dw")
    db = tir.compute((n,), lambda j: tir.sum(dy[u, j], axis=u), name="db")

    def by_numpy(dy: Array, x: Array, w: Array, mean: Array, rstd: Array) -> tuple[Array, ...]:
        xhat, wdy = (x - mean[:, None]) * rstd[:, None], dy * w
        c1, c2 = (xhat * wdy).mean(1, keepdims=True), wdy.mean(1, keepdims=True)
        return (wdy - (xhat * c1 + c2)) * rstd[:, None], (dy * xhat).sum(0), dy.sum(0)

    zero = torch.zeros(n)
    gradient = torch.ops.aten.native_layer_norm_backward
    return (dx, dw, db), {
        "numpy": by_numpy,
        "torch": lambda dy, x, w, mean, rstd: gradient(
            dy, x, [n], mean[:, None], rstd[:, None], w, zero, [True, True, True]
        ),
    }


HEADS, LENGTH, WIDTH = 4, 512, 64
SCALE = WIDTH**-0.5


@program("triton/06-fused-attention-fwd")
def attention(given: Inputs) -> tuple[Any, Peers]:
    """Causal: scores, softmax and product by hand."""
    (h, n, d), (p, r, q, t) = (HEADS, LENGTH, WIDTH), axes(WIDTH, LENGTH, LENGTH, LENGTH)
    query, key, value = (given.normal(name, h, n, d) for name in ("q", "k", "v"))
    dot = tir.compute((h, n, n), lambda b, i, j: tir.sum(query[b, i, p] * key[b, j, p], axis=p), name="dot")
    s = tir.compute((h, n, n), lambda b, i, j: tir.where(j <= i, dot[b, i, j] * SCALE, -1e30), name="s")
    top = tir.compute((h, n), lambda b, i: tir.max(s[b, i, r], axis=r), name="top")
    e = tir.compute((h, n, n), lambda b, i, j: tir.exp(s[b, i, j] - top[b, i]), name="e")
    total = tir.compute((h, n), lambda b, i: tir.sum(e[b, i, q], axis=q), name="total")
    o = tir.compute((h, n, d), lambda b, i, c: tir.sum(e[b, i, t] * value[b, t, c], axis=t), name="o")
    y = tir.compute((h, n, d), lambda b, i, c: o[b, i, c] / total[b, i], name="y")
    later = np.triu(np.full((n, n), -np.inf, "float32"), 1)

    def by_numpy(q: Array, k: Array, v: Array) -> Array:
        return softmax_by_numpy(q @ k.swapaxes(1, 2) * np.float32(SCALE) + later) @ v

    # of four dimensions: for three there is no fused kernel
    whole = lambda q, k, v: functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]  # noqa: E731
    return y, {"numpy": by_numpy, "torch": whole}


@program("triton/06-fused-attention-bwd")
def attention_gradients(given: Inputs) -> tuple[Any, Peers]:
    """With respect to queries, keys and values, by the logarithms of sums that the forward pass has left."""
    (h, n, d), (p, r, t, u, v, w) = (HEADS, LENGTH, WIDTH), axes(WIDTH, WIDTH, WIDTH, LENGTH, LENGTH, LENGTH)
    query, key, value, do = (given.normal(name, h, n, d) for name in ("q", "k", "v", "do"))
    q0, k0, v0, _ = given.arrays.values()
    later = np.triu(np.full((n, n), -np.inf, "float32"), 1)
    s0 = q0 @ k0.swapaxes(1, 2) * np.float32(SCALE) + later
    o0 = softmax_by_numpy(s0) @ v0
    lse = given.of("lse", s0.max(2) + np.log(np.exp(s0 - s0.max(2, keepdims=True)).sum(2)))
    o = given.of("o", o0)
    delta = tir.compute((h, n), lambda b, i: tir.sum(o[b, i, r] * do[b, i, r], axis=r), name="delta")
    dot = tir.compute((h, n, n), lambda b, i, j: tir.sum(query[b, i, p] * key[b, j, p], axis=p), name="dot")
    weight = lambda b, i, j: tir.where(j <= i, tir.exp(dot[b, i, j] * SCALE - lse[b, i]), 0.0)  # noqa: E731
    prob = tir.compute((h, n, n), weight, name="prob")
    dp = tir.compute((h, n, n), lambda b, i, j: tir.sum(do[b, i, t] * value[b, j, t], axis=t), name="dp")
    ds = tir.compute((h, n, n), lambda b, i, j: prob[b, i, j] * (dp[b, i, j] - delta[b, i]) * SCALE, name="ds")
    dq = tir.compute((h, n, d), lambda b, i, c: tir.sum(ds[b, i, u] * key[b, u, c], axis=u), name="dq")
    dk = tir.compute((h, n, d), lambda b, j, c: tir.sum(ds[b, v, j] * query[b, v, c], axis=v), name="dk")
    dv = tir.compute((h, n, d), lambda b, j, c: tir.sum(prob[b, w, j] * do[b, w, c], axis=w), name="dv")

    def by_numpy(q: Array, k: Array, v: Array, do: Array, lse: Array, o: Array) -> tuple[Array, ...]:
        p = np.exp(q @ k.swapaxes(1, 2) * np.float32(SCALE) + later - lse[..., None])
        ds = p * (do @ v.swapaxes(1, 2) - (o * do).sum(2, keepdims=True)) * np.float32(SCALE)
        return ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ do

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def by_torch(q: Any, k: Any, v: Any, do: Any, lse: Any, o: Any) -> Any:
        made = flash(do[None], q[None], k[None], v[None], o[None], lse[None], 0.0, True)
        return [x[0] for x in made]

    return (dq, dk, dv), {"numpy": by_numpy, "torch": by_torch}


@program("triton/07-extern-functions")
def arcsine(given: Inputs) -> tuple[Any, Peers]:
    """By a polynomial of the user (Abramowitz and Stegun 4.4.46), since the language has none."""
    n = 98432
    x = given.uniform("x", n)
    by = (
        1.5707963050,
        -0.2145988016,
        0.0889789874,
        -0.0501743046,
        0.0308918810,
        -0.0170881256,
        0.0066700901,
        -0.0012624911,
    )

    def cell(i: Any) -> Any:
        a, p = tir.abs(x[i]), 0.0
        for c in reversed(by):
            p = p * a + c
        half = np.pi / 2 - tir.sqrt(1.0 - a) * p
        return tir.where(x[i] < 0, -half, half)

    return tir.compute((n,), cell, name="y"), {"numpy": np.arcsin, "torch": torch.asin}


@program("triton/08-grouped-gemm")
def grouped_gemm(given: Inputs) -> tuple[Any, Peers]:
    shapes = ((128, 128, 128), (96, 64, 160), (64, 64, 32), (200, 48, 96))
    pairs = [(given.normal(f"a{g}", m, k), given.normal(f"b{g}", k, n)) for g, (m, n, k) in enumerate(shapes)]
    made = tuple(tir.nn.matmul(a, b, name=f"c{g}") for g, (a, b) in enumerate(pairs))
    every = lambda *x: [a @ b for a, b in zip(x[::2], x[1::2], strict=True)]  # noqa: E731
    return made, {"numpy": every, "torch": every}


@program("triton/10-block-scaled-matmul")
def block_scaled_matmul(given: Inputs) -> tuple[Any, Peers]:
    """mxfp4: codes of 4 bits (e2m1), two a byte, and a power of two (e8m0) for each 32 of them."""
    m, n, k, (r,) = 128, 256, 512, axes(512)
    a, b = (given.whole(name, x, k // 2, below=256, dtype="uint8") for name, x in (("a", m), ("b", n)))
    sa, sb = (
        given.whole(f"s{name}", x, k // 32, least=122, below=130, dtype="uint8") for name, x in (("a", m), ("b", n))
    )
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], "float32")

    def decoded(codes: Any, scales: Any) -> Any:
        def cell(i: Any, p: Any) -> Any:
            code = tir.cast((codes[i, p // 2] >> tir.cast(p % 2 * 4, "uint8")) & 15, "int32")
            sign, exponent, mantissa = code >> 3, (code >> 1) & 3, tir.cast(code & 1, "float32")
            power = tir.cast(1 << exponent, "float32") * 0.5
            size = tir.where(exponent > 0, (1.0 + 0.5 * mantissa) * power, 0.5 * mantissa)
            scale = tir.bitcast(tir.cast(scales[i, p // 32], "int32") << 23, "float32")
            return tir.where(sign > 0, -size, size) * scale

        return cell

    da = tir.compute((m, k), decoded(a, sa), name="da")
    db = tir.compute((n, k), decoded(b, sb), name="db")

    def wide_by_numpy(codes: Array, scales: Array) -> Array:
        nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), k)
        by = np.exp2(scales.astype("float32") - 127)
        return (table[nibbles].reshape(len(codes), -1, 32) * by[..., None]).reshape(len(codes), k)

    of_torch = torch.from_numpy(table)

    def wide_by_torch(codes: Any, scales: Any) -> Any:
        nibbles = torch.stack([codes & 15, codes >> 4], -1).reshape(len(codes), k).int()
        by = torch.exp2(scales.float() - 127)
        return (of_torch[nibbles].reshape(len(codes), -1, 32) * by[..., None]).reshape(len(codes), k)

    return tir.compute((m, n), lambda i, j: tir.sum(da[i, r] * db[j, r], axis=r), name="y"), {
        "numpy": lambda a, b, sa, sb: wide_by_numpy(a, sa) @ wide_by_numpy(b, sb).T,
        "torch": lambda a, b, sa, sb: wide_by_torch(a, sa) @ wide_by_torch(b, sb).T,
    }
