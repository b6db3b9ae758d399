"""Comparison of expressions by structure, up to renaming, or by identity (``==`` builds an expression instead)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import is_
from typing import Any
from weakref import WeakValueDictionary

from tensorir.ir.node import STEP, Node
from tensorir.ir.shared import children_first


class Structure:
    """Interned representation shared by all nodes of equal structure."""

    __slots__ = ("__weakref__", "parts")

    def __init__(self, parts: tuple[object, ...]) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return Structure.of, (self.parts,)

    def __deepcopy__(self, memo: object) -> Structure:
        return self

    @staticmethod
    def of(parts: tuple[object, ...]) -> Structure:
        """The interned Structure with these parts."""
        with _LOCK:
            found = _STRUCTURES.get(parts)
            if found is None:
                found = _STRUCTURES[parts] = Structure(parts)
            return found


_STRUCTURES: WeakValueDictionary[tuple[object, ...], Structure] = WeakValueDictionary()
_LOCK = threading.Lock()
_set = object.__setattr__  # nodes may be frozen, and this changes none


def structure(e: Node) -> Hashable:
    """Hashable key of an expression's structure; variables and buffers by identity."""
    if e.alike is None:
        if e.height > STEP:  # too tall for a function that calls itself
            for x in children_first([e], lambda n: [c for c in n.children() if c.alike is None]):
                _intern(x)
        else:
            _intern(e)
    return e.alike  # type: ignore[no-any-return]


def _intern(e: Node) -> None:
    alone = e.alone()
    if alone is None:
        alone = Structure.of((type(e).__name__, *e.own(), *map(structure, e.children())))
    _set(e, "alike", alone)


def same(a: Node, b: Node) -> bool:
    """True if structurally equal; variables and buffers by identity."""
    pairs: list[tuple[Node, Node]] = [(a, b)]
    met: set[tuple[int, int]] = set()
    while pairs:
        x, y = pairs.pop()
        if x is y or (id(x), id(y)) in met:
            continue
        met.add((id(x), id(y)))
        if type(x) is not type(y):
            return False
        below, there = x.children(), y.children()
        if len(below) != len(there) or not all(map(_alike, _told(x), _told(y))):
            return False
        pairs += zip(below, there, strict=True)
    return True


def _told(n: Node) -> tuple[object, ...]:
    alone = n.alone()
    return n.own() if alone is None else (alone,)


def _alike(p: object, q: object) -> bool:
    """True if two fields are equal, nodes by identity."""
    if isinstance(p, Node) or isinstance(q, Node):
        return p is q
    if isinstance(p, tuple) and isinstance(q, tuple):
        return len(p) == len(q) and all(map(_alike, p, q))
    return bool(p == q)


def alpha_key(roots: Sequence[Node], role: Callable[[Node], Hashable]) -> Hashable:
    """Hashable key of trees up to renaming of variables, buffers and stages (alpha-equivalence).

    role: further properties of a named node that must agree

    Trees that share nodes differently may have different keys.
    """
    met: dict[int, int] = {}
    key: list[Hashable] = []
    todo: list[object] = [*reversed(roots)]
    while todo:
        x = todo.pop()
        if isinstance(x, tuple):
            key.append(("tuple", len(x)))
            todo += reversed(x)
        elif not isinstance(x, Node):
            key.append((type(x).__name__, repr(x)) if isinstance(x, float) else x)
        elif id(x) in met:
            key.append(("again", met[id(x)]))
        else:
            met[id(x)] = len(met)
            key += [type(x).__name__, role(x) if "name" in x.FIELDS else None]
            todo += [getattr(x, f) if f != "data" else id(x.data) for f in reversed(x.FIELDS) if f not in _NAMES]  # type: ignore[attr-defined]
    return tuple(key)


_NAMES = frozenset(("name", "of", "origin"))
"""Fields of nodes that ``alpha_key`` ignores: names and declarations."""


def among(x: object, items: Iterable[object]) -> bool:
    """True if ``x`` is one of ``items`` by identity."""
    return any(x is y for y in items)


def place(x: object, items: Iterable[object]) -> int:
    """Index of object ``x`` itself, not of an equal one, in ``items``; raises ValueError if absent."""
    return [*map(id, items)].index(id(x))


def identical(a: Sequence[object], b: Sequence[object]) -> bool:
    """True if both sequences have the same objects in the same order."""
    return len(a) == len(b) and all(map(is_, a, b))
