"""Register tiles on CPUs for stages with overlapping reads that are no matrix products.

Grouped and depthwise convolutions, stencils, sums of three operands: vectors of cells along one axis, several rows of
them in registers, reduction loops inside, so that common elements are loaded once. Loops over tiles are cut where
padding conditions end, so that only border tiles evaluate them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property

from tensorir.arith.access import Group, grouped
from tensorir.automatic.facts import vector_lanes
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import Config
from tensorir.automatic.rules.window_part import WindowPart
from tensorir.automatic.rules.window_reads import Reads, reduced, slides
from tensorir.automatic.rules.window_walk import Walk
from tensorir.engines.model import SPARE_REGISTERS, room
from tensorir.machine import CPU, machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.legal import Predicate

PRICES = CPU.prices.window


class CoreWindows(WindowPart):
    """Register tiles of ``rows`` x ``several`` x ``vectors`` of ``lanes`` cells; ``block``: cells per block; ``pack``:
    operands are packed by each block (0) or by a separate kernel (1).

    rows, several: sizes along the two axes with the most common reads
    """

    taps = 32  # longer sums keep loops over their outer axes

    @property
    def name(self) -> str:
        return "tile_registers"

    # -- what the cells are like

    @cached_property
    def rows(self) -> list[int]:
        """Indices of at most two axes for the tile's rows, the one with the fewest load cycles first."""
        found = []
        for n, extent in enumerate(self.extents):
            if n != self.lane and extent > 1 and any(r.shares(r.nest.spatial[n].var) for r in self.reads):
                found.append((self._loaded(n), -n))
        return [-n for _, n in sorted(found)[:2]]

    def _loaded(self, axis: int) -> float:
        """Cycles of the loads of a tile of four vectors along ``axis``, eight lanes each."""
        return sum(self._loads(r, 8, 1, {axis: 4}) for r in self.reads)

    def _loads(self, reads: Reads, lanes: int, vectors: int, tile: Mapping[int, int]) -> float:
        spatial = reads.nest.spatial
        sizes = {spatial[n].var: size for n, size in tile.items()}
        return reads.cycles(spatial[self.lane].var, lanes, vectors, {**reduced(reads.nest), **sizes}, self.packed)

    @property
    def suits(self) -> bool:
        """True if vectors are long enough and adjacent cells read common elements."""
        if not self.extents or self.extents[self.lane] < 4:
            return False
        if any(self._scattered(r, g) for r in self.reads for g in r.groups):
            return False
        if not self.sums:
            return any(g.count > 1 for g in self.reads[0].groups)
        return bool(self.rows) or any(slides(r.groups, [r.nest.spatial[self.lane]], r.nest.reduced) for r in self.reads)

    def _scattered(self, reads: Reads, g: Group) -> bool:
        """True if lanes would load an operand from distant addresses and it cannot be packed."""
        lane = reads.nest.spatial[self.lane].var
        step = g.step(lane)
        near = grouped([g.load], lane) > 1 if step is None else abs(step) <= 4
        return not near and not self.packable(reads, g)

    def far(self, step: int | None) -> bool:
        return step not in (0, 1, 2, -1)

    @property
    def ahead(self) -> bool:
        """True if all packed operands are constants, packed once ahead of time by a separate kernel."""
        return bool(self.packed) and all(g.load.buffer.name in self.graph.wishes.constants for g in self.packed)

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        length = self.extents[self.lane]
        widest = vector_lanes(self.target, self.bits)
        longest = next(n for n in (16, 8, 4, 2) if n <= length)
        lanes = [n for n in (2 * widest, widest, widest // 2) if 1 < n <= longest] or [longest]
        knobs: dict[str, Sequence[object]] = {"lanes": lanes, "vectors": [1, 2, 3, 4]}
        for name, axis in zip(("rows", "several"), self.rows, strict=False):
            knobs[name] = self._sizes(axis)
        pack = {"pack": [1] if self.ahead else [0, 1]} if self.packed else {}
        return {**knobs, "block": [1 << n for n in (15, 13, 17, 11)], **pack}

    def _sizes(self, axis: int) -> list[int]:
        extent, alike = self.extents[axis], self._alike(axis)
        return [n for n in (4, 2, 3, 1, 6, 8, 5) if n <= extent and (alike == 1 or alike % n == 0)]

    def _alike(self, axis: int) -> int:
        return max(grouped(n.loads, n.spatial[axis].var) for n in self.readers)

    def where(self) -> Mapping[str, Predicate]:
        length = self.extents[self.lane]
        registers = max(2, self.target.registers - SPARE_REGISTERS)
        return {
            "registers": lambda c: self._height(c) * c["vectors"] * self._vector_registers(c["lanes"]) <= registers,
            "length": lambda c: c["lanes"] * c["vectors"] <= length,
            "block": lambda c: c["block"] >= min(self.anchor.cells, self._height(c) * c["lanes"] * c["vectors"]),
            **({"fits": self._fits} if self.image else {}),
        }

    def _fits(self, c: Config) -> bool:
        return 4 * self._staged(self._walked(c)) <= room(self.target.shared_optin_bytes)

    def _staged(self, walk: Walk) -> int:
        """Elements of the staged image per block; 0 without one."""
        nest = self.readers[0]
        return self.image.elements(nest, walk.cells(nest)) if self.image else 0

    def _height(self, c: Config) -> int:
        return math.prod(self._tile(c).values()) * max(1, len(self.sums))

    def _vector_registers(self, lanes: int) -> int:
        return max(1, lanes * self.bits // (8 * max(16, self.target.vector_bytes)))

    def _tile(self, c: Config) -> dict[int, int]:
        return {axis: c[name] for name, axis in zip(("rows", "several"), self.rows, strict=False)}

    @cached_property
    def first(self) -> Config | None:
        return min(self.legal(pack=int(self.ahead)), key=self.seconds, default=None)

    def seconds(self, c: Config) -> float:
        """Modelled seconds of a configuration: loads and arithmetic of tiles, memory traffic, block overhead, idle
        cores.
        """
        walk = self._walked(c)
        tiles = math.prod(share.blocks * share.each for share in walk.shares)
        cycles = tiles * self._tile_cycles(c["lanes"], c["vectors"], tuple(self._tile(c).items())) * walk.at_borders
        blocks = math.prod(share.blocks for share in walk.shares)
        cycles += blocks * (PRICES.block + PRICES.stage * self._staged(walk))
        if not self.ahead:
            ahead = machine_of(self.target).one_kernel
            cycles += ahead if c.get("pack") else blocks * PRICES.pack * self._packed_cells(walk)
        moved = sum(n.moved for n in dict.fromkeys((*self.readers, self.anchor)))
        return levels_of(self.target).seconds(cycles, moved, blocks)

    def _packed_cells(self, walk: Walk) -> int:
        """Cells of packed operands per block."""
        nest = self.readers[0]
        return sum(math.prod(g.box({**reduced(nest), **walk.cells(nest)})) for g in self.packed)

    @cached_property
    def _tile_cycles(self) -> Callable[[int, int, tuple[tuple[int, int], ...]], float]:
        @cache
        def cycles(lanes: int, vectors: int, tile: tuple[tuple[int, int], ...]) -> float:
            height = math.prod(size for _, size in tile) * vectors
            width = levels_of(self.target).vector_cost(lanes, self.bits)
            total = PRICES.tile + height * width
            for r in self.reads:
                terms = r.nest.size(r.nest.reduced)
                computed = height * width * r.computed * terms
                loaded = PRICES.loaded * self._loads(r, lanes, vectors, dict(tile))
                each = CPU.prices.chain if r.nest.values else CPU.prices.sum
                waiting = each * terms if terms > self.taps else 0.0  # tiles of few terms overlap
                total += max(computed, waiting, loaded) + CPU.prices.operation.overlap * min(computed, loaded)
            total *= 1.0 + max(0, height - CPU.prices.sums) / PRICES.crowded
            return total * (1.0 + PRICES.column * (max(tile)[1] - 1) if len(tile) > 1 else 1.0)

        return cycles

    # -- the steps

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        image = ""
        if self.image:
            with s.because("tile: windows read what is widened once"):
                image = self.image.stage(s)
        packs, walk = self.packs(s), self._walk(config)
        walk.walk(s, self.written(s), self.rows)
        self.sum_at(s, walk.tile, [config["vectors"], config["lanes"]] if config["vectors"] > 1 else [])
        for packed in packs:
            self._pack_at(s, packed, "" if config["pack"] else walk.blocks[-1], config["lanes"])
        if self.image:
            self.image.keep(s, image, walk.blocks[-1], config["lanes"])
        walk.finish(s)

    @cached_property
    def _walks(self) -> dict[tuple[object, ...], Walk]:
        return {}

    def _walked(self, c: Config) -> Walk:
        """Cached ``Walk`` of a configuration, for the cost model."""
        key = (*self._tile(c).values(), c["lanes"], c["vectors"], c["block"])
        if key not in self._walks:
            self._walks[key] = self._walk(c)
        return self._walks[key]

    def _walk(self, c: Config) -> Walk:
        nests, wanted = tuple(dict.fromkeys((*self.readers, self.anchor))), -(-self.anchor.cells // c["block"])
        sizes = {**self._tile(c), self.lane: c["lanes"] * c["vectors"]}
        widened = self.image is not None  # no element twice by blocks along axes that no window moves along
        first = {*range(len(self.extents))} - self.windowed if widened else set[int]()
        return Walk(nests, sizes, self.lane, c["lanes"], c["vectors"], wanted, first)

    def _pack_at(self, s: BaseSchedule, packed: str, block: str, lanes: int) -> None:
        lane = self.sums[0].spatial[self.lane].var
        if block:
            s.set_scope(packed, "shared").compute_at(packed, block)
        else:
            s.bind(s.loops(packed)[0], "block.x")
        last = f"{packed}.{self.sums[0].loops[lane].removeprefix(f'{self.sums[0].name}.')}"
        s.vectorize(s.split(last, [None, lanes], tail="shift")[1])
