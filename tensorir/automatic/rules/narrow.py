"""Narrow: a product of one row or one column by a matrix, which reads nothing again but that; in tiles as wider ones
are, next to its rows one by one, the way first that is expected to take least.

Where an operand is a constant that is to be packed ahead, tiles come first: rows are read as they are stored.
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
    """Parts that go through rows, and, of a product of one row or column, its tiles among them."""
    total = summed(graph, anchor, narrow=True)
    if total is None:
        yield from rows
        return
    tiled = [*tile_cpu.by_engines(graph, anchor, target, total), *tile_gpu.by_engines(graph, anchor, target, total)]
    packed = any(b.name in graph.wishes.constants for b in total.reads)
    yield from (*tiled, *rows) if packed else sorted((*rows, *tiled), key=_expected)


def _expected(part: Part) -> float:
    """Modelled seconds of a part's default; infinite without a model, or where nothing is legal on the target."""
    try:
        space = part.space
        start = space.default
    except DeclarationError as error:
        if error.code != "space.empty":
            raise
        return math.inf
    return math.inf if space.expected_s is None or start is None else space.expected_s(start)
