"""Online softmax ("rolling"): running maximum, sum of weights and weighted sums in one pass over the keys
(attention).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tensorir.arith.access import slope
from tensorir.automatic.facts import Graph, Nest, bytes_of, vector_lanes
from tensorir.automatic.levels import choices
from tensorir.automatic.part import Config, Part, parts_of
from tensorir.errors import ScheduleError
from tensorir.ir.structure import identical
from tensorir.ir.tree import Buffer, Const, Update, Var
from tensorir.ir.visit import find
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate

KEYS = 16
"""Keys of the least tile."""
THREADS = 128
"""Most threads of a block that combines parts of the keys, one per column."""


def attentions(graph: Graph, anchor: Nest) -> Iterator[Stages]:
    """Stages of each attention whose weighted sums are read by map ``anchor``: O / l with O = sum of weights * values,
    l = sum of weights, weights = f(scores, m), m = max of scores, and scores that are reductions, or elementwise
    functions of some.
    """
    if anchor.kind != "map":
        return
    for sums in graph.producers(anchor):
        for weights in _of(graph.producers(sums), "map") if _reduces_once(sums) else ():
            largest = [m for m in graph.producers(weights) if _reduces_once(m) and _combines(m, "max")]
            totals = [t for t in graph.readers(weights) if t is not sums and _reduces_once(t) and _combines(t, "sum")]
            if len(largest) == len(totals) == 1:
                scores = _scores(graph, weights, largest[0])
                if scores:
                    yield Stages(sums, weights, largest[0], totals[0], scores)


def only_ratio(graph: Graph, anchor: Nest, found: Stages) -> bool:
    """True if ``anchor`` alone reads total and weighted sums, and weights and scores are no outputs; without minus
    infinity in the scores others may read or be the results.

    Where all scores of a query are minus infinity, the total and the sums are 0 in one pass, and NaN as declared: their
    ratio is NaN in both.
    """
    if any(graph.is_output(n) for n in (found.weights, *found.scores)):
        return False
    masked = any(x.value == -math.inf for n in found.scores for x in find(n.stage.body, Const))
    return not masked or not (_alongside(graph, anchor, found) or any(map(graph.is_output, (found.total, found.sums))))


def _of(nests: Sequence[Nest], kind: str) -> list[Nest]:
    return [n for n in nests if n.kind == kind]


def _reduces_once(nest: Nest) -> bool:
    return nest.kind == "reduce" and len(nest.reduced) == 1


def _combines(nest: Nest, name: str) -> bool:
    return any(u.combiner.name == name for u in find(nest.stage.body, Update))


def _scores(graph: Graph, weights: Nest, largest: Nest) -> tuple[Nest, ...]:
    """Stages that compute the scores, readers before what they read; () if there is no reduction among them."""
    both = [n for n in graph.producers(weights) if n in graph.producers(largest)]
    found = _cellwise(graph, both[0]) if len(both) == 1 else []
    return tuple(n for n in reversed(graph.nests.values()) if n in found)


def _cellwise(graph: Graph, score: Nest) -> list[Nest]:
    """Stage ``score`` with the reductions and maps read by it cell for cell; maps that read no reduction so, such as a
    bias, are left out, and all if ``score`` is one.
    """
    if score.kind == "reduce":
        return [score]
    own = tuple(it.var for it in score.spatial)
    read = [n for n in graph.producers(score) if score.kind == "map" and len(n.spatial) == len(own)]
    at = {b: [x.index for x in score.loads if x.buffer is b] for n in read for b in n.writes}
    near = [n for n in dict.fromkeys(read) if all(identical(i, own) for b in n.writes for i in at[b])]
    found = [n for one in near for n in _cellwise(graph, one)]
    return [score, *found] if found else []


def _alongside(graph: Graph, anchor: Nest, found: Stages) -> tuple[Nest, ...]:
    """Other maps that read the maximum or the total, such as the logarithm of what a softmax divides by."""
    own = (anchor, found.sums, found.weights, found.total)
    readers = [n for x in (found.largest, found.total) for n in graph.readers(x) if n not in own]
    return tuple(n for n in dict.fromkeys(readers) if n.kind == "map" and len(n.spatial) == len(found.largest.spatial))


@dataclass(frozen=True, eq=False)
class Stages:
    """Stages of an attention: ``sums`` of ``weights`` times values, ``total`` of the weights, ``largest`` score, and
    ``scores``, readers before what they read.
    """

    sums: Nest
    weights: Nest
    largest: Nest
    total: Nest
    scores: tuple[Nest, ...]


class RollingPart(Part):
    """Attention in one pass over tiles of ``keys``, of which a block has some queries; its subclasses say where the
    products are computed.

    unit: queries of the least block
    """

    rule = "rolling"
    unit: ClassVar[int] = 1

    def __init__(self, graph: Graph, anchor: Nest, target: Target, found: Stages) -> None:
        self.scores = found.scores
        sums, weights, largest, total = found.sums, found.weights, found.largest, found.total
        self.sums, self.weights, self.largest, self.total = sums, weights, largest, total
        self.products = tuple(n for n in self.scores if n.kind == "reduce")
        self.maps = tuple(n for n in self.scores if n.kind != "reduce")
        self.alongside = _alongside(graph, anchor, found)
        self.stored = frozenset(n.name for n in self.alongside)
        names = [n.name for n in (sums, weights, largest, total, *self.scores, *self.alongside)]
        reason = (
            f"{largest.name}, {total.name} and {sums.name} go through {sums.axes[-1]} together: no scores in memory"
        )
        super().__init__(graph, anchor, target, names, reason)

    def suits(self) -> bool:
        """True if the stages have the axes of attention, with constant extents for threads, and the target what the
        part needs.
        """
        cells = (self.sums, self.anchor, self.weights, *self.scores)
        axes = [(n, self.rows) for n in (self.largest, self.total, *self.alongside)]
        axes += [(n, self.rows + 1) for n in cells]
        plain = self.rows > 0 and all(len(n.spatial) == count and len(n.writes) == 1 for n, count in axes)
        known = (self.anchor.constant and self.sums.constant) or not self.levels.threaded
        return plain and known and (not self.needs or self.target.has(self.needs))

    # -- sizes

    @property
    def rows(self) -> int:
        """Number of axes that identify a query: batch and head axes, then the query."""
        return len(self.largest.spatial)

    @cached_property
    def count(self) -> int:
        """Queries per head."""
        return self.largest.size(self.largest.spatial[-1:])

    @cached_property
    def heads(self) -> int:
        """Number of heads, over all batches."""
        return self.largest.cells // self.count

    @cached_property
    def length(self) -> int:
        """Keys per head."""
        return self.sums.size(self.sums.reduced)

    @cached_property
    def columns(self) -> int:
        """Columns of the result."""
        return self.sums.size(self.sums.spatial[-1:])

    @cached_property
    def terms(self) -> int:
        """Terms of a score (head dimension), over all its products."""
        return sum(n.size(n.reduced) for n in self.products)

    # -- the space

    @abstractmethod
    def queries(self, c: Config) -> int:
        """Queries of a block."""

    def tiles(self, c: Config) -> tuple[int, int]:
        """Number of blocks, of all heads and parts, and of tiles of keys in each."""
        blocks = self.heads * parts_of(c) * -(-self.count // self.queries(c))
        return blocks, -(-self.length // (parts_of(c) * int(c["keys"])))

    def in_parts(self, queries: int) -> Mapping[str, Sequence[object]]:
        """The knob ``parts`` of constant keys, if blocks of ``queries`` are fewer than cores; else none."""
        if not (self.anchor.constant and self.sums.constant):
            return {}
        return choices(parts=self.levels.parts(self.heads * -(-self.count // queries), self.length))

    def where(self) -> Mapping[str, Predicate]:
        return self._limits()

    def _limits(self) -> Mapping[str, Predicate]:
        """Constraints by name."""
        return {
            "parts": lambda c: parts_of(c) == 1 or parts_of(c) * c["keys"] < 2 * self.length,
            "queries": lambda c: self.queries(c) < 2 * max(self.count, self.unit),
            "keys": lambda c: c["keys"] < 2 * max(self.length, KEYS),
        }

    def start(self) -> Config | None:
        return self.fastest()

    def expected(self) -> Callable[[Config], float] | None:
        return lambda c: self.pass_s(c) + self._combining_s(c)

    @abstractmethod
    def pass_s(self, c: Config) -> float:
        """Modelled seconds of the pass over the keys."""

    def _combining_s(self, c: Config) -> float:
        """Modelled seconds of the kernel that combines ``parts``, with the traffic of their results, and until cores
        have started on both kernels; 0.0 for one part.
        """
        machine, moved = self.levels.machine, 3.0 * parts_of(c) * bytes_of(self.sums.writes[0])
        starts = machine.launch_s + 2 * machine.wake_s
        return (starts + moved / (machine.rate(moved) * machine.cores)) * (parts_of(c) > 1)

    # -- the steps

    def declare(self, s: BaseSchedule, config: Config) -> None:
        if parts_of(config) > 1:
            s.redeclare("split_softmax", parts=parts_of(config), of=self.sums.name)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        if parts_of(config) == 1:
            self.roll(s, config)
            return
        graph = Graph(s.program, self.graph.wishes)
        anchor = graph.nests[f"{self.sums.name}_parts"]
        type(self)(graph, anchor, self.target, next(attentions(graph, anchor))).roll(s, config)
        with s.because(f"rolling: {parts_of(config)} parts of {self.sums.axes[-1]} are rescaled and added in order"):
            self._combine(s)

    def _combine(self, s: BaseSchedule) -> None:
        """Schedule the kernel that adds the parts: a block per query, its columns in vectors or threads."""
        *cells, column = own_loops(s, self.anchor.name)
        m, l, o = self.largest.name, self.total.name, self.sums.name
        s.share_out(*cells)
        for n in self.alongside:
            s.share_out(*own_loops(s, n.name))
            s.fuse_with(n.name, self.anchor.name)
        block = str(s.loops(self.anchor.name)[0])
        threads, lanes = min(THREADS, self.columns), vector_lanes(self.target, self.bits)
        at = self.levels.spread(s, column, {"threads": threads, "lanes": 1 if self.levels.threaded else lanes})
        s.compute_at(o, at, scope="register")
        *_, column, part = own_loops(s, o)
        if not self.levels.threaded:
            s.reorder(part, column).vectorize(column)
        for name in (l, f"{m}_scale", m):
            s.compute_at(name, block)

    @abstractmethod
    def roll(self, s: BaseSchedule, config: Config) -> None:
        """Schedule the pass over the keys."""

    def rolled(self, s: BaseSchedule, block: str, piece: str, inlined: Sequence[Nest] = ()) -> None:
        """Apply ``rolling`` to maximum and sums at loop ``piece`` over tiles of keys, compute the scores there, and the
        results in ``block`` after the last tile; ``inlined``: scores that are computed where they are read.
        """
        s.rolling(self.largest.name, into=(self.total.name, self.sums.name), at=piece)
        for n in self.scores:
            if n in inlined:
                s.compute_inline(n.name)
            else:
                s.compute_at(n.name, piece)
        for n in (self.anchor, *self.alongside):
            s.reverse_compute_at(n.name, block)

    def share_out(self, s: BaseSchedule, block: str) -> None:
        """Bind blocks of queries, and heads, to the grid."""
        s.bind(block, "block.x")
        if heads := self.sums.axes[: self.rows - 1]:
            s.share_out(*heads, to="block.y")

    @property
    def updates(self) -> tuple[str, ...]:
        """Stages of one value per query, before and after the maximum and the total of a tile of keys."""
        m, l = self.largest.name, self.total.name
        once = (f"{m}.init", f"{l}.init", f"{m}.old", f"{m}.ref", f"{m}.scale", f"{l}.rescale")
        return (*once, *(n.name for n in self.alongside))

    def query_of(self, s: BaseSchedule, stage: str) -> str:
        """Loop over the queries of a block in a stage of the tile of keys."""
        return own_loops(s, stage)[self.rows - 1]


def own_loops(s: BaseSchedule, stage: str) -> list[str]:
    """Names of a stage's loops, except those of the stage it is computed at."""
    return [str(x) for x in s.loops(stage) if str(x).startswith(f"{stage}.")]


def array_of(nest: Nest, ends: tuple[Var, Var]) -> Buffer | None:
    """The array that ``nest`` loads with the last two indices ``ends``, the first from any place on; None if there is
    none.
    """
    row, last = ends
    rows = (x for x in nest.loads if len(x.index) > 1 and x.index[-1] is last)
    return next((x.buffer for x in rows if slope(x.index[-2], row) == 1), None)


def skip_masked(s: BaseSchedule, piece: str) -> None:
    """Skip tiles of keys that a mask excludes completely; no step if there is no such mask."""
    try:
        with s.because("mask: no query of the block sees a key of these pieces"):
            s.skip(piece)
    except ScheduleError as e:
        if e.code not in ("skip.identity", "skip.condition"):
            raise
