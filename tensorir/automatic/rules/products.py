"""Common base of rules for matrix products: the reduction they claim, its epilogue, and the engine's knobs."""

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
    """The reduction with operand reuse that ``anchor`` is, or reads elementwise as its only reader; None if there is
    none.

    narrow: True for products of one row or one column instead
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
    """True if a reduction is a product of two stored matrices, one of which has a single row or column."""
    if nest.kind != "reduce" or nest.reuses or len(nest.reduced) != 1:
        return False
    loads = {structure(x): x for x in nest.loads if x.buffer not in nest.writes}.values()
    if len(loads) != 2 or not all(isinstance(i, Var) for x in loads for i in x.index):
        return False
    a, b = (nest.along(x) for x in loads)
    return all(nest.reduced[0] in x and [it for it in x if it not in y] for x, y in ((a, b), (b, a)))


def _in_step(reader: Nest, made: Nest) -> bool:
    """True if each cell of the map ``reader`` reads only the cell of ``made`` at its own indices."""
    own = tuple(it.var for it in reader.spatial)
    return all(identical(x.index, own) for x in reader.loads if x.buffer in made.writes)


def spread(values: Sequence[object], first: object, most: int) -> list[object]:
    """At most ``most`` values of a knob: ``first``, then evenly spaced others."""
    others = [v for v in values if v != first]
    kept = min(most - 1, len(others))
    return [first, *(others[n * len(others) // kept] for n in range(kept))]


class ProductPart(Part, Generic[E]):
    """Part (claimed stages with their schedule) for a matrix product; knobs, constraints and costs come from an engine.

    engine: tile class of ``tensorir.engines``;  p: the product
    values: maximum number of values per knob when other parts have knobs too
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
        """Name of the elementwise stage that reads the sums; "" if there is none."""
        return self.anchor.name if self.anchor is not self.total else ""

    @cached_property
    def every(self) -> Mapping[str, Sequence[object]]:
        """All knobs of the engine with all their values."""
        return self.engine.knobs(self.p, self.target)

    @cached_property
    @abstractmethod
    def first(self) -> Config:
        """Default configuration of the engine; {} if none is legal."""

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
        """Cost model of the engine, configuration -> seconds; None if it has none."""
