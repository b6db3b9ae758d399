"""How often each of 256 numbers occurs among a million bytes: each number looks at all of them."""

import numpy as np

import tensorir as tir

LENGTH, BINS, PARTS = 1 << 20, 256, 64
X = tir.placeholder((LENGTH,), "uint8", name="X")
i = tir.reduce_axis(LENGTH // PARTS, name="i")
p = tir.reduce_axis(PARTS, name="p")
parts = tir.compute(
    (PARTS, BINS),
    lambda p, b: tir.sum(tir.cast(tir.equal(tir.cast(X[p * (LENGTH // PARTS) + i], "int32"), b), "int32"), axis=i),
    name="parts",
)
OUTPUT = tir.compute((BINS,), lambda b: tir.sum(parts[p, b], axis=p), name="Y")


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    s.bind("parts.p", "block.x")  # a block counts in a part of the bytes
    several, group, lane = s.split("parts.b", [None, 8, 16])
    s.reorder("parts.p", several, "parts.i", group, lane)
    copy = s.stage_out("parts", at=several, scope="register")
    s.vectorize(s.split(f"{copy.name}.b", [None, 16])[1])
    s.unroll(group).vectorize(lane)
    b, lane = s.split("Y.b", [None, 16])
    return s.reorder(b, "Y.p", lane).bind(b, "block.x").vectorize(lane)


def inputs(seed=0):
    return (np.random.default_rng(seed).integers(0, BINS, LENGTH).astype(np.uint8),)


def by_numpy(x):
    return np.bincount(x, minlength=BINS)


def by_torch(x):
    import torch

    return torch.bincount(x, minlength=BINS)
