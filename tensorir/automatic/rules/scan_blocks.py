"""Scans on GPUs by the threads of blocks: a thread sums up a run of elements, then scans it behind the runs before.

Runs of a row are copied to shared memory and from there, so that neighbours access neighbours in memory; their length
is odd, so that threads are in banks of their own. A scan too long for a block is tiled twice: totals of tiles, a scan
of the totals, and a scan of each tile by a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from tensorir.automatic.facts import Graph, Nest, widest_bits
from tensorir.automatic.part import Config
from tensorir.automatic.rules.requests import SECTOR
from tensorir.automatic.rules.rolling import own_loops
from tensorir.automatic.rules.scan_gpu import BARRIERS, COMBINE_CYCLES, SHARED_CYCLES, WARP, GpuScanPart
from tensorir.engines.blocks import extent_of
from tensorir.gpu_devices import Gpu
from tensorir.ir.dims import most
from tensorir.ir.tree import Update
from tensorir.ir.visit import find, writes
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_model import BLOCK_START, DRAM_SHARE, LAUNCH_S, overlapped

RUN = 33
"""Elements of a run of a scan too long for a block."""
MOST_THREADS = 512
"""Maximum threads per block."""
FULL = 1024
"""Threads of a multiprocessor whose loads use its bandwidth."""
AHEAD = 4
"""Loads that a thread waits for together."""
TOTALS = 256
"""Threads that sum up a tile."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[BlockScanPart]:
    """Yield a part for scans with constant extents, if some configuration is legal."""
    if anchor.constant and all(u.combiner.commutative for u in find(anchor.stage.body, Update)):
        part = BlockScanPart(graph, anchor, target, reason=f"{anchor.cells} scans, each by threads side by side")
        if next(part.legal(), None):
            yield part


