"""The reads of a register tile of cells: vectors along the axis of lanes, and those that its cells have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from tensorir.arith.access import Group, grouped, groups, slope
from tensorir.arith.affine import Arith
from tensorir.arith.conditions import conjuncts
from tensorir.automatic.counts import called
from tensorir.automatic.facts import Nest
from tensorir.ir.build import binary
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Axis, Binary, Expr, Iter, Load, Select, Var
from tensorir.ir.visit import find, uses

PORT_BYTES = 32
"""Bytes of a load, of which a core does two a cycle."""
MULTIPLY = 0.35
"""Cycles of an operation on vectors, of which a core does two a cycle, a faster one than cycles are of."""
ELEMENT_CYCLES = 0.75
"""Cycles of an element that is read alone."""
BROADCAST, LOAD, PICK = 0.2, 0.5, 1.0
"""Cycles of an element for all lanes, which mostly stays in a register from tile to tile; of ``PORT_BYTES`` next to
each other; and of every second element of twice as many.
"""
PICKED_LANES = 8
"""Lanes up to which a vector of some elements at a border is two loads and a shuffle."""
END_TILES = 4
"""Tiles at each end of an axis that are looked at for conditions."""


class Reads:
    """The reads of a nest: its loads by array, those of one shape together, in linear forms of its axes."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.arith = Arith({it.var: (0, most(it.extent) - 1) for it in nest.stage.iters})

    @cached_property
    def groups(self) -> list[Group]:
        """The loads that differ by constants only, as one."""
        return groups([x for x in self.nest.loads if x.buffer not in self.nest.writes], self.arith)

    @cached_property
    def computed(self) -> float:
        """Cycles of what a vector of cells, or a term of it, is computed by, away from borders."""
        places = sum(_asks_places(x.cond) for x in find(self.nest.stage.body, Select))
        return MULTIPLY * max(1, self.nest.values - places) + called(self.nest)

    def shares(self, var: Var) -> bool:
        """True when neighbours along an axis have something in common, in windows or because both read it."""
        return any(g.shared(reduced(self.nest), var) for g in self.groups)

    def cycles(
        self, lane: Var, lanes: int, vectors: int, sizes: Mapping[Var, int], packed: Sequence[Group] = ()
    ) -> float:
        """Cycles of the loads of a tile, over the iterations ``sizes`` of its other axes and of unrolled terms.

        packed: those whose lanes are neighbours in the order that they are kept in
        """
        return sum(_cycles(g, lane, lanes, vectors, g in packed) * g.places(sizes) for g in self.groups)


def _cycles(g: Group, lane: Var, lanes: int, vectors: int, packed: bool) -> float:
    """Modelled cycles to load one operand for all lanes: broadcast, contiguous, every second element, or gathered."""
    width = max(1.0, lanes * DTYPES[g.load.buffer.dtype].bits / (8 * PORT_BYTES))
    step, apart = 1 if packed else g.step(lane), ELEMENT_CYCLES * lanes * vectors
    known = {0: BROADCAST, 1: LOAD * width * vectors, 2: PICK * width * vectors}
    alike = grouped([g.load], lane) if step is None else 1
    if alike % (lanes * vectors) == 0:
        return known[0]
    if alike > 1:  # a vector of some, each for several lanes
        return PICK * vectors
    return known.get(step, apart) if step is not None else apart


def picked(load: Load, lane: Var, lanes: int) -> float:
    """Cycles of every second element of a row for a vector; 0 where the lanes of a load are neighbours, or alike."""
    if not load.index or slope(load.index[-1], lane) != 2:
        return 0.0
    return 1.5 if lanes <= PICKED_LANES else ELEMENT_CYCLES * lanes


def decisions(nest: Nest) -> list[tuple[Expr, ...]]:
    """Conditions on a cell's place: comparisons of which one has to be known for a tile to have no condition."""
    found: list[tuple[Expr, ...]] = [(c,) for x in find(nest.stage.body, Select) for c in _comparisons(x.cond)]
    clamps = (x for x in find(nest.stage.body, Binary) if x.op in ("min", "max") and x.dtype == "index")
    found += [(binary("<=", x.a, x.b), binary("<=", x.b, x.a)) for x in clamps]
    return found


def _comparisons(cond: Expr) -> Iterator[Expr]:
    for c in conjuncts(cond):
        if isinstance(c, Binary) and c.op == "or":
            yield from (*_comparisons(c.a), *_comparisons(c.b))
        elif isinstance(c, Binary) and c.a.dtype == "index":
            yield c


def borders(nests: list[tuple[Nest, Iter]], tiles: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The first tile along an axis whose conditions are decided, and the one after the last; of few tiles the number of
    them where none is; None where cuts make no difference.

    nests: stages with the axis in each;  tiles: where each begins, and ends
    """
    asked = [(nest, it, d) for nest, it in nests for d in decisions(nest) if any(uses(c, {it.var}) for c in d)]
    if not asked:
        return None

    def inner(tile: tuple[int, int]) -> bool:
        return all(_decided(nest, it, d, tile) for nest, it, d in asked)

    count = len(tiles)
    first = next((t for t in range(min(END_TILES, count)) if inner(tiles[t])), None)
    last = next((t for t in range(count - 1, max(-1, count - 1 - END_TILES), -1) if inner(tiles[t])), None)
    if first is None or last is None:
        return (count, count) if count <= END_TILES else None
    return None if last < first or (first, last) == (0, count - 1) else (first, last + 1)


def _asks_places(cond: Expr) -> bool:
    """True when a condition is about places alone, so that tiles away from borders do not ask it."""
    return not find(cond, Load) and any(True for _ in _comparisons(cond))


def _decided(nest: Nest, it: Iter, comparisons: tuple[Expr, ...], tile: tuple[int, int]) -> bool:
    known = Arith({x.var: (0, most(x.extent) - 1) for x in nest.stage.iters} | {it.var: (tile[0], tile[1] - 1)})
    return any(known.proves(c) or known.disproves(c) for c in comparisons)


def reduced(nest: Nest) -> dict[Var, int]:
    """The extents of the axes of terms."""
    return {it.var: most(it.extent) for it in nest.stage.iters if it.axis is Axis.REDUCE}
