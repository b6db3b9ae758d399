"""Scans on GPUs: base of their parts; one thread per scan, several elements per step."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.arith.access import along_last, even
from tensorir.arith.affine import Arith, Linear
from tensorir.automatic.facts import Nest, widest_bits
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.requests import SECTOR
from tensorir.gpu_devices import Gpu, usual_gpu
from tensorir.ir.dims import most
from tensorir.ir.structure import among
from tensorir.ir.tree import Axis, Iter, Load
from tensorir.ir.visit import uses
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.gpu_model import overlapped

REGISTERS = 64
"""Registers per thread for loaded elements."""
COPIED = 16
"""Maximum bytes of one thread's load."""


def along(anchor: Nest) -> Iter:
    """The axis that a scan runs along."""
    return next(it for it in anchor.stage.iters if it.axis is not Axis.SPATIAL)


class GpuScanPart(Part):
    """Base of parts for scans on GPUs: what is read, and in which order."""

    rule = "scan"

    @cached_property
    def axis(self) -> Iter:
        """The axis that scans run along."""
        return along(self.anchor)

    @cached_property
    def staged(self) -> tuple[Load, ...]:
        """Loads with stride 1 along the scan, of arrays loaded only once."""
        loads = [x for x in self.anchor.loads if x.buffer not in self.anchor.writes]
        alone = [x for x in loads if sum(y.buffer is x.buffer for y in loads) == 1]
        return tuple(x for x in alone if self._steps(x)) if self.anchor.constant else ()

    def _steps(self, x: Load) -> bool:
        """True if a load moves by one element of one dimension along the scan, and its other indices are plain axes."""
        own = {it.var for it in self.anchor.stage.iters}
        moved = [i for i in x.index if uses(i, {self.axis.var})]
        plain = all(i in own or not uses(i, own) for i in x.index if not among(i, moved))
        step, rest = (even(moved[0], self.axis.var, Arith()) if len(moved) == 1 else None) or (0, Linear({}, 0))
        return plain and abs(step) == 1 and not rest.terms

    @cached_property
    def in_rows(self) -> bool:
        """True if a scan reads a contiguous row: adjacent threads then read distant addresses."""
        return any(along_last(x, self.axis.var) for x in self.staged)

    @cached_property
    def length(self) -> int:
        """Elements of a scan; a symbolic extent counts as its maximum."""
        return most(self.axis.extent)

    @cached_property
    def row(self) -> Iter:
        """The axis that numbers adjacent rows of a block."""
        return self.anchor.spatial[-1]

    def start(self) -> Config | None:
        return self.fastest()

    def expected(self) -> Callable[[Config], float] | None:
        gpu = usual_gpu(self.target)
        return lambda c: self.seconds_on(gpu, c)

    @abstractmethod
    def seconds_on(self, gpu: Gpu, c: Config) -> float:
        """Modelled seconds of a configuration on a GPU."""


class ThreadsPart(GpuScanPart):
    """Scans on a GPU, one per thread.

    Knobs: ``threads`` per block;  ``items``, elements a thread loads before combining them, to pay memory latency once;
    ``shared``, for rows: 1 if the block copies contiguous runs to shared memory, 0 if each thread loads its own row.
    """

    def knobs(self) -> Mapping[str, Sequence[object]]:
        items = [1, *(n for n in (4, 8, 16, 32) if n <= self.length)] if self.staged else [1]
        return {"threads": [128, 64, 32, 256], "items": items, "shared": [0, 1] if self.in_rows else [0]}

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        each = sum(max(4, widest_bits([self.anchor]) // 8) for _ in self.staged)
        rows = most(self.row.extent)
        return {
            "threads": lambda c: c["threads"] <= max(self.target.warp, 2 * self.anchor.cells),
            "registers": lambda c: bool(c["shared"]) or c["items"] * each <= 4 * REGISTERS,
            "shared": lambda c: not c["shared"] or (c["items"] >= 8 and c["threads"] <= max(self.target.warp, rows)),
            "room": lambda c: not c["shared"] or c["threads"] * (c["items"] + 4) * each <= self.target.shared_bytes,
        }

    def seconds_on(self, gpu: Gpu, c: Config) -> float:
        """Modelled seconds: memory traffic over the busy multiprocessors, uncoalesced sectors of loads and stores,
        latency per wave.
        """
        threads, items, shared = int(c["threads"]), int(c["items"]), bool(c["shared"])
        cells, row = self.anchor.cells, most(self.row.extent)
        blocks = cells // row * -(-row // threads) if shared else -(-cells // threads)
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
        loops, items, shared = self.anchor.loops, config["items"], bool(config["shared"])
        axis, rows = loops[self.axis.var], [loops[it.var] for it in self.anchor.spatial]
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
