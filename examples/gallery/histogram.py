"""How often each of 256 numbers occurs among a million bytes: each number looks at all of them, and counts in bytes."""

import numpy as np

import tensorir as tir

LENGTH, BINS, PARTS, FEW = 1 << 20, 256, 64, 128
PIECES = LENGTH // PARTS // FEW
X = tir.placeholder((LENGTH,), "uint8", name="X")
i, q, p = (tir.reduce_axis(n, name=name) for n, name in ((FEW, "i"), (PIECES, "q"), (PARTS, "p")))
few = tir.compute(  # as many as a byte can count
    (PARTS, PIECES, BINS),
    lambda p, q, b: tir.sum(tir.equal(X[(p * PIECES + q) * FEW + i], b.astype("uint8")).astype("uint8"), axis=i),
    name="few",
)
parts = tir.compute((PARTS, BINS), lambda p, b: tir.sum(few[p, q, b].astype("int32"), axis=q), name="parts")
OUTPUT = tir.compute((BINS,), lambda b: tir.sum(parts[p, b], axis=p), name="Y")


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    s.bind("parts.p", "block.x")  # a block counts in a part of the bytes
    group, lane = s.split("parts.b", [None, 16])
    s.reorder("parts.p", "parts.q", group, lane)
    copy = s.stage_out("parts", at="parts.p", scope="register")
    s.vectorize(s.split(f"{copy.name}.b", [None, 16])[1])
    s.unroll(group).vectorize(lane)
    s.compute_at("few", "parts.q").set_scope("few", "register")
    group, lane = s.split("few.b", [None, 16])
    s.reorder("few.i", group, lane).unroll(group).vectorize(lane)
    b, lane = s.split("Y.b", [None, 16])
    return s.reorder(b, "Y.p", lane).bind(b, "block.x").vectorize(lane)


def inputs(seed=0):
    return (np.random.default_rng(seed).integers(0, BINS, LENGTH).astype(np.uint8),)


def by_numpy(x):
    return np.bincount(x, minlength=BINS)


def by_torch(x):
    import torch

    return torch.bincount(x, minlength=BINS)
