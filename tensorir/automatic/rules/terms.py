"""Terms: cells that share what they read, which no tile takes, each with its terms in the lanes of vectors.

Gradients of filters in groups of channels are such: their own axes are short, and the pixels that they add up lie next
to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tensorir.automatic.facts import Graph, Nest, vector_lanes, widest_bits
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.row_chain import Chain, Places, plain
from tensorir.automatic.rules.rows_cpu import AlongPart
from tensorir.automatic.rules.rows_part import trailing
from tensorir.automatic.rules.stream import VectorPart
from tensorir.ir.tree import Select
from tensorir.ir.visit import find, uses
from tensorir.target import Target


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """The sums of one stage, where vectors of terms are expected to take less than vectors of cells."""
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
    if part.suits(chain) and _seconds(part) < _seconds(VectorPart(graph, anchor, target)):
        yield part


def _seconds(part: Part) -> float:
    """The expected seconds of the configuration to start from."""
    expected, start = part.expected(), part.start()
    return float("inf") if expected is None or start is None else expected(start)


class TermsPart(AlongPart):
    """The same as of rows, whose elements other rows read as well."""

    rule = "terms"

    def __init__(self, graph: Graph, target: Target, chain: Chain) -> None:
        super().__init__(graph, target, chain)
        self.reason = f"{self.length} terms of each of {self.rows} cells, those next to each other in a vector"

    def where(self) -> Mapping[str, Callable[[Config], bool]]:
        run = self.anchor.size(trailing(self.anchor, self.anchor.reduced))
        return {**super().where(), "vectors of a run": lambda c: c["lanes"] * c["vectors"] <= run or c["vectors"] == 1}
