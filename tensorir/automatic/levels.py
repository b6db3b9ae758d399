"""``Levels``: block, lane, near memory and register of a target, as steps that assign loops to them, sizes and costs.

========  =======================================  ===================================================================
level     CPU (``CoreLevels``)                     GPU (``ThreadLevels``)
========  =======================================  ===================================================================
block     iterations that one core walks           threads of one multiprocessor
lane      of a vector; several vectors of          a thread, with a vector of adjacent elements; other threads hide
          accumulators hide latencies              latencies
near      the core's cache, filled by itself       shared memory, filled by copies
register  of vectors                               of a thread
========  =======================================  ===================================================================

Rules say which loop goes to which level, and ask a level for what depends on it; those for all devices do not ask for
its kind. Knobs without a choice at a level are empty, and left out of spaces (``choices``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from tensorir.automatic.counts import called
from tensorir.automatic.facts import Nest, vector_lanes
from tensorir.engines.blocks import joint
from tensorir.gpu_devices import usual_gpu
from tensorir.ir.tree import Var
from tensorir.machine import machine_of
from tensorir.schedule.analysis import commutes
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

Choices = Sequence[int]
"""Values of a knob, preferred ones first."""
BLOCK_ELEMENTS = 1 << 15
"""Elements per block that amortize its start on a core."""
MOST_LANES = 16
"""Most lanes of a vector."""
JOINED_LANES = 4
"""Lanes in which the last partial results are combined."""
RESERVED_BYTES = 2048
"""Bytes of shared memory that combining the results of threads takes."""


def levels_of(target: Target) -> Levels:
    """The levels of a target."""
    return ThreadLevels(target) if target.kind == "gpu" else CoreLevels(target)


def choices(**knobs: Choices) -> dict[str, Choices]:
    """The knobs that have values."""
    return {name: values for name, values in knobs.items() if values}


def terms_of_threads(s: BaseSchedule, stage: str, loop: str, threads: int) -> tuple[str, str]:
    """Split a loop over terms; return the loop over those of a thread, which are interleaved if they commute and follow
    each other if they do not, and the loop over threads.
    """
    if commutes(s.index.stages[stage]):
        rest, thread = s.split(loop, [None, threads])
    else:
        thread, rest = s.split(loop, [threads, None])
    return rest, thread


class Levels(ABC):
    """Steps, sizes and costs of the levels of a target; ``machine`` has its rates.

    threaded: True if lanes are threads: near memory is shared memory, adjacent lanes' requests are coalesced, and an
              index may be divided, once per thread; False if a core walks its block
    """

    threaded: ClassVar[bool]

    def __init__(self, target: Target) -> None:
        self.target, self.machine = target, machine_of(target)

    # -- sizes

    def parts(self, blocks: int, most: int) -> list[int]:
        """Numbers of parts, up to ``most``, of each of ``blocks`` blocks, if these leave cores idle; else []."""
        cores = self.machine.cores
        return [1 << n for n in range(min(2 * cores // blocks, most).bit_length())] if blocks < cores else []

    @property
    @abstractmethod
    def near_bytes(self) -> int:
        """Bytes of near memory for a block's intermediate arrays."""

    @property
    @abstractmethod
    def accumulators(self) -> Choices:
        """Vectors of accumulators that hide a core's latencies; empty if other threads do."""

    @abstractmethod
    def group(self, bits: int) -> int:
        """Least adjacent elements of ``bits`` bits that are worth lanes."""

    @abstractmethod
    def lanes(self, bits: int, length: int, even: int, order: Sequence[int] = (1, 2, 4)) -> Choices:
        """Lanes per vector of elements of ``bits`` bits, of ``length`` adjacent ones.

        even:  elements that are next to each other and aligned, of which a thread's vectors are divisors
        order: divisors of two vectors of a core, preferred ones first
        """

    @abstractmethod
    def threads(self, length: int) -> Choices:
        """Threads of a block for ``length`` elements; empty if a core walks it."""

    @abstractmethod
    def rows(self, length: int, count: int) -> Choices:
        """Rows per block, of ``count`` rows of ``length`` elements; empty if a block has one."""

    @abstractmethod
    def adjacent(self, width: int, bits: int, near: Callable[[int], bool]) -> Choices:
        """Rows per block, of ``width`` rows next to each other in memory, with elements of ``bits`` bits.

        near: True for as many rows as fit near memory
        """

    @abstractmethod
    def cells(self, few: bool) -> Choices:
        """Cells of a block that a core walks, or its threads; ``few``: True for small blocks as well."""

    @abstractmethod
    def steps(self, block: int, length: int, step: int) -> int:
        """Steps of a block, of ``step`` cells each, of at most ``length``; ``block`` is one of ``cells``."""

    # -- steps

    @abstractmethod
    def share_out(self, s: BaseSchedule, loops: Sequence[str], each: int | None = None) -> str:
        """Share out nested loops to blocks of ``each`` iterations; return the loop within a block, over its lanes."""

    @abstractmethod
    def bind(self, s: BaseSchedule, loop: str) -> None:
        """Assign the iterations of a block to its lanes, one each."""

    @abstractmethod
    def in_registers(self, s: BaseSchedule, loop: str) -> None:
        """Assign adjacent results of a lane's step to registers: a vector of a core, unrolled in a thread."""

    @abstractmethod
    def spread(self, s: BaseSchedule, loop: str, c: Mapping[str, int], shifts: bool = False) -> str:
        """Assign adjacent elements of a row to lanes; return the loop around the elements of one step of a lane.

        shifts: True if the last vector may begin earlier, so that some elements are computed twice
        """

    @abstractmethod
    def reduce(
        self, s: BaseSchedule, stage: str, terms: Sequence[str], c: Mapping[str, int], outer: Sequence[str] = (),
        at: str | None = None, scope: str | None = None,
    ) -> None:  # fmt: skip
        """Assign the terms of a reduction to lanes and combine their partial results, in order unless they commute.

        terms: nested loops over the terms, fused if there are lanes;  outer: reduction loops around them
        at:    loop of a reader in which the stage is computed, with its result in ``scope``
        """

    # -- costs

    @property
    @abstractmethod
    def waiting(self) -> float:
        """Cycles of a lane's multiply-add with its loads, each after the last one."""

    @abstractmethod
    def vector_cost(self, lanes: int, bits: int) -> float:
        """Cost of an operation on ``lanes`` lanes of ``bits`` bits, in operations on the widest vectors."""

    @abstractmethod
    def passing(self, n: Nest, length: int, along: set[Var], bits: int, c: Mapping[str, int]) -> float:
        """Cycles of a block for ``length`` iterations of a stage; ``along``: their variables, ``bits``: per element."""

    @abstractmethod
    def seconds(self, cycles: float, moved: float, blocks: int, threads: int = 1) -> float:
        """Seconds of a kernel of ``blocks`` blocks, with ``cycles`` cycles of arithmetic and ``moved`` bytes in all."""


