"""Tile, on CPUs: a sum that reads two operands again and again is a product of matrices by a view of its axes, and one
of the engines of matmul's templates schedules it.

Convolutions are such products as well: rows are the channels of the result, columns the pixels of a row, terms the
channels and taps, and what is packed of the image are its columns (im2col), a panel at a time in block memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.product_view import ProductView, product_view
from tensorir.engines.gemm_cpu import RegisterTile, cpu_engines
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate

CYCLES_S = 3e9
"""Cycles a second."""
CORES = 2
"""That share the work in the engines' model."""

VALUES = {
    "columns": 4, "panels": 5, "depth": 3, "rows": 3, "tile": 4, "vectors": 4, "outputs": 4, "pack_a": 2, "unroll_k": 2,
    "pack": 2,
}  # fmt: skip
"""How many values of each knob of the engines are searched."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """A sum with reuse, and the map that reads its cells one to one, by each engine that suits the product."""
    if target.kind != "cpu":
        return
    total = summed(graph, anchor)
    view = product_view(total) if total else None
    if total and view:
        for name, engine in cpu_engines(view.gemm.on(target)).items():
            yield ProductPart(graph, anchor, target, total, view, name, engine)


def summed(graph: Graph, anchor: Nest) -> Nest | None:
    """The sum that ends with a stage: itself, or what it reads one to one as the only reader."""
    if anchor.kind == "reduce":
        return anchor if anchor.reuses else None
    if anchor.kind != "map" or len(anchor.writes) > 1:
        return None
    for nest in graph.producers(anchor):
        if nest.reuses and not graph.is_output(nest) and graph.readers(nest) == [anchor] and _in_step(anchor, nest):
            return nest
    return None


def _in_step(reader: Nest, made: Nest) -> bool:
    """Whether each cell of a map reads the one cell of ``made`` at the same place."""
    own = tuple(it.var for it in reader.spatial)
    return all(x.index == own for x in reader.loads if x.buffer in made.writes)


def spread(values: Sequence[object], first: object, most: int) -> list[object]:
    """At most so many of the values of a knob, ``first`` in front, and the others evenly from what there is."""
    others = [v for v in values if v != first]
    kept = min(most - 1, len(others))
    return [first, *(others[n * len(others) // kept] for n in range(kept))]


class ProductPart(Part):
    """A product of matrices, by an engine whose knobs are its own."""

    rule = "tile"

    def __init__(self, graph: Graph, anchor: Nest, target: Target, total: Nest, view: ProductView, way: str,
                 engine: type[RegisterTile]) -> None:  # fmt: skip
        p = self.p = view.gemm.on(target)
        why = f"a product of {p.m} x {p.n} sums of {p.k} terms" + (f", {p.batch} times" if p.batch > 1 else "")
        super().__init__(graph, anchor, target, (total.name,), why)
        self.total, self.view, self.way, self.engine = total, view, way, engine

    @property
    def name(self) -> str:
        return f"tile_{self.way}"

    def knobs(self) -> Mapping[str, Sequence[object]]:
        first = self.first
        return {name: spread(values, first.get(name, values[0]), VALUES[name]) for name, values in self.every.items()}

    @cached_property
    def every(self) -> Mapping[str, Sequence[object]]:
        """The engine's knobs with all their values."""
        return self.engine.knobs(self.p, self.target)

    @cached_property
    def first(self) -> Config:
        """Where the engine starts: what its model likes, else the first that is legal; empty where nothing is."""
        tile = next(self.engine.among(self.every, self.p, self.target), None)
        return self.engine.start(self.p, self.target) or (tile.config if tile else {})

    def where(self) -> Mapping[str, Predicate]:
        return self.engine.where(self.p, self.target)

    def start(self) -> Config | None:
        return self.first or None

    def expected(self) -> Callable[[Config], float] | None:
        return lambda c: self.engine(c, self.p, self.target).cost() / (CORES * CYCLES_S)

    def schedule(self, s: Schedule, config: Config) -> None:
        tile = self.engine(config, self.p, self.target)
        epilogue = self.anchor.name if self.anchor is not self.total else ""
        tile.product(s, self.view.walked(s, self.total, epilogue))
