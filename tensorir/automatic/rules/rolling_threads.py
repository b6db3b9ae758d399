"""Attention on GPUs without tensor cores: each thread holds a tile of scores and a tile of accumulators in registers.

Shared memory is read in vectors of four elements, swizzled against bank conflicts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from tensorir.automatic.facts import Nest
from tensorir.automatic.part import Config, parts_of
from tensorir.automatic.rules.rolling_gpu import GpuRollingPart, mapped
from tensorir.automatic.rules.rolling_part import own_loops
from tensorir.ir.tree import Buffer
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.legal import Predicate

TILE = 8
"""Queries per thread; threads along the keys and along the columns."""
VECTOR = 4
PASSED_BYTES, PASSED_SLOTS = 20, 16
"""Bytes of shared-memory traffic per score, and instructions per score: a store, a load for the maximum, a load for the
weight, the weight's store, a load for the sum.
"""
HELD_SUMS = 160
"""Maximum accumulators and scores per thread that leave registers for operands."""


class ThreadTilesPart(GpuRollingPart):
    """Attention in tiles of threads: along the queries, and along the keys or the columns."""

    @abstractmethod
    def grid(self, c: Config) -> tuple[int, int, int, int]:
        """Threads along the queries, and queries of each; threads along the columns, and adjacent columns of each."""

    @abstractmethod
    def multiply(self, s: BaseSchedule, places: tuple[str, str], loops: Sequence[str], config: Config) -> None:
        """Schedule both products. places: (block, tile of keys);  loops: of the weighted sums in a tile of keys."""

    def roll(self, s: BaseSchedule, config: Config) -> None:
        sums = self.sums
        heads, (query, column, key) = sums.axes[: self.rows - 1], sums.axes[self.rows - 1 :]
        high, each, wide, vector = self.grid(config)
        block, ty, i = s.split(query, [None, high, each])
        piece, j = s.split(key, [None, config["keys"]])
        columns, tx, lane = s.split(column, [None, wide, vector])
        s.reorder(*heads, block, piece, ty, tx, j, columns, i, lane)
        s.bind(ty, "thread.y").bind(tx, "thread.x")
        self.rolled(s, block, piece, inlined=self.maps)
        self.share_out(s, block)
        self._results(s, config)
        self.scopes(s, "register")
        self.multiply(s, (block, piece), (j, columns, i, lane), config)
        self.by_query(s)
        self.pieces(s, piece, config)

    def _results(self, s: BaseSchedule, c: Config) -> None:
        """Bind the result's loops to the threads that hold its accumulators."""
        _, each, wide, vector = self.grid(c)
        i, column = own_loops(s, self.anchor.name)[self.rows - 1 :]
        ty, i = s.split(i, [None, each])
        columns, tx, lane = s.split(column, [None, wide, vector])
        s.reorder(ty, tx, i, columns, lane).bind(ty, "thread.y").bind(tx, "thread.x")
        if vector > 1 and self.columns % vector == 0:
            s.vectorize(lane)


