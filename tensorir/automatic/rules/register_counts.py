"""What a register tile of cells reads: vectors along the axis of lanes, and those that its cells have in common."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from tensorir.arith.affine import Arith, Linear
from tensorir.arith.conditions import conjuncts
from tensorir.automatic.counts import called
from tensorir.automatic.facts import Nest
from tensorir.ir.build import as_int, binary
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Axis, Binary, Cast, Const, Expr, Iter, Load, Select, Var
from tensorir.ir.visit import Rewriter, find, uses

PORT_BYTES = 32
"""Bytes of a load, of which a core does two a cycle."""
MULTIPLY = 0.35
"""Cycles of an operation on vectors, of which a core does two a cycle, a faster one than cycles are of."""
APART = 0.75
"""Cycles of an element that is read alone."""
BROADCAST, LOAD, PICK = 0.2, 0.5, 1.0
"""Cycles of an element for all lanes, which mostly stays in a register from tile to tile; of ``PORT_BYTES`` next to
each other; and of every second element of twice as many.
"""
PICKED = 8
"""Lanes up to which a vector of some elements at a border is two loads and a shuffle."""
NEAR = 4
"""Tiles at each end of an axis that are looked at for conditions."""


class Reads:
    """How a nest reads: its loads by array, those of one shape together, in linear forms of its axes."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.arith = Arith({it.var: (0, most(it.extent) - 1) for it in nest.stage.iters})

    @cached_property
    def groups(self) -> list[Group]:
        """The loads that differ by constants only, as one."""
        found: dict[Hashable, Group] = {}
        for x in self.nest.loads:
            forms = tuple(self.arith.linear(_Unclamped()(i)) for i in x.index)
            if x.buffer in self.nest.writes or not forms:
                continue
            key = x.buffer, tuple(tuple(sorted((t, str(k)) for k, t in f.terms.items())) for f in forms)
            found.setdefault(key, Group(x, forms, [set() for _ in forms])).add(forms)
        return list(found.values())

    @cached_property
    def computed(self) -> float:
        """Cycles of what a vector of cells, or a term of it, is computed by, away from borders."""
        places = sum(_asks_places(x.cond) for x in find(self.nest.stage.body, Select))
        return MULTIPLY * max(1, self.nest.values - places) + called(self.nest)

    def shares(self, var: Var) -> bool:
        """Whether neighbours along an axis have something in common, in windows or because both read it."""
        return any(g.shared(reduced(self.nest), var) for g in self.groups)

    def cycles(self, lane: Var, lanes: int, vectors: int, sizes: Mapping[Var, int]) -> float:
        """Cycles of the loads of a tile, over the iterations ``sizes`` of its other axes and of unrolled terms."""
        return sum(g.cycles(lane, lanes, vectors) * g.places(sizes) for g in self.groups)


class _Unclamped(Rewriter):
    """Places away from borders: what is kept within constants is taken as it is."""

    def on_Binary(self, n: Binary) -> Expr:
        if n.op in ("min", "max") and n.dtype == "index" and isinstance(n.b, Const):
            return self(n.a)  # type: ignore[no-any-return]
        if n.op in ("min", "max") and n.dtype == "index" and isinstance(n.a, Const):
            return self(n.b)  # type: ignore[no-any-return]
        return self.children(n)


class Group:
    """Loads of an array that differ by constants only: the first of them, its indices, and the constants of all."""

    def __init__(self, load: Load, forms: Sequence[Linear], constants: list[set[int]]) -> None:
        self.load, self.forms, self.constants, self.count = load, forms, constants, 0

    def add(self, forms: Sequence[Linear]) -> None:
        """One more load."""
        self.count += 1
        for known, form in zip(self.constants, forms, strict=True):
            known.add(form.constant)

    def places(self, sizes: Mapping[Var, int]) -> int:
        """How many places they read, over so many iterations of some axes."""
        return math.prod(_values(f, c, sizes) for f, c in zip(self.forms, self.constants, strict=True))

    def shared(self, terms: Mapping[Var, int], var: Var, count: int = 2) -> bool:
        """Whether so many neighbours along an axis read some of the same places, over so many terms."""
        return self.places({**terms, var: count}) < count * self.places(terms)

    def box(self, sizes: Mapping[Var, int]) -> list[int]:
        """The places between the first and the last that they read along each axis, over so many iterations."""
        spans = ((f, max(c) - min(c)) for f, c in zip(self.forms, self.constants, strict=True))
        return [1 + more + sum(_span(x, k, sizes) for x, k in f.terms.items()) for f, more in spans]

    def slopes(self, var: Var) -> list[int | None]:
        """By how much each index grows with an axis; None where not by equal steps."""
        return [slope(_Unclamped()(index), var) for index in self.load.index]

    def step(self, var: Var) -> int | None:
        """By how many elements they move with an axis; None where not by equal steps."""
        pitch, total = 1, 0
        for found, extent in zip(reversed(self.slopes(var)), reversed(self.load.buffer.shape), strict=True):
            if found is None:
                return None
            total, pitch = total + found * pitch, pitch * most(extent)
        return total

    def cycles(self, lane: Var, lanes: int, vectors: int) -> float:
        """Cycles of what a place is for all lanes: one element, vectors, every second element, or one by one."""
        width = max(1.0, lanes * DTYPES[self.load.buffer.dtype].bits / (8 * PORT_BYTES))
        step, apart = self.step(lane), APART * lanes * vectors
        known = {0: BROADCAST, 1: LOAD * width * vectors, 2: PICK * width * vectors}
        if step is None and self.alike(lane) % (lanes * vectors) == 0:
            return known[0]
        return known.get(step, apart) if step is not None else apart

    def alike(self, var: Var) -> int:
        """How many neighbours along an axis read the same place, where a quotient says so; 1 where none does."""
        return _quotients([self.load], var)


