"""Matrix products on tensor cores, as schedules of the primitives."""

from __future__ import annotations

import numpy as np

import tensorir as tir

KINDS = {"float16": "f16", "bfloat16": "bf16"}


def declared(m, n, k, order="nt", dtype="float16", sums="float32", halves=""):
    """out = 2 a b, with a as (m, k) or (k, m) and b as (k, n) or (n, k).

    halves: the result has 16 bits, as (m, n) ("n") or (n, m) ("t")
    """
    a = tir.placeholder((m, k) if order[0] == "n" else (k, m), dtype, name="a")
    b = tir.placeholder((k, n) if order[1] == "n" else (n, k), dtype, name="b")
    r = tir.reduce_axis(k, name="k")
    c = tir.compute(
        (m, n),
        lambda i, j: tir.sum(
            tir.cast(a[i, r] if order[0] == "n" else a[r, i], sums)
            * tir.cast(b[r, j] if order[1] == "n" else b[j, r], sums),
            axis=r,
        ),
        name="c",
    )
    if halves == "t":
        return tir.compute((n, m), lambda j, i: tir.cast(c[i, j] * 2.0, dtype), name="out")
    return tir.compute((m, n), lambda i, j: tir.cast(c[i, j] * 2.0, dtype) if halves else c[i, j] * 2.0, name="out")


