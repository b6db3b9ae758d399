"""Rule for chains of reductions along one axis and maps between them: a row passes all stages while it is in cache or
shared memory (softmax, layer norm).
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import Part
from tensorir.automatic.rules.narrow import with_tiles
from tensorir.automatic.rules.row_chain import chain_of
from tensorir.automatic.rules.rows_across import AcrossPart
from tensorir.automatic.rules.rows_along import AlongPart, NearRowsPart
from tensorir.target import Target


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for the chain that ends with ``anchor``: row by row, or several rows across lanes; none without rows.

    For matrix-vector products also tiles (``with_tiles``).
    """
    return with_tiles(_by_rows(graph, anchor, target), graph, anchor, target)


def _by_rows(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    with_arrays, without = (chain_of(graph, anchor, arrays) for arrays in (True, False))
    room = levels_of(target).near_bytes
    near = chain_of(graph, anchor, common=True, room=room) if graph.producers(anchor) else None
    several = near and len(near.stages) > (len(with_arrays.stages) if with_arrays else 0)
    if near and several and NearRowsPart.exchanges(near, target):
        yield NearRowsPart(graph, target, near)
    for chain in (with_arrays, without) if with_arrays != without else (without,):
        if chain is None or not chain.rows:
            continue
        if AlongPart.suits(chain, target):
            yield AlongPart(graph, target, chain)
        if AcrossPart.suits(chain):
            yield AcrossPart(graph, target, chain)
