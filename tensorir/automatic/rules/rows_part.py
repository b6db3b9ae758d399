"""Common base of parts for chains of row stages: number and length of rows, arrays accessed, the contiguous axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tensorir.automatic.facts import Graph, Nest, bytes_of
from tensorir.automatic.part import Part
from tensorir.automatic.rules.row_chain import Chain
from tensorir.automatic.rules.rows_split import splittable
from tensorir.automatic.rules.stream import all_along
from tensorir.engines.blocks import joint
from tensorir.ir.structure import identical
from tensorir.ir.tree import Buffer, Expr, Iter
from tensorir.ir.visit import uses
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target


class RowsPart(Part):
    """Chain of row stages as one kernel that handles one or a few rows at a time."""

    rule = "rows"

    def __init__(self, graph: Graph, target: Target, chain: Chain) -> None:
        self.chain = chain
        rows, passes = chain.count, ", ".join(n.name for n in (*chain.stages, chain.anchor))
        reason = f"{passes} of {rows} rows, {length_of(chain)} elements each, go through a row while it is near"
        super().__init__(graph, chain.anchor, target, [n.name for n in chain.stages], reason)

    @property
    def nests(self) -> tuple[Nest, ...]:
        """All stages, the anchor last."""
        return (*self.chain.stages, self.chain.anchor)

    @cached_property
    def rows(self) -> int:
        """Number of rows."""
        return self.chain.count

    @cached_property
    def length(self) -> int:
        """Elements of a row."""
        return length_of(self.chain)

    @cached_property
    def made(self) -> set[Buffer]:
        """Arrays that the chain computes before its last stage."""
        return {b for n in self.chain.stages for b in n.writes}

    @cached_property
    def outside(self) -> list[Buffer]:
        """Arrays in memory that the chain reads or writes."""
        near = self.made - {*self.graph.program.outputs}
        return [b for b in dict.fromkeys(b for n in self.nests for b in (*n.reads, *n.writes)) if b not in near]

    # -- rows in parts, for threads

    def in_parts(self, blocks: int, least: int) -> list[int]:
        """Numbers of parts of a row, of ``least`` elements each, if ``blocks`` leave cores idle; else []."""
        return self.levels.parts(max(1, blocks), self.length // least)[1:] if splittable(self.chain) else []

    def split_s(self, parts: int) -> float:
        """Modelled seconds that rows in ``parts`` cost: for each reduction a launch, and its parts in each block."""
        machine = self.levels.machine
        return len(self.chain.reduced) * (machine.launch_s + parts * machine.barrier / machine.clock) * (parts > 1)

    def trailing(self, s: BaseSchedule, n: Nest) -> str:
        """Fuse the axes along which a row is contiguous; return the loop."""
        return joint(s, [n.loops[it.var] for it in trailing(n, self.chain.within(n))])


def kept_bytes(chain: Chain) -> int:
    """Bytes of intermediate results per row; symbolic extents count as their maximum."""
    return sum(bytes_of(b) for n in chain.stages for b in n.writes) // max(1, chain.count)


def length_of(chain: Chain) -> int:
    """Elements of a row; symbolic extents count as their maximum."""
    return max(chain.length(n) for n in (*chain.stages, chain.anchor))


def shortest_end(chain: Chain) -> int:
    """Least extent of the last axis within a row, over the stages that have some."""
    return min(n.size(chain.within(n)[-1:]) for n in (*chain.stages, chain.anchor) if chain.within(n))


def trailing(n: Nest, axes: Sequence[Iter]) -> tuple[Iter, ...]:
    """Trailing axes contiguous in every load of the stage that depends on them; at least the last one."""
    found = tuple(axes)
    while len(found) > 1 and not all(_ends_with(x.index, found) for x in n.loads):
        found = found[1:]
    return found


def _ends_with(index: Sequence[Expr], axes: tuple[Iter, ...]) -> bool:
    own = tuple(it.var for it in axes)
    return identical(index[-len(own) :], own) or not any(uses(i, set(own)) for i in index)


def lies_along(chain: Chain) -> bool:
    """True if all loads of the chain's reductions that depend on the last reduction axis are contiguous along it."""
    return all(all_along(n, n.reduced[-1].var) for n in chain.reduced)
