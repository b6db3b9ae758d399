"""Streaming of independent cells over blocks, threads and lanes; the fallback rule, which schedules every stage."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorir.arith.access import along_last, dims_along, wraps
from tensorir.automatic.counts import called
from tensorir.automatic.facts import Graph, Nest, bytes_of, vector_lanes, widest_bits
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.requests import WINDOW, Requests, Run
from tensorir.automatic.rules.row_chain import LONGEST_CHAIN
from tensorir.automatic.rules.window_reads import PICKED_LANES, picked
from tensorir.engines.blocks import add_by_tree, joint
from tensorir.engines.model import crowding
from tensorir.gpu_devices import usual_gpu
from tensorir.ir.dims import most
from tensorir.ir.structure import identical
from tensorir.ir.tree import Iter, Select, Var
from tensorir.ir.visit import find, has, uses
from tensorir.lower.vectorize import CONVERTED
from tensorir.machine import CPU
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

THREADS = 256
PRICES, L2 = CPU.prices.stream, CPU.caches[1]
ADDING = 64
"""Threads per block of a kernel that adds partial sums."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for a single stage: vectorized with the reductions only it reads, vectorized alone, cell by cell.

    Only the last for scans, scatters, single cells and stages without iterations.
    """
    if anchor.spatial and anchor.kind in ("map", "reduce") and not anchor.empty:
        if near := windows(graph, anchor):
            yield VectorPart(graph, anchor, target, near, f"{anchor.cells} cells, each with windows of its own")
        yield VectorPart(graph, lengthwise(anchor, target), target, reason=f"{anchor.cells} cells, each computed once")
    yield StreamPart(graph, anchor, target, reason=f"{anchor.cells} cells, each computed once")


def chained(graph: Graph, anchor: Nest) -> tuple[str, ...]:
    """Names of the maps over the cells of ``anchor``, a map, that only it and they read, each cell by cell."""
    if anchor.kind != "map" or not anchor.constant or not graph.producers(anchor):
        return ()
    chain, sizes = {anchor.name}, [anchor.size([it]) for it in anchor.spatial]
    for n in reversed(graph.nests.values()):
        if len(chain) == LONGEST_CHAIN:
            break
        readers = graph.readers(n)
        if n.kind != "map" or not readers or not {r.name for r in readers} <= chain:
            continue
        read = [(x, r) for r in readers for x in r.loads if x.buffer in n.writes]
        own = all(identical(x.index, tuple(it.var for it in r.spatial)) for x, r in read)
        if own and n.constant and [n.size([it]) for it in n.spatial] == sizes:
            chain.add(n.name)
    return tuple(chain - {anchor.name})


def chains(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a map with the maps that only it reads, cell by cell: iterated maps, values used twice."""
    last, least = anchor.size(anchor.spatial[-1:]), vector_lanes(target, widest_bits([anchor]))
    if anchor.spatial and (last == anchor.cells or 2 * last >= least) and (names := chained(graph, anchor)):
        why = f"{anchor.cells} cells, each through {len(names) + 1} stages in registers"
        yield VectorPart(graph, anchor, target, names, why)


def windows(graph: Graph, anchor: Nest, again: bool = False) -> tuple[str, ...]:
    """Names of the reductions that only ``anchor``, a map, reads, elementwise; () if none.

    again: True to include those that reuse two operands along different axes, as matrix products do
    """
    if anchor.kind != "map":
        return ()
    own = tuple(it.var for it in anchor.spatial)
    found = []
    for n in graph.producers(anchor):
        read = [x for x in anchor.loads if x.buffer in n.writes]
        alone = graph.readers(n) == [anchor] and not graph.is_output(n) and n.kind == "reduce"
        if alone and (again or not n.reuses) and all(identical(x.index, own) for x in read):
            found.append(n.name)
    return tuple(dict.fromkeys(found))


