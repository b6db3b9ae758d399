"""HTML building blocks of cards (header, table, fold, code); all text but ``Html`` is escaped."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from tensorir.errors import printable


class Html(str):
    """A string that is HTML markup, inserted without escaping."""

    __slots__ = ()


def html(x: object) -> Html:
    """``x`` as markup: its text escaped, unless it is Html already."""
    return x if isinstance(x, Html) else Html(escaped(str(x)))


def escaped(text: str) -> str:
    """``text`` HTML-escaped, with control characters as visible escapes."""
    return escape(printable(text.expandtabs()))


@functools.cache
def style(*more: str) -> Html:
    """Stylesheet element: the style of cards and the files ``more`` of this folder."""
    text = "".join(file(name) for name in ("style.css", *more))
    small = re.sub(r"/[*].*?[*]/|\n *", "", text)
    return Html(f"<style>{small}</style>")


def file(name: str) -> str:
    """Text of the file ``name`` in this folder."""
    return files("tensorir.show").joinpath(name).read_text(encoding="utf-8")


def card(kind: str, title: object, *parts: object) -> Html:
    """HTML card: a one-line header with ``kind`` in bold and ``title``, then ``parts``."""
    head = f'<div class="tir-head"><b>{html(kind)}</b>{html(title)}</div>'
    return Html(f'<div class="tir">{style()}{head}{"".join(map(html, parts))}</div>')


def code(text: object) -> Html:
    """HTML of ``text`` as inline code."""
    return Html(f"<code>{html(text)}</code>")


def dim(text: object) -> Html:
    """HTML of ``text``, de-emphasized."""
    return coloured(text, "dim")


def coloured(text: object, colour: str) -> Html:
    """HTML of ``text`` in the colour that the stylesheet calls ``colour``."""
    return Html(f'<span class="tir-{colour}">{html(text)}</span>')


def joined(parts: Iterable[object], between: str = ", ") -> Html:
    """HTML of ``parts`` joined by the text ``between``."""
    return Html(escaped(between).join(map(html, parts)))


def table(rows: Mapping[str, object]) -> Html:
    """HTML table of (name, value) rows; rows with None or "" are left out. "" if none are left."""
    kept = {name: v for name, v in rows.items() if v is not None and v != ""}
    cells = "".join(f"<tr><th>{html(name)}</th><td>{html(v)}</td></tr>" for name, v in kept.items())
    return Html(f"<table>{cells}</table>" if kept else "")


def grid(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """HTML table with a header row, numbers right-aligned; "" without rows."""

    def cell(value: Any) -> str:
        kind = ' class="tir-number"' if isinstance(value, int | float) else ""
        return f"<td{kind}>{html(f'{value:,}' if kind else value)}</td>"

    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    head = "".join(f"<th>{html(name)}</th>" for name in header)
    return Html(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else "")


def wide(body: Html) -> Html:
    """HTML of a horizontally scrollable box around ``body``; "" for an empty body."""
    return Html(f'<div class="tir-table">{body}</div>' if body else "")


def fold(title: object, body: object) -> Html:
    """HTML of a collapsed section with ``title`` that unfolds to ``body``; "" for an empty body."""
    return Html(f'<details class="tir-fold"><summary>{html(title)}</summary>{html(body)}</details>' if body else "")


def pre(text: object) -> Html:
    """HTML of preformatted text; "" for an empty text."""
    return Html(f"<pre>{html(text)}</pre>" if text else "")


_WORDS = (
    r"|(?P<s>\"[^\"\n]*\"|'[^'\n]*')"
    r"|(?P<k>\b(?:for|if|else|while|return|do|in|def|const|restrict|barrier|case|switch|role|await)\b)"
    r"|(?P<t>\b(?:void|u?int\d*|u?long\d*|u?char\d*|u?short\d*|float\d*|double\d*|half\d*|bool|size_t|unsigned|"
    r"__\w+__|__(?:kernel|global|local|private|constant)|kernel|global|local)\b)|(?P<n>(?<![\w.])\d[\w.]*)"
)
_C = re.compile(r"(?P<c>//[^\n]*|/\*.*?\*/)|(?P<p>^\s*#\w+[^\n]*)" + _WORDS, re.M | re.S)
_TREE = re.compile(r"(?P<c># [^\n]*)" + _WORDS)
_BOUND = {"block": "block", "thread": "thread", "vectorize": "vector", "unroll": "unroll", "cooperative": "shared"}


def source(text: str) -> Html:
    """HTML of a kernel's text with syntax colours."""
    return _coloured(text, _C)


def words(text: str) -> Html:
    """HTML of a loop tree, steps or expressions with syntax colours."""
    return _coloured(text, _TREE)


def _coloured(text: str, pattern: re.Pattern[str]) -> Html:

    def one(found: re.Match[str]) -> str:
        kind, said = str(found.lastgroup), found[0]
        if kind == "c":
            kind = next((c for word, c in _BOUND.items() if said.startswith(f"# {word}")), kind)
        return coloured(said, kind)

    out, at = [], 0
    for found in pattern.finditer(text):
        out += [escaped(text[at : found.start()]), one(found)]
        at = found.end()
    return Html("".join([*out, escaped(text[at:])]))


def changes(text: str) -> Html:
    """HTML of a unified diff with added, removed and @@ lines coloured; nameless ``---`` and ``+++`` are left out."""
    kinds = {"+": "add", "-": "gone", "@": "dim"}
    lines = [x for x in text.splitlines() if x.strip() not in ("---", "+++")]  # of files that have no names
    return joined((coloured(x, kinds[x[0]]) if x[:1] in kinds else x for x in lines), "\n")


def size(nbytes: float) -> str:
    """Text of a byte count to four digits, in B, KiB, MiB or GiB: ``512 B``, ``32 KiB``, ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    raise AssertionError
