"""Window reductions on GPUs (depthwise convolution, pooling): each element is loaded about once, in whole sectors.

A thread computes a small tile of cells, up to 16 bytes of adjacent ones if no window is along the last axis, from
values loaded into registers first. With windows along the last axis, adjacent threads share most of their reads, so the
block stages its tile of the image in shared memory; so it does for types below 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.arith.access import Group
from tensorir.automatic.facts import Nest
from tensorir.automatic.part import Config
from tensorir.automatic.rules.banks import least, passes
from tensorir.automatic.rules.requests import SECTOR
from tensorir.automatic.rules.window_part import WindowPart
from tensorir.automatic.rules.window_reads import reduced
from tensorir.gpu_devices import Gpu, usual_gpu
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.layout import LANES_OF_WARP
from tensorir.ir.tree import Var
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.gpu_model import (
    COPY_SLOTS,
    IN_ORDER_OVERLAP,
    LOOP_INSTRUCTIONS,
    SPARE_REGISTERS,
    overlapped,
)

THREADS = (64, 128, 256)
"""Legal numbers of threads per block."""
FEW_CELLS = 1024
"""Maximum cells of the inner axes for which smaller blocks are legal."""
REGISTERS = 96
"""Maximum registers per thread for loaded values and accumulators."""
SHARED_BYTES = 48 * 1024
"""Bytes of shared memory per block available on any device."""
TILED = 3
"""Number of inner axes that are tiled."""
NEAR_FACTOR = 1.15
"""Factor on the least modelled time within which the model cannot rank tiles (docs/cuda-evidence.md)."""
PACKED = 128
"""Elements of an operand packed per block."""


class ThreadWindows(WindowPart):
    """Blocks of ``t0`` x ``t1`` x ``t2`` threads along the last axes, each thread with ``c0`` x ``c1`` x ``c2``
    cells.
    """

    taps = 49

    @property
    def name(self) -> str:
        return "tile_windows"

    # -- what the cells are like

    @property
    def suits(self) -> bool:
        """True for windows of one array with few terms, for which some configuration is legal."""
        return self.image is not None and self.terms <= self.taps

    @property
    def total(self) -> Nest:
        """The sum."""
        return self.sums[0]

    @cached_property
    def group(self) -> Group:
        """Loads of the image."""
        assert self.image is not None
        return self.image.group

    @cached_property
    def tiled(self) -> list[int]:
        """Indices of the tiled axes."""
        return [n for n, extent in enumerate(self.extents) if extent > 1][-TILED:]

    @property
    def rows(self) -> list[int]:
        return self.tiled[:-1]

    @cached_property
    def size(self) -> int:
        """Bytes of an element of the image."""
        return _bytes(self.group)

    @cached_property
    def across(self) -> bool:
        """True if windows are along the last axis, or lanes read with a stride."""
        return self.lane in self.windowed or self.group.step(self._last) != 1

    def far(self, step: int | None) -> bool:
        return not self.across and step not in (0, 1)

    @property
    def _last(self) -> Var:
        """The axis that lanes are along."""
        return self.total.spatial[self.lane].var

    @cached_property
    def shared(self) -> bool:
        """True if the block stages its part of the image in shared memory."""
        return self.across or self.size < 4

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        most_threads = ((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32))
        order = most_threads if self.across else (most_threads[1], most_threads[2], most_threads[0])
        knobs: dict[str, Sequence[object]] = {f"t{n}": order[n - len(self.tiled)] for n in range(len(self.tiled))}
        return knobs | {f"c{n}": self._cells_of(n) for n in range(len(self.tiled))}

    def _cells_of(self, n: int) -> list[int]:
        axis, last = self.tiled[n], n == len(self.tiled) - 1
        if axis in self.windowed:
            return [1, 2, 4] if self.across or n == 0 else [1, 2]
        if not last or self.across:
            return [1]
        widest = (4 if self.shared else 16) // self.size
        return [v for v in (4, 2, 1) if v <= widest and self.extents[axis] % v == 0]

    def _sides(self, c: Config) -> list[tuple[int, int, int]]:
        """(threads, cells per thread, extent) along each tiled axis."""
        return [(c[f"t{n}"], c[f"c{n}"], self.extents[axis]) for n, axis in enumerate(self.tiled)]

    def _box(self, g: Group, cells: tuple[int, ...]) -> list[int]:
        """Extents of the region of an operand that ``cells`` cells along the tiled axes read, per array dimension."""
        if (g, cells) not in self._boxes:
            tile = {self.total.spatial[axis].var: n for axis, n in zip(self.tiled, cells, strict=True)}
            self._boxes[g, cells] = g.box({**reduced(self.total), **tile})
        return self._boxes[g, cells]

    def _read(self, g: Group, cells: tuple[int, ...]) -> int:
        return math.prod(self._box(g, cells))

    def _tile(self, c: Config) -> tuple[int, ...]:
        """Cells of a block along each tiled axis."""
        return tuple(t * n for t, n, _ in self._sides(c))

    def _own(self, c: Config) -> tuple[int, ...]:
        """Cells of a thread along each tiled axis."""
        return tuple(n for _, n, _ in self._sides(c))

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        few = math.prod(self.extents[axis] for axis in self.tiled) <= FEW_CELLS
        return {
            "threads": lambda c: self._threads(c) in THREADS or (few and self._threads(c) < min(THREADS)),
            "sensible": lambda c: all(t * n == 1 or t * n < 2 * extent for t, n, extent in self._sides(c)),
            "registers": lambda c: self._held(c) <= REGISTERS,
            "shared": lambda c: not self.shared or self._block_bytes(c) <= min(SHARED_BYTES, self.target.shared_bytes),
        }

    def _threads(self, c: Config) -> int:
        return math.prod(t for t, _, _ in self._sides(c))

    def _held(self, c: Config) -> int:
        """Registers per thread for loaded values and accumulators."""
        own = self._own(c)
        return math.prod(own) + (0 if self.shared and not self._pairs(c) else self._read(self.group, own))

    def _block_bytes(self, c: Config) -> int:
        return sum(_bytes(g) * self._read(g, self._tile(c)) for g in (self.group, *self._filters(c)))

    @cached_property
    def first(self) -> Config | None:
        """Configuration of least modelled time; if ``across``, among those within ``NEAR_FACTOR`` the one without bank
        conflicts and with the fewest sectors. None if none is legal.
        """
        known = [(self.seconds(c), n, c) for n, c in enumerate(self.legal())]
        if not known:
            return None
        fastest = min(known)
        near = [c for time, _, c in known if time <= NEAR_FACTOR * fastest[0] and self._apart(c)] if self.across else []
        return min(near, key=lambda c: (self._moved(c), self.seconds(c)), default=fastest[2])

    def seconds(self, c: Config) -> float:
        """Modelled seconds: L2 sectors, memory traffic, instructions and shared-memory wavefronts overlap; latency is
        added per wave of blocks.
        """
        blocks, gpu = self._blocks(c), usual_gpu(self.target)
        instructions, taken = self._of_warp(c)
        warps = blocks * -(-self._threads(c) // LANES_OF_WARP)
        units = min(gpu.units, blocks)
        clock = gpu.clock * units
        bound = overlapped(
            self._moved(c) / (gpu.l2_rate * gpu.clock),
            self.anchor.moved / gpu.copied,
            warps * instructions / (gpu.issue * clock),
            warps * taken / clock,
            self._moved(c) * gpu.dram_latency / (self._asked(c, gpu) * clock),
            power=IN_ORDER_OVERLAP,
        )
        waves = math.ceil(blocks / (gpu.units * self._resident(c, gpu)))
        waits = waves * (gpu.start + (2 if self.shared else 1) * gpu.dram_latency) / gpu.clock
        return gpu.launch_s + overlapped(bound, waits, power=2)

    def _asked(self, c: Config, gpu: Gpu) -> float:
        """Bytes that the threads of a multiprocessor wait for at the same time."""
        blocks = min(self._resident(c, gpu), -(-self._blocks(c) // gpu.units))
        threads, own = self._threads(c), self._read(self.group, self._own(c))
        loads = self._read(self.group, self._tile(c)) / threads if self.shared else own
        wide = (self._copied(c) or 1) if self.shared else self._lanes(c) // self.size
        return blocks * threads * min(gpu.loads * wide, loads) * self.size

    def _of_warp(self, c: Config) -> tuple[float, float]:
        """(instructions, shared-memory wavefronts) of a warp."""
        threads, own, terms, filters = self._threads(c), self._own(c), self.terms, self._filters(c)
        lanes, others = self._lanes(c), len(self.reads[0].groups) - 1 - len(filters)
        loads = self._read(self.group, own) * self.size / lanes
        asked = math.prod(own) * terms * (self.total.operations + others) + loads + terms * len(filters)
        asked += LOOP_INSTRUCTIONS * LANES_OF_WARP / max(1, 16 // self.size)
        if not self.shared:
            return asked, 0.0
        at_once = self._copied(c) or 1
        copies = self._read(self.group, self._tile(c)) / threads / at_once
        taken = loads * self._passes(self.group, lanes, c) + copies * max(1.0, at_once * self.size / 4)
        for g in filters:
            copied = self._read(g, self._tile(c)) / threads
            copies, taken = copies + copied, taken + copied + terms * self._passes(g, _bytes(g), c)
        return asked + copies * COPY_SLOTS, taken

    @cached_property
    def _step(self) -> int:
        """Stride in elements between adjacent lanes' reads."""
        return abs(self.group.step(self._last) or 1)

    def _lanes(self, c: Config) -> int:
        """Bytes of one lane's image load."""
        return self.size * ((self._pairs(c) or 1) if self.across else self._sides(c)[-1][1])

    def _passes(self, g: Group, width: int, c: Config) -> int:
        """Shared-memory wavefronts of a warp that reads ``width`` bytes per lane of a staged operand."""
        pitches = [_bytes(g)]
        for side in reversed(self._box(g, self._tile(c))[1:]):
            pitches.insert(0, side * pitches[0])
        steps = zip(self._sides(c), self._moves(g), strict=True)
        lanes = [(t, n * sum(k * p for k, p in zip(moves, pitches, strict=True))) for (t, n, _), moves in steps]
        return passes(tuple(reversed(lanes)), width)

    def _moves(self, g: Group) -> list[list[int]]:
        """Stride of each index of an operand along each tiled axis; 1 if only some neighbours differ."""
        if g not in self._slopes:
            found = [g.slopes(self.total.spatial[axis].var) for axis in self.tiled]
            self._slopes[g] = [[1 if k is None else k for k in moves] for moves in found]
        return self._slopes[g]

    def _apart(self, c: Config) -> bool:
        """True if a warp's shared-memory reads have no bank conflicts."""
        read = [(self.group, self._lanes(c)), *((g, _bytes(g)) for g in self._filters(c))]
        threads = self._threads(c)
        return not self.shared or all(self._passes(g, width, c) <= least(threads, width) for g, width in read)

    def _filters(self, c: Config) -> list[Group]:
        """Operands uniform along a row of lanes but not in the block: staged in shared memory."""
        if not self.across:
            return []
        one = (1,) * len(self.tiled)
        return [g for g in self._others if self._read(g, self._tile(c)) > self._read(g, one)]

    @cached_property
    def _boxes(self) -> dict[tuple[Group, tuple[int, ...]], list[int]]:
        return {}

    @cached_property
    def _slopes(self) -> dict[Group, list[list[int]]]:
        return {}

    @cached_property
    def _others(self) -> list[Group]:
        last = self._last
        found = [g for g in self.reads[0].groups if g.load.buffer is not self.group.load.buffer]
        return [g for g in found if g.step(last) == 0 and self.packable(self.reads[0], g)]

    def _blocks(self, c: Config) -> int:
        """Number of blocks of the grid in a configuration."""
        sides = self._sides(c)
        outer = math.prod(self.extents) // math.prod(extent for *_, extent in sides)
        return outer * math.prod(-(-extent // (t * n)) for t, n, extent in sides)

    def _moved(self, c: Config) -> float:
        """Modelled bytes of L2 sectors that all blocks read and write, in tiles of equal size along each axis.

        Rows that begin inside a sector, rows shorter than one, and scalar stores count the sectors that they touch.
        """
        tile = tuple(-(-extent // -(-extent // (t * n))) for t, n, extent in self._sides(c))
        ends = (SECTOR - self.size) / (self._box(self.group, tile)[-1] * self.size) if self.across else 0.0
        made = math.prod(tile) * sum(DTYPES[b.dtype].bits / 8 for b in self.anchor.writes)
        narrow = max(1.0, SECTOR / (tile[-1] * self.size))
        cells = c[f"c{len(tile) - 1}"]
        apart = min(cells, SECTOR // self.size) if self.across and not self._in_vectors(cells) else 1
        read = self._read(self.group, tile) * self.size * (1 + ends) * (1.0 if self.across else narrow)
        begun = self._begun(tile[-1]) if self.across else 1.0
        return self._blocks(c) * (read + made * max(narrow, apart, begun))

    def _begun(self, cells: int) -> float:
        """Factor on the fewest sectors of a row of ``cells`` stored cells, for rows that begin inside a sector."""
        size = min(DTYPES[b.dtype].bits // 8 for b in self.anchor.writes) or 1
        begin = math.gcd(SECTOR, size * self.extents[-1], size * cells)
        return 1 + (SECTOR - begin) / (size * cells)

    def _resident(self, c: Config, gpu: Gpu) -> int:
        """Blocks resident on one multiprocessor."""
        threads, shared = self._threads(c), self._block_bytes(c) if self.shared else 0
        registers = (self._held(c) + SPARE_REGISTERS) * threads
        fitting = (gpu.threads // threads, gpu.shared_bytes // (shared + 1024), gpu.registers // registers)
        return max(1, min(gpu.blocks, *fitting))

    # -- the steps

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        image, packs, terms = self.group.load.buffer.name, self.packs(s), self.ordered(self.total)
        along, block, inner = self._walk(s, self.written(s), config)
        self.sum_at(s, along)
        term = self.total.loops[terms[-1].var]
        vector = config[f"c{len(self.tiled) - 1}"]
        lanes = vector if vector > 1 and not self.across else None
        written = lanes or (vector if self._in_vectors(vector) else None)
        if self.shared:
            copy = s.stage_in(image, at=block, scope="shared", vector=self._copied(config))
            if pairs := self._pairs(config):
                s.stage_in(copy.name, at=along, scope="register", vector=pairs)
        else:
            s.stage_in(image, at=along, scope="register", vector=lanes)
        for g in self._filters(config):
            copy = s.stage_in(g.load.buffer.name, at=block, scope="shared")
            s.stage_in(copy.name, at=term, scope="register")
        for name in packs:
            s.stage_in(name, at=term, scope="register", vector=lanes)
            self._in_turn(s, name)
        if written:
            s.vectorize(inner)
        elif self.lane in self.windowed:
            s.unroll(inner)
        if self.image and self.image.made:
            s.compute_inline(self.image.made.name)

    def _walk(self, s: BaseSchedule, own: Sequence[str], c: Config) -> tuple[str, str, str]:
        """Split and bind the output's loops; return (thread loop along the last axis, block loop, innermost loop)."""
        blocks, threads, inner = list(own), list[str](), list[str]()
        for n, axis in enumerate(self.tiled):
            blocks[axis], t, cells = s.split(own[axis], [None, c[f"t{n}"], c[f"c{n}"]])
            threads.append(t)
            inner.append(cells)
        s.reorder(*blocks, *threads, *inner)
        block = s.fuse(*blocks, name="block") if len(blocks) > 1 else blocks[0]
        s.bind(block, "block.x").bind(threads[-1], "thread.x")
        if len(threads) > 1:
            rows = s.fuse(*threads[:-1], name="across") if len(threads) > 2 else threads[0]
            s.bind(rows, "thread.y")
        for n, axis in enumerate(self.tiled[:-1]):
            if axis in self.windowed:
                s.unroll(inner[n])
        return threads[-1], block, inner[-1]

    def _in_vectors(self, cells: int) -> bool:
        """True if a thread stores ``cells`` cells of a row as one vector."""
        bits = max(DTYPES[b.dtype].bits for b in self.anchor.writes)
        return 1 < cells <= 128 // bits and self.extents[self.lane] % cells == 0

    def _copied(self, c: Config) -> int | None:
        """Elements per vector copy of a staged row, up to 16 bytes; None for scalar copies."""
        t, n, extent = self._sides(c)[-1]
        sizes = (16 // self.size >> k for k in range(4))
        return None if self.across else next((v for v in sizes if v > 1 and t * n % v == 0 and extent % v == 0), None)

    def _pairs(self, c: Config) -> int | None:
        """2 if a thread reads shared memory in pairs of 4-byte elements (single ones would use every second bank); None
        otherwise.
        """
        if not self.across or self.size != 4 or c[f"c{len(self.tiled) - 1}"] * self._step % 2:
            return None
        tile, own = (self._box(self.group, cells)[-1] for cells in (self._tile(c), self._own(c)))
        return 2 if tile % 2 == own % 2 == 0 else None

    def _in_turn(self, s: BaseSchedule, name: str) -> None:
        """Pack an operand by a separate kernel; otherwise every block would gather it again."""
        *outer, lane = s.loops(name)
        rows, lane = s.split(lane, [None, PACKED])
        s.reorder(rows, lane, *outer)
        s.bind(rows, "block.x").bind(lane, "thread.x")


def _bytes(g: Group) -> int:
    """Bytes of an element of an operand; at least 1."""
    return max(1, DTYPES[g.load.buffer.dtype].bits // 8)
