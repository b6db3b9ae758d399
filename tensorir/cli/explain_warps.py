"""Error codes of what the threads of a warp do together."""

from __future__ import annotations

from tensorir.cli.explain_entry import Entry

_HALVES = """\
H = tir.placeholder((64, 64), "float16", name="H")
G = tir.placeholder((64, 64), "float16", name="G")
r = tir.reduce_axis(64, name="r")
P = tir.compute(
    (64, 64), lambda i, j: tir.sum(tir.cast(H[i, r], "float32") * tir.cast(G[j, r], "float32"), axis=r), name="P"
)
Q = tir.compute((64, 64), lambda i, j: P[i, j] + 1, name="Q")
s = tir.Schedule(Q, target="cuda -arch=sm_80")
w, i = s.split("Q.i", [4, 16])
s.reorder(w, i, "Q.j")
"""
_TILES = """\
s.compute_at("P", w)
ko, ki = s.split("P.r", [None, 16])
jo, ji = s.split("P.j", [None, 8])
s.reorder(ko, jo, "P.i", ji, ki)
"""
_COPIES = """\
for name in "HG":
    s.stage_in(name, at=ko, scope="warp")
"""
_HELD = 's.bind(w, "warp.x").compute_at("P", w).set_scope("P", "warp")\n'
_MULTIPLY = 's.tensorize("P.i", "mma.m16n8k16.f16.nt")\n'

