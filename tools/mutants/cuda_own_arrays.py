"""Why a mutant whose threads number an array of their own otherwise is no fault: an experiment follows each element."""

from __future__ import annotations

import re
from collections.abc import Iterator

OWN = "each thread numbers an array of its own otherwise: every element that it reads is the one that it put there"
HELPERS = """
// Which number each element of an array had and has: one and the same wherever it is touched.
template <int before, int behind> struct TirNumbers {
  int has[before] = {}, had[behind] = {};  // from 1; 0 is none yet
  int operator()(int old, int now, int width) {
    for (int n = 0; n < width; ++n, ++old, ++now) {
      bool inside = 0 <= old && old < before && 0 <= now && now < behind;
      if (inside && !has[old] && !had[now]) has[old] = now + 1, had[now] = old + 1;
      if (!inside || has[old] != now + 1 || had[now] != old + 1)
        *(volatile int *)64 = 0;  // memory that belongs to no array: the emulator tells
    }
    return now - width;
  }
};
"""


def followed(old: str, new: str) -> str | None:
    """``new``, which tells where an element of an array has another number than before in one place and not in others,
    or the number of another. None where more differs than indices of arrays in each thread's registers.
    """
    first = [text.index('extern "C" __global__') for text in (old, new)]
    before, behind = (text[at:].splitlines(keepends=True) for text, at in zip((old, new), first, strict=True))
    differ = "".join(a for a, b in zip(before, behind, strict=False) if a != b)
    sizes = {name: size for name in dict.fromkeys(re.findall(r"\w+", differ)) if (size := _sizes(old, new, name))}
    if len(before) != len(behind) or not sizes:
        return None
    out = []
    for a, b in zip(before, behind, strict=True):
        line = _told(a, b, tuple(sizes))
        if line is None:
            return None
        out.append(line)
    return new[: first[1]] + HELPERS + re.sub(
        _DECLARED.format("(\\w+)", "\\d+"),
        lambda m: m[0] + (f" TirNumbers<{sizes[m[2]][0]}, {sizes[m[2]][1]}> {m[2]}_numbers;" if m[2] in sizes else ""),
        "".join(out),
    )  # fmt: skip


_DECLARED = r"(?m)^ +(?:__align__\(\d+\) )?([a-z][\w ]*) {}\[{}\];$"


def _sizes(old: str, new: str, name: str) -> tuple[int, int] | None:
    """Elements of a thread's own array in both texts; None where it is no such array."""
    found = [re.findall(_DECLARED.format(name, r"(\d+)"), text) for text in (old, new)]
    if any(len(x) != 1 for x in found) or found[0][0][0] != found[1][0][0] or "__shared__" in found[0][0][0]:
        return None
    return int(found[0][0][1]), int(found[1][0][1])


def _told(old: str, new: str, names: tuple[str, ...]) -> str | None:
    """A line of the new text, whose indices of the arrays are followed; None where anything else differs."""
    declared = re.compile(_DECLARED.format(f"({'|'.join(names)})", r"\d+"))
    if (m := declared.match(old)) and (n := declared.match(new)) and m.groups() == n.groups():
        return new
    mine, theirs = list(_touched(old, names)), list(_touched(new, names))
    if [x[2:] for x in mine] != [x[2:] for x in theirs] or _bare(old, mine) != _bare(new, theirs):
        return None
    if len(mine) != len(re.findall(rf"\b(?:{'|'.join(names)})\b", old)):
        return None  # one is handed on as a whole
    for (a, b, name, width), (left, right, *_) in reversed(list(zip(mine, theirs, strict=True))):
        new = f"{new[:left]}{name}_numbers({old[a:b]}, {new[left:right]}, {width}){new[right:]}"
    return new


def _touched(line: str, names: tuple[str, ...]) -> Iterator[tuple[int, int, str, int]]:
    """Where the indices of the arrays stand in a line, and how many elements are touched there."""
    vector = r"(?:\*\((?:const )?[a-z]+(\d?) \*\)\()?"
    for m in re.finditer(rf"{vector}\b({'|'.join(names)})(\[| \+ )", line):
        depth, end = 1, m.end()
        while depth:
            depth += (line[end] in "([") - (line[end] in ")]")
            end += 1
        if (m[3] == "[") == (m[1] is None):
            yield m.end(), end - 1, m[2], int(m[1] or 1)


def _bare(line: str, places: list[tuple[int, int, str, int]]) -> str:
    for left, right, *_ in reversed(places):
        line = f"{line[:left]}{line[right:]}"
    return line
