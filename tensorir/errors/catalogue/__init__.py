"""Explanations of all error codes, read from Markdown files.

The text is stored next to this file, in a Markdown file for each first word of a code; README.md there says how it is
written. Files are read when they are asked for.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tensorir.errors.spelling import nearest

FOLDER = Path(__file__).parent
_HEADING = re.compile(r"^## (?=[a-z][a-z0-9-]*\.)", re.M)
_EXAMPLE = r"```(\w+)\n(.+?)\n```"
_ENTRY = re.compile(rf"(\S+)\n\n(\S.*?)\n\nWrong:\n\n{_EXAMPLE}\n\nRight:\n\n{_EXAMPLE}\n*", re.S)


class Example(NamedTuple):
    """A wrong or right example: Python after ``prelude()``, a command line, or prose."""

    language: str
    text: str

    @property
    def runs(self) -> bool:
        """True if tests can execute the example: Python or a command line."""
        return self.language in ("python", "console")


class Entry(NamedTuple):
    """Explanation of an error code with a wrong and a right example."""

    meaning: str
    wrong: Example
    right: Example


@cache
def prelude() -> str:
    """Python lines that all Python examples start from: imports and common tensors."""
    found = re.search(r"(?s)```python\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


@cache
def phases() -> tuple[str, ...]:
    """First parts of all error codes, sorted, such as "split"."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.md") if file.stem != "README"))


@cache
def of_phase(phase: str) -> dict[str, Entry]:
    """{code: explanation} of codes whose first part is ``phase``. Raises ValueError for malformed entries of its file,
    FileNotFoundError for an unknown phase.
    """
    entries = {}
    for part in _HEADING.split((FOLDER / f"{phase}.md").read_text(encoding="utf-8"))[1:]:
        found = _ENTRY.fullmatch(part)
        if found is None:
            raise ValueError(f"{phase}.md: {part.split()[0]} is not written as README.md says")
        code, meaning, *examples = found.groups()
        entries[code] = Entry(" ".join(meaning.split()), Example(*examples[:2]), Example(*examples[2:]))
    return entries


def entries() -> dict[str, Entry]:
    """{code: explanation} of all codes."""
    return {code: entry for phase in phases() for code, entry in of_phase(phase).items()}


def find(code: str) -> Entry | None:
    """Explanation of a code; None if the code is unknown."""
    phase = code.partition(".")[0]
    return of_phase(phase).get(code) if phase in phases() else None


def explain(code: str, width: int = 100) -> str:
    """The text of ``tensorir explain CODE``: meaning of the code, a wrong example and a right one; prose wrapped to
    ``width``. Raises KeyError or FileNotFoundError for unknown codes.
    """
    meaning, wrong, right = of_phase(code.partition(".")[0])[code]
    lines = [code, "", *textwrap.wrap(meaning, width)]
    parts = {"Refused": wrong.text, "Instead": right.text}
    if "python" in (wrong.language, right.language):
        parts["Examples start from"] = prelude()
    for title, text in parts.items():
        lines += ["", f"{title}:", *textwrap.indent(text, "    ").splitlines()]
    return "\n".join(lines)


def close_codes(code: str, n: int = 5) -> list[str]:
    """Up to ``n`` codes: similar to ``code``, then others of its phase."""
    known = entries()
    near = nearest(code, known, n, cutoff=0.5)
    same = [c for c in known if c.partition(".")[0] == code.partition(".")[0]]
    return list(dict.fromkeys([*near[: n - 2], *same, *near]))[:n]
