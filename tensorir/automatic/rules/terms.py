"""Reductions vectorized along their terms on CPUs, for sums with reuse that no tile fits.

Example: filter gradients of grouped convolutions, with short spatial axes and many contiguous pixels to add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tensorir.automatic.facts import Graph, Nest, vector_lanes, widest_bits
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.row_chain import Chain, Places, plain
from tensorir.automatic.rules.rows_along import AlongPart
from tensorir.automatic.rules.rows_part import trailing
from tensorir.automatic.rules.stream import VectorPart
from tensorir.ir.tree import Select
from tensorir.ir.visit import find, uses
from tensorir.target import Target


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for a reduction on a CPU, if vectors along its terms have less modelled time than along its cells.

    Its last reduction axis must fill a vector and not occur in conditions.
    """
    if target.kind != "cpu" or anchor.kind != "reduce" or not anchor.constant:
        return
    last = anchor.reduced[-1]
    if not anchor.spatial or not plain(anchor) or anchor.size([last]) < vector_lanes(target, widest_bits([anchor])):
        return
    if any(uses(x.cond, {last.var}) for x in find(anchor.stage.body, Select)):  # lanes would ask one by one
        return
    places: dict[Nest, Places] = {anchor: tuple((it.var, 1) for it in anchor.spatial)}
    chain = Chain(anchor, tuple(anchor.spatial), (1,) * len(anchor.spatial), (), places)
    part = TermsPart(graph, target, chain)
    if part.suits(chain, target) and _seconds(part) < _seconds(VectorPart(graph, anchor, target)):
        yield part


def _seconds(part: Part) -> float:
    """Modelled seconds of the default configuration; infinite if there is none."""
    expected, start = part.expected(), part.start()
    return float("inf") if expected is None or start is None else expected(start)


class TermsPart(AlongPart):
    """``AlongPart`` for single reductions whose rows overlap: each cell is a row, its terms are in vectors."""

    rule = "terms"

    def __init__(self, graph: Graph, target: Target, chain: Chain) -> None:
        super().__init__(graph, target, chain)
        self.reason = f"{self.length} terms of each of {self.rows} cells, those next to each other in a vector"

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        run = self.anchor.size(trailing(self.anchor, self.anchor.reduced))
        return {**super().where(), "vectors of a run": lambda c: c["lanes"] * c["vectors"] <= run or c["vectors"] == 1}
