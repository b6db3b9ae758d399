"""softmax(score(Q K^T / sqrt(width))) V for 8 heads of 256 places with 64 numbers each, the keys read once."""

import numpy as np

import tensorir as tir

HEADS, PLACES, WIDTH = 8, 256, 64
TOLERANCE = 1e-4


def declare(heads=HEADS, places=PLACES, width=WIDTH, score=lambda s, h, i, j: s):
    """score: what becomes of the product s of query i and key j of head h before the softmax."""
    Q, K, V = (tir.placeholder((heads, places, width), "float32", name=n) for n in "QKV")
    d = tir.reduce_axis(width, name="d")
    j1, j2, j3 = (tir.reduce_axis(places, name="j") for _ in range(3))
    square, scale = (heads, places, places), width**-0.5
    S = tir.compute(square, lambda h, i, j: tir.sum(Q[h, i, d] * K[h, j, d], axis=d), name="S")
    T = tir.compute(square, lambda h, i, j: score(S[h, i, j] * scale, h, i, j), name="T")
    m = tir.compute((heads, places), lambda h, i: tir.max(T[h, i, j1], axis=j1), name="m")
    P = tir.compute(square, lambda h, i, j: tir.exp(T[h, i, j] - m[h, i]), name="P")
    total = tir.compute((heads, places), lambda h, i: tir.sum(P[h, i, j2], axis=j2), name="l")
    O = tir.compute(Q.shape, lambda h, i, c: tir.sum(P[h, i, j3] * V[h, j3, c], axis=j3), name="O")
    return tir.compute(Q.shape, lambda h, i, c: O[h, i, c] / total[h, i], name="Y")


OUTPUT = declare()


def schedule(output=OUTPUT, target="opencl", rows=64, keys=64, tile=8, lanes=16, vectors=2, masked=False):
    """masked: whether the score has a mask, which may leave out whole pieces of the keys."""
    s = tir.Schedule(output, target)
    # a block: 64 queries of a head; from 64 keys to the next, m, l and O are repaired
    block, i = s.split("O.i", [None, rows])
    piece, j = s.split("O.j", [None, keys])
    s.reorder("O.h", block, piece, i, "O.c", j)
    s.rolling("m", into=("l", "O"), at=piece)
    s.compute_at("T", piece).compute_at("S", piece).reverse_compute_at("Y", block)
    s.bind(block, "block.x").bind("O.h", "block.y")
    # queries in the lanes: nothing is packed, and the maximum and the sums of a row stay in their lane
    for tensor in "STPO":
        s.layout(tensor, "h, i, k -> h, k, i")
    s.stage_in("Q", at=block, scope="register", layout="h, i, d -> h, d, i")
    for stage, queries, along, inner in (
        ("S", "S.i", "S.j", "S.d"),
        ("O", i, "O.c", j),
    ):  # both products: register tiles
        k0, k1 = s.split(along, [None, tile])
        i0, several, lane = s.split(queries, [None, vectors, lanes])
        s.reorder(k0, i0, inner, k1, several, lane).unroll(k1).unroll(several).vectorize(lane)
        s.stage_out(stage, at=i0, scope="register")
        v, lane = s.split(f"{stage}.out.i", [None, lanes])
        last = s.loops(f"{stage}.out")[-1]
        s.reorder(last, v, lane).unroll(last).unroll(v).vectorize(lane)
    for name in ("m", "T", "P", "l"):
        v, lane = s.split(f"{name}.i", [None, lanes])
        s.reorder(v, f"{name}.j", lane).vectorize(lane)
    for name in ("m.init", "l.init", "m.old", "m.ref", "m.scale", "l.rescale"):
        s.vectorize(s.split(f"{name}.i", [None, lanes])[1])
    for name in ("O.init", "O.rescale"):
        v, lane = s.split(f"{name}.i.1", [None, lanes])
        s.reorder(f"{name}.c", v, lane).vectorize(lane)
    v, lane = s.split("Y.i", [None, lanes])
    s.reorder("Y.c", v, lane)
    return s.skip(piece) if masked else s


INF = float("inf")
SCORES = {
    "causal": lambda s, h, i, j: tir.where(j <= i, s, -INF),
    "ALiBi": lambda s, h, i, j: s - tir.cast(i - j, "float32") * 2.0 ** -(h + 1.0),
    "sliding window": lambda s, h, i, j: tir.where(tir.all_(j <= i, i - j < 100), s, -INF),
    "soft-cap": lambda s, h, i, j: 30 * tir.tanh(s / 30),
    "documents": lambda s, h, i, j: tir.where(tir.equal(i // 96, j // 96), s, -INF),
}
"""Variants, each by its own lambda; the schedule stays."""
MASKED = ("causal", "sliding window", "documents")
"""Those of which pieces of the keys are skipped: no query of a block sees one of them."""


def inputs(seed=0, shape=(HEADS, PLACES, WIDTH)):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape, "float32") for _ in range(3))


def by_numpy(q, k, v, change=lambda s, h, i, j: s):
    at = np.ogrid[: q.shape[0], : q.shape[1], : k.shape[1]]
    scores = change(q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5, *at)
    e = np.exp(scores - scores.max(axis=2, keepdims=True))
    return e @ v / e.sum(axis=2, keepdims=True)


def by_torch(q, k, v):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
