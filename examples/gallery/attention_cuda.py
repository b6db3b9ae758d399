"""Attention in float16 on tensor cores (sm_80): both products by mma.sync, one kernel. Not yet run on a GPU."""

import numpy as np

import tensorir as tir


def wide(x):
    """In the type of the sums."""
    return tir.cast(x, "float32")


def declare(heads, places, width, score=lambda s, h, i, j: s):
    Q, K, V = (tir.placeholder((heads, places, width), "float16", name=n) for n in "QKV")
    d = tir.reduce_axis(width, name="d")
    j1, j2, j3 = (tir.reduce_axis(places, name="j") for _ in range(3))
    square, scale = (heads, places, places), width**-0.5
    S = tir.compute(square, lambda h, i, j: tir.sum(wide(Q[h, i, d]) * wide(K[h, j, d]), axis=d), name="S")
    T = tir.compute(square, lambda h, i, j: score(S[h, i, j] * scale, h, i, j), name="T")
    m = tir.compute((heads, places), lambda h, i: tir.max(T[h, i, j1], axis=j1), name="m")
    P = tir.compute(square, lambda h, i, j: tir.cast(tir.exp(T[h, i, j] - m[h, i]), "float16"), name="P")
    total = tir.compute((heads, places), lambda h, i: tir.sum(wide(P[h, i, j2]), axis=j2), name="l")
    O = tir.compute(Q.shape, lambda h, i, c: tir.sum(wide(P[h, i, j3]) * wide(V[h, j3, c]), axis=j3), name="O")
    return tir.compute(Q.shape, lambda h, i, c: tir.cast(O[h, i, c] / total[h, i], "float16"), name="Y")


def schedule(output, target="cuda -arch=sm_80", warps=4, keys=64, masked=False):
    """masked: whether the score has a mask, which may leave out whole pieces of the keys."""
    s = tir.Schedule(output, target)
    # a block: 16 queries of a head for each warp, whose sums stay in its registers
    block, warp, i = s.split("O.i", [None, warps, 16])
    piece, step, j = s.split("O.j", [None, keys // 16, 16])
    c, c8 = s.split("O.c", [None, 8])
    s.reorder("O.h", block, piece, warp, step, c, i, c8, j).bind(warp, "warp.y")
    s.rolling("m", into=("l", "O"), at=piece)
    s.compute_inline("T").compute_at("S", piece).reverse_compute_at("Y", block)
    s.bind(block, "block.x").bind("O.h", "block.y").bind(s.split("Y.i", [None, 16])[0], "warp.y")
    s.set_scope("O", "warp")
    for tensor in ("S", "P", "m", "l", "m_old", "m_ref", "m_scale"):
        s.set_scope(tensor, "shared")
    # scores: a warp has 16 queries, and rows of S are read by a thread each
    own, i = s.split("S.i", [None, 16])
    j8, j = s.split("S.j", [None, 8])
    d16, d = s.split("S.d", [None, 16])
    s.reorder(own, d16, j8, i, j, d).bind(own, "warp.y")
    s.stage_out("S", at=own, scope="warp")
    s.layout("S", pad=1)
    rows = "h, r, x -> h, r, x/8 ^ r%8, x%8"  # eight rows' pieces of 16 bytes are in different banks
    q, k, v = (s.stage_in(n, at=at, scope="shared", vector=8, layout=rows).name
               for n, at in (("Q", block), ("K", piece), ("V", piece)))  # fmt: skip
    s.layout("P", rows)
    for tensor, at, tile in ((q, d16, "a.n"), (k, d16, "b.t"), ("P", step, "a.n"), (v, step, "b.n")):
        copy = s.stage_in(tensor, at=at, scope="warp").name
        r, r16 = s.split(f"{copy}.ax1", [None, 16])
        x, x16 = s.split(f"{copy}.ax2", [None, 16])
        s.reorder(r, x, r16, x16).tensorize(r16, f"ldmatrix.f16.{tile}")
    s.tensorize(i, "mma.m16n8k16.f16.nt").tensorize("O.i.2", "mma.m16n8k16.f16.nn")
    for name in ("m.init", "l.init", "m.old", "m", "m.ref", "m.scale", "l.rescale", "l"):
        s.bind(f"{name}.i", "threads")
    s.bind(s.fuse("P.i", "P.j"), "threads")
    return s.skip(piece) if masked else s


def by_numpy(q, k, v):
    scores = q.astype("float32") @ k.astype("float32").transpose(0, 2, 1) * q.shape[-1] ** -0.5
    e = np.exp(scores - scores.max(axis=2, keepdims=True))
    return (e @ v.astype("float32") / e.sum(axis=2, keepdims=True)).astype("float16")
