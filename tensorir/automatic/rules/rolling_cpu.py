"""Attention on CPUs: blocks of queries, tiles of keys, both products in register tiles with queries in the lanes.

With queries in lanes no operand is packed, and a query's running maximum and sums stay in its lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorir.automatic.facts import Nest, vector_lanes
from tensorir.automatic.levels import MOST_LANES
from tensorir.automatic.part import Config, parts_of
from tensorir.automatic.rules.rolling_part import RollingPart, array_of, own_loops, skip_masked
from tensorir.ir.dtypes import DTYPES
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.legal import Predicate

QUERIES = 64
"""Queries of a block where there are many."""


class TiledRollingPart(RollingPart):
    """Attention in blocks of queries over tiles of keys. Knobs: ``queries`` per block, ``keys`` per tile; of a register
    tile: ``vectors`` of ``lanes`` queries by ``tile`` keys or columns.
    """

    @property
    def name(self) -> str:
        return "rolling_tiles"

    def suits(self) -> bool:
        """True if there are at least 8 queries as well."""
        return super().suits() and self.count >= 8

    # -- the space

    def queries(self, c: Config) -> int:
        return int(c["queries"])

    def knobs(self) -> Mapping[str, Sequence[object]]:
        bits = max(DTYPES[b.dtype].bits for n in (self.sums, self.weights, *self.scores) for b in n.writes)
        widest = min(MOST_LANES, vector_lanes(self.target, bits))
        return {
            **self.in_parts(QUERIES),
            "queries": [64, 32, 128, 16, 8], "keys": [64, 32, 128, 16, 256], "tile": [8, 6, 4, 2],
            "lanes": list(dict.fromkeys((widest, max(2, widest // 2)))), "vectors": [2, 1, 4],
        }  # fmt: skip

    def _limits(self) -> Mapping[str, Predicate]:
        registers = self.target.registers
        return {
            **super()._limits(),
            "whole vectors": lambda c: c["queries"] % (c["lanes"] * c["vectors"]) == 0,
            "whole tiles": lambda c: c["keys"] % c["tile"] == 0,
            "registers": lambda c: c["tile"] * c["vectors"] + c["vectors"] + 2 <= registers,
        }

    def pass_s(self, c: Config) -> float:
        """Multiply-adds and loads of whole tiles, overhead per tile of keys, idle cores."""
        queries, keys, tile, lanes, vectors = (int(c[n]) for n in ("queries", "keys", "tile", "lanes", "vectors"))
        machine, (blocks, pieces) = self.levels.machine, self.tiles(c)
        of_head, length, depth = -(-self.count // queries), -(-self.length // parts_of(c)), self.terms + self.columns
        prices = machine.prices.rolling
        loads = 1 + 0.5 * (tile + vectors) / (tile * vectors) + max(0.0, machine.prices.sums / (tile * vectors) - 1)
        ragged = 1.0 + 2.0 * (self.count % queries > 0) / of_head + 2.0 * (length % keys > 0) / pieces
        each = queries * keys * (depth * loads + prices.weight) + queries * prices.rescale * depth
        far = 1.0 + queries * (keys + depth) / prices.near
        cycles = blocks * pieces * each / lanes * prices.multiply * ragged * far / min(machine.cores, blocks)
        return cycles / machine.clock

    # -- the steps

    def roll(self, s: BaseSchedule, config: Config) -> None:
        sums, rows = self.sums, self.rows
        heads, (query, column, key) = sums.axes[: rows - 1], sums.axes[rows - 1 :]
        queries, keys = int(config["queries"]), int(config["keys"])
        block, query = s.split(query, [None, queries])
        piece, key = s.split(key, [None, keys])
        s.reorder(*heads, block, piece, query, column, key)
        self.rolled(s, block, piece)
        self._cut(s, block, self.count, queries)
        self._cut(s, piece, self.length, keys)
        self.share_out(s, block)
        self._across(s, block)
        with s.because("rolling: both products in tiles of vectors that stay in registers"):
            for scores in self.products:
                queried, keyed, term = (own_loops(s, scores.name)[at] for at in (rows - 1, rows, -1))
                self._tile(s, scores, queried, keyed, term, config)
            self._tile(s, sums, query, column, key, config)
        self._lanes(s, query, int(config["lanes"]))
        skip_masked(s, piece)

    @staticmethod
    def _cut(s: BaseSchedule, loop: str, length: int, step: int) -> None:
        """Cut off the last, shorter iteration of a loop."""
        if length % step and length > step:
            s.partition(loop, [length // step])

    def _across(self, s: BaseSchedule, block: str) -> None:
        """Store the block's arrays with queries contiguous."""
        for n in (*self.scores, self.weights, self.sums):
            for b in n.writes:
                s.layout(b.name, _turned(len(b.shape)))
        ends = [(n, (n.spatial[self.rows - 1].var, n.reduced[-1].var)) for n in self.products]
        for q in dict.fromkeys(filter(None, (array_of(n, both) for n, both in ends))):
            s.stage_in(q.name, at=block, scope="register", layout=_turned(len(q.shape)))

    def _tile(self, s: BaseSchedule, n: Nest, query: str, column: str, term: str, c: Config) -> None:
        lanes, vectors, tile = int(c["lanes"]), int(c["vectors"]), int(c["tile"])
        outer, several = s.split(column, [None, tile])
        group, vector, lane = s.split(query, [None, vectors, lanes])
        s.reorder(outer, group, term, several, vector, lane)
        s.unroll(several).unroll(vector).vectorize(lane)
        out = str(s.stage_out(n.name, at=group, scope="register").name)
        own = own_loops(s, out)
        vector, lane = s.split(own[-2], [None, lanes])
        s.reorder(own[-1], vector, lane)
        s.unroll(own[-1]).unroll(vector).vectorize(lane)

    def _lanes(self, s: BaseSchedule, query: str, lanes: int) -> None:
        """Vectorize the remaining stages (maxima, sums, weights, rescaling) along the queries."""
        o = self.sums.name
        for n in (self.largest, self.total, self.weights, *self.maps):
            vector, lane = s.split(self.query_of(s, n.name), [None, lanes])
            s.reorder(vector, own_loops(s, n.name)[-1], lane)
            s.vectorize(lane)
        for name in self.updates:
            s.vectorize(s.split(self.query_of(s, name), [None, lanes])[1])
        for name in (f"{o}.init", f"{o}.rescale"):
            own = own_loops(s, name)
            mine = f"{name}.{query.removeprefix(o + '.')}"
            vector, lane = s.split(mine, [None, lanes])
            s.reorder(*(x for x in own if x != mine), vector, lane)
            s.vectorize(lane)
        vector, lane = s.split(self.query_of(s, self.anchor.name), [None, lanes])
        s.reorder(own_loops(s, self.anchor.name)[-1], vector, lane)


def _turned(rank: int) -> str:
    """Layout that exchanges the last two axes of an array of rank ``rank``."""
    axes = [f"a{n}" for n in range(rank)]
    return f"{', '.join(axes)} -> {', '.join((*axes[:-2], axes[-1], axes[-2]))}"