class ThreadRollingPart(ThreadTilesPart):
    """Attention in blocks of ``warps`` with 32 queries each, 8 per thread, over tiles of ``keys``."""

    unit = 32
    widest = 128

    @property
    def name(self) -> str:
        return "rolling_tile"

    def typed(self) -> bool:
        """True if all is float32, and the columns are at least those of ``TILE`` threads."""
        nests = (*self.scores, self.sums, self.total, self.largest, self.weights)
        found = {b.dtype for b in (*self.arrays, *(n.writes[0] for n in nests))}
        return found == {"float32"} and self.columns >= TILE

    # -- the space

    def queries(self, c: Config) -> int:
        return self.unit * int(c["warps"])

    def knobs(self) -> Mapping[str, Sequence[object]]:
        stages = [1] if self._alone else [1, 2]
        return {**self.in_parts(4 * self.unit), "warps": [4, 2, 1, 8], "keys": [32, 64], "stages": stages}

    @property
    def _alone(self) -> bool:
        """True if copies cannot be pipelined: with a mask, or without asynchronous copies (sm_80)."""
        return self.masked or self.target.language != "cuda" or not self.target.has("sm_80")

    def shared(self, c: Config) -> int:
        queries, keys = self.queries(c), int(c["keys"])
        d, e = self.padded(32), -(-self.columns // 32) * 32
        return 4 * (queries * d + keys * (d + e) * int(c["stages"]) + queries * ((1 + len(self.products)) * keys + 5))

    def _limits(self) -> Mapping[str, Predicate]:
        sums = -(-self.columns // 32) * 32
        most = HELD_SUMS if sums == self.columns else HELD_SUMS - sums // 4  # conditions of the last columns take some
        return {
            **super()._limits(),
            "registers": lambda c: sums + c["keys"] <= most,
            "whole parts": lambda c: self.length % parts_of(c) == 0,  # of others a block would copy all keys
        }

    def registers(self) -> int:
        return min(255, self.columns + 140)

    def slower(self, c: Config) -> float:
        return max(1.0, self.gpu.issue / int(c["warps"]))

    def busy(self, c: Config) -> tuple[float, ...]:
        gpu, warps, queries, keys = self.gpu, int(c["warps"]), self.queries(c), int(c["keys"])
        d, e = self.padded(4), -(-self.columns // 32) * 32
        loads = warps * (d / VECTOR * (TILE + keys / TILE) + keys / VECTOR * (TILE + e / TILE))
        passed = PASSED_BYTES * queries * keys + 4.0 * keys * (d + e)
        shared = loads * 128 / gpu.shared_rate + passed / gpu.shared_rate
        multiply = 2.0 * queries * keys * (d + e) / gpu.threads_rate
        issue = (queries * keys / 32 * (d + e + PASSED_SLOTS) + loads) / gpu.issue
        return max(multiply, issue), shared, 4.0 * keys * (d + e) / gpu.l2_port, queries * keys / gpu.special

    # -- the steps

    def grid(self, c: Config) -> tuple[int, int, int, int]:
        return 4 * int(c["warps"]), TILE, TILE, VECTOR

    def multiply(self, s: BaseSchedule, places: tuple[str, str], loops: Sequence[str], config: Config) -> None:
        keys, (j, columns, *_) = int(config["keys"]), loops
        step, _ = s.split(j, [None, VECTOR])
        with s.because(f"rolling: a thread multiplies the scores of {TILE} queries and {keys // TILE} keys"):
            terms = [self._multiplied(s, n.name) for n in self.products]
        self._copies(s, places, (terms, step, columns), keys // TILE)

    def _multiplied(self, s: BaseSchedule, scores: str) -> str:
        """Schedule the scores in register tiles stored as vectors; return the loop over vectors of terms."""
        i, j, d = own_loops(s, scores)[self.rows - 1 :]
        ty, i = s.split(i, [None, TILE])
        tx, wide, j = s.split(j, [TILE, None, VECTOR])
        terms, d = s.split(d, [None, VECTOR])
        s.reorder(ty, tx, terms, i, wide, j, d).bind(ty, "thread.y").bind(tx, "thread.x")
        made = s.stage_out(scores, at=tx, scope="register").name
        s.vectorize(own_loops(s, made)[-1])
        return terms

    def _copies(
        self, s: BaseSchedule, places: tuple[str, str], steps: tuple[Sequence[str], str, str], keys: int
    ) -> None:
        """Stage operands in shared memory, and from there in registers; ``keys``: keys per thread."""
        assert self.operands is not None
        pairs, v = self.operands
        block, piece = places
        weights, (terms, step, columns) = self.weights.writes[0], steps
        rows = "x/32, x/4%8 ^ x/32%8 ^ r%8 ^ r/8%8, x%4"
        with s.because("rows: threads next to each other have queries, keys and columns in different banks"):
            kept = list[tuple[Buffer, str, str, str, int]]()
            for n, (q, k), loop in zip(self.products, pairs, terms, strict=True):
                width = n.size(n.reduced)
                kept += [(q, block, "x/4 ^ r/8%8, x%4", loop, width)]
                kept += [(k, piece, f"x/4 ^ r/{keys}%8, x%4", loop, width)]
            found = list[tuple[str, str]]()
            for b, at, row, loop, width in (*kept, (v, piece, "x/32, x/4%8 ^ x/32%8, x%4", columns, self.columns)):
                vector = next(n for n in (4, 2, 1) if width % n == 0)
                made = s.stage_in(b.name, at=at, scope="shared", vector=vector, layout=mapped(b, row)).name
                found.append((made, loop))
            for tensor in (*(n.writes[0] for n in self.products), weights):
                s.layout(tensor.name, mapped(tensor, rows))
        for name, at in (*found[:-1], (weights.name, step), found[-1]):
            s.stage_in(name, at=at, scope="register", vector=VECTOR)

    def one_query(self, s: BaseSchedule, loop: str) -> None:
        ty, tx = s.split(loop, [None, TILE])
        s.bind(ty, "thread.y").bind(tx, "thread.x")

    def along_keys(self, s: BaseSchedule, stage: str, read: Sequence[Nest]) -> None:
        super().along_keys(s, stage, read)
        *_, tx, key = own_loops(s, stage)
        for n in read:
            s.stage_in(n.writes[0].name, at=tx, scope="register", vector=VECTOR)
        s.unroll(key)
