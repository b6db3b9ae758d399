"""Parser of ``--restrict`` conditions on knobs, a subset of Python expressions.

Knobs, numbers, words in quotes, True, False, None and tuples; + - * // %, comparisons, ``in`` a list in parentheses or
brackets, and, or, not. There are no calls, attributes, powers or other names.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.spelling import nearest
from tensorir.errors.text_expr import ARITHMETIC, CONDITIONS, KEYWORDS, LEAVES, SIGNS, ParsedText, signs, spine

View = Mapping[str, Any]
Term = Callable[[View], Any]

_ORDER: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ANY: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


def parse(text: str, names: Sequence[str]) -> Callable[[View], bool]:
    """Return a predicate on configurations for the condition ``text`` about knobs ``names``.

    Raises DeclarationError ``space.restrict-grammar`` or ``space.unknown-knob``; the predicate raises
    ``space.restrict-type`` for words in arithmetic, values without an order, and divisions by 0.
    """
    said = _Condition(text, names)
    term = said.truth(said.tree)
    return lambda config: bool(term(config))


class _Condition(ParsedText):
    pattern = re.compile(
        r"\s*(?:(?P<number>(?:\d+\.\d+|\d+)(?![\w.]))|(?P<string>'[^'\\\n]*'|\"[^\"\\\n]*\")|(?P<name>[^\W\d]\w*)"
        r"|(?P<op>//|<=|>=|==|!=|[-+*%<>(),\[\]]))"
    )
    nodes = (*LEAVES, *ARITHMETIC, *CONDITIONS, ast.In, ast.NotIn, ast.Tuple, ast.List)
    keywords, longest, digits, advice = KEYWORDS, 2000, 18, {"/": "use // (rounds down) or %"}

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.names = names
        super().__init__(text)

    def refusal(self, message: str, hint: str = "", at: int | None = 0) -> Exception:
        where = "" if at is None else self.mark(at)
        return refuse(DeclarationError, "space.restrict-grammar", message, at=where, hint=hint)

    def mistyped(self, message: str) -> Exception:
        return refuse(DeclarationError, "space.restrict-type", message, at=self.text[:100])

    def truth(self, node: ast.expr) -> Term:
        """Function from a configuration to the node's bool."""
        if isinstance(node, ast.Tuple):
            raise self.refusal("a tuple is neither true nor false: compare it", at=node.col_offset)
        return self.term(node)

    def term(self, node: ast.expr) -> Term:
        """Function from a configuration to the node's value."""
        match node:
            case ast.BoolOp(op=op, values=values):
                terms, joined = [*map(self.truth, values)], any if isinstance(op, ast.Or) else all
                return lambda c: joined(bool(t(c)) for t in terms)
            case ast.UnaryOp(op=ast.Not()):
                return self._negated(*signs(node, ast.Not))
            case ast.UnaryOp():
                return self._signed(*signs(node, ast.USub))
            case ast.BinOp():
                first, rest = spine(node)
                return _folded(self.term(first), [(self._arithmetic(type(op)), self.term(x)) for op, x in rest])
            case ast.Compare(left=left, ops=ops, comparators=others):
                each = [(self._compare(type(op)), self._listed(op, x)) for op, x in zip(ops, others, strict=True)]
                return _chain(self.term(left), each)
            case ast.Tuple(elts=elements) if elements:
                terms = [*map(self.term, elements)]
                return lambda c: tuple(t(c) for t in terms)
            case ast.Constant():
                said = self.said(node)
                value = said[1:-1] if said[0] in "'\"" else node.value
                return lambda c: value
            case ast.Name():
                return self._knob(node)
        raise self.refusal(f"unexpected {self.said(node)[:40]!r}", at=node.col_offset)

    def _listed(self, op: ast.cmpop, node: ast.expr) -> Term:
        """Function from a configuration to the right operand of a comparison: a tuple after ``in``, else a value."""
        if not isinstance(op, ast.In | ast.NotIn):
            return self.term(node)
        elements = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
        alone = not isinstance(node, ast.Tuple | ast.List)
        if not elements or (alone and not self.text[: node.col_offset].rstrip().endswith("(")):
            raise self.refusal("after 'in' comes a list in parentheses", "tile in (1, 2, 4)", node.col_offset)
        terms = [*map(self.term, elements)]
        return lambda c: tuple(t(c) for t in terms)

    def _negated(self, node: ast.expr, count: int) -> Term:
        term = self.truth(node)
        return lambda c: bool(term(c)) is (count % 2 == 0)

    def _signed(self, node: ast.expr, count: int) -> Term:
        term, minus = self.term(node), self._arithmetic(ast.Sub)
        return lambda c: minus(0, term(c)) if count % 2 else minus(0, minus(0, term(c)))

    def _knob(self, node: ast.Name) -> Term:
        name = self.said(node)
        if name not in self.names:
            near = nearest(name, self.names)
            hint = near[0] if near else f"one of {', '.join(self.names)}, or '{name}' in quotes for a word"
            message, at = f"there is no knob {name!r}", self.mark(node.col_offset)
            raise refuse(DeclarationError, "space.unknown-knob", message, at=at, hint=hint)
        return lambda c: c[name]

    def _arithmetic(self, op: type) -> Callable[[Any, Any], Any]:
        apply, sign = _ARITHMETIC[op], SIGNS[op]

        def checked(a: Any, b: Any) -> Any:
            if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
                raise self.mistyped(f"{a!r} {sign} {b!r}: {sign} is for numbers")
            if sign in ("//", "%") and b == 0:
                raise self.mistyped(f"{a!r} {sign} 0")
            return apply(a, b)

        return checked

    def _compare(self, op: type) -> Callable[[Any, Any], bool]:
        if op in _ANY:
            return _ANY[op]

        def checked(a: Any, b: Any) -> bool:
            try:
                return bool(_ORDER[op](a, b))
            except TypeError:
                raise self.mistyped(f"{a!r} {SIGNS[op]} {b!r}: these have no order") from None

        return checked


def _folded(first: Term, rest: Sequence[tuple[Callable[[Any, Any], Any], Term]]) -> Term:
    def run(c: View) -> Any:
        value = first(c)
        for op, term in rest:
            value = op(value, term(c))
        return value

    return run


def _chain(first: Term, rest: Sequence[tuple[Callable[[Any, Any], bool], Term]]) -> Term:
    """Function from a configuration to the bool of ``a < b < c`` as in Python, stopping at the first failure.

    rest: (comparison, operand) pairs after the first operand
    """

    def run(c: View) -> bool:
        left = first(c)
        for op, term in rest:
            right = term(c)
            if not op(left, right):
                return False
            left = right
        return True

    return run
