"""Tables for what depends on few axes of a stage alone (``algorithms/tables.py``), if they save more than launches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorir.algorithms.tables import entries_of
from tensorir.automatic.counts import ISSUE
from tensorir.automatic.facts import vector_lanes
from tensorir.expr.program import computes_of, dims_of
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.machine import machine_of
from tensorir.target import Target

GAIN = 4.0
"""Least ratio of the seconds that tables save to those of their kernels."""


def tabulated(outputs: Sequence[Tensor], target: Target) -> tuple[str, ...]:
    """Names of stages that a CPU computes through tables; a name of several stages is none of them."""
    if target.kind != "cpu" or dims_of(outputs):
        return ()
    names = [op.name for op in computes_of(outputs)]
    return tuple(op.name for op in computes_of(outputs) if names.count(op.name) == 1 and worth(op, target))


def worth(op: Compute, target: Target) -> bool:
    """True if tables of a stage save ``GAIN`` times the seconds of their kernels."""
    entries, machine = entries_of(op).values(), machine_of(target)
    saved = sum(e.operations * (e.reads - 1) * math.prod(e.extents) for e in entries)
    lanes = vector_lanes(target, max(DTYPES[t.dtype].bits for t in op.outputs))
    seconds = saved / (ISSUE * lanes * machine.clock * machine.cores)
    return seconds > GAIN * len({tuple(map(id, e.axes)) for e in entries}) * (machine.launch_s + machine.wake_s)
