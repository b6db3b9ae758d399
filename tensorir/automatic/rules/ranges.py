"""Ranges for largest and smallest elements of windows (``algorithms/ranges.py``), if they save half of the work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorir.algorithms.ranges import WindowRanges, ranges_of
from tensorir.expr.program import computes_of, dims_of
from tensorir.expr.tensor import Tensor
from tensorir.target import Target

GAIN = 2.0
"""Least ratio of the terms of all windows to the operations of their ranges."""


def ranged(outputs: Sequence[Tensor], target: Target) -> tuple[str, ...]:
    """Names of reductions that a CPU computes by ranges; a name of several stages is none of them."""
    if target.kind != "cpu" or dims_of(outputs):
        return ()
    ops = computes_of(outputs)
    names = [op.name for op in ops]
    return tuple(op.name for op in ops if names.count(op.name) == 1 and (r := ranges_of(op)) and worth(r))


def worth(r: WindowRanges) -> bool:
    """True if ranges save ``GAIN`` times the operations of their levels and of reading them."""
    cells, elements = math.prod(map(int, r.op.extents)), math.prod(map(int, r.source.shape))
    return cells * r.terms > GAIN * (cells * len(r.found) + elements * (r.levels + r.lengths))
