"""Logic on conditions: conjuncts, negation, implication."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tensorir.ir.build import binary, const, unary
from tensorir.ir.dtypes import is_float
from tensorir.ir.shared import once
from tensorir.ir.tree import Binary, Const, Expr, Unary

if TYPE_CHECKING:
    from tensorir.arith.affine import Arith


def conjuncts(cond: Expr) -> list[Expr]:
    """The conditions that ``and`` joins in ``cond``, in order; [] for constant true."""
    parts: list[Expr] = []
    todo, seen = [cond], set[Expr]()
    while todo:
        c = todo.pop()
        if isinstance(c, Binary) and c.op == "and":
            if c not in seen:
                seen.add(c)
                todo += (c.b, c.a)
        elif not (isinstance(c, Const) and c.value):
            parts.append(c)
    return parts


def conjunction(conds: Iterable[Expr]) -> Expr:
    """``and`` of all conditions; constant true for none."""
    out: Expr = const(True, "bool")
    for c in conds:
        out = binary("and", out, c)
    return out


def weakest(conds: Iterable[Expr], arith: Arith) -> list[Expr]:
    """``conds`` without those that the others provably imply; of two equivalent ones the later stays."""
    kept = list(conds)
    for c in list(kept):
        others = [o for o in kept if o is not c]
        if arith.child(assume=others).proves(c):
            kept = others
    return kept


@once
def negate(cond: Expr) -> Expr | None:
    """The opposite of ``cond`` as comparisons joined by ``and`` and ``or``; None for other conditions.

    ``<``, ``<=`` and ``==`` of floats give None (NaN), as do ``not`` and loaded bools.
    """
    if isinstance(cond, Const):
        return const(not cond.value, "bool")
    if isinstance(cond, Binary):
        if is_float(cond.a.dtype) and cond.op in ("<", "<=", "=="):
            return None
        if cond.op == "<":
            return binary("<=", cond.b, cond.a)
        if cond.op == "<=":
            return binary("<", cond.b, cond.a)
        if cond.op == "!=":
            return binary("==", cond.a, cond.b)
        if cond.op == "==":
            return binary("or", binary("<", cond.a, cond.b), binary("<", cond.b, cond.a))
        if cond.op in ("and", "or"):
            a, b = negate(cond.a), negate(cond.b)
            if a is not None and b is not None:
                return binary("or" if cond.op == "and" else "and", a, b)
    return None


@once
def contrary(cond: Expr) -> Expr:
    """``not cond``, written as a comparison if possible."""
    if isinstance(cond, Binary):
        if cond.op in ("and", "or"):
            return binary("or" if cond.op == "and" else "and", contrary(cond.a), contrary(cond.b))
        if cond.op in ("==", "!="):
            return binary("!=" if cond.op == "==" else "==", cond.a, cond.b)
        if cond.a.dtype == "index":
            return binary("<=" if cond.op == "<" else "<", cond.b, cond.a)
    if isinstance(cond, Unary) and cond.op == "not":
        return cond.a
    return unary("not", cond)
