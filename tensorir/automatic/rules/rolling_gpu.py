"""Attention on GPUs, and on tensor cores: a warp accumulates 16 queries in registers; both products are ``mma``.

Scores and weights of a tile of keys pass through shared memory; one thread per query updates its maximum and sum.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from tensorir.automatic.facts import Nest
from tensorir.automatic.part import Config
from tensorir.automatic.rules.matrix_view import multiplies
from tensorir.automatic.rules.rolling_part import RollingPart, array_of, own_loops, skip_masked
from tensorir.gpu_devices import Gpu, usual_gpu
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, Const
from tensorir.ir.visit import find
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.legal import Predicate

BLOCK_BYTES = 1024
"""Bytes of shared memory that the device takes for a block, beyond its arrays."""
KINDS = {"float16": "f16", "bfloat16": "bf16"}
"""dtype -> its name in tensor-core instructions."""
QUERIES = 16
"""Queries per warp: rows of one instruction."""
SOFTMAX_BYTES, SOFTMAX_SLOTS = 18, 21
"""Bytes of shared-memory traffic per score, and instructions per score: a store, a load for the maximum, a load for the
weight, the weight's 16-bit store at the cost of a full word, a vector load for the sum.
"""


class GpuRollingPart(RollingPart):
    """Attention in blocks of threads over tiles of keys, with ``stages`` pipeline stages of their copies.

    widest: most terms of a score and columns of the result
    """

    widest: ClassVar[int]

    # -- what is multiplied

    def suits(self) -> bool:
        """True if the products also have operands of the forms and types that the part multiplies."""
        if not super().suits() or not all(map(multiplies, (self.sums, *self.products))):
            return False
        return self.operands is not None and max(self.columns, self.terms) <= self.widest and self.typed()

    @abstractmethod
    def typed(self) -> bool:
        """True if the element types of operands and results are those that the part multiplies."""

    @cached_property
    def operands(self) -> tuple[tuple[tuple[Buffer, Buffer], ...], Buffer] | None:
        """Arrays of queries (…, query, term) and keys (…, key, term) for each product, and of values (…, key, column);
        None if an index order differs.
        """
        sums, pairs = self.sums, list[tuple[Buffer, Buffer]]()
        for n in self.products:
            query, key, term = *(it.var for it in n.spatial[-2:]), n.reduced[-1].var
            q, k = array_of(n, (query, term)), array_of(n, (key, term))
            pairs += [(q, k)] if q and k else []
        v = array_of(sums, (sums.reduced[-1].var, sums.spatial[-1].var))
        weights = array_of(sums, (sums.spatial[-2].var, sums.reduced[-1].var))
        whole = len(pairs) == len(self.products) and weights is self.weights.writes[0]
        return (tuple(pairs), v) if v and whole else None

    @property
    def arrays(self) -> tuple[Buffer, ...]:
        """All arrays of ``operands``."""
        pairs, v = self.operands or ((), None)
        return (*(b for pair in pairs for b in pair), *([v] if v else []))

    def padded(self, by: int) -> int:
        """Terms of a score, those of each product rounded up to a multiple of ``by``."""
        return sum(-(-n.size(n.reduced) // by) * by for n in self.products)

    @cached_property
    def masked(self) -> bool:
        """True if a mask sets scores to minus infinity: tiles of keys are then skipped instead of pipelined."""
        values = [x.value for n in self.scores for x in find(n.stage.body, Const)]
        return any(isinstance(x, float) and x == -math.inf for x in values)

    # -- the space

    def threads(self, c: Config) -> int:
        """Threads of a block."""
        return 32 * int(c["warps"])

    @abstractmethod
    def shared(self, c: Config) -> int:
        """Bytes of shared memory per block: queries, keys, values, scores and weights."""

    @abstractmethod
    def registers(self) -> int:
        """Registers per thread: accumulators, scores or operands, addresses."""

    @abstractmethod
    def busy(self, c: Config) -> tuple[float, ...]:
        """Cycles of each unit per tile of keys: products, shared memory, instructions, L2 cache."""

    def slower(self, c: Config) -> float:
        """Slowdown factor of a block alone on its multiprocessor; 1.0 unless overridden."""
        return 1.0

    @cached_property
    def gpu(self) -> Gpu:
        """The modelled device."""
        return usual_gpu(self.target)

    def _limits(self) -> Mapping[str, Predicate]:
        most = self.target.shared_optin_bytes
        return {
            **super()._limits(),
            "stages": lambda c: c.get("stages", 1) == 1 or c["keys"] < self.length,
            "shared": lambda c: self.shared(c) <= most,
        }

    def pass_s(self, c: Config) -> float:
        """Waves of blocks that share a multiprocessor; a tile of keys takes as long as its busiest unit, or the
        dependent chain of all units for a single block.
        """
        gpu, threads, (blocks, pieces) = self.gpu, self.threads(c), self.tiles(c)
        held = min(gpu.blocks, gpu.threads // threads, gpu.shared_bytes // (self.shared(c) + BLOCK_BYTES))
        held = max(1, min(held, gpu.registers // (self.registers() * threads)))
        units = self.busy(c)
        rows = 2 * int(c["keys"]) * gpu.score  # a thread goes through its query's scores and weights one by one
        copies = gpu.dram_latency if c.get("stages", 1) == 1 else 0.0
        alone, busy = sum(units) * self.slower(c) + rows + copies + 6 * gpu.shared_latency, max(units)
        each = -(-blocks // gpu.units)
        wave = pieces * max(alone, held * busy) + gpu.dram_latency + gpu.start + gpu.end
        return float(-(-each // held) * wave / gpu.clock + gpu.launch_s)

    # -- the steps

    def pieces(self, s: BaseSchedule, piece: str, config: Config) -> None:
        """Skip tiles of keys excluded by a mask, or pipeline their copies."""
        if self.masked and config["keys"] < self.length:
            skip_masked(s, piece)
        elif config.get("stages", 1) > 1:
            s.pipeline(piece, int(config["stages"]), async_=True)

    def scopes(self, s: BaseSchedule, scope: str) -> None:
        """Set memory scopes: accumulators in ``scope`` (registers), values exchanged between threads in shared
        memory.
        """
        m = self.largest.writes[0].name
        s.set_scope(self.sums.writes[0].name, scope)
        exchanged = [n.writes[0].name for n in (*self.products, self.weights, self.largest, self.total)]
        for tensor in (*exchanged, f"{m}_old", f"{m}_ref", f"{m}_scale"):
            s.set_scope(tensor, "shared")

    def by_query(self, s: BaseSchedule) -> None:
        """Bind maxima and totals to one thread per query, weights to all threads."""
        for name in self.updates:
            self.one_query(s, self.query_of(s, name))
        self.along_keys(s, self.largest.name, self.products)
        self.along_keys(s, self.total.name, [self.weights])
        s.bind(s.fuse(*own_loops(s, self.weights.name)[self.rows - 1 :]), "threads")

    def one_query(self, s: BaseSchedule, loop: str) -> None:
        """Bind a loop over queries to threads, one each."""
        s.bind(loop, "threads")

    def along_keys(self, s: BaseSchedule, stage: str, read: Sequence[Nest]) -> None:
        """Bind the maximum or the total of stages ``read`` to one thread per query."""
        self.one_query(s, self.query_of(s, stage))


class WarpRollingPart(GpuRollingPart):
    """Attention in blocks of ``warps`` with 16 queries each, over tiles of ``keys`` with ``stages`` pipeline stages."""

    needs = "sm_80"
    unit = QUERIES
    widest = 256  # columns, whose accumulators are held in a warp's registers

    @property
    def name(self) -> str:
        return "rolling_mma"

    def typed(self) -> bool:
        """True if operands have one 16-bit float type and sums are float32."""
        of = {b.dtype for b in (*self.arrays, self.weights.writes[0])}
        sums = {n.writes[0].dtype for n in (*self.products, self.sums, self.total, self.largest)}
        return len(of) == 1 and of <= set(KINDS) and sums == {"float32"}

    # -- the space

    def queries(self, c: Config) -> int:
        return QUERIES * int(c["warps"])

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {"warps": [4, 2, 8, 1], "keys": [64, 32, 128, 16], "stages": [1] if self.masked else [1, 2]}

    def shared(self, c: Config) -> int:
        queries, keys = self.queries(c), int(c["keys"])
        d, e = self.padded(16), -(-self.columns // 16) * 16
        copies = 2 * keys * (d + e) * int(c["stages"])
        scores = queries * (4 * keys * len(self.products) + 2 * keys + 20)
        return 2 * queries * d + copies + scores + 2 * queries * e

    def registers(self) -> int:
        return min(255, self.columns // 2 + 128)

    def busy(self, c: Config) -> tuple[float, ...]:
        gpu, warps, queries, keys = self.gpu, int(c["warps"]), self.queries(c), int(c["keys"])
        d, e = self.padded(16), -(-self.columns // 16) * 16
        multiply = 2.0 * queries * keys * (d + e) / gpu.mma["f16"]
        read = 2.0 * warps * keys * (d + e) + 2.0 * queries * (d + keys) + SOFTMAX_BYTES * queries * keys
        shared = (read + 2.0 * keys * (d + e)) / gpu.shared_rate
        issue = (queries * keys / 32 * SOFTMAX_SLOTS + warps * keys / 16 * (d + e) / 8 * 2) / gpu.issue
        return multiply, shared, issue, 2.0 * keys * (d + e) / gpu.l2_port

    # -- the steps

    def roll(self, s: BaseSchedule, config: Config) -> None:
        sums = self.sums
        heads, (query, column, key) = sums.axes[: self.rows - 1], sums.axes[self.rows - 1 :]
        warps, keys = int(config["warps"]), int(config["keys"])
        block, warp, i = s.split(query, [None, warps, QUERIES])
        piece, step, j = s.split(key, [None, keys // 16, 16])
        columns, column = s.split(column, [None, 8])
        s.reorder(*heads, block, piece, warp, step, columns, i, column, j).bind(warp, "warp.y")
        self.rolled(s, block, piece, inlined=self.maps)
        self.share_out(s, block)
        s.bind(s.split(self.query_of(s, self.anchor.name), [None, QUERIES])[0], "warp.y")
        self.scopes(s, "warp")
        with s.because(f"rolling: a warp multiplies the scores of its {QUERIES} queries, rows of one instruction"):
            tiles = [self._scores(s, n.name) for n in self.products]
        self._operands(s, (block, piece), [d16 for d16, _ in tiles], step, keys)
        kind = KINDS[self.weights.writes[0].dtype]
        for _, tile in tiles:
            s.tensorize(tile, f"mma.m16n8k16.{kind}.nt")
        s.tensorize(i, f"mma.m16n8k16.{kind}.nn")
        self.by_query(s)
        self._leave(s, block)
        self.pieces(s, piece, config)

    def _scores(self, s: BaseSchedule, scores: str) -> tuple[str, str]:
        own, i = s.split(own_loops(s, scores)[self.rows - 1], [None, QUERIES])
        j8, j = s.split(own_loops(s, scores)[self.rows + 1], [None, 8])
        d16, d = s.split(own_loops(s, scores)[-1], [None, 16])
        s.reorder(own, d16, j8, i, j, d).bind(own, "warp.y")
        s.stage_out(scores, at=own, scope="warp")
        return d16, i

    def _operands(self, s: BaseSchedule, places: tuple[str, str], d16: Sequence[str], step: str, keys: int) -> None:
        """Stage q, k, v in shared memory; load fragments of them and of the softmax weights by ``ldmatrix``.

        places: (loop at which q is staged, loop at which k and v are);  d16: loops at which fragments of q and k are
        loaded, of each product;  step: loop for those of v and the weights;  keys: keys per tile, the row length of the
        weights
        """
        assert self.operands is not None
        pairs, v = self.operands
        weights, (block, piece) = self.weights.writes[0], places
        with s.because("scores: no two lanes of a warp are in one bank, by rows or by fragments"):
            for tensor in (n.writes[0] for n in self.products):
                s.layout(tensor.name, mapped(tensor, "x/32, x/8%4 ^ r/2%4, x/2%4 ^ r/8%4, x%2 ^ r%2"))
        wanted = list[tuple[Buffer, str, int, str, str]]()
        for n, (q, k), loop in zip(self.products, pairs, d16, strict=True):
            width = n.size(n.reduced)
            wanted += [(q, block, width, loop, "a.n"), (k, piece, width, loop, "b.t")]
        copied = list[tuple[str, Buffer, str, str]]()
        for b, at, width, loop, tile in (*wanted, (v, piece, self.columns, step, "b.n")):
            vector, rows = next(n for n in (8, 4, 2, 1) if width % n == 0), mapped(b, spread(width))
            copied.append((s.stage_in(b.name, at=at, scope="shared", vector=vector, layout=rows).name, b, loop, tile))
        s.layout(weights.name, mapped(weights, spread(keys)))
        kind = KINDS[weights.dtype]
        for name, b, at, tile in (*copied, (weights.name, weights, step, "a.n")):
            copy, rank = s.stage_in(name, at=at, scope="warp").name, len(b.shape)
            r, r16 = s.split(f"{copy}.ax{rank - 2}", [None, 16])
            x, x16 = s.split(f"{copy}.ax{rank - 1}", [None, 16])
            s.reorder(r, x, r16, x16).tensorize(r16, f"ldmatrix.{kind}.{tile}")

    def along_keys(self, s: BaseSchedule, stage: str, read: Sequence[Nest]) -> None:
        piece, few = s.split(own_loops(s, stage)[-1], [None, 8])
        if stage == self.total.name:  # vectors of four lanes are in different banks, halves of words are not
            s.stage_in(self.weights.writes[0].name, at=piece, scope="register", vector=8)
        super().along_keys(s, stage, read)
        s.unroll(few)

    def _leave(self, s: BaseSchedule, block: str) -> None:
        """Store 16-bit results through shared memory in whole sectors, if rows are multiples of 8 elements."""
        anchor, made = self.anchor.name, self.anchor.writes[0]
        if self.columns % 8 == 0 and DTYPES[made.dtype].bits == 16:
            s.stage_out(anchor, at=block, scope="shared", vector=8, layout=mapped(made, spread(self.columns)))


def mapped(b: Buffer, row: str) -> str:
    """Layout text of array ``b`` with element x of row r at position ``row``."""
    lead = "".join(f"a{n}, " for n in range(len(b.shape) - 2))
    return f"{lead}r, x -> {lead}r, {row}"


def spread(width: int) -> str:
    """Swizzled position of element x in row r for rows of ``width`` 16-bit elements, as text of a layout: no bank
    conflicts among eight rows, or adjacent pieces, of 16 bytes.
    """
    alike = math.gcd(2 * -(-width // 16), 8)  # so many places of 16 bytes come again in the banks of the next rows
    return f"x/{8 * alike}, x/8%{alike} ^ r/{8 // alike}%{alike}, x%8"
