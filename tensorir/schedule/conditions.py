"""Parser of ``specialize`` conditions over loop variables and input elements.

Grammar: comparisons, and, or, not; + - * // % of loops (by full names) and numbers; input elements such as
``mask[C.i]``, a bool alone or an integer in a comparison; ``x[()]`` for an input without axes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from tensorir.errors import DeclarationError, Problem, ScheduleError
from tensorir.errors.spelling import nearest
from tensorir.errors.text_expr import ARITHMETIC, CONDITIONS, LEAVES, LOGIC, SIGNS, ParsedText, signs, spine
from tensorir.ir.build import as_expr, binary, const, divide, unary
from tensorir.ir.tree import Buffer, Const, Expr, Load, Var


def parse(text: str, loops: Mapping[str, Var], inputs: Mapping[str, Buffer]) -> Expr:
    """Parse ``text`` to a bool expression.

    Raises ScheduleError: ``specialize.grammar``, ``specialize.unknown-name``, ``specialize.type``.
    """
    said = _Condition(text, loops, inputs)
    return said.truth(said.expr(said.tree))


class _Condition(ParsedText):
    pattern = re.compile(
        r"\s*(?:(?P<number>\d+(?![\w.]))|(?P<name>[^\W\d]\w*(?:[.&]\w+)*)|(?P<op>//|<=|>=|==|!=|[-+*%<>(),\[\]]))"
    )
    nodes = (*LEAVES, *ARITHMETIC, *CONDITIONS, ast.Subscript, ast.Tuple)
    keywords, longest, digits = LOGIC, 1000, 10

    def __init__(self, text: str, loops: Mapping[str, Var], inputs: Mapping[str, Buffer]) -> None:
        self.loops, self.inputs = loops, inputs
        super().__init__(text)

    # -- nodes; what is no truth value is refused where one is needed

    def expr(self, node: ast.expr) -> Expr:
        """IR expression of a Python syntax node."""
        match node:
            case ast.BoolOp(op=op, values=values):
                out, *others = (self.truth(self.expr(v)) for v in values)
                for other in others:
                    out = binary("or" if isinstance(op, ast.Or) else "and", out, other)
                return out
            case ast.UnaryOp(op=ast.Not()):
                return self._repeated("not", *signs(node, ast.Not))
            case ast.UnaryOp():
                return self._repeated("-", *signs(node, ast.USub))
            case ast.BinOp():
                first, rest = spine(node)
                out = self.index(self.expr(first))
                for sign, x in rest:
                    out = self._arithmetic(SIGNS[type(sign)], out, x)
                return out
            case ast.Compare():
                return self._compared(node)
            case ast.Subscript(value=ast.Name() as name, slice=inside):
                return self._element(name, inside.elts if isinstance(inside, ast.Tuple) else [inside])
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return const(number)
            case ast.Name():
                return self._loop(self.said(node))
        raise self.refusal(f"unexpected {self.said(node)[:40]!r}", at=node.col_offset)

    def _repeated(self, op: str, node: ast.expr, count: int) -> Expr:
        out = self.expr(node)
        for _ in range(count):
            out = unary(op, self.truth(out) if op == "not" else self.index(out))
        return out

    def _arithmetic(self, op: str, left: Expr, node: ast.expr) -> Expr:
        right = self.index(self.expr(node))
        if op in ("//", "%") and not (isinstance(right, Const) and right.value > 0):
            raise self.refusal(f"after {op} comes a positive number", at=node.col_offset)
        return divide(op, left, right) if op in ("//", "%") else binary(op, left, right)

    def _compared(self, node: ast.Compare) -> Expr:
        sides = [self.expr(n) for n in (node.left, *node.comparators)]
        signs_ = [SIGNS[type(op)] for op in node.ops]
        out, *others = (self.compared(op, a, b) for op, a, b in zip(signs_, sides, sides[1:], strict=False))
        for other in others:
            out = binary("and", out, other)
        return out

    def _loop(self, name: str) -> Expr:
        if name not in self.loops:
            raise self.unknown(name, "loop around the body", list(self.loops))
        return self.loops[name]

    def _element(self, at: ast.Name, index: Sequence[ast.expr]) -> Expr:
        name = self.said(at)
        if name not in self.inputs:
            raise self.unknown(name, "input", list(self.inputs))
        b, places = self.inputs[name], [self.index(self.expr(n)) for n in index]
        if len(places) != len(b.shape):
            raise self.refusal(f"{name} has {len(b.shape)} dimensions, not {len(places)}", at=at.col_offset)
        return Load(b, tuple(places), b.dtype)

    # -- types

    def index(self, e: Expr) -> Expr:
        if e.dtype != "index" or isinstance(e, Load):
            what = f"an element of {e.buffer.name}" if isinstance(e, Load) else "a condition"
            raise self.mistyped(f"{what} is no number of iterations: arithmetic is for loops and numbers")
        return e

    def truth(self, e: Expr) -> Expr:
        if e.dtype != "bool":
            raise self.mistyped("a number is neither true nor false: compare it")
        return e

    def compared(self, op: str, a: Expr, b: Expr) -> Expr:
        if op in (">", ">="):
            op, a, b = op.replace(">", "<"), b, a
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Load):
                name = x.buffer.name
                if x.dtype == "bool":
                    raise self.mistyped(f"an element of {name} is true or false", f"{name}[…] or not {name}[…]")
                if not isinstance(y, Const):
                    raise self.mistyped(f"an element of {name} is compared with a whole number alone")
                return binary(op, *(self.like(e, x.dtype) if e is y else e for e in (a, b)))
        return binary(op, self.index(a), self.index(b))

    def like(self, number: Const, dtype: str) -> Expr:
        try:
            return as_expr(int(number.value), dtype)
        except DeclarationError as e:
            raise self.mistyped(e.problems[0].message) from None

    # -- errors

    def refusal(self, message: str, hint: str = "", at: int | None = 0) -> Exception:
        hint = hint or "'C.i.0 < 3', 'C.j == 0 and C.i % 2 != 1', 'mask[C.i] == 0'"
        where = "" if at is None else self.mark(at)
        return ScheduleError(Problem("specialize.grammar", message, at=where, hint=hint))

    def unknown(self, name: str, what: str, names: list[str]) -> ScheduleError:
        near = nearest(name, names)
        hint = f"{near[0]}?  " if near else ""
        return ScheduleError(
            Problem("specialize.unknown-name", f"there is no {what} called {name}",
                    hint=f"{hint}one of {', '.join(names[:12])}" if names else "")
        )  # fmt: skip

    def mistyped(self, message: str, hint: str = "") -> ScheduleError:
        return ScheduleError(Problem("specialize.type", message, hint=hint))
