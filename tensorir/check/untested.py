"""What a check that found nothing wrong did not look at, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Axis, Const, Loop, Program, Stage, Stmt, Var
from tensorir.ir.visit import find


class Judged(Protocol):
    """What is asked of a schedule."""

    @property
    def edited(self) -> str | None: ...
    @property
    def program(self) -> Program: ...
    @property
    def inexact_by(self) -> float | None: ...


def untested(s: Judged) -> str:
    """Return what no run of ``s`` shows, each part after a semicolon.

    Edited text runs at its own shape alone, where a loop of one iteration carries nothing; an algorithm that
    approximates subtracts what it has added, which infinities do not survive, and is not asked to.
    """
    out = []
    if s.edited is not None and (loops := list(single_carries(s.program.body))):
        out.append(f"; loop of 1 iteration: its carry is not tested ({', '.join(loops)})")
    if s.inexact_by is not None:
        out.append(
            "; an infinity or NaN among the inputs is not tested: its algorithm may spread it over a tile as NaN"
        )
    return "".join(out)


def single_carries(body: Stmt) -> Iterator[str]:
    """Names of the loops of one iteration that a longer reduction or scan would go around again."""
    for loop in find(body, Loop):
        if isinstance(loop.extent, Const) and loop.extent.value == 1 and _carries(loop):
            yield loop.var.name


def _carries(loop: Loop) -> bool:
    reads = (b for s in find(loop.body, Stage) for i, b in zip(s.iters, s.binds, strict=True) if i.axis is Axis.REDUCE)
    return any(v is loop.var for b in reads for v in find(b, Var))


def no_numbers(outputs: Sequence[Tensor], want: Sequence[np.ndarray]) -> str:
    """Return at how many elements of floats the reference has no number, so that nothing is compared with it."""
    some = [np.asarray(w, np.float64) for t, w in zip(outputs, want, strict=True) if DTYPES[t.dtype].kind == "f"]
    lost, size = sum(int((~np.isfinite(w)).sum()) for w in some), sum(w.size for w in some)
    return f"; the reference has no number at {lost} of {size} elements" if lost else ""
