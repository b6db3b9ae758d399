"""Where a condition may hold in a box: what it takes of the variables that stand still while others move.

Bounds of both sides of a comparison, monotone in their parts, make one of it that does not depend on the moving
variables. It holds wherever the condition holds somewhere in the box, and may hold elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tensorir.arith.affine import Arith, Interval, Linear
from tensorir.arith.conditions import contrary
from tensorir.ir.build import as_int, binary, cast, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.text import show
from tensorir.ir.tree import Binary, Cast, Const, Expr, Unary, Var
from tensorir.ir.visit import uses

Ends = tuple[Expr, Expr]


class Reach:
    """Conditions for a box.

    arith:  knows the ranges of all variables
    moving: variables with their ranges in the box
    legal:  whether what stands still may be evaluated in front of the box: it may read data

    ``lost`` has the parts of conditions of which nothing is known, and why.
    """

    def __init__(self, arith: Arith, moving: Mapping[Var, Interval], legal: Callable[[Expr], bool]) -> None:
        self.arith, self.moving, self.legal = arith, dict(moving), legal
        self.lost: list[str] = []

    def of(self, cond: Expr) -> Expr:
        """Return a condition on what stands still that holds wherever ``cond`` holds somewhere in the box."""
        return self.arith.simplify(self._of(cond))

    def _of(self, cond: Expr) -> Expr:
        if isinstance(cond, Const):
            return const(bool(cond.value), "bool")
        if isinstance(cond, Binary) and cond.op in ("and", "or"):
            return binary(cond.op, self._of(cond.a), self._of(cond.b))
        if not uses(cond, self.moving):
            return cond if self.legal(cond) else self._unknown(cond, "it reads what the kernel computes")
        if isinstance(cond, Unary) and cond.op == "not":
            inner = contrary(cond.a)
            if not (isinstance(inner, Unary) and inner.op == "not"):
                return self._of(inner)
        if isinstance(cond, Binary) and cond.op in ("<", "<=", "==") and DTYPES[cond.a.dtype].kind in "iu":
            return self._compared(cond)
        return self._unknown(cond, "it is no comparison of whole numbers by their order")

    def _compared(self, cond: Binary) -> Expr:
        pairs = ((cond.a, cond.b),) if cond.op != "==" else ((cond.a, cond.b), (cond.b, cond.a))
        op = cond.op if cond.op != "==" else "<="
        out: Expr = const(True, "bool")
        for a, b in pairs:
            if a.dtype == b.dtype == "index":  # one form, in which what both have cancels
                ends = self._form(self.arith.linear(a).plus(self.arith.linear(b), -1))
                part = None if ends is None else binary(op, ends[0].expr(), const(0))
            else:
                low, high = self._ends(a), self._ends(b)
                part = None if low is None or high is None else binary(op, low[0], high[1])
            if part is None or not self.legal(part):
                return self._unknown(cond, "its sides have no bounds that loops around the tile give")
            out = binary("and", out, part)
        return out

    def _unknown(self, cond: Expr, why: str) -> Expr:
        self.lost.append(f"{show(cond)}: {why}")
        return const(True, "bool")

    def _ends(self, e: Expr) -> Ends | None:
        """The least and the largest value of a side that may be of another type than indices."""
        if not uses(e, self.moving):
            return e, e
        if e.dtype == "index":
            ends = self._form(self.arith.linear(e))
            return None if ends is None else (ends[0].expr(), ends[1].expr())
        if isinstance(e, Cast) and e.a.dtype == "index" and DTYPES[e.dtype].kind in "iu":
            low, high = self.arith.range(e.a)
            kind, ends2 = DTYPES[e.dtype], self._ends(e.a)
            if ends2 is not None and kind.low <= low and high <= kind.high:
                return cast(ends2[0], e.dtype), cast(ends2[1], e.dtype)
        return None

    def _form(self, form: Linear) -> tuple[Linear, Linear] | None:
        """The least and the largest value of a linear form."""
        low = high = Linear({}, form.constant)
        for atom, c in form.terms.items():
            ends = self._atom(atom)
            if ends is None:
                return None
            low, high = low.plus(ends[c < 0], c), high.plus(ends[c > 0], c)
        return low, high

    def _atom(self, atom: Expr) -> tuple[Linear, Linear] | None:
        if not uses(atom, self.moving):
            return Linear({atom: 1}, 0), Linear({atom: 1}, 0)
        if isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const) and as_int(atom.b) > 0:
            inner = self._form(self.arith.linear(atom.a))
            if inner is not None and self.arith.range_of(inner[0])[0] >= 0:
                low, high = (self.arith.linear(binary("//", x.expr(), atom.b)) for x in inner)
                return low, high
        if isinstance(atom, Binary) and atom.op in ("min", "max"):
            a, b = self._form(self.arith.linear(atom.a)), self._form(self.arith.linear(atom.b))
            if a is not None and b is not None:
                low, high = (self.arith.linear(binary(atom.op, x.expr(), y.expr())) for x, y in zip(a, b, strict=True))
                return low, high
        least, most = self.moving[atom] if isinstance(atom, Var) else self.arith.range_of(Linear({atom: 1}, 0))
        if math.isinf(least) or math.isinf(most):
            return None
        if not isinstance(atom, Var):
            self.lost.append(f"{show(atom)}: its bounds are those in all tiles")
        return Linear({}, int(least)), Linear({}, int(most))
