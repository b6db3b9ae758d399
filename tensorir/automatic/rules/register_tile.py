"""Register tiles on CPUs for stages with overlapping reads that are no matrix products.

Grouped and depthwise convolutions, stencils, sums of three operands: vectors of cells along one axis, several rows of
them in registers, reduction loops inside, so that common elements are loaded once. Loops over tiles are cut where
padding conditions end, so that only border tiles evaluate them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property

from tensorir.arith.access import Group, grouped
from tensorir.automatic.facts import Graph, Nest, vector_lanes
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.packed import pack, packable
from tensorir.automatic.rules.product_view import product_view
from tensorir.automatic.rules.register_counts import Reads, reduced, slides
from tensorir.automatic.rules.register_image import image_of, widened
from tensorir.automatic.rules.register_walk import Walk
from tensorir.automatic.rules.stream import windows
from tensorir.engines.model import SPARE_REGISTERS, room
from tensorir.ir.dims import most
from tensorir.ir.structure import structure
from tensorir.ir.tree import Iter
from tensorir.machine import CPU, machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate

PRICES = CPU.prices.window
TAPS = 32
"""Maximum terms that are unrolled; longer sums keep loops over their outer axes."""


FEW_READS = 6
"""Reads of a cell up to which cells one after another are as fast: a tile goes through all of its rows at once, more of
them than caches fetch ahead.
"""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a stage whose cells read common elements, together with the sums that only it reads."""
    if not _reads_few(graph, anchor):
        yield from _tiles(graph, anchor, target)


