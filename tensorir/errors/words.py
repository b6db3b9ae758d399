"""Words of the little languages that users write in strings, read by hand so that text is never executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, TypeVar

T = TypeVar("T")


class Token(NamedTuple):
    """One word, and where it stands."""

    kind: str  # a group of the language's pattern, or end
    text: str
    at: int


class Words:
    """A text as words, and a place among them; a language adds its rules.

    pattern: its words, each in a group named after its kind, of which "op" and "name" are told by their text
    deepest: levels that ``deeper`` allows: a hostile text costs a refusal, not a recursion error
    advice:  a hint for some characters that are no words
    """

    pattern: ClassVar[re.Pattern[str]]
    deepest: ClassVar[int]
    advice: ClassVar[Mapping[str, str]] = {}

    def __init__(self, text: str) -> None:
        self.text, self.n, self.depth = text, 0, 0
        self.tokens = self._tokens()

    def error(self, message: str, hint: str = "", at: int | None = None) -> Exception:
        """What a rule raises about the word that it is at, or about the character ``at``."""
        raise AssertionError("each language has errors of its own")

    @property
    def now(self) -> Token:
        """The word that comes next."""
        return self.tokens[self.n]

    def took(self, text: str) -> bool:
        """Go past the next word if it is ``text``."""
        if self.now.kind in ("op", "name") and self.now.text == text:
            self.n += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Go past ``text``, which must come next."""
        if not self.took(text):
            raise self.error(f"expected {text!r}")

    def deeper(self, rule: Callable[[], T]) -> T:
        """What ``rule`` reads, one level further down."""
        self.depth += 1
        if self.depth > self.deepest:
            raise self.error(f"nested deeper than {self.deepest}")
        out = rule()
        self.depth -= 1
        return out

    def _tokens(self) -> list[Token]:
        out: list[Token] = []
        at, end = 0, len(self.text.rstrip())
        while at < end:
            m = self.pattern.match(self.text, at)
            if m is None or m.lastgroup is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                raise self.error(f"unexpected {self.text[at]!r}", self.advice.get(self.text[at], ""), at)
            out.append(Token(m.lastgroup, m.group(m.lastgroup), m.start(m.lastgroup)))
            at = m.end()
        return [*out, Token("end", "", len(self.text))]
