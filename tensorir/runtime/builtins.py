"""The declarations of OpenCL's built-in functions that a text names, for the PoCL that pip brings.

Its compiler reads Clang's header before every program: 15,000 declarations, 80 of the 95 ms that a small kernel takes.
The header is skipped where its guard is defined, and a text that begins with what is left of it means the same: types,
macros, and each declaration of the functions that it names, in the header's order.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

SKIP = "-D_OPENCL_H_"
"""The build option by which the compiler reads no declarations of its own."""
_VERSION = "PoCL 3.0"  # whose headers the package of that name has
_PACKAGE = "pocl_binary_distribution"
_HEADER, _TYPES = "opencl-c.h", "opencl-c-base.h"  # which reads the other one
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")


def headers_of(version: str) -> Path | None:
    """The folder of the headers that a platform of this version reads; None where it is not the one that pip brings."""
    found = importlib.util.find_spec(_PACKAGE) if _VERSION in version else None
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / ".libs" / "share" / "pocl" / "include"
    return folder if all((folder / name).is_file() for name in (_HEADER, _TYPES)) else None


def declarations(folder: Path, text: str) -> str:
    """What ``text`` begins with where the compiler has skipped its header; the lines after it keep their numbers."""
    named = frozenset(_WORD.findall(text))
    kept = [line for function, line in _lines(folder) if function is None or function in named]
    return "\n".join(["#undef _OPENCL_H_", *kept, "#line 1", ""])


@functools.cache
def _lines(folder: Path) -> tuple[tuple[str | None, str], ...]:
    """The directives and statements of the header, each with the function that it declares, if it does."""
    text = _COMMENTS.sub("", (folder / _HEADER).read_text(encoding="utf-8")).replace("\\\n", " ")
    text = text.replace(f"<{_TYPES}>", f'"{_TYPES}"').replace(f'"{_TYPES}"', f'"{(folder / _TYPES).as_posix()}"')
    found: list[tuple[str | None, str]] = []
    statement = ""
    for line in text.splitlines():
        if line[:1] == "#":
            found.append((None, line))
        elif statement or line.strip():
            statement += f"{line} "
            if line.rstrip().endswith(";"):
                name = statement.partition("(")[0].split()[-1]
                found.append((None if name == "__attribute__" else name, statement))
                statement = ""
    return tuple(found)
