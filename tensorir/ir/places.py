"""Scopes of evaluation in an expression: everywhere, or under select, ``and`` and ``or`` conditions.

Each side of a select, and the right side of ``and`` and ``or``, is a scope. Exception: a select of vectors with a
vector condition computes both sides in all lanes, so its sides are no scopes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from tensorir.ir.lanes import lanes_of
from tensorir.ir.node import SIDES, STEP, Node
from tensorir.ir.shared import children_first
from tensorir.ir.tree import Binary, Expr, Ramp, Select, Unary


class Place:
    """The scope in which condition ``of`` holds (fails, if ``opposite``), inside ``outer``; the outermost scope is
    unconditional.

    cond: variable that names the scope's exact condition, once needed
    several: the scopes of which this one is the union; () for a side
    """

    __slots__ = ("_sides", "cond", "depth", "of", "opposite", "outer", "several")

    def __init__(self, outer: Place | None = None, of: Expr | None = None, opposite: bool = False,
                 several: tuple[Place, ...] = ()) -> None:  # fmt: skip
        self.outer, self.of, self.opposite, self.several = outer, of, opposite, several
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.cond: Expr | None = None
        self._sides: dict[tuple[Expr, bool], Place] = {}

    def side(self, of: Expr, opposite: bool) -> Place:
        """Scope nested in this one in which condition ``of`` holds, or fails if ``opposite``."""
        key = of, opposite
        if key not in self._sides:
            self._sides[key] = Place(self, of, opposite)
        return self._sides[key]

    def around(self, other: Place) -> Place:
        """Innermost scope that contains this and ``other``."""
        a, b = self, other
        while a is not b:
            if a.depth >= b.depth:
                assert a.outer is not None
                a = a.outer
            else:
                assert b.outer is not None
                b = b.outer
        return a


def operands(e: Expr) -> tuple[Expr, ...]:
    """Operand expressions of ``e``; () for a Ramp, whose form matters."""
    return () if isinstance(e, Ramp) else tuple([c for c in e.children() if isinstance(c, Expr)])


class Places:
    """Distinct subexpressions, operands first, with number of readers and the innermost scope containing all
    readers.
    """

    def __init__(self, roots: Iterable[Expr]) -> None:
        self.everywhere = Place()
        self.readers: dict[Expr, int] = {}
        self.of: dict[Expr, Place] = {}
        roots = tuple(roots)
        self.order = children_first(roots, operands)
        for r in roots:
            self._read(r, self.everywhere)
        for e in reversed(self.order):
            self._visit(e)

    def _read(self, e: Expr, place: Place) -> None:
        self.readers[e] = self.readers.get(e, 0) + 1
        known = self.of.get(e)
        self.of[e] = place if known is None else known.around(place)

    def side(self, place: Place, of: Expr, opposite: bool) -> Place:
        """Scope nested in ``place`` in which condition ``of`` holds, or fails if ``opposite``."""
        return place.side(of, opposite)

    def _visit(self, e: Expr) -> None:
        """Record the scope of ``e``'s operands, once all readers of ``e`` are known."""
        here = self.of[e]
        if isinstance(e, Select) and lanes_of(e.cond) == 1:
            self._read(e.cond, here)
            self._read(e.a, self.side(here, e.cond, False))
            self._read(e.b, self.side(here, e.cond, True))
        elif isinstance(e, Binary) and e.op in ("and", "or") and lanes_of(e) == 1:
            self._read(e.a, here)
            self._read(e.b, self.side(here, e.a, e.op == "or"))
        else:
            for c in operands(e):
                self._read(c, here)


