"""softmax(Q K^T / 8) V for 8 heads of 256 places with 64 numbers each."""

import numpy as np

import tensorir as tir

HEADS, PLACES, WIDTH = 8, 256, 64
Q, K, V = (tir.placeholder((HEADS, PLACES, WIDTH), "float32", name=n) for n in "QKV")
d = tir.reduce_axis(WIDTH, name="d")
m, t, u = (tir.reduce_axis(PLACES, name=n) for n in "mtu")
S = tir.compute((HEADS, PLACES, PLACES), lambda h, i, j: tir.sum(Q[h, i, d] * K[h, j, d], axis=d), name="S")
largest = tir.compute((HEADS, PLACES), lambda h, i: tir.max(S[h, i, m], axis=m), name="largest")
E = tir.compute((HEADS, PLACES, PLACES), lambda h, i, j: tir.exp((S[h, i, j] - largest[h, i]) / 8), name="E")
total = tir.compute((HEADS, PLACES), lambda h, i: tir.sum(E[h, i, t], axis=t), name="total")
O = tir.compute((HEADS, PLACES, WIDTH), lambda h, i, c: tir.sum(E[h, i, u] * V[h, u, c], axis=u), name="O")
OUTPUT = tir.compute((HEADS, PLACES, WIDTH), lambda h, i, c: O[h, i, c] / total[h, i], name="Y")
TOLERANCE = 1e-4


def schedule():
    s = tir.Schedule(OUTPUT, target="opencl")
    # a block: 16 places of a head, whose scores with all others stay in shared memory
    s.bind(s.fuse("Y.h", s.split("Y.i", [None, 16])[0]), "block.x")
    s.vectorize(s.split("Y.c", [None, 16])[1])
    at = s["Y"].axes[0]
    for stage in ("O", "total", "E", "largest", "S"):  # consumers first: each reads the next
        s.compute_at(stage, "Y", at).set_scope(stage, "shared")
    for stage, inner, rows, across in (("O", "u", 8, "c"), ("S", "d", 8, "j")):
        j, lane = s.split(f"{stage}.{across}", [None, 16])
        i, several = s.split(f"{stage}.i", [None, rows])
        s.reorder(i, j, f"{stage}.{inner}", several, lane)
        s.stage_out(stage, at=j, scope="register")
        s.unroll(several).vectorize(lane)
    s.vectorize(s.split("E.j", [None, 16])[1])
    return s


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((HEADS, PLACES, WIDTH), "float32") for _ in range(3))


def by_numpy(q, k, v):
    scores = q @ k.transpose(0, 2, 1) / 8
    e = np.exp(scores - scores.max(axis=2, keepdims=True))
    return e @ v / e.sum(axis=2, keepdims=True)


def by_torch(q, k, v):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
