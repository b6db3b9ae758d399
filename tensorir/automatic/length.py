"""How much a compiler has to read of kernels: what a start that unrolls too much is refused by."""

from __future__ import annotations

from tensorir.ir.build import as_int
from tensorir.ir.node import Node
from tensorir.ir.shared import children_first
from tensorir.ir.tree import Const, Expr, Kind, Loop, Stmt
from tensorir.lower.kernel import Module

MAX_NODES = 1 << 19
"""Nodes of a start, as often as loops are unrolled: compilers read some 20,000 of them a second."""


def length_of(module: Module) -> int:
    """Nodes of all kernels, each as often as the loops around it are unrolled."""
    return sum(_length(k.body) for k in module.kernels)


def _length(s: Node) -> int:
    times = as_int(s.extent) if isinstance(s, Loop) and s.kind is Kind.UNROLL and isinstance(s.extent, Const) else 1
    expressions = children_first(_operands(s), _operands)
    inside = sum(_length(c) for c in s.children() if isinstance(c, Stmt))
    return times * (1 + len(expressions) + inside)


def _operands(n: Node) -> list[Node]:
    return [c for c in n.children() if isinstance(c, Expr)]
