"""Examples of TileLang."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from test_cliffs import balanced
from torch.nn import functional

import tensorir as tir
from programs import Array, Inputs, Peers, axes, program, softmax_by_numpy


@program("tilelang/dequantize-gemm-int4")
def dequantized_product(given: Inputs) -> tuple[Any, Peers]:
    """Rows of 16 bits by weights of 4 bits, with a scale and a zero for each group of 128."""
    m, n, k, group, (r,) = 32, 1024, 1024, 128, axes(1024)
    a = given.normal("a", m, k, dtype="float16")
    w = given.whole("w", n, k // 2, below=256, dtype="uint8")
    scale, zero = given.uniform("scale", n, k // group), given.whole("zero", n, k // group, below=16, dtype="uint8")

    def cell(j: Any, p: Any) -> Any:
        code = (w[j, p // 2] >> tir.cast(p % 2 * 4, "uint8")) & 15
        return (tir.cast(code, "float32") - tir.cast(zero[j, p // group], "float32")) * scale[j, p // group]

    wide = tir.compute((n, k), cell, name="wide")
    y = tir.compute((m, n), lambda i, j: tir.sum(tir.cast(a[i, r], "float32") * wide[j, r], axis=r), name="y")

    def by_numpy(a: Array, w: Array, scale: Array, zero: Array) -> Array:
        codes = np.stack([w & 15, w >> 4], -1).reshape(n, -1, group).astype("float32")
        return a.astype("float32") @ ((codes - zero[..., None]) * scale[..., None]).reshape(n, k).T

    def by_torch(a: Any, w: Any, scale: Any, zero: Any) -> Any:
        codes = torch.stack([w & 15, w >> 4], -1).reshape(n, -1, group).float()
        return a.float() @ ((codes - zero[..., None]) * scale[..., None]).reshape(n, k).T

    return y, {"numpy": by_numpy, "torch": by_torch}


@program("tilelang/flash-decoding")
def flash_decoding(given: Inputs) -> tuple[Any, Peers]:
    h, n, d = 8, 2048, 64
    q, k, v = given.normal("q", 1, h, 1, d), given.normal("k", 1, h, n, d), given.normal("v", 1, h, n, d)

    def by_numpy(q: Array, k: Array, v: Array) -> Array:
        return softmax_by_numpy(q @ k.swapaxes(2, 3) * np.float32(d**-0.5)) @ v

    return tir.nn.attention(q, k, v), {"numpy": by_numpy, "torch": functional.scaled_dot_product_attention}


@program("tilelang/deepseek-mla-decode")
def latent_decode(given: Inputs) -> tuple[Any, Peers]:
    """One latent key and value for 16 heads, and 64 rotary columns."""
    h, n, d, e = 16, 1024, 256, 64
    q, qe, kv, ke = (
        given.normal("q", h, d),
        given.normal("qe", h, e),
        given.normal("kv", n, d),
        given.normal("ke", n, e),
    )
    p, u, r, t, v = axes(d, e, n, n, n)
    scale = (d + e) ** -0.5
    one = tir.compute((h, n), lambda i, j: tir.sum(q[i, p] * kv[j, p], axis=p), name="one")
    two = tir.compute((h, n), lambda i, j: tir.sum(qe[i, u] * ke[j, u], axis=u), name="two")
    s = tir.compute((h, n), lambda i, j: (one[i, j] + two[i, j]) * scale, name="s")
    top = tir.compute((h,), lambda i: tir.max(s[i, r], axis=r), name="top")
    w = tir.compute((h, n), lambda i, j: tir.exp(s[i, j] - top[i]), name="w")
    total = tir.compute((h,), lambda i: tir.sum(w[i, t], axis=t), name="total")
    o = tir.compute((h, d), lambda i, c: tir.sum(w[i, v] * kv[v, c], axis=v), name="o")
    y = tir.compute((h, d), lambda i, c: o[i, c] / total[i], name="y")

    def by_numpy(q: Array, qe: Array, kv: Array, ke: Array) -> Array:
        return softmax_by_numpy((q @ kv.T + qe @ ke.T) * np.float32(scale)) @ kv

    by_torch = lambda q, qe, kv, ke: torch.softmax((q @ kv.T + qe @ ke.T) * scale, -1) @ kv  # noqa: E731
    whole = lambda q, qe, kv, ke: functional.scaled_dot_product_attention(  # noqa: E731
        torch.cat([q, qe], 1)[None], torch.cat([kv, ke], 1)[None], kv[None]
    )[0]
    return y, {"numpy": by_numpy, "torch": by_torch, "torch fused": whole}


@program("tilelang/linear-attention-chunk")
def linear_attention(given: Inputs) -> tuple[Any, Peers]:
    """Causal, without softmax: the state before each chunk of 64 by a scan, and a mask within."""
    h, chunks, n, d = 4, 8, 64, 64
    q, k, v = (given.normal(name, h, chunks, n, d) for name in ("q", "k", "v"))
    r, p, s, t = axes(n, d, n, d)
    own = tir.compute((h, chunks, d, d), lambda b, c, x, y: tir.sum(k[b, c, r, x] * v[b, c, r, y], axis=r), name="own")
    state = tir.scan(own, axis=1, op="sum", exclusive=True, name="state")
    dot = tir.compute((h, chunks, n, n), lambda b, c, i, j: tir.sum(q[b, c, i, p] * k[b, c, j, p], axis=p), name="dot")
    near = lambda b, c, i, y: tir.sum(tir.where(s <= i, dot[b, c, i, s], 0.0) * v[b, c, s, y], axis=s)  # noqa: E731
    inner = tir.compute((h, chunks, n, d), near, name="inner")
    far = lambda b, c, i, y: tir.sum(q[b, c, i, t] * state[b, c, t, y], axis=t)  # noqa: E731
    outer = tir.compute((h, chunks, n, d), far, name="outer")
    y = tir.compute((h, chunks, n, d), lambda b, c, i, j: inner[b, c, i, j] + outer[b, c, i, j], name="y")
    mask = np.tril(np.ones((n, n), "float32"))

    def by_numpy(q: Array, k: Array, v: Array) -> Array:
        own = k.swapaxes(2, 3) @ v
        state = np.cumsum(own, 1) - own
        return (q @ k.swapaxes(2, 3) * mask) @ v + q @ state

    def by_torch(q: Any, k: Any, v: Any) -> Any:
        own = k.transpose(2, 3) @ v
        state = torch.cumsum(own, 1) - own
        return (q @ k.transpose(2, 3)).tril() @ v + q @ state

    return y, {"numpy": by_numpy, "torch": by_torch}


AFFINE = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="affine", commutative=False)


@program("tilelang/mamba2-chunk-scan")
def state_spaces(given: Inputs) -> tuple[Any, Peers]:
    """Decays by sums within chunks, states across chunks by a scan of affine maps."""
    h, chunks, n, d, e = 8, 8, 64, 32, 16
    x, b, c = given.normal("x", h, chunks, n, d), given.normal("b", chunks, n, e), given.normal("c", chunks, n, e)
    dt = given.of("dt", -given.rng.random((h, chunks, n), "float32") * np.float32(0.1))
    r, p, s, t = axes(n, e, n, e)
    da = tir.scan(dt, axis=2, op="sum", name="da")
    dot = tir.compute((chunks, n, n), lambda k, i, j: tir.sum(c[k, i, p] * b[k, j, p], axis=p), name="dot")
    weight = tir.compute((h, chunks, n, n), lambda a, k, i, j: tir.where(
        j <= i, tir.exp(tir.minimum(da[a, k, i] - da[a, k, j], 0.0)) * dot[k, i, j], 0.0), name="weight")  # fmt: skip
    near = lambda a, k, i, y: tir.sum(weight[a, k, i, s] * x[a, k, s, y], axis=s)  # noqa: E731
    inner = tir.compute((h, chunks, n, d), near, name="inner")
    own = tir.compute((h, chunks, e, d), lambda a, k, q, y: tir.sum(
        b[k, r, q] * tir.exp(da[a, k, n - 1] - da[a, k, r]) * x[a, k, r, y], axis=r), name="own")  # fmt: skip
    decay = tir.compute((h, chunks, e, d), lambda a, k, q, y: tir.exp(da[a, k, n - 1]), name="decay")
    _, state = tir.scan((decay, own), axis=1, op=AFFINE, exclusive=True, name="state")
    far = lambda a, k, i, y: tir.sum(c[k, i, t] * state[a, k, t, y], axis=t)  # noqa: E731
    outer = tir.compute((h, chunks, n, d), far, name="outer")
    y = tir.compute(
        (h, chunks, n, d), lambda a, k, i, y: inner[a, k, i, y] + outer[a, k, i, y] * tir.exp(da[a, k, i]), name="y"
    )
    mask = np.tril(np.ones((n, n), "bool"))

    def by_numpy(x: Array, b: Array, c: Array, dt: Array) -> Array:
        da = np.cumsum(dt, 2)
        weight = np.where(mask, np.exp(np.minimum(da[..., None] - da[..., None, :], 0)) * (c @ b.swapaxes(1, 2)), 0)
        own = (b * np.exp(da[..., -1:] - da)[..., None]).swapaxes(2, 3) @ x
        state = np.zeros_like(own)
        for k in range(1, chunks):
            state[:, k] = state[:, k - 1] * np.exp(da[:, k - 1, -1])[:, None, None] + own[:, k - 1]
        return weight @ x + (c @ state) * np.exp(da)[..., None]

    def by_torch(x: Any, b: Any, c: Any, dt: Any) -> Any:
        da = torch.cumsum(dt, 2)
        weight = (torch.exp(torch.clamp(da[..., None] - da[..., None, :], max=0)) * (c @ b.transpose(1, 2))).tril()
        own = (b * torch.exp(da[..., -1:] - da)[..., None]).transpose(2, 3) @ x
        state = torch.zeros_like(own)
        for k in range(1, chunks):
            state[:, k] = state[:, k - 1] * torch.exp(da[:, k - 1, -1])[:, None, None] + own[:, k - 1]
        return weight @ x + (c @ state) * torch.exp(da)[..., None]

    return y, {"numpy": by_numpy, "torch": by_torch}


@program("tilelang/blocksparse-attention")
def block_sparse_attention(given: Inputs) -> tuple[Any, Peers]:
    """A mask of blocks of 64 x 64 is data."""
    h, n, d, size = 4, 512, 64, 64
    q, k, v = (given.normal(name, 1, h, n, d) for name in ("q", "k", "v"))
    pattern = given.rng.random((h, n // size, n // size)) < 0.5
    pattern |= np.eye(n // size, dtype=bool)
    m = given.of("m", pattern.astype("int32"))
    y = tir.nn.attention(q, k, v, mask=lambda b, h, i, j: m[h, i // size, j // size] > 0)

    def by_numpy(q: Array, k: Array, v: Array, m: Array) -> Array:
        seen = np.repeat(np.repeat(m, size, 1), size, 2)
        return softmax_by_numpy(np.where(seen, q @ k.swapaxes(2, 3) * np.float32(d**-0.5), -np.inf)) @ v

    def by_torch(q: Any, k: Any, v: Any, m: Any) -> Any:
        seen = m.bool().repeat_interleave(size, 1).repeat_interleave(size, 2)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[None])

    return y, {"numpy": by_numpy, "torch": by_torch}


@program("tilelang/topk")
def largest(given: Inputs) -> tuple[Any, Peers]:
    """The 6 largest of 64, by rounds of argmax: values and places."""
    n, experts, count = 512, 64, 6
    x = y = given.normal("x", n, experts)
    values, places = [], []
    for t in range(count):
        (r,) = axes(experts)
        at = tir.compute((n,), lambda i, y=y, r=r: tir.argmax(y[i, r], axis=r), name=f"at{t}")
        values.append(tir.compute((n,), lambda i, at=at: x[i, at[i]], name=f"top{t}"))
        places.append(at)
        y = tir.compute((n, experts), lambda i, j, y=y, at=at: tir.where(at[i] == j, -1e30, y[i, j]), name=f"y{t}")

    def by_numpy(x: Array) -> tuple[Array, ...]:
        some = np.argpartition(-x, count, 1)[:, :count]
        own = np.take_along_axis(x, some, 1)
        order = np.argsort(-own, 1)
        values, at = np.take_along_axis(own, order, 1), np.take_along_axis(some, order, 1)
        return (*values.T, *at.T)

    def by_torch(x: Any) -> tuple[Any, ...]:
        values, at = torch.topk(x, count, 1)
        return (*values.T, *at.T)

    return (*values, *places), {"numpy": by_numpy, "torch": by_torch}


@program("tilelang/convolution")
def convolution(given: Inputs) -> tuple[Any, Peers]:
    h, c, k = 28, 64, 64
    x, w = given.normal("x", 1, h, h, c), given.normal("w", k, 3, 3, c)
    u, v, r = axes(3, 3, c)
    cell = lambda b, i, j, o: tir.sum(x.get(b, i + u - 1, j + v - 1, r, fill=0) * w[o, u, v, r], axis=(u, v, r))  # noqa: E731
    y = tir.compute((1, h, h, k), cell, name="y")

    def by_numpy(x: Array, w: Array) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x[0], ((1, 1), (1, 1), (0, 0))), (3, 3), (0, 1))
        return (windows.transpose(0, 1, 3, 4, 2).reshape(h * h, -1) @ w.reshape(k, -1).T).reshape(1, h, h, k)

    def by_torch(x: Any, w: Any) -> Any:
        return functional.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), padding=1).permute(0, 2, 3, 1)

    return y, {"numpy": by_numpy, "torch": by_torch}


@program("tilelang/hadamard-transform")
def hadamard(given: Inputs) -> tuple[Any, Peers]:
    """9 stages of sums and differences."""
    rows, n = 256, 512
    y = given.normal("x", rows, n)
    step = 1
    while step < n:

        def cell(b: Any, i: Any, y: Any = y, step: int = step) -> Any:
            return tir.where((i & step) == 0, y[b, i] + y[b, i ^ step], y[b, i ^ step] - y[b, i])

        y, step = tir.compute((rows, n), cell, name=f"y{step}"), step * 2

    def stages(x: Any, joined: Any) -> Any:
        step = 1
        while step < n:
            pairs = x.reshape(rows, -1, 2, step)
            x = joined([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2)
            step *= 2
        return x.reshape(rows, n)

    from scipy.linalg import hadamard

    matrix = hadamard(n).astype("float32")
    of_torch = torch.from_numpy(matrix)
    return y, {
        "numpy": lambda x: stages(x, np.stack),
        "numpy product": lambda x: x @ matrix,
        "torch": lambda x: stages(x, torch.stack),
        "torch product": lambda x: x @ of_torch,
    }


@program("tilelang/per-token-cast-fp8")
def cast_to_8_bits(given: Inputs) -> tuple[Any, Peers]:
    m, n, group, (r,) = 512, 1024, 128, axes(128)
    x = given.normal("x", m, n)
    top = tir.compute((m, n // group), lambda i, g: tir.max(tir.abs(x[i, g * group + r]), axis=r), name="top")
    scale = tir.compute((m, n // group), lambda i, g: tir.maximum(top[i, g], 1e-4) / 448.0, name="scale")
    cell = lambda i, j: tir.cast(x[i, j] / scale[i, j // group], "float8_e4m3")  # noqa: E731
    code = tir.compute((m, n), cell, name="code")

    def by_numpy(x: Array) -> tuple[Array, ...]:
        groups = x.reshape(m, -1, group)
        scale = np.maximum(np.abs(groups).max(2), np.float32(1e-4)) / np.float32(448)
        return (groups / scale[..., None]).reshape(m, n).astype(ml_dtypes.float8_e4m3fn), scale

    def by_torch(x: Any) -> tuple[Any, ...]:
        groups = x.reshape(m, -1, group)
        scale = groups.abs().amax(2).clamp(min=1e-4) / 448.0
        return (groups / scale[..., None]).reshape(m, n).to(torch.float8_e4m3fn), scale

    return (code, scale), {"numpy": by_numpy, "torch": by_torch}


@program("tilelang/fused-moe")
def experts(given: Inputs) -> tuple[Any, Peers]:
    """Rows sorted by expert: a product of each, silu of one by the other, another product."""
    m, d, e, count, align = 256, 128, 256, 8, 32
    x = given.normal("x", m, d)
    gate, up, down = (
        given.normal("gate", count, d, e),
        given.normal("up", count, d, e),
        given.normal("down", count, e, d),
    )
    group = given.of("group", np.sort(given.rng.integers(0, count, m // align)).astype("int32"))
    a = tir.nn.grouped_matmul(x, gate, group, align=align, name="a")
    b = tir.nn.grouped_matmul(x, up, group, align=align, name="b")
    g = tir.compute((m, e), lambda i, j: a[i, j] / (1.0 + tir.exp(-a[i, j])) * b[i, j], name="g")
    y = tir.nn.grouped_matmul(g, down, group, align=align, name="y")

    def by_numpy(x: Array, gate: Array, up: Array, down: Array, group: Array) -> Array:
        out = np.empty((m, d), "float32")
        for e in np.unique(group):
            own = np.flatnonzero(group == e)
            rows = slice(own[0] * align, (own[-1] + 1) * align)
            a = x[rows] @ gate[e]
            out[rows] = (a / (1 + np.exp(-a)) * (x[rows] @ up[e])) @ down[e]
        return out

    def by_torch(x: Any, gate: Any, up: Any, down: Any, group: Any) -> Any:
        out, number = torch.empty(m, d), group.tolist()
        for e in sorted(set(number)):
            rows = slice(number.index(e) * align, (number.index(e) + number.count(e)) * align)
            out[rows] = (functional.silu(x[rows] @ gate[e]) * (x[rows] @ up[e])) @ down[e]
        return out

    return y, {"numpy": by_numpy, "torch": by_torch}


@program("tilelang/moe-data-offsets")
def expert_of_each_row(given: Inputs) -> tuple[Any, Peers]:
    m, d, e, count, (r,) = 64, 64, 64, 8, axes(64)
    x, w = given.normal("x", m, d), given.normal("w", count, d, e)
    at = given.whole("at", m, below=count)
    y = tir.compute((m, e), lambda i, j: tir.sum(x[i, r] * w[at[i], r, j], axis=r), name="y")
    by_numpy = lambda x, w, at: (x[:, None] @ w[at])[:, 0]  # noqa: E731
    return y, {"numpy": by_numpy, "torch": lambda x, w, at: torch.bmm(x[:, None], w[at])[:, 0]}


@program("tilelang/nsa-selected-blocks")
def selected_blocks(given: Inputs) -> tuple[Any, Peers]:
    """Each block of 32 queries sees 4 blocks of 32 keys, of which data say the numbers."""
    h, blocks, size, d, seen = 4, 16, 32, 64, 4
    q, k, v = (given.normal(name, h, blocks, size, d) for name in ("q", "k", "v"))
    chosen = np.stack([np.sort(given.rng.permutation(blocks)[:seen]) for _ in range(h * blocks)])
    at = given.of("at", chosen.reshape(h, blocks, seen).astype("int32"))
    keys = seen * size
    p, r, t, u = axes(d, keys, keys, keys)
    scale = d**-0.5
    dot = lambda b, g, i, j: tir.sum(q[b, g, i, p] * k[b, at[b, g, j // size], j % size, p], axis=p)  # noqa: E731
    s = tir.compute((h, blocks, size, keys), dot, name="s")
    top = tir.compute((h, blocks, size), lambda b, g, i: tir.max(s[b, g, i, r], axis=r), name="top")
    weight = lambda b, g, i, j: tir.exp((s[b, g, i, j] - top[b, g, i]) * scale)  # noqa: E731
    w = tir.compute((h, blocks, size, keys), weight, name="w")
    total = tir.compute((h, blocks, size), lambda b, g, i: tir.sum(w[b, g, i, t], axis=t), name="total")
    o = tir.compute((h, blocks, size, d), lambda b, g, i, c: tir.sum(
        w[b, g, i, u] * v[b, at[b, g, u // size], u % size, c], axis=u), name="o")  # fmt: skip
    y = tir.compute((h, blocks, size, d), lambda b, g, i, c: o[b, g, i, c] / total[b, g, i], name="y")
    heads = np.arange(h)[:, None, None]

    def by_numpy(q: Array, k: Array, v: Array, at: Array) -> Array:
        own, values = (x[heads, at].reshape(h, blocks, keys, d) for x in (k, v))
        return softmax_by_numpy(q @ own.swapaxes(2, 3) * np.float32(scale)) @ values

    of_torch = torch.from_numpy(heads)

    def by_torch(q: Any, k: Any, v: Any, at: Any) -> Any:
        own, values = (x[of_torch, at].reshape(h, blocks, keys, d) for x in (k, v))
        return functional.scaled_dot_product_attention(q, own, values)

    return y, {"numpy": by_numpy, "torch": by_torch}


@program("tilelang/mhc-sinkhorn")
def sinkhorn(given: Inputs) -> tuple[Any, Peers]:
    """20 rounds on matrices of 4 x 4, whose rows and columns are divided by their sums in turn."""
    n, rounds = 4096, 20
    given.of("x", given.rng.random((n, 4, 4), "float32") + np.float32(0.1))

    def by_numpy(x: Array) -> Array:
        for _ in range(rounds):
            x = x / x.sum(2, keepdims=True)
            x = x / x.sum(1, keepdims=True)
        return x

    def by_torch(x: Any) -> Any:
        for _ in range(rounds):
            x = x / x.sum(2, keepdim=True)
            x = x / x.sum(1, keepdim=True)
        return x

    return balanced(n, 4, 4, rounds), {"numpy": by_numpy, "torch": by_torch}
