"""Loads and other expressions with the conditions of their evaluation."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TypeVar

from tensorir.arith.conditions import negate
from tensorir.ir.node import Node
from tensorir.ir.shared import children_first
from tensorir.ir.structure import structure
from tensorir.ir.tree import Expr, Load, Select

Conditions = tuple[Expr, ...]
E = TypeVar("E", bound=Expr)


def conditional_loads(root: Node, given: Conditions = ()) -> Iterator[tuple[Load, Conditions]]:
    """Yield (load, conditions) for every load under ``root``: conditions of its evaluation, ``given`` among them."""
    return conditional(root, Load, given)


def conditional(root: Node, kind: type[E], given: Conditions = ()) -> Iterator[tuple[E, Conditions]]:
    """Yield (expression, conditions) for every expression of class ``kind`` under ``root``: conditions of its
    evaluation.

    These are ``given`` and those of enclosing selects. A condition without an expressible negation adds none to the
    other side. A subexpression with several occurrences is yielded once per condition set
    not implied by another; if more than ``MOST_PLACES`` remain, once with the common conditions. Of nested selects the
    innermost ``MOST_CONDITIONS`` conditions are listed.
    """
    places: dict[Node, list[Conditions]] = {root: [()]}
    for n in reversed(children_first([root], lambda n: n.backwards())):  # all parents first, and else in source order
        here = _needed(places.pop(n))
        if isinstance(n, kind):
            yield from ((n, given + conds) for conds in here)
        for child, cond in _sides(n):
            inner = here if cond is None else [(*conds, cond)[-MOST_CONDITIONS:] for conds in here]
            places.setdefault(child, []).extend(inner)


MOST_CONDITIONS = 32
"""Maximum number of conditions of nested selects per expression: the innermost ones."""
MOST_PLACES = 8
"""Condition sets listed per expression; beyond it one set, their intersection."""


def _sides(n: Node) -> list[tuple[Node, Expr | None]]:
    """[(child, condition of its evaluation, or None)] of a node."""
    if isinstance(n, Select):
        return [(n.cond, None), (n.a, n.cond), (n.b, negate(n.cond))]
    return [(child, None) for child in n.children()]


def _needed(places: list[Conditions]) -> list[Conditions]:
    """The condition sets without those that imply another one; if many remain, one set with their common conditions."""
    if len(places) == 1:
        return places
    kept: list[tuple[set[Hashable], Conditions]] = []
    for conds in sorted(places, key=len):
        said = set(map(structure, conds))  # each ``i > 0`` in a lambda is a node of its own
        if not any(less <= said for less, _ in kept):
            kept.append((said, conds))
    if len(kept) > MOST_PLACES:
        common = set.intersection(*[said for said, _ in kept])
        return [tuple(c for c in kept[0][1] if structure(c) in common)]
    return [conds for _, conds in kept]
