"""Analytical performance model: seconds of a tiled matrix product on a GPU, from its tiling alone.

Blocks copy tiles of both operands into shared memory, one reduction step at a time, and multiply from there. A step
takes as long as its busiest resource: multiply-adds, issue slots, shared memory, or L2 bandwidth. If warps do these one
after another, they also wait for barriers, copies and first operands, which other blocks on the multiprocessor
partly hide. With too few loads in flight, latency counts instead. Blocks run in waves; L2 and DRAM bandwidth bound the
whole kernel. The model orders configurations; measuring decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorir.gpu_devices import Gpu

SPARE_REGISTERS = 24
"""Registers per thread for addresses and counters."""
OVERLAP_EXPONENT = 4.0
"""Exponent p of the p-norm of concurrent parts (``overlapped``): two equal ones take 1.19 times one."""
IN_ORDER_OVERLAP = 3.0
"""Exponent for warps that issue in order, of parts of one block and of blocks side by side: two equal parts take 1.26
times one of them. A hardware profile of mma.sync with two blocks (mma_ablation.md of
waynehacking8/blackwell-tensorcore-kernels) has 2.35 times the cycles that the tensor cores of one of them need."""
LOOP_INSTRUCTIONS, COPY_SLOTS = 16.0, 18.0
"""Instructions per warp and step for counters, waits and branches; and per 16-byte copy, with its addresses and bounds
(our mma.sync kernels: 437 in addition to the products and reads of a step with 24 copies)."""
FRAGMENT_TERMS = {"f16": 16, "tf32": 8, "s8": 32, "f8": 32}
"""{kind of operands: reduction terms (k) of one tensor-core instruction}."""


@dataclass(frozen=True)
class MatrixProduct:
    """``batch`` products of (m, k) and (k, n). kind: "f32" on CUDA cores, or "f16", "f8", "tf32", "s8" on tensor cores.

    terms: hardware products per product (3 in 3xTF32);  adds: the result is added to the output, which is read
    apart: shares of both operands' elements that are distinct in memory (pixels under several filter taps are not)
    taps:  terms of a step that read the same copied element of the first operand, as in a convolution window
    """

    m: int
    n: int
    k: int
    batch: int = 1
    kind: str = "f16"
    in_bytes: int = 2
    out_bytes: int = 2
    terms: int = 1
    adds: bool = False
    apart: tuple[float, ...] = (1.0, 1.0)
    taps: float = 1.0


@dataclass(frozen=True)
class Tiles:
    """Tiling of a matrix product on a GPU. A worker computes ``tm`` x ``tn`` of the block's ``bm`` x ``bn``: a thread
    for "threads", a warp for "mma", a warpgroup for "wgmma".

    depth:      tiles in shared memory, all but one in flight;  copies: true if they are asynchronous
    cluster:    neighbouring blocks that load one operand's tile together
    producer:   true if a warpgroup only copies, in addition to wgmma's workers
    persistent: blocks compute tile after tile;  raster: rows of blocks that run at the same time, 1 for row by row
    vector:     elements per shared-memory read of a thread;  conflicts: slowdown of these reads by bank conflicts;
                scatter: slowdown of the copies that write there and read global memory
    splits:     parts of the reduction in separate blocks, whose sums a second kernel adds up
    turns:      sets of workers that alternate on the tiles of a resident block (ping-pong): one stores, one multiplies
    registers:  per thread, if the compiler's number is known
    slots:      instructions per 16-byte copy, with address and bounds, if the multiplying warps copy
    results:    bytes of shared memory for staging results, next to the tiles, if warps multiply
    """

    kind: str
    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    depth: int = 2
    copies: bool = True
    cluster: int = 1
    producer: bool = True
    persistent: bool = False
    raster: int = 1
    vector: int = 4
    conflicts: float = 1.0
    scatter: float = 1.0
    splits: int = 1
    turns: int = 1
    registers: int | None = None
    slots: float = COPY_SLOTS
    results: int = 0

    @property
    def workers(self) -> int:
        return max(1, self.bm // self.tm) * max(1, self.bn // self.tn)

    @property
    def threads(self) -> int:
        """Threads per block."""
        size = {"threads": 1, "mma": 32, "wgmma": 128}[self.kind]
        return size * self.workers * self.turns + (128 if self.kind == "wgmma" and self.producer else 0)


@dataclass(frozen=True)
class Parts:
    """Predicted seconds and their components, which mostly overlap and do not add up.

    blocks, l2, dram: seconds of the blocks' work, of L2 traffic and of DRAM traffic
    resident: blocks per multiprocessor;  waves: of resident blocks
    step: cycles of one reduction step of a block, by resource ("multiply", "issue", "shared", "port")
    """

    seconds: float
    blocks: float
    l2: float
    dram: float
    resident: int
    waves: int
    step: dict[str, float]


def seconds(p: MatrixProduct, t: Tiles, gpu: Gpu) -> float:
    """Predicted seconds of the product."""
    return explain(p, t, gpu).seconds


def explain(p: MatrixProduct, t: Tiles, gpu: Gpu) -> Parts:
    """Predicted seconds of the product, by component."""
    tiles = -(-p.m // t.bm) * -(-p.n // t.bn) * p.batch * t.splits
    held = 1 if t.persistent else resident(p, t, gpu)
    traffic, missed = l2_bytes(p, t), dram_bytes(p, t, gpu, held)
    latency = gpu.dram_latency + gpu.copy  # blocks that read the same tile wait for the one that finds it in no cache
    step = {
        "multiply": multiply_cycles(p, t, gpu),
        "issue": issue_cycles(p, t, gpu),
        "shared": shared_cycles(p, t, gpu),
        "port": copied_bytes(p, t) / gpu.l2_port,
    }
    each = -(-tiles // gpu.units)
    edges = gpu.start + latency + gpu.end  # nothing is on its way before the first load and after the last product
    whole = block_cycles(p, t, gpu, step, latency, each, held) * spilling(p, t, gpu)
    clock = clock_of(p, gpu, each * steps_of(p, t) * step["multiply"] / whole)
    cycles = whole - edges
    blocks, l2, dram = cycles / clock, traffic / (gpu.l2_rate * clock), missed / gpu.copied
    total = gpu.launch_s + edges / clock + overlapped(blocks, l2, dram)
    total += read_late_s(p, t, gpu, held) + adding_s(p, t, gpu)
    return Parts(total, blocks, l2, dram, held, -(-each // held), step)


def steps_of(p: MatrixProduct, t: Tiles) -> int:
    """Number of reduction steps per block."""
    return -(-p.k // (t.bk * t.splits))


def workspace_bytes(p: MatrixProduct, t: Tiles) -> float:
    """Bytes of the float32 partial sums of a split reduction."""
    return 4.0 * p.m * p.n * p.batch * t.splits if t.splits > 1 else 0.0


def read_late_s(p: MatrixProduct, t: Tiles, gpu: Gpu, held: int) -> float:
    """Seconds for reading the previous output in the epilogue while nothing else runs; 0 if nothing is added to it or
    other work overlaps.

    held: blocks resident per multiprocessor
    """
    return p.m * p.n * p.batch * p.out_bytes / gpu.copied if p.adds and _ends_alone(t, held) else 0.0


def _ends_alone(t: Tiles, held: int) -> bool:
    """True if nothing multiplies while a block writes results: one resident block of one set of workers, no
    split sum.
    """
    return held == 1 and t.turns == 1 and t.splits == 1


def adding_s(p: MatrixProduct, t: Tiles, gpu: Gpu) -> float:
    """Seconds of the second kernel, which adds up partial sums of a split reduction, partly from L2 cache; 0 without
    it.
    """
    if t.splits == 1:
        return 0.0
    partial = workspace_bytes(p, t)
    edges = gpu.start + gpu.dram_latency + gpu.end
    dram = partial * _evicted(partial, gpu) + p.m * p.n * p.batch * p.out_bytes * (2 if p.adds else 1)
    return gpu.launch_s + edges / gpu.clock + overlapped(partial / (gpu.l2_rate * gpu.clock), dram / gpu.copied)


def clock_of(p: MatrixProduct, gpu: Gpu, busy: float) -> float:
    """Clock rate in Hz, reduced by the power draw of units busy for a share ``busy`` of the time."""
    return gpu.clock * (1.0 - (1.0 - gpu.sustained.get(p.kind, 1.0)) * min(1.0, busy))


def overlapped(*parts: float, power: float = OVERLAP_EXPONENT) -> float:
    """Combined time of overlapping parts: a p-norm, near the longest, more if others are about as long."""
    longest = max(parts)
    return float(longest * sum((x / longest) ** power for x in parts) ** (1 / power))


def block_cycles(
    p: MatrixProduct, t: Tiles, gpu: Gpu, step: Mapping[str, float], latency: float, each: int, held: int
) -> float:
    """Cycles of the busiest multiprocessor for ``each`` blocks, ``held`` of them resident at a time.

    Blocks next to each other fill idle cycles at start, end and waits: all of them for many blocks, none for one. A
    persistent block loads its next tile while it writes the last one.
    """
    steps = steps_of(p, t)
    busy = busy_cycles(t, gpu, step)
    chain = chain_cycles(p, t, gpu, step, busy, latency)
    leave = gpu.end + epilogue_bytes(p, t) / gpu.l2_port
    if t.persistent:
        main = steps * max(busy, chain)
        if t.turns == 1:
            return gpu.start + latency + each * (main + leave)
        return gpu.start + latency + leave + each * max(main, (main + leave) / t.turns)
    alone = gpu.start + latency + steps * max(busy, chain) + leave
    work = steps * busy + leave - gpu.end

    def wave(n: int) -> float:
        return float(
            (alone**IN_ORDER_OVERLAP + (n * work) ** IN_ORDER_OVERLAP - work**IN_ORDER_OVERLAP)
            ** (1 / IN_ORDER_OVERLAP)
        )

    return each // held * wave(held) + (wave(each % held) if each % held else 0.0)


def busy_cycles(t: Tiles, gpu: Gpu, step: Mapping[str, float]) -> float:
    """Cycles of a step if other blocks hide all latencies that they can.

    wgmma and a producer's copies run concurrently with the warps. Without a producer, other blocks do not hide the wait
    at the start of a step, as measured for Triton kernels with 32 and 64 terms per step.
    """
    if t.kind == "wgmma":
        return max(step.values()) + (0.0 if t.producer else gpu.step_wait)
    if t.kind == "threads":
        return overlapped(max(step["multiply"], step["issue"]), step["shared"], step["port"], power=IN_ORDER_OVERLAP)
    return overlapped(*step.values(), power=IN_ORDER_OVERLAP)


def multiply_cycles(p: MatrixProduct, t: Tiles, gpu: Gpu) -> float:
    """Tensor-core or FMA cycles of one step in one block; a worker's rows count as multiples of 64 for wgmma."""
    if t.kind == "threads":
        return 2.0 * t.bm * t.bn * t.bk / gpu.threads_rate
    rows = t.bm if t.kind == "mma" else t.bm // t.tm * -(-t.tm // 64) * 64
    return 2.0 * rows * t.bn * t.bk * p.terms / _rate(p, t, gpu)


