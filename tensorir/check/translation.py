"""CUDA text as the system's C++ compiler is given it: line by line the same, its arrays placed as badly as they may be.

A device puts an array at any multiple of what is declared of it. A host's compiler and linker happen to do better, so
arrays in shared memory, and those of a thread whose address is used, begin at an odd multiple here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensorir.check.convergence import marked
from tensorir.check.detection import without_quotes
from tensorir.codegen.source import KernelLaunch, Source
from tensorir.intrin.intrin import known

SECTION = "tir_shared"
"""Where the arrays of a kernel in shared memory are; of several kernels, followed by its name."""

_ELEMENT = r"(?:(?:un)?signed )?(?:long long|\w+)"
_SHARED = re.compile(
    rf"(?m)(^\s*|[;{{}}]\s*)(?:__align__\((\d+)\)\s+)?__shared__\s+(?:__align__\((\d+)\)\s+)?({_ELEMENT})\s+(\w+)"
    r"((?:\[[^\]\n]+\])*);"
)
_OWN = re.compile(rf"(?m)^(\s+)(?:__align__\((\d+)\)\s+)?({_ELEMENT})\s+(\w+)(\[\d+\]);")
_SINGLE = re.compile(r"(?m)^(\s+)(float|double)\s+(\w+);")
_HOLD_FLOATS = ("float", "double", "unsigned short", "unsigned char")
_KEPT = ("return", "typedef", "static", "extern", "const", "else", "volatile", "struct", "auto")


def section_of(source: Source, k: KernelLaunch) -> str:
    """The name of the section with the kernel's arrays in shared memory."""
    return f"{SECTION}_{k.name}" if _apart(source) else SECTION


def prepared(source: Source) -> str:
    """The text for the C++ compiler."""
    text = re.sub(r"#include[^\n]*", "", source.text)
    text = _with_copies(text)
    text = _SHARED.sub(r"\1TIR_PLACED(\2\3 + 0, \4, \5, \6);", text)
    text = _OWN.sub(lambda m: _own(text, m), text)
    text = _SINGLE.sub(lambda m: m[0] if _is_member(text, m.start()) else f"{m[1]}{m[2]} {m[3]} = TIR_NAN;", text)
    if _apart(source):
        for k in source.kernels:
            if (at := head_of(text, k.name)) is not None:
                first = text.rfind("\n", 0, text.index("__global__", at.start())) + 1
                number = text.count("\n", 0, first) + 1
                lines = (
                    f'#undef TIR_SECTION\n#define TIR_SECTION "{section_of(source, k)}"\n#line {_said(text, number)}\n'
                )
                text = text[:first] + lines + text[first:]
    return marked(text, tuple(_by_warp(source)))


def _with_copies(text: str) -> str:
    """Structures that a text declares, with a member whose copies are seen: they are copied by functions, and not
    passed or returned with no load or store that is watched.
    """
    for found in [*re.finditer(r"\b(?:struct|class)\b[^;{}()]*\{", without_quotes(text))][::-1]:
        depth, at = 1, found.end()
        while depth and at < len(text):
            depth += (text[at] == "{") - (text[at] == "}")
            at += 1
        text = f"{text[: at - 1]} [[no_unique_address]] tir_copied tir_copies; {text[at - 1 :]}"
    return text


def _by_warp(source: Source) -> Iterator[str]:
    """Functions of instructions that users declare for warps."""
    for name in source.instructions:
        if (declared := known().get(name)) is not None and declared.by_warp:
            yield from re.findall(r"^\s*(\w+)\(", declared.emit.get("cuda", ""))


def is_placed(text: str) -> bool:
    """Whether all arrays in shared memory of a prepared text are known to the emulator one by one."""
    return "__shared__" not in re.sub(r"#define[^\n]*", "", text)


def attribute_of(text: str, kernel: str, attribute: str) -> list[str]:
    """The arguments of ``__launch_bounds__`` or its like in front of the name of a kernel; [] where there is none."""
    head = head_of(text, kernel)
    found = re.search(rf"\b{attribute}\s*\(", head[0]) if head else None
    if head is None or found is None:
        return []
    depth, out = 1, [""]
    for c in head[0][found.end() :]:
        depth += (c in "([{") - (c in ")]}")
        if not depth:
            break
        if c == "," and depth == 1:
            out.append("")
        else:
            out[-1] += c
    return [x.strip() for x in out]


def head_of(text: str, kernel: str) -> re.Match[str] | None:
    """What stands in front of a kernel's body."""
    head = re.compile(rf"[^;{{}}#]*__global__[^;{{}}#]*?\b{re.escape(kernel)}\s*\([^{{}};]*\)\s*(?=\{{)")
    # sought where one may be: a search from every character takes seconds
    starts = (max(text.rfind(c, 0, at.start()) for c in ";{}#") + 1 for at in re.finditer("__global__", text))
    return next((found for at in starts if (found := head.match(text, at))), None)


def _apart(source: Source) -> bool:
    """Whether each of several kernels has shared memory of its own: no function in front of them declares any."""
    if len(source.kernels) < 2:
        return False
    first = min((h.start() for k in source.kernels if (h := head_of(source.text, k.name))), default=0)
    return not re.search(r"__shared__|TIR_SHARED\(", re.sub(r"#define[^\n]*", "", source.text[:first]))


def _own(text: str, m: re.Match[str]) -> str:
    """An array of a thread; one that is only indexed is left where it is: compilers know what happens to it."""
    pad, align, kind, name, size = m.groups()
    if kind.split()[0] in _KEPT or _is_member(text, m.start()):
        return m[0]
    if not re.search(rf"\b{name}\b(?!\s*\[)", text[m.end() :]):
        return f"{m[0]} TIR_UNSET({kind}, {name});" if kind in _HOLD_FLOATS else m[0]
    return f"{pad}TIR_OWN({align or 0}, {kind}, {name}, {size});"


def _is_member(text: str, at: int) -> bool:
    """Whether a structure is declared there."""
    return re.search(r"\b(?:struct|union)\b[^;{}()]*\{[^{}]*\Z", text[text.rfind("}", 0, at) + 1 : at]) is not None


def _said(text: str, number: int) -> int:
    """The number, in the text as it was, of a line of a text that has ``#line`` before it."""
    lines = text.splitlines()[: number - 1]
    for n in range(len(lines) - 1, -1, -1):
        if at := re.match(r"#line (\d+)", lines[n]):
            return int(at[1]) + len(lines) - 1 - n
    return number
