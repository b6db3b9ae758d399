"""Why a mutant of a kernel with roles that nobody noticed is no fault: computed from its texts, or by an experiment."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from cuda_judge import Trial

REGISTERS = "the fence is for registers, and what it changed places with waits for a barrier"
STARTS = "barriers begin in another order, and the last fence of the thread that begins them is behind all of them"
ANNOUNCED = "the bytes are announced to the phase that they come in, whenever they come: copies landed at any time"
NOT_LOOKED_AT = "the instruction does not look at the number: with any other it is right"
NOT_READ = "what the iterations in question write is never read, whatever it is"
HELD = "registers are held in front of their next use: what it changed places with uses none"
SOONER = "products or stores are waited for sooner than they must be, and what comes later for it is an arrival"
ANY_ONE = "any thread of the role may be the one that asks for tiles, as long as it is one"
ALONE = "the barrier's number is no other one's, and all threads that meet there come to the same place"
ANY = (0, 16, 1024, 4096, 65536, 262128)
"""Numbers that a descriptor may have as a step."""
SEEDS = range(1, 6)
_STEPS = ("leading step of a tile", "step of a tile", "other steps of a tile")


def of_roles(kind: str, old: Sequence[str], new: Sequence[str], trials: Sequence[Trial]) -> str | None:
    """The reason, from the whole texts before and after on each shape; None when there is none."""
    pairs = list(zip(old, new, strict=True))
    numbered = [_numbered_apart(a, b) for a, b in pairs]
    if all(x and t.run(x, seed) is None for t, x in zip(trials, numbered, strict=True) for seed in SEEDS):
        return ALONE
    if kind.startswith(("moved start", "moved fence of", "dropped fence of")):
        return STARTS if all(_started(b) == _started(a) and _fenced(b) for a, b in pairs) else None
    if kind in ("moved wait for a phase", "moved fence"):
        return REGISTERS if all(_without_waits(a) == _without_waits(b) for a, b in pairs) else None
    if kind in ("moved arrival", "moved announced bytes"):
        same = all(_without_bytes(a) == _without_bytes(b) for a, b in pairs)
        anyway = all(t.run(b, seed) is None for t, b in zip(trials, new, strict=True) for seed in SEEDS)
        return ANNOUNCED if same and anyway else None
    if kind == "moved hold of registers":
        return HELD if all(_arrivals(_passed(a, b, "tir_hold(", "")) for a, b in pairs) else None
    if kind in ("moved wait", "moved wait for products"):
        waits = ("tir_wgmma_wait<", "tir_wait_stores<")[: 2 if kind == "moved wait" else 1]
        return SOONER if all(any(_arrivals(_passed(a, b, x, "up")) for x in waits) for a, b in pairs) else None
    if kind == "index by one" and all(_another_one(a, b) for a, b in pairs):
        runs = all(t.run(b, seed) is None for t, b in zip(trials, new, strict=True) for seed in SEEDS)
        return ANY_ONE if runs else None
    if kind == "moved wait for stores":
        return SOONER if all(_arrivals(_passed(a, b, "tir_wait_stores<", "up")) for a, b in pairs) else None
    if kind == "barriers begun by one":
        worse = [_spoiled(a, b) for a, b in pairs]
        return NOT_READ if all(x and t.run(x) is None for t, x in zip(trials, worse, strict=True)) else None
    if kind in _STEPS:
        return NOT_LOOKED_AT if _not_looked_at(pairs, trials) else None
    return None


def _kernel(text: str) -> list[str]:
    return [x.strip() for x in text[text.index('extern "C" __global__') :].splitlines()]


_MEETING = re.compile(r"tir_sync_some\(([^,]+), (?=\d+\);)")


def _numbered_apart(old: str, new: str) -> str:
    """The old text with a number of its own for each place where parts of a block meet, which runs if all who meet come
    to the same place. Nothing unless the new text differs in the number of one such place, and that is nobody's.
    """
    if len(re.findall(r"\bbar(?:rier)?\.(?!cluster)", old)) != 1 or "bar.sync %0, %1;" not in old:
        return ""  # others than these
    first = old.index('extern "C" __global__')
    was, now = (_MEETING.findall(text[text.index('extern "C" __global__') :]) for text in (old, new))
    differ = [n for n, (a, b) in enumerate(zip(was, now, strict=False)) if a != b]
    if len(differ) != 1 or _MEETING.sub("", old) != _MEETING.sub("", new) or now[differ[0]] in was:
        return ""
    if len(was) > 15 or not all(x.isdigit() and 1 <= int(x) <= 15 for x in (*was, *now)):
        return ""  # hardware has 15 beside the whole block's
    each = itertools.count(1)
    return old[:first] + _MEETING.sub(lambda m: f"tir_sync_some({next(each)}, ", old[first:])


def _passed(old: str, new: str, line: str, way: str) -> list[str]:
    """The lines that one which begins with ``line`` has changed places with, if nothing else differs.

    way: "up" for those that it was behind only
    """
    before, behind = _kernel(old), _kernel(new)
    if way == "up":  # holds come with their wait
        before, behind = ([x for x in text if not x.startswith("tir_hold(")] for text in (before, behind))
    while before and behind and before[0] == behind[0]:
        before, behind = before[1:], behind[1:]
    while before and behind and before[-1] == behind[-1]:
        before, behind = before[:-1], behind[:-1]
    if before and before == [*behind[1:], behind[0]] and behind[0].startswith(line):
        return before[:-1]
    if before and behind == [*before[1:], before[0]] and before[0].startswith(line) and way != "up":
        return before[1:]
    return []


def _arrivals(lines: Sequence[str]) -> bool:
    """Whether there are lines, and they do nothing but arrive at barriers or wait for stores or products."""
    harmless = r"if \(lane < \d+\) \{$|tir_barrier_arrive|tir_wait_stores<|tir_wgmma_wait<|\}$"
    return bool(lines) and all(re.match(harmless, x) for x in lines)


def _another_one(old: str, new: str) -> bool:
    """Whether nothing differs but which thread of the role it is that asks for tiles."""
    alone = re.compile(r"if \(threadIdx\.x == \d+\) \{")
    return old != new and alone.sub("", old) == alone.sub("", new) and len(alone.findall(new)) == 1


def _started(text: str) -> list[str]:
    """What the kernel does up to its first barrier, in no order, but for fences."""
    lines = _kernel(text)
    return sorted(x for x in lines[: lines.index("__syncthreads();")] if x not in ("tir_barriers_ready();", ";"))


def _fenced(text: str) -> bool:
    """Whether one thread begins all barriers, and its last fence comes behind that."""
    lines = _kernel(text)
    start = [x for x in lines[: lines.index("__syncthreads();")] if "tir_barrier" in x or x.startswith("if (")]
    asked = {x for x in start if x.startswith("if (")}
    return len(asked) == 1 and start[-1] == "tir_barriers_ready();"


def _without_waits(text: str) -> list[str]:
    return [x for x in _kernel(text) if not x.startswith("tir_barrier_wait(")]


def _without_bytes(text: str) -> list[str]:
    return [x for x in _kernel(text) if not x.startswith("tir_barrier_expect(")]


def _spoiled(old: str, new: str) -> str:
    """The new text, whose further iterations write ones where they would begin barriers; nothing where it has fewer."""
    begins = r"for \(int n = 0; n < (\d+); \+\+n\) (tir_barrier_init\((&\w+\[n\]), \d+\);)"
    for was, now in zip(re.finditer(begins, old), re.finditer(begins, new), strict=True):
        if int(was[1]) < int(now[1]):
            instead = f"{{ if (n < {was[1]}) {now[2]} else *(volatile unsigned long long *){now[3]} = ~0ull; }}"
            return new[: now.start(2)] + instead + new[now.end(2) :]
    return ""


def _not_looked_at(pairs: Sequence[tuple[str, str]], trials: Sequence[Trial]) -> bool:
    """Whether any number does in the place of the only one that differs."""
    for (old, new), t in zip(pairs, trials, strict=True):
        first = next(n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
        while old[first - 1].isdigit():
            first -= 1
        m = re.compile(r"\d+").match(old, first)
        n = re.compile(r"\d+").match(new, first)
        if m is None or n is None or old[m.end() :] != new[n.end() :]:
            return False
        if any(t.run(f"{old[:first]}{value}{old[m.end() :]}") is not None for value in ANY):
            return False
    return True
