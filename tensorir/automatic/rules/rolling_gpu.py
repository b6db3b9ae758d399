"""Attention on tensor cores: a warp accumulates 16 queries in registers; both products are ``mma`` instructions.

Scores and weights of a tile of keys pass through shared memory; one thread per query updates its maximum and sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from tensorir.arith.access import slope
from tensorir.automatic.facts import Nest
from tensorir.automatic.part import Config, parts_of
from tensorir.automatic.rules.matrix_view import multiplies
from tensorir.automatic.rules.rolling_part import RollingPart, own_loops, skip_masked
from tensorir.gpu_devices import Gpu, gpu_of, usual_gpu
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, Const, Var
from tensorir.ir.visit import find
from tensorir.schedule.schedule import BaseSchedule
from tensorir.tune.legal import Predicate

KINDS = {"float16": "f16", "bfloat16": "bf16"}
"""dtype -> its name in tensor-core instructions."""
QUERIES = 16
"""Queries per warp: rows of one instruction."""
WIDEST_RESULT = 256
"""Maximum columns of the result, whose accumulators are held in a warp's registers."""
SOFTMAX_BYTES, SOFTMAX_SLOTS = 18, 21
"""Bytes of shared-memory traffic per score, and instructions per score: a store, a load for the maximum, a load for the
weight, the weight's 16-bit store at the cost of a full word, a vector load for the sum.
"""
QUERY_BYTES = 1024
"""Bytes of shared memory for the maxima, sums and scales of a block's queries."""


