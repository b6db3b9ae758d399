"""``Machine``: rates, sizes and delays of a device, which cost models read; one for each target."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace

from tensorir.gpu_devices import Gpu, usual_gpu
from tensorir.prices import Prices
from tensorir.target import Target

PAGE = 4096
"""Bytes of a virtual memory page."""


@dataclass(frozen=True)
class CoreCache:
    """A data cache of a core. ways: lines in a set;  cycles: additional latency after the level before"""

    nbytes: int
    ways: int
    cycles: float

    @property
    def span(self) -> int:
        """Bytes after which its sets repeat."""
        return self.nbytes // self.ways


@dataclass(frozen=True)
class Machine:
    """A device as cost models see it.

    cores:    cores or multiprocessors that run blocks concurrently;  clock: cycles per second
    threads:  operations per cycle, in those of a CPU core: 1 on CPUs, more on a multiprocessor
    full:     threads that keep a core busy: 1 on CPUs, more where they hide each other's latencies
    turn:     cycles between operations of one thread;  barrier: cycles until threads of a block have combined results
    call_s:   seconds to launch a program of any number of kernels;  launch_s: for each kernel
    block_s:  seconds of a core to start a block;  wake_s: until other cores start, if any kernel has several blocks
    least_s:  minimum seconds of a kernel;  noise_s: seconds by which launches of one program differ
    levels:   (bytes, bytes per second) of one core for each cache from the innermost on, then memory: the first level
              that holds a core's share of all arrays of a program sets its bandwidth
    memory_s: bytes per second of memory that all cores share
    caches:   of one core, from the innermost on; () for GPUs;  line: bytes of a cache line
    miss:     latency of memory in cycles;  walk: cycles of a page-table walk, for elements in different pages
    apart:    cycles per element of a vector loaded from non-adjacent addresses
    prices:   cycles of operations and of parts of kernels, those of a CPU core in both kinds
    """

    cores: int
    clock: float
    threads: float
    full: int
    turn: float
    barrier: float
    call_s: float
    launch_s: float
    block_s: float
    wake_s: float
    least_s: float
    levels: tuple[tuple[float, float], ...]
    memory_s: float
    caches: tuple[CoreCache, ...]
    miss: float
    walk: float
    apart: float
    line: int = 64
    noise_s: float = 3e-6
    prices: Prices = field(default_factory=Prices)

    @property
    def another_s(self) -> float:
        """Seconds of one more kernel on which all cores start, its work excluded."""
        return self.launch_s + self.wake_s

    @property
    def one_kernel(self) -> float:
        """Cycles, summed over all cores, of one more kernel: its minimum time."""
        return self.least_s * self.clock * self.cores

    def far(self, lines: int, pitch: int) -> float:
        """Latency in cycles of an element whose cache line is reused after ``lines`` others at a distance of ``pitch``
        bytes.

        Lines at multiples of large powers of two compete for the same sets of a cache.
        """
        walk = self.walk if pitch >= PAGE else 0.0
        for cache in self.caches:
            if lines * math.gcd(pitch, cache.span) <= cache.nbytes:
                return cache.cycles + (walk if cache.cycles else 0.0)
        return self.miss + walk

    def rate(self, nbytes: float) -> float:
        """Bandwidth of one core, in bytes per second, for repeated accesses of all cores to ``nbytes`` bytes."""
        size, rate = next(level for level in self.levels if nbytes <= level[0] * self.cores)
        return min(rate, self.memory_s / self.cores) if math.isinf(size) else rate

    def moved_s(self, nbytes: float) -> float:
        """Seconds in which all cores move ``nbytes`` bytes once."""
        return nbytes / (self.rate(nbytes) * self.cores)

    def busy(self, blocks: int, threads: int) -> float:
        """Share, in (0, 1], of the cores that ``blocks`` of ``threads`` occupy, or of the threads that would keep these
        busy.
        """
        return min(self.cores, blocks) / self.cores * min(1.0, threads * -(-blocks // self.cores) / self.full)

    def balance(self, blocks: int) -> float:
        """Fraction, in (0, 1], of the cores' time used by ``blocks`` >= 1 equal blocks."""
        return blocks / (-(-blocks // self.cores) * self.cores)


CPU = Machine(
    cores=16, clock=3e9, threads=1.0, full=1, turn=1.0, barrier=0.0,
    call_s=7e-6, launch_s=3e-6, block_s=8e-8, wake_s=3.6e-6, least_s=7e-6,
    levels=((2e5, 65e9), (6.5e6, 25e9), (math.inf, 12e9)), memory_s=2e11,
    caches=(CoreCache(32 << 10, 8, 0.0), CoreCache(1 << 20, 8, 6.0)), miss=70.0, walk=4.0, apart=1.0,
)  # fmt: skip
"""A server CPU with 64-byte vectors under OpenCL. Times fitted to benchmarks/automatic/fusions.py on two of its cores;
those of calls, of the L3 cache and of memory to benchmarks/cliffs.py on two cores of another, with 32-byte vectors.
"""
CPU_OF_C = replace(CPU, call_s=2.4e-6, launch_s=0.6e-6, least_s=0.6e-6)
"""The same with kernels of C text, which are functions of one library."""
CACHE_SHARE, CACHE_RATE_SHARE = 0.7, 0.55
"""Shares of a GPU's L2 cache and of its rate on the data sheet that kernels have."""


@functools.lru_cache(maxsize=64)
def _machine_of_gpu(gpu: Gpu) -> Machine:
    """The machine of a GPU, from its data sheet; not validated by measurements."""
    cache = CACHE_SHARE * gpu.l2_bytes / gpu.units, CACHE_RATE_SHARE * gpu.l2_rate * gpu.clock / gpu.units
    return Machine(
        cores=gpu.units, clock=gpu.clock, threads=gpu.threads_rate / CPU.prices.operation.issue,
        full=256, turn=2.0, barrier=gpu.meeting(256),
        call_s=2e-6, launch_s=gpu.next_s, block_s=0.0, wake_s=0.0, least_s=0.0,
        levels=(cache, (math.inf, gpu.copied / gpu.units)), memory_s=math.inf,
        caches=(), miss=0.0, walk=0.0, apart=0.25,
    )  # fmt: skip


def machine_of(target: Target) -> Machine:
    """The machine that a target names, with ``target.units`` cores where they are known; a GPU's is that of
    ``usual_gpu``.
    """
    return _machine_of_gpu(usual_gpu(target)) if target.kind == "gpu" else _cpu(target.units, target.language)


@functools.lru_cache(maxsize=64)
def _cpu(units: int, language: str) -> Machine:
    machine = CPU_OF_C if language == "c" else CPU
    return replace(machine, cores=units) if units else machine
