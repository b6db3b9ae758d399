"""Products of one row or column by a matrix (matrix-vector products): register or warp tiles compete with row
reductions; the least modelled time comes first.

If an operand is a constant to be packed ahead of time, tiles come first, since row reductions do not pack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Part
from tensorir.automatic.rules import tile_cpu, tile_gpu
from tensorir.automatic.rules.products import summed
from tensorir.errors import DeclarationError
from tensorir.target import Target


def with_tiles(rows: Iterator[Part], graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Parts ``rows``, for a matrix-vector product merged with its tiles by modelled seconds of their defaults.

    If an operand is a constant (``Wishes.constants``), the tiles come first.
    """
    total = summed(graph, anchor, narrow=True)
    if total is None:
        yield from rows
        return
    tiled = [*tile_cpu.by_engines(graph, anchor, target, total), *tile_gpu.by_engines(graph, anchor, target, total)]
    packed = any(b.name in graph.wishes.constants for b in total.reads)
    yield from (*tiled, *rows) if packed else sorted((*rows, *tiled), key=expected_s)


def expected_s(part: Part) -> float:
    """Modelled seconds of a part's default configuration; infinite if there is no model or no legal configuration."""
    try:
        space = part.space
        start = space.default
    except DeclarationError as error:
        if error.code != "space.empty":
            raise
        return math.inf
    return math.inf if space.expected_s is None or start is None else space.expected_s(start)
