"""Common code of rules for products of matrices: the sum that they claim, its epilogue, and the engine for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Generic, TypeVar

from tensorir.arith.affine import structure
from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.engines.problems import Gemm
from tensorir.engines.tiles import Tile
from tensorir.ir.structure import identical
from tensorir.ir.tree import Var
from tensorir.target import Target
from tensorir.tune.legal import Predicate

E = TypeVar("E", bound=Tile[Gemm])


def summed(graph: Graph, anchor: Nest, narrow: bool = False) -> Nest | None:
    """The sum with reuse that ends with a stage: itself, or what it reads one to one as the only reader.

    narrow: of the sums that are products of one row or one column instead
    """

    def suits(nest: Nest) -> bool:
        return is_narrow(nest) if narrow else nest.reuses

    if anchor.kind == "reduce":
        return anchor if suits(anchor) else None
    if anchor.kind != "map" or len(anchor.writes) > 1:
        return None
    for nest in graph.producers(anchor):
        if suits(nest) and not graph.is_output(nest) and graph.readers(nest) == [anchor] and _in_step(anchor, nest):
            return nest
    return None


def is_narrow(nest: Nest) -> bool:
    """True when a sum is a product of two matrices, stored as such, one of which has a single row or column."""
    if nest.kind != "reduce" or nest.reuses or len(nest.reduced) != 1:
        return False
    loads = {structure(x): x for x in nest.loads if x.buffer not in nest.writes}.values()
    if len(loads) != 2 or not all(isinstance(i, Var) for x in loads for i in x.index):
        return False
    a, b = (nest.along(x) for x in loads)
    return all(nest.reduced[0] in x and [it for it in x if it not in y] for x, y in ((a, b), (b, a)))


def _in_step(reader: Nest, made: Nest) -> bool:
    """True when each cell of a map reads the one cell of ``made`` at the same place."""
    own = tuple(it.var for it in reader.spatial)
    return all(identical(x.index, own) for x in reader.loads if x.buffer in made.writes)


def spread(values: Sequence[object], first: object, most: int) -> list[object]:
    """At most so many of the values of a knob, ``first`` in front, and the others evenly from what there is."""
    others = [v for v in values if v != first]
    kept = min(most - 1, len(others))
    return [first, *(others[n * len(others) // kept] for n in range(kept))]


class ProductPart(Part, Generic[E]):
    """A product of matrices, by an engine whose knobs are its own.

    values: how many values of each knob are searched where other parts of a schedule have knobs as well
    """

    rule = "tile"
    values: Mapping[str, int]

    def __init__(self, graph: Graph, anchor: Nest, target: Target, total: Nest, p: Gemm, engine: type[E],
                 names: Sequence[str] = ()) -> None:  # fmt: skip
        self.p, self.total, self.engine = p.on(target), total, engine
        why = f"a product of {p.m} x {p.n} sums of {p.k} terms" + (f", {p.batch} times" if p.batch > 1 else "")
        super().__init__(graph, anchor, target, (total.name, *names), why)

    @property
    def epilogue(self) -> str:
        """The stage that takes the sums one to one; "" where there is none."""
        return self.anchor.name if self.anchor is not self.total else ""

    @cached_property
    def every(self) -> Mapping[str, Sequence[object]]:
        """The engine's knobs with all their values."""
        return self.engine.knobs(self.p, self.target)

    @cached_property
    @abstractmethod
    def first(self) -> Config:
        """The start of the engine; empty where nothing is legal."""

    def knobs(self) -> Mapping[str, Sequence[object]]:
        first = self.first
        if self.alone:
            return self.every
        return {
            name: spread(values, first.get(name, values[0]), self.values[name]) for name, values in self.every.items()
        }

    def where(self) -> Mapping[str, Predicate]:
        return self.engine.where(self.p, self.target)

    def start(self) -> Config | None:
        return self.first or None

    @abstractmethod
    def expected(self) -> Callable[[Config], float] | None:
        """The seconds that the engine's model expects."""
