"""Base of scans' parts: what is read and stored, and in which order."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property

from tensorir.arith.access import along_last, even
from tensorir.arith.affine import Arith, Linear
from tensorir.automatic.part import Config, Part
from tensorir.ir.dims import most
from tensorir.ir.structure import among
from tensorir.ir.tree import Axis, Combiner, Iter, Load, Update
from tensorir.ir.visit import find, uses


class ScanPart(Part):
    """Scans that do not wait for each other: one for each cell of the spatial axes, along an axis that is walked in
    order.
    """

    rule = "scan"

    def start(self) -> Config | None:
        """The fastest configuration of the preferred lanes, of which the model knows no calls nor choices."""
        preferred = {name: values[0] for name, values in self.knobs().items() if name == "lanes"}
        return min(self.legal(**preferred), key=self.seconds, default=None)

    def expected(self) -> Callable[[Config], float]:
        return self.seconds

    @abstractmethod
    def seconds(self, c: Config) -> float:
        """Modelled seconds of a configuration."""

    @cached_property
    def axis(self) -> Iter:
        """The axis that scans run along."""
        return next(it for it in self.anchor.stage.iters if it.axis is not Axis.SPATIAL)

    @cached_property
    def loops(self) -> tuple[list[str], str]:
        """(loops over the scans, loop along them)."""
        loops = self.anchor.loops
        return [loops[it.var] for it in self.anchor.spatial], loops[self.axis.var]

    @cached_property
    def length(self) -> int:
        """Elements of a scan; a symbolic extent counts as its maximum."""
        return most(self.axis.extent)

    @cached_property
    def width(self) -> int:
        """Scans along the last axis across them: adjacent rows, or columns, of a block."""
        return most(self.anchor.spatial[-1].extent) if self.anchor.spatial else 1

    @cached_property
    def combiner(self) -> Combiner:
        """Combiner of the scans."""
        return find(self.anchor.stage.body, Update)[0].combiner

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

    def vector_cycles(self, lanes: int) -> float:
        """Cycles of a core to scan a vector of consecutive elements: log2(lanes) dependent steps."""
        prices = self.levels.machine.prices
        wide = prices.stream.wide_moves if lanes * self.bits >= 512 else 1.0
        return prices.sum * math.log2(max(2, lanes)) * wide
