"""Error codes of warpgroups and their roles."""

from __future__ import annotations

from tensorir.cli.explain_entry import Entry

_HALVES = """\
H = tir.placeholder((128, 128), "float16", name="H")
G = tir.placeholder((64, 128), "float16", name="G")
r = tir.reduce_axis(128, name="r")
P = tir.compute(
    (128, 64), lambda i, j: tir.sum(tir.cast(H[i, r], "float32") * tir.cast(G[j, r], "float32"), axis=r), name="P"
)
s = tir.Schedule(P, target="cuda -arch=sm_90a")
w, i = s.split("P.i", [None, 64])
s.bind(w, "warpgroup")
ko, kk, ki = s.split("P.r", [None, 4, 16])
s.stage_out("P", at=w, scope="warp")
s.reorder(ko, kk, i, "P.j", ki)
"""
_STAGED = """\
rows = "r, x -> r, x/8 ^ r%8, x%8"
s.stage_in(H, at=ko, scope="shared", layout=rows, via="tma")
s.stage_in(G, at=ko, scope="shared", layout=rows, via="tma")
"""
_MULTIPLY = 's.tensorize(i, "wgmma.m64n64k16.f16.nt")\n'
_ROLES = 's.pipeline(ko, 2, roles={"load": 40, "compute": 160})\n'
_TURNS = 's.pipeline(ko, 2, roles={"load": 40, "compute": 160}, turns=2)\n'
_SOURCE = "s.source()"

HOPPER: dict[str, Entry] = {
    "stage-in.via": Entry(
        "A copy is made by the threads, or tile by tile by the processor's own engine for that (via='tma').",
        's.stage_in(A, "C.i", via="dma")',
        's.stage_in(A, "C.i", via="threads")',
    ),
    "stage-in.tile-copy": Entry(
        "The engine that copies whole tiles exists from sm_90 on. It goes from global to shared memory, knows arrays "
        "whose rows are multiples of 16 bytes apart, and copies rows of multiples of 16 bytes.",
        's = tir.Schedule(C, target="cuda -arch=sm_80")\ns.stage_in(A, "C.i", via="tma")',
        's = tir.Schedule(C, target="cuda -arch=sm_90a")\ns.stage_in(A, "C.i", via="tma")',
    ),
    "stage-out.via": Entry(
        "A copy leaves by the threads, or tile by tile by the processor's own engine for that (via='tma').",
        's.stage_out("C", "C.i", via="dma")',
        's.stage_out("C", "C.i", via="threads")',
    ),
    "stage-out.tile-copy": Entry(
        "The engine that copies whole tiles exists from sm_90 on. It goes from shared to global memory, knows arrays "
        "whose rows are multiples of 16 bytes apart, and copies rows of multiples of 16 bytes.",
        's = tir.Schedule(C, target="cuda -arch=sm_90a")\ns.stage_out("C", "C.i", via="tma")',
        's = tir.Schedule(C, target="cuda -arch=sm_90a")\ns.stage_out("C", "C.i", scope="shared", via="tma")',
    ),
    "bind.cluster": Entry(
        "Blocks of a cluster run at the same time and may fill each other's shared memory: 2, 4 or 8 of them, from "
        "sm_90 on.",
        's = tir.Schedule(C, target="cuda -arch=sm_90a")\nio, ii = s.split("C.i", [None, 3])\ns.bind(ii, "cluster")',
        's = tir.Schedule(C, target="cuda -arch=sm_90a")\nio, ii = s.split("C.i", [None, 2])\ns.bind(ii, "cluster")',
    ),
    "pipeline.roles": Entry(
        "Roles are of warpgroups, on sm_90a: one of its own asks for copies, those that a loop around is bound to "
        "compute. Each says how many registers a thread of it keeps; all of them together have 65536.",
        _HALVES + _STAGED + 's.pipeline(ko, 2, roles={"load": 40})',
        _HALVES + _STAGED + _ROLES,
    ),
    "pipeline.turns": Entry(
        "Sets of warpgroups take turns, each of which computes every so many-th tile of results: of one serial loop "
        "around the pipelined one, such as that of a resident block over its tiles.",
        _HALVES + _STAGED + _MULTIPLY + _TURNS,
        _HALVES.replace('w, i = s.split("P.i", [None, 64])', 't, w, i = s.split("P.i", [None, 1, 64])')
        + _STAGED + _MULTIPLY + _TURNS,
    ),
    "lower.roles": Entry(
        "Copies of whole tiles are under way on their own until a role awaits them, so the loop that they are made in "
        "has to be pipelined with roles. A kernel has one such loop, and both roles must walk what is around it alike.",
        _HALVES + _STAGED + _MULTIPLY + _SOURCE,
        _HALVES + _STAGED + _MULTIPLY + _ROLES + _SOURCE,
    ),
    "lower.tile": Entry(
        "Instructions of warpgroups find their operands in shared memory by themselves: in rows of 128 bytes whose "
        "pieces of 16 bytes are permuted by the row's number, the first row of a tile a multiple of 8.",
        _HALVES + 's.stage_in(H, at=ko, scope="shared", via="tma")\ns.stage_in(G, at=ko, scope="shared", via="tma")\n'
        + _MULTIPLY + _ROLES + _SOURCE,
        _HALVES + _STAGED + _MULTIPLY + _ROLES + _SOURCE,
    ),
}  # fmt: skip
