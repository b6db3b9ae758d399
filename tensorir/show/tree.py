"""The loop tree, folding at every level, with what one iteration of each loop touches."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from tensorir.ir.dims import most_of
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.text import text
from tensorir.ir.tree import Buffer, Const, Expr, Load, Loop, Program, Scope, Stage, Store, Update
from tensorir.ir.visit import find
from tensorir.schedule.analysis import Index, index_of
from tensorir.schedule.rewrite import footprint
from tensorir.show.pieces import Html, dim, html, size, words

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.schedule.trace import Step

DEEP = 120
"""Lines of a tree from which on only its first three levels are open."""
DEEPEST = 12  # splits of splits that hovering tells
MOST = 2000
"""Pairs of a loop and a buffer below it for which the footprint is computed: it is shown, not waited for."""


def schedule_tree(s: Schedule) -> Html:
    """The tree of a schedule with footprints, the lines that its last step made marked."""
    now = text(s.program).splitlines()
    new: set[int] = set()
    if s.trace:
        before = text(s.at(len(s.trace) - 1).program).splitlines()
        same = difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes()
        new = {n for kind, _, _, a, b in same if kind != "equal" for n in range(a, b)}
    return tree(now, footprints(s.program), new, origins(s.trace, s.index.loops))


def origins(steps: Sequence[Step], loops: Iterable[str]) -> dict[str, str]:
    """By loop: the axis that it comes from, and the steps by which, the last one first."""
    made = {name: step for step in steps for name in step.out}

    def lines(name: str, deep: int) -> list[str]:
        step = made.get(name)
        if step is None:
            stage, _, axis = name.partition(".")
            by = f", which {made[stage]} made" if stage in made else ""
            return [f"{name}: axis {axis or name} of {stage}{by}"]
        place = step.where.partition(": ")[0].rpartition("/")[2]
        above = [a for a in step.args if isinstance(a, str)] if step.primitive in ("split", "fuse") and deep else []
        found = [f"{name}: {step}" + (f" at {place}" if place else "")]
        return found + [line for parent in above for line in lines(parent, deep - 1)]

    found = {name: dict.fromkeys(lines(name, DEEPEST)) for name in loops}
    return {name: "\n".join(sorted(some, key=lambda line: ": axis " in line)) for name, some in found.items()}


def tree(
    lines: Sequence[str],
    notes: Mapping[str, str] | None = None,
    new: Iterable[int] = (),
    told: Mapping[str, str] | None = None,
) -> Html:
    """Indented lines as nested folds.

    notes: what to print after the loop of a name; new: lines to mark; told: what hovering over the loop of a name says
    """
    notes, told, marked = notes or {}, told or {}, set(new)
    depths = [len(line) - len(line.lstrip()) for line in lines]

    def part(first: int, end: int, level: int) -> str:
        out, n = [], first
        while n < end:
            after = next((m for m in range(n + 1, end) if depths[m] <= depths[n]), end)
            line = lines[n].strip()
            loop = re.match(r"for (\S+) in ", line)
            cost = f'<span class="tir-cost">{html(notes[loop[1]])}</span>' if loop and loop[1] in notes else ""
            shown = str(words(line))
            if loop and loop[1] in told:
                origin = html(told[loop[1]]).replace("\n", "&#10;")
                shown = f'<span title="{origin}">{shown}</span>'
            shown = f'<span class="tir-last">{shown}</span>' if n in marked else shown
            if after == n + 1:
                out.append(f'<div class="tir-leaf">{shown}{cost}</div>')
            else:
                state = " open" if level < 3 or len(lines) < DEEP else ""
                inner = part(n + 1, after, level + 1)
                out.append(
                    f'<details{state}><summary>{shown}{cost}</summary><div class="tir-body">{inner}</div></details>'
                )
            n = after
        return "".join(out)

    key = dim("after a loop: what one iteration of it touches") if notes else ""
    return Html(f'<div class="tir-tree">{part(0, len(lines), 0)}</div>{key}')


def footprints(program: Program) -> dict[str, str]:
    """By loop: the box of each buffer that one iteration touches, and the bytes of all; of loops whose extents, and
    those of the loops around and below them, are known.
    """
    index = index_of(program)
    if any(not isinstance(x.extent, Const) for x in index.loops.values()):
        return {}
    accesses = {s: _accesses(s) for s in index.stages.values()}
    homes = _homes(index, accesses)
    found: dict[str, str] = {}
    asked = 0
    for name, loop in index.loops.items():
        touched: dict[Buffer, list[tuple[Stage, tuple[Expr, ...]]]] = {}
        for s in find(loop, Stage):
            for b, where in accesses[s]:
                if b not in homes or homes[b] in (loop, *index.above(loop)):
                    touched.setdefault(b, []).append((s, where))
        asked += len(touched)
        if asked > MOST:
            break
        found[name] = _said(index, loop, touched)
    return found


def _homes(index: Index, accesses: Mapping[Stage, list[tuple[Buffer, tuple[Expr, ...]]]]) -> dict[Buffer, Loop]:
    """For each local buffer the innermost loop around all that touches it, if any: above that it is made anew."""
    around: dict[Buffer, list[Loop]] = {}
    for s, found in accesses.items():
        above = index.above(s)
        for b in dict(found):
            if b.scope not in (Scope.GLOBAL, Scope.CONSTANT):
                around[b] = [x for x in around.get(b, above) if x in above]
    return {b: loops[-1] for b, loops in around.items() if loops}


def _accesses(s: Stage) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    read = [(n.buffer, n.index) for n in find(s, Load)]
    stored = [(n.buffer, n.index) for n in find(s, Store)]
    return [*read, *stored, *((b, n.index) for n in find(s, Update) for b in n.buffers)]


def _said(index: Index, loop: Loop, touched: Mapping[Buffer, list[tuple[Stage, tuple[Expr, ...]]]]) -> str:
    boxes, total = [], 0
    for b, where in touched.items():
        shape = most_of(b)
        sides = footprint(index, where, loop, Scope.REGISTER, shape)
        box = [min(side.extent, n) for side, n in zip(sides, shape, strict=True)]
        total += prod(box) * DTYPES[b.dtype].bits // 8
        boxes.append(f"{b.name}[{', '.join(map(str, box))}]")
    shown = boxes if len(boxes) <= 5 else [*boxes[:4], f"and {len(boxes) - 4} more"]
    return f"{size(total)}: {' '.join(shown)}"
