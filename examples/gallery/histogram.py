"""How often each of 256 numbers occurs among a million bytes: each part of them is counted in bins of its own."""

import numpy as np

import tensorir as tir

LENGTH, BINS, PARTS = 1 << 20, 256, 8


def declare(length=LENGTH):
    X = tir.placeholder((length,), "uint8", name="X")
    return tir.scatter((BINS,), over=(length,), index=lambda t: (X[t],), value=lambda t: 1, name="Y")


OUTPUT = declare()


def schedule(output=OUTPUT, target="opencl"):
    s = tir.Schedule(output, target=target).redeclare("private_scatter", parts=PARTS)
    s.bind("Y_part.part", "block.x")
    b, lane = s.split("Y.i", [None, 16])
    return s.reorder(b, "Y.part", lane).bind(b, "block.x").vectorize(lane)


def inputs(seed=0, length=LENGTH):
    return (np.random.default_rng(seed).integers(0, BINS, length).astype(np.uint8),)


def by_numpy(x):
    return np.bincount(x, minlength=BINS)


def by_torch(x):
    import torch

    return torch.bincount(x, minlength=BINS)
