"""Chains of stencils on CPUs in one kernel: before each tile of the last stage, what it reads of the stages upstream.

Intermediate results stay near. Tiles overlap: cells that windows of two tiles reach are computed for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from tensorir.arith.affine import Arith, structure
from tensorir.automatic.counts import PRICES, called
from tensorir.automatic.facts import Graph, Nest, vector_lanes, widest_bits
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.inline import worth
from tensorir.automatic.rules.row_chain import plain
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.tree import Binary, Buffer, Expr, Load
from tensorir.ir.visit import find
from tensorir.schedule.history import Name
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

MAX_STAGES = 24
"""Maximum stages upstream of a chain's last one."""
MARGINAL = 0.5
"""Least seconds that further stages save in a chain, relative to those before."""
MAX_OPS = 64
"""Operations of a cell with all stages inlined, up to which what is cheap is inlined: compilers find common rows."""
Form = tuple[dict[Expr, int], list[int]]
"""(axis -> factor, [least, largest] constant) of an index."""
Region = tuple[tuple[int, int], ...]
"""(first, last) index of a box of cells along each axis."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a map with the stencils upstream that save time in its kernel."""
    if target.kind != "cpu" or not _fits(anchor) or len(anchor.writes) > 1 or len(anchor.spatial) < 2:
        return
    chain, best, saved = list[Nest](), None, 0.0
    for n in _upstream(graph, anchor):
        chain.append(n)
        part = OverlapPart(graph, anchor, target, chain)
        if (config := min(part.legal(high=4), key=part._seconds, default=None)) is None:
            break
        gain, more = part.apart - part._seconds(config), len(part.near) - (len(best.near) if best else 0)
        each = saved / len(best.near) if best else 0.0
        if more > 0 and gain > 0.0 and gain - saved >= MARGINAL * each * more:
            best, saved = part, gain
    if best is not None and (best.inlined > MAX_OPS or any(not worth(graph, n, target) for n in best.near)):
        yield best


def _upstream(graph: Graph, anchor: Nest) -> Iterator[Nest]:
    """Maps upstream that only stages of the chain read, within boxes of cells; the last one first."""
    names = {anchor.name}
    for n in reversed(graph.nests.values()):
        if len(names) > MAX_STAGES:
            return
        readers = graph.readers(n)
        if n.name in names or not readers or not {r.name for r in readers} <= names or graph.is_output(n):
            continue
        reads = [(x, r) for r in readers for x in r.loads if x.buffer in n.writes]
        if _fits(n) and len(n.spatial) >= 2 and all(_shifted(x, r) for x, r in reads):
            names.add(n.name)
            yield n


def _fits(nest: Nest) -> bool:
    return nest.kind == "map" and nest.constant and not nest.empty and plain(nest)


def _shifted(load: Load, reader: Nest) -> bool:
    """True if a stage reads an array at sums of its axes and constants, contiguously along its last one, if at all."""
    last, known = reader.spatial[-1].var, {it.var for it in reader.spatial}
    arith = Arith({it.var: (0, most(it.extent) - 1) for it in reader.spatial})
    forms = [arith.linear(i) for i in load.index]
    steps = [f.terms.get(last, 0) for f in forms]
    return all(f.terms.keys() <= known for f in forms) and not any(steps[:-1]) and steps[-1] in (0, 1)


