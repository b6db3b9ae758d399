"""Loops in disassembled machine code: which instructions run in the smallest loop around some of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_LABEL = re.compile(r"^\s*(\.L_\w+):")
_BRANCH = re.compile(r"\bBRA\S*.*`\((\.L_\w+)\)")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def loops(sass: str) -> Iterator[list[str]]:
    """The opcodes from each label to a branch that goes back to it."""
    lines = sass.splitlines()
    labels = {m[1]: n for n, line in enumerate(lines) if (m := _LABEL.match(line))}
    for n, line in enumerate(lines):
        m = _BRANCH.search(line)
        if m and labels.get(m[1], n) < n:
            yield _opcodes(lines[labels[m[1]] : n + 1])


def _opcodes(lines: Sequence[str]) -> list[str]:
    found = (_INSTRUCTION.search(line) for line in lines if "@!PT" not in line)
    return [m[1] for m in found if m and m[1] != "NOP"]


def loop_around(sass: str, starts: tuple[str, ...]) -> list[str]:
    """The opcodes of the smallest loop that holds all those that begin so; none where there is no such loop."""
    whole = counted(_opcodes(sass.splitlines()), *starts)
    return min((x for x in loops(sass) if counted(x, *starts) == whole), key=len, default=[])


def counted(opcodes: Sequence[str], *starts: str) -> int:
    """How many begin so."""
    return sum(x.startswith(starts) for x in opcodes)
