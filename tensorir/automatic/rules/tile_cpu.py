"""Tile, on CPUs: a sum that reads two operands again and again is a product of matrices by a view of its axes, and one
of the engines of matmul's templates schedules it.

Convolutions are such products as well: rows are the channels of the result, columns the pixels of a row, terms the
channels and taps, and what is packed of the image are its columns (im2col), a panel at a time in block memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.product_view import ProductView, product_view
from tensorir.automatic.rules.products import ProductPart, summed
from tensorir.engines.gemm_cpu import RegisterTile, cpu_engines
from tensorir.schedule.schedule import Schedule
from tensorir.target import Target

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
            yield RegisterProductPart(graph, anchor, target, total, view, name, engine)


class RegisterProductPart(ProductPart[RegisterTile]):
    """A product of matrices by register tiles, of panels or strips that are packed."""

    values = VALUES

    def __init__(self, graph: Graph, anchor: Nest, target: Target, total: Nest, view: ProductView, way: str,
                 engine: type[RegisterTile]) -> None:  # fmt: skip
        super().__init__(graph, anchor, target, total, view.gemm, engine)
        self.view, self.way = view, way

    @property
    def name(self) -> str:
        return f"tile_{self.way}"

    @cached_property
    def first(self) -> Config:
        """What the engine's model likes, else the first that is legal."""
        tile = next(self.engine.among(self.every, self.p, self.target), None)
        return self.engine.start(self.p, self.target) or (tile.config if tile else {})

    def expected(self) -> Callable[[Config], float] | None:
        return self.engine.expected(self.p, self.target)

    def schedule(self, s: Schedule, config: Config) -> None:
        tile = self.engine(config, self.p, self.target)
        of = self.view.walked(s, self.total, self.epilogue)
        tile.product(s, of)
        if self.view.again:
            s.compute_inline(of.b)
