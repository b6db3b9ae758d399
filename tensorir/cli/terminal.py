"""Wraps and colours text for a terminal; pipes get plain unwrapped lines."""

from __future__ import annotations

import os
import re
import sys
import textwrap

_LEAD = re.compile(r"(\s*)((?:\S+ )?\S+\s{2,})?")
_MARKS = (
    (re.compile(r"^\s*(ok)(?=\s)"), "green"),
    (re.compile(r"^\s*(WRONG|BAD|\[[a-z][\w.-]*\])(?=\s)"), "red"),
    (re.compile(r"^(warning:)"), "yellow"),
    (re.compile(r"^\s*(try:)"), "cyan"),
    (re.compile(r"^(\s*[a-z]+(?: {2,}[a-z]+){2,})$"), None),  # the header of a table
    (re.compile(r"^(best)(?=\s)"), "green"),
)


def columns(err: bool = False) -> int:
    """``COLUMNS`` of the environment, else the width in characters of the terminal at stdout (``err``: stderr), 20 at
    least; 0, for unlimited, if that is no terminal or does not tell.
    """
    if (asked := os.environ.get("COLUMNS", "")).isdigit() and int(asked) > 0:
        return max(20, int(asked))
    stream = sys.stderr if err else sys.stdout
    try:
        told = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
        return max(20, told) if told else 0  # some terminals do not say
    except (OSError, ValueError):
        return 0


def coloured(err: bool = False) -> bool:
    """True if stdout (``err``: stderr) is a terminal, TERM is not "dumb" and NO_COLOR is unset."""
    stream = sys.stderr if err else sys.stdout
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and not stream.closed and stream.isatty()


def paint(text: str) -> str:
    """``text`` with terminal escapes: status words at line starts coloured, headers of tables bold."""
    import click

    lines = text.split("\n")
    for n, line in enumerate(lines):
        for mark, colour in _MARKS:
            if found := mark.match(line):
                a, b = found.span(1)
                lines[n] = f"{line[:a]}{click.style(line[a:b], fg=colour, bold=True)}{line[b:]}"
                break
    return "\n".join(lines)


def fold(text: str, width: int) -> str:
    """``text`` with lines wrapped to ``width`` characters, continuation lines indented under their text; width 0:
    unchanged.
    """
    if not width:
        return text
    return "\n".join(line if len(line) <= width else _folded(line, width) for line in text.split("\n"))


def _folded(line: str, width: int) -> str:
    found = _LEAD.match(line)
    indent = len(found[0]) if found and found[2] else len(line) - len(line.lstrip()) + 2
    below = " " * (indent if indent <= width // 2 else min(4, width // 4))
    return "\n".join(textwrap.wrap(line, width, subsequent_indent=below, replace_whitespace=False,
                                   break_on_hyphens=False)) or line[:width]  # fmt: skip


def fold_code(text: str, width: int) -> str:
    """C code with lines wrapped to ``width`` characters, its meaning unchanged; width 0: unchanged."""
    if not width:
        return text
    return "\n".join(part for line in text.split("\n") for part in _folded_code(line, width))


def _folded_code(line: str, width: int) -> list[str]:
    out: list[str] = []
    while len(line) > width:
        indent = line[: len(line) - len(line.lstrip())][: width // 2]
        comment = line.lstrip().startswith("//")
        whole = line.lstrip().startswith("#")  # a directive is one line, however it is split
        below = indent + ("//   " if comment else "" if out else "    ")
        spaces = [
            k for k in range(len(indent) + 8, width - 1)
            if line[k] == " " and (comment or line.count('"', 0, k) % 2 == 0)
        ]  # fmt: skip
        if spaces and not (whole or (not comment and "//" in line[: spaces[-1]])):
            out.append(line[: spaces[-1]].rstrip())
            line = below + line[spaces[-1] :].lstrip()
        else:  # lines that end so are one for the compiler
            out.append(line[: width - 1] + "\\")
            line = line[width - 1 :]
    return [*out, line]


def cut(text: str, width: int) -> str:
    """``text``, shortened to ``width`` characters with a final "…" if it is longer."""
    return text if len(text) <= width else text[: max(1, width - 1)] + "…"