def loop_slots(p: MatrixProduct, t: Tiles) -> float:
    """Instructions per warp and step other than products and operand reads."""
    if t.kind == "wgmma" and t.producer:
        return 8.0
    return LOOP_INSTRUCTIONS + copied_bytes(p, t) / (16 * t.threads) * t.slots


def issue_cycles(p: MatrixProduct, t: Tiles, gpu: Gpu) -> float:
    """Issue cycles of one step: multiply-adds, operand reads, copies with addresses, loop overhead.

    Each 32-bit word read by a thread takes one slot, also in vector loads, as registers are written word by word. So
    8x16 tiles keep 84 % of the slots for multiply-adds, as in a profile of cuBLAS's kernel.
    """
    warps = t.threads / 32
    loop = warps * loop_slots(p, t)
    if t.kind == "wgmma":
        return (loop + 24 * t.bk / FRAGMENT_TERMS[p.kind]) / gpu.issue
    if t.kind == "threads":
        each = t.tm * t.tn + (t.tm + t.tn)
        return (warps * t.bk * each + loop) / gpu.issue
    split = 0.0 if p.terms == 1 else 4 * (t.tm + t.tn) * FRAGMENT_TERMS[p.kind] / 32
    return (
        t.workers * t.bk / FRAGMENT_TERMS[p.kind] * (_mma_count(p, t) + (t.tm + t.tn) / 16 + split) + loop
    ) / gpu.issue


