"""Analytical CPU core model that ranks configurations and chooses the start of a search.

Per cycle, a core performs multiply-adds of two 32-byte vectors, or one or two 64-byte vectors, with a latency of four
cycles, and loads two operands (Fog, "The microarchitecture of Intel, AMD and VIA CPUs", chapters on Zen and on Haswell
and later).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from tensorir.engines.problems import Conv
from tensorir.engines.steps import divisors_near
from tensorir.engines.tiles import Config, Knobs, P, Tile
from tensorir.machine import CPU, PAGE, Machine, machine_of
from tensorir.target import Target

L1, L2 = CPU.caches
BLOCK_BYTES = L2.nbytes // 2 - PAGE
"""Block memory that stays in one core's second-level cache."""
PANEL = 16
"""Output channels (or pixels) of a panel: one vector of 64 bytes, two of 32; no vector is longer."""
SPARE_REGISTERS = 4
"""Vector registers for operands, not available for accumulators."""


class CpuTile(Tile[P]):
    """A CPU configuration with a modelled time.

    free: knobs that the model ignores; they start at their first value
    ``start``: the configuration of least ``cost`` among the legal ones of ``tried``; None if none is legal; cached
    """

    free: ClassVar[Sequence[str]] = ()

    @property
    def machine(self) -> Machine:
        """The machine that the target names."""
        return machine_of(self.target)

    def cost(self) -> float:
        """Modelled cycles summed over all cores; 0.0 without a model."""
        return 0.0

    @classmethod
    def expected(cls, p: P, target: Target) -> Callable[[Config], float] | None:
        """Function from a configuration to modelled seconds; None without a model."""
        if cls.cost is CpuTile.cost:
            return None
        machine = machine_of(target)
        return lambda c: cls(c, p, target).cost() / (machine.cores * machine.clock)

    @classmethod
    def tried(cls, p: P, knobs: Knobs) -> Iterable[Knobs]:
        """Candidates for the start: {knob: values to try}; knobs left out stay at their first value."""
        return [{name: values for name, values in knobs.items() if name not in cls.free}]

    @classmethod
    @functools.lru_cache(maxsize=256)  # networks repeat their layers
    def start(cls, p: P, target: Target) -> Config | None:
        knobs = cls.knobs(p, target)
        firsts = {name: values[:1] for name, values in knobs.items()}
        legal = (tile for some in cls.tried(p, knobs) for tile in cls.among({**firsts, **some}, p, target))
        best = min(legal, key=lambda tile: tile.cost(), default=None)
        return best.config if best else None


def channel_lanes(shape: Conv) -> int:
    """Lanes of a vector over input channels: ``shape.vector_lanes``, halved down to 4 while half of them suffice."""
    lanes = shape.vector_lanes
    while lanes > 4 and lanes // 2 >= shape.c:
        lanes //= 2
    return lanes


def room(block_bytes: int) -> int:
    """Bytes of block memory usable by a block: min(block_bytes, BLOCK_BYTES); BLOCK_BYTES for 0, unknown."""
    return min(block_bytes or BLOCK_BYTES, BLOCK_BYTES)


def in_balanced_tiles(extent: int, most: int, step: Callable[[int], float]) -> float:
    """Sum of ``step(size)`` over the fewest tiles of at most ``most`` that cover ``extent``, sizes differing by at most
    one.
    """
    tiles = -(-extent // most)
    least, more = divmod(extent, tiles)
    return more * step(least + 1) + (tiles - more) * step(least)


def crowding(rows: int, pitch: int) -> float:
    """Slowdown factor of reading ``rows`` rows ``pitch`` bytes apart, from cache set conflicts; 1.0 for pitch 0.

    Pitches with large power-of-two factors map to few sets of the first-level cache. The slope is measured: 14 rows
    4 KiB apart take 1.75 times as long.
    """
    lines = L1.ways * (L1.span // max(CPU.line, math.gcd(pitch, L1.span))) - 1 if pitch else rows
    return 1.0 + CPU.prices.product.crowding * max(0, rows - lines)


def priced(cycles: float, blocks: int, machine: Machine) -> float:
    """Cycles of ``blocks`` blocks of ``cycles`` each, summed over all cores with idle time; more if a core has fewer
    than two.
    """
    few = machine.prices.winograd.few if blocks < 2 * machine.cores else 1.0
    return cycles * blocks / machine.balance(blocks) * few


def shared(cycles: float, machine: Machine) -> float:
    """Cycles summed over all cores of a kernel that takes ``cycles`` in total; small ones run on one core while others
    idle.
    """
    return min(machine.cores * cycles, cycles + machine.cores * machine.prices.handover)


def launched(cycles: float, machine: Machine) -> float:
    """``cycles``, summed over all cores, and those until all of them have started; at most twice as many, so that
    small kernels of few and of many blocks differ by their work.
    """
    return cycles + min(cycles, machine.cores * machine.prices.handover)


def counts(n: int, most: int) -> list[int]:
    """Candidate block sizes for ``n`` items, ascending: n, n/2, n/3, n/4, n/8 rounded up, and those of 1, 2, 4, 8 below
    n; without those above ``most``. [1] if none is left.
    """
    return sorted({v for v in divisors_near(n, (1, 2, 4, 8)) if v <= most} or {1})
