"""C identifiers for the names of programs: short where that is clear, always legal, always the same."""

from __future__ import annotations

import re

from tensorir.ir.node import Node
from tensorir.ir.tree import Buffer, Let, Loop, Stmt, Var

_RESERVED = {
    "auto",
    "break",
    "case",
    "char",
    "const",
    "continue",
    "default",
    "do",
    "double",
    "else",
    "enum",
    "extern",
    "float",
    "for",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "register",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "typedef",
    "union",
    "unsigned",
    "void",
    "volatile",
    "while",
    "bool",
    "half",
    "uchar",
    "ushort",
    "uint",
    "ulong",
    "size_t",
    "kernel",
    "global",
    "local",
    "private",
    "constant",
    "image1d_t",
    "image2d_t",
    "sampler_t",
    "event_t",
    "main",
    "class",
    "new",
    "delete",
    "this",
    "template",
    "typename",
    "namespace",
    "using",
    "operator",
    "public",
    "protected",
    "virtual",
    "try",
    "catch",
    "throw",
    "true",
    "false",
    "and",
    "or",
    "not",
    "xor",
    "bitand",
    "bitor",
    "compl",
    "asm",
    "mutable",
    "friend",
    "explicit",
    "export",
    "wchar_t",
    "nullptr",
    "exp",
    "log",
    "sqrt",
    "min",
    "max",
    "abs",
    "floor",
    "ceil",
    "round",
    "pow",
    "sin",
    "cos",
    "erf",
    "tanh",
    "fmin",
    "fmax",
    "select",
    "dot",
    "cross",
    "any",
    "all",
    "isnan",
    "vload4",
    "barrier",
    "printf",
    "NULL",
    "INFINITY",
    "NAN",
    "pipe",
}


def identifier(name: str) -> str:
    """A legal C identifier, the same for the same name; other characters become ``_`` or their code."""
    out = "".join(
        c if c.isascii() and (c.isalnum() or c == "_") else "_" if c.isascii() else f"_u{ord(c):x}" for c in name
    )
    if not out or out[0].isdigit():
        out = f"_{out}"
    if len(out) > 60:
        import hashlib

        out = f"{out[:48]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    if (
        out in _RESERVED
        or out.startswith("__")
        or re.fullmatch(r"(float|double|half|int|uint|char|uchar|short|ushort|long|ulong)\d+", out)
    ):
        out += "_"
    return out


class Names:
    """Identifiers of one kernel: unique along every path from the kernel's top."""

    def __init__(self, taken: list[str]) -> None:
        self._of: dict[Node, str] = {}
        self._taken = set(taken)

    def buffer(self, b: Buffer) -> str:
        """The name of an array."""
        if b not in self._of:
            self._of[b] = self._claim(identifier(b.name), self._taken)
        return self._of[b]

    def variable(self, v: Var) -> str:
        """The name of a loop or value variable."""
        if v not in self._of:
            self._of[v] = self._claim(self._short(v), self._taken)
        return self._of[v]

    def nest(self, s: Stmt, above: frozenset[str]) -> None:
        """Name every loop and let under ``s``; variables in disjoint scopes may share a name."""
        if isinstance(s, Loop | Let):
            if s.var not in self._of:
                short = self._short(s.var)
                busy = self._taken | above
                self._of[s.var] = short if short not in busy else self._claim(identifier(s.var.name), set(busy))
            above = above | {self._of[s.var]}
        for c in s.children():
            if isinstance(c, Stmt):
                self.nest(c, above)
                while isinstance(c, Let):  # a let is declared in the block around it: its siblings see it
                    above = above | {self._of[c.var]}
                    c = c.body

    def _short(self, v: Var) -> str:
        return identifier(v.name.split(".", 1)[-1])

    def _claim(self, name: str, taken: set[str]) -> str:
        base, n = name, 1
        while name in taken:
            name, n = f"{base}_{n}", n + 1
        taken.add(name)
        return name
