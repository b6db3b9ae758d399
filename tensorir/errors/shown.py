"""Base class ``Shown`` of public objects: short ``repr``, and HTML in notebooks."""

from __future__ import annotations

import re
import textwrap
from dataclasses import fields, is_dataclass
from reprlib import Repr

from tensorir import _package

REPR_LINES, REPR_WIDTH = 3, 118
_short = Repr()
_short.maxstring = _short.maxother = 60
_short.maxdict = _short.maxlist = _short.maxtuple = 4


def few_lines(text: str) -> str:
    """``text`` wrapped to 118 columns, without blank lines, and cut after three lines, the last one then ending in
    "…".
    """
    lines = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, REPR_WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    ]
    return "\n".join(
        lines
        if len(lines) <= REPR_LINES
        else [*lines[: REPR_LINES - 1], f"{lines[REPR_LINES - 1][: REPR_WIDTH - 2]} …"]
    )


def short(value: object) -> str:
    """Text of any value in one short line, even if its ``repr`` fails: floats with 6 digits, callables by name, strings
    cut to 60 characters, collections to 4 items.
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    try:
        if callable(value):
            return str(getattr(value, "__name__", type(value).__name__))
        return re.sub(r"\n *", " ", repr(value) if isinstance(value, Shown) else _short.repr(value))
    except Exception:  # whatever its repr does
        return f"a {type(value).__name__}"


def fields_of(x: object) -> dict[str, object]:
    """{name: value} of a dataclass's fields that its repr shows; {} for other objects."""
    return {f.name: getattr(x, f.name) for f in fields(x) if f.repr} if is_dataclass(x) else {}


class Shown:
    """Base of public objects with a readable repr and HTML in notebooks; dataclasses show their fields and are declared
    with ``repr=False``.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={short(value)}" for name, value in fields_of(self).items())
        return few_lines(f"{type(self).__name__}({given})")

    def _repr_html_(self) -> str:
        return _package.html_of(self)


class Text(str, Shown):
    """A string of several lines that notebooks show as printed, not quoted.

    Sources are plain strings: compilers' bindings accept only the class ``str`` itself.

    kind: "loop tree" or "diff"
    """

    kind: str

    def __new__(cls, text: str, kind: str = "loop tree") -> Text:
        made = super().__new__(cls, text)
        made.kind = kind
        return made

    def __repr__(self) -> str:
        lines = len(self.splitlines())
        return f"<{self.kind} of {lines} line{'s' * (lines != 1)}, a str: print it to read it>"


def difference(old: str, new: str) -> Text:
    """Unified diff from the text ``old`` to ``new``, with two lines of context; empty if they are equal."""
    from difflib import unified_diff

    return Text("\n".join(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2)), "diff")