class CoreLevels(Levels):
    """Levels of a CPU: a core walks a block, in vectors."""

    threaded = False

    @property
    def near_bytes(self) -> int:
        """A quarter of the L2 cache, next to what is read."""
        return self.machine.caches[1].nbytes // 4

    @property
    def accumulators(self) -> Choices:
        return [4, 2, 1, 8]

    def group(self, bits: int) -> int:
        return -(-vector_lanes(self.target, bits) // 2)

    def lanes(self, bits: int, length: int, even: int, order: Sequence[int] = (1, 2, 4)) -> Choices:
        """A core's last vector of a row has a condition, or begins earlier: none needs ``even`` elements."""
        return [n for n in (self.widest(bits) // part for part in order) if 1 < n <= length] or [1]

    def widest(self, bits: int) -> int:
        """Lanes of two vectors of elements of ``bits`` bits; at most ``MOST_LANES``."""
        return min(MOST_LANES, 2 * vector_lanes(self.target, bits))

    def threads(self, length: int) -> Choices:
        return []

    def rows(self, length: int, count: int) -> Choices:
        wanted = (BLOCK_ELEMENTS, BLOCK_ELEMENTS // 4, BLOCK_ELEMENTS * 4)
        return list(dict.fromkeys(max(1, min(n // length, -(-count // 4))) for n in wanted))

    def adjacent(self, width: int, bits: int, near: Callable[[int], bool]) -> Choices:
        every = -(-width // self.widest(bits)) * self.widest(bits)
        wanted = (1024, 4096, 256, 64, 16, *([every] if every < 4096 and width % 16 else []))
        return [n for n in dict.fromkeys(wanted) if n < 2 * width and near(n)] or [16]

    def cells(self, few: bool) -> Choices:
        return [1 << n for n in (14, 12, 16, 10)]

    def steps(self, block: int, length: int, step: int) -> int:
        return -(-min(block, length) // step)

    def share_out(self, s: BaseSchedule, loops: Sequence[str], each: int | None = None) -> str:
        return s.share_out(*loops, each=each)[-1]

    def bind(self, s: BaseSchedule, loop: str) -> None:
        pass  # a core walks them

    def in_registers(self, s: BaseSchedule, loop: str) -> None:
        s.vectorize(loop)

    def spread(self, s: BaseSchedule, loop: str, c: Mapping[str, int], shifts: bool = False) -> str:
        lanes = int(c["lanes"])
        return s.register_tile(loop, sizes=[lanes], lanes=lanes, tail="shift" if shifts else "guard")[-1]

    def reduce(
        self, s: BaseSchedule, stage: str, terms: Sequence[str], c: Mapping[str, int], outer: Sequence[str] = (),
        at: str | None = None, scope: str | None = None,
    ) -> None:  # fmt: skip
        in_order = not commutes(s.index.stages[stage])
        if int(c["lanes"]) > 1 and not in_order:
            s.reduce_in_lanes(stage, joint(s, terms), c["lanes"], vectors=c["vectors"], at=at)
            return
        if at is not None:
            s.compute_at(stage, at, scope=scope)
        if int(c["lanes"]) > 1:
            s.vectorize(s.split(joint(s, terms), [None, c["lanes"]])[1])

    @property
    def waiting(self) -> float:
        return self.machine.prices.rolling.scalar

    def vector_cost(self, lanes: int, bits: int) -> float:
        """At least 1.0; ``StreamPrices.narrow`` for up to half of a 64-byte vector."""
        wide = lanes * bits / (8 * self.target.vector_bytes)
        return max(1.0, wide) if wide > 0.5 or self.target.vector_bytes < 64 else self.machine.prices.stream.narrow

    def passing(self, n: Nest, length: int, along: set[Var], bits: int, c: Mapping[str, int]) -> float:
        """Cycles of arithmetic, or of the chain of dependent sums if longer, and of combining accumulators."""
        lanes, vectors = int(c["lanes"]), int(c["vectors"])
        whole, rest = divmod(length, lanes)  # the tail of a reduction goes lane by lane
        steps = whole + (2 * rest if n.reduced else min(rest, 1))
        calls = called(n, along)  # what all elements have in common is made once
        prices = self.machine.prices
        issued = (n.operations + len(n.loads)) / prices.operation.issue
        computed = steps * self.vector_cost(lanes, bits) * (issued + calls)
        if not n.reduced:
            return computed
        return max(computed, prices.sum * steps / vectors) + vectors + lanes / JOINED_LANES + JOINED_LANES

    def seconds(self, cycles: float, moved: float, blocks: int, threads: int = 1) -> float:
        """A short kernel is modelled on one core, without the time to start others."""
        machine, prices = self.machine, self.machine.prices
        computed, fetched = cycles / machine.clock, moved / machine.rate(moved)
        alone = max(computed, fetched) + prices.operation.overlap * min(computed, fetched)
        together = alone / (machine.cores * machine.balance(blocks)) * (1 + prices.stream.uneven / blocks)
        together += machine.wake_s
        return machine.launch_s + min(alone, together) + blocks * machine.block_s / machine.cores


class ThreadLevels(Levels):
    """Levels of a GPU: the threads of a block share its iterations, next to each other in memory."""

    threaded = True

    @property
    def near_bytes(self) -> int:
        return self.target.shared_bytes - RESERVED_BYTES

    @property
    def accumulators(self) -> Choices:
        return []

    def group(self, bits: int) -> int:
        return self.target.warp

    def lanes(self, bits: int, length: int, even: int, order: Sequence[int] = (1, 2, 4)) -> Choices:
        most = 8 * min(16, self.target.vector_bytes) // bits
        return [n for n in (4, 2) if n <= most and even % n == 0] + [1]

    def threads(self, length: int) -> Choices:
        return [n for n in (256, 128, 64, 32, 512) if n < 2 * length and n <= self.target.max_threads] or [32]

    def rows(self, length: int, count: int) -> Choices:
        return []

    def adjacent(self, width: int, bits: int, near: Callable[[int], bool]) -> Choices:
        return [n for n in (32, 64, 128) if near(n)] or [16, 8]

    def cells(self, few: bool) -> Choices:
        most = self.target.max_threads
        return [n for n in (256, 128, 512, *([64] if few else [])) if n <= most] or [most]

    def steps(self, block: int, length: int, step: int) -> int:
        return block

    def share_out(self, s: BaseSchedule, loops: Sequence[str], each: int | None = None) -> str:
        return s.share_out(*loops, each=each, within=None if each is None else "thread.x")[-1]

    def bind(self, s: BaseSchedule, loop: str) -> None:
        s.bind(loop, "thread.x")

    def in_registers(self, s: BaseSchedule, loop: str) -> None:
        s.unroll(loop)

    def spread(self, s: BaseSchedule, loop: str, c: Mapping[str, int], shifts: bool = False) -> str:
        lanes = int(c["lanes"])
        _, thread, lane = s.split(loop, [None, int(c["threads"]), lanes])
        s.bind(thread, "thread.x")
        if lanes > 1:
            s.vectorize(lane)
        return thread

    def reduce(
        self, s: BaseSchedule, stage: str, terms: Sequence[str], c: Mapping[str, int], outer: Sequence[str] = (),
        at: str | None = None, scope: str | None = None,
    ) -> None:  # fmt: skip
        if at is not None:
            s.compute_at(stage, at)
        rest, thread = terms_of_threads(s, stage, joint(s, terms), c["threads"])
        s.reorder(thread, *outer, rest)
        s.reduce_across(thread, "thread.x")

    @property
    def waiting(self) -> float:
        return usual_gpu(self.target).read_and_multiply

    def vector_cost(self, lanes: int, bits: int) -> float:
        """A thread's operation for each lane."""
        return float(lanes)

    def passing(self, n: Nest, length: int, along: set[Var], bits: int, c: Mapping[str, int]) -> float:
        """Cycles of each thread's steps, and of the barriers after them."""
        threads, machine = int(c["threads"]), self.machine
        steps = -(-length // threads) * (n.operations + machine.prices.operation.function * n.calls)
        barriers = (3 if n.reduced else 1) * machine.barrier * (1 + threads / 1024)
        return steps * machine.turn + barriers

    def seconds(self, cycles: float, moved: float, blocks: int, threads: int = 1) -> float:
        """Memory traffic of the busy multiprocessors, and the arithmetic of all waves of blocks."""
        machine = self.machine
        moved_s = machine.moved_s(moved) / machine.busy(blocks, threads)
        resident = usual_gpu(self.target).threads * machine.cores
        return moved_s + max(cycles / blocks, cycles * threads / resident) / machine.clock