def shared_cycles(p: MatrixProduct, t: Tiles, gpu: Gpu) -> float:
    """Shared-memory cycles of the reads and writes of one step.

    Synchronous copies count twice: from cache to registers and from registers to shared memory. A warp using mma reads
    its operands once; wgmma reads A and B once per 64 rows.
    """
    written = copied_bytes(p, t) * (1 if t.copies else 2)
    if t.kind == "threads":
        read = t.threads / 32 * t.bk * (t.tm + t.tn) * read_passes(t.vector, gpu) * 128
    elif t.kind == "mma":
        read = float(t.workers * (t.tm + t.tn) * t.bk * p.in_bytes)
    else:
        read = float(t.workers * -(-t.tm // 64) * (64 + t.tn) * t.bk * p.in_bytes)
    return (read * t.conflicts + written * t.scatter) / gpu.shared_rate


def read_passes(vector: float, gpu: Gpu) -> float:
    """Shared-memory passes (128 bytes each) per word that every lane of a warp reads, by instructions of ``vector``
    words.

    Lanes of a warp read the same words: 16 bytes of each lane take two passes, fewer bytes one, and none takes less
    than its lanes do in the units that load.
    """
    return max(0.5 if vector >= 2 else 1.0, 32 / gpu.lanes / vector)


def chain_cycles(p: MatrixProduct, t: Tiles, gpu: Gpu, step: Mapping[str, float], busy: float, latency: float) -> float:
    """Cycles of a step in a block running alone: the longest dependency chain."""
    if t.kind == "wgmma" and t.producer:  # one warpgroup multiplies while another one waits
        read = step["shared"] - copied_bytes(p, t) * t.scatter / gpu.shared_rate
        own = max(step["multiply"], read) / t.workers  # an instruction lasts while its operands are read
        own = max(own + gpu.step_wait, busy)
        return own + latency + step["port"] + gpu.step_wait if t.depth < 2 else max(own, latency / (t.depth - 1))
    meeting = sync_cycles(p, t, gpu)
    if t.kind == "wgmma":  # the next step is prepared while this one is multiplied
        own = max(busy, meeting + gpu.step_wait)
    elif t.kind == "threads":
        slots = max(1.0, 256 / gpu.threads_rate) * t.tm * t.tn + (t.tm + t.tn) / t.vector
        own = max(busy, t.bk * max(slots, gpu.shared_latency)) + meeting
    else:
        cycles = 8.0 * 16 * 8 * FRAGMENT_TERMS[p.kind] / _rate(p, t, gpu)
        each = max(_mma_count(p, t) * cycles, gpu.mma_latency + gpu.shared_latency)
        own = max(busy, t.bk / FRAGMENT_TERMS[p.kind] * each) + meeting
    if t.depth < 2:
        return own + latency + step["port"]
    return max(own, latency / (t.depth - 1))


def sync_cycles(p: MatrixProduct, t: Tiles, gpu: Gpu) -> float:
    """Cycles per step for the barrier, starting copies and reading first operands."""
    warps = t.threads / 32
    slots = max(1.0, warps / gpu.issue) * loop_slots(p, t)
    if t.kind == "wgmma":
        return gpu.meeting(t.threads) + slots + gpu.shared_latency
    if t.kind == "threads":
        first = gpu.shared_latency + warps * (t.tm + t.tn) * read_passes(t.vector, gpu)
    else:
        read = t.workers * (t.tm + t.tn) * FRAGMENT_TERMS[p.kind] * p.in_bytes
        first = gpu.shared_latency + gpu.mma_latency + read / gpu.shared_rate
    return gpu.meeting(t.threads) + gpu.address * slots + first


def epilogue_bytes(p: MatrixProduct, t: Tiles) -> float:
    """Bytes of results written by a block, plus those read when adding to the output."""
    if t.splits > 1:
        return 4.0 * t.bm * t.bn
    return float(t.bm * t.bn * p.out_bytes * (2 if p.adds else 1))


def copied_bytes(p: MatrixProduct, t: Tiles) -> float:
    """Bytes of both operand tiles of one step."""
    return float((t.bm / p.taps + t.bn) * t.bk * p.in_bytes)


def l2_bytes(p: MatrixProduct, t: Tiles) -> float:
    """L2 bytes read and written by all blocks; a cluster reads the larger tile once."""
    sides = t.bm / p.taps, t.bn
    once = (min(sides) + max(sides) / t.cluster) * t.bk * p.in_bytes
    grid = -(-p.m // t.bm) * -(-p.n // t.bn) * p.batch * t.splits
    return float(grid * (steps_of(p, t) * once + epilogue_bytes(p, t)))


def dram_bytes(p: MatrixProduct, t: Tiles, gpu: Gpu, held: int) -> float:
    """DRAM bytes read and written: every operand once, and again after eviction from L2; excludes ``read_late_s``.

    Blocks that run at the same time form ``down`` x ``across`` of the grid. Later rows of blocks read B again, later
    columns A, unless half of the L2 cache holds the data in between.
    """
    grid_m, grid_n, slots = -(-p.m // t.bm), -(-p.n // t.bn), gpu.units * held
    down = min(grid_m, max(t.raster, slots / grid_n))
    across = min(grid_n, max(1.0, slots / down))
    a, b = (side * p.k * p.in_bytes * share for side, share in zip((p.m, p.n), p.apart, strict=True))
    again_b = b * (max(1.0, grid_m / down) - 1) * _evicted(b, gpu)
    again_a = a * (max(1.0, grid_n / across) - 1) * _evicted(a * min(1.0, down / grid_m), gpu)
    if t.splits > 1:
        partial = workspace_bytes(p, t)
        return p.batch * (a + b + again_a + again_b) + partial * _evicted(partial, gpu)
    results = p.m * p.n * p.out_bytes * (2 if p.adds and not _ends_alone(t, held) else 1)
    return p.batch * (a + b + again_a + again_b + results)


def _evicted(size: float, gpu: Gpu) -> float:
    """Fraction of ``size`` bytes evicted from L2 before they are read again."""
    return min(1.0, max(0.0, 2 * size / gpu.l2_bytes - 1))


def shared_memory(p: MatrixProduct, t: Tiles) -> int:
    """Shared-memory bytes of a block, the wgmma epilogue's staging included."""
    ring, results = int(t.depth * copied_bytes(p, t)), t.turns * t.bm * t.bn * p.out_bytes
    if t.kind != "wgmma":
        return ring + t.results
    return ring + results if t.persistent else max(ring, results)


def thread_registers(p: MatrixProduct, t: Tiles) -> int:
    """Registers per thread: accumulators, operands, copies in flight and overhead."""
    if t.registers is not None:
        return t.registers
    if t.kind == "wgmma":
        return t.tm * t.tn // 128 + SPARE_REGISTERS
    lanes = 1 if t.kind == "threads" else 32
    operands = (t.tm + t.tn) * (
        2 if lanes == 1 else FRAGMENT_TERMS[p.kind] * p.in_bytes / 4 * (2 if p.terms > 1 else 1)
    )
    staged = 0.0 if t.copies or t.depth < 2 else copied_bytes(p, t) / 4 / t.threads
    return int((t.tm * t.tn + operands) / lanes + staged) + SPARE_REGISTERS


def resident(p: MatrixProduct, t: Tiles, gpu: Gpu) -> int:
    """Blocks resident per multiprocessor, limited by threads, registers and shared memory (1 KiB reserved per block);
    at least 1, also for blocks that do not fit.
    """
    registers = -(-min(255, thread_registers(p, t)) // 8) * 8 * t.threads
    shared = shared_memory(p, t) + 1024
    return max(1, min(gpu.blocks, gpu.threads // t.threads, gpu.registers // registers, gpu.shared_bytes // shared))


def spilling(p: MatrixProduct, t: Tiles, gpu: Gpu) -> float:
    """Slowdown factor from register spills: 1 + (registers beyond the limit per thread) / 32."""
    most = min(255, gpu.registers // t.threads)
    return 1.0 + max(0, thread_registers(p, t) - most) / 32


def _mma_count(p: MatrixProduct, t: Tiles) -> float:
    """mma instructions per warp and k-fragment."""
    return max(1.0, t.tm / 16) * max(1.0, t.tn / 8) * p.terms


def _rate(p: MatrixProduct, t: Tiles, gpu: Gpu) -> float:
    """Tensor-core operations per cycle and multiprocessor for the operands' kind."""
    return (gpu.wgmma if t.kind == "wgmma" else gpu.mma).get(p.kind, gpu.other_rate)
