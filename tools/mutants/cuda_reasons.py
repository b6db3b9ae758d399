"""Why a mutant of CUDA text that nobody noticed is no fault: each reason is computed, by a second experiment.

An experiment is a text that is as wrong as can be in the place in question, or tells when a value differs; if that
passes too, on all shapes, the mutant is equivalent. What no experiment explains has survived.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
from cuda_hopper_reasons import SEEDS, of_roles
from cuda_judge import Trial
from cuda_own_arrays import OWN, followed
from cuda_texts import Edit, Statement, parts, statements

HELPERS = """
template <class T> static inline T tir_same(T old, T changed) {
  if (!(old == changed)) *(volatile int *)64 = 0;  // memory that belongs to no array: the emulator tells
  return old;
}
// Wrong values: NaN in every float type, -1 as an integer.
template <int bytes> static inline void tir_spoil(void *at) {
  for (int n = 0; n < bytes; ++n) ((volatile unsigned char *)at)[n] = 0xff;
}
"""
ORDER = "the barrier orders nothing: no two threads touch a cell on both sides of it, on any shape"
BARRIERS = tuple(f"{what} {which}" for what in ("dropped", "moved") for which in ("barrier", "barrier of a role"))
TERMS = "a sum of the same terms in another order: no bound of its rounding error differs"
SAME = "the changed expression has the value that it had, wherever it is evaluated"
GROUP = "the copies that each wait is for are the same: what the commit changed places with starts none"
CELLS = "every cell gets the same value, in another order"
AGAIN = "the loop's variable is not used: further iterations do the same again"
ROOM = "only the room declared for an array differs"
NOT_READ = "what the iterations in question write is never read, whatever it is"
NO_NAN = "the elements in question reach no result, not even as NaN"
ZERO = "the elements in question reach no result, or as a product with zero, whatever they are"


def explain(changed: Sequence[Edit], trials: Sequence[Trial]) -> str | None:
    """The reason why a mutant, as its edit on each shape, is no fault; None when there is none."""
    first, texts = changed[0], [t.source.text for t in trials]
    if found := of_roles(first.kind, texts, [e.of(t) for t, e in zip(texts, changed, strict=True)], trials):
        return found
    if first.kind in BARRIERS:
        return of_order(trials, [e.of(t) for t, e in zip(texts, changed, strict=True)])
    if first.kind == "moved commit":
        return GROUP if all(_copies(t) == _copies(e.of(t)) for t, e in zip(texts, changed, strict=True)) else None
    if first.kind.startswith("dropped"):
        return None
    if all(_unused(t, e) for t, e in zip(texts, changed, strict=True)):
        return AGAIN
    if all(_same_terms(t, e) for t, e in zip(texts, changed, strict=True)):
        return TERMS
    for level in range(4):
        if _all(trials, [_compared(t, e, level) for t, e in zip(texts, changed, strict=True)]):
            return SAME
    if all(_same_cells(t, e) for t, e in zip(texts, changed, strict=True)):
        return CELLS
    if _all(trials, [_spoiled(t, e) for t, e in zip(texts, changed, strict=True)]):
        return NOT_READ
    conditional = "condition" in first.kind or first.kind == "<= for <"
    return _no_matter(trials, [e.of(t) for t, e in zip(texts, changed, strict=True)]) if conditional else None


def of_order(trials: Sequence[Trial], new: Sequence[str]) -> str | None:
    """The reason why a barrier that is gone, or elsewhere, is not missed: in no order of threads is there a race."""
    runs = (t.run(text, seed) for t, text in zip(trials, new, strict=True) for seed in SEEDS)
    return ORDER if all(found is None for found in runs) else None


def _all(trials: Sequence[Trial], texts: Sequence[str | None]) -> bool:
    return None not in texts and all(t.run(str(x)) is None for t, x in zip(trials, texts, strict=True))


def _helped(text: str, start: int, end: int, new: str) -> str:
    first = text.index('extern "C" __global__')
    return text[:first] + HELPERS + text[first:start] + new + text[end:]


def _compared(text: str, e: Edit, level: int) -> str | None:
    """``text`` as it was, which tells where the expression around the change would have another value."""
    found = list(itertools.islice(parts(text, e.start, e.end), level, level + 1))
    if not found:
        return None
    left, right = found[0]
    both = f"tir_same({text[left:right]}, {text[left : e.start]}{e.new}{text[e.end : right]})"
    return _helped(text, left, right, both)


def _around(text: str, at: int) -> list[Statement]:
    """The statements around a place, the innermost last."""
    out, group = [], statements(text)
    while group:
        here = next((s for s in group if s.start <= at < s.end), None)
        if here is None:
            break
        out.append(here)
        group = here.inside
    return out


def _copies(text: str) -> list[str]:
    """What starts copies, makes groups of them and waits, with the loops and conditions around, in order."""
    asked = re.compile(r"tir_copy_async|tir_commit_copies|tir_wait_copies|__syncthreads")
    return [s.head for top in statements(text) for s in top.all() if asked.search(text[s.start : s.end])]


def _unused(text: str, e: Edit) -> bool:
    """Whether only the bound of a loop was raised whose variable its body does not use."""
    around = _around(text, e.start)
    m = re.match(r"for \(int (\w+) = 0; \1 <", around[-1].head) if around else None
    runs = e.kind == "<= for <" or (e.new.isdigit() and int(e.new) > 0)
    return bool(m) and runs and len(re.findall(rf"\b{m[1]}\b", text[around[-1].start : around[-1].end])) == 3


def _same_terms(text: str, e: Edit) -> bool:
    """Whether a variable is given a plain sum of products, before and after, of the same terms."""
    s = (_around(text, e.start) or [Statement(0, 0, "")])[-1]
    first = text.index(s.head, s.start)
    at, end = e.start - first, e.end - first
    if s.inside or not 0 <= at <= end <= len(s.head):
        return False
    sums = [re.fullmatch(r"(.+? \+?=) ([^=]+);", head) for head in (s.head, s.head[:at] + e.new + s.head[end:])]
    old, new = ((m[1], _terms(m[2])) if m else ("", None) for m in sums)
    return old == new and old[1] is not None


def _terms(expression: str) -> list[tuple[str, list[str]]] | None:
    """The terms of a sum, sorted: sign and factors of each. None where it is more than products of numbers, variables
    and elements of arrays, added from left to right.
    """
    factor = r"(?:\d+(?:\.\d*)?f?|[A-Za-z_]\w*(?:\[[^\[\]()]*\])?)"
    term = rf"{factor}(?: \* {factor})*"
    if not re.fullmatch(rf"-?{term}(?: [+-] {term})*", expression):
        return None
    found = re.findall(rf"(^-?|[+-] )({term})", expression)
    return sorted(("-" if sign[:1] == "-" else "+", sorted(re.findall(factor, product))) for sign, product in found)


def of_texts(old: Sequence[str], new: Sequence[str], kind: str, trials: Sequence[Trial]) -> str | None:
    """The reason why whole texts that nobody tells from those of ``trials`` are none the worse."""
    if all(_bare(a) == _bare(b) for a, b in zip(old, new, strict=True)):
        return ROOM
    if kind == "moved commit":
        return GROUP if all(_copies(a) == _copies(b) for a, b in zip(old, new, strict=True)) else None
    if found := of_roles(kind, old, new, trials):
        return found
    if all(_looped(a, b) for a, b in zip(old, new, strict=True)):
        return AGAIN
    if _all(trials, [followed(a, b) for a, b in zip(old, new, strict=True)]):
        return OWN
    changed = [_as_edit(a, b, kind) for a, b in zip(old, new, strict=True)]
    edited = [e for e in changed if e is not None]
    reason = explain(edited, trials) if len(edited) == len(changed) else None
    return reason or (_no_matter(trials, new) if kind.startswith(("bound", "condition")) else None)


def _bare(text: str) -> str:
    return re.sub(
        r"(?m)^( *(?:__align__\(\d+\) )?(?:__shared__ )?(?:\w+ )+\w+)\[\d+\];$",
        r"\1;",
        text[text.index('extern "C"') :],
    )


def _lines(text: str) -> list[str]:
    return [
        x.strip() for x in text[text.index('extern "C"') :].splitlines() if x.strip() not in ("}", "#pragma unroll")
    ]


def _looped(old: str, new: str) -> bool:
    """Whether ``new`` only has loops around statements, over variables that these do not use."""
    more = [x for x in _lines(new) if x not in _lines(old)]
    names = [re.match(r"for \(int (\w+) = 0;", x) for x in more]
    return (
        bool(more) and [x for x in _lines(new) if x not in more] == _lines(old)
        and all(m and len(re.findall(rf"\b{m[1]}\b", new)) == 3 for m in names)
    )  # fmt: skip


def _as_edit(old: str, new: str, kind: str) -> Edit | None:
    """One edit of the text that does what a change of the program did; a condition that has gone is true."""
    mine, theirs = _lines(old), _lines(new)
    if kind == "condition left out":  # names of what is inside may have changed as well, so only conditions count
        gone = [m for x in mine if (m := re.match(r"if \((.*)\)", x)) and x not in theirs]
        at = old.index(gone[0][0]) + gone[0].start(1) if len(gone) == 1 else 0
        return Edit(kind, at, at + len(gone[0][1]), "true") if at else None
    if len(mine) != len(theirs):
        return None
    differ = [(a, b) for a, b in zip(mine, theirs, strict=True) if a != b]
    if len(differ) != 1:
        return None
    a, b = differ[0]
    first = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    last = next((n for n, (x, y) in enumerate(zip(a[:first:-1], b[:first:-1], strict=False)) if x != y), 0)
    at = old.index(a, old.index('extern "C"'))
    while first and (a[first - 1].isalnum() or a[first - 1] == "_"):
        first -= 1
    return Edit(kind, at + first, at + len(a) - last, b[first : len(b) - last])


def _same_cells(text: str, e: Edit) -> bool:
    """Whether a constant is stored in the same cells, seen over all iterations of the loops around."""
    *loops, s = _around(text, e.start) or [Statement(0, 0, "")]
    stored = re.match(r"(\w+\[)(.*)\] = [\d.]+f?;$", s.head)
    ranges = [re.match(r"for \(int (\w+) = 0; \1 < (\d+);", x.head) for x in loops]
    if not stored or None in ranges:
        return False
    at = text.index(s.head, s.start)
    changed = re.match(
        r"(\w+\[)(.*)\] = [\d.]+f?;$", e.of(text)[at : at + len(s.head) + len(e.new) - (e.end - e.start)]
    )
    names = [m[1] for m in ranges if m]
    if not changed or set(re.findall(r"[a-z]\w*", f"{stored[2]} {changed[2]}")) - set(names):
        return False
    cells: list[list[int]] = [[], []]
    for values in itertools.product(*(range(int(m[2])) for m in ranges if m)):
        for n, index in enumerate((stored[2], changed[2])):
            cells[n].append(eval(index.replace("/", "//"), {}, dict(zip(names, values, strict=True))))
    return sorted(cells[0]) == sorted(cells[1])


def _spoiled(text: str, e: Edit) -> str | None:
    """What only one of the original and the mutant runs leaves wrong values in all that it writes."""
    s = next((x for x in reversed(_around(text, e.start)) if x.inside), None)
    if s is None:
        return None
    head = text.index(s.head, s.start)
    m = re.match(r"if \((.*)\)( \{)?$", s.head) or re.match(r"for \(int \w+ = \d+; (.*); .*\)( \{)?$", s.head)
    if m is None or not head + m.start(1) <= e.start <= e.end <= head + m.end(1):
        return None
    at = e.start - head
    old, new = m[1], s.head[m.start(1) : at] + e.new + s.head[at + e.end - e.start : m.end(1)]
    either = f"{s.head[: m.start(1)]}({old}) || ({new}){s.head[m.end(1) :]}"
    one = f"({old}) != ({new})"
    body = text[head + len(s.head) : s.end]
    body = re.sub(r"tir_copy_async_(\d+)\(([^,]+), .*;",
                  rf"{{ if ({one}) tir_spoil<\1>(\2); else \g<0> }}", body)  # fmt: skip
    body = re.sub(r"tir_barrier_init\(([^,]+), \d+\);", rf"{{ if ({one}) tir_spoil<8>(\1); else \g<0> }}", body)
    body = re.sub(r"(?m)^( *)((?:\*|\w+\[).*?) (\+?=) (.*);$",
                  rf"\1{{ \2 \3 \4; if ({one}) tir_spoil<sizeof(\2)>((void *)&(\2)); }}", body)  # fmt: skip
    return _helped(text, head, s.end, either + body)


def _no_matter(trials: Sequence[Trial], changed: Sequence[str]) -> str | None:
    """Whether mutants are right where every other row, or column, of an operand is NaN (or other integers)."""
    for t, text in zip(trials, changed, strict=True):
        for k, array in enumerate(t.arrays):
            for d, odd in itertools.product(range(array.ndim), (0, 1)):
                worse = [x.copy() for x in t.arrays]
                worse[k][(slice(None),) * d + (slice(odd, None, 2),)] = np.nan if array.dtype.kind in "fV" else 113
                if t.on(worse).run(text) is not None:
                    return None
    return NO_NAN if trials[0].want[0].dtype.kind == "f" else ZERO
