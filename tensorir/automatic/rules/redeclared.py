"""Algorithms that replace declared ones before a plan is made, where they save more than they take: tables
(``algorithms/tables.py``), phases (``algorithms/phases.py``), ranges (``algorithms/ranges.py``) and horizontal fusion
(``algorithms/horizontal.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorir.algorithms.horizontal import divide, groups_of
from tensorir.algorithms.phases import SpreadSum, spread_of
from tensorir.algorithms.ranges import WindowRanges, ranges_of
from tensorir.algorithms.tables import entries_of
from tensorir.automatic.facts import vector_lanes
from tensorir.expr.program import computes_of, dims_of
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.machine import machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

GAIN = 4.0
"""Least ratio of the seconds that tables save to those of their kernels."""
RANGES_GAIN = 2.0
"""Least ratio of the terms of all windows to the operations of their ranges."""
TENSOR_BITS = 16
"""Widest elements that tensor cores multiply; gradients on them keep phases in one kernel (``conv_image.py``)."""


@dataclass(frozen=True)
class Redeclared:
    """Stage ``of``, or several, by another algorithm."""

    algorithm: str
    of: str | tuple[str, ...]
    reason: str

    def apply(self, s: BaseSchedule) -> None:
        with s.because(f"{self.algorithm}: {self.reason}"):
            s.redeclare(self.algorithm, of=self.of if isinstance(self.of, str) else list(self.of))


def redeclared(outputs: Sequence[Tensor], target: Target) -> tuple[Redeclared, ...]:
    """The stages of ``outputs`` that another algorithm computes; a name of several stages is none of them."""
    if dims_of(outputs):
        return ()
    ops = computes_of(outputs)
    names = [op.name for op in ops]
    alone = [op for op in ops if names.count(op.name) == 1]
    by_another = {op: r for op in alone if (r := _by_another(op, target)) is not None}
    ends = [g for g in groups_of(outputs) if {*g} <= {*alone} - {*by_another} and divide(g, outputs)]
    return (*map(_horizontal, ends), *by_another.values())


def _horizontal(ends: Sequence[Compute]) -> Redeclared:
    names = tuple(op.name for op in ends)
    return Redeclared("horizontal", names, "other stages read what they read: one kernel has all readers")


def _by_another(op: Compute, target: Target) -> Redeclared | None:
    if (spread := spread_of(op)) is not None and worth_phases(spread, target):
        return Redeclared("phases", op.name, f"{1 - spread.share:.0%} of the terms are zeros between elements")
    if target.kind == "cpu" and worth_tables(op, target):
        reason = "what depends on few axes alone is computed once for each of their values"
        return Redeclared("tables", op.name, reason)
    if target.kind == "cpu" and (ranges := ranges_of(op)) is not None and worth_ranges(ranges):
        return Redeclared("ranges", op.name, "each range of a window is two that overlap, of 2**k elements")
    return None


def worth_ranges(r: WindowRanges) -> bool:
    """True if ranges save ``RANGES_GAIN`` times the operations of their levels and lengths, and of reading them."""
    cells, elements = math.prod(map(int, r.op.extents)), math.prod(map(int, r.source.shape))
    return cells * r.terms > RANGES_GAIN * (cells * len(r.found) + elements * (r.levels + r.lengths))


def worth_tables(op: Compute, target: Target) -> bool:
    """True if tables of a stage save ``GAIN`` times the seconds of their kernels."""
    entries, machine = entries_of(op).values(), machine_of(target)
    saved = sum(e.operations * (e.reads - 1) * math.prod(e.extents) for e in entries)
    seconds = saved / (_rate(op, target) * machine.cores)
    return seconds > GAIN * len({tuple(map(id, e.axes)) for e in entries}) * machine.another_s


def worth_phases(spread: SpreadSum, target: Target) -> bool:
    """True if phases save more than their kernels take, and the one that joins them.

    Only for an image that a stage of its own spreads: one expression has NaN where a weight next to a zero is infinite.
    """
    op, machine = spread.op, machine_of(target)
    if not spread.apart:
        return False
    if target.kind == "gpu" and max(DTYPES[t.dtype].bits for t in op.inputs) <= TENSOR_BITS:
        return False
    cells = math.prod(op.extents)
    saved = cells * spread.terms * (1 - spread.share) / (_rate(op, target) * machine.cores)
    joined = cells * machine.prices.stream.joined / (machine.clock * machine.threads * machine.cores)
    return bool(saved > joined + (spread.stages + 1) * max(machine.launch_s, machine.least_s))


def _rate(op: Compute, target: Target) -> float:
    """Operations of one core per second, in vectors."""
    machine = machine_of(target)
    lanes = vector_lanes(target, max(DTYPES[t.dtype].bits for t in op.outputs)) if target.kind == "cpu" else 1
    return machine.prices.operation.issue * lanes * machine.clock * machine.threads
