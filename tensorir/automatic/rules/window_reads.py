"""Cost of a register tile's loads on a CPU: vectors along the lane axis, loads shared by the tile's cells, borders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from tensorir.ir.visit import find, has, uses
from tensorir.machine import CPU

PRICES = CPU.prices.window
PICKED_LANES = 8
"""Maximum lanes for which a partial vector at a border costs two loads and a shuffle."""
END_TILES = 4
"""Tiles examined at each end of an axis for border conditions."""


class Reads:
    """The loads of a nest, grouped by array and shape, as linear forms of its axes."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.arith = Arith({it.var: (0, most(it.extent) - 1) for it in nest.stage.iters})

    @cached_property
    def groups(self) -> list[Group]:
        """Loads that differ only by constants, as one group each."""
        return groups([x for x in self.nest.loads if x.buffer not in self.nest.writes], self.arith)

    @cached_property
    def computed(self) -> float:
        """Cycles of the arithmetic of one vector of cells, or of one term, away from borders."""
        places = sum(_asks_places(x.cond) for x in find(self.nest.stage.body, Select))
        return CPU.prices.multiply * max(1, self.nest.values - places) + called(self.nest)

    def shares(self, var: Var) -> bool:
        """True if adjacent cells along axis ``var`` have elements in common: overlapping windows, or an operand
        independent of it.
        """
        return any(g.shared(reduced(self.nest), var) for g in self.groups)

    def cycles(
        self, lane: Var, lanes: int, vectors: int, sizes: Mapping[Var, int], packed: Sequence[Group] = ()
    ) -> float:
        """Cycles of all loads of a tile with extents ``sizes`` along axes other than the lanes.

        packed: operands stored with the lane axis last
        """
        return sum(_cycles(g, lane, lanes, vectors, g in packed) * g.places(sizes) for g in self.groups)


def _cycles(g: Group, lane: Var, lanes: int, vectors: int, packed: bool) -> float:
    """Modelled cycles to load one operand for all lanes: broadcast, contiguous, every second element, or gathered."""
    width = max(1.0, lanes * DTYPES[g.load.buffer.dtype].bits / (8 * PRICES.port_bytes))
    step, apart = 1 if packed else g.step(lane), PRICES.element * lanes * vectors
    known = {0: PRICES.broadcast, 1: PRICES.load * width * vectors, 2: PRICES.pick * width * vectors}
    alike = grouped([g.load], lane) if step is None else 1
    if alike % (lanes * vectors) == 0:
        return known[0]
    if alike > 1:  # a vector of some, each for several lanes
        return PRICES.pick * vectors
    return known.get(step, apart) if step is not None else apart


def picked(load: Load, lane: Var, lanes: int) -> float:
    """Additional cycles per vector of a load whose lanes read every second element of a row; 0 for other strides."""
    if not load.index or slope(load.index[-1], lane) != 2:
        return 0.0
    return CPU.prices.stream.pick if lanes <= PICKED_LANES else PRICES.element * lanes


def slides(groups: Iterable[Group], cells: Iterable[Iter], terms: Iterable[Iter]) -> bool:
    """True if one of ``cells`` and one of ``terms`` move along one index: windows of adjacent cells overlap."""
    a, b = ({it.var for it in axes} for axes in (cells, terms))
    return any(a & set(f.terms) and b & set(f.terms) for g in groups for f in g.forms)


def decisions(nest: Nest) -> list[tuple[Expr, ...]]:
    """Index conditions of a stage, from Selects and clamps: tuples of comparisons, one of which must be known for the
    condition to vanish.
    """
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
    """(first, end) of the interior tiles along an axis, whose conditions are all decided at compile time.

    nests: (stage, its axis);  tiles: (start, end) of each tile
    (count, count) if there are at most ``END_TILES`` tiles and no interior one; None if cutting the loop does not help:
    no condition depends on the axis, all tiles are interior, or none within ``END_TILES`` of an end.
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
    """True if a condition depends on indices alone, so that interior tiles do not evaluate it."""
    return not has(cond, Load) and any(True for _ in _comparisons(cond))


def _decided(nest: Nest, it: Iter, comparisons: tuple[Expr, ...], tile: tuple[int, int]) -> bool:
    known = Arith({x.var: (0, most(x.extent) - 1) for x in nest.stage.iters} | {it.var: (tile[0], tile[1] - 1)})
    return any(known.proves(c) or known.disproves(c) for c in comparisons)


def reduced(nest: Nest) -> dict[Var, int]:
    """Variable of each reduction axis -> extent."""
    return {it.var: most(it.extent) for it in nest.stage.iters if it.axis is Axis.REDUCE}
