"""Attention on GPUs for few queries with any number of columns: threads share the keys, then the columns.

Keys and values are read once by a block, from memory to registers; queries, scores and weights are in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorir.automatic.facts import Nest
from tensorir.automatic.part import Config
from tensorir.automatic.rules.rolling_gpu import WarpRollingPart
from tensorir.automatic.rules.rolling_part import own_loops
from tensorir.gpu_devices import Gpu
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.legal import Predicate

MOST_QUERIES = 32
"""Most queries per head: a block has them all."""
HELD_SUMS = 64
"""Maximum accumulators per thread."""
VECTOR = 4


class FewQueriesPart(WarpRollingPart):
    """Attention in blocks of all queries of a head, over tiles of ``keys``: of ``threads``, ``across`` share the keys,
    then the columns, and the others the queries.
    """

    needs = ""
    widest = 1 << 12

    @property
    def name(self) -> str:
        return "rolling_few"

    def suits(self) -> bool:
        """True if the stages have the axes of attention, with 2 to ``MOST_QUERIES`` queries."""
        return 1 < self.count <= MOST_QUERIES and super().suits()

    def _typed(self) -> bool:
        return True

    @property
    def queries(self) -> int:  # type: ignore[override]
        """Queries of a block: the power of two that holds them all."""
        return 1 << (self.count - 1).bit_length()

    def _few(self) -> Mapping[str, Sequence[object]]:
        return self._in_parts(self.heads)

    @property
    def _vector(self) -> int:
        return next(n for n in (VECTOR, 2, 1) if self.columns % n == 0)

    def _across(self, c: Config) -> tuple[int, int]:
        """Threads along keys and columns, and along the queries."""
        return int(c["across"]), int(c["threads"]) // int(c["across"])

    def _sums(self, c: Config) -> int:
        """Accumulators of a thread."""
        wide, high = self._across(c)
        return -(-self.columns // (wide * self._vector)) * self._vector * -(-self.queries // high)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {**self._few(), "threads": [256, 128, 64], "across": [32, 64, 16, 128, 8], "keys": [64, 32, 16, 128]}

    def _limits(self) -> Mapping[str, Predicate]:
        most = self.target.shared_bytes
        return {
            "parts": lambda c: "parts" not in c or c["parts"] * c["keys"] < 2 * self.length,
            "keys": lambda c: c["keys"] % c["across"] == 0 and (c["keys"] < 2 * self.length or c["keys"] == 16),
            "columns": lambda c: c["across"] < 2 * self.columns or c["across"] == 8,
            "queries": lambda c: 0 < self._across(c)[1] <= self.queries,
            "registers": lambda c: self._sums(c) <= HELD_SUMS,
            "shared": lambda c: self.shared(c) <= most,
        }

    def shared(self, c: Config) -> int:
        """Bytes of shared memory per block: queries, scores and weights."""
        return 4 * self.queries * (self._padded(VECTOR) + (1 + len(self.products)) * int(c["keys"]) + 5)

    def registers(self) -> int:
        """Registers per thread: accumulators, operands, addresses."""
        return HELD_SUMS + 64

    def _seconds(self, c: Config, gpu: Gpu) -> float:
        return super()._seconds({**c, "warps": int(c["threads"]) // 32, "stages": 1}, gpu)

    def _busy(self, c: Config, gpu: Gpu) -> tuple[float, ...]:
        keys, threads, d, e = int(c["keys"]), int(c["threads"]), self._padded(VECTOR), self.columns
        wide, high = self._across(c)
        multiply = 2.0 * self.queries * keys * (d + e) / gpu.threads_rate
        several, each = self.queries / high, keys / wide
        loads = threads / 32 * (d / VECTOR * (each + several) + keys * (several + e / VECTOR / wide))
        moved = float(keys * high * (d + e) * self.bits / 8)
        return multiply, loads * 128 / gpu.shared_rate / 4, moved / gpu.l2_port, loads / gpu.issue

    def roll(self, s: BaseSchedule, config: Config) -> None:
        sums, keys = self.sums, int(config["keys"])
        heads, (query, column, key) = sums.axes[: self.rows - 1], sums.axes[self.rows - 1 :]
        wide, high = self._across(config)
        block, ty, i = s.split(query, [None, high, self.queries // high])
        piece, j = s.split(key, [None, keys])
        columns, tx, lane = s.split(column, [None, wide, self._vector])
        s.reorder(*heads, block, piece, ty, tx, j, columns, i, lane)
        s.bind(ty, "thread.y").bind(tx, "thread.x")
        self._rolled(s, block, piece, inlined=self.maps)
        self._share_out(s, heads, block)
        self._results(s, wide, high)
        self._kept(s, "register")
        with s.because(f"rolling: threads multiply scores of {keys} keys, then sums of their columns"):
            for n in self.products:
                self._scored(s, n, block, config)
            assert self.operands is not None
            s.stage_in(self.operands[1].name, at=j, scope="register", vector=self._vector)
            s.unroll(i).vectorize(lane)
        self._queries(s)

    def _results(self, s: BaseSchedule, wide: int, high: int) -> None:
        """Bind the result's loops to the threads that hold its accumulators."""
        i, c = own_loops(s, self.anchor.name)[self.rows - 1 :]
        ty, i = s.split(i, [None, self.queries // high])
        columns, tx, lane = s.split(c, [None, wide, self._vector])
        s.reorder(ty, tx, i, columns, lane)
        s.bind(ty, "thread.y").bind(tx, "thread.x")

    def _scored(self, s: BaseSchedule, n: Nest, block: str, c: Config) -> None:
        """Schedule a product of the scores: a thread has some queries and one key."""
        assert self.operands is not None
        q, k = self.operands[0][self.products.index(n)]
        i, j, d = own_loops(s, n.name)[self.rows - 1 :]
        vector = next(v for v in (VECTOR, 2, 1) if n.size(n.reduced) % v == 0)
        wide, high = self._across(c)
        ty, i = s.split(i, [None, self.queries // high])
        j, tx = s.split(j, [None, wide])
        terms, d = s.split(d, [None, vector])
        s.reorder(ty, tx, terms, i, j, d)
        s.bind(ty, "thread.y").bind(tx, "thread.x").stage_out(n.name, at=tx, scope="register")
        made = s.stage_in(q.name, at=block, scope="shared", vector=vector).name
        s.stage_in(k.name, at=terms, scope="register", vector=vector)
        s.stage_in(made, at=terms, scope="register", vector=vector)
        s.unroll(i).unroll(j).unroll(d)

    def _queries(self, s: BaseSchedule) -> None:
        """Bind maxima and sums to one thread per query, weights to all threads."""
        m, l, p = self.largest.name, self.total.name, self.weights.name
        once = (f"{m}.init", f"{l}.init", f"{m}.old", m, f"{m}.ref", f"{m}.scale", f"{l}.rescale", l)
        for name in (*once, *(n.name for n in self.alongside)):
            s.bind(own_loops(s, name)[self.rows - 1], "threads")
        s.bind(s.fuse(*own_loops(s, p)[self.rows - 1 :]), "threads")
