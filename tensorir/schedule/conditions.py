"""The little language of ``specialize``: conditions on loops and inputs, read by hand so that text is never executed.

    cond    := both ("or" both)*
    both    := one ("and" one)*
    one     := "not" one | "(" cond ")" | sum (("<" | "<=" | ">" | ">=" | "==" | "!=") sum)+ | element
    sum     := product (("+" | "-") product)*
    product := unary (("*" | "//" | "%") unary)*
    unary   := "-" unary | number | LOOP | element | "(" sum ")"
    element := INPUT "[" [sum ("," sum)*] "]"

Loops have their full names; an element of an input stands alone (a bool) or is compared with a whole number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tensorir.errors import DeclarationError, Problem, ScheduleError
from tensorir.errors.spelling import nearest
from tensorir.errors.words import Token, Words
from tensorir.ir.build import as_expr, binary, const, divide, unary
from tensorir.ir.tree import Buffer, Const, Expr, Load, Var

LONGEST, DEEPEST, DIGITS = 1000, 30, 10  # a hostile text costs a refusal, not a recursion error or a huge number
WORDS = {"and", "or", "not"}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?![\w.]))|(?P<name>[^\W\d]\w*(?:[.&]\w+)*)|(?P<op>//|<=|>=|==|!=|[-+*%<>(),\[\]]))"
)
_COMPARE = {"<", "<=", ">", ">=", "==", "!="}


def parse(text: str, loops: Mapping[str, Var], inputs: Mapping[str, Buffer]) -> Expr:
    """The condition that ``text`` states, as a bool expression.

    Raises ScheduleError: ``specialize.grammar``, ``specialize.unknown-name``, ``specialize.type``.
    """
    return _Parser(text, loops, inputs).whole()


class _Parser(Words):
    pattern, deepest = _TOKEN, DEEPEST

    def __init__(self, text: str, loops: Mapping[str, Var], inputs: Mapping[str, Buffer]) -> None:
        if len(text) > LONGEST:
            raise ScheduleError(Problem("specialize.grammar", f"a condition has at most {LONGEST} characters"))
        self.loops, self.inputs = loops, inputs
        super().__init__(text)

    def whole(self) -> Expr:
        cond = self.cond()
        if self.now.kind != "end":
            raise self.error(f"unexpected {self.now.text!r}")
        return self.truth(cond)

    # -- the grammar, one method a rule; what is no truth value is refused where one is needed

    def cond(self) -> Expr:
        return self.joined("or", lambda: self.joined("and", self.one))

    def joined(self, word: str, operand: Callable[[], Expr]) -> Expr:
        out = operand()
        while self.took(word):
            out = binary(word, self.truth(out), self.truth(operand()))
        return out

    def one(self) -> Expr:
        if self.took("not"):
            return unary("not", self.truth(self.deeper(self.one)))
        left = self.sum()
        found: Expr | None = None
        while self.now.kind == "op" and self.now.text in _COMPARE:
            op = self.now.text
            self.n += 1
            right = self.sum()
            both = self.compared(op, left, right)
            found, left = both if found is None else binary("and", found, both), right
        return left if found is None else found

    def sum(self) -> Expr:
        out = self.product()
        while self.now.text in ("+", "-"):
            op = self.now.text
            self.n += 1
            out = binary(op, self.index(out), self.index(self.product()))
        return out

    def product(self) -> Expr:
        out = self.unary()
        while self.now.text in ("*", "//", "%"):
            op = self.now.text
            self.n += 1
            left, right = self.index(out), self.index(self.unary())
            if op == "*":
                out = binary(op, left, right)
            elif isinstance(right, Const) and right.value > 0:
                out = divide(op, left, right)
            else:
                raise self.error(f"after {op} comes a positive number")
        return out

    def unary(self) -> Expr:
        if self.took("-"):
            return unary("-", self.index(self.deeper(self.unary)))
        token = self.now
        self.n += 1
        if token.kind == "number":
            if len(token.text) > DIGITS:
                raise self.error(f"a number of more than {DIGITS} digits", at=token.at)
            return const(int(token.text))
        if token.kind == "name" and token.text not in WORDS:
            return self.element(token) if self.now.text == "[" else self.loop(token)
        self.n -= 1
        if self.took("("):
            inner = self.deeper(self.cond)
            self.expect(")")
            return inner
        raise self.error(f"unexpected {token.text!r}" if token.kind != "end" else "the condition ends too early")

    # -- leaves

    def loop(self, token: Token) -> Expr:
        if token.text not in self.loops:
            raise self.unknown(token, "loop around the body", list(self.loops))
        return self.loops[token.text]

    def element(self, token: Token) -> Expr:
        if token.text not in self.inputs:
            raise self.unknown(token, "input", list(self.inputs))
        b = self.inputs[token.text]
        self.expect("[")
        index: list[Expr] = []
        while self.now.text != "]":
            index.append(self.index(self.sum()))
            if not self.took(","):
                break
        self.expect("]")
        if len(index) != len(b.shape):
            raise self.error(f"{b.name} has {len(b.shape)} dimensions, not {len(index)}", at=token.at)
        return Load(b, tuple(index), b.dtype)

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

    # -- tokens and errors

    def error(self, message: str, hint: str = "", at: int | None = None) -> ScheduleError:
        place = self.now.at if at is None else at
        low = max(0, place - 60)
        shown = "".join(c if c.isprintable() else " " for c in self.text[low : place + 40])
        hint = hint or "'C.i.0 < 3', 'C.j == 0 and C.i % 2 != 1', 'mask[C.i] == 0'"
        return ScheduleError(Problem("specialize.grammar", message, at=f"{shown}\n{' ' * (place - low)}^", hint=hint))

    def unknown(self, token: Token, what: str, names: list[str]) -> ScheduleError:
        near = nearest(token.text, names)
        hint = f"{near[0]}?  " if near else ""
        return ScheduleError(
            Problem("specialize.unknown-name", f"there is no {what} called {token.text}",
                    hint=f"{hint}one of {', '.join(names[:12])}" if names else "")
        )  # fmt: skip

    def mistyped(self, message: str, hint: str = "") -> ScheduleError:
        return ScheduleError(Problem("specialize.type", message, hint=hint))
