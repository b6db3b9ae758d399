"""Chain of stages for one kernel: row reductions, and the maps that produce, read or scale the same rows (softmax,
norms).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from tensorir.automatic.facts import Graph, Nest, bytes_of
from tensorir.ir.structure import identical
from tensorir.ir.tree import Binary, Const, Expr, Iter, Store, Update, Var
from tensorir.ir.visit import find, uses
from tensorir.schedule.schedule import BaseSchedule

LONGEST_CHAIN = 64
"""Maximum stages of a kernel for a cell in registers, or for a row of ``common`` rows."""
Place = tuple[Var, int]
"""An axis of the anchor, and the group size: n consecutive indices belong to one group; 1 for the axis itself."""
Places = tuple[Place | None, ...]
"""Axis of the anchor for each spatial axis of a stage; None for an axis within a row."""


@dataclass(frozen=True)
class Chain:
    """Stages over the same rows, the anchor last.

    rows:   axes of the anchor that number the rows, in order
    groups: for each of them the number of consecutive indices in one row: 1, or the channels of a group
    stages: the other stages, in order;  places: stage -> ``Places``, the anchor's included
    """

    anchor: Nest
    rows: tuple[Iter, ...]
    groups: tuple[int, ...]
    stages: tuple[Nest, ...]
    places: dict[Nest, Places]

    @property
    def reduced(self) -> tuple[Nest, ...]:
        """Stages that reduce rows."""
        return tuple(n for n in (*self.stages, self.anchor) if n.kind == "reduce")

    def within(self, nest: Nest) -> tuple[Iter, ...]:
        """Axes of a stage within a row: spatial ones, then reduction axes; () for a stage with one element per row."""
        own = zip(nest.spatial, self.places[nest], strict=True)
        known = {it.var for it in self.rows}
        return (*(it for it, place in own if place is None or place[0] not in known), *nest.reduced)

    def axis(self, nest: Nest, it: Iter) -> Iter:
        """The spatial axis of ``nest`` that corresponds to the anchor's row axis ``it``."""
        return next(
            own
            for own, at in zip(nest.spatial, self.places[nest], strict=False)
            if at is not None and at[0] is it.var and at[1] == 1
        )

    @property
    def grouped(self) -> bool:
        """True if a row spans several consecutive indices of a row axis (a group of channels)."""
        return any(n > 1 for n in self.groups)

    @property
    def count(self) -> int:
        """Number of rows; symbolic extents count as their maximum."""
        return self.anchor.size(self.rows) // math.prod(self.groups)

    def length(self, nest: Nest) -> int:
        """Iterations of a stage per row; symbolic extents count as their maximum."""
        return nest.size(self.within(nest)) * (math.prod(self.groups) if nest is self.anchor else 1)

    def loops(self, s: BaseSchedule) -> list[str]:
        """Split axes of groups and reorder the anchor's loops over rows outermost; return their names."""
        own = [str(x) for x in s.loops(self.anchor.name)]
        rows = [own[self.anchor.spatial.index(it)] for it in self.rows]
        parts = [s.split(x, [None, n])[0] if n > 1 else x for x, n in zip(rows, self.groups, strict=True)]
        own = [str(x) for x in s.loops(self.anchor.name)]
        if own[: len(parts)] != parts:
            s.reorder(*parts, *(x for x in own if x not in parts))
        return parts


def chain_of(
    graph: Graph, anchor: Nest, arrays: bool = True, common: bool = False, room: float = math.inf
) -> Chain | None:
    """The chain with ``anchor`` as its last stage; None if it reduces no row, unless ``common``.

    arrays: False to exclude maps within a row, whose results must be stored
    common: True for the rows that reductions upstream have in common (or maps, if there are none), as matrices whose
            rows and columns are summed in turn, with operands that are read again; False for those of the nearest one
    room:   bytes of a row's intermediate results, which ``common`` stages upstream do not exceed
    """
    if anchor.kind not in ("map", "reduce") or not plain(anchor):
        return None
    places: dict[Nest, Places] = {anchor: tuple((it.var, 1) for it in anchor.spatial)}
    if anchor.kind == "reduce":
        rows: set[Place | None] | None = set(places[anchor]) if _goes_through(anchor, common) else None
    else:
        rows = _nearest(graph, dict(places), common)
    if common and (rows or anchor.kind == "map"):
        rows = _common(graph, dict(places), rows or set(places[anchor]), "reduce" if rows else "map")
    if rows is None:
        return None
    stages, count = list[Nest](), anchor.size(it for it in anchor.spatial if (it.var, 1) in rows)
    for n in _upstream(graph, places, common):
        kept = sum(bytes_of(b) for m in (*stages, n) for b in m.writes) // max(1, count)
        if common and (len(stages) == LONGEST_CHAIN or kept > room):
            del places[n]
        elif (
            rows <= set(places[n])
            and (arrays or n.kind == "reduce" or len(n.spatial) == len(rows))
            and (not graph.is_output(n) or _of_all_rows(n, anchor, places))
        ):
            stages.append(n)
        else:
            del places[n]
    groups = dict(p for p in rows if p is not None)
    if len(groups) != len(rows):
        return None
    own = tuple(it for it in anchor.spatial if it.var in groups)
    return Chain(anchor, own, tuple(groups[it.var] for it in own), tuple(reversed(stages)), places)


