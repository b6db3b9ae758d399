"""Split reductions: few cells with many terms each; parts of the terms are reduced in parallel, then combined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorir.arith.access import dims_along
from tensorir.automatic.facts import Graph, Nest, vector_lanes
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.row_chain import chain_of
from tensorir.automatic.rules.rows_across import AcrossPart
from tensorir.automatic.rules.stream import add_parts
from tensorir.engines.blocks import joint
from tensorir.gpu_devices import usual_gpu
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate

CELLS = {"cpu": 8, "gpu": 256}
"""Maximum number of cells: more of them occupy all cores or multiprocessors anyway."""
TERMS = {"cpu": 1 << 13, "gpu": 1 << 12}
"""Least terms of a cell."""
MOST_DOTS = 64
"""Maximum cells of a product that read a part of its operands one after another, from the L2 cache."""
LARGEST_STRIDE = 4
"""Elements between terms that share a cache line, or vectors of it."""
LONG_SUM = 1 << 8
"""Least terms for one block, rather than one thread, per cell on a GPU."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a reduction of few cells, if a second kernel pays."""
    if _pays(graph, anchor, target):
        yield from _split(graph, anchor, target)


def others(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a reduction of few cells for which a second kernel does not pay, for use where no row reduction
    in one kernel applies.
    """
    if not _pays(graph, anchor, target):
        yield from _split(graph, anchor, target)


def shared(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a reduction of few cells with operand reuse (sums over pairs), for use where no tile applies.

    On GPUs also for more cells, with one block per cell, if the cells read little; on CPUs only with vectors.
    """
    threaded = levels_of(target).threaded
    if threaded and anchor.cells > CELLS["gpu"]:
        read = sum(DTYPES[x.dtype].bits // 8 for x in anchor.loads if x.buffer in anchor.reads)
        gpu = usual_gpu(target)  # blocks for all cells must not take longer to load than a thread for its terms
        most = int(gpu.read_and_multiply / gpu.clock * gpu.l1_ratio * gpu.copied / max(1, read))
        yield from _split(graph, anchor, target, again=True, cells=most, terms=LONG_SUM)
    else:
        parts = _split(graph, anchor, target, again=True)
        yield from (p for p in parts if threaded or next(p.legal())["lanes"] > 1)


def dots(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a product on a CPU whose operands, from memory and once, take longer than its multiply-adds, and
    are near each other along the terms: tiles of its cells would read them again and again.
    """
    levels, moved = levels_of(target), anchor.moved
    if levels.threaded or not anchor.reduced or moved <= levels.machine.levels[-2][0] * levels.machine.cores:
        return
    multiplied = anchor.cells * anchor.size(anchor.reduced) / vector_lanes(target, 32)
    if levels.machine.moved_s(moved) > levels.seconds(multiplied, 0, levels.machine.cores):
        parts = _split(graph, anchor, target, again=True, cells=MOST_DOTS)
        yield from (p for p in parts if _next_to_each_other(anchor))


def _next_to_each_other(nest: Nest) -> bool:
    """True if terms that follow each other are at most ``LARGEST_STRIDE`` elements apart in memory."""
    var = nest.reduced[-1].var
    places = ((x.buffer.shape, d) for x in nest.loads for d in dims_along(x, var))
    return all(math.prod(most(n) for n in shape[d + 1 :]) <= LARGEST_STRIDE for shape, d in places)


def _pays(graph: Graph, anchor: Nest, target: Target) -> bool:
    """True on CPUs; on GPUs if the terms of a cell take a multiprocessor longer than a kernel launch, unless adjacent
    threads can take one row each (``AcrossPart.suits``).
    """
    if not levels_of(target).threaded:
        return True
    terms = anchor.size(anchor.reduced) * sum(DTYPES[b.dtype].bits // 8 for b in anchor.reads)
    chain = chain_of(graph, anchor) if anchor.kind == "reduce" else None
    across = chain is not None and bool(chain.rows) and AcrossPart.suits(chain)
    gpu = usual_gpu(target)
    return terms / (gpu.l2_port * gpu.clock) > gpu.launch_s and not across


def _split(graph: Graph, anchor: Nest, target: Target, again: bool = False, cells: int | None = None,
           terms: int | None = None) -> Iterator[SplitPart]:  # fmt: skip
    """Yield a part for at most ``cells`` cells of at least ``terms`` terms.

    again: True for reductions with operand reuse, False for those without
    """
    cells, terms = CELLS[target.kind] if cells is None else cells, TERMS[target.kind] if terms is None else terms
    if anchor.kind != "reduce" or not anchor.constant or anchor.reuses != again:
        return
    found = anchor.size(anchor.reduced)
    if anchor.cells <= cells and found >= terms:
        why = f"{found} terms for each of {anchor.cells} cells, in parts side by side"
        yield SplitPart(graph, anchor, target, reason=why)


class SplitPart(Part):
    """Reduction in two kernels (partial sums, then their sum), or in one with a block per cell.

    Knobs: ``parts`` of the terms; per part ``lanes`` and ``vectors`` of accumulators on a CPU, ``threads`` on a GPU.
    """

    rule = "split_sum"

    @property
    def terms(self) -> int:
        """Number of terms summed for one cell of the result."""
        return self.anchor.size(self.anchor.reduced)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        if self.levels.threaded and self.anchor.cells > CELLS["gpu"]:
            return {"parts": [1], "threads": [n for n in (256, 128, 64) if n <= self.terms]}
        wanted: tuple[int, ...] = (128, 64, 256, 32, 16, 512) if self.levels.threaded else (16, 8, 32, 64, 4)
        if self.anchor.reuses and not self.levels.threaded:  # several cells read a part while it is in the L2 cache
            near = 1 << (2 * self.anchor.moved // self.levels.machine.caches[-1].nbytes).bit_length()
            wanted = (near, 2 * near, near // 2) if near > max(wanted) else wanted
        parts = [n for n in wanted if n * 1024 <= self.terms] or [4]
        if self.levels.threaded:
            return {"parts": parts, "threads": [256, 128]}
        widest = min(16, vector_lanes(self.target, self.bits))
        return {"parts": parts, "lanes": [widest, widest // 2, 1], "vectors": [4, 2, 8, 1]}

    def where(self) -> Mapping[str, Predicate]:
        if self.levels.threaded or len(self.anchor.reduced) == 1:
            return {}
        return {"whole": lambda c: self.terms % (c["parts"] * c["lanes"] * c["vectors"]) == 0 or c["lanes"] == 1}

    def expected(self) -> Callable[[Config], float] | None:
        return self._on_multiprocessors if self.levels.threaded else self._on_cores

    def _on_cores(self, c: Config) -> float:
        """Modelled seconds on a CPU: dependent additions to ``vectors`` accumulators, and a second kernel."""
        terms = self.terms * self.anchor.cells / c["lanes"]
        machine = self.levels.machine
        prices = machine.prices
        cycles = terms * max(self.anchor.operations / prices.operation.issue, prices.sum / c["vectors"])
        taken = self.levels.seconds(cycles, self.anchor.moved, c["parts"] * self.anchor.cells)
        return taken + machine.another_s

    def _on_multiprocessors(self, c: Config) -> float:
        machine, blocks = self.levels.machine, c["parts"] * self.anchor.cells
        moved = machine.moved_s(self.anchor.moved) * max(1.0, machine.cores / blocks)
        return machine.launch_s * (c["parts"] > 1) + moved + blocks * machine.turn / machine.clock

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        name, own = self.anchor.name, [self.anchor.loops[it.var] for it in self.anchor.spatial]
        terms = [self.anchor.loops[it.var] for it in self.anchor.reduced]
        s.reorder(*own, *terms)
        if config["parts"] == 1:
            self._in_lanes(s, name, [joint(s, terms)], config)
            return
        partial = str(s.rfactor(name, s.split(joint(s, terms), [config["parts"], None])[0]).name)
        self._in_lanes(s, partial, s.loops(partial)[-1:], config)
        if self.levels.threaded:
            add_parts(s, name, len(own))

    def _in_lanes(self, s: BaseSchedule, stage: str, terms: Sequence[str], c: Config) -> None:
        """Assign each cell of a stage to a block, and its terms to the lanes of the block."""
        cells = len(s.loops(stage)) - 1
        self.levels.reduce(s, stage, terms, c)
        near = not self.levels.threaded and self.anchor.reuses and c["parts"] > self.levels.machine.cores
        s.share_out(*s.loops(stage)[: 1 if near else cells])
