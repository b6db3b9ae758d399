"""Which stages reduce rows, and which make, read or scale the same rows: the chain that one kernel can go through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorir.automatic.facts import Graph, Nest
from tensorir.ir.tree import Expr, Iter, Store, Update, Var
from tensorir.ir.visit import find, uses

Places = tuple[Var | None, ...]
"""For each axis of a stage's cells, the axis of the anchor that it is; None for one within a row."""


@dataclass(frozen=True)
class Chain:
    """Stages that go through rows, the anchor last.

    rows:   the anchor's axes that tell rows from each other, in its order
    stages: the others, in their order;  places: of each of them and the anchor
    """

    anchor: Nest
    rows: tuple[Iter, ...]
    stages: tuple[Nest, ...]
    places: dict[Nest, Places]

    @property
    def reduced(self) -> tuple[Nest, ...]:
        """Those that reduce rows."""
        return tuple(n for n in (*self.stages, self.anchor) if n.kind == "reduce")

    def within(self, nest: Nest) -> tuple[Iter, ...]:
        """The axes of a stage within a row: of its cells, then of its terms."""
        own = zip(nest.spatial, self.places[nest], strict=True)
        known = {it.var for it in self.rows}
        return (*(it for it, place in own if place not in known), *nest.reduced)


def chain_of(graph: Graph, anchor: Nest, arrays: bool = True) -> Chain | None:
    """The chain that ends with a stage; None where no row is reduced.

    arrays: whether it may have maps within a row, whose results have to be kept
    """
    if anchor.kind not in ("map", "reduce") or not plain(anchor):
        return None
    places: dict[Nest, Places] = {anchor: tuple(it.var for it in anchor.spatial)}
    if anchor.kind == "reduce":
        rows = set(places[anchor]) if _goes_through(anchor) else None
    else:
        rows = _nearest(graph, anchor, dict(places))
    if rows is None:
        return None
    stages = []
    for n in _upstream(graph, places):
        if rows <= set(places[n]) and (arrays or n.kind == "reduce" or len(n.spatial) == len(rows)):
            stages.append(n)
        else:
            del places[n]
    own = tuple(it for it in anchor.spatial if it.var in rows)
    return Chain(anchor, own, tuple(reversed(stages)), places)


def plain(nest: Nest) -> bool:
    """Whether a stage makes each of its cells at the place that its axes say."""
    own = tuple(it.var for it in nest.spatial)
    stores, updates = find(nest.stage.body, Store), find(nest.stage.body, Update)
    return all(x.index == own for x in stores) and all(x.index == own for x in updates)


def _goes_through(nest: Nest) -> bool:
    """Whether a stage reduces rows that have no element in common: neither windows nor products."""
    spatial, reduced = {it.var for it in nest.spatial}, {it.var for it in nest.reduced}
    mixed = any(uses(i, spatial) and uses(i, reduced) for x in nest.loads for i in x.index)
    return nest.kind == "reduce" and not nest.reuses and not mixed


def _nearest(graph: Graph, anchor: Nest, places: dict[Nest, Places]) -> set[Var | None] | None:
    """The axes that tell rows from each other in the last reduction that an anchor reads, through maps."""
    for nest in _upstream(graph, places):
        if nest.kind == "reduce":
            return {p for p in places[nest] if p is not None}
    return None


def _upstream(graph: Graph, places: dict[Nest, Places]) -> Iterator[Nest]:
    """The stages that only those with ``places`` read, the last one first; gives them places."""
    for nest in reversed(list(graph.nests.values())):
        readers = graph.readers(nest)
        if nest in places or not readers or not all(r in places for r in readers) or graph.is_output(nest):
            continue
        fits = (nest.kind == "map" or _goes_through(nest)) and plain(nest)
        if fits and (found := _places(nest, readers, places)) is not None:
            places[nest] = found
            yield nest


def _places(nest: Nest, readers: list[Nest], places: dict[Nest, Places]) -> Places | None:
    """The axes of a stage's cells as its readers read them; None where it has other cells than axes."""
    made = set(nest.writes)
    found: list[Places] = []
    for r in readers:
        known = dict(zip((it.var for it in r.spatial), places[r], strict=True))
        found += [tuple(_place(i, known) for i in x.index) for x in r.loads if x.buffer in made]
    if any(len(p) != len(nest.spatial) for p in found):
        return None
    return tuple(p[0] if len(set(p)) == 1 else None for p in zip(*found, strict=True))


def _place(index: Expr, known: dict[Var, Var | None]) -> Var | None:
    return known.get(index) if isinstance(index, Var) else None
