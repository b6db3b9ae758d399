"""Each channel's sequence with a filter of its own, four steps back: 8 x 512 channels x 1024 steps."""

import numpy as np

import tensorir as tir

N, CHANNELS, STEPS, TAPS = 8, 512, 1024, 4
X = tir.placeholder((N, CHANNELS, STEPS), "float32", name="X")
F = tir.placeholder((CHANNELS, TAPS), "float32", name="F")
r = tir.reduce_axis(TAPS, name="r")
OUTPUT = tir.compute(
    (N, CHANNELS, STEPS),
    lambda n, c, t: tir.sum(X.get(n, c, t + r - (TAPS - 1), fill=0) * F[c, r], axis=r),
    name="Y",
)
TOLERANCE = 1e-5


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    tile, lane = s.split("Y.t", [None, 16])
    s.reorder("Y.n", "Y.c", tile, "Y.r", lane)
    s.bind(s.split(s.fuse("Y.n", "Y.c"), [None, 16])[0], "block.x")  # sixteen channels a block
    copy = s.stage_out("Y", at=tile, scope="register")
    s.vectorize(f"{copy.name}.t")
    s.unroll("Y.r").vectorize(lane)
    return s.partition(tile, [1])  # the first vector alone reads what is before the sequence


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((N, CHANNELS, STEPS), "float32"), rng.standard_normal((CHANNELS, TAPS), "float32")


def by_numpy(x, f):
    padded = np.zeros((N, CHANNELS, STEPS + TAPS - 1), "float32")
    padded[..., TAPS - 1 :] = x
    return sum(padded[..., i : i + STEPS] * f[:, i : i + 1] for i in range(TAPS))


def by_torch(x, f):
    import torch

    return torch.nn.functional.conv1d(x, f[:, None], padding=TAPS - 1, groups=CHANNELS)[..., :STEPS]
