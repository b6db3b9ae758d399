"""Loads and other expressions with the conditions that they stand under."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from tensorir.arith.affine import negate
from tensorir.ir.node import Node
from tensorir.ir.tree import Expr, Load, Select

Conditions = tuple[Expr, ...]
E = TypeVar("E", bound=Expr)


def conditional_loads(root: Node, given: Conditions = ()) -> Iterator[tuple[Load, Conditions]]:
    """Every load under ``root`` with its conditions; see ``conditional``."""
    return conditional(root, Load, given)


def conditional(root: Node, kind: type[E], given: Conditions = ()) -> Iterator[tuple[E, Conditions]]:
    """Every ``kind`` under ``root`` with what holds where it is evaluated: ``given``, and the sides of selects around.

    Of a select's condition that has no simple opposite, the other side learns nothing.
    """
    if isinstance(root, Select):
        yield from conditional(root.cond, kind, given)
        yield from conditional(root.a, kind, (*given, root.cond))
        opposite = negate(root.cond)
        yield from conditional(root.b, kind, given if opposite is None else (*given, opposite))
        return
    if isinstance(root, kind):
        yield root, given
    for child in root.children():
        yield from conditional(child, kind, given)
