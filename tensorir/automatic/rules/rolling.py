"""Rule for attention by online softmax ("rolling"): the parts of a target compete by modelled time."""

from __future__ import annotations

from collections.abc import Iterator

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import CLEARLY, Part
from tensorir.automatic.rules.narrow import expected_s
from tensorir.automatic.rules.rolling_cpu import TiledRollingPart
from tensorir.automatic.rules.rolling_few import FewQueriesPart
from tensorir.automatic.rules.rolling_gpu import WarpRollingPart
from tensorir.automatic.rules.rolling_part import RollingPart, attentions, only_ratio
from tensorir.automatic.rules.rolling_threads import ThreadRollingPart
from tensorir.target import Target

TILES_OF_THREADS: tuple[type[RollingPart], ...] = (WarpRollingPart, ThreadRollingPart, FewQueriesPart)


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for attention: those in tiles that suit it, by modelled time, then the one for all others.

    Tiles of few queries go first only where they are ``CLEARLY`` faster.
    """
    kinds = TILES_OF_THREADS if levels_of(target).threaded else (TiledRollingPart,)
    for found in (x for x in attentions(graph, anchor) if only_ratio(graph, anchor, x)):
        tiles = [p for kind in kinds if (p := kind(graph, anchor, target, found)).suits()]
        yield from sorted(tiles, key=lambda p: expected_s(p) * (CLEARLY if isinstance(p, FewQueriesPart) else 1.0))
        yield RollingPart(graph, anchor, target, found)