class ExactPlaces(Places):
    """Places whose scopes hold no more than their readers: ``c or d``, not everywhere, for what is read under c and
    under d. That of ``c and d`` is inside that of c.
    """

    def __init__(self, roots: Iterable[Expr]) -> None:
        self._found: dict[Expr, tuple[Place, ...]] = {}
        self._unions: dict[frozenset[Place], Place] = {}
        super().__init__(roots)

    def side(self, place: Place, of: Expr, opposite: bool) -> Place:
        for c, against in _each_of(of, opposite):
            place = place.side(c, against)
        return place

    def _read(self, e: Expr, place: Place) -> None:
        self.readers[e] = self.readers.get(e, 0) + 1
        self._found[e] = _and_also(self._found.get(e, ()), place)

    def _visit(self, e: Expr) -> None:
        found = self._found[e]
        if len(found) == 1:
            self.of[e] = found[0]
        elif (union := self._unions.get(frozenset(found))) is not None:
            self.of[e] = union
        else:
            around = functools.reduce(Place.around, found)
            self.of[e] = self._unions[frozenset(found)] = Place(around, several=found)
        super()._visit(e)


def _each_of(of: Expr, opposite: bool) -> list[tuple[Expr, bool]]:
    """(condition, whether it fails) of all that hold where ``of`` holds, or fails if ``opposite``, in order of
    evaluation, each once.
    """
    found: dict[tuple[Expr, bool], None] = {}
    seen, todo = set[tuple[Expr, bool]](), [(of, opposite)]
    while todo:
        c, fails = todo.pop()
        if (c, fails) in seen:
            continue
        seen.add((c, fails))
        if isinstance(c, Unary) and c.op == "not":
            todo.append((c.a, not fails))
        elif isinstance(c, Binary) and c.op == ("or" if fails else "and"):
            todo += [(c.b, fails), (c.a, fails)]
        else:
            found[c, fails] = None
    return list(found)


def _and_also(found: tuple[Place, ...], place: Place) -> tuple[Place, ...]:
    """The scopes ``found`` and ``place``: none inside another, and in place of both sides of a condition what is
    around them.
    """
    if any(p.around(place) is p for p in found):
        return found
    kept = tuple(p for p in found if place.around(p) is not place)
    for p in kept:
        if p.outer is place.outer and p.of is place.of and p.opposite != place.opposite and place.outer is not None:
            return _and_also(tuple(q for q in kept if q is not p), place.outer)
    return (*kept, place)


class Rewritten(dict[Any, Any]):
    """Cache of rewritten expressions for one scope, where the rewriter may assume more.

    outer: rewriter for expressions also read outside;  level: depth of recursive calls
    """

    __slots__ = ("descending", "level", "outer", "place", "places", "root", "sides")

    def __init__(
        self, root: Node, places: Places | None = None, place: Place | None = None, outer: Any = None, level: int = 0
    ) -> None:
        self.descending, self.level = False, level
        self.root, self.places, self.place, self.outer = root, places, place, outer
        self.sides: dict[Any, Any] = {}  # what else is made once in this place

    def side(self, cond: Expr, opposite: bool) -> Place | None:
        """Scope nested in this one in which condition ``cond`` holds, or fails if ``opposite``; None beyond ``NESTED``
        levels.
        """
        place = self._find()
        return place.side(cond, opposite) if place.depth < NESTED else None

    def is_elsewhere(self, e: Expr) -> bool:
        """True if a value is also read outside this scope; indices and conditions are rewritten per scope."""
        if e.dtype in ("index", "bool") or self.places is None or self.place is None:
            return False
        found = self.places.of.get(e)
        return found is not None and found.depth < self.place.depth

    def stops(self, e: Expr) -> list[Expr]:
        """Subexpressions of a tall expression to rewrite first, to limit recursion depth."""

        def below(x: Expr) -> list[Expr]:
            tall = [c for c in x.children() if c.INNER and c.height > STEP]
            return [c for c in tall if c not in self and not self.is_elsewhere(c)]

        found = children_first([e], below)
        if self.places is None and not any(r.holds & SIDES for r in self._roots()):
            return found  # all of them are evaluated here
        here = self._find().depth
        assert self.places is not None
        places = self.places.of
        return [x for x in found if x in places and min(places[x].depth, NESTED) <= here]

    def _roots(self) -> list[Expr]:
        return [self.root] if isinstance(self.root, Expr) else [c for c in self.root.children() if c.INNER]

    def _find(self) -> Place:
        if self.places is None:
            self.places = Places(self._roots())
            self.place = self.places.everywhere
        assert self.place is not None
        return self.place


NESTED = 32
"""Depth of nested conditions up to which rewriters assume them."""