WARPS: dict[str, Entry] = {
    "bind.warp": Entry(
        "Only CUDA has instructions that the threads of a warp run together, so only there a loop can be a warp's.",
        's.bind("C.i", "warp.x")',
        's = tir.Schedule(C, target="cuda")\nio, _ = s.split("C.i", [None, 4])\ns.bind(io, "warp.x")',
    ),
    "bind.warp-or-thread": Entry(
        "A kernel deals its iterations out to threads or to whole warps: what a warp does, its 32 threads share.",
        's = tir.Schedule(C, target="cuda")\nio, ii = s.split("C.i", [None, 4])\n'
        's.bind(io, "warp.x").bind("C.j", "thread.x")',
        's = tir.Schedule(C, target="cuda")\nio, ii = s.split("C.i", [None, 4])\ns.bind(io, "warp.x")',
    ),
    "bind.vthread": Entry(
        "Virtual threads take turns in a real one, statement by statement. So they all have the same loops and bodies, "
        "they are written out one by one, and what a warp's threads hold together is not theirs.",
        'io, ii = s.split("C.i", [None, 24], tail="peel")\ns.bind(io, "vthread")',
        'io, ii = s.split("C.i", [None, 24])\ns.bind(io, "vthread")',
    ),
    "lower.vthread": Entry(
        "Virtual threads go through the loops inside them in step, and each has a copy of the registers that it fills "
        "in its own way. These have no layout, their cells lie equally far apart in all loops, and no version of a "
        "body is for some of the threads only.",
        'io, ii = s.split("C.i", [None, 4])\ns.bind(io, "vthread").specialize(ii, f"{io} < 2")\ns.source()',
        'io, ii = s.split("C.i", [None, 4])\ns.unroll(io).specialize(ii, f"{io} < 2")\ns.source()',
    ),
    "tensorize.warp": Entry(
        "The threads of a warp run this instruction together; a loop around it must be bound to warp.x or warp.y.",
        _HALVES + _TILES + _COPIES + _MULTIPLY,
        _HALVES + 's.bind(w, "warp.x")\n' + _TILES + _COPIES + _MULTIPLY,
    ),
    "tensorize.scope": Entry(
        "The instruction finds each operand in one sort of memory: fragments in the registers of a warp, rows that "
        "lanes point to in shared memory.",
        _HALVES + 's.bind(w, "warp.x")\n' + _TILES + _MULTIPLY,
        _HALVES + 's.bind(w, "warp.x")\n' + _TILES + _COPIES + _MULTIPLY,
    ),
    "lower.fragment": Entry(
        "Instructions say which lane of a warp holds which element. Two of them disagree about a buffer, or single "
        "elements of it are touched in loops that do not run over whole parts of that, or the rows that lanes point to "
        "are not stored together.",
        _HALVES
        + 's.bind(w, "warp.x")\n'
        + _TILES
        + _COPIES
        + _MULTIPLY
        + 's.split("Q.i.1", [None, 3], tail="guard")\ns.source()',
        _HALVES + 's.bind(w, "warp.x")\n' + _TILES + _COPIES + _MULTIPLY + 's.split("Q.i.1", [None, 8])\ns.source()',
    ),
    "layout.lanes": Entry(
        "The pieces before the | number the 32 lanes of a warp, no more and no fewer; *4 stands for four lanes that "
        "all hold an element.",
        _HALVES + _HELD + 's.layout("P", "i, j -> i%16 | i/16, j")',
        _HALVES + _HELD + 's.layout("P", "i, j -> i%16, j%2 | i/16, j/2")',
    ),
    "intrin.fragment": Entry(
        "What an instruction of warps says about its operands is not a dealing out to 32 lanes: every operand needs "
        "one, written as 'i, j -> pieces that number the lane | pieces that number the register'.",
        "from tensorir.intrin.intrin import Intrin, meaning\n"
        'x = tir.placeholder((64,), name="x")\ny = tir.compute((64,), lambda n: x[n], name="y")\n'
        'Intrin("my.copy", meaning(y), {"cuda": "*{y} = *{x};"}, "none", fragments={"x": "n -> n%32 | n/32"})',
        "from tensorir.intrin.intrin import Intrin, meaning\n"
        'x = tir.placeholder((64,), name="x")\ny = tir.compute((64,), lambda n: x[n], name="y")\n'
        'held = "n -> n%32 | n/32"\n'
        'Intrin("my.copy", meaning(y), {"cuda": "*{y} = *{x};"}, "none", fragments={"x": held, "y": held})',
    ),
    "warp.divergent": Entry(
        "Some threads of a warp reach an instruction that all of them run together. No schedule says that: a pass of "
        "the compiler, or an edited text, is wrong.",
        "# an instruction of warps inside a condition that tells lanes apart",
        "# conditions that are the same for the whole warp",
    ),
    "warp.registers": Entry(
        "Warpgroups hand registers over to each other: each asks for a multiple of 8 from 24 to 256 a thread, and "
        "for no more than a block has together.",
        "# an edited text with tir_registers_up<300>()",
        "# tir_registers_down<40>() for one warpgroup that copies, tir_registers_up<232>() for two that multiply",
    ),
    "wgmma.operand": Entry(
        "A product of a warpgroup was given something else than a tile of shared memory with a swizzle of 128 "
        "bytes, or its threads describe different tiles.",
        "# an edited text with a descriptor that depends on the lane",
        "# tir_descriptor(tile, leading, stride), the same in all threads, and sums of it along k",
    ),
    "fence.registers": Entry(
        "A product of a warpgroup adds to registers, or reads some, that its threads have used since their last "
        "fence. The result may be right in the emulator; a GPU need not see what was put there.",
        "# an edited text that clears the sums behind tir_wgmma_fence",
        "# tir_wgmma_fence between the last use of the registers and the product",
    ),
    "hold.registers": Entry(
        "Threads use the results of products of warpgroups, or give them registers, with nothing that tells the "
        "compiler so: it may move the use in front of the wait, or behind the fence.",
        "# an edited text that reads the sums right behind tir_wgmma_wait<0>()",
        "# tir_hold(sums) behind the wait, and in front of tir_wgmma_fence",
    ),
    "fence.async": Entry(
        "Products of warpgroups and copies of tiles use shared memory past the caches of the threads. What a "
        "thread wrote there takes a fence of that thread, and then a barrier.",
        "# an edited text that fills a tile and stores it with tir_tma_store behind a barrier alone",
        "# tir_async_fence in each thread that wrote, in front of that barrier",
    ),
    "emulate.instruction": Entry(
        "The emulator of CUDA text runs the meaning of an instruction that it does not know, in place of a function "
        "that the instruction brings along; so its text must be one call of that function on all operands.",
        "# emit={'cuda': '{d_value} = my_function({a_value});'} with a prelude",
        "# emit={'cuda': 'my_function({d}, {a}, {b});'}, prelude={'cuda': 'static __device__ void my_function(...) …'}",
    ),
    "cluster.rank": Entry(
        "A block arrives at a barrier of, or copies a tile for, a block that its cluster has not.",
        "# an edited text: tir_tma_multicast(tile, &B_map, full, 7, k, n) in clusters of two",
        "# masks of one bit for each block of __cluster_dims__, ranks from 0",
    ),
    "cluster.ended": Entry(
        "A block of a cluster may end, and its shared memory go to another, before a thread of a second block has "
        "arrived at its barrier. The result may be right in the emulator; on a GPU the kernel may trap.",
        "# an edited text with no tir_sync_cluster at its end",
        "# tir_sync_cluster in all threads before they end, or a wait for the last phase of that barrier",
    ),
    "memory.misaligned": Entry(
        "An access or an instruction has an address that is no multiple of the bytes it moves; on a GPU it would trap.",
        "# an edited text that moves the rows of ldmatrix by 8 bytes",
        "# rows that begin at multiples of 16 bytes",
    ),
}
"""Code to Entry."""
