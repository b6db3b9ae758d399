"""Rolling on GPUs in threads: each has a tile of scores, and of sums that stay in its registers.

Scores and weights of a piece pass through shared memory, where a thread each has the maximum and the sum of a query.
All that threads read there they read in vectors of four elements, which rows keep in other banks than their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.rolling import own_loops
from tensorir.automatic.rules.rolling_gpu import WarpRollingPart, mapped
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_devices import Gpu
from tensorir.tune.legal import Predicate

TILE = 8
"""Queries of a thread, and threads next to each other along keys and along columns: a thread each for a query, too."""
VECTOR = 4
PASSED_BYTES, PASSED_SLOTS = 20, 16
"""Bytes of shared memory that pass for a score, and its instructions: it is written, read for the maximum and for its
weight, which is written and read for the sum."""
SPECIAL = 16
"""Exponentials of a multiprocessor in a cycle."""
HELD_SUMS = 160
"""Sums and scores of a thread, at most: registers next to which operands have room."""
SCHEDULERS = 4
"""Parts of a multiprocessor, each of which runs its own warps."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """The stages of ``rolling``, in tiles of threads, where operands are float32."""
    if target.kind == "gpu":
        yield from ThreadRollingPart.tiled(graph, anchor, target)


class ThreadRollingPart(WarpRollingPart):
    """Blocks of ``warps`` with 32 queries each go through pieces of ``keys``; a thread has 8 queries."""

    needs = ""
    queries = 32
    widest = 128

    @property
    def name(self) -> str:
        return "rolling_tile"

    def _typed(self) -> bool:
        nests = (*self.scores, self.sums, self.total, self.largest, self.weights)
        found = {b.dtype for b in (*(self.operands or ()), *(n.writes[0] for n in nests))}
        return found == {"float32"} and self.columns >= TILE

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {"warps": [4, 2, 1, 8], "keys": [32, 64], "stages": [1] if self._alone else [1, 2]}

    @property
    def _alone(self) -> bool:
        """True when no copy may run ahead."""
        return self.masked or self.target.language != "cuda" or not self.target.has("sm_80")

    def shared(self, c: Config) -> int:
        """Bytes of shared memory of a block: queries, keys, values, scores and weights."""
        queries, keys = c["warps"] * self.queries, c["keys"]
        d, e = (-(-n // 32) * 32 for n in (self.terms, self.columns))
        return 4 * (queries * d + keys * (d + e) * c["stages"] + queries * (2 * keys + 5))

    def _limits(self) -> Mapping[str, Predicate]:
        sums = -(-self.columns // 32) * 32
        most = HELD_SUMS if sums == self.columns else HELD_SUMS - sums // 4  # conditions of the last columns take some
        return {**super()._limits(), "registers": lambda c: sums + c["keys"] <= most}

    def registers(self) -> int:
        """Registers of a thread: its sums, its scores or operands, addresses."""
        return min(255, self.columns + 140)

    def _spread(self, c: Config) -> float:
        return max(1.0, SCHEDULERS / c["warps"])

    def _busy(self, c: Config, gpu: Gpu) -> tuple[float, ...]:
        warps, keys = c["warps"], c["keys"]
        queries, d, e = warps * self.queries, -(-self.terms // 4) * 4, -(-self.columns // 32) * 32
        loads = warps * (d / VECTOR * (TILE + keys / TILE) + keys / VECTOR * (TILE + e / TILE))
        passed = PASSED_BYTES * queries * keys + 4.0 * keys * (d + e)
        shared = loads * 128 / gpu.shared_rate + passed / gpu.shared_rate
        multiply = 2.0 * queries * keys * (d + e) / gpu.threads_rate
        issue = (queries * keys / 32 * (d + e + PASSED_SLOTS) + loads) / gpu.issue
        return max(multiply, issue), shared, 4.0 * keys * (d + e) / gpu.l2_port, queries * keys / SPECIAL

    # -- the schedule

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        sums, scores = self.sums, self.product.name
        heads, (query, column, key) = sums.axes[: self.rows - 1], sums.axes[self.rows - 1 :]
        across, keys = 4 * int(config["warps"]), int(config["keys"])
        block, ty, i = s.split(query, [None, across, TILE])
        piece, step, j = s.split(key, [None, keys // VECTOR, VECTOR])
        columns, tx, column = s.split(column, [None, TILE, VECTOR])
        s.reorder(*heads, block, piece, ty, tx, step, j, columns, i, column)
        s.bind(ty, "thread.y").bind(tx, "thread.x")
        self._rolled(s, heads, block, piece)
        self._results(s)
        self._kept(s, "register")
        with s.because(f"rolling: a thread multiplies the scores of {TILE} queries and {keys // TILE} keys"):
            terms = self._multiplied(s, scores)
        self._copies(s, (block, piece), (terms, step, columns), keys // TILE)
        self._queries(s)
        self._pieces(s, piece, config)

    def _results(self, s: BaseSchedule) -> None:
        """The results by the threads that have their sums."""
        i, c = own_loops(s, self.anchor.name)[self.rows - 1 :]
        ty, i = s.split(i, [None, TILE])
        columns, tx, column = s.split(c, [None, TILE, VECTOR])
        s.reorder(ty, tx, i, columns, column).bind(ty, "thread.y").bind(tx, "thread.x")
        if self.columns % VECTOR == 0:
            s.vectorize(column)

    def _multiplied(self, s: BaseSchedule, scores: str) -> str:
        """Scores in registers, which leave in vectors; the loop of terms that shared vectors serve."""
        i, j, d = own_loops(s, scores)[self.rows - 1 :]
        ty, i = s.split(i, [None, TILE])
        tx, wide, j = s.split(j, [TILE, None, VECTOR])
        terms, d = s.split(d, [None, VECTOR])
        s.reorder(ty, tx, terms, i, wide, j, d).bind(ty, "thread.y").bind(tx, "thread.x")
        made = s.stage_out(scores, at=tx, scope="register").name
        s.vectorize(own_loops(s, made)[-1])
        return terms

    def _copies(self, s: BaseSchedule, places: tuple[str, str], steps: tuple[str, str, str], keys: int) -> None:
        """Copies of operands in shared memory, and of these in registers; ``keys`` of a thread."""
        assert self.operands is not None
        q, k, v = self.operands
        block, piece = places
        weights, tensor = self.weights.writes[0], self.product.writes[0]
        rows = "x/32, x/4%8 ^ x/32%8 ^ r%8 ^ r/8%8, x%4"
        with s.because("rows: threads next to each other have queries, keys and columns in different banks"):
            kept = ((q, block, "x/4 ^ r/8%8, x%4"), (k, piece, f"x/4 ^ r/{keys}%8, x%4"))
            found = []
            for b, at, row in (*kept, (v, piece, "x/32, x/4%8 ^ x/32%8, x%4")):
                vector = next(n for n in (4, 2, 1) if (self.columns if b is v else self.terms) % n == 0)
                found.append(s.stage_in(b.name, at=at, scope="shared", vector=vector, layout=mapped(b, row)).name)
            for made in (tensor, weights):
                s.layout(made.name, mapped(made, rows))
        terms, step, columns = steps
        for name, at in ((found[0], terms), (found[1], terms), (weights.name, step), (found[2], columns)):
            s.stage_in(name, at=at, scope="register", vector=VECTOR)

    def _queries(self, s: BaseSchedule) -> None:
        """A thread each for the maximum and the sum of a query, all of them for its weights."""
        m, l, p = self.largest.name, self.total.name, self.weights.name
        for name in (f"{m}.init", f"{l}.init", f"{m}.old", m, f"{m}.ref", f"{m}.scale", f"{l}.rescale", l):
            ty, tx = s.split(own_loops(s, name)[self.rows - 1], [None, TILE])
            s.bind(ty, "thread.y").bind(tx, "thread.x")
            if name in (m, l):
                read = self.product if name == m else self.weights
                s.stage_in(read.writes[0].name, at=tx, scope="register", vector=VECTOR)
                s.unroll(own_loops(s, name)[-1])
        s.bind(s.fuse(*own_loops(s, p)[self.rows - 1 :]), "threads")
