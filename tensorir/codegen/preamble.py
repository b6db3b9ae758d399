"""The emitted text between header comment and kernels: helper functions and types, in dependency order."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tensorir.codegen.instructions import GUARD

_OPENS = re.compile(rf"#ifndef {GUARD}([^\n]*)\n")
_CLOSES = "\n#endif"
_WORD = re.compile(r"\w+")


def called(helpers: Mapping[str, str], bodies: Iterable[str]) -> dict[str, str]:
    """Return the entries of ``helpers`` that ``bodies`` name, directly or through other helpers; also all whose key is
    no word of their text (instruction preludes).

    Printing records helpers eagerly, some for expressions later replaced by shorter forms.
    """
    words = {name: _words(text) for name, text in helpers.items()}
    todo = [name for name in helpers if name not in words[name]]
    for body in bodies:
        todo += helpers.keys() & set(_WORD.findall(body))
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += helpers.keys() & words[name].keys()
    return {name: text for name, text in helpers.items() if name in found}


@functools.lru_cache(maxsize=1024)
def _words(text: str) -> dict[str, None]:
    """Words of a helper's text, each once, in order; most texts are the same in all kernels."""
    return dict.fromkeys(_WORD.findall(text))


def preamble(helpers: Mapping[str, str]) -> list[str]:
    """Return the texts of ``helpers`` (name to definition), each after those that it uses.

    Helpers that the emulator replaces by its own functions come first, together in one ``#ifndef`` group.
    """
    texts = list(_ordered(helpers))
    inner = [text for t in texts if (text := device_only(t)) is not None]
    rest = [t for t in texts if device_only(t) is None]
    return [*([f"#ifndef {GUARD}", *inner, "#endif"] if inner else []), *rest]


def _ordered(helpers: Mapping[str, str]) -> Iterator[str]:
    placed: set[str] = set()

    def place(name: str) -> Iterator[str]:
        if name in placed:
            return
        placed.add(name)
        for used in _words(helpers[name]):
            if used in helpers:
                yield from place(used)
        yield helpers[name]

    for name in helpers:
        yield from place(name)


def device_only(text: str) -> str | None:
    """Content of ``text`` if it is one ``#if`` group for devices only; None for other texts."""
    found = _OPENS.match(text)
    if found is None or not text.endswith(_CLOSES):
        return None
    comment = found[1].strip()
    return "\n".join([*([comment] if comment else []), text[found.end() : -len(_CLOSES)]])


def left_of(group: str, known: Sequence[str]) -> str | None:
    """Rest of a device-only ``#if`` group after removing definitions in ``known``; None if ``group`` is no such
    group.
    """
    left = device_only(group)
    if left is None:
        return None
    left = f"\n{left}\n"
    for text in sorted(filter(None, map(device_only, known)), key=len, reverse=True):
        left = left.replace(f"\n{text}\n", "\n\n", 1)
    return left.strip()
