"""Extents at which a product of matrices that a view makes of other axes has several blocks.

``s.reindex`` joins axes to the rows and columns of a matrix, whose loops are split. The extents of the joined axes are
chosen so that there are a little more rows, and columns, than a tile has: else no shape tells one block from another.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from tensorir.ir.dtypes import DTYPES
from tensorir.ir.structure import among
from tensorir.ir.tree import Var
from tensorir.schedule.trace import Trace

ROW_BYTES = 16
"""Bytes of which rows are multiples where copies or stores go by vectors."""


def several_blocks(
    steps: Trace, tiles: Mapping[str, Iterable[int]], axes: Mapping[str, tuple[Var, int]], dtypes: Iterable[str],
    shapes: Sequence[Mapping[Var, int]], work: int,
) -> list[dict[Var, int]]:  # fmt: skip
    """Return extents with more than one tile along those axes of results of which no shape has several.

    tiles: for each loop the sizes of its tiles;  axes: by name, with the extents that are declared
    dtypes: of what is read and made, of which rows have whole vectors;  work: the most iterations of one shape
    """
    more = max(1, *(8 * ROW_BYTES // max(8, DTYPES[t].bits) for t in dtypes))
    named = {_last(name): axis for name, axis in axes.items()}
    groups, terms = _tiled(steps, tiles, named, more)
    new = [g for size, g in groups if not any(math.prod(x[v] for v in g) > size for x in shapes)]
    if not new:
        return []
    extents = dict(named.values())
    sums = sorted((v for v in reversed(extents) if v.extent is not None), key=extents.__getitem__, reverse=True)
    for few in (len(sums) + 1, 2, 1):  # the longest sum has a whole tile, of the others there are a few terms
        least = {v: min(n, max(terms, more)) if among(v, sums[:1]) else 1 for v, n in extents.items()}
        least |= {v: min(extents[v], few, k) for k, v in enumerate(reversed(sums[1:]), 2)}
        found = [least | {v: n for g in new for v, n in g.items()}]
        if math.prod(found[0].values()) <= work:
            break
    else:
        found = [x for g in new if math.prod((x := least | g).values()) <= work]
    return [{v: min(n, x[named[_last(name)][0]]) for name, (v, n) in axes.items()} for x in found]


def _tiled(
    steps: Trace, tiles: Mapping[str, Iterable[int]], named: Mapping[str, tuple[Var, int]], more: int
) -> tuple[list[tuple[int, dict[Var, int]]], int]:
    """The axes of results that tiles are of, joined ones together: the size of a tile, and extents that are a little
    more; and the terms of a tile.
    """
    groups, terms, seen = list[tuple[int, dict[Var, int]]](), 1, set[Var]()
    for stage, axis, parts in (*_joined(steps), *(("", name, [name]) for name in named)):
        inside = [named[p] for p in parts if p in named]
        size = max(itertools.chain((1,), *(t for at, t in tiles.items() if _is_of(at, stage, axis))))
        if len(inside) < len(parts) or (not stage and inside[0][0] in seen):
            continue
        if any(v.extent is not None for v, _ in inside):
            terms = max(terms, size) if stage else terms
            continue
        seen |= {v for v, _ in inside}
        extents = _shared(size, [n for _, n in inside], more)
        if 1 < size < math.prod(extents):
            groups.append((size, dict(zip((v for v, _ in inside), extents, strict=True))))
    return groups, terms


def _is_of(loop: str, stage: str, axis: str) -> bool:
    """Whether a loop is one of an axis, of a stage where one is named."""
    return _last(loop) == axis and loop.startswith(f"{stage}." if stage else "")


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _joined(steps: Trace) -> Iterable[tuple[str, str, Sequence[str]]]:
    """The stages of views, their axes, and what each of these is made of."""
    for step in steps:
        if step.primitive == "reindex" and "->" in str(step.args[1]):
            for axis, made in re.findall(r"(\w+) = (\([^)]*\)|\w+)(?=,|$|\s*$)", str(step.args[1]).split("->")[1]):
                yield str(step.args[0]).split(".")[0], axis, re.findall(r"\w+", made)


def _shared(tile: int, extents: Sequence[int], more: int) -> list[int]:
    """Extents whose product is a little more than a tile, about as long along the last two, none beyond its own."""
    if len(extents) == 1:
        return [min(extents[0], tile + more)]
    if not all(extents):
        return list(extents)
    left, out = tile, list[int]()
    for n in reversed(extents):
        most = min(n, max(2, math.isqrt(2 * left))) if len(out) < len(extents) - 1 else n
        out.insert(0, max(d for d in range(1, most + 1) if left % d == 0))
        left //= out[0]
    for x in reversed(range(len(out))):
        room = max(1, min(left, extents[x] // out[x]))
        out[x], left = out[x] * room, -(-left // room)
    longer = next((x for x in reversed(range(len(out))) if out[x] < extents[x]), None)
    if longer is not None:
        out[longer] += 1
    return out
