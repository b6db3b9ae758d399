"""Rule for attention by online softmax ("rolling"): the parts of a target compete by modelled time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import CLEARLY, Config, Part
from tensorir.automatic.rules.narrow import expected_s
from tensorir.automatic.rules.rolling_cpu import TiledRollingPart
from tensorir.automatic.rules.rolling_few import FewQueriesPart
from tensorir.automatic.rules.rolling_gpu import WarpRollingPart
from tensorir.automatic.rules.rolling_part import RollingPart, Stages, attentions, only_ratio, skip_masked
from tensorir.automatic.rules.rolling_threads import ThreadRollingPart
from tensorir.engines.blocks import joint
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate

QUERIES = 32
"""Queries of a block of threads, one each."""
TILES_OF_THREADS: tuple[type[RollingPart], ...] = (WarpRollingPart, ThreadRollingPart, FewQueriesPart)


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for attention: those in tiles that suit it, by modelled time, then the one for all others.

    Tiles of few queries go first only where they are ``CLEARLY`` faster.
    """
    kinds = TILES_OF_THREADS if levels_of(target).threaded else (TiledRollingPart,)
    for found in (x for x in attentions(graph, anchor) if only_ratio(graph, anchor, x)):
        tiles = [p for kind in kinds if (p := kind(graph, anchor, target, found)).suits()]
        yield from sorted(tiles, key=lambda p: expected_s(p) * (CLEARLY if isinstance(p, FewQueriesPart) else 1.0))
        yield QueryLanesPart(graph, anchor, target, found)


class QueryLanesPart(RollingPart):
    """Attention with one query per lane, for stages of any form; a core walks its query alone."""

    def __init__(self, graph: Graph, anchor: Nest, target: Target, found: Stages) -> None:
        super().__init__(graph, anchor, target, found)
        self.scalar = not self.levels.threaded and anchor.constant

    def queries(self, c: Config) -> int:
        return QUERIES if self.levels.threaded else 1

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {"keys": [32, 16, 64, 128]}

    def _limits(self) -> Mapping[str, Predicate]:
        return {}

    def pass_s(self, c: Config) -> float:
        """Each query waits for its multiply-adds one by one."""
        machine, (blocks, _) = self.levels.machine, self.tiles(c)
        cycles = self.length * (self.terms + self.columns) * self.levels.waiting * -(-blocks // machine.cores)
        return cycles / machine.clock

    def roll(self, s: BaseSchedule, config: Config) -> None:
        *heads, query = self.sums.axes[: self.rows]
        columns, key = self.sums.axes[self.rows : -1], self.sums.axes[-1]
        piece, key = s.split(key, [None, config["keys"]])
        s.reorder(*heads, query, piece, key, *columns)
        self.rolled(s, query, piece)
        if heads:
            s.bind(joint(s, heads), "block.y")
        self.levels.share_out(s, [query], QUERIES if self.levels.threaded else None)
        skip_masked(s, piece)
