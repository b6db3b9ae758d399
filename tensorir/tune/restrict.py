"""The little language of ``--restrict``: conditions on knobs, read by hand so that text is never executed.

    expr    := and ("or" and)*
    and     := not ("and" not)*
    not     := "not" not | compare
    compare := sum (("<" | "<=" | ">" | ">=" | "==" | "!=") sum | ["not"] "in" list)*
    sum     := product (("+" | "-") product)*
    product := unary (("*" | "//" | "%") unary)*
    unary   := "-" unary | atom
    atom    := number | string | "True" | "False" | "None" | KNOB | "(" expr ("," expr)* [","] ")"
    list    := "(" expr ("," expr)* [","] ")" | "[" … "]"

Meanings are Python's; there are no calls, attributes, powers or other names.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.spelling import nearest
from tensorir.errors.words import Token, Words

View = Mapping[str, Any]
Term = Callable[[View], Any]

LONGEST, DEEPEST, DIGITS = 2000, 30, 18  # a hostile text costs a refusal, not a recursion error or a huge number
WORDS = {"and", "or", "not", "in", "True", "False", "None"}
_CONSTANTS = {"True": True, "False": False, "None": None}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d+|\d+)|(?P<string>'[^'\\\n]*'|\"[^\"\\\n]*\")|(?P<name>[^\W\d]\w*)"
    r"|(?P<op>//|<=|>=|==|!=|[-+*%<>(),\[\]]))"
)
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_SAME = {"==": operator.eq, "!=": operator.ne}
_ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


def parse(text: str, names: Sequence[str]) -> Callable[[View], bool]:
    """The condition that ``text`` states about the knobs ``names``, as a predicate on configurations."""
    term = _Parser(text, names).whole()
    return lambda config: bool(term(config))


class _Parser(Words):
    pattern, deepest, advice = _TOKEN, DEEPEST, {"/": "use // (rounds down) or %"}

    def __init__(self, text: str, names: Sequence[str]) -> None:
        if not isinstance(text, str) or len(text) > LONGEST:
            raise refuse(
                DeclarationError, "space.restrict-grammar", f"a condition is a text of up to {LONGEST} characters"
            )
        self.names = names
        super().__init__(text)

    def whole(self) -> Term:
        term = self.either()
        if self.now.kind != "end":
            raise self.error(f"unexpected {self.now.text!r}")
        return term

    # -- the grammar, one method a rule

    def either(self) -> Term:
        return self.deeper(self.alternatives)

    def alternatives(self) -> Term:
        terms = [self.both()]
        while self.took("or"):
            terms.append(self.both())
        return terms[0] if len(terms) == 1 else lambda c: any(t(c) for t in terms)

    def both(self) -> Term:
        terms = [self.negation()]
        while self.took("and"):
            terms.append(self.negation())
        return terms[0] if len(terms) == 1 else lambda c: all(t(c) for t in terms)

    def negation(self) -> Term:
        flips = 0
        while self.took("not"):
            flips += 1
        term = self.comparison()
        if not flips:
            return term
        return lambda c: bool(term(c)) is (flips % 2 == 0)

    def comparison(self) -> Term:
        first = self.sum()
        rest: list[tuple[Callable[[Any, Any], bool], Term]] = []
        while True:
            op = self.now.text if self.now.kind in ("op", "name") else ""
            if op in _ORDER or op in _SAME:
                self.n += 1
                rest.append((self.compare(op), self.sum()))
            elif op == "in":
                self.n += 1
                rest.append((lambda a, b: a in b, self.listed()))
            elif op == "not" and self.tokens[self.n + 1].text == "in":
                self.n += 2
                rest.append((lambda a, b: a not in b, self.listed()))
            else:
                break
        return _chain(first, rest) if rest else first

    def sum(self) -> Term:
        return self.folded(("+", "-"), self.product)

    def product(self) -> Term:
        return self.folded(("*", "//", "%"), self.unary)

    def unary(self) -> Term:
        signs = 0
        while self.took("-"):
            signs += 1
        term = self.atom()
        if not signs:
            return term
        minus = self.arithmetic("-")
        return lambda c: minus(0, term(c)) if signs % 2 else minus(0, minus(0, term(c)))

    def atom(self) -> Term:
        token = self.now
        self.n += 1
        if token.kind == "number":
            number = self.number(token)
            return lambda c: number
        if token.kind == "string":
            return lambda c: token.text[1:-1]
        if token.kind == "name" and token.text in _CONSTANTS:
            constant = _CONSTANTS[token.text]
            return lambda c: constant
        if token.kind == "name" and token.text not in WORDS:
            return self.knob(token)
        self.n -= 1
        if token.text == "(":
            terms, tuple_ = self.enclosed("(", ")")
            return (lambda c: tuple(t(c) for t in terms)) if tuple_ else terms[0]
        raise self.error(f"unexpected {token.text!r}" if token.kind != "end" else "the condition ends too early")

    def listed(self) -> Term:
        close = {"(": ")", "[": "]"}.get(self.now.text)
        if close is None or self.now.kind != "op":
            raise self.error("after 'in' comes a list in parentheses", "tile in (1, 2, 4)")
        terms, _ = self.enclosed(self.now.text, close)
        return lambda c: tuple(t(c) for t in terms)

    def enclosed(self, opening: str, closing: str) -> tuple[list[Term], bool]:
        """The terms between two brackets, and whether there was a comma."""
        self.expect(opening)
        terms, comma = [self.either()], False
        while self.took(","):
            comma = True
            if self.now.text == closing:
                break
            terms.append(self.either())
        self.expect(closing)
        return terms, comma

    def folded(self, ops: tuple[str, ...], operand: Callable[[], Term]) -> Term:
        first = operand()
        rest: list[tuple[Callable[[Any, Any], Any], Term]] = []
        while self.now.kind == "op" and self.now.text in ops:
            op = self.now.text
            self.n += 1
            rest.append((self.arithmetic(op), operand()))
        return _fold(first, rest) if rest else first

    # -- leaves

    def knob(self, token: Token) -> Term:
        name = token.text
        if self.now.text == "(":
            raise self.error("there are no calls in a condition")
        if name not in self.names:
            near = nearest(name, self.names)
            hint = near[0] if near else f"one of {', '.join(self.names)}, or '{name}' in quotes for a word"
            raise refuse(
                DeclarationError, "space.unknown-knob", f"there is no knob {name!r}", at=self.mark(token.at), hint=hint
            )
        return lambda c: c[name]

    def number(self, token: Token) -> int | float:
        if len(token.text) > DIGITS:
            raise self.error(f"a number of more than {DIGITS} digits", at=token.at)
        return float(token.text) if "." in token.text else int(token.text)

    def arithmetic(self, op: str) -> Callable[[Any, Any], Any]:
        apply = _ARITHMETIC[op]

        def checked(a: Any, b: Any) -> Any:
            if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
                raise self.mistyped(f"{a!r} {op} {b!r}: {op} is for numbers")
            if op in ("//", "%") and b == 0:
                raise self.mistyped(f"{a!r} {op} 0")
            return apply(a, b)

        return checked

    def compare(self, op: str) -> Callable[[Any, Any], bool]:
        if op in _SAME:
            return _SAME[op]

        def checked(a: Any, b: Any) -> bool:
            try:
                return bool(_ORDER[op](a, b))
            except TypeError:
                raise self.mistyped(f"{a!r} {op} {b!r}: these have no order") from None

        return checked

    # -- tokens and errors

    def mark(self, at: int) -> str:
        low = max(0, at - 60)
        line = re.sub(r"\s", " ", self.text[low : at + 40])
        return f"{line}\n{' ' * (at - low)}^"

    def error(self, message: str, hint: str = "", at: int | None = None) -> Exception:
        where = self.mark(self.now.at if at is None else at)
        return refuse(DeclarationError, "space.restrict-grammar", message, at=where, hint=hint)

    def mistyped(self, message: str) -> Exception:
        return refuse(DeclarationError, "space.restrict-type", message, at=self.text[:100])


def _fold(first: Term, rest: list[tuple[Callable[[Any, Any], Any], Term]]) -> Term:
    def run(c: View) -> Any:
        value = first(c)
        for op, term in rest:
            value = op(value, term(c))
        return value

    return run


def _chain(first: Term, rest: list[tuple[Callable[[Any, Any], bool], Term]]) -> Term:
    """``a < b < c`` as Python means it: every neighbour pair, left to right, stopping at the first that fails."""

    def run(c: View) -> bool:
        left = first(c)
        for op, term in rest:
            right = term(c)
            if not op(left, right):
                return False
            left = right
        return True

    return run
