"""Common base of parts for windows: sums, image, operands to pack, and the steps that compute sums in registers.

========  ====================================  ===================================================
level     CPU (``CoreWindows``)                 GPU (``ThreadWindows``)
========  ====================================  ===================================================
block     tiles that a core walks               a tile of threads along up to three axes
near      image if widened, packed operands     image, operands that a row of threads has in common
register  rows of vectors                       a few cells along each tiled axis
lane      of a vector, along the last axis      a thread
========  ====================================  ===================================================
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar

from tensorir.arith.access import Group
from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.packed import pack, packable
from tensorir.automatic.rules.window_image import image_of, widened
from tensorir.automatic.rules.window_reads import Reads, slides
from tensorir.ir.dims import most
from tensorir.ir.tree import Iter
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target


class WindowPart(Part):
    """Register tiles of cells that read common elements: ``anchor``, and the sums that it is or reads elementwise.

    taps:    maximum terms that are unrolled
    readers: the sums; without one, the anchor
    reads:   loads of each reader
    image:   array that the windows of a single sum move over, if a block stages its part of it
    """

    rule = "tile"
    taps: ClassVar[int]

    def __init__(self, graph: Graph, anchor: Nest, target: Target, sums: Sequence[Nest]) -> None:
        super().__init__(graph, anchor, target, [n.name for n in sums])
        self.sums = tuple(sums)
        self.readers = self.sums or (anchor,)
        self.reads = [Reads(n) for n in self.readers]
        self.image = image_of(graph, self.reads[0], not self.levels.threaded) if len(self.sums) == 1 else None
        if self.image and next(self.legal(), None) is None:
            self.image = None
        if self.image and self.image.made:
            self.names |= {self.image.made.name}
        self.reason = f"{anchor.cells} cells that share what they read, {self.terms} terms each"

    # -- what the cells are like

    @property
    @abstractmethod
    def suits(self) -> bool:
        """True if the part is worth its tiles: cells next to each other read common elements."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[int]:
        """Indices of the axes of a tile's rows, outer ones first."""

    @abstractmethod
    def far(self, step: int | None) -> bool:
        """True if lanes whose loads are ``step`` elements apart (None: not constant) should read a packed operand."""

    @cached_property
    def extents(self) -> list[int]:
        """Cells along each axis."""
        return [most(it.extent) for it in self.anchor.spatial]

    @cached_property
    def lane(self) -> int:
        """Index of the axis that lanes are along: the last one with several iterations."""
        return max((n for n, extent in enumerate(self.extents) if extent > 1), default=0)

    @cached_property
    def terms(self) -> int:
        """Terms of the longest sum."""
        return max(n.size(n.reduced) for n in self.readers)

    @cached_property
    def windowed(self) -> set[int]:
        """Indices of the axes that windows of the image move along."""
        n, moved = self.readers[0], [self.image.group] if self.image else []
        return {k for k, it in enumerate(n.spatial) if slides(moved, [it], n.reduced)}

    @cached_property
    def packed(self) -> list[Group]:
        """Operands to pack, so that lanes load contiguous vectors."""
        reads = self.reads[0]
        var = reads.nest.spatial[self.lane].var
        return [g for g in reads.groups if self.packable(reads, g) and self.far(g.step(var))]

    def packable(self, reads: Reads, g: Group) -> bool:
        """True if the part has a single sum whose operand ``g`` can be stored in another order (``packable``)."""
        return len(self.sums) == 1 and packable(reads, g)

    def ordered(self, n: Nest) -> list[Iter]:
        """Reduction axes of a sum, those that windows move along last."""
        groups = self.reads[self.readers.index(n)].groups
        return sorted(n.reduced, key=lambda it: slides(groups, n.spatial, [it]))

    # -- the space

    @cached_property
    @abstractmethod
    def first(self) -> Config | None:
        """Default configuration; None if none is legal."""

    def start(self) -> Config | None:
        return self.first

    def expected(self) -> Callable[[Config], float] | None:
        return self.seconds

    @abstractmethod
    def seconds(self, c: Config) -> float:
        """Modelled seconds of a configuration."""

    # -- the steps

    def packs(self, s: BaseSchedule) -> list[str]:
        """Make a stage that packs each operand to pack; return their names. Cores convert narrow floats as well."""
        made = list[str]()
        for g in self.packed:
            with s.because(f"tile: {g.load.buffer.name} is packed, so that lanes read vectors of it"):
                n, reads = self.sums[0], self.reads[0]
                wide = None if self.levels.threaded else widened(n, g.load)
                made.append(pack(s, reads, g, n.spatial[self.lane].var, wide))
        return made

    def written(self, s: BaseSchedule) -> list[str]:
        """Loops of the stage that writes the cells: the anchor, or a copy of it if it is a sum."""
        n = self.anchor
        out = s.stage_out(n.name, at="root", scope="register").name if n.kind == "reduce" else n.name
        return [str(x) for x in s.loops(out)]

    def sum_at(self, s: BaseSchedule, tile: str, vectors: Sequence[int] = ()) -> None:
        """Compute the sums of a tile at loop ``tile``: terms outside, the tile's cells inside, in registers.

        vectors: number of vectors of a row, and their lanes; () for one
        """
        for n in self.sums:
            s.compute_at(n.name, tile)
            if n is not self.anchor:
                s.set_scope(n.name, "register")
            order = self.ordered(n)
            cells, terms = ([n.loops[it.var] for it in axes] for axes in (n.spatial, order))
            rows, lane = [cells[axis] for axis in self.rows], cells[self.lane]
            others = [x for x in cells if x not in (lane, *rows)]
            *more, lane = s.split(lane, vectors) if vectors else [lane]
            s.reorder(*others, *terms, *rows, *more, lane)
            inner = [k for k in range(len(terms)) if n.size(order[k:]) <= self.taps]
            for loop in (*(terms[k] for k in inner), *rows, *more):
                s.unroll(loop)
            self.levels.in_registers(s, lane)
