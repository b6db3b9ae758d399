"""Loads with the conditions that they stand under."""

from __future__ import annotations

from collections.abc import Iterator

from tensorir.arith.affine import negate
from tensorir.ir.node import Node
from tensorir.ir.tree import Expr, Load, Select

Conditions = tuple[Expr, ...]


def conditional_loads(root: Node, given: Conditions = ()) -> Iterator[tuple[Load, Conditions]]:
    """Every load under ``root`` with what holds where it is evaluated: ``given``, and the sides of the selects around.

    Of a select's condition that has no simple opposite, the other side learns nothing.
    """
    if isinstance(root, Select):
        yield from conditional_loads(root.cond, given)
        yield from conditional_loads(root.a, (*given, root.cond))
        opposite = negate(root.cond)
        yield from conditional_loads(root.b, given if opposite is None else (*given, opposite))
        return
    if isinstance(root, Load):
        yield root, given
    for child in root.children():
        yield from conditional_loads(child, given)