def picked(load: Load, lane: Var, lanes: int) -> float:
    """Cycles of every second element of a row for a vector; 0 where the lanes of a load are neighbours, or alike."""
    if not load.index or slope(_Unclamped()(load.index[-1]), lane) != 2:
        return 0.0
    return 1.5 if lanes <= PICKED else APART * lanes


def slope(e: Expr, var: Var) -> int | None:
    """By how much an index grows with an axis; None where not by equal steps. What wraps around is read nowhere."""
    if not uses(e, {var}):
        return 0
    match e:
        case Var():
            return 1
        case Cast():
            return slope(e.a, var)
        case Binary(op="+" | "-"):
            a, b = slope(e.a, var), slope(e.b, var)
            return None if a is None or b is None else a + (b if e.op == "+" else -b)
        case Binary(op="*") if isinstance(e.b, Const):
            a = slope(e.a, var)
            return None if a is None else a * as_int(e.b)
        case Binary(op="*") if isinstance(e.a, Const):
            b = slope(e.b, var)
            return None if b is None else b * as_int(e.a)
    return None


def _values(form: Linear, constants: Iterable[int], sizes: Mapping[Var, int]) -> int:
    """How many values a linear form has with these constants."""
    found, apart = set(constants), 1
    for atom, factor in form.terms.items():
        if not isinstance(atom, Var):
            apart *= _parts(atom, sizes)
        elif (n := sizes.get(atom, 1)) > 1:
            found = {x + factor * y for x in found for y in range(n)}
    return len(found) * apart


def _parts(atom: Expr, sizes: Mapping[Var, int]) -> int:
    """How many values an index has that is no linear form; of a quotient, groups that iterations keep to."""
    n = math.prod(size for v, size in sizes.items() if size > 1 and uses(atom, {v}))
    if isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const):
        return -(-n // max(1, as_int(atom.b)))
    return n


def _span(atom: Expr, factor: int, sizes: Mapping[Var, int]) -> int:
    """How far apart the first and the last place are that an index leads to."""
    return abs(factor) * ((sizes.get(atom, 1) if isinstance(atom, Var) else _parts(atom, sizes)) - 1)


def groups(nest: Nest, var: Var) -> int:
    """The iterations of an axis that read alike, where a load says so by a quotient; 1 where none does."""
    return _quotients(nest.loads, var)


def _quotients(loads: Iterable[Load], var: Var) -> int:
    found = (x for load in loads for i in load.index for x in find(i, Binary))
    sizes = {as_int(x.b) for x in found if x.op == "//" and x.a is var and isinstance(x.b, Const)}
    return sizes.pop() if len(sizes) == 1 else 1


def decisions(nest: Nest) -> list[tuple[Expr, ...]]:
    """What a cell asks of its place: comparisons of which one has to be known for a tile to have no condition."""
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
    first = next((t for t in range(min(NEAR, count)) if inner(tiles[t])), None)
    last = next((t for t in range(count - 1, max(-1, count - 1 - NEAR), -1) if inner(tiles[t])), None)
    if first is None or last is None:
        return (count, count) if count <= NEAR else None
    return None if last < first or (first, last) == (0, count - 1) else (first, last + 1)


def _asks_places(cond: Expr) -> bool:
    """Whether a condition is about places alone, so that tiles away from borders do not ask it."""
    return not find(cond, Load) and any(True for _ in _comparisons(cond))


def _decided(nest: Nest, it: Iter, comparisons: tuple[Expr, ...], tile: tuple[int, int]) -> bool:
    known = Arith({x.var: (0, most(x.extent) - 1) for x in nest.stage.iters} | {it.var: (tile[0], tile[1] - 1)})
    return any(known.proves(c) or known.disproves(c) for c in comparisons)


def reduced(nest: Nest) -> dict[Var, int]:
    """The extents of the axes of terms."""
    return {it.var: most(it.extent) for it in nest.stage.iters if it.axis is Axis.REDUCE}
