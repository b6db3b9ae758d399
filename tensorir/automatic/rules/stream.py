"""Streaming of independent cells over blocks, threads and lanes; the fallback rule, which schedules every stage."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorir.arith.access import along_last, dims_along
from tensorir.automatic.counts import OVERLAP, called
from tensorir.automatic.facts import Graph, Nest, bytes_of, vector_lanes, widest_bits
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.register_counts import PICKED_LANES, picked
from tensorir.automatic.rules.requests import WINDOW, Requests, Run
from tensorir.automatic.rules.row_chain import LONGEST_CHAIN
from tensorir.engines.blocks import add_by_tree
from tensorir.engines.gemm_blocks import multiprocessors
from tensorir.engines.model import crowding
from tensorir.ir.dims import most
from tensorir.ir.structure import identical
from tensorir.ir.tree import Iter, Select, Var
from tensorir.ir.visit import find, has, uses
from tensorir.machine import machine_of
from tensorir.prices import CORE_PRICES
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

THREADS = 256
BYTES_S = {"cpu": 10e9, "gpu": 1e12}
"""Approximate memory bandwidth in bytes per second; only ratios on one device matter."""
CACHE_RATIO = 8.0
"""Bandwidth of a GPU's L1 caches relative to its memory."""
ADDING = 64
"""Threads per block of a kernel that adds partial sums."""
JOIN_S = 2.5e-6
"""Seconds of a CPU kernel that adds partial sums, memory traffic excluded."""
SUM_CYCLES, STEP, LEFT = 2.6, 1.0, 10.0
"""Cycles between dependent additions to an accumulator, of a loop iteration's overhead, and of a loop's exit."""
TEST_CYCLES, SHUFFLE_CYCLES = 0.55, 4.0
"""Cycles of a guard per lane, and of a shuffle for loads with a condition per lane."""
NARROW_COST = 0.65
"""Cost of an operation on vectors of up to 32 bytes relative to 64: a core issues three per cycle instead of two."""
HANDED_S = 6e-6
"""Seconds until all cores have started on a kernel."""
UNEVEN_PART = 0.45
"""Load imbalance: fraction of a block by which cores finish apart."""
FAR_BYTES = 1 << 20
"""Bytes above which an array does not stay in a core's cache."""
RUNS = 110
"""Bytes that could be read contiguously in the time of a jump to another row."""


def on_cores(target: Target, cycles: float, moved: float, blocks: int) -> float:
    """Seconds of a CPU kernel of ``blocks`` blocks, with ``cycles`` cycles of arithmetic and ``moved`` bytes in all.

    A short kernel is modelled on one core, without the time to start others.
    """
    machine = machine_of(target)
    computed, fetched = cycles / machine.clock, moved / machine.rate(moved)
    alone = max(computed, fetched) + OVERLAP * min(computed, fetched)
    together = alone / (machine.cores * machine.balance(blocks)) * (1 + UNEVEN_PART / blocks) + HANDED_S
    return machine.launch_s + min(alone, together) + blocks * machine.block_s / machine.cores


def narrow(target: Target, lanes: int, bits: int) -> float:
    """Cost of an operation on ``lanes`` lanes of ``bits`` bits, in operations on the target's widest vectors.

    At least 1.0; ``NARROW_COST`` for up to half of a 64-byte vector
    """
    wide = lanes * bits / (8 * target.vector_bytes)
    return max(1.0, wide) if wide > 0.5 or target.vector_bytes < 64 else NARROW_COST


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
    last, lanes = anchor.size(anchor.spatial[-1:]), vector_lanes(target, widest_bits([anchor]))
    if anchor.spatial and (last == anchor.cells or 2 * last >= lanes) and (names := chained(graph, anchor)):
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
        if self.target.kind == "cpu":
            s.share_out(*loops)
        else:
            s.share_out(*loops, each=THREADS, within="thread.x")


