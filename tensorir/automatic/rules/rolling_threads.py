"""Attention on GPUs without tensor cores: each thread holds a tile of scores and a tile of accumulators in registers.

Scores and weights of a tile of keys pass through shared memory; one thread per query updates its maximum and sum.
Shared memory is read in vectors of four elements, swizzled against bank conflicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorir.automatic.part import Config
from tensorir.automatic.rules.rolling_gpu import WarpRollingPart, mapped
from tensorir.automatic.rules.rolling_part import own_loops
from tensorir.gpu_devices import Gpu
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


class ThreadRollingPart(WarpRollingPart):
    """Attention in blocks of ``warps`` with 32 queries each, 8 per thread, over tiles of ``keys``."""

    needs = ""
    queries = 32
    widest = 128

    @property
    def name(self) -> str:
        return "rolling_tile"

    def _typed(self) -> bool:
        nests = (*self.scores, self.sums, self.total, self.largest, self.weights)
        found = {b.dtype for b in (*self._arrays(), *(n.writes[0] for n in nests))}
        return found == {"float32"} and self.columns >= TILE

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {**self._few(), "warps": [4, 2, 1, 8], "keys": [32, 64], "stages": [1] if self._alone else [1, 2]}

    def _few(self) -> Mapping[str, Sequence[object]]:
        """The knob ``parts``, if blocks of four warps leave multiprocessors idle."""
        return self._in_parts(self.heads * -(-self.count // (4 * self.queries)))

    @property
    def _alone(self) -> bool:
        """True if copies cannot be pipelined: with a mask, or without asynchronous copies (sm_80)."""
        return self.masked or self.target.language != "cuda" or not self.target.has("sm_80")

    def shared(self, c: Config) -> int:
        """Bytes of shared memory per block: queries, keys, values, scores and weights."""
        queries, keys = c["warps"] * self.queries, c["keys"]
        d, e = self._padded(32), -(-self.columns // 32) * 32
        return 4 * (queries * d + keys * (d + e) * c["stages"] + queries * ((1 + len(self.products)) * keys + 5))

    def _limits(self) -> Mapping[str, Predicate]:
        sums = -(-self.columns // 32) * 32
        most = HELD_SUMS if sums == self.columns else HELD_SUMS - sums // 4  # conditions of the last columns take some
        return {**super()._limits(), "registers": lambda c: sums + c["keys"] <= most}

    def registers(self) -> int:
        """Registers per thread: accumulators, scores or operands, addresses."""
        return min(255, self.columns + 140)

    def _spread(self, c: Config, gpu: Gpu) -> float:
        return max(1.0, gpu.issue / c["warps"])

    def _busy(self, c: Config, gpu: Gpu) -> tuple[float, ...]:
        warps, keys = c["warps"], c["keys"]
        queries, d, e = warps * self.queries, self._padded(4), -(-self.columns // 32) * 32
        loads = warps * (d / VECTOR * (TILE + keys / TILE) + keys / VECTOR * (TILE + e / TILE))
        passed = PASSED_BYTES * queries * keys + 4.0 * keys * (d + e)
        shared = loads * 128 / gpu.shared_rate + passed / gpu.shared_rate
        multiply = 2.0 * queries * keys * (d + e) / gpu.threads_rate
        issue = (queries * keys / 32 * (d + e + PASSED_SLOTS) + loads) / gpu.issue
        return max(multiply, issue), shared, 4.0 * keys * (d + e) / gpu.l2_port, queries * keys / gpu.special

    # -- the schedule

    def roll(self, s: BaseSchedule, config: Config) -> None:
        sums = self.sums
        heads, (query, column, key) = sums.axes[: self.rows - 1], sums.axes[self.rows - 1 :]
        across, keys = 4 * int(config["warps"]), int(config["keys"])
        block, ty, i = s.split(query, [None, across, TILE])
        piece, step, j = s.split(key, [None, keys // VECTOR, VECTOR])
        columns, tx, column = s.split(column, [None, TILE, VECTOR])
        s.reorder(*heads, block, piece, ty, tx, step, j, columns, i, column)
        s.bind(ty, "thread.y").bind(tx, "thread.x")
        self._rolled(s, block, piece, inlined=self.maps)
        self._share_out(s, heads, block)
        self._results(s)
        self._kept(s, "register")
        with s.because(f"rolling: a thread multiplies the scores of {TILE} queries and {keys // TILE} keys"):
            terms = [self._multiplied(s, n.name) for n in self.products]
        self._copies(s, (block, piece), (terms, step, columns), keys // TILE)
        self._queries(s)
        self._pieces(s, piece, config)

    def _results(self, s: BaseSchedule) -> None:
        """Bind the result's loops to the threads that hold its accumulators."""
        i, c = own_loops(s, self.anchor.name)[self.rows - 1 :]
        ty, i = s.split(i, [None, TILE])
        columns, tx, column = s.split(c, [None, TILE, VECTOR])
        s.reorder(ty, tx, i, columns, column).bind(ty, "thread.y").bind(tx, "thread.x")
        if self.columns % VECTOR == 0:
            s.vectorize(column)

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

    def _queries(self, s: BaseSchedule) -> None:
        """Bind maxima and sums to one thread per query, weights to all threads."""
        m, l, p = self.largest.name, self.total.name, self.weights.name
        once = (f"{m}.init", f"{l}.init", f"{m}.old", m, f"{m}.ref", f"{m}.scale", f"{l}.rescale", l)
        for name in (*once, *(n.name for n in self.alongside)):
            ty, tx = s.split(own_loops(s, name)[self.rows - 1], [None, TILE])
            s.bind(ty, "thread.y").bind(tx, "thread.x")
            if name in (m, l):
                read = self.products if name == m else (self.weights,)
                for n in read:
                    s.stage_in(n.writes[0].name, at=tx, scope="register", vector=VECTOR)
                s.unroll(own_loops(s, name)[-1])
        s.bind(s.fuse(*own_loops(s, p)[self.rows - 1 :]), "threads")
