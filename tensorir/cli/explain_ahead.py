"""Error codes of what is asked for ahead of its use: prefetch and pipeline."""

from __future__ import annotations

from tensorir.cli.explain_entry import Entry

_ON_GPU = 's = tir.Schedule(C, "opencl -kind=gpu")\n'
_COPIED = _ON_GPU + 's.stage_in("A", at="C.k", scope="shared")\n'

AHEAD: dict[str, Entry] = {
    "prefetch.cpu": Entry(
        "Requests for cache lines are for CPUs; other targets copy into near memory ahead of use.",
        "# s.prefetch in a schedule for a GPU",
        "# s.stage_in(…, scope='shared')",
    ),
    "prefetch.encloses": Entry(
        "What is read later is told by a loop around the one that asks, or by that loop itself.",
        's.prefetch("B", at="C.j", ahead="C.k")',
        's.prefetch("B", at="C.k", ahead="C.j")',
    ),
    "prefetch.gather": Entry(
        "Where the tensor is read is told by another tensor, which a request ahead of time would read too, perhaps "
        "beyond its end.",
        "# s.prefetch of a table that is read at table[index[i], j]",
        "# prefetch tensors whose indices are loops",
    ),
    "prefetch.lines": Entry(
        "One iteration reads more cache lines than are worth asking for at once.",
        's.prefetch("B", at="C.i")',
        's.prefetch("B", at="C.k")',
    ),
    "prefetch.near": Entry(
        "The tensor is in block memory or registers: there is nothing to fetch.",
        's.stage_in("B", at="C.j", scope="shared")\ns.prefetch("B_shared", at="C.k")',
        's.prefetch("B", at="C.k")',
    ),
    "prefetch.not-read": Entry(
        "Nothing inside the loop reads the tensor.",
        's.prefetch("C", at="C.k")',
        's.prefetch("B", at="C.k")',
    ),
    "prefetch.room": Entry(
        "The loop is vectorized or dealt out to threads: no request can stand inside it.",
        's.reorder("C.k", "C.j").vectorize(s.split("C.j", [None, 4])[1])\ns.prefetch("A", at="C.j.1")',
        's.prefetch("A", at="C.k")',
    ),
    "pipeline.async": Entry(
        "Copies from global to shared memory that are under way on their own (cp.async) came with sm_80.",
        _COPIED + 's.pipeline("C.k", depth=3, async_=True)',
        's = tir.Schedule(C, "cuda -arch=sm_80")\ns.stage_in("A", at="C.k", scope="shared")\n'
        's.pipeline("C.k", depth=3, async_=True)',
    ),
    "memory.in-flight": Entry(
        "Memory is used while a copy to it, or a product or a store that reads it, is under way; or a register "
        "that a product adds to. Schedules cannot say that: an edited text, or a pass of the compiler, waits too "
        "late or for too few groups.",
        "# an edited text without tir_wait_copies",
        "# tir_wait_copies and then a barrier, before what was copied is read",
    ),
    "memory.unfinished": Entry(
        "A block ends while its copies or products are under way, or with a copy that nobody waited for: its "
        "shared memory is then another block's.",
        "# an edited text that ends behind tir_commit_stores",
        "# tir_wait_stores<0>() in the thread that issued the stores, before it ends",
    ),
    "barrier.misused": Entry(
        "A barrier is used as it is not made for: set up twice, arrived at more often than it was set up for, "
        "waited for with a parity other than 0 and 1, met by threads that are no whole warps, or by others than before "
        "although nothing orders the two meetings.",
        "# an edited text in which all threads arrive at a barrier for one",
        "# as many arrivals a phase as tir_barrier_init was told",
    ),
    "barrier.stuck": Entry(
        "No thread can go on, and some wait for a phase of a barrier that nobody will complete: arrivals or bytes are "
        "missing, or the parity is the other one.",
        "# an edited text that expects more bytes than its copies bring",
        "# the bytes of the whole boxes, and parities that change when the ring begins anew",
    ),
    "barrier.uninitialised": Entry(
        "A barrier is used that no thread has set up, or whose set-up is not known to who uses it.",
        "# an edited text without tir_barriers_ready",
        "# tir_barrier_init and tir_barriers_ready in one thread, then __syncthreads",
    ),
    "tma.map": Entry(
        "A copy of a tile takes a coordinate for each dimension of its map, which is of boxes or of pixels of images.",
        "# an edited text: tir_tma_load(tile, &A_map, full, k) for a matrix",
        "# tir_tma_load(tile, &A_map, full, k, m)",
    ),
    "tma.pixels": Entry(
        "A copy of pixels of images begins within the corners of its map, and reads 0 to 255 rows and columns behind.",
        "# an edited text: tir_tma_im2col(tile, &x_map, full, c, w + s, h + r, n, 0, 0), which ends rows too early",
        "# tir_tma_im2col(tile, &x_map, full, c, w, h, n, s, r)",
    ),
    "pipeline.cpu": Entry(
        "On CPUs the work-items of a block take turns on one core: a copy has nothing to run beside.",
        's.stage_in("B", at="C.k", scope="shared")\ns.pipeline("C.k")',
        's.prefetch("B", at="C.k", ahead="C.j")',
    ),
    "pipeline.depth": Entry(
        "Copies that pass through registers, which hold one tile, let two buffers take turns; copies on their own "
        "(async_=True) up to eight.",
        _COPIED + 's.pipeline("C.k", depth=3)',
        _COPIED + 's.pipeline("C.k")',
    ),
    "pipeline.lost": Entry(
        "The primitive changes a loop whose copies run ahead; lowering writes two iterations of exactly that loop.",
        _COPIED + 's.pipeline("C.k").unroll("C.k")',
        _COPIED + 's.annotate("C.k", "unroll", 2)\ns.pipeline("C.k")',
    ),
    "pipeline.no-copies": Entry(
        "Nothing in an iteration only fills shared memory from tensors that the loop does not write, for its own use.",
        _ON_GPU + 's.pipeline("C.k")',
        _COPIED + 's.pipeline("C.k")',
    ),
    "pipeline.parts": Entry(
        "The loop is cut into parts, or its body has versions: its iterations are not alike.",
        _COPIED + 's.partition("C.k", [1]).pipeline("C.k")',
        _COPIED + 's.pipeline("C.k")',
    ),
    "pipeline.serial": Entry(
        "Only a serial loop has a next iteration to copy for.",
        _COPIED + 's.unroll("C.k").pipeline("C.k")',
        _COPIED + 's.pipeline("C.k")',
    ),
    "pipeline.symbolic-extent": Entry(
        "The number of iterations is not a constant.",
        "# s.pipeline of a loop whose length depends on data",
        "# a loop of a fixed length around it",
    ),
}