class VectorPart(Part):
    """Cells in vectors along the last axis, with the reductions of a vector in registers.

    Knobs: ``block`` cells per block (threads on a GPU), ``lanes`` per vector, ``vectors`` per step.
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
        if self.target.kind == "gpu":
            most = self.target.max_threads
            blocks = [n for n in (256, 128, 512, *([64] if self._long else [])) if n <= most] or [most]
            return {"block": blocks, "lanes": self._gpu_lanes(), "vectors": [1]}
        widest = vector_lanes(self.target, self.bits)
        lanes = [n for n in (widest, 2 * widest, widest // 2) if 1 < n <= 16 and n <= self.length] or [1]
        vectors = [1, 2, 4] if self._reduces else [1]
        return {"block": [1 << n for n in (14, 12, 16, 10)], "lanes": lanes, "vectors": vectors}

    def _gpu_lanes(self) -> list[int]:
        most = 8 * self.target.vector_bytes // self.bits
        whole = self.anchor.constant
        return [n for n in (4, 2) if n <= most and whole and self.length % n == 0 and self._contiguous] + [1]

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
        moved = sum(n.moved for n in self._nests)
        if self.target.kind == "gpu":
            blocks = math.ceil(self.anchor.cells / (int(c["lanes"]) * int(c["block"])))
            idle = max(1.0, multiprocessors(self.target) / blocks) if self._long else 1.0
            return self._asked(int(c["lanes"]), moved) / BYTES_S["gpu"] * idle + abs(int(c["block"]) - 256) * 1e-12
        lanes, vectors = int(c["lanes"]), int(c["vectors"])
        return on_cores(self.target, self._cycles(lanes, vectors), self._moved(lanes * vectors), self._blocks(c))

    @property
    def _long(self) -> bool:
        """True if cells have more than ``WINDOW`` terms, so that few cells take long."""
        return self.anchor.size(self.anchor.reduced) > WINDOW

    @functools.cached_property
    def _requests(self) -> tuple[Requests, ...]:
        return tuple(map(Requests, self._nests))

    def _runs(self, lanes: int) -> list[tuple[Run, int]]:
        """(run, elements per load) of a GPU thread's vector loads; on CUDA, vector loads are made by staged copies
        alone.
        """
        nests = self._nests
        found = [run for r in self._requests for run in r.runs() if self.target.family == "cuda" or run.step > 1]
        across = self.flat and len(self.anchor.spatial) > 1 and self.anchor.size(self.anchor.spatial[-1:]) % lanes
        return [
            (run, together) for run in found
            if (together := run.together(lanes)) > 1 and not across and self.anchor.constant
            and sum(run.buffer in (*n.reads, *n.writes) for n in nests) == 1
            and (run.held(lanes) or (run.step == 1 and run.nest.reduced))
        ]  # fmt: skip

    def _asked(self, lanes: int, moved: int) -> float:
        """Bytes requested from a GPU's memory: more for scalar accesses and for uncoalesced sectors."""
        vectors = {run.buffer: together for run, together in self._runs(lanes)}
        if self.target.family != "cuda":
            vectors = {b: lanes for r in self._requests for b in r.arrays if lanes > 1} | vectors
        written = {b for r in self._requests for b in r.nest.writes if lanes > 1}
        alone = moved - sum(map(bytes_of, {*vectors, *written}))
        return moved + 0.1 * max(0, alone) + sum(r.more(lanes, vectors) for r in self._requests) / CACHE_RATIO

    def _blocks(self, c: Config) -> int:
        """Number of blocks of a configuration on a CPU: parts of a row, or several rows each."""
        step, block = int(c["lanes"]) * int(c["vectors"]), int(c["block"])
        rows = self.anchor.cells // self.length
        along = math.ceil(self.length / (step * math.ceil(min(block, self.length) / step)))
        return math.ceil(rows / max(1, min(block, self.anchor.cells) // self.length)) * along

    def _moved(self, step: int) -> float:
        """Bytes of memory traffic on a CPU, increased for large arrays accessed row by row."""
        run, found = max(64, step * self.bits // 8), 0.0
        for n in self._nests:
            down, lane = {it.var for it in n.reduced}, {it.var for it in n.spatial[-1:]}
            for b in (*n.reads, *n.writes):
                rows = [i for x in n.loads if x.buffer is b for i in x.index[:-1]]
                jumps = RUNS / run if any(uses(i, down) for i in rows) else 0.0
                jumps = RUNS / 64 if not n.reduced and any(uses(i, lane) for i in rows) else jumps
                found += bytes_of(b) * (1 + jumps if bytes_of(b) > FAR_BYTES else 1.0)
        return found

    def _cycles(self, lanes: int, vectors: int) -> float:
        """Cycles of all steps on a CPU: arithmetic or dependent sums, and lane-wise loads.

        A partial last vector of a row costs a guard per lane, unless lanes have conditions anyway.
        """
        step, wide = lanes * vectors, narrow(self.target, lanes, self.bits)
        whole, rest = divmod(self.length, step)
        cycles = 0.0
        for n in self._nests:
            terms, run = n.size(n.reduced), most(n.reduced[-1].extent) if n.reduced else 1
            each = vectors * (wide * (max(1, n.values) + called(n)) + self._picked(n, lanes))
            each += sum(
                step * CORE_PRICES.window.element * (1 + (crowding(step, pitch) - 1) / 4) for pitch in self._pitches(n)
            )
            asks = (vectors > 1 or not whole) and not self._shifts(step) and not has(n.stage.body, Select)
            waits, loop = (SUM_CYCLES, STEP + LEFT / run) if terms > WINDOW else (0.0, 0.0)
            row = whole * max(each + loop, waits)
            row += (rest > 0) * max((max(each, TEST_CYCLES * step) if asks else each) + loop, waits)
            cycles += self.anchor.cells / self.length * terms * row
        return cycles

    @staticmethod
    def _picked(n: Nest, lanes: int) -> float:
        """Cycles per vector for loads whose lanes are not contiguous or have a condition each."""
        found = 0.0
        for it in n.spatial[-1:]:
            asked = any(uses(x.cond, {it.var}) for x in find(n.stage.body, Select))
            alone = SHUFFLE_CYCLES if lanes <= PICKED_LANES else CORE_PRICES.window.element * lanes
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
        rows, last = ([], fused(s, own)) if self.flat else (own[:-1], own[-1])
        cpu = self.target.kind == "cpu"
        tile, lane = self._for_cores(s, rows, last, config) if cpu else self._for_threads(s, rows, last, config)
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
        for run, together in () if cpu else self._runs(lanes):
            at = tile if run.held(lanes) else run.nest.loops[run.nest.reduced[-1].var]
            with s.because(f"stream: {together} elements next to each other in a row are read at once"):
                s.stage_in(run.buffer.name, at=at, scope="register", vector=together)
        step = lanes * vectors
        if cpu and self._reduces and anchor.constant and step < self.length <= config["block"] and self.length % step:
            with s.because("stream: whole vectors apart from the last one of a row, which has a condition"):
                s.partition(tile, [self.length // step])

    def _for_cores(self, s: BaseSchedule, rows: list[str], last: str, c: Config) -> tuple[str, str]:
        step = c["lanes"] * c["vectors"]
        tile, lane = s.split(last, [None, step], tail="shift" if self._shifts(step) else "guard")
        if not rows:
            _, tile = s.share_out(tile, each=-(-min(c["block"], self.length) // step))
            return tile, lane
        block, tile = s.split(tile, [None, -(-min(c["block"], self.length) // step)])
        high = max(1, min(c["block"], self.anchor.cells) // self.length)
        across = self._across
        if across:  # the lines that a vector's lanes are read from serve the rows next to it
            high = min(max(high, 16), self.anchor.size([across]))
            rows = [x for x in rows if x != self.anchor.loops[across.var]]
            upper, row = s.split(self.anchor.loops[across.var], [None, high])
            s.reorder(*rows, upper, block, tile, row)
            s.share_out(*rows, upper, block)
            return row, lane
        inside: list[str] = []  # whole rows of rows, whose places need no division
        extents = {self.anchor.loops[it.var]: most(it.extent) for it in self.anchor.spatial}
        while len(rows) > 1 and extents[rows[-1]] <= high:
            high //= extents[rows[-1]]
            inside.insert(0, rows.pop())
        upper, row = s.split(fused(s, rows), [None, high])
        s.reorder(upper, block, row, *inside, tile)
        s.share_out(upper, block)
        return tile, lane

    def _shifts(self, step: int) -> bool:
        """True if the last vector of a row may be shifted back, so that some cells are stored twice."""
        once = self._reduces or any(self.graph.is_output(n) for n in self._nests if n is not self.anchor)
        return self.anchor.kind == "map" and self.anchor.constant and step <= self.length and not once

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

    def _for_threads(self, s: BaseSchedule, rows: list[str], last: str, c: Config) -> tuple[str, str]:
        group, lane = s.split(last, [None, c["lanes"]])
        _, thread = s.share_out(*rows, group, each=c["block"], within="thread.x")
        return thread, lane

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
    """The stage with its longest axis last, on a CPU for long reductions whose last axis is shorter than a vector; else
    unchanged.
    """
    if target.kind != "cpu" or not n.reduced or not n.constant or not n.spatial or n.size(n.reduced) <= WINDOW:
        return n
    longest, lanes = max(n.spatial, key=lambda it: n.size([it])), vector_lanes(target, widest_bits([n]))
    if n.size(n.spatial[-1:]) * 2 >= lanes or n.size([longest]) < lanes:
        return n
    return n.walked([*(it for it in n.spatial if it is not longest), longest])


def all_along(n: Nest, var: Var) -> bool:
    """True if some loads depend on axis ``var``, and each of them is contiguous along it."""
    loads = [x for x in n.loads if dims_along(x, var)]
    return bool(loads) and all(along_last(x, var) for x in loads)


def fused(s: BaseSchedule, loops: Sequence[str]) -> str:
    """Fuse nested ``loops``, outermost first, into one; return its name."""
    cell = loops[0]
    for loop in loops[1:]:
        cell = s.fuse(cell, loop)
    return cell


def add_parts(s: BaseSchedule, stage: str, cells: int) -> None:
    """Bind the kernel that adds partial sums on a GPU: by a tree, or one thread per cell; ``cells``: number of its
    spatial loops.
    """
    own = [str(x) for x in s.loops(stage)]
    if not add_by_tree(s, own[:cells], own[cells], ADDING) and cells:
        s.share_out(*s.loops(stage)[:cells], each=ADDING, within="thread.x")