def _of_all_rows(nest: Nest, anchor: Nest, places: dict[Nest, Places]) -> bool:
    """True if each cell of a stage belongs to a row of the anchor."""
    sizes = {it.var: anchor.size([it]) for it in anchor.spatial}
    own = zip(nest.spatial, places[nest], strict=True)
    return all(place is None or nest.size([it]) * place[1] == sizes[place[0]] for it, place in own)


def plain(nest: Nest) -> bool:
    """True if a stage writes each cell at the indices of its spatial axes."""
    own = tuple(it.var for it in nest.spatial)
    stores, updates = find(nest.stage.body, Store), find(nest.stage.body, Update)
    return all(identical(x.index, own) for x in stores) and all(identical(x.index, own) for x in updates)


def _goes_through(nest: Nest, again: bool = False) -> bool:
    """True if a stage reduces disjoint rows: no windows, and no matrix product unless ``again``."""
    spatial, reduced = {it.var for it in nest.spatial}, {it.var for it in nest.reduced}
    if nest.kind != "reduce" or (nest.reuses and not again):
        return False
    mixed = [(at, i) for _, at in nest.places for i in at if uses(i, spatial) and uses(i, reduced)]
    return all(i is not at[-1] and _in_groups(i, nest) for at, i in mixed)


def _in_groups(index: Expr, nest: Nest) -> bool:
    """True if an index has the form group * n + i, with i a reduction axis of extent n."""
    inner = {it.var for it in nest.reduced if uses(index, {it.var})}
    sizes = [it.extent for it in nest.reduced if it.var in inner]
    if len(sizes) != 1 or not isinstance(sizes[0], Const) or not isinstance(index, Binary) or index.op != "+":
        return False
    whole, each = index.a, index.b
    by = whole.b if isinstance(whole, Binary) and whole.op == "*" else None
    return each in inner and isinstance(by, Const) and by.value == sizes[0].value


def _nearest(graph: Graph, places: dict[Nest, Places], again: bool) -> set[Place | None] | None:
    """{(row axis, group size)} of the nearest reduction upstream of the stages in ``places``; None without a reduction.

    Axes within a row are omitted. Visited stages are entered in ``places``.
    """
    for nest in _upstream(graph, places, again):
        if nest.kind == "reduce":
            return {p for p in places[nest] if p is not None}
    return None


def _common(graph: Graph, places: dict[Nest, Places], rows: set[Place | None], kind: str) -> set[Place | None]:
    """The part of ``rows`` that stages of a kind upstream have too, without those that have none of them, or read
    nothing (tables).
    """
    for nest in itertools.islice(_upstream(graph, places, again=True), LONGEST_CHAIN):
        if nest.kind == kind and nest.loads and (both := rows & set(places[nest])):
            rows = both
    return rows


def _upstream(graph: Graph, places: dict[Nest, Places], again: bool = False) -> Iterator[Nest]:
    """Stages whose only readers are in ``places``, last one first; enters each in ``places``.

    again: True to include products, whose operands are read again
    """
    for nest in reversed(list(graph.nests.values())):
        readers = graph.readers(nest)
        others = nest.empty or not readers or not all(r in places for r in readers)
        if nest in places or others:
            continue
        fits = (nest.kind == "map" or _goes_through(nest, again)) and plain(nest)
        if fits and (found := _places(nest, readers, places)) is not None:
            places[nest] = found
            yield nest


def _places(nest: Nest, readers: list[Nest], places: dict[Nest, Places]) -> Places | None:
    """``Places`` of a stage as its readers index it; None if they index it with another rank."""
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
