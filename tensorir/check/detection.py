"""Finds text that could behave differently under the emulator than on a device, by detecting which one compiles it.

The emulator hides host headers and macros specific to its compiler from the text. The remaining ways are in the text,
and refused here: names reserved for compilers, unusual directives, redefinitions of the emulator's names, and tokens
pasted together so that a reader does not see them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

_FOLDER = Path(__file__).with_name("emulator")
_QUOTED = r'"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
_COMMENT = r"//(?:\\\n|[^\n])*|/\*.*?\*/"
_COMPILERS = re.compile(r"__(?:attribute|builtin|has|int128|inline|asm|volatile|extension)\w*|__[A-Z]\w*")
_ALSO = {"__restrict__", "__VA_ARGS__", "__builtin_assume_aligned", "__builtin_trap"}
_DIRECTIVES = re.compile(
    r"#\s*(?:(?:if|ifdef|ifndef|elif|else|endif|define|undef)\b|pragma unroll\b|include <cuda_fp16\.h>\s*$|$)"
)
_DEVICES = re.compile(r"(?:CUDA|CU_|NV_|cuda|va_)\w*|NULL|assert")
"""Macros that NVRTC defines for every text, besides those that compilers reserve."""


def without_comments(text: str) -> str:
    """``text`` with comments replaced by blanks; string literals and line numbers stay."""
    pattern = re.compile(f"{_QUOTED}|{_COMMENT}", re.DOTALL)
    return pattern.sub(lambda m: m[0] if m[0][0] in "\"'" else re.sub(r"[^\n]", " ", m[0]), text)


def without_quotes(text: str) -> str:
    """``text`` with comments and string literals replaced by blanks; line numbers stay."""
    return re.sub(f"{_QUOTED}|{_COMMENT}", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


def is_anyones(name: str) -> bool:
    """True if a user's text may define the macro ``name``: it is reserved neither for compilers nor for the
    emulator.
    """
    return not (name.startswith(("_", "TIR_", "tir_")) or name in _macros() or _DEVICES.fullmatch(name))


def unknown_functions(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, name) of called functions ``__name`` that CUDA may have and the emulator lacks."""
    for n, line in enumerate(without_quotes(text).split("\n"), 1):
        for name in re.findall(r"\b__[a-z]\w*(?=\s*\()", line):
            if not (name in _macros() or name in _ALSO or _COMPILERS.fullmatch(name)):
                yield n, name


def ways_to_tell(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, description) of constructs that the emulator and a device may interpret differently.

    text: a CUDA text without its ``#if`` groups
    """
    code, own = without_quotes(text), {*_macros(), *(name for _, name in unknown_functions(text))}
    lines, defines = code.split("\n"), False
    for n, line in enumerate(lines, 1):
        directive = re.match(r"\s*(#|%:|\?\?=)", line)
        continued, defines = defines, bool(re.match(r"\s*#\s*define\b", line))
        macro = re.match(r"\s*#\s*(?:define|undef)\s+(\w+)(?:\([^()]*\))?(.*)", line)
        if directive and not _DIRECTIVES.match(line.strip()):
            yield n, f"{line.strip().split()[0]}, a directive that the emulator does not follow"
        elif macro and not is_anyones(macro[1]):
            yield n, f"another meaning for {macro[1]}"
        elif "#" in (macro[2] if macro else line if continued else ""):
            yield n, "words that a macro puts together"
        elif found := next((w for w in re.findall(r"\b_[_A-Z]\w*", line) if w not in own and w not in _ALSO), ""):
            yield n, f"{found}, which the device's compiler defines in its own way"
        elif re.search(r'\bu?8?[uUL]?R"', text.split("\n")[n - 1]):
            yield n, "a raw string"
        defines = (continued or defines) and line.rstrip().endswith("\\")
        if line.endswith("\\") and not defines:
            yield n, "a line that continues in the next one"


@functools.cache
def intrinsics() -> frozenset[str]:
    """Names of CUDA functions that the emulator has for users' texts; emitted texts call none of them."""
    text = without_comments((_FOLDER / "intrinsics.h").read_text())
    made = [n + s for n in re.findall(r"\b(__\w+_)##suffix", text) for s in ("rn", "rz", "ru", "rd")]
    named = re.findall(r"inline [^(]*?\b(__\w+)\(|#define (__\w+)", text, re.IGNORECASE)
    return frozenset(w for w in (*made, *map("".join, named)) if w and not _COMPILERS.fullmatch(w))


@functools.cache
def _macros() -> frozenset[str]:
    """Names of the emulator's macros and of its ``__functions`` that CUDA also has."""
    text = without_comments("".join((_FOLDER / name).read_text() for name in ("cuda.h", "hopper.h", "intrinsics.h")))
    reserved = {w for w in re.findall(r"\b__\w+", text) if not _COMPILERS.fullmatch(w)} | intrinsics()
    return frozenset(reserved.union(re.findall(r"(?m)^\s*#\s*define\s+(\w+)", text)))
