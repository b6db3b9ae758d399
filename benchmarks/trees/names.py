"""C, OpenCL and CUDA texts without their names and comments: what is left of two that only name things apart is equal.

Every name that a text declares is replaced by its number among those of its scope and of the scopes around it. A
declaration is found by what is written next to it; a name that is not found to be declared stays, so that a form that
is not known here makes texts differ that are the same, and never the other way round.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<line>^[ \t]*\#(?:[^\n\\]|\\\n|\\.)*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<mark><<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|\S)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_NO_TYPE = {"return", "else", "goto", "case", "sizeof", "do", "throw", "new", "delete", "if", "while", "for", "switch"}
_TYPES = {"auto", "bool", "char", "double", "float", "half", "int", "long", "short", "signed", "unsigned", "void"}
_MARKS = {
    "asm", "const", "constant", "constexpr", "enum", "extern", "global", "inline", "kernel", "local", "operator",
    "private", "register", "restrict", "static", "struct", "template", "typedef", "typename", "union", "using",
    "volatile",
}  # fmt: skip
_KEPT = _NO_TYPE | _TYPES | _MARKS | {"break", "continue", "default", "false", "true"}
_AFTER = {"=", ";", ",", "(", ")", "[", "{", ":", "__attribute__"}


@dataclass(frozen=True)
class Token:
    """text: as it is written, or "#n" for a declared name;  line: where, from 1"""

    text: str
    line: int


def canonical(text: str) -> list[Token]:
    """The tokens of a text, comments left out and declared names replaced by numbers."""
    found, line, at = list[Token](), 1, 0
    kinds = list[str]()
    for m in _TOKEN.finditer(text):
        line += text.count("\n", at, m.start())
        at = m.start()
        if m.lastgroup != "comment":
            word = re.sub(r"\\\n|\s+", " ", m[0]).strip() if m.lastgroup == "line" else m[0]
            found.append(Token(word, line))
            kinds.append(m.lastgroup or "")
    return _Scopes().renamed(found, kinds)


class _Scopes:
    """The names of each open scope.

    A list of parameters and the head of a loop open one before the brace of its body, which closes it.
    """

    def __init__(self) -> None:
        self.names: list[dict[str, str]] = [{}]
        self.count, self.parens = 0, 0
        self.braces: list[bool] = []  # whether the brace has a scope that its head did not open already
        self.head = False  # a scope is open whose body has not begun

    def renamed(self, tokens: list[Token], kinds: list[str]) -> list[Token]:
        made = list[Token]()
        for n, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
            if kind == "name":
                made.append(Token(self._name(tokens, kinds, n), token.line))
                continue
            self._mark(token.text, tokens[n - 1].text if n else "")
            made.append(token)
        return made

    def _mark(self, mark: str, before: str) -> None:
        if mark == "(":
            function = not self.braces and not before.startswith("__")  # and no __attribute__
            if not self.head and not self.parens and (before == "for" or function):
                self._open()
                self.head = True
            self.parens += 1
        elif mark == ")":
            self.parens -= 1
        elif mark == "{":
            self.braces.append(not self.head)
            if not self.head:
                self._open()
            self.head = False
        elif mark == "}":
            self.names.pop()
            self.braces.pop()
        elif mark == ";" and self.head and not self.parens:  # a prototype, or a loop with no braces
            self.names.pop()
            self.head = False

    def _open(self) -> None:
        self.names.append({})

    def _name(self, tokens: list[Token], kinds: list[str], n: int) -> str:
        word = tokens[n].text
        before = tokens[n - 1].text if n else ""
        if before in (".", "->") or word in _KEPT or word.startswith("__"):
            return word
        if self._declares(tokens, kinds, n):
            self.count += 1
            self.names[-1][word] = f"#{self.count}"
        return next((scope[word] for scope in reversed(self.names) if word in scope), word)

    def _declares(self, tokens: list[Token], kinds: list[str], n: int) -> bool:
        """A name after a name, or after a type and stars, where a declaration may go on; a function's, in any case."""
        after = tokens[n + 1].text if n + 1 < len(tokens) else ""
        if n == 0 or after not in _AFTER:
            return False
        if after == "(" and not self.braces and not self.parens:
            return True
        k = n - 1
        while k > 0 and tokens[k].text in ("*", "&"):
            k -= 1
        typed = kinds[k] == "name" and tokens[k].text not in _NO_TYPE
        if k == n - 1:
            return typed
        return typed and (after == "=" or (self.parens > 0 and self.head and not self.braces))


def difference(one: str, other: str) -> tuple[int, int] | None:
    """The lines, from 1, where two texts first differ by more than names; None where they do not."""
    a, b = canonical(one), canonical(other)
    for x, y in zip(a, b, strict=False):
        if x.text != y.text:
            return x.line, y.line
    if len(a) != len(b):
        return (a[min(len(b), len(a) - 1)].line if a else 1, b[min(len(a), len(b) - 1)].line if b else 1)
    return None
