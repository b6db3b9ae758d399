"""Attention on CPUs: blocks of queries, tiles of keys, both products in register tiles with queries in the lanes.

With queries in lanes no operand is packed, and a query's running maximum and sums stay in its lane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.automatic.facts import Nest, vector_lanes
from tensorir.automatic.part import Config, parts_of
from tensorir.automatic.rules.rolling_part import RollingPart, own_loops, skip_masked
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.structure import identical
from tensorir.ir.tree import Buffer
from tensorir.machine import machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.legal import Predicate

QUERIES = 64
"""Queries of a block where there are many."""


class TiledRollingPart(RollingPart):
    """Attention in blocks of queries over tiles of keys. Knobs: ``queries`` per block, ``keys`` per tile; of a register
    tile: ``vectors`` of ``lanes`` queries by ``tile`` keys or columns.
    """

    rule = "rolling"

    @property
    def name(self) -> str:
        return "rolling_tiles"

    def suits(self) -> bool:
        """True if the stages have the axes of attention with constant extents, and at least 8 queries."""
        rows = len(self.largest.spatial)
        counts = [(n, rows) for n in (self.largest, self.total, *self.alongside)]
        counts += [(self.sums, rows + 1), (self.anchor, rows + 1)]
        counts += [(n, rows + 1) for n in (self.weights, *self.scores)]
        plain = all(len(n.spatial) == count for n, count in counts) and len(self.sums.reduced) == 1
        return plain and self.count >= 8

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        bits = max(DTYPES[b.dtype].bits for n in (self.sums, self.weights, *self.scores) for b in n.writes)
        widest = min(16, vector_lanes(self.target, bits))
        return {
            **self._in_parts(self.heads * -(-self.count // QUERIES)),
            "queries": [64, 32, 128, 16, 8], "keys": [64, 32, 128, 16, 256], "tile": [8, 6, 4, 2],
            "lanes": list(dict.fromkeys((widest, max(2, widest // 2)))), "vectors": [2, 1, 4],
        }  # fmt: skip

    def _limits(self) -> Mapping[str, Predicate]:
        registers = self.target.registers
        return {
            **super()._limits(),
            "whole vectors": lambda c: c["queries"] % (c["lanes"] * c["vectors"]) == 0,
            "queries": lambda c: c["queries"] < 2 * self.count or c["queries"] == 8,
            "keys": lambda c: c["keys"] < 2 * self.length or c["keys"] == 16,
            "whole tiles": lambda c: c["keys"] % c["tile"] == 0,
            "registers": lambda c: c["tile"] * c["vectors"] + c["vectors"] + 2 <= registers,
        }

    def start(self) -> Config | None:
        return self.fastest()

    def expected(self) -> Callable[[Config], float] | None:
        return self._seconds

    def _seconds(self, c: Config) -> float:
        """Modelled seconds: multiply-adds and loads of whole tiles, overhead per tile of keys, idle cores."""
        queries, keys, tile, lanes, vectors = (int(c[n]) for n in ("queries", "keys", "tile", "lanes", "vectors"))
        heads, length, depth = self.heads * parts_of(c), -(-self.length // parts_of(c)), self.depth
        machine = machine_of(self.target)
        prices = machine.prices.rolling
        blocks, pieces = -(-self.count // queries), -(-length // keys)
        width = lanes * max(1.0, 32 / lanes / max(16, self.target.vector_bytes // 2))
        loads = 1 + 0.5 * (tile + vectors) / (tile * vectors) + max(0.0, machine.prices.sums / (tile * vectors) - 1)
        ragged = 1.0 + 2.0 * (self.count % queries > 0) / blocks + 2.0 * (length % keys > 0) / pieces
        each = queries * keys * (depth * loads + prices.weight) + queries * prices.rescale * depth
        far = 1.0 + queries * (keys + depth) / (1 << 16)
        at_once = min(machine.cores, heads * blocks)
        cycles = heads * blocks * pieces * each / width * prices.multiply * ragged * far / at_once
        return cycles / machine.clock + self._combining_s(c)

    # -- the steps

    def roll(self, s: BaseSchedule, config: Config) -> None:
        sums, rows = self.sums, len(self.largest.spatial)
        *heads, query = sums.axes[:rows]
        column, key = sums.axes[rows], sums.axes[-1]
        queries, keys = int(config["queries"]), int(config["keys"])
        block, query = s.split(query, [None, queries])
        piece, key = s.split(key, [None, keys])
        s.reorder(*heads, block, piece, query, column, key)
        self._rolled(s, block, piece)
        self._cut(s, block, self.count, queries)
        self._cut(s, piece, self.length, keys)
        self._share_out(s, heads, block)
        self._across(s, block)
        with s.because("rolling: both products in tiles of vectors that stay in registers"):
            for scores in self.products:
                queried, keyed, term = (own_loops(s, scores.name)[at] for at in (rows - 1, rows, -1))
                self._tile(s, scores, queried, keyed, term, config)
            self._tile(s, sums, query, column, key, config)
        self._lanes(s, rows, query, int(config["lanes"]))
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
        for q in self._queries:
            s.stage_in(q.name, at=block, scope="register", layout=_turned(len(q.shape)))

    @cached_property
    def _queries(self) -> tuple[Buffer, ...]:
        """Arrays of the queries that are indexed (…, query, term)."""
        at, found = len(self.largest.spatial) - 1, list[Buffer]()
        for n in self.products:
            ends = (n.spatial[at].var, n.reduced[-1].var)
            found += [x.buffer for x in n.loads if identical(x.index[-2:], ends)][:1]
        return tuple(dict.fromkeys(found))

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

    def _lanes(self, s: BaseSchedule, rows: int, query: str, lanes: int) -> None:
        """Vectorize the remaining stages (maxima, sums, weights, rescaling) along the queries."""
        m, l, o = self.largest.name, self.total.name, self.sums.name
        for name in (m, l, self.weights.name, *(n.name for n in self.maps)):
            vector, lane = s.split(own_loops(s, name)[rows - 1], [None, lanes])
            s.reorder(vector, own_loops(s, name)[-1], lane)
            s.vectorize(lane)
        for name in (f"{m}.init", f"{l}.init", f"{m}.old", f"{m}.ref", f"{m}.scale", f"{l}.rescale"):
            s.vectorize(s.split(own_loops(s, name)[rows - 1], [None, lanes])[1])
        for name in (f"{o}.init", f"{o}.rescale"):
            own = own_loops(s, name)
            mine = f"{name}.{query.removeprefix(o + '.')}"
            vector, lane = s.split(mine, [None, lanes])
            s.reorder(*(x for x in own if x != mine), vector, lane)
            s.vectorize(lane)
        for n in self.alongside:
            s.vectorize(s.split(own_loops(s, n.name)[rows - 1], [None, lanes])[1])
        vector, lane = s.split(own_loops(s, self.anchor.name)[rows - 1], [None, lanes])
        s.reorder(own_loops(s, self.anchor.name)[-1], vector, lane)


def _turned(rank: int) -> str:
    """Layout that exchanges the last two axes of an array of rank ``rank``."""
    axes = [f"a{n}" for n in range(rank)]
    return f"{', '.join(axes)} -> {', '.join((*axes[:-2], axes[-1], axes[-2]))}"
