"""The chain of stages for one kernel: those that reduce rows, and those that make, read or scale the same rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tensorir.automatic.facts import Graph, Nest
from tensorir.ir.structure import identical
from tensorir.ir.tree import Binary, Const, Expr, Iter, Store, Update, Var
from tensorir.ir.visit import find, uses
from tensorir.schedule.schedule import BaseSchedule

Place = tuple[Var, int]
"""An axis of the anchor, over so many: neighbours of which so many are of the same group; 1 for the axis itself."""
Places = tuple[Place | None, ...]
"""For each axis of a stage's cells, the axis of the anchor that it is; None for one within a row."""


@dataclass(frozen=True)
class Chain:
    """Stages that go through rows, the anchor last.

    rows:   the anchor's axes that tell rows from each other, in its order
    groups: of each of them, how many neighbours are of the same row: 1, or the channels of a group
    stages: the others, in their order;  places: of each of them and the anchor
    """

    anchor: Nest
    rows: tuple[Iter, ...]
    groups: tuple[int, ...]
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
        return (*(it for it, place in own if place is None or place[0] not in known), *nest.reduced)

    def axis(self, nest: Nest, it: Iter) -> Iter:
        """The axis of a stage that is one of the anchor's over rows."""
        return next(
            own
            for own, at in zip(nest.spatial, self.places[nest], strict=False)
            if at is not None and at[0] is it.var and at[1] == 1
        )

    @property
    def grouped(self) -> bool:
        """True when a row has several neighbours along an axis that tells rows from each other."""
        return any(n > 1 for n in self.groups)

    @property
    def count(self) -> int:
        """The number of rows; of a dim, the most."""
        return self.anchor.size(self.rows) // math.prod(self.groups)

    def length(self, nest: Nest) -> int:
        """Elements of a row that a stage goes through; of a dim, the most."""
        return nest.size(self.within(nest)) * (math.prod(self.groups) if nest is self.anchor else 1)

    def loops(self, s: BaseSchedule) -> list[str]:
        """The anchor's loops over rows, outermost; those within one follow."""
        own = [str(x) for x in s.loops(self.anchor.name)]
        rows = [own[self.anchor.spatial.index(it)] for it in self.rows]
        parts = [s.split(x, [None, n])[0] if n > 1 else x for x, n in zip(rows, self.groups, strict=True)]
        own = [str(x) for x in s.loops(self.anchor.name)]
        if own[: len(parts)] != parts:
            s.reorder(*parts, *(x for x in own if x not in parts))
        return parts


def chain_of(graph: Graph, anchor: Nest, arrays: bool = True) -> Chain | None:
    """The chain that ends with a stage; None where no row is reduced.

    arrays: whether it may have maps within a row, whose results have to be kept
    """
    if anchor.kind not in ("map", "reduce") or not plain(anchor):
        return None
    places: dict[Nest, Places] = {anchor: tuple((it.var, 1) for it in anchor.spatial)}
    if anchor.kind == "reduce":
        rows: set[Place | None] | None = set(places[anchor]) if _goes_through(anchor) else None
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
    groups = dict(p for p in rows if p is not None)
    if len(groups) != len(rows):
        return None
    own = tuple(it for it in anchor.spatial if it.var in groups)
    return Chain(anchor, own, tuple(groups[it.var] for it in own), tuple(reversed(stages)), places)


def plain(nest: Nest) -> bool:
    """True when a stage makes each of its cells at the place that its axes say."""
    own = tuple(it.var for it in nest.spatial)
    stores, updates = find(nest.stage.body, Store), find(nest.stage.body, Update)
    return all(identical(x.index, own) for x in stores) and all(identical(x.index, own) for x in updates)


def _goes_through(nest: Nest) -> bool:
    """True when a stage reduces rows that have no element in common: neither windows nor products."""
    spatial, reduced = {it.var for it in nest.spatial}, {it.var for it in nest.reduced}
    if nest.kind != "reduce" or nest.reuses:
        return False
    mixed = [(at, i) for _, at in nest.places for i in at if uses(i, spatial) and uses(i, reduced)]
    return all(i is not at[-1] and _in_groups(i, nest) for at, i in mixed)


def _in_groups(index: Expr, nest: Nest) -> bool:
    """True when an index goes through groups of neighbours, one after another: group * 8 + each of 8."""
    inner = {it.var for it in nest.reduced if uses(index, {it.var})}
    sizes = [it.extent for it in nest.reduced if it.var in inner]
    if len(sizes) != 1 or not isinstance(sizes[0], Const) or not isinstance(index, Binary) or index.op != "+":
        return False
    whole, each = index.a, index.b
    by = whole.b if isinstance(whole, Binary) and whole.op == "*" else None
    return each in inner and isinstance(by, Const) and by.value == sizes[0].value


def _nearest(graph: Graph, anchor: Nest, places: dict[Nest, Places]) -> set[Place | None] | None:
    """The axes that tell rows from each other in the last reduction that an anchor reads, through maps."""
    for nest in _upstream(graph, places):
        if nest.kind == "reduce":
            return {p for p in places[nest] if p is not None}
    return None


def _upstream(graph: Graph, places: dict[Nest, Places]) -> Iterator[Nest]:
    """The stages that only those with ``places`` read, the last one first; gives them places."""
    for nest in reversed(list(graph.nests.values())):
        readers = graph.readers(nest)
        others = nest.empty or not readers or not all(r in places for r in readers)
        if nest in places or others or graph.is_output(nest):
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
        found += [tuple(_place(i, known) for i in at) for b, at in r.places if b in made]
    if any(len(p) != len(nest.spatial) for p in found):
        return None
    return tuple(p[0] if len(set(p)) == 1 else None for p in zip(*found, strict=True))


def _place(index: Expr, known: dict[Var, Place | None]) -> Place | None:
    if isinstance(index, Binary) and index.op == "//" and isinstance(index.a, Var) and isinstance(index.b, Const):
        axis = known.get(index.a)
        return (axis[0], axis[1] * int(index.b.value)) if axis else None
    return known.get(index) if isinstance(index, Var) else None