class StreamPart(Part):
    """A single stage, its cells distributed one by one."""

    rule = "stream"
    plainest = True

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        loops = [self.anchor.loops[it.var] for it in self.anchor.spatial]
        if not loops or not self.anchor.cells:
            return
        s.reorder(*loops, *(x for x in self.anchor.axes if x not in loops))
        self.levels.share_out(s, loops, THREADS if self.levels.threaded else None)


class VectorPart(Part):
    """Cells in vectors along the last axis, with the reductions of a vector in registers.

    Knobs: ``block``, cells or threads per block, ``lanes`` per vector, ``vectors`` per step.
    """

    rule = "stream"

    @property
    def along(self) -> Iter:
        """The vectorized axis."""
        return self.anchor.spatial[-1]

    @functools.cached_property
    def flat(self) -> bool:
        """True if all cells can be fused to one axis: each load is elementwise, or independent of the cell."""
        own = tuple(it.var for it in self.anchor.spatial)
        return len(self.names) == 1 and self.anchor.kind == "map" and all(
            identical(x.index, own) or not any(uses(i, set(own)) for i in x.index) for x in self.anchor.loads
        )  # fmt: skip

    @functools.cached_property
    def length(self) -> int:
        """Cells along the vectorized axis; symbolic extents count as their maximum."""
        return self.anchor.cells if self.flat else self.anchor.size(self.anchor.spatial[-1:])

    def knobs(self) -> Mapping[str, Sequence[object]]:
        even = self.length if self.anchor.constant and self._contiguous else 1
        lanes = [1] if self._one_by_one else self.levels.lanes(self.bits, self.length, even, order=(2, 1, 4))
        vectors = [1, 2, 4] if self._reduces and self.levels.accumulators else [1]
        return {"block": self.levels.cells(few=self._long), "lanes": lanes, "vectors": vectors}

    @property
    def _one_by_one(self) -> bool:
        """True if cores convert elements one by one when they are stored, all arrays being narrow."""
        stored = (b.dtype for n in self._nests for b in n.writes)
        return not self.levels.threaded and self.bits < 32 and any(dtype in CONVERTED for dtype in stored)

    @functools.cached_property
    def _contiguous(self) -> bool:
        """True if some load that depends on the vectorized axis is contiguous along it, or no load depends on it."""
        var = self.anchor.spatial[-1].var
        loads = [x for x in self.anchor.loads if any(uses(i, {var}) for i in x.index)]
        return not loads or any(along_last(x, var) for x in loads)

    @functools.cached_property
    def _reduces(self) -> tuple[Nest, ...]:
        return tuple(n for n in self._nests if n.reduced)

    def start(self) -> Config | None:
        return self.fastest()

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def _seconds(self, c: Config) -> float:
        """Modelled seconds of a configuration, for comparison with others on one device."""
        lanes, step, levels = int(c["lanes"]), int(c["lanes"]) * int(c["vectors"]), self.levels
        if not levels.threaded:
            return levels.seconds(self._cycles(lanes, step // lanes), self._jumped(step), self._blocks(c))
        blocks = math.ceil(self.anchor.cells / (step * int(c["block"]))) if self._long else levels.machine.cores
        return levels.seconds(0.0, self._asked(lanes), blocks, levels.machine.full)  # threads wait for memory alone

    @property
    def _long(self) -> bool:
        """True if cells have more than ``WINDOW`` terms, so that few cells take long."""
        return self.anchor.size(self.anchor.reduced) > WINDOW

    @functools.cached_property
    def _requests(self) -> dict[Nest, Requests]:
        return {n: Requests(n) for n in self._nests}

    def _runs(self, lanes: int) -> list[tuple[Run, int]]:
        """(run, elements per load) of a thread's vector loads, which on CUDA staged copies alone make."""
        nests = self._nests if self.levels.threaded else ()
        found = [run for n in nests for run in self._requests[n].runs() if self.target.family == "cuda" or run.step > 1]
        across = self.flat and len(self.anchor.spatial) > 1 and self.anchor.size(self.anchor.spatial[-1:]) % lanes
        return [
            (run, together) for run in found
            if (together := run.together(lanes)) > 1 and not across and self.anchor.constant
            and sum(run.buffer in (*n.reads, *n.writes) for n in nests) == 1
            and (run.held(lanes) or (run.step == 1 and run.nest.reduced))
        ]  # fmt: skip

    def _asked(self, lanes: int) -> float:
        """Bytes that threads request from memory: more for scalar accesses and for uncoalesced sectors."""
        moved = sum(n.moved for n in self._nests)
        vectors = {run.buffer: together for run, together in self._runs(lanes)}
        if self.target.family != "cuda":
            vectors = {b: lanes for r in self._requests.values() for b in r.arrays if lanes > 1} | vectors
        written = {b for r in self._requests.values() for b in r.nest.writes if lanes > 1}
        alone = moved - sum(map(bytes_of, {*vectors, *written}))
        gpu, more = usual_gpu(self.target), sum(r.more(lanes, vectors) for r in self._requests.values())
        return moved + gpu.words * max(0, alone) + more / gpu.l1_ratio

    def _blocks(self, c: Config) -> int:
        """Number of blocks that cores walk: parts of a row, or several rows each."""
        step, block = int(c["lanes"]) * int(c["vectors"]), int(c["block"])
        rows = self.anchor.cells // self.length
        along = math.ceil(self.length / (step * math.ceil(min(block, self.length) / step)))
        return math.ceil(rows / max(1, min(block, self.anchor.cells) // self.length)) * along

    def _jumped(self, step: int) -> float:
        """Bytes of a core's memory traffic, increased for large arrays accessed row by row."""
        run, found = max(CPU.line, step * self.bits // 8), 0.0
        for n in self._nests:
            down, lane = {it.var for it in n.reduced}, {it.var for it in n.spatial[-1:]}
            for b in (*n.reads, *n.writes):
                rows = [i for x in n.loads if x.buffer is b for i in x.index[:-1]]
                jumps = PRICES.rows / run if any(uses(i, down) for i in rows) else 0.0
                jumps = PRICES.rows / CPU.line if not n.reduced and any(uses(i, lane) for i in rows) else jumps
                found += bytes_of(b) * (1 + jumps if bytes_of(b) > L2.nbytes else 1.0)
        return found

    def _cycles(self, lanes: int, vectors: int) -> float:
        """Cycles of all steps of cores: arithmetic or dependent sums, and lane-wise loads.

        A partial last vector of a row costs a guard per lane, unless lanes have conditions anyway.
        """
        step, wide = lanes * vectors, self.levels.vector_cost(lanes, self.bits)
        whole, rest = divmod(self.length, step)
        cycles = 0.0
        for n in self._nests:
            terms, run = n.size(n.reduced), most(n.reduced[-1].extent) if n.reduced else 1
            each = vectors * (wide * (max(1, n.values) + called(n)) + self._picked(n, lanes))
            each += sum(
                step * CPU.prices.window.element * (1 + (crowding(step, pitch) - 1) / 4) for pitch in self._pitches(n)
            )
            asks = (vectors > 1 or not whole) and not self._shifts(step) and not has(n.stage.body, Select)
            waits, loop = (CPU.prices.sum, PRICES.step + PRICES.leave / run) if terms > WINDOW else (0.0, 0.0)
            row = whole * max(each + loop, waits)
            row += (rest > 0) * max((max(each, PRICES.test * step) if asks else each) + loop, waits)
            cycles += self.anchor.cells / self.length * terms * row
        return cycles

    @staticmethod
    def _picked(n: Nest, lanes: int) -> float:
        """Cycles per vector for loads whose lanes are not contiguous or have a condition each."""
        found = 0.0
        for it in n.spatial[-1:]:
            asked = any(uses(x.cond, {it.var}) for x in find(n.stage.body, Select))
            alone = PRICES.shuffle if lanes <= PICKED_LANES else CPU.prices.window.element * lanes
            found += sum(alone if asked else picked(x, it.var, lanes) for x in n.loads if uses(x, {it.var}))
        return found

    def _pitches(self, n: Nest) -> Iterator[int]:
        """Byte stride between adjacent lanes of each load across rows."""
        last = {n.spatial[-1].var} if n.spatial else set()
        for x in n.loads:
            at = next((d for d, i in enumerate(x.index[:-1]) if uses(i, last)), None)
            if at is not None:
                yield bytes_of(x.buffer) // max(1, math.prod(most(e) for e in x.buffer.shape[: at + 1]))

    # -- the steps

    @functools.cached_property
    def _nests(self) -> tuple[Nest, ...]:
        """All stages of the part; the anchor with the vectorized axis last."""
        found = [n for name, n in self.graph.nests.items() if name in self.names]
        return tuple(self.anchor if n.name == self.anchor.name else n for n in found)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        lanes, vectors = config["lanes"], config["vectors"]
        anchor, own = self.anchor, [self.anchor.loops[it.var] for it in self.anchor.spatial]
        inner = [x for x in anchor.axes if x not in own]
        s.reorder(*own, *inner)
        rows, last = ([], joint(s, own)) if self.flat else (own[:-1], own[-1])
        tile, lane = self._share_out(s, rows, last, config)
        group = None
        if vectors > 1:
            group, lane = s.split(lane, [vectors, lanes])
        s.reorder(tile, *inner, *([group] if group else []), lane)
        if anchor.reduced:
            with s.because("stream: partial results stay in registers until a cell is done"):
                copy = s.stage_out(anchor.name, at=tile, scope="register")
                if self.graph.nests[anchor.name].spatial[-1] is self.along:  # else a vector's cells are written apart
                    self._in_vectors(s, s.loops(copy.name)[-1], config)
        self._unrolled(s, anchor, inner)
        if group:
            s.unroll(group)
        if lanes > 1:
            s.vectorize(lane)
        for n in reversed(self._nests):  # a stage is computed where those that read it are
            if n is not anchor:
                self._nearby(s, n, tile, config)
        for run, together in self._runs(lanes):
            at = tile if run.held(lanes) else run.nest.loops[run.nest.reduced[-1].var]
            with s.because(f"stream: {together} elements next to each other in a row are read at once"):
                s.stage_in(run.buffer.name, at=at, scope="register", vector=together)
        step = lanes * vectors
        if self._reduces and anchor.constant and step < self.length <= config["block"] and self.length % step:
            with s.because("stream: whole vectors apart from the last one of a row, which has a condition"):
                s.partition(tile, [self.length // step])
        elif cuts := self._wraps(step, config):
            with s.because("stream: vectors within a period apart from those across its end"):
                s.partition(tile, cuts)

    def _share_out(self, s: BaseSchedule, rows: list[str], last: str, c: Config) -> tuple[str, str]:
        """Share out steps of adjacent cells; return the loop over steps of a block, and over cells of a step."""
        step = c["lanes"] * c["vectors"]
        tile, lane = s.split(last, [None, step], tail="shift" if self._shifts(step) else "guard")
        each = self.levels.steps(c["block"], self.length, step)
        if self.levels.threaded or not rows:
            return self.levels.share_out(s, [*rows, tile], each), lane
        return self._share_out_rows(s, rows, tile, c["block"], each), lane

    def _share_out_rows(self, s: BaseSchedule, rows: list[str], tile: str, cells: int, each: int) -> str:
        """Share out ``each`` steps of a row, or several rows, to blocks whose places need no division."""
        block, tile = s.split(tile, [None, each])
        high = max(1, min(cells, self.anchor.cells) // self.length)
        across = self._across
        if across:  # the lines that a vector's lanes are read from serve the rows next to it
            high = min(max(high, 16), self.anchor.size([across]))
            rows = [x for x in rows if x != self.anchor.loops[across.var]]
            upper, row = s.split(self.anchor.loops[across.var], [None, high])
            s.reorder(*rows, upper, block, tile, row)
            s.share_out(*rows, upper, block)
            return row
        inside: list[str] = []  # whole rows of rows
        extents = {self.anchor.loops[it.var]: most(it.extent) for it in self.anchor.spatial}
        while len(rows) > 1 and extents[rows[-1]] <= high:
            high //= extents[rows[-1]]
            inside.insert(0, rows.pop())
        upper, row = s.split(joint(s, rows), [None, high])
        s.reorder(upper, block, row, *inside, tile)
        s.share_out(upper, block)
        return tile

    def _wraps(self, step: int, config: Config) -> list[int]:
        """Steps of a row at which indices begin to wrap around, and no longer do."""
        within = not self.levels.threaded and self.anchor.constant and self._shifts(step) and len(self.names) == 1
        if not within or self.flat or self._across or step == 1 or not step < self.length <= config["block"]:
            return []
        places = wraps(self.anchor.loads, self.along.var, self.length)
        first = [min(n, self.length - step) for n in range(0, self.length, step)]
        sides = [(sum(p <= n for p in places), sum(p < n + step for p in places)) for n in first]
        return [n for n in range(1, len(sides)) if sides[n] != sides[n - 1]]

    def _shifts(self, step: int) -> bool:
        """True if the last vector of a row may be shifted back, so that some cells are stored twice."""
        once = self._reduces or any(self.graph.is_output(n) for n in self._nests if n is not self.anchor)
        whole = self.levels.threaded or not self.anchor.constant or step > self.length
        return self.anchor.kind == "map" and not whole and not once

    @functools.cached_property
    def _across(self) -> Iter | None:
        """Axis along which a load is contiguous that is strided along the last axis, as in a transpose; None if there
        is none, or if the part is no single map.
        """
        if self.anchor.kind != "map" or len(self.names) > 1:
            return None
        last = self.anchor.spatial[-1].var
        strided = [x for x in self.anchor.loads if any(uses(i, {last}) for i in x.index[:-1]) and x.index]
        for it in self.anchor.spatial[:-1]:
            if any(along_last(x, it.var) for x in strided):
                return it
        return None

    def _unrolled(self, s: BaseSchedule, n: Nest, loops: Sequence[str]) -> None:
        if loops and n.constant and n.size(n.reduced) <= WINDOW:
            for x in loops:
                s.unroll(x)

    def _nearby(self, s: BaseSchedule, n: Nest, tile: str, config: Config) -> None:
        s.compute_at(n.name, tile, scope=self.scope(n, "register"))
        reduced = [n.loops[it.var] for it in n.reduced]
        last = n.loops[n.spatial[-1].var]
        others = [x for x in n.axes if x not in (*reduced, last)]
        s.reorder(*others, *reduced, last)
        self._unrolled(s, n, reduced)
        self._in_vectors(s, last, config)

    def _in_vectors(self, s: BaseSchedule, loop: str, c: Config) -> None:
        if c["vectors"] * c["lanes"] > 1:
            s.register_tile(loop, lanes=c["lanes"])


def lengthwise(n: Nest, target: Target) -> Nest:
    """The stage with its longest axis last, for long reductions whose last axis is shorter than a core's vector; else
    unchanged.
    """
    if levels_of(target).threaded or not n.reduced or not n.constant or not n.spatial or n.size(n.reduced) <= WINDOW:
        return n
    longest, lanes = max(n.spatial, key=lambda it: n.size([it])), vector_lanes(target, widest_bits([n]))
    if n.size(n.spatial[-1:]) * 2 >= lanes or n.size([longest]) < lanes:
        return n
    return n.walked([*(it for it in n.spatial if it is not longest), longest])


def all_along(n: Nest, var: Var) -> bool:
    """True if some loads depend on axis ``var``, and each of them is contiguous along it."""
    loads = [x for x in n.loads if dims_along(x, var)]
    return bool(loads) and all(along_last(x, var) for x in loads)


def add_parts(s: BaseSchedule, stage: str, cells: int) -> None:
    """Bind the kernel that adds partial sums on a GPU: by a tree, or one thread per cell; ``cells``: number of its
    spatial loops.
    """
    own = [str(x) for x in s.loops(stage)]
    if not add_by_tree(s, own[:cells], own[cells], ADDING) and cells:
        s.share_out(*s.loops(stage)[:cells], each=ADDING, within="thread.x")
