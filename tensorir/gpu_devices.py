"""Table of GPU peak rates and limits for the performance model, by architecture and name."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tensorir.target import Target

KIB, MIB = 1024, 1 << 20


@dataclass(frozen=True)
class Gpu:
    """Peak rates and limits of a GPU. Rates are per multiprocessor and cycle; a multiply-add counts as two operations.

    units:            multiprocessors
    clock:            cycles a second, the boost clock of the data sheet or what is seen where power is no limit
    threads_rate:     float32 operations of its threads
    mma, wgmma:       operations of ``mma.sync`` and of ``wgmma`` by operands: "f16" (all 16-bit floats), "f8", "tf32",
                      "s8";  other_rate: where it has none for them
    sustained:        share of ``clock`` that is left while the units that multiply operands of a kind are busy, 1
                      where none is given
    issue:            instructions of warps
    shared_rate:      bytes from and to shared memory;  l2_port: bytes between it and the L2 cache
    lanes:            of warps that read shared memory;  special: exponentials
    l2_rate, l2_bytes: bytes a cycle of the whole cache, and its size
    dram:             bytes a second;  dram_share: share of them that copies of large arrays reach
    l1_ratio:         rate of all L1 caches relative to ``dram``;  words: additional time of words read one by one
    launch_s:         seconds of an empty kernel from start to end, first loads from cold memory included
    next_s:           seconds that a kernel takes behind another one in a queue, its work excluded
    dram_latency:     cycles until a load that no cache has and that meets no other traffic is there
    loads:            that a thread waits for together
    shared_latency:   of a load from shared memory;  mma_latency: between mma instructions with the same accumulators
    start, end:       before a block's first load (launch, addresses, barriers, descriptors), and at its end (last
                      products, staging in shared memory, exit), which overlap nothing
    copy:             of a copy into shared memory beyond the load: addresses, the write, the barrier
    step_wait:        idle ones per step of one worker's tensor cores: it waits for the tile, and its last products
    barrier, arrive:  of a block's barrier, and more for each warp of the block
    address:          per instruction of those in a warp that is alone
    combine:          of a dependent combination of two elements
    read_and_multiply: of a multiply-add with its loads, each after the last one
    score:            of a score that a thread goes through, each after the last one
    registers, shared_bytes, threads, blocks: what a multiprocessor holds
    """

    name: str
    units: int
    clock: float
    threads_rate: float
    dram: float
    l2_bytes: int
    shared_bytes: int
    mma: Mapping[str, float] = field(default_factory=dict, hash=False)
    wgmma: Mapping[str, float] = field(default_factory=dict, hash=False)
    sustained: Mapping[str, float] = field(default_factory=dict, hash=False)
    other_rate: float = 64.0
    issue: float = 4.0
    shared_rate: float = 128.0
    l2_port: float = 64.0
    l2_rate: float = 2048.0
    dram_share: float = 0.92
    l1_ratio: float = 8.0
    words: float = 0.1
    launch_s: float = 2.5e-6
    next_s: float = 2e-6
    dram_latency: float = 600.0
    loads: int = 8
    shared_latency: float = 30.0
    mma_latency: float = 33.0
    start: float = 500.0
    end: float = 500.0
    copy: float = 100.0
    step_wait: float = 60.0
    barrier: float = 22.0
    arrive: float = 2.1
    address: float = 2.0
    combine: float = 4.0
    read_and_multiply: float = 10.0
    score: float = 8.0
    special: float = 16.0
    lanes: int = 32
    registers: int = 65536
    threads: int = 2048
    blocks: int = 32

    def meeting(self, threads: int) -> float:
        """Cycles of a barrier of ``threads`` threads."""
        return self.barrier + self.arrive * threads / 32

    @property
    def copied(self) -> float:
        """Bytes a second from and to memory that copies of large arrays reach."""
        return self.dram_share * self.dram


def _rates(f16: float, s8: float = 0.0, tf32: float = 0.0, f8: float = 0.0) -> dict[str, float]:
    found = {"f16": f16, "f8": f8 or 2 * f16, "s8": s8 or 2 * f16, "tf32": tf32 or f16 / 2}
    return {kind: rate for kind, rate in found.items() if rate > 0}


# Multiprocessors, clocks, rates, caches, DRAM: NVIDIA's white papers and data sheets (V100, Turing, A100, GA102, Ada,
# H100). What a multiprocessor holds: CUDA programming guide, "Compute capabilities". Latencies, and rates of L2 caches
# of which the papers say nothing, are near those of Jia et al., arXiv 1804.06826 and 1903.07486, and Luo et al.,
# arXiv 2402.13499, rounded (mma_latency: 2402.13499; barriers near those of 2004.05371, V100; address: a scheduler has
# 16 integer lanes, programming guide); for GeForce and RTX PRO cards and the RTX 4090 they are guesses from neighbours.
# H100: 64 bytes a cycle and multiprocessor come from the L2 cache (DeepGEMM's heuristics); its further bound on all of
# them, 8e6 / 1.3e3, is left out, for a product of Triton's in public_times.json moves more. mma.sync reaches 62-65 % of
# wgmma (arXiv 2402.13499, 2501.12084). GeForce cards halve products that are added up in float32.
# ptxas makes mma.sync of 8-bit floats products of halves for sm_90 (seen in the SASS).
# Whole L2 caches give about 20 bytes a cycle and multiprocessor on V100 and T4 (1903.07486), and on the RTX PRO 6000
# (two profiles of the third party named below, of kernels that take 68 and 89 % of it); those of GA102 and Ada are
# taken from there. Units that load: 32 lanes on V100, A100 and H100, 16 on Turing, GA102 and Ada, by their white
# papers; on the RTX PRO 6000 as on Ada.
#
# ``sustained`` of 16-bit floats on the H100 is calibrated: no board of 700 W keeps its clock while its tensor cores are
# busy. It is what lets the model meet, in the mean, the squares from 4096 to 8192 of cuBLAS and ThunderKittens there
# and those of fast.cu (733 to 808 TFLOP/s), none of which it is judged by; benchmarks/gpu/judge_model.py computes it.
# Devices of one class share it. Others are clocks that a third party's profiles show (github
# waynehacking8/blackwell-tensorcore-kernels): the cycles of a kernel in Nsight Compute, over how long it takes without,
# in Nsight Systems, with the share of the time that the units were busy. H100, of 1.98 GHz: 1.56 GHz at 92 % (which is
# 0.77 too), in TF32 1.66 at 93 %. RTX PRO 6000 Max-Q, of 2.28 GHz where its 300 W are no limit: 1.54 at 85 % and 1.65
# at 74 %. For TF32 it is lowered as much less as on the H100; for threads, 1.69 GHz are what was seen at 300 W with
# a kernel in float32. It does 1024 operations a cycle (mma_rate_probe.csv there).
_GA102 = Gpu("GA102", 84, 1.8e9, 256, 0.768e12, 6 * MIB, 100 * KIB, _rates(1024),
             l2_rate=1650.0, lanes=16, threads=1536, blocks=16)  # fmt: skip
_A100 = Gpu("A100 SXM", 108, 1.41e9, 128, 1.555e12, 40 * MIB, 164 * KIB, _rates(2048), l2_rate=5120.0,
            dram_latency=470.0)  # fmt: skip
_H100 = Gpu("H100 SXM", 132, 1.98e9, 256, 3.35e12, 50 * MIB, 228 * KIB, _rates(2560, f8=2560), _rates(4096),
            sustained={"f16": 0.77, "f8": 0.77, "s8": 0.77, "tf32": 0.825}, l2_rate=8448.0,
            dram_latency=650.0)  # fmt: skip
_GEFORCE = _rates(512, s8=2048, tf32=256)

GPUS: dict[str, tuple[int, Gpu]] = {
    "V100": (70, Gpu("V100 SXM", 80, 1.53e9, 128, 0.9e12, 6 * MIB, 96 * KIB, {"f16": 1024}, l2_rate=1560.0)),
    "T4": (75, Gpu("T4", 40, 1.59e9, 128, 0.32e12, 4 * MIB, 64 * KIB, {"f16": 1024, "s8": 2048},
                   l2_rate=800.0, lanes=16, threads=1024, blocks=16)),
    "A100": (80, _A100),
    "A100-SXM4-80GB": (80, replace(_A100, name="A100 SXM 80GB", dram=2.039e12)),
    "RTX A6000": (86, replace(_GA102, name="RTX A6000")),
    "RTX 3090": (86, replace(_GA102, name="RTX 3090", units=82, clock=1.695e9, dram=0.936e12, mma=_GEFORCE)),
    "RTX 3060 Laptop": (86, replace(_GA102, name="RTX 3060 Laptop", units=30, clock=1.703e9, dram=0.336e12,
                                    l2_bytes=3 * MIB, l2_rate=600.0, mma=_GEFORCE)),
    "RTX 4090": (89, Gpu("RTX 4090", 128, 2.52e9, 256, 1.008e12, 72 * MIB, 100 * KIB, _GEFORCE, l2_rate=2560.0,
                         lanes=16, threads=1536, blocks=24)),
    "H100": (90, _H100),
    "H800": (90, replace(_H100, name="H800 SXM")),
    "H200": (90, replace(_H100, name="H200 SXM", dram=4.8e12)),
    "RTX PRO 6000": (120, Gpu("RTX PRO 6000 Max-Q", 188, 2.28e9, 256, 1.792e12, 128 * MIB, 100 * KIB, _rates(1024),
                              sustained={"f16": 0.62, "f8": 0.62, "s8": 0.62, "tf32": 0.71, "f32": 0.74},
                              l2_rate=3700.0, lanes=16, threads=1536, blocks=24)),
}  # fmt: skip
"""{word of the device's name: (compute capability, device)}; the first of a capability stands for it."""


def gpu_of(target: Target) -> Gpu | None:
    """Return the Gpu of a target, None if unknown: the longest key of ``GPUS`` in the target's name, else the first one
    of a CUDA target's compute capability; with the target's number of multiprocessors, if known.
    """
    return _known(target.name, target.sm if target.language == "cuda" else None, target.units)


@functools.lru_cache(maxsize=256)  # by what is looked at: targets of other names are equal
def _known(name: str, capability: int | None, units: int) -> Gpu | None:
    named = [word for word in GPUS if re.search(rf"\b{re.escape(word)}\b", name)]
    if named:
        found = GPUS[max(named, key=len)][1]
    else:
        alike = [gpu for known, gpu in GPUS.values() if known == capability]
        if not alike:
            return None
        found = alike[0]
    return replace(found, units=units) if units else found


def usual_gpu(target: Target) -> Gpu:
    """``gpu_of``, for an unknown device an A100 with the target's number of multiprocessors, if known."""
    return gpu_of(target) or _of_units(target.units)


@functools.lru_cache(maxsize=64)
def _of_units(units: int) -> Gpu:
    return replace(_A100, units=units) if units else _A100