class BlockScanPart(GpuScanPart):
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

    @cached_property
    def width(self) -> int:
        """Scans along the last axis across them."""
        return most(self.row.extent) if self.anchor.spatial else 1

    def run(self, c: Config) -> int:
        """Elements per thread, odd for runs in shared memory; ``RUN`` if the scan is longer than a block's."""
        own = -(-self.length // c["threads"])
        own |= int(self.alongside)
        return RUN if self.alongside and self._shared(c, own) > self.target.shared_bytes else own

    def tiles(self, c: Config) -> int:
        """Tiles of a scan, a block each."""
        return -(-self.length // (self.run(c) * c["threads"]))

    def _shared(self, c: Config, run: int) -> int:
        """Bytes of shared memory per block: elements and results of runs, totals and offsets."""
        copies = run * (len(self.staged) + 1) if self.alongside else 0
        return int(c["rows"] * c["threads"] * (copies + 2) * self.bytes)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        most_rows = min(32, 1 << (self.width - 1).bit_length())
        return {"threads": [32, 64, 16, 128], "rows": [n for n in (1, 2, 4, 8, 16, 32) if n <= most_rows]}

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        return {
            "threads": lambda c: WARP <= c["threads"] * c["rows"] <= min(MOST_THREADS, self.target.max_threads),
            "runs": lambda c: c["threads"] < self.length,
            "room": lambda c: self._shared(c, self.run(c)) <= self.target.shared_bytes,
            "tiles": lambda c: self.tiles(c) == 1 or (c["rows"] == 1 and c["threads"] >= WARP),
        }

    def seconds_on(self, gpu: Gpu, c: Config) -> float:
        """Modelled seconds: memory traffic over the busy multiprocessors, or the dependent steps of each wave."""
        threads, rows, run, tiles = int(c["threads"]), int(c["rows"]), self.run(c), self.tiles(c)
        blocks = self.anchor.cells // self.width * -(-self.width // rows) * tiles
        room = gpu.shared_bytes // (self._shared(c, run) + 1024)
        resident = max(1, min(gpu.blocks, gpu.threads // (threads * rows), room))
        busy = min(1.0, blocks / gpu.units)
        busy *= min(1.0, threads * rows * min(resident, -(-blocks // gpu.units)) / FULL)
        sectors = 1.0 if self.alongside else max(1.0, SECTOR / (rows * self.bytes))
        moved = self.anchor.moved * (1.5 if tiles > 1 else 1.0) * sectors
        each = 2 * (SHARED_CYCLES / AHEAD + COMBINE_CYCLES)
        each += 0.0 if self.alongside else (gpu.dram_latency + SHARED_CYCLES) / AHEAD
        copied = self.alongside * gpu.dram_latency * -(-run // (4 * AHEAD))
        waits = BLOCK_START + gpu.dram_latency + 3 * BARRIERS + copied + run * each + threads * SHARED_CYCLES
        waves = math.ceil(blocks / (resident * gpu.units))
        return LAUNCH_S * (3 if tiles > 1 else 1) + overlapped(
            moved / (DRAM_SHARE * gpu.dram * busy), waves * waits / gpu.clock
        )

    # -- the steps

    def declare(self, s: BaseSchedule, config: Config) -> None:
        name, run = self.anchor.name, self.run(config)
        tiles = self.tiles(config)
        s.redeclare("tiled_scan", tile=run * (config["threads"] if tiles > 1 else 1), of=name)
        if tiles > 1:
            s.redeclare("tiled_scan", tile=run, of=f"{name}_local")
            s.redeclare("tiled_scan", tile=math.isqrt(tiles - 1) | 1, of=f"{name}_offset")

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        name, copied = self.anchor.name, [x.buffer.name for x in self.staged] if self.alongside else []
        if self.tiles(config) == 1:
            self._in_block(s, name, name, config["rows"], copied)
            return
        *own, t, u = s.loops(f"{name}_total")
        each, thread = s.split(u, [None, TOTALS])
        s.reorder(thread, each).reduce_across(thread, "thread.x")
        s.share_out(*own, t)
        totals = [b.name for b in writes(s.index.stages[f"{name}_total"].body)]
        self._in_block(s, f"{name}_offset", f"{name}_offset", 1, totals)
        s.compute_inline(f"{name}_local")
        s.split(s.loops(name)[-1], [None, self.run(config) * config["threads"]])
        self._in_block(s, name, f"{name}_local", 1, copied)

    def _in_block(self, s: BaseSchedule, name: str, of: str, rows: int, copied: Sequence[str]) -> None:
        """Compute the scan ``name`` in blocks of ``rows``, from the stages that the tiles of ``of`` are made in;
        ``copied``: arrays that go through shared memory.
        """
        total, offset, local = (f"{of}_{x}" for x in ("total", "offset", "local"))
        threads = extent_of(s, s.loops(offset)[-1])
        along, across = ("thread.x", "thread.y") if self.alongside else ("thread.y", "thread.x")
        if self.alongside:
            *leading, place = s.loops(name)
        else:
            s.reverse_compute_inline(name)
            *leading, place, _ = s.loops(local)
        if leading:
            upper, row = s.split(leading[-1], [None, rows])
            s.reorder(*leading[:-1], upper, row, place)
            (block,) = s.share_out(*leading[:-1], upper)
            s.bind(row, across)
        else:
            block, place = s.split(place, [1, None])
            s.bind(block, "block.x")
        s.bind(s.split(place, [None, threads])[1] if self.alongside else place, along)
        for stage in (local, offset, total) if self.alongside else (offset, total):
            s.compute_at(stage, block, scope="shared")
        for stage in (total, offset, *([local] if self.alongside else [])):
            own = own_loops(s, stage)
            if leading:
                s.bind(own[len(leading) - 1], across)
            if stage != offset:
                s.bind(s.split(own[len(leading)], [None, threads])[1], along)
        for b in copied:
            s.stage_in(b, at=block, scope="shared")
