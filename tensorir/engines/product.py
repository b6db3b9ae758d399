"""``Product``: a matrix product inside a schedule, as CPU engines receive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensorir.engines.problems import Gemm
from tensorir.engines.steps import out_stage, written_by

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule


SHORT_RUN = 8
"""Least terms of an inner reduction loop that is unrolled; unrolled shorter windows keep common elements in registers
that accumulators need.
"""


class Product(NamedTuple):
    """A sum of products for an engine: ``stage`` adds up ``a`` times ``b``, for rows i and columns j, over terms k.

    out: stage that reads the sums, over the same rows and columns; "" to let ``out_stage`` find it
    outer: axes of the sums before rows and columns;  a_outer, b_outer: those that an operand depends on
    wide: dtype that packed operands are converted to, as in the stage
    runs: extents of inner loops over the reduction; addresses of an operand are recomputed outside of each
    a_copy, b_copy: stages that pack operands, once created
    keep: step that computes ``a`` for each block, at the loop it is given; None if ``a`` is computed elsewhere
    """

    stage: str
    a: str
    b: str
    outer: Sequence[str] = ()
    a_outer: Sequence[str] = ()
    b_outer: Sequence[str] = ()
    wide: str | None = None
    out: str = ""
    runs: Sequence[int] = ()
    a_copy: str = ""
    b_copy: str = ""
    keep: Callable[[str], None] | None = None

    def written(self, s: BaseSchedule, scope: str = "register") -> str:
        """Name of the stage that reads the accumulators: ``out``, else by ``out_stage``, which creates or fuses it.

        scope: memory of the accumulators, set for a created copy, and if "shared" for an epilogue
        """
        out = self.out or out_stage(s, self.stage, scope)
        if scope == "shared" and (self.out or out != f"{self.stage}.out"):  # an epilogue
            s.set_scope(written_by(s, self.stage), scope)
        return out

    def loops(self, stage: str, axes: str) -> list[str]:
        """Names of the leading loops of ``stage``, then of its one-letter ``axes``."""
        return [f"{stage}.{x}" for x in (*self.outer, *axes)]


def bind_outer(s: BaseSchedule, loops: Sequence[str]) -> BaseSchedule:
    """Fuse the leading loops and bind the result to ``block.z``, if there are any loops; returns ``s``."""
    if loops:
        s.share_out(*loops, to="block.z")
    return s


def sums_in_registers(s: BaseSchedule, of: Product, stage: str, p: Gemm, unroll: int) -> None:
    """Schedule ``stage``, a register tile of accumulators, with the reduction loops outside.

    unroll: unroll factor of the innermost reduction loop; 1 if ``of.runs`` ends in fewer than ``SHORT_RUN`` terms
    """
    if of.runs and stage == of.stage:
        s.split(f"{stage}.k", [None, *of.runs])
        unroll = unroll if of.runs[-1] >= SHORT_RUN else 1
    s.register_tile(f"{stage}.i", f"{stage}.j", lanes=p.vector_lanes, terms=unroll)
