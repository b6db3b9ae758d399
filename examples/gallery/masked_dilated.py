"""A 3 x 3 convolution with holes over the pixels that a mask leaves: 56 x 56, 64 to 64 channels, channels last."""

import numpy as np

import tensorir as tir

N, H, W, C, K, D = 1, 56, 56, 64, 64, 2
X = tir.placeholder((N, H, W, C), "float32", name="X")
F = tir.placeholder((3, 3, C, K), "float32", name="F")
MASK = tir.placeholder((N, H, W), "float32", name="mask")
r = tir.reduce_axis(3, name="r")
t = tir.reduce_axis(3, name="t")
c = tir.reduce_axis(C, name="c")
kept = tir.compute(
    (N, H + 2 * D, W + 2 * D, C),
    lambda n, h, w, c: X.get(n, h - D, w - D, c, fill=0) * MASK.get(n, h - D, w - D, fill=0),
    name="kept",
)
OUTPUT = tir.compute(
    (N, H, W, K), lambda n, p, q, k: tir.sum(kept[n, p + D * r, q + D * t, c] * F[r, t, c, k], axis=(r, t, c)), name="Y"
)
TOLERANCE = 1e-3


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    kb, kv, kl = s.split("Y.k", [None, 2, 16])
    qb, qi = s.split("Y.q", [None, 14])
    s.reorder("Y.n", "Y.p", kb, qb, "Y.r", "Y.t", "Y.c", qi, kv, kl)
    row = s.fuse("Y.n", "Y.p")
    s.bind(row, "block.x")  # a row of results; what it reads is masked once
    s.compute_at("kept", "Y", row).set_scope("kept", "shared")
    s.vectorize(s.split("kept.c", [None, 16])[1])
    copy = s.stage_out("Y", at=qb, scope="register")
    s.vectorize(s.split(f"{copy.name}.k", [None, 16])[1])
    return s.unroll(qi).unroll(kv).vectorize(kl)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    mask = (rng.random((N, H, W)) < 0.5).astype("float32")
    return rng.standard_normal((N, H, W, C), "float32"), rng.standard_normal((3, 3, C, K), "float32"), mask


def by_numpy(x, f, mask):
    padded = np.zeros((N, H + 2 * D, W + 2 * D, C), "float32")
    padded[:, D:-D, D:-D] = x * mask[..., None]
    rows = [
        padded[:, D * i : D * i + H, D * j : D * j + W].reshape(-1, C) @ f[i, j] for i in range(3) for j in range(3)
    ]
    return sum(rows).reshape(N, H, W, K)


def by_torch(x, f, mask):
    import torch

    masked = x.permute(0, 3, 1, 2) * mask[:, None]
    filters = f.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.conv2d(masked, filters, padding=D, dilation=D).permute(0, 2, 3, 1)
