"""Attention on GPUs for few queries with any number of columns: threads share the keys, then the columns.

Keys and values are read once by a block, from memory to registers; queries, scores and weights are in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorir.automatic.facts import Nest
from tensorir.automatic.part import Config
from tensorir.automatic.rules.rolling_part import own_loops
from tensorir.automatic.rules.rolling_threads import VECTOR, ThreadTilesPart
from tensorir.ir.tree import Buffer
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.legal import Predicate

MOST_QUERIES = 32
"""Most queries per head: a block has them all."""
HELD_SUMS = 64
"""Maximum accumulators per thread."""


class FewQueriesPart(ThreadTilesPart):
    """Attention in blocks of all queries of a head, over tiles of ``keys``: of ``threads``, ``across`` share the keys,
    then the columns, and the others the queries.
    """

    widest = 1 << 12

    @property
    def name(self) -> str:
        return "rolling_few"

    def suits(self) -> bool:
        """True if the stages have the axes of attention, with 2 to ``MOST_QUERIES`` queries."""
        return 1 < self.count <= MOST_QUERIES and super().suits()

    def typed(self) -> bool:
        """True: threads multiply all types."""
        return True

    # -- the space

    def queries(self, c: Config) -> int:
        """The power of two that holds them all."""
        return 1 << (self.count - 1).bit_length()

    def threads(self, c: Config) -> int:
        return int(c["threads"])

    def grid(self, c: Config) -> tuple[int, int, int, int]:
        wide, vector = int(c["across"]), next(n for n in (VECTOR, 2, 1) if self.columns % n == 0)
        high = int(c["threads"]) // wide
        return high, self.queries(c) // high, wide, vector

    def _sums(self, c: Config) -> int:
        """Accumulators of a thread."""
        high, _, wide, vector = self.grid(c)
        return -(-self.columns // (wide * vector)) * vector * -(-self.queries(c) // high)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        parts = self.in_parts(MOST_QUERIES)
        return {**parts, "threads": [256, 128, 64], "across": [32, 64, 16, 128, 8], "keys": [64, 32, 16, 128]}

    def _limits(self) -> Mapping[str, Predicate]:
        return {
            **super()._limits(),
            "whole": lambda c: c["keys"] % c["across"] == 0,
            "columns": lambda c: c["across"] < 2 * self.columns or c["across"] == 8,
            "rows": lambda c: 0 < c["threads"] // c["across"] <= self.queries(c),
            "registers": lambda c: self._sums(c) <= HELD_SUMS,
        }

    def shared(self, c: Config) -> int:
        return 4 * self.queries(c) * (self.padded(VECTOR) + (1 + len(self.products)) * int(c["keys"]) + 5)

    def registers(self) -> int:
        return HELD_SUMS + 64

    def busy(self, c: Config) -> tuple[float, ...]:
        gpu, keys, d, e = self.gpu, int(c["keys"]), self.padded(VECTOR), self.columns
        high, _, wide, _ = self.grid(c)
        multiply = 2.0 * self.queries(c) * keys * (d + e) / gpu.threads_rate
        several, each = self.queries(c) / high, keys / wide
        loads = self.threads(c) / 32 * (d / VECTOR * (each + several) + keys * (several + e / VECTOR / wide))
        moved = float(keys * high * (d + e) * self.bits / 8)
        return multiply, loads * 128 / gpu.shared_rate / 4, moved / gpu.l2_port, loads / gpu.issue

    # -- the steps

    def multiply(self, s: BaseSchedule, places: tuple[str, str], loops: Sequence[str], config: Config) -> None:
        j, _, i, lane = loops
        _, _, _, vector = self.grid(config)
        assert self.operands is not None
        pairs, v = self.operands
        with s.because(f"rolling: threads multiply scores of {config['keys']} keys, then sums of their columns"):
            for n, pair in zip(self.products, pairs, strict=True):
                self._scored(s, n, pair, places[0], config)
            s.stage_in(v.name, at=j, scope="register", vector=vector)
            s.unroll(i).vectorize(lane)

    def _scored(self, s: BaseSchedule, n: Nest, pair: tuple[Buffer, Buffer], block: str, c: Config) -> None:
        """Schedule a product of the scores, of arrays of queries and keys: a thread has some queries and one key."""
        q, k = pair
        i, j, d = own_loops(s, n.name)[self.rows - 1 :]
        vector = next(v for v in (VECTOR, 2, 1) if n.size(n.reduced) % v == 0)
        _, each, wide, _ = self.grid(c)
        ty, i = s.split(i, [None, each])
        j, tx = s.split(j, [None, wide])
        terms, d = s.split(d, [None, vector])
        s.reorder(ty, tx, terms, i, j, d)
        s.bind(ty, "thread.y").bind(tx, "thread.x").stage_out(n.name, at=tx, scope="register")
        made = s.stage_in(q.name, at=block, scope="shared", vector=vector).name
        s.stage_in(k.name, at=terms, scope="register", vector=vector)
        s.stage_in(made, at=terms, scope="register", vector=vector)
        s.unroll(i).unroll(j).unroll(d)