def blocked(m, n, k, order="nt", dtype="float16", block=(64, 64, 32), warp=(32, 32), target="cuda -arch=sm_80",
            sums="float32", terms=16, halves=""):  # fmt: skip
    """Blocks of warps, the sums in fragments, both operands staged in shared memory. terms: of an instruction"""
    s = tir.Schedule(declared(m, n, k, order, dtype, sums, halves), target=target)
    bi, wi, i = s.split("out.i", [None, block[0] // warp[0], warp[0]])
    bj, wj, j = s.split("out.j", [None, block[1] // warp[1], warp[1]])
    s.reorder(bi, bj, wi, wj, i, j)
    s.bind(bi, "block.y").bind(bj, "block.x").bind(wi, "warp.y").bind(wj, "warp.x")
    s.compute_at("c", wj)
    ko, _, *halves, kk = s.split("c.k", [None, block[2] // 16, *([2] if terms == 8 else []), terms])
    i0, i1 = s.split("c.i", [None, 16])
    j0, j1 = s.split("c.j", [None, 8])
    s.reorder(ko, "c.k.1", *halves, i0, j0, i1, j1, kk)
    s.stage_in("a", at=ko, scope="shared", vector=8)
    s.stage_in("b", at=ko, scope="shared", vector=8)
    return s


def fragments(s, order="nt", dtype="float16", product=None):
    """What ``blocked`` staged, brought into the registers of warps by ldmatrix, and multiplied by mma."""
    for name, how in (("a", order[0]), ("b", order[1])):
        copy = s.stage_in(f"{name}_shared", at="c.k.1", scope="warp").name
        r0, r1 = s.split(f"{copy}.ax0", [None, 16])
        c0, c1 = s.split(f"{copy}.ax1", [None, 16])
        s.reorder(r0, c0, r1, c1).tensorize(r1, f"ldmatrix.{KINDS[dtype]}.{name}.{how}")
    return s.tensorize("c.i.1", f"mma.{product or f'm16n8k16.{KINDS[dtype]}'}.{order}")


def given(m, n, k, order="nt", dtype="float16", seed=0):
    """Small integers, and the exact product."""
    import ml_dtypes

    rng = np.random.default_rng(seed)
    a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    arrays = [(a if order[0] == "n" else a.T).astype(kind), (b if order[1] == "n" else b.T).astype(kind)]
    return [np.ascontiguousarray(x) for x in arrays], (2.0 * (a @ b)).astype(np.float32)


ROWS = "r, x -> x/{0}, r, x/{1}%8 ^ r%8, x%{1}"
"""Storage in rows of 128 bytes, swizzled, for elements of which 16 bytes have ``{1}``."""


def specialised(m, n, k, order="nt", dtype="float16", block=(128, 64), depth=3, blocks=None, roles=None, store=False,
                cluster=1, turns=1):  # fmt: skip
    """A block of warpgroups, 64 rows each, and one more that asks for the tiles of the next 64 terms.

    blocks: resident ones that walk all tiles, None for one block a tile;  store: the result leaves in whole tiles
    cluster: blocks that share the tiles of b;  turns: sets of warpgroups, each of which computes every so many-th tile
    """
    s = tir.Schedule(declared(m, n, k, order, dtype), target="cuda -arch=sm_90a")
    bi, wi, i = s.split("out.i", [None, block[0] // 64, 64])
    bj, j = s.split("out.j", [None, block[1]])
    if cluster > 1:
        bi, rank = s.split(bi, [None, cluster])
        s.bind(rank, "cluster")
        s.reorder(bi, bj, rank, wi, i, j)
    else:
        s.reorder(bi, bj, wi, i, j)
    tile = s.fuse(bi, bj)
    if blocks is not None:
        _, tile = s.split(tile, [None, blocks])
    s.bind(tile, "block.x").bind(wi, "warpgroup")
    if store:
        s.stage_out("out", at=wi, scope="shared", layout=ROWS.format(32, 4), via="tma")
    s.compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, 4, 16])
    s.reorder(ko, kk, "c.i", "c.j", ki)
    for name in "ab":
        s.stage_in(name, at=ko, scope="shared", layout=ROWS.format(64, 8), via="tma")
    s.tensorize("c.i", f"wgmma.m64n{block[1]}k16.{KINDS[dtype]}.{order}").unroll(kk)
    return s.pipeline(ko, depth, roles=roles or {"load": 32 if turns > 2 else 40, "compute": 160}, turns=turns)


def held(m, n, k, element, given=("bfloat16",), block=(128, 64), depth=3, near=False):
    """out = 2 f(a) b^T, where f is computed in the registers of warpgroups on the way from shared memory.

    element: ``f(a, i, k, *more)`` of a tensor a of the first type ``given`` and vectors over k of the others
    near: elements come from shared memory in pairs, and f makes pairs of them
    """
    a, b = tir.placeholder((m, k), given[0], name="a"), tir.placeholder((n, k), "bfloat16", name="b")
    more = [tir.placeholder((k,), t, name=f"v{at}") for at, t in enumerate(given[1:])]
    f = tir.compute((m, k), lambda i, k: element(a, i, k, *more), name="f")
    r = tir.reduce_axis(k, name="k")
    c = tir.compute(
        (m, n), lambda i, j: tir.sum(tir.cast(f[i, r], "float32") * tir.cast(b[j, r], "float32"), axis=r), name="c"
    )
    s = tir.Schedule(tir.compute((m, n), lambda i, j: c[i, j] * 2.0, name="out"), target="cuda -arch=sm_90a")
    terms = 64 if given[0] == "bfloat16" else 128  # 128 bytes of a
    bi, wi, i = s.split("out.i", [None, block[0] // 64, 64])
    bj, j = s.split("out.j", [None, block[1]])
    s.reorder(bi, bj, wi, i, j).bind(s.fuse(bi, bj), "block.x").bind(wi, "warpgroup")
    s.compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, terms // 16, 16])
    s.reorder(ko, kk, "c.i", "c.j", ki)
    s.compute_at("f", ko).set_scope("f", "warp")
    s.stage_in("a", at=ko, scope="shared", layout=ROWS.format(terms, terms // 8), via="tma")
    s.stage_in("b", at=ko, scope="shared", layout=ROWS.format(64, 8), via="tma")
    if near:
        whole, _ = s.split("f.i", [1, None])
        copy = s.stage_in("a_shared", at=whole, scope="warp").name
        for axis in (f"{copy}.ax1", "f.k"):
            s.vectorize(s.split(axis, [None, 2])[1])
    s.tensorize("c.i", f"wgmma.m64n{block[1]}k16.bf16.nt.rs").unroll(kk)
    return s.pipeline(ko, depth, roles={"load": 40, "compute": 232})