def few(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield the part for a map of few reads, behind the stream that is usually faster."""
    if _reads_few(graph, anchor):
        yield from _tiles(graph, anchor, target)


def _reads_few(graph: Graph, anchor: Nest) -> bool:
    loads = {structure(x) for x in anchor.loads}
    return anchor.kind == "map" and not _sums(graph, anchor) and len(loads) <= FEW_READS


def _tiles(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    if target.kind != "cpu" or len(anchor.writes) != 1:
        return
    sums = [graph.nests[name] for name in _sums(graph, anchor)]
    shapes = {tuple(most(it.extent) for it in n.spatial) for n in (anchor, *sums)}
    if len(shapes) > 1 or any(product_view(n) for n in sums):
        return
    part = RegisterPart(graph, anchor, target, sums)
    if part.suits:
        yield part


def _sums(graph: Graph, anchor: Nest) -> tuple[str, ...]:
    """Names of the reductions that ``anchor`` is, or reads elementwise as their only reader."""
    if anchor.kind == "reduce":
        return (anchor.name,)
    return windows(graph, anchor, again=True)


class RegisterPart(Part):
    """Register tiles of ``rows`` x ``several`` x ``vectors`` of ``lanes`` cells; ``block``: cells per block; ``pack``:
    operands are packed by each block (0) or by a separate kernel (1).

    rows, several: sizes along the two axes with the most common reads
    """

    rule = "tile"

    def __init__(self, graph: Graph, anchor: Nest, target: Target, sums: Sequence[Nest]) -> None:
        super().__init__(graph, anchor, target, [n.name for n in sums])
        self.sums = tuple(sums)
        self.readers = self.sums or (anchor,)
        self.reads = [Reads(n) for n in self.readers]
        self.image = image_of(graph, self.reads[0]) if len(self.sums) == 1 else None
        if self.image and next(self.legal(), None) is None:
            self.image = None
        if self.image and self.image.made:
            self.names |= {self.image.made.name}
        self.reason = f"{anchor.cells} cells that share what they read, {self.terms} terms each"

    @property
    def name(self) -> str:
        return "tile_registers"

    # -- what the cells are like

    @property
    def terms(self) -> int:
        """Terms of the longest sum."""
        return max(n.size(n.reduced) for n in self.readers)

    @cached_property
    def cells(self) -> tuple[Iter, ...]:
        """Spatial axes of the anchor."""
        return self.anchor.spatial

    @cached_property
    def lane(self) -> int:
        """Index of the axis that lanes are along: the last one with several iterations."""
        long = [n for n, it in enumerate(self.cells) if most(it.extent) > 1]
        return long[-1] if long else 0

    @cached_property
    def shared(self) -> list[int]:
        """Indices of at most two axes for the tile's rows, the one with the fewest load cycles first."""
        found = []
        for n, it in enumerate(self.cells):
            if n != self.lane and most(it.extent) > 1 and any(self._shares(r, n) for r in self.reads):
                found.append((self._loaded(n), -n))
        return [-n for _, n in sorted(found)[:2]]

    def _shares(self, reads: Reads, axis: int) -> bool:
        return reads.shares(reads.nest.spatial[axis].var)

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
        lengths = [most(it.extent) for it in self.cells]
        if not lengths or lengths[self.lane] < 4 or not all(len(n.spatial) == len(self.cells) for n in self.readers):
            return False
        own = [g for r in self.reads for g in r.groups]
        if any(self._scattered(r, g) for r in self.reads for g in r.groups):
            return False
        if not self.sums:
            return any(g.count > 1 for g in own)
        return bool(self.shared) or any(
            slides(r.groups, [r.nest.spatial[self.lane]], r.nest.reduced) for r in self.reads
        )

    def _scattered(self, reads: Reads, g: Group) -> bool:
        """True if lanes would load an operand from distant addresses and it cannot be packed."""
        lane = reads.nest.spatial[self.lane].var
        step = g.step(lane)
        near = grouped([g.load], lane) > 1 if step is None else abs(step) <= 4
        return not near and not self._packable(reads, g)

    def _packable(self, reads: Reads, g: Group) -> bool:
        """True if the part has a single sum whose operand ``g`` can be stored in another order (``packable``)."""
        return len(self.sums) == 1 and reads.nest is self.sums[0] and packable(reads, g)

    @cached_property
    def packed(self) -> list[Group]:
        """Operands to pack, so that lanes load contiguous vectors."""
        if not self.sums:
            return []
        reads = self.reads[0]
        var = reads.nest.spatial[self.lane].var
        return [g for g in reads.groups if g.step(var) not in (0, 1, 2, -1) and self._packable(reads, g)]

    @property
    def ahead(self) -> bool:
        """True if all packed operands are constants, packed once ahead of time by a separate kernel."""
        return bool(self.packed) and all(g.load.buffer.name in self.graph.wishes.constants for g in self.packed)

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        length = most(self.cells[self.lane].extent)
        widest = vector_lanes(self.target, self.bits)
        longest = next(n for n in (16, 8, 4, 2) if n <= length)
        lanes = [n for n in (2 * widest, widest, widest // 2) if 1 < n <= longest] or [longest]
        knobs: dict[str, Sequence[object]] = {"lanes": lanes, "vectors": [1, 2, 3, 4]}
        for name, axis in zip(("rows", "several"), self.shared, strict=False):
            knobs[name] = self._sizes(axis)
        pack = {"pack": [1] if self.ahead else [0, 1]} if self.packed else {}
        return {**knobs, "block": [1 << n for n in (15, 13, 17, 11)], **pack}

    def _sizes(self, axis: int) -> list[int]:
        extent, alike = most(self.cells[axis].extent), self._alike(axis)
        return [n for n in (4, 2, 3, 1, 6, 8, 5) if n <= extent and (alike == 1 or alike % n == 0)]

    def _alike(self, axis: int) -> int:
        return max(grouped(n.loads, n.spatial[axis].var) for n in self.readers)

    def where(self) -> Mapping[str, Predicate]:
        length = most(self.cells[self.lane].extent)
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
        return {axis: c[name] for name, axis in zip(("rows", "several"), self.shared, strict=False)}

    @cached_property
    def _first(self) -> Config | None:
        return min(self.legal(pack=int(self.ahead)), key=self._seconds, default=None)

    def start(self) -> Config | None:
        return self._first

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def _seconds(self, c: Config) -> float:
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
                waiting = each * terms if terms > TAPS else 0.0  # tiles of few terms overlap
                total += max(computed, waiting, loaded) + CPU.prices.operation.overlap * min(computed, loaded)
            total *= 1.0 + max(0, height - CPU.prices.sums) / PRICES.crowded
            return total * (1.0 + PRICES.column * (max(tile)[1] - 1) if len(tile) > 1 else 1.0)

        return cycles

    # -- the steps

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        anchor, out, image = self.anchor, self.anchor.name, ""
        if self.image:
            with s.because("tile: windows read what is widened once"):
                image = self.image.stage(s)
        packs = list[str]()
        for g in self.packed:
            with s.because(f"tile: {g.load.buffer.name} is packed, so that lanes read vectors of it"):
                wide = widened(self.sums[0], g.load)
                packs.append(pack(s, self.reads[0], g, self.sums[0].spatial[self.lane].var, wide))
        if anchor.kind == "reduce":
            out = s.stage_out(anchor.name, at="root", scope="register").name
        walk = self._walk(config)
        walk.walk(s, [str(x) for x in s.loops(out)], self.shared)
        for n in self.sums:
            s.compute_at(n.name, walk.tile)
            if n is not anchor:
                s.set_scope(n.name, "register")
            self._summed(s, n, config)
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
        nests = dict.fromkeys((*self.readers, self.anchor))
        sizes = {**self._tile(c), self.lane: c["lanes"] * c["vectors"]}
        return Walk(
            tuple(nests), sizes, self.lane, c["lanes"], c["vectors"], -(-self.anchor.cells // c["block"]), self._apart
        )

    @cached_property
    def _apart(self) -> list[int]:
        """Axes that no window moves along: blocks distributed along them widen no element twice."""
        n, image = self.readers[0], self.image
        return [k for k, it in enumerate(n.spatial) if image and not slides([image.group], [it], n.reduced)]

    def _pack_at(self, s: BaseSchedule, packed: str, block: str, lanes: int) -> None:
        lane = self.sums[0].spatial[self.lane].var
        if block:
            s.set_scope(packed, "shared").compute_at(packed, block)
        else:
            s.bind(s.loops(packed)[0], "block.x")
        last = f"{packed}.{self.sums[0].loops[lane].removeprefix(f'{self.sums[0].name}.')}"
        s.vectorize(s.split(last, [None, lanes], tail="shift")[1])

    def _summed(self, s: BaseSchedule, n: Nest, c: Config) -> None:
        """Schedule one sum of the register tile: reduction loops outside, rows and vectors of the tile unrolled."""
        groups = self.reads[self.sums.index(n)].groups
        windows = [it for it in n.reduced if slides(groups, n.spatial, [it])]
        order = [*(it for it in n.reduced if it not in windows), *windows]
        terms = [n.loops[it.var] for it in order]
        lane = n.loops[n.spatial[self.lane].var]
        rows = [n.loops[n.spatial[axis].var] for axis in self.shared]
        others = [n.loops[it.var] for it in n.spatial if n.loops[it.var] not in (lane, *rows)]
        group = []
        if c["vectors"] > 1:
            first, lane = s.split(lane, [c["vectors"], c["lanes"]])
            group.append(first)
        s.reorder(*others, *terms, *rows, *group, lane)
        written = 1
        for loop, it in zip(reversed(terms), reversed(order), strict=True):
            written *= most(it.extent)
            if written <= TAPS:
                s.unroll(loop)
        for loop in (*rows, *group):
            s.unroll(loop)
        s.vectorize(lane)