class OverlapPart(Part):
    """Tiles of ``rows`` x ``columns`` cells of the last two axes; ``high`` rows of vectors at a time.

    near:   stages whose results are stored for a tile, the first one first;  inline: the others
    """

    rule = "overlap"

    def __init__(self, graph: Graph, anchor: Nest, target: Target, chain: Sequence[Nest]) -> None:
        super().__init__(graph, anchor, target, [n.name for n in chain])
        ordered = [n for n in graph.nests.values() if n in chain]
        self.inline = [n for n in ordered if self._inlined(n)]
        self.near = [n for n in ordered if n not in self.inline]
        self.reason = f"tiles of {anchor.cells} cells, with what they read of {len(self.near)} stages near"

    def _inlined(self, n: Nest) -> bool:
        """True if a cell costs no more than an operation, or is read once, by one stage."""
        if len(n.writes) > 1:
            return False
        readers = self.graph.readers(n)
        if not n.calls and self._arithmetic(n) <= 1:
            return True
        places = {structure(x) for r in readers for x in r.loads if x.buffer in n.writes}
        return len(readers) == 1 and len(places) * readers[0].cells <= n.cells

    @staticmethod
    def _arithmetic(n: Nest) -> float:
        """Operations on values for each cell; minima and maxima count several."""
        extremes = find(n.stage.body, Binary, lambda x: x.op in ("min", "max") and is_float(x.dtype))
        return n.values + (PRICES.extreme - 1) * len(extremes)

    # -- what a tile takes

    @cached_property
    def _operations(self) -> dict[str, float]:
        """Operations on values for each cell of a stage, with what is inlined into it."""
        found: dict[str, float] = {}
        for n in (*self.inline, *self.near, self.anchor):
            self._count(n, found)
        return found

    def _count(self, n: Nest, found: dict[str, float]) -> float:
        if n.name not in found:
            inner = 0.0
            for b, (places, _) in _places(n).items():
                inner += sum(places * self._count(m, found) for m in self.inline if b in m.writes)
            found[n.name] = self._arithmetic(n) + called(n) * PRICES.issue + inner
        return found[n.name]

    @property
    def inlined(self) -> float:
        """Operations of a cell of the last stage, were all others inlined."""
        chain, found = {b: n for n in (*self.inline, *self.near) for b in n.writes}, dict[str, float]()
        for n in (m for m in self.graph.nests.values() if m.name in self.names):
            inner = (found[chain[b].name] * places for b, (places, _) in _places(n).items() if b in chain)
            found[n.name] = self._arithmetic(n) + sum(inner)
        return found[self.anchor.name]

    @cached_property
    def _sources(self) -> dict[str, list[tuple[int, int]]]:
        """(places, rows of them) of each array that a stage reads, by its name, inlined stages looked through."""
        found: dict[str, list[tuple[int, int]]] = {}
        made = {b: m for m in self.inline for b in m.writes}
        for n in (*self.inline, *self.near, self.anchor):
            found[n.name] = []
            for b, (places, rows) in _places(n).items():
                inner = found[made[b].name] if b in made else [(1, 1)]
                found[n.name] += [(p + places - 1, r + rows - 1) for p, r in inner]
        return found

    def _cell(self, n: Nest, high: int) -> float:
        """Cycles of a cell: operations, loads that rows of a tile share, and a store."""
        lanes = vector_lanes(self.target, widest_bits([n]))
        loads = sum(places / rows * (rows + high - 1) / high for places, rows in self._sources[n.name])
        return (self._operations[n.name] + loads + 1.0) / (PRICES.issue * lanes)

    @cached_property
    def outer(self) -> list[int]:
        """Axes before the last two, at most two, whose cells take nothing in common: tiles have one of them each."""
        extents = [most(it.extent) for it in self.anchor.spatial]
        whole, found = self._cells(self.regions(1, 1)), list[int]()
        for axis in range(len(extents) - 2):
            one = self._cells(self.regions(1, 1, [axis]))
            if len(found) < 2 and all(whole[k] == extents[axis] * n for k, n in one.items()):
                found.append(axis)
        return found

    @staticmethod
    def _cells(boxes: Mapping[str, Region]) -> dict[str, int]:
        return {k: math.prod(b - a + 1 for a, b in box) for k, box in boxes.items()}

    def regions(self, rows: int, columns: int, outer: Sequence[int] = ()) -> dict[str, Region]:
        """Boxes of cells that a tile in the middle takes of each stage near, by name; one cell along axes ``outer``."""
        sizes = [most(it.extent) for it in self.anchor.spatial]
        tile = [(n // 2, n // 2) if axis in outer else (0, n - 1) for axis, n in enumerate(sizes)]
        for axis, size in ((-2, rows), (-1, columns)):
            first = (sizes[axis] // 2) // size * size
            tile[axis] = (first, min(first + size, sizes[axis]) - 1)
        found: dict[str, Region] = {self.anchor.name: tuple(tile)}
        for n, reads in self._reads:
            ranges: dict[Expr, tuple[int, int]] = {it.var: found[n.name][d] for d, it in enumerate(n.spatial)}
            for name, places in reads:
                box = tuple(_range(forms, ranges) for forms in places)
                old = found.get(name, box)
                found[name] = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(old, box, strict=True))
        return found

    @cached_property
    def _reads(self) -> list[tuple[Nest, list[tuple[str, list[list[Form]]]]]]:
        """Stages, the last one first, with the indices at which each reads others of the chain, along each axis."""
        chain = {b: m for m in (*self.inline, *self.near) for b in m.writes}
        found = []
        for n in reversed([m for m in self.graph.nests.values() if m.name in self.names]):
            arith = Arith({it.var: (0, most(it.extent) - 1) for it in n.spatial})
            reads: dict[str, list[list[Form]]] = {}
            for b, at in n.places:
                if b in chain:
                    forms = reads.setdefault(chain[b].name, [[] for _ in at])
                    for mine, i in zip(forms, at, strict=True):
                        form = arith.linear(i)
                        terms = {v: int(k) for v, k in form.terms.items()}
                        if terms not in [x[0] for x in mine]:
                            mine.append((terms, [int(form.constant)] * 2))
                        ends = next(ends for x, ends in mine if x == terms)
                        ends[:] = min(ends[0], int(form.constant)), max(ends[1], int(form.constant))
            found.append((n, list(reads.items())))
        return found

    @cached_property
    def _taken(self) -> Callable[[int, int], dict[str, int]]:
        known: dict[tuple[int, int], dict[str, int]] = {}

        def taken(rows: int, columns: int) -> dict[str, int]:
            if (rows, columns) not in known:
                known[rows, columns] = self._cells(self.regions(rows, columns, self.outer))
            return known[rows, columns]

        return taken

    @property
    def apart(self) -> float:
        """Modelled seconds of a kernel for each stage near."""
        levels, nests = levels_of(self.target), (*self.near, self.anchor)
        blocks = 8 * levels.machine.cores
        return sum(levels.seconds(n.cells * self._cell(n, 4), n.moved, blocks) for n in nests)

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        height, width = (most(it.extent) for it in self.anchor.spatial[-2:])
        rows = [n for n in (32, 16, 64, 8, 4) if n <= height] or [height]
        columns = [n for n in (128, 256, 512, 64, 1024) if n <= width] or [width]
        return {"rows": rows, "columns": columns, "high": [n for n in (4, 2, 1) if n <= height]}

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        room = levels_of(self.target).near_bytes
        return {"room": lambda c: self._bytes(c) <= room, "rows": lambda c: c["high"] <= c["rows"]}

    def _bytes(self, c: Config) -> float:
        taken = self._taken(int(c["rows"]), int(c["columns"]))
        return sum(taken[n.name] * sum(DTYPES[b.dtype].bits for b in n.writes) / 8 for n in self.near)

    def start(self) -> Config | None:
        return self.fastest()

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def _seconds(self, c: Config) -> float:
        """Modelled seconds: cells of all tiles, overlaps included, and the memory traffic of inputs and results."""
        rows, columns, high = int(c["rows"]), int(c["columns"]), int(c["high"])
        height, width = (most(it.extent) for it in self.anchor.spatial[-2:])
        taken, down = self._taken(rows, columns), -(-height // rows)
        down *= math.prod(most(self.anchor.spatial[axis].extent) for axis in self.outer)
        tiles = down * -(-width // columns)
        cycles = tiles * sum(taken[n.name] * self._cell(n, high) for n in (*self.near, self.anchor))
        made = {b for n in self.near for b in n.writes}
        outside = {b for n in (*self.inline, *self.near, self.anchor) for b in (*n.reads, *n.writes)} - made
        outside -= {b for n in self.inline for b in n.writes}
        moved = sum(math.prod(map(most, b.shape)) * DTYPES[b.dtype].bits // 8 for b in outside)
        return levels_of(self.target).seconds(cycles, moved, down)

    # -- the steps

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        for n in self.inline:
            s.compute_inline(n.name)
        rows, columns = int(config["rows"]), int(config["columns"])
        *others, row, column = (self.anchor.loops[it.var] for it in self.anchor.spatial)
        block, row = s.split(row, [None, rows], tail="shift")
        tile, column = s.split(column, [None, columns], tail="shift")
        outer = [others[axis] for axis in self.outer]
        s.reorder(*outer, block, tile, *(x for x in others if x not in outer), row, column)
        for loop, to in zip((block, *outer), ("block.x", "block.y", "block.z"), strict=False):
            s.bind(loop, to)
        for n in reversed(self.near):
            s.compute_at(n.name, tile, scope="shared")
        self._in_vectors(s, self.anchor, row, column, config)
        for n in self.near:
            self._in_vectors(s, n, n.loops[n.spatial[-2].var], n.loops[n.spatial[-1].var], config)

    def _in_vectors(self, s: BaseSchedule, n: Nest, row: Name, column: Name, c: Config) -> None:
        lanes, high = vector_lanes(self.target, widest_bits([n])), int(c["high"])
        s.register_tile(row, column, sizes=[high, lanes], lanes=lanes, tail="shift")


def _range(forms: Sequence[Form], ranges: Mapping[Expr, tuple[int, int]]) -> tuple[int, int]:
    """(least, largest) value of some linear forms."""
    lows, highs = list[int](), list[int]()
    for terms, (low, high) in forms:
        ends = [(k * ranges[v][0], k * ranges[v][1]) for v, k in terms.items()]
        lows.append(low + sum(map(min, ends)))
        highs.append(high + sum(map(max, ends)))
    return min(lows), max(highs)


def _places(n: Nest) -> dict[Buffer, tuple[int, int]]:
    """(places, rows of them) at which a cell of a stage reads each array."""
    seen: dict[Buffer, set[object]] = {}
    rows: dict[Buffer, set[object]] = {}
    for x in n.loads:
        seen.setdefault(x.buffer, set()).add(structure(x))
        rows.setdefault(x.buffer, set()).add(tuple(map(structure, x.index[:-1])))
    return {b: (len(places), len(rows[b])) for b, places in seen.items()}
