"""Scans in tiles (``tiled_scan``): totals of tiles, a scan of the totals, and a scan of each tile after its offset.

Cores have one long scan's tiles, each in vectors. The threads of a block have a scan, or a tile of it, in runs: a
thread sums up a run of elements, then scans it after the runs before. Runs of a row are copied to shared memory and
from there, so that neighbours access neighbours in memory; their length is odd, so that threads are in banks of their
own. A scan too long for a block is tiled twice, in tiles of blocks and in runs of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.arith.access import even
from tensorir.arith.affine import Arith
from tensorir.automatic.facts import Graph, Nest, widest_bits
from tensorir.automatic.levels import MOST_LANES, terms_of_threads
from tensorir.automatic.part import Config
from tensorir.automatic.rules.requests import SECTOR
from tensorir.automatic.rules.rolling_part import own_loops
from tensorir.automatic.rules.scan_part import ScanPart
from tensorir.engines.blocks import extent_of
from tensorir.gpu_devices import usual_gpu
from tensorir.ir.tree import Binary, Store
from tensorir.ir.visit import find, uses
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.gpu_model import overlapped

RUNS = (33, 17)
"""Elements of a run of a scan in tiles."""
MOST_THREADS = 512
"""Maximum threads per block."""
TOTALS = 256
"""Threads that sum up a tile."""


class TiledPart(ScanPart):
    """One long scan by cores in three steps: totals of tiles, exclusive scan of the totals, scan of each tile.

    Knobs: ``tile`` elements; ``lanes``: half as many save one step per vector but double the vectors, which pays if a
    step is several instructions.
    """

    rule = "tiled_scan"

    def knobs(self) -> Mapping[str, Sequence[object]]:
        steps = self.levels.lanes(self.bits, MOST_LANES, 1, order=(2, 1) if self.chooses else (1, 2))
        return {"tile": [4096, 1024, 2048], "lanes": steps}

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        return {"tiles": lambda c: c["tile"] < self.length}

    @property
    def chooses(self) -> bool:
        """True if the combiner is a minimum or maximum, which costs several instructions to propagate NaN."""
        return any(find(r, Binary, lambda x: x.op in ("max", "min")) for r in self.combiner.result)

    def seconds(self, c: Config) -> float:
        """Modelled seconds of three kernels: totals of tiles in vectors, a sum for each tile, scans of tiles."""
        tiles, lanes, levels = -(-self.length // int(c["tile"])), int(c["lanes"]), self.levels
        prices, moved = levels.machine.prices, self.anchor.moved
        summed = (self.anchor.operations + len(self.anchor.loads)) / prices.operation.issue
        totals = levels.seconds(self.length / self.lanes * summed, moved / 2, tiles)
        offsets = levels.seconds(tiles * prices.sum, 0.0, 1)
        return totals + offsets + levels.seconds(self.length / lanes * self.vector_cycles(lanes), moved, tiles)

    @property
    def lanes(self) -> int:
        """Lanes of the totals of tiles."""
        return self.levels.lanes(self.bits, MOST_LANES, 1)[0]

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        name = self.anchor.name
        s.redeclare("tiled_scan", tile=config["tile"])
        for n in self.graph.nests:
            if n != name:
                s.compute_inline(n)
        s.reverse_compute_inline(name)
        # an input may have such a name already
        total, local = (next(n for n in s.index.stages if n.startswith(f"{name}_{x}")) for x in ("total", "local"))
        self.levels.reduce(s, total, [f"{total}.u"], {"lanes": self.lanes, "vectors": self.levels.accumulators[0]})
        for stage in (total, local):
            s.bind(f"{stage}.t", "block.x")
        if config["lanes"] > 1:
            s.vectorize(s.split(f"{local}.u", [None, config["lanes"]])[1])


class BlockScanPart(ScanPart):
    """Scans on a GPU, each by ``threads`` of a block, ``rows`` of them per block."""

    @property
    def name(self) -> str:
        return "scan_blocks"

    @cached_property
    def alongside(self) -> bool:
        """True if runs are contiguous in memory and go through shared memory: rows, and scans that are alone."""
        return self.in_rows or not self.anchor.spatial

    @cached_property
    def bytes(self) -> int:
        """Bytes of an element of each staged array and of the result."""
        return max(4, widest_bits([self.anchor]) // 8)

    @property
    def states(self) -> int:
        """Values that the scan carries."""
        return len(self.combiner.identity)

    @cached_property
    def reverse(self) -> bool:
        """True if the scan runs against its axis."""
        moved = (i for x in find(self.anchor.stage.body, Store) for i in x.index if uses(i, {self.axis.var}))
        steps = (even(i, self.axis.var, Arith()) for i in moved)
        return any(step is None or step[0] < 0 for step in steps)

    def run(self, c: Config) -> int:
        """Elements per thread; those that go through shared memory are odd."""
        return int(c["run"]) or -(-self.length // c["threads"]) | int(self.alongside)

    def tiles(self, c: Config) -> int:
        """Tiles of a scan, a block each."""
        return -(-self.length // (self.run(c) * c["threads"]))

    def _shared(self, c: Config) -> int:
        """Bytes of shared memory per block: elements and results of runs, totals and offsets."""
        copies = (len(self.staged) if self.alongside else 0) + self.states * (self.alongside or c["run"] > 0)
        return int(c["rows"] * c["threads"] * (copies * self.run(c) + 2 * self.states) * self.bytes)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        most_rows = min(32, 1 << (self.width - 1).bit_length())
        rows = [n for n in (1, 2, 4, 8, 16, 32) if n <= most_rows]
        return {"threads": [32, 64, 16, 128], "rows": rows, "run": [0, *(n for n in RUNS if 16 * n < self.length)]}

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        most = min(MOST_THREADS, self.target.max_threads)
        return {
            "threads": lambda c: self.target.warp <= c["threads"] * c["rows"] <= most,
            "runs": lambda c: c["threads"] < self.length,
            "room": lambda c: self._shared(c) <= self.target.shared_bytes,
            "tiles": lambda c: not c["run"] or self.tiles(c) > 1,
        }

    def seconds(self, c: Config) -> float:
        """Modelled seconds: memory traffic over the busy multiprocessors, or the dependent steps of each wave."""
        gpu, threads, rows = usual_gpu(self.target), int(c["threads"]), int(c["rows"])
        run, tiles = self.run(c), self.tiles(c)
        blocks = self.anchor.cells // self.width * -(-self.width // rows) * tiles
        room = gpu.shared_bytes // (self._shared(c) + 1024)
        resident = max(1, min(gpu.blocks, gpu.threads // (threads * rows), room))
        busy = self.levels.machine.busy(blocks, threads * rows)
        sectors = 1.0 if self.alongside else max(1.0, SECTOR / (rows * self.bytes))
        moved = self.anchor.moved * (1.5 if tiles > 1 else 1.0) * sectors
        each = 2 * (gpu.shared_latency / gpu.loads + gpu.combine)
        each += 0.0 if self.alongside else (gpu.dram_latency + gpu.shared_latency) / gpu.loads
        copied = self.alongside * gpu.dram_latency * -(-run // (4 * gpu.loads))
        waits = gpu.start + gpu.dram_latency + copied + 6 * gpu.meeting(threads * rows)
        waits += run * each + threads * gpu.shared_latency
        waves = math.ceil(blocks / (resident * gpu.units))
        taken = overlapped(moved / (gpu.copied * busy), waves * waits / gpu.clock)
        if tiles > 1:  # two more kernels, the second of one block for each scan
            taken += 2 * gpu.launch_s + math.isqrt(tiles) * 4 * gpu.shared_latency / gpu.clock
        return gpu.launch_s + taken

    # -- the steps

    def declare(self, s: BaseSchedule, config: Config) -> None:
        name, run, tiles = self.anchor.name, self.run(config), self.tiles(config)
        s.redeclare("tiled_scan", tile=run * (config["threads"] if tiles > 1 else 1), of=name)
        if tiles > 1:
            s.redeclare("tiled_scan", tile=run, of=f"{name}_local")
            s.redeclare("tiled_scan", tile=math.isqrt(tiles - 1) | 1, of=f"{name}_offset")

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        name, rows, (others, place) = self.anchor.name, int(config["rows"]), self.loops
        copied = [x.buffer.name for x in self.staged] if self.alongside else []
        offset, local = _combined(s, name)
        if self.tiles(config) == 1:
            self._in_block(s, name, (offset, local), [*others, place], rows, copied, self.alongside)
            return
        inner, outer = _combined(s, local), _combined(s, offset)
        (total,) = _read_by(s, outer[1])
        self._totals(s, total.name, rows)
        self._in_block(s, offset, outer, s.loops(offset), 1, [b.name for b in total.writes], True)
        if self.states == 1:
            s.compute_inline(local)
        *others, place = self._forward(s, [*others, place]) if self.reverse else [*others, place]
        tile, place = s.split(place, [None, self.run(config) * config["threads"]])
        if self.states > 1:  # no one expression to inline
            s.reorder(*others, place).compute_at(local, place, scope="register")
        self._in_block(s, name, inner, [*others, place], rows, copied, True, tile)

    def _forward(self, s: BaseSchedule, loops: Sequence[str]) -> Sequence[str]:
        """Count the last one of the results' loops backwards, so that its blocks are tiles; return the new ones."""
        names = [x.rpartition(".")[2] for x in loops]
        return s.reindex(self.anchor.name, f"{', '.join([*names[:-1], '-' + names[-1]])} -> {', '.join(names)}")

    def _totals(self, s: BaseSchedule, total: str, rows: int) -> None:
        """Sum up each tile by the threads of a block, next to each other along the scan or across ``rows`` of them."""
        *others, t, u = s.loops(total)
        if self.alongside:
            self.levels.reduce(s, total, [u], {"threads": TOTALS})
            s.share_out(*others, t)
            return
        upper, row = s.split(others[-1], [None, rows])
        each, thread = terms_of_threads(s, total, u, TOTALS // rows)
        s.reorder(*others[:-1], upper, t, row, thread, each).bind(row, "thread.x").reduce_across(thread, "thread.y")
        s.share_out(*others[:-1], upper, t)

    def _in_block(
        self, s: BaseSchedule, name: str, parts: tuple[str, str], loops: Sequence[str], rows: int,
        copied: Sequence[str], kept: bool, tile: str = "",
    ) -> None:  # fmt: skip
        """Compute the scan ``name`` in blocks of ``rows`` from ``parts``, the offsets and scans of its runs.

        loops: of the scan, its own axis last;  copied: arrays that go through shared memory
        kept:  True if the scans of runs do as well, so that neighbours write neighbours;  tile: loop over its tiles
        """
        offset, local = parts
        total = next(n.name for n in _read_by(s, offset) if n.kind == "reduce")
        threads = extent_of(s, s.loops(offset)[-1])
        along, across = ("thread.x", "thread.y") if self.alongside else ("thread.y", "thread.x")
        if not kept:
            s.reverse_compute_inline(name)
            loops = s.loops(local)[:-1]
        *others, place = map(str, loops)
        tiled = [tile] if tile else []
        if others:
            upper, row = s.split(others[-1], [None, rows])
            s.reorder(*tiled, *others[:-1], upper, row, place)
            block = str(s.share_out(*tiled, *others[:-1], upper)[0])
            s.bind(row, across)
        else:
            block, place = (tile, place) if tile else s.split(place, [1, None])
            s.bind(block, "block.x")
        s.bind(s.split(place, [None, threads])[1] if kept else place, along)
        for stage in (local, offset, total) if kept else (offset, total):
            s.compute_at(stage, block, scope="shared")
        for stage in (total, offset, *([local] if kept else [])):
            own = own_loops(s, stage)
            if others:
                s.bind(own[len(others) - 1], across)
            if stage != offset:
                s.bind(s.split(own[len(others) + len(tiled)], [None, threads])[1], along)
        for b in copied:
            s.stage_in(b, at=block, scope="shared")


def _combined(s: BaseSchedule, name: str) -> tuple[str, str]:
    """Names of the stages that the tiled scan ``name`` combines: offsets of tiles, and scans of them."""
    offset, local = sorted(_read_by(s, name), key=lambda n: max(len(b.shape) for b in n.writes))
    return offset.name, local.name


def _read_by(s: BaseSchedule, name: str) -> list[Nest]:
    """Stages whose results stage ``name`` reads."""
    graph = Graph(s.program)
    return list(dict.fromkeys(graph.producers(graph.nests[name])))
