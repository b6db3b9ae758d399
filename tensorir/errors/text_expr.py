"""``ParsedText``: parser base for small expression languages in user strings; uses Python's grammar, executes nothing.

``"tile <= 4 and mode in ('row', 'col')"  ->  ast.BoolOp(And, [Compare, Compare])``

Each language is a subclass that defines its words, ``ast`` nodes and error messages. Names may be any text accepted by
the subclass, such as C.i.0: Python's parser gets a placeholder of the same length.
"""

from __future__ import annotations

import ast
import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

LOGIC = frozenset({"and", "or", "not"})
KEYWORDS = LOGIC | {"in", "True", "False", "None"}
LEAVES: tuple[type[ast.AST], ...] = (ast.Constant, ast.Name, ast.Load)
ARITHMETIC: tuple[type[ast.AST], ...] = (
    ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub,
)  # fmt: skip
SIGNS: Mapping[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
CONDITIONS: tuple[type[ast.AST], ...] = (
    ast.BoolOp, ast.And, ast.Or, ast.Not, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip


class Word(NamedTuple):
    """A token of a text: group of the pattern ("number", "string", "name" or "op"), text and position."""

    kind: str
    text: str
    at: int

    def operand(self, brackets: str) -> bool:
        """True if the token is no operator and no logical word, or is one of ``brackets``."""
        return self.text in brackets if self.kind == "op" else self.text not in LOGIC | {"in"}


class ParsedText:
    """A user's text parsed to a Python ``ast`` (``tree``); base of small expression languages, which set the class
    attributes. The constructor raises the language's ``refusal`` for a text outside of it.

    pattern: regular expression of a token, in a group named number, string, name or op
    nodes:   types of ``ast`` nodes in the language;  keywords: Python keywords in the language
    longest: most characters of a text;  deepest: most nested brackets;  digits: most digits of a number
    advice:  {character that is not in the language: hint}
    """

    pattern: ClassVar[re.Pattern[str]]
    nodes: ClassVar[tuple[type[ast.AST], ...]]
    keywords: ClassVar[frozenset[str]]
    longest: ClassVar[int]
    deepest: ClassVar[int] = 30
    digits: ClassVar[int]
    advice: ClassVar[Mapping[str, str]] = {}

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or len(text) > self.longest:
            self.text = ""
            raise self.refusal(f"it is a text of up to {self.longest} characters", at=None)
        self.text = text
        self.tree = self._parsed()

    def refusal(self, message: str, hint: str = "", at: int | None = 0) -> Exception:
        """The language's exception, for the caller to raise, about position ``at`` (None: the whole text)."""
        raise NotImplementedError("each language has errors of its own")

    def said(self, node: ast.expr) -> str:
        """The user's text of a node of ``tree``, whose own names are placeholders."""
        return self.text[node.col_offset : node.end_col_offset]

    def mark(self, at: int) -> str:
        """Up to 100 characters of the text around position ``at``, and a caret below the position."""
        low = max(0, at - 60)
        line = "".join(c if c.isprintable() else " " for c in self.text[low : at + 40])
        return f"{line}\n{' ' * (at - low)}^"

    def _parsed(self) -> ast.expr:
        words = list(self._words())
        plain = [" "] * len(self.text)
        for kind, word, at in words:
            if kind == "name" and word not in self.keywords:
                word = "_" * len(word)
            elif kind == "string":
                word = f"'{'_' * (len(word) - 2)}'"
            plain[at : at + len(word)] = word
        first = words[0].at if words else 0
        try:
            tree = ast.parse("".join(plain[first:]), mode="eval").body
        except (MemoryError, RecursionError):
            raise self.refusal("nested too deeply", at=None) from None
        except (SyntaxError, ValueError) as error:
            offset = getattr(error, "offset", None)  # 0 where the text ends
            raise self._unexpected(words, first + offset - 1 if offset else len(self.text), str(error)) from None
        for node in ast.walk(tree):
            if isinstance(node, ast.expr):
                node.col_offset += first
                node.end_col_offset = (node.end_col_offset or 0) + first
                operators = [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr)]
                if not all(isinstance(n, self.nodes) for n in (node, *operators)):
                    raise self.refusal(f"{self.said(node)[:40]!r} has no meaning here", at=node.col_offset)
        return tree

    def _words(self) -> Iterator[Word]:
        at, end, depth, last = 0, len(self.text.rstrip()), 0, ""
        while at < end:
            m = self.pattern.match(self.text, at)
            if m is None or m.lastgroup is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                raise self.refusal(f"unexpected {self.text[at]!r}", self.advice.get(self.text[at], ""), at)
            word = Word(m.lastgroup, m[m.lastgroup], m.start(m.lastgroup))
            if word.kind == "number" and len(word.text) > self.digits:
                raise self.refusal(f"a number of more than {self.digits} digits", at=word.at)
            if word.kind == "name" and unicodedata.normalize("NFKC", word.text) != word.text:
                near = unicodedata.normalize("NFKC", word.text)
                raise self.refusal(f"{word.text!r} is not written as its letters are", near, word.at)
            if word.kind == last == "string":  # which Python joins
                raise self.refusal(f"unexpected {word.text!r}", at=word.at)
            depth += (word.text in "([") - (word.text in ")]") if word.kind == "op" else 0
            if depth > self.deepest:
                raise self.refusal(f"nested deeper than {self.deepest}", at=word.at)
            yield word
            at, last = m.end(), word.kind

    def _unexpected(self, words: list[Word], at: int, why: str) -> Exception:
        if "never closed" in why:
            return self.refusal(f"{self.text[at : at + 1]!r} is not closed", at=at)
        word = next((w for w in words if w.at + len(w.text) > at), None)
        if word is not None and "comma" in why:  # told of the first of two operands with nothing between them
            after = words[words.index(word) :]
            pairs = itertools.pairwise(after)
            word = next((b for a, b in pairs if a.operand(")]") and b.operand("([")), word)
        if word is None:
            return self.refusal("it ends too early", at=len(self.text))
        return self.refusal(f"unexpected {word.text!r}", at=word.at)


def spine(node: ast.expr) -> tuple[ast.expr, list[tuple[ast.operator, ast.expr]]]:
    """Flatten nested binary operations iteratively: ``((a + b) - c) * d  ->  a, [(+, b), (-, c), (*, d)]``."""
    rest = []
    while isinstance(node, ast.BinOp):
        rest.append((node.op, node.right))
        node = node.left
    return node, rest[::-1]


def signs(node: ast.expr, op: type[ast.unaryop]) -> tuple[ast.expr, int]:
    """Strip and count repeated unary operators: ``- - - a  ->  a, 3``."""
    count = 0
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, op):
        node, count = node.operand, count + 1
    return node, count