class WarpRollingPart(RollingPart):
    """Attention in blocks of ``warps`` with 16 queries each, over tiles of ``keys`` with ``stages`` pipeline stages."""

    rule = "rolling"
    needs = "sm_80"
    queries = QUERIES
    widest = WIDEST_RESULT

    @property
    def name(self) -> str:
        return "rolling_mma"

    # -- what is multiplied

    def suits(self) -> bool:
        """True if the stages have the axes of attention and tensor-core instructions compute both products."""
        rows = self.rows
        if self.needs and not self.target.has(self.needs):
            return False
        counts = [(n, rows) for n in (self.largest, self.total, *self.alongside)]
        counts += [(n, rows + 1) for n in (self.sums, self.anchor, self.weights, *self.scores)]
        if not rows or any(len(n.spatial) != count or len(n.writes) != 1 for n, count in counts):
            return False
        if not self.anchor.constant or not all(map(multiplies, (self.sums, *self.products))):
            return False
        return self.operands is not None and max(self.columns, self.terms) <= self.widest and self._typed()

    def _typed(self) -> bool:
        """True if operands have one 16-bit float type and sums are float32."""
        of = {b.dtype for b in (*self._arrays(), self.weights.writes[0])}
        sums = {n.writes[0].dtype for n in (*self.products, self.sums, self.total, self.largest)}
        return len(of) == 1 and of <= set(KINDS) and sums == {"float32"}

    @property
    def rows(self) -> int:
        """Number of axes that identify a query: batch and head axes, then the query."""
        return len(self.largest.spatial)

    @cached_property
    def operands(self) -> tuple[tuple[tuple[Buffer, Buffer], ...], Buffer] | None:
        """Arrays of queries (…, query, term) and keys (…, key, term) for each product, and of values (…, key, column);
        None if an index order differs.
        """
        sums, pairs = self.sums, list[tuple[Buffer, Buffer]]()
        for n in self.products:
            query, key, term = *(it.var for it in n.spatial[-2:]), n.reduced[-1].var
            q, k = _read(n, (query, term)), _read(n, (key, term))
            pairs += [(q, k)] if q and k else []
        v = _read(sums, (sums.reduced[-1].var, sums.spatial[-1].var))
        weights = _read(sums, (sums.spatial[-2].var, sums.reduced[-1].var))
        whole = len(pairs) == len(self.products) and weights is self.weights.writes[0]
        return (tuple(pairs), v) if v and whole else None

    def _arrays(self) -> tuple[Buffer, ...]:
        """All arrays of ``operands``."""
        pairs, v = self.operands or ((), None)
        return (*(b for pair in pairs for b in pair), *([v] if v else []))

    @cached_property
    def terms(self) -> int:
        """Terms of a score (head dimension), over all its products."""
        return sum(n.size(n.reduced) for n in self.products)

    def _padded(self, by: int) -> int:
        """Terms of a score, those of each product rounded up to a multiple of ``by``."""
        return sum(-(-n.size(n.reduced) // by) * by for n in self.products)

    @cached_property
    def columns(self) -> int:
        """Columns of the result."""
        return self.sums.size(self.sums.spatial[-1:])

    @cached_property
    def masked(self) -> bool:
        """True if a mask sets scores to minus infinity: tiles of keys are then skipped instead of pipelined."""
        values = [x.value for n in self.scores for x in find(n.stage.body, Const)]
        return any(isinstance(x, float) and x == -math.inf for x in values)

    # -- the space

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {
            "warps": [4, 2, 8, 1],
            "keys": [64, 32, 128, 16],
            "stages": [1] if self.masked else [1, 2],
        }

    def _limits(self) -> Mapping[str, Predicate]:
        gpu = gpu_of(self.target)
        most = (
            min(gpu.shared_bytes, 227 * 1024) - QUERY_BYTES if gpu else min(96 * 1024, self.target.shared_optin_bytes)
        )
        return {
            **super()._limits(),
            "queries": lambda c: c["warps"] * self.queries < 2 * self.count or c["warps"] == 1,
            "keys": lambda c: c["keys"] < 2 * self.length or c["keys"] == 16,
            "stages": lambda c: c["stages"] == 1 or c["keys"] < self.length,
            "shared": lambda c: self.shared(c) <= most,
        }

    def start(self) -> Config | None:
        return self.fastest()

    def shared(self, c: Config) -> int:
        """Bytes of shared memory per block: queries, keys, values, scores and weights."""
        queries, keys = c["warps"] * QUERIES, c["keys"]
        d, e = self._padded(16), -(-self.columns // 16) * 16
        copies = 2 * keys * (d + e) * c["stages"]
        scores = queries * (4 * keys * len(self.products) + 2 * keys + 20)
        return 2 * queries * d + copies + scores + 2 * queries * e

    def registers(self) -> int:
        """Registers per thread: accumulators of its part of 16 queries, operands, addresses."""
        return min(255, self.columns // 2 + 128)

    def expected(self) -> Callable[[Config], float] | None:
        gpu = usual_gpu(self.target)
        return lambda c: self._seconds(c, gpu)

    def _seconds(self, c: Config, gpu: Gpu) -> float:
        """Modelled seconds: waves of blocks that share a multiprocessor; a tile of keys takes as long as its busiest
        unit, or the dependent chain of all units for a single block.
        """
        queries, keys, threads = c["warps"] * self.queries, c["keys"], c["warps"] * 32
        held = min(gpu.blocks, gpu.threads // threads, gpu.shared_bytes // (self.shared(c) + QUERY_BYTES))
        held = max(1, min(held, gpu.registers // (self.registers() * threads)))
        parts = self._busy(c, gpu)
        rows = 2 * keys * gpu.score  # a thread goes through its query's scores and weights, each after the last one
        copies = gpu.dram_latency if c["stages"] == 1 else 0.0
        alone, busy = sum(parts) * self._spread(c, gpu) + rows + copies + 6 * gpu.shared_latency, max(parts)
        pieces, heads = -(-self.length // (keys * parts_of(c))), self.heads * parts_of(c)
        blocks = -(-self.count // queries) * heads
        each = -(-blocks // gpu.units)
        wave = pieces * max(alone, held * busy) + gpu.dram_latency + gpu.start + gpu.end
        return float(-(-each // held) * wave / gpu.clock + gpu.launch_s) + self._combining_s(c)

    def _spread(self, c: Config, gpu: Gpu) -> float:
        """Slowdown factor of a block alone on its multiprocessor; 1.0 here."""
        return 1.0

    def _busy(self, c: Config, gpu: Gpu) -> tuple[float, ...]:
        """Cycles per tile of keys of each unit: tensor cores, shared memory, issue, L2 cache."""
        queries, keys = c["warps"] * QUERIES, c["keys"]
        d, e = self._padded(16), -(-self.columns // 16) * 16
        multiply = 2.0 * queries * keys * (d + e) / gpu.mma["f16"]
        read = 2.0 * c["warps"] * keys * (d + e) + 2.0 * queries * (d + keys) + SOFTMAX_BYTES * queries * keys
        shared = (read + 2.0 * keys * (d + e)) / gpu.shared_rate
        issue = (queries * keys / 32 * SOFTMAX_SLOTS + c["warps"] * keys / 16 * (d + e) / 8 * 2) / gpu.issue
        return multiply, shared, issue, 2.0 * keys * (d + e) / gpu.l2_port

    # -- the schedule

    def roll(self, s: BaseSchedule, config: Config) -> None:
        sums = self.sums
        heads, (query, column, key) = sums.axes[: self.rows - 1], sums.axes[self.rows - 1 :]
        warps, keys = int(config["warps"]), int(config["keys"])
        block, warp, i = s.split(query, [None, warps, QUERIES])
        piece, step, j = s.split(key, [None, keys // 16, 16])
        columns, column = s.split(column, [None, 8])
        s.reorder(*heads, block, piece, warp, step, columns, i, column, j).bind(warp, "warp.y")
        self._rolled(s, block, piece, inlined=self.maps)
        self._share_out(s, heads, block)
        s.bind(s.split(own_loops(s, self.anchor.name)[self.rows - 1], [None, QUERIES])[0], "warp.y")
        self._kept(s, "warp")
        with s.because(f"rolling: a warp multiplies the scores of its {QUERIES} queries, rows of one instruction"):
            tiles = [self._scores(s, n.name) for n in self.products]
        self._operands(s, (block, piece), [d16 for d16, _ in tiles], step, keys)
        kind = KINDS[self.weights.writes[0].dtype]
        for _, tile in tiles:
            s.tensorize(tile, f"mma.m16n8k16.{kind}.nt")
        s.tensorize(i, f"mma.m16n8k16.{kind}.nn")
        self._queries(s)
        self._leave(s, block)
        self._pieces(s, piece, config)

    def _pieces(self, s: BaseSchedule, piece: str, config: Config) -> None:
        """Skip tiles of keys excluded by a mask, or pipeline their copies."""
        if self.masked and config["keys"] < self.length:
            skip_masked(s, piece)
        elif config["stages"] > 1:
            s.pipeline(piece, int(config["stages"]), async_=True)

    def _kept(self, s: BaseSchedule, scope: str) -> None:
        """Set memory scopes: accumulators in ``scope`` (registers), values exchanged between threads in shared
        memory.
        """
        m = self.largest.writes[0].name
        s.set_scope(self.sums.writes[0].name, scope)
        exchanged = [n.writes[0].name for n in (*self.products, self.weights, self.largest, self.total)]
        for tensor in (*exchanged, f"{m}_old", f"{m}_ref", f"{m}_scale"):
            s.set_scope(tensor, "shared")

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

    def _queries(self, s: BaseSchedule) -> None:
        """Bind maxima and sums to one thread per query, weights to all threads."""
        m, l, p = self.largest.name, self.total.name, self.weights.name
        once = (f"{m}.init", f"{l}.init", f"{m}.old", f"{m}.ref", f"{m}.scale", f"{l}.rescale")
        for name in (*once, *(n.name for n in self.alongside)):
            s.bind(own_loops(s, name)[self.rows - 1], "threads")
        for name in (m, l):
            piece, few = s.split(own_loops(s, name)[-1], [None, 8])
            if name == l:  # vectors of four lanes are in different banks, halves of words are not
                s.stage_in(self.weights.writes[0].name, at=piece, scope="register", vector=8)
            s.bind(own_loops(s, name)[self.rows - 1], "threads").unroll(few)
        s.bind(s.fuse(own_loops(s, p)[self.rows - 1], own_loops(s, p)[self.rows]), "threads")

    def _leave(self, s: BaseSchedule, block: str) -> None:
        """Store 16-bit results through shared memory in whole sectors, if rows are multiples of 8 elements."""
        anchor, made = self.anchor.name, self.anchor.writes[0]
        if self.columns % 8 == 0 and DTYPES[made.dtype].bits == 16:
            s.stage_out(anchor, at=block, scope="shared", vector=8, layout=mapped(made, spread(self.columns)))


def _read(nest: Nest, ends: tuple[Var, Var]) -> Buffer | None:
    """The array that ``nest`` loads with the last two indices ``ends``, the first from any place on; None if there is
    none.
    """
    row, last = ends
    rows = (x for x in nest.loads if len(x.index) > 1 and x.index[-1] is last)
    return next((x.buffer for x in rows if slope(x.index[-2], row) == 1), None)


def spread(width: int) -> str:
    """Swizzled position of element x in row r for rows of ``width`` 16-bit elements, as text of a layout: no bank
    conflicts among eight rows, or adjacent pieces, of 16 bytes.
    """
    alike = math.gcd(2 * -(-width // 16), 8)  # so many places of 16 bytes come again in the banks of the next rows
    return f"x/{8 * alike}, x/8%{alike} ^ r/{8 // alike}%{alike}, x%8"


def mapped(b: Buffer, row: str) -> str:
    """Layout text of array ``b`` with element x of row r at position ``row``."""
    lead = "".join(f"a{n}, " for n in range(len(b.shape) - 2))
    return f"{lead}r, x -> {lead}r, {row}"
