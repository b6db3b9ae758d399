"""Scans that do not wait for each other, shared out to blocks and walked in order, several elements per step.

A core's lanes are adjacent columns, or consecutive elements of one row; a thread has a scan, and loads several elements
before it waits for the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.automatic.facts import widest_bits
from tensorir.automatic.levels import MOST_LANES
from tensorir.automatic.part import Config
from tensorir.automatic.rules.requests import SECTOR
from tensorir.automatic.rules.scan_part import ScanPart
from tensorir.gpu_devices import usual_gpu
from tensorir.ir.dims import most
from tensorir.ir.tree import Iter, Load, Store
from tensorir.ir.visit import find, uses
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.gpu_model import overlapped

REGISTERS = 64
"""Registers per thread for loaded elements."""
COPIED = 16
"""Maximum bytes of one thread's load."""


class ScanLanesPart(ScanPart):
    """Scans by cores: vector lanes are independent columns, or consecutive elements of one row.

    Knobs: ``block``, columns or rows per block; ``lanes`` per vector.
    """

    @property
    def columns(self) -> bool:
        """True if adjacent elements belong to different scans."""
        return self.last is not self.axis

    @cached_property
    def last(self) -> Iter:
        """The axis along which results are contiguous."""
        stores = [x for x in find(self.anchor.stage.body, Store) if x.buffer in self.graph.program.outputs or x.index]
        place = stores[-1].index[-1]
        return next((it for it in self.anchor.stage.iters if uses(place, {it.var})), self.axis)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        lanes = self.levels.lanes(self.bits, MOST_LANES, 1)[:2]
        return {"block": [512, 128, 2048] if self.columns else [16, 4, 64, 1], "lanes": lanes}

    def seconds(self, c: Config) -> float:
        """Modelled seconds: one combination per vector of columns, or a vector of each row after the other."""
        n, block, lanes = self.anchor, int(c["block"]), int(c["lanes"])
        prices = self.levels.machine.prices
        cycles = prices.sum if self.columns else self.vector_cycles(lanes)
        width = n.size([self.last]) if self.columns else n.cells
        blocks = n.cells // width * math.ceil(width / block)
        runs = 1 + 8 * prices.stream.rows / self.bits / block if self.columns and block < width else 1.0
        return self.levels.seconds(n.size(n.stage.iters) / lanes * cycles, n.moved * runs, blocks)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        (rows, axis), lanes = self.loops, config["lanes"]
        if self.columns:
            last = self.anchor.loops[self.last.var]
            others = [x for x in rows if x != last]
            block, group, lane = s.split(last, [None, max(1, config["block"] // lanes), lanes])
            s.reorder(*others, block, axis, group, lane)
            s.share_out(*others, block)
        else:
            if rows:
                s.reorder(*rows, axis)
                s.share_out(*rows, each=min(config["block"], self.anchor.cells))
            lane = s.split(axis, [None, lanes])[1]
        if lanes > 1:
            s.vectorize(lane)


class ThreadsPart(ScanPart):
    """Scans on a GPU, one per thread.

    Knobs: ``threads`` per block;  ``items``, elements a thread loads before combining them, to pay memory latency once;
    ``shared``, for rows: 1 if the block copies contiguous runs to shared memory, 0 if each thread loads its own row.
    """

    def knobs(self) -> Mapping[str, Sequence[object]]:
        items = [1, *(n for n in (4, 8, 16, 32) if n <= self.length)] if self.staged else [1]
        return {"threads": [128, 64, 32, 256], "items": items, "shared": [0, 1] if self.in_rows else [0]}

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        each = sum(max(4, widest_bits([self.anchor]) // 8) for _ in self.staged)
        return {
            "threads": lambda c: c["threads"] <= max(self.target.warp, 2 * self.anchor.cells),
            "registers": lambda c: bool(c["shared"]) or c["items"] * each <= 4 * REGISTERS,
            "shared": lambda c: (
                not c["shared"] or (c["items"] >= 8 and c["threads"] <= max(self.target.warp, self.width))
            ),
            "room": lambda c: not c["shared"] or c["threads"] * (c["items"] + 4) * each <= self.target.shared_bytes,
        }

    def seconds(self, c: Config) -> float:
        """Modelled seconds: memory traffic over the busy multiprocessors, uncoalesced sectors of loads and stores,
        latency per wave.
        """
        threads, items, shared = int(c["threads"]), int(c["items"]), bool(c["shared"])
        cells, gpu = self.anchor.cells, usual_gpu(self.target)
        blocks = cells // self.width * -(-self.width // threads) if shared else -(-cells // threads)
        busy = min(1.0, blocks / gpu.units)
        apart = self.in_rows and not shared  # neighbours read columns, and copies of rows, element by element
        wide = max(self._vector(x, items) or 1 for x in self.staged) if apart else 1
        elements = cells * self.length
        loads = elements * len(self.staged) / wide / (1 if apart else self.target.warp)
        stores = elements * len(self.anchor.writes) * (1 if self.in_rows else SECTOR / 8 / self.target.warp)
        waits = gpu.dram_latency + (2 * gpu.meeting(threads) if shared else 0.0)
        waits += items * gpu.combine + (gpu.shared_latency if shared else 0.0)
        resident = min(gpu.blocks, gpu.threads // threads) * gpu.units
        return gpu.launch_s + overlapped(
            self.anchor.moved / (gpu.copied * busy),
            loads / (gpu.issue * gpu.clock * gpu.units * busy),
            stores * SECTOR / (gpu.l2_rate * gpu.clock),
            math.ceil(blocks / resident) * math.ceil(self.length / items) * waits / gpu.clock,
        )

    def _vector(self, x: Load, items: int) -> int | None:
        """Elements per vector load of a row; None if it must be scalar."""
        size, row = widest_bits([self.anchor]) // 8, most(x.buffer.shape[-1])
        if x.index[-1] is not self.axis.var:
            return None
        return next((n for n in (16, 8, 4, 2) if n * size <= COPIED and items % n == 0 and row % n == 0), None)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        (rows, axis), items, shared = self.loops, config["items"], bool(config["shared"])
        s.reorder(*rows, axis)
        if shared:  # rows of a block follow each other in memory
            upper, thread = s.split(rows[-1], [None, config["threads"]])
            s.share_out(*rows[:-1], upper)
            s.bind(thread, "thread.x")
        else:
            _, thread = s.share_out(*rows, each=config["threads"], within="thread.x")
        if items == 1:
            return
        some, item = s.split(axis, [None, items])
        for x in self.staged:
            if shared:
                with s.because("scan: threads read rows for each other, which begin in banks of their own"):
                    pad = max(1, 32 // widest_bits([self.anchor]))
                    s.stage_in(x.buffer.name, at=some, scope="shared", pad=pad)
            else:
                with s.because("scan: a thread asks for several elements before it waits for the first"):
                    s.stage_in(x.buffer.name, at=some, scope="register", vector=self._vector(x, items))
        if not shared:
            s.unroll(item)
